"""The row schema: one row per message sent, per message delivered, and per event of a member's life.

A delivery's key in the order is (slot, place). The key must be a function of the message, the same at every
member whatever that member missed; a running count of what one member delivered is not a place. In the priority order,
whose members all consume the same sequence, the slot is the message's number in that sequence.

RECEIVE and QUEUE rows are steps of a message into the consumable queue of the priority order: their place counts the
member's steps, their index what it had delivered, their slot is its place in the order. A RECEIVE's view is the agreed
view in which the message came; the view of a VIEW row is the number of an agreed view, else its first slot.

Columns that only some kinds of rows have are null in all others: `token` (VIOLATION and NOTICE: what it is about),
`members` and `member_incarnations` (VIEW; incarnations of agreed views alone), `theta_ns` (TIMING), `bound_ns` (TIMING,
and START: the bound that the member declares), `talks_with` (NOTICE of a topology), `messages` (RECEIVE: the target
tail; QUEUE: the insertion point). `configuration` and `group_id` are null until members have them. `note` is free text:
no program reads it.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from unisono.trace.kinds import SCHEMA_VERSION

VERSION_KEY: Final = b"unisono.trace.version"
ABSENT_LISTS_KEY: Final = b"unisono.trace.absent_lists"
"""In the metadata of a file: the columns of lists that are null in all its rows, with commas between."""

_WORD: Final = pa.dictionary(pa.int32(), pa.string())

SCHEMA: Final = pa.schema(
    [
        pa.field("run", _WORD, nullable=False),
        pa.field("group", _WORD, nullable=False),
        # Who recorded the row, and in which of its incarnations: a restarted member counts from 0 again.
        pa.field("member", pa.int32(), nullable=False),
        pa.field("recorder_incarnation", pa.int64(), nullable=False),
        pa.field("kind", _WORD, nullable=False),
        # The message (sender, sender_incarnation, sequence); for START, LEAVE, CRASH and GAP, whom it happened to.
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
