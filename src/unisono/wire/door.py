"""The door: every datagram is checked here once. What is refused is counted by its reason and goes no further."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from unisono.wire.control import decode_echo, decode_hello, decode_probe
from unisono.wire.frame import (
    FINAL,
    HEADER_BYTES,
    KNOWN_FLAGS,
    LAST,
    MORE,
    PIECE,
    VERSION,
    Frame,
    Kind,
    unpack_header,
)
from unisono.wire.run import read_run


class Refusal(StrEnum):
    """Why a datagram was not let in."""

    TRUNCATED = "truncated"
    WRONG_VERSION = "wrong version"
    UNKNOWN_KIND = "unknown kind"
    UNKNOWN_FLAGS = "unknown flags"
    WRONG_GROUP = "wrong group"
    STRANGER = "not a member"
    OWN_ECHO = "own datagram"
    ABSURD_SLOT = "absurd slot"
    LYING_LENGTHS = "lengths that lie"
    BAD_PIECE = "bad piece"
    BAD_CONTROL = "bad control message"


_KINDS = {kind.value: kind for kind in Kind}
_CONTROL = {Kind.HELLO: decode_hello, Kind.PROBE: decode_probe, Kind.ECHO: decode_echo}


class Door:
    """Lets in what one member may trust."""

    def __init__(self, group: int, me: int, members: tuple[int, ...]) -> None:
        self._group = group
        self._me = me
        self._members = frozenset(members)
        self.refused: Counter[Refusal] = Counter()

    def admit(self, data: bytes, start: int, end: int, latest_slot: int) -> Frame | None:
        """The frame in data[start:end]; None, counted, if anything about it is wrong.

        `latest_slot` is the last slot that a right sender could be in.
        """
        result = self._judge(data, start, end, latest_slot)
        if isinstance(result, Refusal):
            self.refused[result] += 1
            return None
        return result

    def _judge(self, data: bytes, start: int, end: int, latest_slot: int) -> Frame | Refusal:
        if end - start < HEADER_BYTES:
            return Refusal.TRUNCATED
        (
            version,
            code,
            flags,
            zero,
            sender,
            number,
            group,
            epoch,
            incarnation,
            burst,
            slot,
            sequence,
            sent,
        ) = unpack_header(data, start)
        if version != VERSION:
            return Refusal.WRONG_VERSION
        kind = _KINDS.get(code)
        if kind is None:
            return Refusal.UNKNOWN_KIND
        if flags & ~KNOWN_FLAGS or zero:
            return Refusal.UNKNOWN_FLAGS
        if group != self._group:
            return Refusal.WRONG_GROUP
        if sender == self._me:
            return Refusal.OWN_ECHO
        if sender not in self._members:
            return Refusal.STRANGER
        if slot > latest_slot or sequence >= 2**63 or sent >= 2**63:
            return Refusal.ABSURD_SLOT
        frame = Frame(kind, sender, incarnation, epoch, slot, number, flags, burst, sequence, sent)
        if kind is Kind.DATA:
            return _with_body(frame, data, start + HEADER_BYTES, end)
        body = data[start + HEADER_BYTES : end]
        if flags or _CONTROL[kind](body) is None:
            return Refusal.BAD_CONTROL
        frame.body = body
        return frame


def _with_body(frame: Frame, data: bytes, start: int, end: int) -> Frame | Refusal:
    flags = frame.flags
    if flags & FINAL and not flags & LAST:
        return Refusal.UNKNOWN_FLAGS
    if flags & PIECE:
        # The message's end and the slot's end may coincide, but a slot never ends inside a message.
        if start == end or flags & (MORE | LAST) == MORE | LAST:
            return Refusal.BAD_PIECE
        frame.body = memoryview(data)[start:end]
        return frame
    if flags & MORE:
        return Refusal.UNKNOWN_FLAGS
    if start == end:
        return frame if flags & LAST else Refusal.TRUNCATED
    run = read_run(data, start, end)
    if run is None:
        return Refusal.LYING_LENGTHS
    frame.run = run
    return frame
