"""Swarms: random scenarios of one kind, one per seed, for `unisono simulate --swarm KIND`.

Each kind names the scenarios to draw and the checks that they promise. `stormy` scenarios, for example, go beyond the
assumptions of their order, so only safety is promised. A check that a run does not promise is still shown, but does not
count for its verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import assert_never

from unisono.check.final import GRACE_NS
from unisono.check.latency import latency_in_force
from unisono.check.suite import check_all
from unisono.check.verdict import Verdict, check_name
from unisono.model.faults import Partition, Pause
from unisono.model.scenario import Scenario
from unisono.model.units import NS_PER_S
from unisono.sim.result import Result
from unisono.sim.run import run as simulate
from unisono.sim.swarm.final import cbr_finals, finals
from unisono.sim.swarm.multigroup import groups_scenario
from unisono.sim.swarm.orders import any_order
from unisono.sim.swarm.quiescence import FinalOrderQuiescent, MultigroupQuiescent
from unisono.sim.swarm.vbr import calm, churning, renegotiated, stormy
from unisono.sim.world import World

DEFAULT_SEEDS = range(100)
SAFETY_CHECKS = frozenset({"total_order", "integrity", "fifo"})
FINAL_GRACE_NS = 3 * NS_PER_S // 2
"""Messages must become final within this time, in ns, after the faults have ended."""


class SwarmPromise(Enum):
    """The checks that count for the verdict of a swarm's runs."""

    EVERYTHING = auto()
    """Every check is valid."""
    UNLESS_PAUSED = auto()
    """Every check is valid, except that a paused member may deliver late."""
    SAFETY = auto()
    """Deliveries are in one order, but some may be missing or late."""
    FINAL = auto()
    """Final deliveries are complete. Early ones are in one order, but some may be missing or late."""


@dataclass(frozen=True, slots=True)
class Swarm:
    """One kind of random scenarios: how to draw the scenario of a seed, and what its runs promise."""

    draw: Callable[[int], Scenario]
    description: str
    promise: SwarmPromise
    quiescence: Callable[[Scenario], Callable[[World], bool]] | None = None
    """Builds a function that says whether a run may end early; None to run each scenario to its end.

    It serves scenarios that would otherwise idle for seconds.
    """
    grace_ns: int = GRACE_NS

    def run(self, seed: int) -> tuple[Result, dict[str, Verdict]]:
        """Run the scenario of a seed; returns the result and the verdict of every checker."""
        scenario = self.draw(seed)
        is_quiescent = None if self.quiescence is None else self.quiescence(scenario)
        result = simulate(scenario, seed, compare_payloads=True, is_quiescent=is_quiescent)
        verdicts = check_all(result.trace, until_ns=result.until_ns, grace_ns=self.grace_ns)
        if len(scenario.timings) > 1:
            verdicts["latency_in_force"] = latency_in_force(result.trace)
        return result, verdicts

    def promised_verdicts(self, result: Result, verdicts: Mapping[str, Verdict]) -> dict[str, Verdict]:
        """The verdicts of the checks that this run promises to pass."""
        return {name: verdict for name, verdict in verdicts.items() if self._promises(result, name)}

    def _promises(self, result: Result, check: str) -> bool:
        match self.promise:
            case SwarmPromise.EVERYTHING:
                return True
            case SwarmPromise.UNLESS_PAUSED:
                return not (check.startswith("latency") and _may_be_late(result))
            case SwarmPromise.SAFETY:
                return check in SAFETY_CHECKS
            case SwarmPromise.FINAL:
                return not check.endswith("[early]") or check_name(check) in SAFETY_CHECKS
        assert_never(self.promise)


def _may_be_late(result: Result) -> bool:
    """Whether members may deliver late in this run.

    A paused member may. So may a member that missed a change of the slot length during a partition.
    """
    faults = result.scenario.faults
    if any(isinstance(fault, Pause) for fault in faults):
        return True
    missed_slots = any(violation.kind == "slots" for found in result.violations.values() for violation in found)
    return missed_slots and any(isinstance(fault, Partition) for fault in faults)


SWARMS: dict[str, Swarm] = {
    "calm": Swarm(calm, "vbr within its assumptions; every guarantee holds", SwarmPromise.EVERYTHING),
    "stormy": Swarm(stormy, "vbr with unexpected losses, crashes and partitions; safety holds", SwarmPromise.SAFETY),
    "churning": Swarm(churning, "vbr with failures: members crash, join, leave and pause", SwarmPromise.UNLESS_PAUSED),
    "renegotiated": Swarm(renegotiated, "vbr while members change rates and slot lengths", SwarmPromise.UNLESS_PAUSED),
    "any_order": Swarm(any_order, "cbr, vbr, vbr with fec or failures, leader, timestamp", SwarmPromise.UNLESS_PAUSED),
    "final": Swarm(
        finals, "early and final deliveries over vbr", SwarmPromise.FINAL, FinalOrderQuiescent, FINAL_GRACE_NS
    ),
    "final_cbr": Swarm(
        cbr_finals, "early and final deliveries over cbr", SwarmPromise.FINAL, FinalOrderQuiescent, FINAL_GRACE_NS
    ),
    "multigroup": Swarm(
        groups_scenario,
        "quasi-genuine multicast between groups of any topology",
        SwarmPromise.EVERYTHING,
        MultigroupQuiescent,
    ),
}
