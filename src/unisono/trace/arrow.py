"""Rows as Arrow tables: the Arrow schema of a trace file, and the conversion of `Rows` both ways."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from unisono.trace.schema import (
    ABSENT,
    CODED,
    MESSAGE_KINDS,
    NULLABLE_NUMBER_COLUMNS,
    NUMBER_COLUMNS,
    SCHEMA_VERSION,
    TraceDamaged,
)
from unisono.trace.table import KIND_NAMES, Rows, constant, encode

VERSION_KEY: Final = b"unisono.trace.version"
ABSENT_LISTS_KEY: Final = b"unisono.trace.absent_lists"
"""In the metadata of a file: the columns of lists that are null in all its rows, separated by commas."""

_WORD: Final = pa.dictionary(pa.int32(), pa.string())

SCHEMA: Final = pa.schema(
    [
        pa.field("run", _WORD, nullable=False),
        pa.field("group", _WORD, nullable=False),
        # The member that recorded the row, and its incarnation: a restarted member counts from 0 again.
        pa.field("member", pa.int32(), nullable=False),
        pa.field("recorder_incarnation", pa.int64(), nullable=False),
        pa.field("kind", _WORD, nullable=False),
        # The message (sender, sender_incarnation, sequence); for START, LEAVE, CRASH and GAP, the member concerned.
        pa.field("sender", pa.int32(), nullable=False),
        pa.field("sender_incarnation", pa.int64(), nullable=False),
        pa.field("sequence", pa.int64()),
        pa.field("slot", pa.int64(), nullable=False),
        pa.field("place", pa.int64()),
        pa.field("index", pa.int64()),
        pa.field("real_ns", pa.int64(), nullable=False),
        pa.field("local_ns", pa.int64(), nullable=False),
        pa.field("size", pa.int32()),
        pa.field("priority", pa.int16()),
        pa.field("view", pa.int64()),
        pa.field("grade", _WORD),
        pa.field("destinations", pa.list_(pa.int32())),
        pa.field("token", _WORD),
        pa.field("members", pa.list_(pa.int32())),
        pa.field("member_incarnations", pa.list_(pa.int64())),
        pa.field("theta_ns", pa.int64()),
        pa.field("bound_ns", pa.int64()),
        pa.field("talks_with", pa.list_(pa.string())),
        pa.field("messages", pa.string()),
        pa.field("configuration", pa.int64()),
        pa.field("group_id", _WORD),
        pa.field("note", pa.string()),
    ],
    metadata={VERSION_KEY: str(SCHEMA_VERSION).encode()},
)

LISTS: Final = tuple(field.name for field in SCHEMA if pa.types.is_list(field.type))
"""The columns whose values are lists."""


def to_arrow(rows: Rows, run: str, group: str) -> Any:
    """The rows as an Arrow table with the schema `SCHEMA`."""
    zeros = np.zeros(len(rows), dtype=np.int32)
    columns: dict[str, Any] = {
        "run": _dictionary(zeros, (run,)),
        "group": _dictionary(zeros, (group,)),
        "kind": _dictionary(rows.kind, KIND_NAMES),
    }
    absent_lists = []
    for name, table_name in CODED.items():
        codes, values = getattr(rows, name), getattr(rows, table_name)
        field = SCHEMA.field(name)
        if not values or (codes == ABSENT).all():
            columns[name] = pa.nulls(len(rows), field.type)
            absent_lists += [name] if name in LISTS else []
        elif name in LISTS:
            lists = pa.array([list(value) for value in values], field.type)
            columns[name] = lists.take(pa.array(codes, pa.int32(), mask=codes == ABSENT))
        else:
            columns[name] = _dictionary(codes, values).cast(field.type)
    for name in NUMBER_COLUMNS:
        values = getattr(rows, name)
        mask = values == ABSENT if name in NULLABLE_NUMBER_COLUMNS else None
        if mask is not None and mask.all():
            columns[name] = pa.nulls(len(rows), SCHEMA.field(name).type)
        else:
            columns[name] = pa.array(np.ascontiguousarray(values), mask=mask)
    table = pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)
    return table.replace_schema_metadata({**SCHEMA.metadata, ABSENT_LISTS_KEY: ",".join(absent_lists).encode()})


def _dictionary(codes: Any, table: tuple[str, ...]) -> Any:
    indices = pa.array(codes.astype(np.int32), mask=codes == ABSENT)
    return pa.DictionaryArray.from_arrays(indices, pa.array(table, pa.string()))


def from_arrow(table: Any, where: str | os.PathLike[str] = "table", constants: Mapping[str, int] | None = None) -> Rows:
    """The rows of an Arrow table; a column that the table lacks has its value in `constants`, or null, in all rows."""
    known, constants = set(table.column_names), constants or {}
    columns: dict[str, Any] = {}
    for name, dtype in NUMBER_COLUMNS.items():
        if name not in known:
            columns[name] = constant(len(table), dtype, constants.get(name, ABSENT))
            continue
        column = table[name]
        if column.null_count and name not in NULLABLE_NUMBER_COLUMNS:
            raise TraceDamaged(where, f"column {name} has nulls, but every row must have a value")
        if column.null_count == len(table) and len(table):
            columns[name] = constant(len(table), dtype)
            continue
        if column.null_count:
            column = column.fill_null(ABSENT)
        columns[name] = column.to_numpy().astype(dtype, copy=False)
    codes, words = codes_and_words(table["kind"])
    unknown = [word for word in words if word not in KIND_NAMES]
    if unknown or (codes == ABSENT).any():
        raise TraceDamaged(where, f"column kind: unknown kind {', '.join(map(repr, unknown)) or 'null'}")
    to_code = np.array([*(KIND_NAMES.index(word) for word in words), ABSENT], dtype=np.int8)
    columns["kind"] = to_code[codes]
    if "sequence" in known or "sequence" in constants:
        kinds = columns["kind"][columns["sequence"] < 0]
        if np.isin(kinds, [kind.code for kind in MESSAGE_KINDS]).any():
            raise TraceDamaged(where, "column sequence: a row about a message has no sequence number")
    for name, table_name in CODED.items():
        columns[name], columns[table_name] = (_lists if name in LISTS else _coded_column)(table, name)
    return Rows(**columns)


def _lists(table: Any, name: str) -> tuple[Any, tuple[Any, ...]]:
    """Read a column of lists: for each row a number (-1 for null), which is an index into the sorted distinct lists."""
    if name not in table.column_names or table[name].null_count == len(table):
        return constant(len(table), np.int32), ()
    column = table[name].combine_chunks()
    present = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
    codes, values = encode([tuple(value) for value in column.drop_null().to_pylist()])
    found = np.full(len(table), ABSENT, dtype=np.int32)
    found[present] = codes
    return found, values


def _coded_column(table: Any, name: str) -> tuple[Any, tuple[str, ...]]:
    """Read a column of words: for each row a number (-1 for null), which is an index into the sorted distinct words."""
    if name not in table.column_names or table[name].null_count == len(table):
        return constant(len(table), np.int32), ()
    column = table[name]
    return _normalized(*codes_and_words(column if pa.types.is_dictionary(column.type) else column.dictionary_encode()))


def codes_and_words(column: Any) -> tuple[Any, list[str]]:
    """The parts of an Arrow dictionary column: for each row the number of its word (-1 for null), and the words."""
    column = column.unify_dictionaries().combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks == 0:
            return np.empty(0, dtype=np.int32), []
        column = column.chunk(0)
    return column.indices.fill_null(ABSENT).to_numpy(zero_copy_only=False), column.dictionary.to_pylist()


def _normalized(codes: Any, words: list[str]) -> tuple[Any, tuple[str, ...]]:
    """The same column of words, coded with a sorted table that has only the words that occur."""
    used = [words[code] for code in np.unique(codes).tolist() if code != ABSENT]
    table = tuple(sorted(used))
    code = {word: number for number, word in enumerate(table)}
    to_new = np.array([*(code.get(word, ABSENT) for word in words), ABSENT], dtype=np.int32)
    return to_new[codes], table
