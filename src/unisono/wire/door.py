"""The door: every datagram is checked here once. What is refused is counted by its reason and goes no further."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from unisono.model.ids import EVERYONE
from unisono.wire import finals, membership, multigroup
from unisono.wire.consensus import DECODERS
from unisono.wire.control import (
    decode_echo,
    decode_hello,
    decode_join,
    decode_new_rate,
    decode_probe,
    decode_reserved,
    split_wishes,
)
from unisono.wire.fec import Share, possible_place, unpack_place
from unisono.wire.frame import (
    FINAL,
    FIRST,
    HEADER_BYTES,
    KNOWN_FLAGS,
    LAST,
    MORE,
    PIECE,
    VERSION,
    WISH,
    Frame,
    Kind,
    Nested,
    unpack_header,
)
from unisono.wire.heartbeat import decode_heartbeat
from unisono.wire.rmcast import Copy, read_fields
from unisono.wire.run import read_run
from unisono.wire.succession import (
    ORDERED_BYTES,
    What,
    decode_ask,
    decode_beat,
    decode_need,
    decode_place,
    decode_request,
    decode_roll,
    decode_vote,
)


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
    BAD_SHARE = "bad share"
    BAD_COPY = "bad copy"


_KINDS = {kind.value: kind for kind in Kind}
_DATA = Kind.DATA.value
_CONTROL = {
    Kind.HELLO: decode_hello,
    Kind.PROBE: decode_probe,
    Kind.ECHO: decode_echo,
    Kind.JOIN: decode_join,
    Kind.NEW_RATE: decode_new_rate,
    Kind.RESERVED: decode_reserved,
    Kind.BEAT: decode_beat,
    Kind.ASK: decode_ask,
    Kind.VOTE: decode_vote,
    Kind.NEED: decode_need,
    Kind.REQUEST: decode_request,
    Kind.HEARTBEAT: decode_heartbeat,
    **DECODERS,
    **membership.DECODERS,
    **finals.DECODERS,
    **multigroup.DECODERS,
}


_LAYERED = frozenset({Kind.FEC, Kind.RMCAST, Kind.FIFO, Kind.CAUSAL, Kind.UNIFORM})
"""Kinds that only their layers understand: without the layer they would be taken for the order's own frames."""
_MULTICAST = frozenset({Kind.DATA, Kind.JOIN, Kind.ORDERED, Kind.REQUEST, Kind.FIFO, Kind.CAUSAL, Kind.UNIFORM})
"""Kinds that travel inside others."""


class Door:
    """Lets in what one member may trust."""

    def __init__(self, group: int, me: int, members: tuple[int, ...], layered: frozenset[Kind] = frozenset()) -> None:
        """Of the kinds that layers add, those in `layered` are let in."""
        self._group = group
        self._me = me
        self._members = frozenset(members)
        self._kinds = {code: kind for code, kind in _KINDS.items() if kind in layered or kind not in _LAYERED}
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
        if group != self._group:
            return Refusal.WRONG_GROUP
        if sender == self._me:
            return Refusal.OWN_ECHO
        if sender not in self._members:
            return Refusal.STRANGER
        # A HELLO counts slots of its own length: whoever was given another one has to be told, not turned away.
        if (slot > latest_slot and kind is not Kind.HELLO) or sequence >= 2**63 or sent >= 2**63:
            return Refusal.ABSURD_SLOT
        if kind is Kind.FEC:
            shared, place = memoryview(data)[start + HEADER_BYTES : end], unpack_place(sequence)
            share = Share(
                kind,
                sender,
                incarnation,
                epoch,
                slot,
                number,
                flags,
                burst,
                sequence,
                sent,
                None,
                shared,
                EVERYONE,
                False,
                *place,
            )
            return _with_share(share, data, start + HEADER_BYTES, end, group)
        if kind is Kind.RMCAST:
            copy = Copy(kind, sender, incarnation, epoch, slot, number, flags, burst, sequence, sent)
            copy.latest_slot = latest_slot
            if flags or not read_fields(copy, data, start + HEADER_BYTES, end):
                return Refusal.BAD_COPY
            return copy if copy.originator in self._members else Refusal.STRANGER
        if kind in _LAYERED:
            return _nested(
                Nested(kind, sender, incarnation, epoch, slot, number, flags, burst, sequence, sent),
                data,
                start,
                end,
                latest_slot,
            )
        frame = Frame(kind, sender, incarnation, epoch, slot, number, flags, burst, sequence, sent)
        return self._bodied(frame, data, start + HEADER_BYTES, end)

    def open_nested(self, outer: Nested, sender: int, life: int) -> Frame | Refusal:
        """The frame inside another one, which `sender` has sent in this incarnation and in the outer frame's epoch."""
        data, start, end = outer.datagram, outer.start, outer.end
        if end - start < HEADER_BYTES:
            return Refusal.TRUNCATED
        fields = unpack_header(data, start)
        version, code, flags, zero, origin, number, group, epoch, incarnation, burst, slot, sequence, sent = fields
        kind = _KINDS.get(code)
        if kind not in _MULTICAST or version != VERSION or flags & ~KNOWN_FLAGS or zero or group != self._group:
            return Refusal.BAD_COPY
        if origin != sender or incarnation != life or epoch != outer.epoch:
            return Refusal.BAD_COPY
        if slot > outer.latest_slot or sequence >= 2**63 or sent >= 2**63:
            return Refusal.ABSURD_SLOT
        if kind in _LAYERED:
            nested = Nested(kind, sender, life, epoch, slot, number, flags, burst, sequence, sent)
            nested.multicast = outer.multicast
            return _nested(nested, data, start, end, outer.latest_slot)
        frame = Frame(kind, sender, life, epoch, slot, number, flags, burst, sequence, sent)
        frame.multicast = outer.multicast
        return self._bodied(frame, data, start + HEADER_BYTES, end)

    def _bodied(self, frame: Frame, data: bytes, start: int, end: int) -> Frame | Refusal:
        if frame.kind is Kind.DATA:
            return _with_body(frame, data, start, end)
        if frame.kind is Kind.ORDERED:
            return self._ordered(frame, data, start, end)
        body = data[start:end]
        if frame.flags or _CONTROL[frame.kind](body) is None:
            return Refusal.BAD_CONTROL
        frame.body = body
        return frame

    def _ordered(self, frame: Frame, data: bytes, start: int, end: int) -> Frame | Refusal:
        """An entry of a leader's stream: its place, then another member's frame, a roll of members, or nothing."""
        body = memoryview(data)[start:end]
        place = decode_place(body)
        if place is None or frame.flags & WISH:
            return Refusal.BAD_CONTROL
        payload = body[ORDERED_BYTES:]
        if place.what is What.ROLL:
            roll = decode_roll(payload)
            if frame.flags or roll is None or not self._members.issuperset(roll.members):
                return Refusal.BAD_CONTROL
        elif place.origin not in self._members:
            return Refusal.STRANGER
        elif place.what is What.GRANT:
            if frame.flags or payload:
                return Refusal.BAD_CONTROL
        else:
            refusal = _with_body(frame, data, start + ORDERED_BYTES, end)
            if isinstance(refusal, Refusal):
                return refusal
        frame.body = body
        return frame


def _nested(frame: Nested, data: bytes, start: int, end: int, latest_slot: int) -> Nested | Refusal:
    """A frame whose body its layer reads."""
    if frame.flags:
        return Refusal.UNKNOWN_FLAGS
    frame.body = memoryview(data)[start + HEADER_BYTES : end]
    frame.datagram, frame.start, frame.end, frame.latest_slot = data, start + HEADER_BYTES, end, latest_slot
    return frame


def _with_body(frame: Frame, data: bytes, start: int, end: int) -> Frame | Refusal:
    flags = frame.flags
    if flags & FINAL and not flags & LAST:
        return Refusal.UNKNOWN_FLAGS
    if flags & WISH:
        # It rides on a mark that has nothing else to carry; a demand not before the slot in which it was sent first.
        body = memoryview(data)[start:end]
        wishes = split_wishes(body)
        if flags & ~(WISH | LAST | FINAL) or not flags & LAST or wishes is None:
            return Refusal.BAD_CONTROL
        if any(demand.origin > frame.slot for demand in wishes[1]):
            return Refusal.BAD_CONTROL
        frame.body = body
        return frame
    if flags & PIECE:
        # The message's end and the slot's end may coincide, but a slot never ends inside a message.
        if start == end or flags & (MORE | LAST) == MORE | LAST:
            return Refusal.BAD_PIECE
        frame.body = memoryview(data)[start:end]
        return frame
    if flags & (MORE | FIRST):
        return Refusal.UNKNOWN_FLAGS
    if start == end:
        return frame if flags & LAST else Refusal.TRUNCATED
    run = read_run(data, start, end)
    if run is None:
        return Refusal.LYING_LENGTHS
    frame.run = run
    return frame


def _with_share(share: Share, data: bytes, start: int, end: int, group: int) -> Share | Refusal:
    # No original is less than a header, so no share is.
    if share.flags & ~LAST or end - start < HEADER_BYTES or not possible_place(share):
        return Refusal.BAD_SHARE
    if share.index < share.originals:
        if share.size != end - start:
            return Refusal.BAD_SHARE
        original = read_original(share, share.index, data, start=start, end=end, group=group)
        if isinstance(original, Refusal):
            return original
        share.original = original
    return share


def read_original(share: Share, index: int, data: bytes, *, end: int, group: int, start: int = 0) -> Frame | Refusal:
    """The order's frame in data[start:end], the original of this index in the block that `share` is of.

    A reconstructed original passes here too: a share that lies can only make one that is refused, or one that its
    sender could as well have sent.
    """
    if end - start < HEADER_BYTES or end > len(data):
        return Refusal.BAD_SHARE
    fields = unpack_header(data, start)
    version, code, flags, zero, sender, number, of_group, epoch, incarnation, burst, slot, sequence, sent = fields
    if version != VERSION or code != _DATA or zero or of_group != group or slot != share.slot:
        return Refusal.BAD_SHARE
    if sender != share.sender or incarnation != share.incarnation or epoch != share.epoch:
        return Refusal.BAD_SHARE
    # The end-of-slot mark is the last original of the last block, and nowhere else.
    ends = share.last and index == share.originals - 1
    if flags & ~KNOWN_FLAGS or bool(flags & LAST) != ends or sequence >= 2**63 or sent >= 2**63:
        return Refusal.BAD_SHARE
    frame = Frame(Kind.DATA, sender, incarnation, epoch, slot, number, flags, burst, sequence, sent)
    return _with_body(frame, data, start + HEADER_BYTES, end)
