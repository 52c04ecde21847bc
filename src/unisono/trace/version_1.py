"""Reads traces of schema version 1, which has no tokens.

In version 1 notes are part of the data: the kind of a violation or notice comes before the first colon, and the notes
of VIEW, TIMING, RECEIVE and QUEUE rows list members, figures and messages. Only this module reads notes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from unisono.trace.schema import ABSENT, EventKind
from unisono.trace.table import Ints, Rows, encode

VERSION: Final = 1
UNDIRECTED_KEY: Final = b"unisono.trace.undirected"
"""A key in the metadata of a file; it is there if all messages in the file are for the whole group."""

NAMES: Final = (
    *("run", "group", "member", "recorder_incarnation", "kind", "sender", "sender_incarnation", "sequence", "slot"),
    *("place", "index", "real_ns", "local_ns", "size", "priority", "view", "grade", "destinations", "note"),
)
"""The columns of the present schema that files of version 1 have, under their present names."""
NEEDED: Final = ("kind", "note")
"""The columns of a version 1 file that `upgraded` reads."""
_OLD_NAMES: Final = {"recorder_incarnation": "life", "sender_incarnation": "incarnation"}
_TALKS: Final = "; talks with "
_NO_GROUP: Final = "nobody"
_TIMING: Final = re.compile(r"theta_ns=(\d+) bound_ns=(\d+)")


def stored_names(names: Sequence[str]) -> list[str]:
    """The names of these columns in files of version 1."""
    return [_OLD_NAMES.get(name, name) for name in names]


def upgraded(rows: Rows) -> Rows:
    """The rows with columns for the values that version 1 wrote into notes. The notes keep only their free text."""
    if not rows.notes:
        return rows
    reports = _where(rows, EventKind.VIOLATION, EventKind.NOTICE)
    views, timings = _where(rows, EventKind.VIEW), _where(rows, EventKind.TIMING)
    steps = _where(rows, EventKind.RECEIVE, EventKind.QUEUE)
    columns: dict[str, Any] = {}

    def add_column(name: str, table_name: str, at: Ints, read: Callable[[str], Any]) -> None:
        columns[name], columns[table_name] = _coded(rows, at, read)

    add_column("token", "tokens", reports, _token)
    add_column("talks_with", "talk_lists", reports, _talks)
    add_column("members", "member_lists", views, _members)
    add_column("member_incarnations", "incarnation_lists", views, _incarnations)
    add_column("messages", "message_texts", steps, str)
    for number, name in enumerate(("theta_ns", "bound_ns")):
        values = np.full(len(rows), ABSENT, dtype=np.int64)
        for row in timings.tolist():
            found = _TIMING.search(rows.notes[rows.note[row]])
            values[row] = int(found[number + 1]) if found else ABSENT
        columns[name] = values
    free = np.setdiff1d(_where(rows, *EventKind), np.concatenate([views, timings, steps]))
    add_column("note", "notes", free, _free_text)
    return replace(rows, **columns)


def _where(rows: Rows, *kinds: EventKind) -> Ints:
    """The numbers of the rows of these kinds that have a note."""
    return np.flatnonzero(np.isin(rows.kind, [kind.code for kind in kinds]) & (rows.note != ABSENT))


def _coded(rows: Rows, at: Ints, read: Callable[[str], Any]) -> tuple[Ints, tuple[Any, ...]]:
    """A column of the values that `read` finds in the notes of the rows `at`, coded, and the table of its codes."""
    notes = rows.note[at]
    used = np.unique(notes)
    codes, table = encode([read(rows.notes[note]) for note in used.tolist()])
    found = np.full(len(rows), ABSENT, dtype=np.int32)
    if len(used):
        found[at] = codes[np.searchsorted(used, notes)]
    return found, table


def _token(note: str) -> str | None:
    kind, colon, _ = note.partition(": ")
    return kind.replace(" ", "_") if colon else None


def _free_text(note: str) -> str:
    kind, _, text = note.partition(": ")
    return text or kind


def _talks(note: str) -> tuple[str, ...] | None:
    _, found, names = note.rpartition(_TALKS)
    if _token(note) != "topology" or not found:
        return None
    return () if names == _NO_GROUP else tuple(names.split(", "))


def _entries(note: str) -> list[list[str]]:
    return [entry.split(":") for entry in note.removeprefix("members ").split(",") if entry]


def _members(note: str) -> tuple[int, ...]:
    return tuple(int(entry[0]) for entry in _entries(note))


def _incarnations(note: str) -> tuple[int, ...] | None:
    return tuple(int(entry[1]) for entry in _entries(note) if len(entry) > 1) or None
