"""Violations planted into recorded runs (`tests.recorded_runs`): one for each check, with the witness it must have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tests.recorded_runs import BOUND_NS, PLACES_PER_SENDER, listing

from unisono.check.verdict import MessageId, Status, Verdict
from unisono.trace.files import read_part, write_end, write_part
from unisono.trace.schema import META_NAME, EventKind, read_json, read_meta, write_json
from unisono.trace.table import Ints, Rows, concatenated


@dataclass(frozen=True, slots=True)
class PlantedViolation:
    """The check that must find the violation, and the messages and members of its witness."""

    check: str
    messages: frozenset[MessageId]
    member: int | None
    """A member that the witness must name; None if all members did the same."""

    def assert_found(self, verdicts: dict[str, Verdict]) -> None:
        """Fail unless the verdicts contain this violation."""
        verdict = verdicts[self.check]
        assert verdict.status is Status.VIOLATED, verdict
        assert verdict.witness is not None
        assert set(verdict.witness.messages) == self.messages, verdict.witness
        assert self.member is None or self.member in verdict.witness.members, verdict.witness
        assert verdict.witness.text


Plant = Callable[[Path], PlantedViolation]


def plant_swapped_deliveries(folder: Path) -> PlantedViolation:
    """Member 2 swaps the deliveries of two messages of different senders."""
    part = parts_of(folder, 2)[len(parts_of(folder, 2)) // 2]
    rows = read_part(part)
    delivered = _deliveries(rows)
    change = np.flatnonzero(np.diff(rows.sender[delivered]) > 0)
    one, other = delivered[change[len(change) // 2] :][:2].tolist()
    _write(part, _with(rows, index={one: int(rows.index[other]), other: int(rows.index[one])}))
    return PlantedViolation("total_order", frozenset({_message(rows, one), _message(rows, other)}), 2)


def plant_unsent_message(folder: Path) -> PlantedViolation:
    """All members deliver, as their last message, one that was never sent."""
    members = read_meta(folder / META_NAME).members
    for member in members:
        _append(
            folder,
            member,
            lambda last: {"sender": 1, "sequence": 10**9, "place": (len(members) + 1) * PLACES_PER_SENDER},
        )
    return PlantedViolation("integrity", frozenset({MessageId(1, 0, 10**9)}), None)


def plant_duplicate(folder: Path) -> PlantedViolation:
    """Member 3 delivers its last message twice."""
    rows = _append(folder, 3, lambda last: {"place": 99 * PLACES_PER_SENDER})
    return PlantedViolation("integrity", frozenset({_message(rows, int(_deliveries(rows)[-1]))}), 3)


def plant_fifo_violation(folder: Path) -> PlantedViolation:
    """All members deliver a message before an earlier one of the same sender."""
    found: frozenset[MessageId] = frozenset()
    for member in read_meta(folder / META_NAME).members:
        part = parts_of(folder, member)[len(parts_of(folder, member)) // 3]
        rows = read_part(part)
        delivered = _deliveries(rows)
        same = (np.diff(rows.sender[delivered]) == 0) & (np.diff(rows.slot[delivered]) == 0)
        at = np.flatnonzero(same)[int(same.sum()) // 2]
        one, other = delivered[at : at + 2].tolist()
        _write(part, _with(rows, sequence={one: int(rows.sequence[other]), other: int(rows.sequence[one])}))
        found = frozenset({_message(rows, one), _message(rows, other)})
    return PlantedViolation("fifo", found, None)


def plant_gap(folder: Path) -> PlantedViolation:
    """Member 2 does not deliver one message of the last range."""
    part = parts_of(folder, 2)[-1]
    rows = read_part(part)
    gone = int(_deliveries(rows)[len(_deliveries(rows)) // 2])
    later = (rows.kind == EventKind.DELIVER.code) & (rows.index > rows.index[gone])
    _write(part, replace(rows, index=rows.index - later).select(np.arange(len(rows)) != gone))
    _count(folder, 2, -1)
    check = "gap_freedom" if read_meta(folder / META_NAME).reliable else "gaps_explained"
    return PlantedViolation(check, frozenset({_message(rows, gone)}), 2)


def plant_late_delivery(folder: Path) -> PlantedViolation:
    """Member 2 delivers one message later than the bound."""
    part = parts_of(folder, 2)[len(parts_of(folder, 2)) // 2]
    rows = read_part(part)
    one = int(_deliveries(rows)[len(_deliveries(rows)) // 3])
    _write(part, _with(rows, real_ns={one: int(rows.real_ns[one]) + BOUND_NS}))
    return PlantedViolation("latency", frozenset({_message(rows, one)}), 2)


def plant_rate_violation(folder: Path) -> PlantedViolation:
    """Member 1 sends one message more in a slot than it declared: the first of the next slot."""
    members = read_meta(folder / META_NAME).members
    found: frozenset[MessageId] = frozenset()
    for member in members:
        part = parts_of(folder, member)[len(parts_of(folder, member)) // 2]
        rows = read_part(part)
        delivered = _deliveries(rows)
        change = np.flatnonzero(np.diff(rows.slot[delivered]) > 0)
        one = int(delivered[change[len(change) // 2] + 1])
        key = {"slot": {one: int(rows.slot[one]) - 1}, "place": {one: (len(members) + 1) * PLACES_PER_SENDER}}
        _write(part, _with(rows, **key))
        found = frozenset({_message(rows, one)})
    return PlantedViolation("rate_compliance", found, 1)


def allow_gaps(folder: Path) -> None:
    """Change the run's order to one that may have gaps, each with a cause; all members are in every member's view."""
    write_json(folder / META_NAME, {**read_json(folder / META_NAME), "reliable": False})
    members = read_meta(folder / META_NAME).members
    for member in members:
        part = parts_of(folder, member)[0]
        rows = read_part(part)
        first = replace(rows.select(np.array([0])), **listing(members))
        unset = {name: {0: -1} for name in ("sequence", "place", "index")}
        start, view = (_with(first, kind={0: kind.code}, **unset) for kind in (EventKind.START, EventKind.VIEW))
        _write(part, concatenated([start, view, rows]))
        _count(folder, member, 2)


PLANTS: tuple[Plant, ...] = (
    plant_swapped_deliveries,
    plant_unsent_message,
    plant_duplicate,
    plant_fifo_violation,
    plant_gap,
    plant_late_delivery,
    plant_rate_violation,
)


def parts_of(folder: Path, member: int) -> list[Path]:
    """A member's files in the order of slots."""
    return sorted((folder / f"member={member}").glob("*.parquet"), key=lambda path: int(path.name.split("-")[1]))


def _deliveries(rows: Rows) -> Ints:
    return np.flatnonzero(rows.kind == EventKind.DELIVER.code)


def _message(rows: Rows, row: int) -> MessageId:
    return MessageId(int(rows.sender[row]), int(rows.sender_incarnation[row]), int(rows.sequence[row]))


def _with(rows: Rows, **changes: dict[int, int]) -> Rows:
    columns: dict[str, Any] = {name: getattr(rows, name).copy() for name in changes}
    for name, values in changes.items():
        for row, value in values.items():
            columns[name][row] = value
    return replace(rows, **columns)


def _append(folder: Path, member: int, change: Callable[[Rows], dict[str, int]]) -> Rows:
    """Append a copy of the last delivery with some changes; gives the rows before that."""
    part = parts_of(folder, member)[-1]
    rows = read_part(part)
    last = rows.select(_deliveries(rows)[-1:])
    changes = {"index": int(last.index[0]) + 1, **change(last)}
    more = _with(last, **{name: {0: value} for name, value in changes.items()})
    _write(part, concatenated([rows, more]))
    _count(folder, member, 1)
    return rows


def _write(part: Path, rows: Rows) -> None:
    meta = read_meta(part.parents[1] / META_NAME)
    write_part(part, rows, meta.run, meta.group)


def _count(folder: Path, member: int, more: int) -> None:
    """Update the row count in the end mark of the recording."""
    path = folder / f"member={member}" / "end.0.json"
    write_end(path.parent, 0, rows=read_json(path)["rows"] + more, dropped=0)
