"""Encoding and decoding of message references and message sets, which the messages of several orders contain."""

from __future__ import annotations

import struct

from unisono.model.message_set import MessageOrigin, MessageRef, MessageSet, SequenceRange

SEQUENCE_LIMIT = 2**63
"""Sequence numbers are smaller than this."""
_BYTE = struct.Struct("!B")
_REF = struct.Struct("!HIQ")
_COUNT = struct.Struct("!H")
_ORIGIN = struct.Struct("!HIH")
_RANGE = struct.Struct("!QI")


class Unreadable(ValueError):
    """The bytes are not a valid encoding of the expected message."""


def encode_ref(ref: MessageRef) -> bytes:
    """Encode a message reference: sender, incarnation, sequence number."""
    return _REF.pack(*ref)


def encode_set(messages: MessageSet) -> bytes:
    """Encode a message set as the sequence ranges of each origin. Equal sets have equal bytes."""
    parts = [_COUNT.pack(len(messages.ranges))]
    for origin, ranges in sorted(messages.ranges.items()):
        parts.append(_ORIGIN.pack(*origin, len(ranges)))
        parts += [_RANGE.pack(first, last - first) for first, last in ranges]
    return b"".join(parts)


class Reader:
    """Reads fields one after the other from the start of the data. Raises Unreadable if the data is too short."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        """Read the fields of one struct."""
        at = self._at
        self._expect_bytes(form.size)
        self._at = at + form.size
        return form.unpack_from(self._data, at)

    def read_byte(self) -> int:
        """Read one byte as a number."""
        return self.unpack(_BYTE)[0]

    def read_bytes(self, length: int) -> bytes:
        """Read `length` bytes."""
        at = self._at
        self._expect_bytes(length)
        self._at = at + length
        return self._data[at : at + length]

    def read_ref(self) -> MessageRef:
        """Read a message reference."""
        sender, incarnation, sequence = self.unpack(_REF)
        if sequence >= SEQUENCE_LIMIT:
            raise Unreadable(f"sequence number {sequence} is too large; it must be less than 2**63")
        return MessageRef(sender, incarnation, sequence)

    def read_message_set(self) -> MessageSet:
        """Read a message set. Ranges must be ascending and not adjacent, so that each set has only one encoding."""
        ranges: dict[MessageOrigin, tuple[SequenceRange, ...]] = {}
        for _ in range(self.unpack(_COUNT)[0]):
            sender, incarnation, count = self.unpack(_ORIGIN)
            if (sender, incarnation) in ranges or count == 0:
                raise Unreadable(f"message set: origin ({sender}, {incarnation}) is repeated or has no ranges")
            read: list[SequenceRange] = []
            for _ in range(count):
                first, more = self.unpack(_RANGE)
                if first >= SEQUENCE_LIMIT or (read and first <= read[-1][1] + 1):
                    raise Unreadable(f"message set: the range that starts at {first} is out of order or too large")
                read.append((first, first + more))
            ranges[sender, incarnation] = tuple(read)
        return MessageSet(ranges)

    def expect_end(self) -> None:
        """Raise Unreadable if any data is left."""
        if self._at != len(self._data):
            raise Unreadable(f"{len(self._data) - self._at} unexpected bytes after the end")

    def _expect_bytes(self, length: int) -> None:
        remaining = len(self._data) - self._at
        if length > remaining:
            raise Unreadable(f"expected {length} bytes at offset {self._at}, but only {remaining} remain")
