"""Planted bugs in final deliveries: for each, the checker of the violated guarantee finds it.

The bug acts at all members, because the others would compensate for a bug at only one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.simulation.test_finals_swarm import verdicts_of

from unisono.check.verdict import Status
from unisono.model.faults import Fault, Loss, Partition, Span
from unisono.model.message_set import MessageRange
from unisono.model.scenario import Scenario, Workload
from unisono.model.text.scenario import parse_scenario
from unisono.model.timing import Timing
from unisono.model.units import NS_PER_MS
from unisono.orders.cbr.bounds import turn_bound_ns
from unisono.orders.cbr.order import CbrOrder
from unisono.orders.final.agreement import AgreedRange, FinalLog
from unisono.orders.final.order import FinalOrder
from unisono.orders.final.recovery import Recovery
from unisono.sim.swarm.final import finals

Rule = Callable[..., Any]


def disturbed(*faults: Fault, loss_burst: int = 0) -> Scenario:
    """Three members that all send, with these faults."""
    base = replace(finals(0), timing=Timing(5 * NS_PER_MS, 0, 10 * NS_PER_MS))
    members, workload = (1, 2, 3), Workload("bursts", 20, 40, burst=4, every_ns=40 * NS_PER_MS)
    return replace(
        base,
        source="planted",
        members=members,
        rates=dict.fromkeys(members, base.rates[1]),
        workloads=dict.fromkeys(members, workload),
        run_ns=600 * NS_PER_MS,
        loss_burst=loss_burst,
        faults=faults,
        steps=(),
    )


CUT_OFF = disturbed(Partition(Span(200 * NS_PER_MS, 500 * NS_PER_MS), ((1, 2), (3,))))
LOSSY = disturbed(Loss(Span(), 0.2, 1, 2), loss_burst=1)


def omits_late_messages(right: Rule, self: FinalLog, k: int, message_range: MessageRange) -> list[AgreedRange]:
    """Messages that only a cut-off member held never become final."""
    return [] if message_range.slot < self.slot else right(self, k, message_range)


def delivers_held_ranges_first(right: Rule, self: FinalOrder) -> None:
    """Agreed messages that are held are delivered before missing ones."""

    def is_missing_then_position(agreed: AgreedRange) -> tuple[bool, int]:
        return self.store.packed_messages(agreed.message_range) is None, agreed.position

    self._undelivered = type(self._undelivered)(sorted(self._undelivered, key=is_missing_then_position))
    right(self)


def requests_nothing(right: Rule, self: Recovery, *arguments: Any) -> None:
    """Lost messages are not recovered."""


PLANTED: list[tuple[Any, str, Rule, Scenario, str]] = [
    (FinalLog, "_finalize", omits_late_messages, CUT_OFF, "early_in_final"),
    (FinalOrder, "_deliver", delivers_held_ranges_first, LOSSY, "final_order"),
    (Recovery, "request_missing", requests_nothing, LOSSY, "final_agreement"),
]


@pytest.mark.parametrize(
    ("owner", "name", "broken", "scenario", "checker"), PLANTED, ids=[bug[2].__name__ for bug in PLANTED]
)
def test_the_checker_finds_the_planted_bug(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, broken: Rule, scenario: Scenario, checker: str
) -> None:
    right = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *arguments: broken(right, *arguments))
    verdict = verdicts_of(scenario)[checker]
    assert verdict.status is Status.VIOLATED, verdict
    assert verdict.witness is not None
    assert verdict.witness.text


@pytest.mark.parametrize("scenario", [CUT_OFF, LOSSY], ids=("cut off", "lossy"))
def test_the_same_scenarios_are_valid_without_a_bug(scenario: Scenario) -> None:
    verdicts = verdicts_of(scenario)
    failed = {name: v for name, v in verdicts.items() if v.status is not Status.VALID and "[early]" not in name}
    assert not failed


def test_over_cbr_a_member_whose_inner_order_stopped_must_report_that_it_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise early deliveries of another member, from a crashed sender's last datagrams, never become final."""
    path = Path(__file__).parents[2] / "scenarios" / "cbr_grades.toml"
    scenario = parse_scenario(path.read_text("utf-8"), path.name)
    assert verdicts_of(scenario)["early_in_final"].status is Status.VALID

    def done_slot(cbr: CbrOrder) -> int:
        return cbr._timing.slot_of(cbr._late_at() - turn_bound_ns(cbr._timing)) - 1 if cbr.rate else 0

    monkeypatch.setattr(CbrOrder, "done_slot", done_slot)
    verdict = verdicts_of(scenario)["early_in_final"]
    assert verdict.status is Status.VIOLATED
    assert verdict.witness is not None
