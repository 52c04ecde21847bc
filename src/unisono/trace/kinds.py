"""What a row can say, and the constants that rows share."""

from __future__ import annotations

from enum import Enum
from typing import Final

SCHEMA_VERSION: Final = 1

OBSERVER: Final = 0
"""The `member` of rows that no member recorded, such as a CRASH seen by whoever started the processes."""

ABSENT: Final = -1
"""What a numeric column holds in memory where the file has a null."""


class EventKind(Enum):
    """What a row says. The value is the word in the file; `code` is the number in memory."""

    SEND = "send"
    DELIVER = "deliver"
    VIEW = "view"
    VIOLATION = "violation"
    START = "start"
    LEAVE = "leave"
    CRASH = "crash"
    GAP = "gap"
    NOTICE = "notice"
    TIMING = "timing"
    """Slots have another length from the row's slot on; its note says which, and the latency bound from there on."""
    RECEIVE = "receive"
    QUEUE = "queue"

    @property
    def code(self) -> int:
        """The kind's number in `Trace.kind`."""
        return _CODES[self]


OF_MESSAGES: Final = (EventKind.SEND, EventKind.DELIVER, EventKind.RECEIVE, EventKind.QUEUE)
"""The kinds of rows that are about a message: these have its number."""


def timing_note(theta_ns: int, bound_ns: int) -> str:
    """The note of a TIMING row."""
    return f"theta_ns={theta_ns} bound_ns={bound_ns}"


KINDS: Final = tuple(EventKind)
_CODES: Final = {kind: code for code, kind in enumerate(KINDS)}

NUMBERS: Final = {
    "member": "int32",
    "life": "int64",
    "sender": "int32",
    "incarnation": "int64",
    "sequence": "int64",
    "slot": "int64",
    "place": "int64",
    "index": "int64",
    "real_ns": "int64",
    "local_ns": "int64",
    "size": "int32",
    "priority": "int16",
    "view": "int64",
}
"""The numeric columns and their types, in memory as in the file."""

NULLABLE_NUMBERS: Final = ("sequence", "place", "index", "size", "priority", "view")
