"""A trace as columns: numpy arrays with one element per row.

Most rows lack most columns, so a column that has one value in all rows is stored as that value: a read-only numpy array
whose stride is 0. Selecting, joining, copying and pickling keep it that way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, repeat, zip_longest
from typing import Any, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from unisono.trace.recorder import Extras, MemoryTrace, Numbers, PackedRows
from unisono.trace.schema import ABSENT, CODED, FREE_TEXT, KINDS, NUMBER_COLUMNS, EventKind, RunMeta

Ints: TypeAlias = NDArray[np.signedinteger[Any]]
Mask: TypeAlias = NDArray[np.bool_]
_Value = TypeVar("_Value", bound=Hashable)

_COLUMNS = (*CODED, *NUMBER_COLUMNS, "kind")
_QUEUE_STEP_KINDS = (EventKind.RECEIVE.code, EventKind.QUEUE.code)


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows as columns. -1 stands for null. Words and lists are stored as indices into tables, such as `grades`."""

    member: Ints
    recorder_incarnation: Ints
    kind: Ints
    sender: Ints
    sender_incarnation: Ints
    sequence: Ints
    slot: Ints
    place: Ints
    index: Ints
    real_ns: Ints
    local_ns: Ints
    size: Ints
    priority: Ints
    view: Ints
    theta_ns: Ints
    bound_ns: Ints
    configuration: Ints
    grade: Ints
    destinations: Ints
    token: Ints
    members: Ints
    member_incarnations: Ints
    talks_with: Ints
    messages: Ints
    group_id: Ints
    note: Ints
    grades: tuple[str, ...]
    destination_sets: tuple[tuple[int, ...], ...]
    tokens: tuple[str, ...]
    member_lists: tuple[tuple[int, ...], ...]
    incarnation_lists: tuple[tuple[int, ...], ...]
    talk_lists: tuple[tuple[str, ...], ...]
    message_texts: tuple[str, ...]
    group_ids: tuple[str, ...]
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.kind)

    def __getstate__(self) -> dict[str, Any]:
        """The state to pickle: a column that has one value in all rows is stored as that value."""
        return {name: _Constant.of(value) for name, value in vars(self).items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value.column() if isinstance(value, _Constant) else value)

    def with_token(self, *tokens: str) -> Mask:
        """A mask of the rows that have one of these tokens."""
        return np.isin(self.token, [code for code, token in enumerate(self.tokens) if token in tokens])

    def listed(self, row: int) -> tuple[int, ...]:
        """The members that a VIEW row lists; empty for any other row."""
        code = int(self.members[row])
        return self.member_lists[code] if code >= 0 else ()

    def listed_runs(self, row: int) -> tuple[tuple[int, int], ...]:
        """The (member, incarnation) pairs that the VIEW row of an agreed view lists; empty for any other row."""
        code = int(self.member_incarnations[row])
        return tuple(zip(self.listed(row), self.incarnation_lists[code], strict=True)) if code >= 0 else ()

    def select(self, rows: Mask | Ints | slice) -> Self:
        """The rows chosen by a mask, an array of row numbers or a slice, in that order."""
        kept = None
        if isinstance(rows, np.ndarray) and rows.dtype == bool:
            kept, first = int(np.count_nonzero(rows)), int(rows.argmax()) if len(rows) else 0
            if rows[first : first + kept].all():  # contiguous rows need no copy
                rows = slice(first, first + kept)
        columns: dict[str, Any] = {name: _selected(getattr(self, name), rows, kept) for name in _COLUMNS}
        return replace(self, **columns)

    def of_kind(self, *kinds: EventKind) -> Self:
        """The rows of these kinds."""
        return self.select(np.isin(self.kind, [kind.code for kind in kinds]))

    def in_slots(self, first: int, last: int) -> Self:
        """The rows of a range of slots, both ends included."""
        return self.select((self.slot >= first) & (self.slot <= last))

    def canonical(self) -> Self:
        """The rows, sorted by member, incarnation, kind and grade.

        Within these, deliveries are sorted by index, sends by sequence, queue steps by place and other rows by time.
        """
        ordinal = self.real_ns.astype(np.int64)
        ordinal = np.where(self.kind == EventKind.DELIVER.code, self.index, ordinal)
        ordinal = np.where(self.kind == EventKind.SEND.code, self.sequence, ordinal)
        ordinal = np.where(np.isin(self.kind, _QUEUE_STEP_KINDS), self.place, ordinal)
        keys = (ordinal, self.grade, self.kind, self.recorder_incarnation, self.member)
        order = np.lexsort(keys)
        same = np.ones(max(len(order) - 1, 0), dtype=bool)
        for key in keys:
            same &= np.diff(key[order]) == 0
        if same.any():  # only events of one instant and damaged runs tie: break ties by every column, free text last
            rest = [getattr(self, name) for name in _COLUMNS]
            order = np.lexsort((*rest, *keys))
        return self.select(order)

    def digest(self) -> str:
        """A hash of the rows in canonical order, without free text and without the names of run and group."""
        rows = self.canonical()
        digest = hashlib.blake2b(digest_size=16)
        for name in (name for name in _COLUMNS if name not in FREE_TEXT):
            digest.update(f"{name}:{len(rows)}:".encode())
            digest.update(np.ascontiguousarray(getattr(rows, name), dtype="<i8").tobytes())
        for table in (table for name, table in CODED.items() if name not in FREE_TEXT):
            digest.update(repr((table, getattr(rows, table))).encode())
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class MemberLog:
    """The state of one member's recording: whether it was closed, and how many rows it dropped."""

    member: int
    incarnation: int
    closed: bool = True
    dropped: int = 0


@dataclass(frozen=True, eq=False)
class Trace(Rows):
    """The recorded rows of one run of one group, in canonical order (`Rows.canonical`), and the run's parameters."""

    meta: RunMeta
    logs: tuple[MemberLog, ...]

    @property
    def dropped(self) -> int:
        """How many rows the writers dropped. What these rows would have shown is unknown."""
        return sum(log.dropped for log in self.logs)

    def deliveries(self) -> Self:
        """The DELIVER rows."""
        return self.of_kind(EventKind.DELIVER)

    def sends(self) -> Self:
        """The SEND rows."""
        return self.of_kind(EventKind.SEND)

    def delivered_grades(self) -> tuple[str, ...]:
        """The grades that occur in deliveries."""
        codes = np.unique(self.grade[self.kind == EventKind.DELIVER.code])
        return tuple(self.grades[code] for code in codes if code >= 0)

    def with_grade(self, grade: str) -> Self:
        """This trace without the deliveries of other grades."""
        code = self.grades.index(grade) if grade in self.grades else -2
        return self.select((self.kind != EventKind.DELIVER.code) | (self.grade == code))

    @classmethod
    def from_memory(cls, memory: MemoryTrace, meta: RunMeta) -> Self:
        """A trace of all rows in `memory`."""
        rows = concatenated([expand_rows(*run_id, packed) for run_id, packed in memory.packed_rows.items()])
        logs = tuple(MemberLog(member, incarnation) for member, incarnation in sorted(memory.packed_rows))
        return cls.from_rows(rows, meta, logs)

    @classmethod
    def from_rows(cls, rows: Rows, meta: RunMeta, logs: Iterable[MemberLog]) -> Self:
        """A trace of rows in any order."""
        ordered = rows.canonical()
        columns = {f.name: getattr(ordered, f.name) for f in fields(Rows)}
        return cls(**columns, meta=meta, logs=tuple(logs))


def expand_rows(member: int, recorder_incarnation: int, packed_rows: Sequence[PackedRows]) -> Rows:
    """The rows of one recorder, in the order of recording."""
    if not packed_rows:
        return EMPTY
    kind, sender, sender_incarnation, sequence, count, sizes, slot, place, index, real, local, extras = zip(
        *packed_rows, strict=True
    )
    counts = np.array(count, dtype=np.int64)
    total = int(counts.sum())
    offset = np.arange(total, dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)

    def spread(values: Sequence[int]) -> Ints:
        return np.repeat(np.array(values, dtype=np.int64), counts)

    def counted(values: Sequence[int]) -> Ints:
        first = spread(values)
        return np.where(first < 0, ABSENT, first + offset)

    # A column that is null in all rows stays one value.
    fields_of = zip_longest(*(extra or () for extra in extras)) if any(extras) else ()
    of_extras = {name: values for name, values in zip(Extras._fields, fields_of, strict=False) if set(values) != _NONE}
    columns: dict[str, Any] = {
        "member": np.full(total, member),
        "recorder_incarnation": np.full(total, recorder_incarnation),
        "sender": spread(sender),
        "sender_incarnation": spread(sender_incarnation),
        "sequence": counted(sequence),
        "slot": spread(slot),
        "place": counted(place),
        "index": counted(index),
        "real_ns": _per_row(real, counts),
        "local_ns": _per_row(local, counts),
        "size": _per_row(sizes, counts),
    }
    for name in NUMBER_COLUMNS.keys() - columns.keys():
        values = of_extras.get(name)
        if values is None:
            columns[name] = constant(total, NUMBER_COLUMNS[name])
        else:
            columns[name] = spread([ABSENT if each is None else each for each in values])
    columns = {name: columns[name].astype(dtype, copy=False) for name, dtype in NUMBER_COLUMNS.items()}
    for name, table_name in CODED.items():
        codes, table = encode(of_extras[name]) if name in of_extras else (None, ())
        columns[name] = constant(total, np.int32) if codes is None else np.repeat(codes, counts)
        columns[table_name] = table
    return Rows(**columns, kind=spread(kind).astype(np.int8))


_NONE = {None}


def constant(rows: int, dtype: Any, value: int = ABSENT) -> Ints:
    """A column of one value, by default null, that takes the memory of one value."""
    return np.broadcast_to(np.array(value, dtype=dtype), rows)


@dataclass(frozen=True, slots=True)
class _Constant:
    """The pickled form of a column that has one value in all rows."""

    value: Any
    rows: int

    @staticmethod
    def of(value: Any) -> Any:
        """Return a column that has one value in all rows in its pickled form, and anything else unchanged."""
        if isinstance(value, np.ndarray) and len(value) > 1 and value.strides == (0,):
            return _Constant(value[:1].copy(), len(value))
        return value

    def column(self) -> Ints:
        """Make the column again from its pickled form."""
        return np.broadcast_to(self.value[0], self.rows)


def _selected(column: Ints, rows: Mask | Ints | slice, kept: int | None) -> Ints:
    """The chosen rows of a column; a column of one value stays one value."""
    if len(column) and column.strides == (0,):
        count = len(column[rows]) if kept is None else kept
        return np.broadcast_to(column[0], count)
    return column[rows]


def join_columns(columns: Sequence[Ints]) -> Ints:
    """Join columns, one after another. If all of them have the same single value, the result is stored as one value."""
    columns = [column for column in columns if len(column)] or columns[:1]
    if len(columns[0]) and all(column.strides == (0,) and column[0] == columns[0][0] for column in columns):
        return np.broadcast_to(columns[0][0], sum(map(len, columns)))
    return np.concatenate(columns)


def _per_row(values: Sequence[Numbers], counts: Ints) -> Ints:
    """One number per row. Each value is one number for all `counts` rows of a tuple, or a sequence with one per row."""
    if all(isinstance(value, int) for value in values):
        return np.repeat(np.array(values, dtype=np.int64), counts)
    sized = zip(values, counts.tolist(), strict=True)
    each = chain.from_iterable(repeat(v, n) if isinstance(v, int) else v for v, n in sized)
    flat = np.fromiter(each, dtype=np.int64)
    if len(flat) != int(counts.sum()):
        raise ValueError(f"expected one size and one time for each of {counts.sum()} messages, but found {len(flat)}")
    return flat


def encode(values: Sequence[_Value | None]) -> tuple[Ints, tuple[_Value, ...]]:
    """Encode values: for each its index in a sorted table of the distinct values (-1 for None), and that table."""
    table: list[_Value] = sorted({value for value in values if value is not None})  # type: ignore[type-var]
    code = {value: number for number, value in enumerate(table)}
    codes = [ABSENT if value is None else code[value] for value in values]
    return np.array(codes, dtype=np.int32), tuple(table)


def concatenated(parts: Sequence[Rows]) -> Rows:
    """The rows of all parts, one part after another, with common tables."""
    parts = [part for part in parts if len(part)]
    if not parts:
        return EMPTY
    if len(parts) == 1:
        return parts[0]
    columns: dict[str, Any] = {}
    for name in (*NUMBER_COLUMNS, "kind"):
        columns[name] = join_columns([getattr(part, name) for part in parts])
    for name, table_name in CODED.items():
        table = tuple(sorted(set(chain.from_iterable(getattr(part, table_name) for part in parts))))
        if not table:
            columns[name], columns[table_name] = join_columns([getattr(part, name) for part in parts]), ()
            continue
        code = {value: number for number, value in enumerate(table)}
        recoded = []
        for part in parts:
            # Code -1 picks the last element of the map, so null stays null.
            to_new = np.array([*(code[value] for value in getattr(part, table_name)), ABSENT], dtype=np.int32)
            recoded.append(to_new[getattr(part, name)])
        columns[name] = np.concatenate(recoded)
        columns[table_name] = table
    return Rows(**columns)


def copied(rows: Rows) -> Rows:
    """A copy of the rows and of the table entries that they use.

    Selected rows may be views that keep all other rows, and their tables, in memory; a copy does not.
    """
    if len(rows) == 0:
        return EMPTY
    columns: dict[str, Any] = {name: _copy_column(getattr(rows, name)) for name in _COLUMNS}
    for name, table_name in CODED.items():
        table, codes = getattr(rows, table_name), columns[name]
        if table:
            used = np.unique(codes[codes != ABSENT])
            columns[name] = np.where(codes == ABSENT, ABSENT, np.searchsorted(used, codes)).astype(np.int32)
            columns[table_name] = tuple(table[code] for code in used.tolist())
    return replace(rows, **columns)


def _copy_column(column: Ints) -> Ints:
    """A copy of a column; a column of one value stays one value."""
    return np.broadcast_to(column[:1].copy()[0], len(column)) if column.strides == (0,) else column.copy()


def _empty() -> Rows:
    columns: dict[str, Any] = {name: np.empty(0, dtype=dtype) for name, dtype in NUMBER_COLUMNS.items()}
    columns["kind"] = np.empty(0, dtype=np.int8)
    for name, table in CODED.items():
        columns[name] = np.empty(0, dtype=np.int32)
        columns[table] = ()
    return Rows(**columns)


EMPTY = _empty()
KIND_NAMES = tuple(kind.value for kind in KINDS)
