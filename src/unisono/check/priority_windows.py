"""Priority accounting and latency of the messages that were delivered in some neighbouring ranges: a window.

All members consume one sequence (else this is not asked), so what a member had consumed when it received h is told by a
slot, and R(h) is the latest of these over the members. Within a window of slots it is enough to know, for each message,
the last slot before it with a less urgent one: if that is R(h) or later, P2 is broken. From before the window come the
receptions of its messages, which lie in few other ranges, and of each priority the last slot in which it was delivered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from unisono.check.codes import message_at, message_codes
from unisono.check.latency import latencies
from unisono.check.priority_summary import Who, of_logs
from unisono.check.shard_summary import Latencies
from unisono.check.verdict import MessageId
from unisono.trace.meta import RunMeta
from unisono.trace.table import Ints, Mask, Rows, Trace, concatenated

NEVER = -1 << 62
ALWAYS = 1 << 62
MOST_PAIRS = 100_000
"""So many pairs that a window cannot judge are told one by one."""
Matrix = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What is known of one log, over the whole run."""

    who: Who
    first_slot: int
    """Of its START: what was consumed before is not its concern."""
    begin: int
    """The slots of what it consumed: from the first up to, not including, the end; the same if there is nothing."""
    end: int
    bound: bool
    """Whether what it delivered is judged: it did not crash, and the others did not go on without it."""
    regular: int
    """So many of its first deliveries are in the one sequence; of the others it is not known where that has them."""
    unread: Mapping[Who, int]
    """Of crashed members whose log lacks its end: since when this one is in views without them."""

    def slot_behind(self, consumed: int) -> int:
        """The slot behind what it had consumed then; not after it, where it strays."""
        return self.begin + min(consumed, self.regular) if consumed and self.regular else NEVER

    @property
    def last_behind(self) -> int:
        """The slot behind all that it consumed."""
        return self.slot_behind(self.end - self.begin)


@dataclass(frozen=True, slots=True)
class Pair:
    """A message that a member received, and between which slots nothing less urgent may be in its order."""

    who: Who
    late: MessageId
    priority: int
    since: int
    end: int


@dataclass(frozen=True, slots=True)
class Broken:
    """How many messages should have overtaken something at one member, and the smallest of these."""

    count: int
    first: Pair


@dataclass(frozen=True, slots=True)
class WindowEdge:
    """The message at an edge of a window: its slot, when it first came anywhere, and who went on behind it."""

    slot: int
    came_ns: int
    who: tuple[Who, ...]


@dataclass(frozen=True, slots=True)
class WindowFinding:
    """What a window shows."""

    latencies: Latencies
    broken: dict[Who, Broken] = field(default_factory=dict)
    open: tuple[Pair, ...] = ()
    """Pairs that other windows decide."""
    overtakings: int = 0
    first: WindowEdge | None = None
    last: WindowEdge | None = None
    odd: str = ""
    """Why priority accounting cannot be told."""


def judge_window(
    logs: Sequence[LogFacts] | None,
    lower: Mapping[int, int],
    rows: tuple[Rows, Rows, Rows],
    meta: RunMeta,
    bound_ns: int | None,
) -> WindowFinding:
    """Judge the `rows` of a window: its deliveries, and the receptions and the sends of these messages.

    `lower` are the last slots before it in which messages of a priority were delivered. Without `logs` only latencies
    are told.
    """
    deliveries, receptions, sends = rows
    trace = Trace.from_rows(concatenated([deliveries, sends]), meta, ())
    ordered = trace.deliveries()
    matched, taken_ns = latencies(trace, ordered)
    seen = Latencies()
    seen.add(taken_ns, bound_ns, ordered.select(matched))
    if logs is None or len(deliveries) == 0:
        return WindowFinding(seen)
    strayed: Mask = np.zeros(len(deliveries), dtype=bool)
    for log in logs:
        strayed |= of_logs(deliveries, [log.who]) & (deliveries.index >= log.regular)
    deliveries = deliveries.select(~strayed)
    if len(deliveries) == 0:
        return WindowFinding(seen)
    window = _Window(logs, deliveries, receptions)
    if window.odd:
        return WindowFinding(seen, odd=window.odd)
    before = window.last_lower(lower)
    found = {log.who: _judge_log(window, number, before) for number, log in enumerate(logs) if log.bound}
    undecided = [pair for of in found.values() for pair in of.open]
    behind = tuple(who for who, of in found.items() if of.goes_on)
    return WindowFinding(
        seen,
        {who: of.broken for who, of in found.items() if of.broken},
        tuple(undecided[:MOST_PAIRS]),
        sum(of.overtakings for of in found.values()),
        WindowEdge(int(window.slots[0]), int(window.came_ns[0]), ()),
        WindowEdge(int(window.slots[-1]), int(window.came_ns[-1]), behind),
        "more messages were received and not delivered than can be told" if len(undecided) > MOST_PAIRS else "",
    )


@dataclass(frozen=True, slots=True)
class _JudgedLog:
    """What a window shows of one member."""

    broken: Broken | None
    open: list[Pair]
    overtakings: int
    goes_on: bool
    """Whether it delivered the window's last message, and something behind it."""


def _judge_log(window: _Window, number: int, before: Ints) -> _JudgedLog:
    """Judge one member; `before` are the last slots before each message with a less urgent one."""
    log = window.logs[number]
    judged, inside = window.judged(number), window.inside(log)
    since = np.maximum(window.since(log, inside), log.begin)
    bad = np.flatnonzero(judged & inside & (before >= since))
    # Nothing less urgent up to the message itself means nothing less urgent up to an earlier end.
    away = np.flatnonzero(judged & ~inside & ((window.slots < log.end) | (before >= since)))
    return _JudgedLog(
        Broken(len(bad), window.pair(log, window.smallest(bad), since)) if len(bad) else None,
        [window.pair(log, at, since) for at in away.tolist()] if log.begin < log.end else [],
        window.overtakings(judged & inside, log),
        bool(judged[-1] and inside[-1] and window.slots[-1] + 1 < log.end),
    )


class _Window:
    """The messages of a window by slot, with what each member had consumed when it received them."""

    def __init__(self, logs: Sequence[LogFacts], deliveries: Rows, receptions: Rows) -> None:
        self.logs = logs
        self.slots, first = np.unique(deliveries.slot, return_index=True)
        self.messages = deliveries.select(first)
        mine, theirs = message_codes(self.messages, receptions)
        order = np.argsort(mine, kind="stable")
        at = np.minimum(np.searchsorted(mine[order], theirs), len(mine) - 1)
        known = mine[order][at] == theirs
        receptions, at = receptions.select(known), order[at][known]
        # By log and step: the last row counts where a log has several of one message.
        turn = np.lexsort((receptions.place, receptions.life, receptions.member))
        receptions, at = receptions.select(turn), at[turn]
        count = len(self.slots)
        self.level = np.zeros(count, dtype=np.int64)
        self.level[at] = receptions.priority
        self.came_ns = np.full(count, ALWAYS, dtype=np.int64)
        np.minimum.at(self.came_ns, at, receptions.real_ns)
        self.came_ns[self.came_ns == ALWAYS] = 0
        self.got: NDArray[np.bool_] = np.zeros((len(logs), count), dtype=bool)
        self.at_ns: Matrix = np.zeros((len(logs), count), dtype=np.int64)
        self._behind: Matrix = np.empty((len(logs), count), dtype=np.int64)
        """The slot behind what each had consumed when it received each message."""
        self._concerned: NDArray[np.bool_] = np.empty((len(logs), count), dtype=bool)
        for number, log in enumerate(logs):
            own = np.flatnonzero((receptions.member == log.who[0]) & (receptions.life == log.who[1]))
            consumed = receptions.index[own]
            self.got[number, at[own]] = True
            self.at_ns[number, at[own]] = receptions.real_ns[own]
            self._behind[number] = log.last_behind
            self._behind[number, at[own]] = np.where(consumed > 0, log.begin + np.minimum(consumed, log.regular), NEVER)
            if not log.regular:
                self._behind[number] = NEVER
            self._concerned[number] = log.first_slot <= self.slots
        strange = np.flatnonzero(self.level != self.messages.priority)
        self.odd = ""
        if len(strange):
            message = message_at(self.messages, int(strange[0]))
            self.odd = f"{message} was delivered with another priority than it was received with"

    def since(self, log: LogFacts, inside: Mask) -> Ints:
        """R(h) for one member: over those who consumed anything that it did, too.

        Whoever came when it had delivered the message does not count.
        """
        known = [number for number, other in enumerate(self.logs) if other.begin < log.end]
        if not known:
            return np.full(len(self.slots), NEVER, dtype=np.int64)
        concerned = self._concerned[known] | ~inside
        found: Ints = np.where(concerned, self._behind[known], NEVER).max(axis=0)
        return found

    def last_lower(self, lower: Mapping[int, int]) -> Ints:
        """For each message the last slot before it with a less urgent one."""
        found: Ints = np.full(len(self.slots), NEVER, dtype=np.int64)
        for level in np.unique(self.level).tolist():
            carried = max((slot for other, slot in lower.items() if other < level), default=NEVER)
            upto = np.maximum.accumulate(np.where(self.level < level, self.slots, NEVER))
            before = np.maximum(np.append(NEVER, upto[:-1]), carried)
            found = np.where(self.level == level, before, found)
        return found

    def judged(self, number: int) -> Mask:
        """The messages that a member received, and of which it is known what everybody had consumed."""
        judged: Mask = self.got[number].copy()
        for other, log in enumerate(self.logs):
            if log.who in self.logs[number].unread:
                judged &= self.got[other] | (self.at_ns[number] >= self.logs[number].unread[log.who])
        return judged

    def inside(self, log: LogFacts) -> Mask:
        """The messages that a member delivered."""
        inside: Mask = (self.slots >= log.begin) & (self.slots < log.end)
        return inside

    def smallest(self, rows: Ints) -> int:
        """The row of the smallest message."""
        columns = (self.messages.sequence, self.messages.incarnation, self.messages.sender)
        return int(rows[np.lexsort([column[rows] for column in columns])[0]])

    def pair(self, log: LogFacts, at: int, since: Ints) -> Pair:
        """A message at a member that delivered up to it, or never."""
        message = message_at(self.messages, at)
        end = int(self.slots[at]) if log.begin <= self.slots[at] < log.end else log.end
        return Pair(log.who, message, int(self.level[at]), int(since[at]), end)

    def overtakings(self, delivered: Mask, log: LogFacts) -> int:
        """How often a member consumed a message just before one that had come earlier."""
        follows = (np.diff(self.slots) == 1) & (self.slots[1:] < log.end)
        return int((delivered[:-1] & follows & (self.came_ns[1:] < self.came_ns[:-1])).sum())
