"""What a trace tells of its members' lives, and of how far their logs can be believed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from unisono.check.codes import message_codes, stream_codes
from unisono.check.verdict import Doubt, Reason
from unisono.model.events import ViolationKind
from unisono.trace.kinds import OBSERVER, EventKind
from unisono.trace.table import Ints, Log, Rows, Trace

FOREVER = (1 << 63) - 1
NOTHING = Doubt(Reason.NOTHING_RECORDED, "nothing was recorded")
OF_LIVES = (EventKind.START, EventKind.LEAVE, EventKind.CRASH, EventKind.VIOLATION)
"""What happened to members that decides what they are held to."""


@dataclass(frozen=True, slots=True)
class Life:
    """A member from its first slot up to, not including, its end slot; `fate` is LEAVE, CRASH or None."""

    member: int
    life: int
    first_slot: int
    end_slot: int
    end_ns: int
    fate: EventKind | None
    log: Log | None

    @property
    def crashed(self) -> bool:
        """Whether it ended by a crash."""
        return self.fate is EventKind.CRASH

    @property
    def started(self) -> bool:
        """Whether a START says from which slot on it is held to the order."""
        return self.first_slot > -FOREVER

    @property
    def cut(self) -> bool:
        """Whether its log may lack its end: it was not closed."""
        return self.log is None or not self.log.closed

    @property
    def dropped(self) -> int:
        """How many rows its log lacks."""
        return 0 if self.log is None else self.log.dropped


def lives(trace: Trace) -> dict[tuple[int, int], Life]:
    """Each (member, incarnation) that has a log or an event, by its START, LEAVE and CRASH."""
    logs = {(log.member, log.life): log for log in trace.logs if log.member != OBSERVER}
    events = trace.of_kind(EventKind.START, EventKind.LEAVE, EventKind.CRASH)
    first: dict[tuple[int, int], int] = {}
    ends: dict[tuple[int, int], tuple[int, int, EventKind]] = {}
    columns = (events.kind, events.sender, events.incarnation, events.slot, events.real_ns)
    for kind, member, life, slot, real_ns in zip(*(c.tolist() for c in columns), strict=True):
        who = (member, life)
        if kind == EventKind.START.code:
            first[who] = max(slot, first.get(who, slot))
            continue
        fate = EventKind.CRASH if kind == EventKind.CRASH.code else EventKind.LEAVE
        known = ends.get(who, (FOREVER, FOREVER, fate))
        ends[who] = min(known, (slot, real_ns, fate), key=lambda end: end[:2])
    everyone = sorted(logs.keys() | first.keys() | ends.keys())
    found = {}
    for member, life in everyone:
        who = (member, life)
        end_slot, end_ns, end = ends.get(who, (FOREVER, FOREVER, None))
        found[who] = Life(member, life, first.get(who, -FOREVER), end_slot, end_ns, end, logs.get(who))
    return found


def unbound(trace: Trace) -> set[tuple[int, int]]:
    """The members, each in one of its lives, whose deliveries bind nobody where delivery is not uniform.

    They crashed, or the others went on without them, which they say themselves as a violation.
    """
    return reporting(trace, ViolationKind.EXCLUDED) | {who for who, life in lives(trace).items() if life.crashed}


def reporting(trace: Trace, *kinds: ViolationKind) -> set[tuple[int, int]]:
    """The members, each in one of its lives, that recorded a violation of one of these kinds."""
    told = trace.of_kind(EventKind.VIOLATION)
    told = told.select(told.with_token(*kinds))
    return set(zip(told.member.tolist(), told.life.tolist(), strict=True))


def without_crashed(trace: Trace) -> Trace:
    """The trace without what such members delivered."""
    doubtful = np.zeros(len(trace), dtype=bool)
    for member, life in sorted(unbound(trace)):
        doubtful |= (trace.member == member) & (trace.life == life)
    return trace.select(~doubtful | (trace.kind != EventKind.DELIVER.code))


class Origin(IntEnum):
    """What the send logs say of a delivered message."""

    SENT = 0
    NEVER_SENT = 1
    UNTOLD = 2
    """The sender's log lacks rows or its end, and nothing says why."""
    AFTER_CUT = 3
    """The sender crashed, and its log ends before the message: neither shown nor refuted."""


Reached = Mapping[tuple[int, int], int]
"""The last number that each sender, in one of its lives, has logged as sent."""


def origins(trace: Trace, deliveries: Rows, reached: Reached | None = None) -> Ints:
    """The origin of each delivered message, by its sender's log; `reached`, how far that goes if not all is here."""
    sends = trace.sends()
    sent, delivered = message_codes(sends, deliveries)
    origin = np.where(np.isin(delivered, sent), Origin.SENT, Origin.NEVER_SENT).astype(np.int8)
    if (origin == Origin.SENT).all():
        return origin
    known = lives(trace)
    send_stream, stream = stream_codes(sends, deliveries)
    for code in np.unique(stream[origin != Origin.SENT]):
        row = int(np.flatnonzero(stream == code)[0])
        sender = (int(deliveries.sender[row]), int(deliveries.incarnation[row]))
        missing = (stream == code) & (origin != Origin.SENT)
        last = int(sends.sequence[send_stream == code].max(initial=-1)) if reached is None else reached.get(sender, -1)
        life = known.get(sender)
        if life is None:
            others = [other for other in known.values() if other.member == sender[0]]
            absent = not others and sender[0] in trace.meta.members
            if absent or any(other.cut or other.dropped for other in others):
                origin[missing] = Origin.UNTOLD
        elif life.dropped:
            origin[missing] = Origin.UNTOLD
        elif life.cut:
            past = Origin.AFTER_CUT if life.crashed else Origin.UNTOLD
            origin[missing] = np.where(deliveries.sequence[missing] > last, past, Origin.UNTOLD)
    return origin


def hidden_rows(trace: Trace) -> Doubt | None:
    """Why the trace may hide something: rows that its writers had to drop. None if it hides nothing."""
    droppers = [f"member {log.member} {log.dropped}" for log in trace.logs if log.dropped]
    if not droppers:
        return None
    return Doubt(Reason.ROWS_DROPPED, f"rows were dropped while recording ({', '.join(droppers)})")


def nothing_recorded(trace: Trace) -> Doubt | None:
    """Why nothing can be said: there is not one row. None if there is."""
    return None if len(trace) else NOTHING


def incomplete_logs(doubts: Sequence[str]) -> Doubt | None:
    """The doubts that incomplete logs leave; None if there are none."""
    return Doubt(Reason.LOG_NOT_WHOLE, "; ".join(doubts)) if doubts else None
