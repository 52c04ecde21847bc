"""One rule of final deliveries broken, and the swarm sees it, by the checker of the claim that it breaks.

The bug acts at all members: an agreement that only one of them breaks is made up for by the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.simulation.test_finals_swarm import judged

from unisono.check.verdict import Status
from unisono.model.durations import NS_PER_MS
from unisono.model.faults import Fault, Loss, Partition, Span
from unisono.model.message_range import MessageRange
from unisono.model.scenario import Scenario, Workload
from unisono.model.text.scenario import parse_scenario
from unisono.model.timing import Timing
from unisono.orders.cbr.bounds import turn_bound_ns
from unisono.orders.cbr.order import Cbr
from unisono.orders.final.agreement import AgreedRange, FinalLog
from unisono.orders.final.order import FinalOrder
from unisono.orders.final.recovery import Recovery
from unisono.sim.swarm.final import finals

Rule = Callable[..., Any]


def disturbed(*faults: Fault, loss_burst: int = 0) -> Scenario:
    """Three members that all send, and these faults."""
    quiet = replace(finals(0), timing=Timing(5 * NS_PER_MS, 0, 10 * NS_PER_MS))
    members, workload = (1, 2, 3), Workload("bursts", 20, 40, burst=4, every_ns=40 * NS_PER_MS)
    return replace(
        quiet,
        source="planted",
        members=members,
        rates=dict.fromkeys(members, quiet.rates[1]),
        workloads=dict.fromkeys(members, workload),
        run_ns=600 * NS_PER_MS,
        loss_burst=loss_burst,
        faults=faults,
        steps=(),
    )


CUT_OFF = disturbed(Partition(Span(200 * NS_PER_MS, 500 * NS_PER_MS), ((1, 2), (3,))))
LOSSY = disturbed(Loss(Span(), 0.2, 1, 2), loss_burst=1)


def leaves_late_messages_out(right: Rule, self: FinalLog, k: int, extent: MessageRange) -> list[AgreedRange]:
    """What only somebody held whom the group went on without is never final."""
    return [] if extent.slot < self.slot else right(self, k, extent)


def delivers_what_is_there(right: Rule, self: FinalOrder) -> None:
    """What has its place and is here goes first; what is missing is delivered when it comes."""
    self._undelivered = type(self._undelivered)(
        sorted(self._undelivered, key=lambda one: (self.store.packed_messages(one.message_range) is None, one.position))
    )
    right(self)


def asks_for_nothing(right: Rule, self: Recovery, *given: Any) -> None:
    """What was lost on its way here is not recovered."""


PLANTED: list[tuple[Any, str, Rule, Scenario, str]] = [
    (FinalLog, "_finalize", leaves_late_messages_out, CUT_OFF, "early_in_final"),
    (FinalOrder, "_deliver", delivers_what_is_there, LOSSY, "final_order"),
    (Recovery, "request_missing", asks_for_nothing, LOSSY, "final_agreement"),
]


@pytest.mark.parametrize(
    ("where", "name", "broken", "scenario", "seen_by"), PLANTED, ids=[bug[2].__name__ for bug in PLANTED]
)
def test_a_broken_rule_is_seen(
    monkeypatch: pytest.MonkeyPatch, where: Any, name: str, broken: Rule, scenario: Scenario, seen_by: str
) -> None:
    right = getattr(where, name)
    monkeypatch.setattr(where, name, lambda *given: broken(right, *given))
    verdict = judged(scenario)[seen_by]
    assert verdict.status is Status.VIOLATED, verdict
    assert verdict.witness is not None
    assert verdict.witness.text


@pytest.mark.parametrize("scenario", [CUT_OFF, LOSSY], ids=("cut off", "lossy"))
def test_the_same_is_fine_when_no_rule_is_broken(scenario: Scenario) -> None:
    verdicts = judged(scenario)
    bad = {name: v for name, v in verdicts.items() if v.status is not Status.VALID and "[early]" not in name}
    assert not bad


def test_over_cbr_a_member_whose_order_has_stopped_must_say_that_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what another had early, from the last datagrams of a member that died, waits for it for ever."""
    path = Path(__file__).parents[2] / "scenarios" / "cbr_grades.toml"
    scenario = parse_scenario(path.read_text("utf-8"), path.name)
    assert judged(scenario)["early_in_final"].status is Status.VALID

    def done_slot(cbr: Cbr) -> int:
        return cbr._timing.slot_of(cbr._late_at() - turn_bound_ns(cbr._timing)) - 1 if cbr.rate else 0

    monkeypatch.setattr(Cbr, "done_slot", done_slot)
    verdict = judged(scenario)["early_in_final"]
    assert verdict.status is Status.VIOLATED
    assert verdict.witness is not None
