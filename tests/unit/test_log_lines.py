"""The log lines of a member: every kind of event has its level, and repeated lines are limited and counted."""

from __future__ import annotations

import logging

import pytest

from unisono.model.events import (
    Batch,
    Gap,
    LeaveComplete,
    Notice,
    NoticeKind,
    QueueStep,
    SlotSkipped,
    StackEvent,
    TimingChange,
    View,
    ViewChange,
    Violation,
    ViolationKind,
)
from unisono.model.timing import Timing
from unisono.model.units import NS_PER_S
from unisono.runtime.log_lines import GroupLog, LineLimit, line_of

INFO, WARNING = logging.INFO, logging.WARNING
MS = 1_000_000

VIOLATION_LEVELS = {
    "blocked": WARNING,
    "cannot_hold": WARNING,
    "clock": WARNING,
    "deadline": WARNING,
    "deposed": INFO,
    "excluded": WARNING,
    "fenced_out": WARNING,
    "held_up": WARNING,
    "late": WARNING,
    "late_delivery": WARNING,
    "late_join": INFO,
    "leader_lost": INFO,
    "lost": WARNING,
    "memory_lost": WARNING,
    "multicast": WARNING,
    "no_majority": WARNING,
    "not_related": WARNING,
    "number_taken": WARNING,
    "own_clock": WARNING,
    "paused": WARNING,
    "policy_differs": WARNING,
    "rate_refused": WARNING,
    "receive_buffer": WARNING,
    "reservation": WARNING,
    "reservation_refused": WARNING,
    "restarted": WARNING,
    "sla": WARNING,
    "slots": WARNING,
    "socket": WARNING,
    "system_sla": WARNING,
    "too_far_behind": WARNING,
    "unsettled": WARNING,
    "unsteady": WARNING,
}


@pytest.mark.parametrize("kind", ViolationKind)
def test_every_kind_of_violation_has_a_level(kind: ViolationKind) -> None:
    assert line_of(Violation(kind, "it happened", 2)) == (VIOLATION_LEVELS[kind.value], f"{kind.value}: it happened")


@pytest.mark.parametrize("kind", NoticeKind)
def test_every_notice_is_information(kind: NoticeKind) -> None:
    assert line_of(Notice(kind, "it happened")) == (INFO, f"{kind.value}: it happened")


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (ViewChange(View((1, 2, 3)), (3,), ()), "members are now 1, 2, 3 (joined: 3)"),
        (ViewChange(View((1, 4)), (4,), (2, 3)), "members are now 1, 4 (joined: 4; left: 2, 3)"),
        (ViewChange(View((1,))), "members are now 1"),
        (
            TimingChange(7, Timing(20 * MS, 2 * MS, 10 * MS), 34 * MS),
            "slots are now 10ms long, and every delivery is within 34ms",
        ),
        (LeaveComplete(9), "this member has left the group"),
        (Gap(2, 1, 12, 5, 7), "gap: messages of member 2 did not arrive in time, number 5 to number 7"),
        (Gap(2, 1, 12, None, 7), "gap: messages of member 2 did not arrive in time, from slot 12 to number 7"),
        (
            Gap(2, 1, 12, 5, None),
            "gap: member 2 timed out in slot 12; its messages from number 5 on may be missing here",
        ),
        (Gap(2, 1, 12, None, None), "gap: member 2 timed out in slot 12; its messages may be missing here"),
    ],
)
def test_events_that_are_no_problem_are_information(event: StackEvent, text: str) -> None:
    assert line_of(event) == (INFO, text)


@pytest.mark.parametrize(
    "event",
    [Batch(1, 1, 1, 0, 0, 0, 1, []), SlotSkipped(2, 1, 12), QueueStep(True, 1, 1, 0, 0, 0, 0, 0, "")],
)
def test_deliveries_are_not_logged(event: StackEvent) -> None:
    assert line_of(event) is None


def test_a_repeated_line_passes_once_per_interval_and_counts_the_others() -> None:
    limit = LineLimit()
    seconds = (0, 1, 9, 10, 11, 30)
    assert [limit.passes(at * NS_PER_S, "a") for at in seconds] == [0, None, None, 2, None, 1]
    assert limit.passes(2 * NS_PER_S, "b") == 0, "another condition has its own limit"


def test_a_line_names_its_group_and_its_member(caplog: pytest.LogCaptureFixture) -> None:
    log = GroupLog("table-7", 2)
    with caplog.at_level(INFO, "unisono"):
        for at in (0, 1, 2, 10):
            log.write(at * NS_PER_S, WARNING, "it is late", "late")
        log.write(10 * NS_PER_S, INFO, "it has formed")
    assert [(record.name, record.levelno) for record in caplog.records] == [
        ("unisono.table-7", WARNING),
        ("unisono.table-7", WARNING),
        ("unisono.table-7", INFO),
    ]
    assert [record.getMessage() for record in caplog.records] == [
        "group 'table-7', member 2: it is late",
        "group 'table-7', member 2: it is late (2 more like this since the last line)",
        "group 'table-7', member 2: it has formed",
    ]
