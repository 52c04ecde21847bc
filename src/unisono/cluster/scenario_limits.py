"""Says which parts of a scenario real processes can run. They refuse the others by name and ignore none."""

from __future__ import annotations

from unisono.cluster.supervisor import MemberSchedule
from unisono.errors import InvalidOption
from unisono.model.capabilities import capabilities_of
from unisono.model.faults import Crash, Loss, Partition, Pause, max_lost
from unisono.model.scenario import EPOCH_NS, Clocks, Restart, Scenario, Start
from unisono.model.units import NS_PER_S


def refuse_unsupported(scenario: Scenario) -> None:
    """Raise InvalidOption for a field that real processes do not support, and if the order would wait forever.

    An order would wait forever for a lost message or an absent member if it does not tolerate them.
    """
    if unsupported := unsupported_fields(scenario):
        reasons = "; ".join(unsupported.values())
        raise InvalidOption(", ".join(unsupported), f"{reasons}; run this scenario with `unisono simulate FILE`")
    if any(isinstance(step, Start | Restart) for step in scenario.steps) and not _admits_late_members(scenario):
        raise InvalidOption(
            "start, restart (--join)",
            f"the order {scenario.order} starts when all members are up and admits no member later; "
            "use the order vbr with --failures",
        )
    if not capabilities_of(scenario.order).waits_for_all:
        return
    losses = [fault for fault in scenario.faults if isinstance(fault, Loss) and fault.probability > 0]
    if losses and scenario.reliable is None:
        _refuse_untolerated_losses(scenario, losses)
    for kind, word in ((Crash, "crash (--kill)"), (Partition, "partition")):
        if not scenario.failures and any(isinstance(fault, kind) for fault in scenario.faults):
            raise InvalidOption(
                word, f"the order {scenario.order} waits forever for an absent member; {_failures_hint(scenario.order)}"
            )


def unsupported_fields(scenario: Scenario) -> dict[str, str]:
    """The fields of a scenario that only the simulator supports, and why real processes do not."""
    found = {}
    if scenario.multigroup is not None:
        found["[topology]"] = "real processes run only one group"
    if scenario.network.adversary != "none":
        found["network.adversary"] = "real processes add their own delays, so delays of up to Δ cannot be kept"
    if scenario.clocks.kind in {"drifting", "adversarial"}:
        found["clocks.kind"] = f"real processes have no {scenario.clocks.kind} clocks, only constant offsets"
    for field in ("drift_ppm", "step_every_ns"):
        if getattr(scenario.clocks, field) != getattr(Clocks(), field):
            found[f"clocks.{field.removesuffix('_ns')}"] = "the clocks of real processes neither drift nor step"
    if scenario.reservation != "sender":
        found["group.reservation"] = "real processes reserve bandwidth at the sender only"
    if scenario.epoch_ns != EPOCH_NS:
        found["run.epoch"] = "real processes start at the present time"
    return found


def _admits_late_members(scenario: Scenario) -> bool:
    """Whether the scenario's group admits new members while it runs."""
    capabilities = capabilities_of(scenario.order)
    return capabilities.admits_late_members or (scenario.failures and capabilities.slotted)


def _failures_hint(order: str) -> str:
    return "add --failures" if order == "vbr" else "use the order vbr with --failures, or leader or timestamp"


def _refuse_untolerated_losses(scenario: Scenario, losses: list[Loss]) -> None:
    if scenario.order != "vbr":
        raise InvalidOption(
            "loss",
            f"the order {scenario.order} waits forever for a lost message; use the order vbr with --fec a/b or "
            "--loss-burst x, or the order leader or timestamp, which retransmit",
        )
    if scenario.fec is None and not scenario.loss_burst:
        raise InvalidOption(
            "loss",
            "without further options the order vbr waits forever for a lost message; add --fec a/b, which repairs up "
            "to a losses in any b consecutive datagrams, or --loss-burst x, which continues without lost messages (in "
            "a scenario file: fec, or failures and loss_burst, in [group]; or a table [reliable])",
        )
    if scenario.fec is not None and not scenario.failures:
        a, b = scenario.fec
        worst = max(max_lost(fault, b) for fault in losses)
        if worst > a:
            raise InvalidOption(
                "loss",
                f"{worst} of {b} consecutive datagrams may be lost, but fec = {a}/{b} repairs only {a}, so the order "
                f"would wait forever: bound the loss (at_most = {a}, of = {b}), or set failures = true",
            )


def loss_warning(scenario: Scenario) -> str:
    """A warning if the scenario loses datagrams under an order whose latency bound assumes no loss; else empty."""
    lossy = any(isinstance(fault, Loss) and fault.probability > 0 for fault in scenario.faults)
    if lossy and scenario.reliable is None and capabilities_of(scenario.order).led:
        return (
            f"the order {scenario.order} assumes that nothing is lost: a lost message is retransmitted and late, and a "
            "member that misses too much may be excluded"
        )
    return ""


def member_schedules(scenario: Scenario) -> dict[int, MemberSchedule]:
    """When each member's process starts, is killed, is paused and restarts."""
    found = {}
    for member in scenario.members:
        steps = [step for step in scenario.steps if step.member == member]
        faults = [fault for fault in scenario.faults if isinstance(fault, Crash | Pause) and fault.member == member]
        found[member] = MemberSchedule(
            start_s=next((step.at_ns / NS_PER_S for step in steps if isinstance(step, Start)), None),
            kills_s=tuple(fault.at_ns / NS_PER_S for fault in faults if isinstance(fault, Crash)),
            pauses_s=tuple((f.from_ns / NS_PER_S, f.to_ns / NS_PER_S) for f in faults if isinstance(f, Pause)),
            restarts_s=tuple(sorted(step.at_ns / NS_PER_S for step in steps if isinstance(step, Restart))),
        )
    return found
