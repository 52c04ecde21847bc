"""The checker of view atomicity (paper 004 §3.2), on planted violations first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from unisono.check.priority import view_atomicity
from unisono.check.verdict import Status, Verdict
from unisono.model.events import QueueStep
from unisono.trace.recorder import MemoryTrace, view_extras
from unisono.trace.schema import EventKind, RunMeta
from unisono.trace.table import Trace

Event = tuple[int | str, ...]
"""(view, *members) installs a view; ("got", view, sender, sequence) receives."""


def judge(logs: Mapping[int, Sequence[Event]], order: str = "none") -> Verdict:
    return view_atomicity(viewed(logs, order))


def viewed(logs: Mapping[int, Sequence[Event]], order: str) -> Trace:
    """In the priority order a message is received first; what is consumed, and when, is not judged here."""
    memory = MemoryTrace("run", "g")
    for member, events in logs.items():
        recorder = memory.recorder(member, incarnation=1)
        index = 0
        for at, event in enumerate(events):
            view, *rest = (int(field) for field in event if not isinstance(field, str))
            if isinstance(event[0], str):
                sender, sequence = rest
                if order == "priority":
                    step = QueueStep(False, sender, 1, sequence, 0, index, 0, at, "", view=view or None)
                    recorder.step(step, real_ns=at, local_ns=at)
                    index += 1
                    continue
                recorder.delivered(
                    sender=sender,
                    sender_incarnation=1,
                    first_sequence=sequence,
                    count=1,
                    sizes=1,
                    slot=view,
                    first_place=0,
                    first_index=index,
                    real_ns=at,
                    local_ns=at,
                    view=view,
                )
                index += 1
            else:
                extras = view_extras(view, tuple(rest), (1,) * len(rest))
                recorder.event(EventKind.VIEW, slot=view, real_ns=at, local_ns=at, extras=extras)
    meta = RunMeta(
        run="run",
        group="g",
        order=order,
        members=(1, 2, 3),
        delta_ns=1,
        gamma_ns=1,
        theta_ns=1,
        bound_ns=None,
        reliable=False,
        source="test",
    )
    return memory.trace(meta)


def got(view: int, sender: int, sequence: int) -> Event:
    return ("got", view, sender, sequence)


@pytest.mark.parametrize("order", ["none", "priority"])
def test_the_same_messages_in_any_order_are_valid(order: str) -> None:
    verdict = judge(
        {
            1: [(1, 1, 2, 3), got(1, 1, 0), got(1, 2, 0), (2, 1, 2), got(2, 1, 1)],
            2: [(1, 1, 2, 3), got(1, 2, 0), got(1, 1, 0), (2, 1, 2)],
            3: [(1, 1, 2, 3), got(1, 3, 0)],
        },
        order,
    )
    assert verdict.status is Status.VALID
    assert verdict.figures == {"views": 2}


PLANTED: list[tuple[dict[int, list[Event]], str]] = [
    (
        {1: [(1, 1, 2), got(1, 2, 0), (2, 1, 2)], 2: [(1, 1, 2), got(1, 2, 0), got(1, 1, 0), (2, 1, 2)]},
        "member 2 received (1,0) in view 1 and moved on; member 1 moved on without it",
    ),
    (
        {1: [(1, 1, 2), got(1, 2, -1), got(1, 2, 0), (2, 1, 2)], 2: [(1, 1, 2), got(1, 2, 0), (2, 1, 2)]},
        "member 1 received (2,-1) in view 1 and moved on; member 2 moved on without it",
    ),
    ({1: [(1, 1, 2)], 2: [(1, 2, 3)]}, "installed view 1 with"),
    ({1: [(1, 1), (3, 1)]}, "installed view 3 after view 1"),
    ({1: [(1, 1, 2), (2, 1, 2), got(1, 2, 0)], 2: [(1, 1, 2)]}, "received (2,0) of view 1 outside that view"),
    ({1: [(1, 1, 2), got(1, 3, 0)]}, "but its sender is not in that view"),
    ({1: [(1, 1), got(1, 1, 0), got(1, 1, 0)]}, "received (1,0) twice"),
    ({1: [(1, 1, 2), got(1, 2, 0), (2, 1, 2)], 2: [(1, 1, 2), (2, 1, 2), got(2, 2, 0)]}, "other members in view"),
    ({1: [(1, 1), got(1, 1, 0), got(1, 1, 2), (2, 1)]}, "left view 1 without some of its own messages"),
    ({1: [(1, 2, 3)]}, "installed view 1 without being a member of it"),
]


@pytest.mark.parametrize("order", ["none", "priority"])
@pytest.mark.parametrize(
    ("logs", "text"),
    PLANTED,
)
def test_a_planted_violation_is_found(logs: Mapping[int, Sequence[Event]], text: str, order: str) -> None:
    verdict = judge(logs, order)
    assert verdict.status is Status.VIOLATED
    assert verdict.witness is not None
    assert verdict.count >= 1
    assert text in verdict.witness.text


def test_messages_of_a_state_transfer_belong_to_no_view() -> None:
    logs = {1: [(1, 1), got(1, 1, 0), (2, 1, 2)], 2: [got(0, 1, 0), (2, 1, 2)]}
    assert judge(logs, "priority").status is Status.VALID


def test_without_views_the_verdict_is_unknown() -> None:
    assert judge({1: []}).status is Status.UNKNOWN
