"""The lines that a member writes with `logging`: one level and one text per event, and a limit on repeated lines.

A line is a warning if an operator should act on it. Everything else that changes the group is INFO. Deliveries are not
logged. So a group in normal operation prints nothing with the default settings of `logging`.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable
from typing import Final, assert_never

from unisono.model.events import (
    Batch,
    Gap,
    LeaveComplete,
    Notice,
    QueueStep,
    SlotSkipped,
    StackEvent,
    TimingChange,
    ViewChange,
    Violation,
    ViolationKind,
)
from unisono.model.units import NS_PER_S, duration_text

REPEAT_NS: Final = 10 * NS_PER_S
"""A line about the same condition is written at most once in this time."""

_INFO_VIOLATIONS: Final = frozenset({ViolationKind.DEPOSED, ViolationKind.LATE_JOIN, ViolationKind.LEADER_LOST})
"""Violations that the group copes with by itself. All others are warnings."""


def line_of(event: StackEvent) -> tuple[int, str] | None:
    """The level and the text of an event's line; None for events that are not logged, such as deliveries."""
    match event:
        case Batch() | SlotSkipped() | QueueStep():
            return None
        case ViewChange():
            return logging.INFO, _view_text(event)
        case TimingChange():
            slot, bound = duration_text(event.timing.theta_ns), duration_text(event.bound_ns)
            return logging.INFO, f"slots are now {slot} long, and every delivery is within {bound}"
        case Violation():
            level = logging.INFO if event.kind in _INFO_VIOLATIONS else logging.WARNING
            return level, f"{event.kind}: {event.text}"
        case Notice():
            return logging.INFO, f"{event.kind}: {event.text}"
        case LeaveComplete():
            return logging.INFO, "this member has left the group"
        case Gap():
            return logging.INFO, _gap_text(event)
        case _:
            assert_never(event)


def _view_text(change: ViewChange) -> str:
    named = {"joined": change.joined, "left": change.left}
    changes = "; ".join(f"{word}: {members_text(members)}" for word, members in named.items() if members)
    return f"members are now {members_text(change.view.members)}" + (f" ({changes})" if changes else "")


def _gap_text(gap: Gap) -> str:
    if gap.last is None:
        since = "" if gap.first is None else f" from number {gap.first} on"
        return f"gap: member {gap.sender} timed out in slot {gap.slot}; its messages{since} may be missing here"
    first = f"from slot {gap.slot}" if gap.first is None else f"number {gap.first}"
    return f"gap: messages of member {gap.sender} did not arrive in time, {first} to number {gap.last}"


def members_text(members: Iterable[int]) -> str:
    """A list of members in words."""
    return ", ".join(map(str, members)) or "none"


class LineLimit:
    """Lets a line about one condition pass once in a while, and counts the lines that it holds back."""

    def __init__(self) -> None:
        self._last_ns: dict[Hashable, int] = {}
        self._held_back: dict[Hashable, int] = {}

    def passes(self, now: int, key: Hashable, interval_ns: int = REPEAT_NS) -> int | None:
        """Return how many lines about `key` were held back since the last one; None if this one is held back too."""
        last = self._last_ns.get(key)
        if last is not None and now - last < interval_ns:
            self._held_back[key] = self._held_back.get(key, 0) + 1
            return None
        self._last_ns[key] = now
        return self._held_back.pop(key, 0)


class GroupLog:
    """Writes the lines of one member. Each line names the group and the member."""

    def __init__(self, group: str, member: int) -> None:
        self._logger = logging.getLogger(f"unisono.{group}")
        self._group, self._member = group, member
        self._limit = LineLimit()

    def write(self, now: int, level: int, text: str, key: Hashable | None = None, interval_ns: int = REPEAT_NS) -> None:
        """Write a line. With a `key`, write at most one line of this key per interval, and count the others."""
        held_back = 0 if key is None else self._limit.passes(now, key, interval_ns)
        if held_back is None:
            return
        more = f" ({held_back} more like this since the last line)" if held_back else ""
        self._logger.log(level, "group %r, member %d: %s%s", self._group, self._member, text, more)
