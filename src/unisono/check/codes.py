"""Tuples of columns as single numbers, so that one sort or search serves where several keys are meant."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unisono.check.verdict import MessageId, Position
from unisono.trace.table import Ints, Mask, Rows, join_columns

Codes = NDArray[np.int64]

_MAX_CODE = 1 << 62


def packed(*columns: Ints) -> Codes:
    """One number per row that orders rows as the tuple of their columns does, equal where all are equal."""
    if len(columns[0]) == 0:
        return np.empty(0, dtype=np.int64)
    code: Codes = np.zeros(len(columns[0]), dtype=np.int64)
    span = 1
    for given in columns:
        if given.strides == (0,):  # one value in all rows
            continue
        column, width = given.astype(np.int64), int(given.max()) - int(given.min()) + 1
        if span * width >= _MAX_CODE:  # too far apart to multiply: ranks are as good as values
            column, width = ranked(column)
            code, span = ranked(code)
        else:
            column -= int(given.min())
        code = code * width + column
        span *= width
    return code


def ranked(column: Codes) -> tuple[Codes, int]:
    """Each value's rank among the distinct values, and how many there are."""
    values, ranks = np.unique(column, return_inverse=True)
    return ranks.astype(np.int64), len(values)


def message_codes(*parts: Rows) -> list[Codes]:
    """One number per row for its message, the same number for the same message in all parts."""
    columns = [join_columns([getattr(p, name) for p in parts]) for name in _MESSAGE_COLUMNS]
    return _split_by_part(packed(*columns), parts)


def stream_codes(*parts: Rows) -> list[Codes]:
    """One number per row for its (sender, incarnation), the same in all parts."""
    columns = [join_columns([getattr(p, name) for p in parts]) for name in _MESSAGE_COLUMNS[:2]]
    return _split_by_part(packed(*columns), parts)


def log_codes(rows: Rows) -> Codes:
    """One number per row for the log that it is in: a member in one of its lives."""
    return packed(rows.member, rows.recorder_incarnation)


def key_codes(rows: Rows) -> Codes:
    """One number per row for its key in the order, (slot, place)."""
    return packed(rows.slot, rows.place)


def group_starts(grouped: Codes) -> Mask:
    """Where a new group begins, in rows whose groups are contiguous."""
    first = np.ones(len(grouped), dtype=bool)
    first[1:] = grouped[1:] != grouped[:-1]
    return first


def message_at(rows: Rows, row: int) -> MessageId:
    """The message of one row."""
    return MessageId(int(rows.sender[row]), int(rows.sender_incarnation[row]), int(rows.sequence[row]))


def position_at(rows: Rows, row: int) -> Position:
    """The delivery of one row."""
    return Position(int(rows.member[row]), message_at(rows, row), int(rows.index[row]))


_MESSAGE_COLUMNS = ("sender", "sender_incarnation", "sequence")


def _split_by_part(codes: Codes, parts: tuple[Rows, ...]) -> list[Codes]:
    return np.split(codes, np.cumsum([len(part) for part in parts])[:-1])
