"""What a row can say, and the constants that rows share."""

from __future__ import annotations

from enum import Enum
from typing import Final

SCHEMA_VERSION: Final = 2
"""What this release writes."""
READ_VERSIONS: Final = (1, 2)

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
    """Slots have the length `theta_ns` from the row's slot on; `bound_ns` is the latency bound from there on."""
    RECEIVE = "receive"
    """A message arrived at a member of the priority order; `messages` names its target tail."""
    QUEUE = "queue"
    """A member put a message into its consumable queue; `messages` names the insertion point."""
    REPAIR = "repair"
    """A member recovered a message that it had gone on without: the GAP row of its sender and slot is closed."""
    LATE = "late"
    """A message came after the member had gone on without it, and was not delivered."""
    INVOKE = "invoke"
    """A client called an operation on a replicated object."""
    RESPOND = "respond"
    """The operation of an INVOKE row returned to its client."""

    @property
    def code(self) -> int:
        """The kind's number in `Trace.kind`."""
        return _CODES[self]


MESSAGE_KINDS: Final = (EventKind.SEND, EventKind.DELIVER, EventKind.RECEIVE, EventKind.QUEUE)
"""The kinds of rows that are about a message: these have its number."""


KINDS: Final = tuple(EventKind)
_CODES: Final = {kind: code for code, kind in enumerate(KINDS)}

NUMBER_COLUMNS: Final = {
    "member": "int32",
    "recorder_incarnation": "int64",
    "sender": "int32",
    "sender_incarnation": "int64",
    "sequence": "int64",
    "slot": "int64",
    "place": "int64",
    "index": "int64",
    "real_ns": "int64",
    "local_ns": "int64",
    "size": "int32",
    "priority": "int16",
    "view": "int64",
    "theta_ns": "int64",
    "bound_ns": "int64",
    "configuration": "int64",
}
"""The numeric columns and their types, the same in memory as in the file."""

NULLABLE_NUMBER_COLUMNS: Final = (
    *("sequence", "place", "index", "size", "priority", "view"),
    *("theta_ns", "bound_ns", "configuration"),
)

CODED: Final = {
    "note": "notes",
    "grade": "grades",
    "destinations": "destination_sets",
    "token": "tokens",
    "members": "member_lists",
    "member_incarnations": "incarnation_lists",
    "talks_with": "talk_lists",
    "messages": "message_texts",
    "group_id": "group_ids",
}
"""The columns whose values are words or lists: each is a code in memory, into the table that stands beside it."""

FREE_TEXT: Final = ("note",)
"""What only people read: no program branches on it, and it is no part of a trace's digest."""
