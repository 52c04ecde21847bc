"""Packed messages: the messages of one frame, joined once by the sender and sliced once at delivery.

The packed form starts with the number of messages and their common size. If sizes differ, the size field is
`MIXED_SIZES` and a table of sizes follows.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise

COUNT_MAX = 0xFFFF
_HEAD = struct.Struct("!HH")
PACKED_HEADER_BYTES = _HEAD.size
MIXED_SIZES = 0xFFFF
SIZE_ENTRY_BYTES = 2
"""The bytes per message in the table of sizes."""


class OutgoingMessages:
    """Messages that a sender is about to pack."""

    __slots__ = ("_messages", "same_size")

    def __init__(self, messages: list[bytes], same_size: bool) -> None:
        self._messages = messages
        self.same_size = same_size

    @property
    def count(self) -> int:
        return len(self._messages)

    @property
    def payload_bytes(self) -> int:
        messages = self._messages
        return len(messages) * len(messages[0]) if self.same_size else sum(map(len, messages))

    def messages(self) -> list[bytes]:
        return self._messages

    def sizes(self) -> Sequence[int]:
        return list(map(len, self._messages))

    def parts(self) -> list[bytes]:
        """The packed form as buffers to join after a frame header."""
        messages = self._messages
        count = len(messages)
        if self.same_size:
            return [_HEAD.pack(count, len(messages[0])), *messages]
        return [_HEAD.pack(count, MIXED_SIZES), struct.pack(f"!{count}H", *map(len, messages)), *messages]


class IncomingMessages:
    """Packed messages inside a received datagram. The door has checked their lengths."""

    __slots__ = ("_count", "_data", "_end", "_size", "_start")

    def __init__(self, data: bytes, start: int, end: int, count: int, size: int) -> None:
        self._data = data
        self._start = start
        self._end = end
        self._count = count
        self._size = size

    @property
    def count(self) -> int:
        return self._count

    @property
    def payload_bytes(self) -> int:
        table = SIZE_ENTRY_BYTES * self._count if self._size == MIXED_SIZES else 0
        return self._end - self._start - PACKED_HEADER_BYTES - table

    def messages(self) -> list[bytes]:
        data, size = self._data, self._size
        if size == 0:
            return [b""] * self._count
        if size != MIXED_SIZES:
            return [data[i : i + size] for i in range(self._start + PACKED_HEADER_BYTES, self._end, size)]
        sizes = self.sizes()
        body = self._start + PACKED_HEADER_BYTES + SIZE_ENTRY_BYTES * self._count
        return [data[a:b] for a, b in pairwise(accumulate(sizes, initial=body))]

    def sizes(self) -> Sequence[int]:
        if self._size != MIXED_SIZES:
            return [self._size] * self._count
        return struct.unpack_from(f"!{self._count}H", self._data, self._start + PACKED_HEADER_BYTES)

    def parts(self) -> list[bytes | memoryview]:
        """The packed form as received, to be forwarded after another frame header."""
        return [memoryview(self._data)[self._start : self._end]]


class ReassembledMessage:
    """One message that arrived as fragments in several frames."""

    __slots__ = ("_fragments",)
    count = 1

    def __init__(self, fragments: Sequence[bytes | memoryview]) -> None:
        self._fragments = fragments

    @property
    def payload_bytes(self) -> int:
        return sum(map(len, self._fragments))

    def messages(self) -> list[bytes]:
        return [b"".join(self._fragments)]

    def sizes(self) -> Sequence[int]:
        return [self.payload_bytes]


def read_packed_messages(data: bytes, start: int, end: int) -> IncomingMessages | None:
    """The packed messages in data[start:end]; None if their lengths are inconsistent."""
    if end - start < PACKED_HEADER_BYTES:
        return None
    count, size = _HEAD.unpack_from(data, start)
    if count == 0:
        return None
    body = start + PACKED_HEADER_BYTES
    if size != MIXED_SIZES:
        if body + count * size != end:
            return None
    else:
        table = SIZE_ENTRY_BYTES * count
        if body + table > end or body + table + sum(struct.unpack_from(f"!{count}H", data, body)) != end:
            return None
    return IncomingMessages(data, start, end, count, size)
