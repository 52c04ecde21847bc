"""Recorded runs of the priority order of any size for tests: clean, in the trace's own layout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import chain
from pathlib import Path

import numpy as np
from tests.planted_violations import PlantedViolation, parts_of
from tests.recorded_runs import listing, rows_of

from unisono.check.verdict import MessageId
from unisono.trace.files import member_folder, part_path, read_part, write_end, write_part
from unisono.trace.schema import META_NAME, EventKind, RunMeta, read_meta, write_meta
from unisono.trace.table import Ints, Rows, concatenated, encode

THETA_NS = 5_000_000
MESSAGE_INTERVAL_NS = 1_000_000
"""The time between two messages, and between two consumptions."""
FIRST_TIME_SLOT = 340_000_000_000
LAG_MESSAGES = 3
"""Each member consumes this many messages behind the previous member."""


@dataclass(frozen=True, slots=True)
class _Run:
    """The messages as they come; by slot, which of them is consumed there, and when."""

    members: int
    backlog: int
    consumed: Ints

    @property
    def count(self) -> int:
        return len(self.consumed)

    def columns(self, came: Ints) -> dict[str, Ints]:
        """Sender, number and priority of the messages that come at these turns: every fifth is urgent."""
        return {"sender": came % self.members + 1, "sequence": came // self.members, "priority": (came % 5 == 4) + 0}

    def note(self, came: int, consumed: int) -> str:
        """The target tail of an urgent message: of each sender what came last."""
        first, last = consumed // self.members + 1, came // self.members
        return " ".join(f"{sender}.{first}-{last}" for sender in range(1, self.members + 1))


def _consumed(count: int, backlog: int) -> Ints:
    """Which message is consumed in each slot: the most urgent of those that have come, of these the first."""
    waiting = [(-int(came % 5 == 4), came) for came in range(min(backlog, count))]
    heapify(waiting)
    order = []
    for came in chain(range(backlog, count), [None] * backlog):
        if came is not None:
            heappush(waiting, (-int(came % 5 == 4), came))
        if waiting:
            order.append(heappop(waiting)[1])
    return np.array(order)


def record_priority(
    directory: Path, *, members: int, messages: int, backlog: int = 40, range_slots: int = 4096, run: str = "p"
) -> Path:
    """A run in which one message comes for each that is consumed, `backlog` wait, and every fifth is urgent."""
    everyone = tuple(range(1, members + 1))
    meta = RunMeta(run, "g", "priority", everyone, 10**7, 10**6, THETA_NS, None, True, "made")
    folder = write_meta(directory, meta).parent
    made = _Run(members, backlog, _consumed(messages, backlog))
    for member in everyone:
        path = member_folder(directory, run, "g", member)
        path.mkdir(parents=True)
        written = 0
        for first in range(0, messages, range_slots):
            rows = [_steps(made, member, first, first + range_slots), _deliveries(made, member, first, range_slots)]
            if first == 0:
                rows.append(_beginning(member, everyone))
            written += _written(part_path(path, first, range_slots, 0, 0), concatenated(rows), run)
        sends = _sends(made, member)
        number = sends.slot // range_slots
        for one in np.unique(number).tolist():
            part = sends.select(number == one)
            written += _written(part_path(path, one * range_slots, range_slots, 0, 0), part, run)
        write_end(path, 0, rows=written, dropped=0)
    return folder


def plant_priority_violation(folder: Path, share: float) -> PlantedViolation:
    """All members consume an urgent message after the one it should have overtaken, at this share of the run."""
    found: frozenset[MessageId] = frozenset()
    for member in read_meta(folder / META_NAME).members:
        parts = [part for part in parts_of(folder, member) if int(part.name.split("-")[1]) < FIRST_TIME_SLOT // 2]
        part = parts[int(len(parts) * share)]
        rows = read_part(part)
        delivered = np.flatnonzero(rows.kind == EventKind.DELIVER.code)
        urgent = np.flatnonzero(np.diff(rows.priority[delivered]) < 0)
        one, other = delivered[urgent[len(urgent) // 2] :][:2].tolist()
        columns = {name: getattr(rows, name).copy() for name in ("sender", "sequence", "priority")}
        for column in columns.values():
            column[[one, other]] = column[[other, one]]
        write_part(part, replace(rows, **columns), read_meta(folder / META_NAME).run, "g")
        found = frozenset(MessageId(int(rows.sender[row]), 0, int(rows.sequence[row])) for row in (one, other))
    return PlantedViolation("priority_accounting", found, None)


def _written(path: Path, rows: Rows, run: str) -> int:
    write_part(path, rows, run, "g")
    return len(rows)


def _sends(made: _Run, member: int) -> Rows:
    came = np.arange(member - 1, made.count, made.members)
    at_ns = FIRST_TIME_SLOT * THETA_NS + came * MESSAGE_INTERVAL_NS
    slot = at_ns // THETA_NS
    return rows_of(EventKind.SEND, **_of(made, member, came), slot=slot, index=np.full(len(came), -1), real_ns=at_ns)


def _of(made: _Run, member: int, came: Ints) -> dict[str, Ints]:
    return {"member": np.full(len(came), member), **made.columns(came)}


def _deliveries(made: _Run, member: int, first: int, count: int) -> Rows:
    slot = np.arange(first, min(first + count, made.count))
    came = made.consumed[slot]
    turn = np.maximum(slot + made.backlog + LAG_MESSAGES * (member - 1) + 1, came + 1)
    at_ns = FIRST_TIME_SLOT * THETA_NS + turn * MESSAGE_INTERVAL_NS + MESSAGE_INTERVAL_NS // 2 + member
    return rows_of(EventKind.DELIVER, **_of(made, member, came), slot=slot, index=slot, real_ns=at_ns)


def _steps(made: _Run, member: int, first: int, end: int) -> Rows:
    """What came, and went into the queue, while the member's next slot was one of these."""
    behind = made.backlog + LAG_MESSAGES * (member - 1)
    low = 0 if first == 0 else first + behind
    came = np.arange(low, min(end + behind, made.count) if end < made.count else made.count)
    consumed = np.maximum(came - behind, 0)
    at_ns = FIRST_TIME_SLOT * THETA_NS + came * MESSAGE_INTERVAL_NS + 1000 * member
    turns = list(zip(came.tolist(), consumed.tolist(), (came % 5 == 4).tolist(), strict=True))
    told: list[list[str | None]] = [
        [made.note(turn, slot) if urgent else None for turn, slot, urgent in turns],
        [f"(1,{slot // made.members + 1})" if urgent else "(0,0)" for _, slot, urgent in turns],
    ]
    parts = []
    for step, kind in enumerate((EventKind.RECEIVE, EventKind.QUEUE)):
        named, texts = encode(told[step])
        view = np.full(len(came), 1 if kind is EventKind.RECEIVE else -1)
        columns = {"slot": consumed, "index": consumed, "place": 2 * came + step, "view": view}
        rows = rows_of(kind, **_of(made, member, came), **columns, real_ns=at_ns + 100 * step)
        parts.append(replace(rows, messages=named.astype(np.int32), message_texts=texts))
    return concatenated(parts)


def _beginning(member: int, everyone: tuple[int, ...]) -> Rows:
    columns = {"member": np.array([member]), "sender": np.array([member]), "slot": np.array([0])}
    unset = {name: np.array([-1]) for name in ("sequence", "place", "index", "priority")}
    at_ns = {"real_ns": np.array([FIRST_TIME_SLOT * THETA_NS - 1])}
    start = rows_of(EventKind.START, **columns, **unset, **at_ns, view=np.array([-1]))
    view = rows_of(EventKind.VIEW, **columns, **unset, **at_ns, view=np.array([1]))
    listed = listing(everyone, (0,) * len(everyone))
    return concatenated([start, replace(view, **listed)])
