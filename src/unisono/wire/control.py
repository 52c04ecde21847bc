"""Control messages: the rate exchange's HELLO, JOIN, the wish for another slot length that a mark can carry, the
PROBE and ECHO that measure clocks, and the NEW_RATE and RESERVED by which receivers reserve."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

from unisono.model.slot_schedule import SEGMENTS_MAX, Segment
from unisono.model.timing import SLOT_MAX_NS, SLOT_MIN_NS
from unisono.wire.setting_requests import SettingRequest, decode_setting_requests, encode_setting_requests

_HELLO = struct.Struct("!QQQIdIQQBHBHHIII")
_SEEN_PEER = struct.Struct("!HIB")
_JOIN = struct.Struct("!QQQQdIQBIIB")
_SEGMENT = struct.Struct("!QQQ")
_SLOT_REQUEST = struct.Struct("!Q")
_NEW_RATE = struct.Struct("!II")
_RESERVED = struct.Struct("!IB")
_PROBE = struct.Struct("!Q")
_ECHO = struct.Struct("!QQQ")


@dataclass(frozen=True, slots=True)
class SeenPeer:
    """A member that the HELLO's sender has heard from, and whether by IP multicast too."""

    member: int
    incarnation: int
    by_multicast: bool


@dataclass(frozen=True, slots=True)
class Hello:
    """What a member says of itself until the group runs: its policies, its rate, its first slot, whom it hears.

    `first_slot` is 0 until the sender has heard everyone; `complete` says that it knows everyone's first slot.
    `theta_ns` is as declared, and `changes` counts how often the slot's length has been changed since. `order_key`
    tells orders apart; 0 says nothing.
    """

    theta_ns: int
    delta_ns: int
    gamma_ns: int
    members_key: int
    avg: float
    burst: int
    burst_bytes: int
    first_slot: int
    complete: bool
    seen_peers: tuple[SeenPeer, ...]
    failures: bool = False
    fec: tuple[int, int] | None = None
    loss_burst: int = 0
    slot_changes: int = 0
    order_key: int = 0


def encode_hello(hello: Hello) -> bytes:
    """The body of a HELLO frame."""
    head = _HELLO.pack(
        hello.theta_ns,
        hello.delta_ns,
        hello.gamma_ns,
        hello.members_key,
        hello.avg,
        hello.burst,
        hello.burst_bytes,
        hello.first_slot,
        hello.complete,
        len(hello.seen_peers),
        hello.failures,
        *(hello.fec or (0, 0)),
        hello.loss_burst,
        hello.slot_changes,
        hello.order_key,
    )
    return head + b"".join(_SEEN_PEER.pack(h.member, h.incarnation, h.by_multicast) for h in hello.seen_peers)


def decode_hello(body: bytes) -> Hello | None:
    """The HELLO, or None if it is malformed."""
    if len(body) < _HELLO.size:
        return None
    fields = _HELLO.unpack_from(body)
    theta, delta, gamma, key, avg, burst, burst_bytes, first_slot, complete, count = fields[:10]
    failures, a, b, loss_burst, changes, order_key = fields[10:]
    # NaN fails every comparison, so it is refused here too.
    if len(body) != _HELLO.size + count * _SEEN_PEER.size or complete > 1 or burst < 1 or not 0 < avg < 1e12:
        return None
    if not 1 <= burst_bytes < 2**40 or first_slot * theta >= 2**63 or failures > 1:
        return None
    heard = tuple(SeenPeer(m, i, bool(p)) for m, i, p in _SEEN_PEER.iter_unpack(body[_HELLO.size :]))
    return Hello(
        theta,
        delta,
        gamma,
        key,
        avg,
        burst,
        burst_bytes,
        first_slot,
        bool(complete),
        heard,
        bool(failures),
        (a, b) if b else None,
        loss_burst,
        changes,
        order_key,
    )


class JoinStep(IntEnum):
    """What a JOIN asks for."""

    JOIN = 0
    """Add me at this slot (paper 000 §6.3)."""
    MERGE = 1
    """I hear you, but you are not in my list: add me at this slot, and answer (§6.6)."""
    ANSWER = 2
    """Add me at this slot; no answer is wanted."""
    FENCED = 3
    """Our clocks differ by more than Γ: you are left out here, until you come back in another life."""


@dataclass(frozen=True, slots=True)
class Join:
    """A member names the slot from which on it is to be expected. `known` is the receiver's incarnation known here.

    `theta_ns` is as declared; `segments` are the slots as its sender has them, after `changes` changes; `demands` are
    those that its sender knows.
    """

    theta_ns: int
    delta_ns: int
    gamma_ns: int
    slot: int
    avg: float
    burst: int
    burst_bytes: int
    step: JoinStep
    receiver_incarnation: int
    slot_changes: int = 0
    segments: tuple[Segment, ...] = ()
    setting_requests: tuple[SettingRequest, ...] = ()


def encode_join(join: Join) -> bytes:
    """The body of a JOIN frame."""
    head = _JOIN.pack(
        join.theta_ns,
        join.delta_ns,
        join.gamma_ns,
        join.slot,
        join.avg,
        join.burst,
        join.burst_bytes,
        join.step,
        join.receiver_incarnation,
        join.slot_changes,
        len(join.segments),
    )
    segments = b"".join(_SEGMENT.pack(s.first_slot, s.start_ns, s.theta_ns) for s in join.segments)
    return head + segments + encode_setting_requests(join.setting_requests)


def decode_join(body: bytes) -> Join | None:
    """The JOIN, or None if it is malformed."""
    if len(body) < _JOIN.size:
        return None
    theta, delta, gamma, slot, avg, burst, burst_bytes, step, known, changes, count = _JOIN.unpack_from(body)
    if step > JoinStep.FENCED or burst < 1 or not 0 < avg < 1e12 or slot >= 2**63:
        return None
    behind = _JOIN.size + count * _SEGMENT.size
    if count > SEGMENTS_MAX or len(body) < behind or (changes > 0 and not count):
        return None
    segments = tuple(Segment(*fields) for fields in _SEGMENT.iter_unpack(body[_JOIN.size : behind]))
    demands = decode_setting_requests(body[behind:])
    if not _segments_ascend(segments) or demands is None:
        return None
    return Join(theta, delta, gamma, slot, avg, burst, burst_bytes, JoinStep(step), known, changes, segments, demands)


def _segments_ascend(segments: tuple[Segment, ...]) -> bool:
    """Whether segments begin one after the other, in clocks and in numbers."""
    for before, segment in pairwise((Segment(-1, -1, SLOT_MIN_NS), *segments)):
        if segment.theta_ns < SLOT_MIN_NS or max(segment.first_slot, segment.start_ns, segment.theta_ns) >= 2**62:
            return False
        if segment.first_slot <= before.first_slot or segment.start_ns <= before.start_ns:
            return False
    return True


def encode_slot_request(theta_ns: int) -> bytes:
    """The body of a mark with a wish: the length that slots are to have."""
    return _SLOT_REQUEST.pack(theta_ns)


def decode_slot_request(body: bytes | memoryview) -> int | None:
    """The length wished for, or None."""
    if len(body) != _SLOT_REQUEST.size:
        return None
    theta_ns: int = _SLOT_REQUEST.unpack(body)[0]
    return theta_ns if SLOT_MIN_NS <= theta_ns <= SLOT_MAX_NS else None


def encode_mark_requests(slot_request: bytes | None, setting_requests: bytes) -> bytes:
    """The body of a mark that carries a wish for another slot length, demands for other settings, or both."""
    return (slot_request or bytes(_SLOT_REQUEST.size)) + setting_requests


def decode_mark_requests(body: bytes | memoryview) -> tuple[int | None, tuple[SettingRequest, ...]] | None:
    """The length wished for and the demands that a mark carries; None if malformed."""
    head, rest = bytes(body[: _SLOT_REQUEST.size]), bytes(body[_SLOT_REQUEST.size :])
    wish, demands = decode_slot_request(head), decode_setting_requests(rest)
    if demands is None or (wish is None and (any(head) or len(head) != _SLOT_REQUEST.size or not rest)):
        return None
    return wish, demands


def encode_probe(sent_ns: int) -> bytes:
    """The body of a PROBE: the prober's clock."""
    return _PROBE.pack(sent_ns)


def decode_probe(body: bytes) -> int | None:
    """The prober's clock, or None."""
    if len(body) != _PROBE.size:
        return None
    value: int = _PROBE.unpack(body)[0]
    return value if value < 2**63 else None


def encode_echo(probe_sent_ns: int, received_ns: int, sent_ns: int) -> bytes:
    """The body of an ECHO: the prober's clock, and ours at arrival and at departure."""
    return _ECHO.pack(probe_sent_ns, received_ns, sent_ns)


def decode_echo(body: bytes) -> tuple[int, int, int] | None:
    """The three clock readings of an ECHO, or None."""
    if len(body) != _ECHO.size:
        return None
    probe, received, sent = _ECHO.unpack(body)
    if max(probe, received, sent) >= 2**63:
        return None
    return probe, received, sent


def encode_new_rate(serial: int, rate: int) -> bytes:
    """The body of a NEW_RATE: the number of the request, and the rate that its receivers are to reserve."""
    return _NEW_RATE.pack(serial, rate)


def decode_new_rate(body: bytes) -> tuple[int, int] | None:
    """The number of the request and the rate in messages per second, or None."""
    if len(body) != _NEW_RATE.size:
        return None
    serial, rate = _NEW_RATE.unpack(body)
    return (serial, rate) if rate else None


def encode_reserved(serial: int, granted: bool) -> bytes:
    """The body of a RESERVED: the number of the request, and whether there was room for it."""
    return _RESERVED.pack(serial, granted)


def decode_reserved(body: bytes) -> tuple[int, bool] | None:
    """The number of the request and the answer, or None."""
    if len(body) != _RESERVED.size:
        return None
    serial, granted = _RESERVED.unpack(body)
    return (serial, bool(granted)) if granted <= 1 else None
