"""A trace as columns: numpy arrays, one element per row."""

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
    """Rows as columns. -1 stands for null; `kind` and the columns of words and lists are codes into their tables."""

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
        """Columns of one value travel as that value: most rows lack most columns."""
        return {name: _Constant.of(value) for name, value in vars(self).items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value.column() if isinstance(value, _Constant) else value)

    def with_token(self, *tokens: str) -> Mask:
        """Which rows have one of these tokens."""
        return np.isin(self.token, [code for code, token in enumerate(self.tokens) if token in tokens])

    def listed(self, row: int) -> tuple[int, ...]:
        """The members that a VIEW row lists; none in any other row."""
        code = int(self.members[row])
        return self.member_lists[code] if code >= 0 else ()

    def listed_runs(self, row: int) -> tuple[tuple[int, int], ...]:
        """The members and their incarnations in the VIEW row of an agreed view; none in any other row."""
        code = int(self.member_incarnations[row])
        return tuple(zip(self.listed(row), self.incarnation_lists[code], strict=True)) if code >= 0 else ()

    def select(self, rows: Mask | Ints | slice) -> Self:
        """The rows that a mask, a list of row numbers or a slice names, in that order."""
        kept = None
        if isinstance(rows, np.ndarray) and rows.dtype == bool:
            kept, first = int(np.count_nonzero(rows)), int(rows.argmax()) if len(rows) else 0
            if rows[first : first + kept].all():  # one stretch of rows need not be copied
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
        """By member, life, kind and grade; deliveries by index, sends by sequence, steps by place, the rest by time."""
        ordinal = self.real_ns.astype(np.int64)
        ordinal = np.where(self.kind == EventKind.DELIVER.code, self.index, ordinal)
        ordinal = np.where(self.kind == EventKind.SEND.code, self.sequence, ordinal)
        ordinal = np.where(np.isin(self.kind, _QUEUE_STEP_KINDS), self.place, ordinal)
        keys = (ordinal, self.grade, self.kind, self.recorder_incarnation, self.member)
        order = np.lexsort(keys)
        same = np.ones(max(len(order) - 1, 0), dtype=bool)
        for key in keys:
            same &= np.diff(key[order]) == 0
        if same.any():  # only damaged runs and events of one instant tie; every column then decides, free text last
            rest = [getattr(self, name) for name in _COLUMNS]
            order = np.lexsort((*rest, *keys))
        return self.select(order)

    def digest(self) -> str:
        """A hash of the rows in canonical order, without free text and the names of run and group."""
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
    """What is known of one member's recording: whether it was closed, and how many rows it had to drop."""

    member: int
    incarnation: int
    closed: bool = True
    dropped: int = 0


@dataclass(frozen=True, eq=False)
class Trace(Rows):
    """A run of one group, in canonical order."""

    meta: RunMeta
    logs: tuple[MemberLog, ...]

    @property
    def dropped(self) -> int:
        """How many rows the writers had to drop: what they could hide is unknown."""
        return sum(log.dropped for log in self.logs)

    def deliveries(self) -> Self:
        """The DELIVER rows."""
        return self.of_kind(EventKind.DELIVER)

    def sends(self) -> Self:
        """The SEND rows."""
        return self.of_kind(EventKind.SEND)

    def delivered_grades(self) -> tuple[str, ...]:
        """The grades in which messages were delivered."""
        codes = np.unique(self.grade[self.kind == EventKind.DELIVER.code])
        return tuple(self.grades[code] for code in codes if code >= 0)

    def with_grade(self, grade: str) -> Self:
        """This trace with only the deliveries of one grade."""
        code = self.grades.index(grade) if grade in self.grades else -2
        return self.select((self.kind != EventKind.DELIVER.code) | (self.grade == code))

    @classmethod
    def from_memory(cls, memory: MemoryTrace, meta: RunMeta) -> Self:
        """All that the recorders of `memory` noted."""
        rows = concatenated(
            [expand_rows(member, incarnation, runs) for (member, incarnation), runs in memory.packed_rows.items()]
        )
        logs = tuple(MemberLog(member, incarnation) for member, incarnation in sorted(memory.packed_rows))
        return cls.from_rows(rows, meta, logs)

    @classmethod
    def from_rows(cls, rows: Rows, meta: RunMeta, logs: Iterable[MemberLog]) -> Self:
        """Rows in any order, as a trace."""
        ordered = rows.canonical()
        columns = {f.name: getattr(ordered, f.name) for f in fields(Rows)}
        return cls(**columns, meta=meta, logs=tuple(logs))


def expand_rows(member: int, recorder_incarnation: int, packed_rows: Sequence[PackedRows]) -> Rows:
    """The rows of the runs that one recorder noted, in the order in which it noted them."""
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

    # What no row has stays one value: most rows lack most columns.
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
    """A column of one value, null unless told, which takes the room of that value."""
    return np.broadcast_to(np.array(value, dtype=dtype), rows)


@dataclass(frozen=True, slots=True)
class _Constant:
    """A column of one value, to be sent to another process."""

    value: Any
    rows: int

    @staticmethod
    def of(value: Any) -> Any:
        """A column as it is sent; anything else as it is."""
        if isinstance(value, np.ndarray) and len(value) > 1 and value.strides == (0,):
            return _Constant(value[:1].copy(), len(value))
        return value

    def column(self) -> Ints:
        """The column again."""
        return np.broadcast_to(self.value[0], self.rows)


def _selected(column: Ints, rows: Mask | Ints | slice, kept: int | None) -> Ints:
    """A column's chosen rows; a constant column (one that no file had) stays one value however many rows it has."""
    if len(column) and column.strides == (0,):
        count = len(column[rows]) if kept is None else kept
        return np.broadcast_to(column[0], count)
    return column[rows]


def join_columns(columns: Sequence[Ints]) -> Ints:
    """Columns one after another; constant columns of one value stay one value."""
    columns = [column for column in columns if len(column)] or columns[:1]
    if len(columns[0]) and all(column.strides == (0,) and column[0] == columns[0][0] for column in columns):
        return np.broadcast_to(columns[0][0], sum(map(len, columns)))
    return np.concatenate(columns)


def _per_row(values: Sequence[Numbers], counts: Ints) -> Ints:
    """One number per row, from numbers that hold for a whole run or for one message each."""
    if all(isinstance(value, int) for value in values):
        return np.repeat(np.array(values, dtype=np.int64), counts)
    sized = zip(values, counts.tolist(), strict=True)
    each = chain.from_iterable(repeat(v, n) if isinstance(v, int) else v for v, n in sized)
    flat = np.fromiter(each, dtype=np.int64)
    if len(flat) != int(counts.sum()):
        raise ValueError("a run was recorded with more or fewer sizes or times than messages")
    return flat


def encode(values: Sequence[_Value | None]) -> tuple[Ints, tuple[_Value, ...]]:
    """Codes into the sorted table of the distinct values, -1 for None."""
    table: list[_Value] = sorted({value for value in values if value is not None})  # type: ignore[type-var]
    code = {value: number for number, value in enumerate(table)}
    codes = [ABSENT if value is None else code[value] for value in values]
    return np.array(codes, dtype=np.int32), tuple(table)


def concatenated(parts: Sequence[Rows]) -> Rows:
    """The rows of all parts, one part after another, their tables made one."""
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
            # The last element of the map is where code -1 lands: null stays null.
            to_new = np.array([*(code[value] for value in getattr(part, table_name)), ABSENT], dtype=np.int32)
            recoded.append(to_new[getattr(part, name)])
        columns[name] = np.concatenate(recoded)
        columns[table_name] = table
    return Rows(**columns)


def copied(rows: Rows) -> Rows:
    """These rows on their own: chosen rows may be a view that keeps all the others, and their words, in memory."""
    if len(rows) == 0:
        return EMPTY
    columns: dict[str, Any] = {name: _own(getattr(rows, name)) for name in _COLUMNS}
    for name, table_name in CODED.items():
        table, codes = getattr(rows, table_name), columns[name]
        if table:
            used = np.unique(codes[codes != ABSENT])
            columns[name] = np.where(codes == ABSENT, ABSENT, np.searchsorted(used, codes)).astype(np.int32)
            columns[table_name] = tuple(table[code] for code in used.tolist())
    return replace(rows, **columns)


def _own(column: Ints) -> Ints:
    """A copy; a column of one value stays one."""
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
