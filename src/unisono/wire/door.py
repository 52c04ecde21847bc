"""The door checks every received datagram once. It drops invalid ones and counts them by reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias

from unisono.wire.codec import Unreadable, decode_message
from unisono.wire.control import MARK_REQUESTS
from unisono.wire.frame import (
    END_OF_SLOT,
    FIRST_FRAGMENT,
    FRAGMENT,
    HEADER_BYTES,
    KNOWN_FLAGS,
    LEAVING,
    MORE_FRAGMENTS,
    SETTING_REQUEST,
    SLOTS_MAY_DIFFER,
    VERSION,
    Frame,
    Kind,
    Nested,
    read_packed_messages,
    unpack_header,
)


class Refusal(StrEnum):
    """The reason for which the door refused a datagram."""

    TRUNCATED = "truncated"
    WRONG_VERSION = "wrong version"
    UNKNOWN_KIND = "unknown kind"
    UNKNOWN_FLAGS = "unknown flags"
    WRONG_GROUP = "wrong group"
    NOT_A_MEMBER = "not a member"
    OWN_DATAGRAM = "own datagram"
    IMPLAUSIBLE_SLOT = "implausible slot"
    INCONSISTENT_LENGTHS = "inconsistent lengths"
    BAD_FRAGMENT = "bad fragment"
    BAD_CONTROL = "bad control message"
    BAD_SHARE = "bad share"
    BAD_COPY = "bad copy"


_KINDS = {kind.value: kind for kind in Kind}

BodyReader: TypeAlias = "Callable[[Door, Frame, bytes, int, int], Frame | Refusal]"
"""A function that reads the body in data[start:end] into a frame that already has its header."""
Header: TypeAlias = tuple[Kind, int, int, int, int, int, int, int, int, int]
"""A checked header: the first ten fields of `Frame`, in the same order."""
LayerReader: TypeAlias = "Callable[[Door, Header, bytes, int, int], Frame | Refusal]"
"""A function that builds a layer's frame from its header and the body in data[start:end]."""

_bodies: dict[Kind, BodyReader] = {}
_layers: dict[Kind, LayerReader] = {}


def register_body(kind: Kind, reader: BodyReader) -> None:
    """Register the function that reads the bodies of a kind of frame, if they are not just one control message."""
    _bodies[kind] = reader


def register_layer(kind: Kind, reader: LayerReader) -> None:
    """Register the function that builds the frames of a layer with its own frame class."""
    _layers[kind] = reader


_LAYERED = frozenset({Kind.FEC, Kind.RMCAST, Kind.FIFO, Kind.CAUSAL, Kind.UNIFORM})
"""The kinds of frames that contain another frame. Only their layers understand them."""
_OPTIONAL = _LAYERED | {Kind.PLAN}
"""The kinds of frames that the door refuses in a stack without their layer.

Otherwise the order would take them for its own frames.
"""
_NESTABLE = frozenset({Kind.DATA, Kind.JOIN, Kind.ORDERED, Kind.STAMP_REQUEST, Kind.FIFO, Kind.CAUSAL, Kind.UNIFORM})
"""The kinds of frames that may be nested in frames of other kinds."""


class Door:
    """Checks and decodes every datagram that one member receives, and counts the refused ones by reason."""

    def __init__(self, group: int, me: int, members: tuple[int, ...], layered: frozenset[Kind] = frozenset()) -> None:
        """`layered` are the kinds of frames of the layers in this member's stack.

        The door refuses those of other layers.
        """
        self.group = group
        self._me = me
        self.members = frozenset(members)
        self._kinds = {code: kind for code, kind in _KINDS.items() if kind in layered or kind not in _OPTIONAL}
        self.refused: Counter[Refusal] = Counter()
        self._refused_from: Counter[tuple[int, Refusal]] = Counter()
        """How many datagrams that name a member as their sender were refused, by that member and the reason."""

    def admit(self, data: bytes, start: int, end: int, latest_slot: int) -> Frame | None:
        """Decode the frame in data[start:end]. If it is invalid, count it by its reason and return None.

        `latest_slot` is the last slot that a correct sender can be in.
        """
        result = self._check(data, start, end, latest_slot)
        if isinstance(result, Refusal):
            self.refused[result] += 1
            if end - start >= HEADER_BYTES and (sender := unpack_header(data, start)[4]) in self.members:
                self._refused_from[sender, result] += 1
            return None
        return result

    def refused_from(self, member: int) -> dict[Refusal, int]:
        """How many datagrams that name this member as their sender were refused, by reason. Senders can be forged."""
        return {reason: count for (sender, reason), count in self._refused_from.items() if sender == member}

    def _check(self, data: bytes, start: int, end: int, latest_slot: int) -> Frame | Refusal:
        if end - start < HEADER_BYTES:
            return Refusal.TRUNCATED
        (
            version,
            code,
            flags,
            _serial,
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
        kind = self._kinds.get(code)
        if kind is None:
            return Refusal.UNKNOWN_KIND
        if flags & ~KNOWN_FLAGS:
            return Refusal.UNKNOWN_FLAGS
        if group != self.group:
            return Refusal.WRONG_GROUP
        if sender == self._me:
            return Refusal.OWN_DATAGRAM
        if sender not in self.members:
            return Refusal.NOT_A_MEMBER
        # A HELLO counts slots in its sender's slot length. If that differs from ours, the sender needs an answer.
        if (slot > latest_slot and kind is not Kind.HELLO) or sequence >= 2**63 or sent >= 2**63:
            return Refusal.IMPLAUSIBLE_SLOT
        header = (kind, sender, incarnation, epoch, slot, number, flags, burst, sequence, sent)
        if kind in _layers:
            layered = _layers[kind](self, header, data, start + HEADER_BYTES, end)
            if isinstance(layered, Nested):
                layered.latest_slot = latest_slot
            return layered
        if kind in _LAYERED:
            return _parse_nested(Nested(*header), data, start, end, latest_slot)
        return self._parse_body(Frame(*header), data, start + HEADER_BYTES, end)

    def open_nested(self, outer: Nested, sender: int, sender_incarnation: int) -> Frame | Refusal:
        """Decode the frame nested in `outer`; returns a Refusal if it is invalid.

        The nested frame must name `sender` and `sender_incarnation` as its sender, and have the epoch of `outer`.
        """
        data, start, end = outer.datagram, outer.start, outer.end
        if end - start < HEADER_BYTES:
            return Refusal.TRUNCATED
        fields = unpack_header(data, start)
        version, code, flags, zero, origin, number, group, epoch, incarnation, burst, slot, sequence, sent = fields
        kind = _KINDS.get(code)
        if kind not in _NESTABLE or version != VERSION or flags & ~KNOWN_FLAGS or zero or group != self.group:
            return Refusal.BAD_COPY
        if origin != sender or incarnation != sender_incarnation or epoch != outer.epoch:
            return Refusal.BAD_COPY
        if slot > outer.latest_slot or sequence >= 2**63 or sent >= 2**63:
            return Refusal.IMPLAUSIBLE_SLOT
        if kind in _LAYERED:
            nested = Nested(kind, sender, sender_incarnation, epoch, slot, number, flags, burst, sequence, sent)
            nested.multicast = outer.multicast
            return _parse_nested(nested, data, start, end, outer.latest_slot)
        frame = Frame(kind, sender, sender_incarnation, epoch, slot, number, flags, burst, sequence, sent)
        frame.multicast = outer.multicast
        return self._parse_body(frame, data, start + HEADER_BYTES, end)

    def _parse_body(self, frame: Frame, data: bytes, start: int, end: int) -> Frame | Refusal:
        if frame.kind is Kind.DATA:
            return read_messages(frame, data, start, end)
        if frame.kind in _bodies:
            return _bodies[frame.kind](self, frame, data, start, end)
        if frame.flags:
            return Refusal.BAD_CONTROL
        frame.body = data[start:end]
        try:
            frame.message = decode_message(frame.kind, frame.body)
        except Unreadable:
            return Refusal.BAD_CONTROL
        return frame


def _parse_nested(frame: Nested, data: bytes, start: int, end: int, latest_slot: int) -> Nested | Refusal:
    """Build a frame that contains another frame. The layer that owns it reads its body later."""
    if frame.flags:
        return Refusal.UNKNOWN_FLAGS
    frame.body = memoryview(data)[start + HEADER_BYTES : end]
    frame.datagram, frame.start, frame.end, frame.latest_slot = data, start + HEADER_BYTES, end, latest_slot
    return frame


def read_messages(frame: Frame, data: bytes, start: int, end: int) -> Frame | Refusal:
    """Read data[start:end] into a DATA frame: packed messages, a fragment, or an end-of-slot mark
    that is empty or carries requests for other settings.
    """
    flags = frame.flags
    if flags & (LEAVING | SLOTS_MAY_DIFFER) and not flags & END_OF_SLOT:
        return Refusal.UNKNOWN_FLAGS
    if flags & SETTING_REQUEST:
        # Only an end-of-slot mark without messages carries requests, and none from a later slot than its own.
        if flags & ~(SETTING_REQUEST | END_OF_SLOT | LEAVING | SLOTS_MAY_DIFFER) or not flags & END_OF_SLOT:
            return Refusal.BAD_CONTROL
        frame.body = data[start:end]
        try:
            requests = MARK_REQUESTS.decode(frame.body)
        except Unreadable:
            return Refusal.BAD_CONTROL
        if any(request.origin_slot > frame.slot for request in requests.setting_requests):
            return Refusal.BAD_CONTROL
        frame.message = requests
        return frame
    if flags & FRAGMENT:
        # The last fragment may also end the slot, but a slot never ends inside a message.
        if start == end or flags & (MORE_FRAGMENTS | END_OF_SLOT) == MORE_FRAGMENTS | END_OF_SLOT:
            return Refusal.BAD_FRAGMENT
        frame.body = memoryview(data)[start:end]
        return frame
    if flags & (MORE_FRAGMENTS | FIRST_FRAGMENT):
        return Refusal.UNKNOWN_FLAGS
    if start == end:
        return frame if flags & END_OF_SLOT else Refusal.TRUNCATED
    packed = read_packed_messages(data, start, end)
    if packed is None:
        return Refusal.INCONSISTENT_LENGTHS
    frame.packed_messages = packed
    return frame
