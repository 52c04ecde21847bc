"""Control messages.

HELLO exchanges rates, JOIN announces a member, PROBE and ECHO measure clocks, NEW_RATE and RESERVED are the reservation
by receivers. An end-of-slot mark can carry a request for another slot length and setting requests.
"""

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
    """A member from which the sender of the HELLO has received one, and whether also by IP multicast."""

    member: int
    incarnation: int
    by_multicast: bool


@dataclass(frozen=True, slots=True)
class Hello:
    """Sent until the group runs: the sender's options, its rate, its first slot, and the peers that it has seen.

    `first_slot` is 0 until the sender has received a HELLO from every member; `complete` means that it knows the first
    slot of every member. `theta_ns` is the declared slot length, `slot_changes` the number of changes since.
    `order_key` identifies the order; 0 if it is not given.
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
    """Encode the body of a HELLO frame."""
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
    return head + b"".join(_SEEN_PEER.pack(p.member, p.incarnation, p.by_multicast) for p in hello.seen_peers)


def decode_hello(body: bytes) -> Hello | None:
    """Decode a HELLO; None if it is malformed."""
    if len(body) < _HELLO.size:
        return None
    fields = _HELLO.unpack_from(body)
    theta, delta, gamma, key, avg, burst, burst_bytes, first_slot, complete, count = fields[:10]
    failures, a, b, loss_burst, changes, order_key = fields[10:]
    # NaN fails every comparison, so this refuses it too.
    if len(body) != _HELLO.size + count * _SEEN_PEER.size or complete > 1 or burst < 1 or not 0 < avg < 1e12:
        return None
    if not 1 <= burst_bytes < 2**40 or first_slot * theta >= 2**63 or failures > 1:
        return None
    seen = tuple(SeenPeer(m, i, bool(p)) for m, i, p in _SEEN_PEER.iter_unpack(body[_HELLO.size :]))
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
        seen,
        bool(failures),
        (a, b) if b else None,
        loss_burst,
        changes,
        order_key,
    )


class JoinStep(IntEnum):
    """The request of a JOIN."""

    JOIN = 0
    """Add me at this slot (paper 000 §6.3)."""
    MERGE = 1
    """I receive your frames, but you are not in my member list: add me at this slot, and answer (§6.6)."""
    ANSWER = 2
    """Add me at this slot; do not answer."""
    FENCED = 3
    """Our clocks differ by more than Γ: I exclude you until you return as a new incarnation."""


@dataclass(frozen=True, slots=True)
class Join:
    """A member announces the slot from which on it sends. `receiver_incarnation` is the one that the sender knows.

    `theta_ns` is the declared slot length; `segments` are the sender's slots after `slot_changes` changes;
    `setting_requests` are those that the sender knows.
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
    """Encode the body of a JOIN frame."""
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
    """Decode a JOIN; None if it is malformed."""
    if len(body) < _JOIN.size:
        return None
    theta, delta, gamma, slot, avg, burst, burst_bytes, step, incarnation, changes, count = _JOIN.unpack_from(body)
    if step > JoinStep.FENCED or burst < 1 or not 0 < avg < 1e12 or slot >= 2**63:
        return None
    segments_end = _JOIN.size + count * _SEGMENT.size
    if count > SEGMENTS_MAX or len(body) < segments_end or (changes > 0 and not count):
        return None
    segments = tuple(Segment(*fields) for fields in _SEGMENT.iter_unpack(body[_JOIN.size : segments_end]))
    requests = decode_setting_requests(body[segments_end:])
    if not _segments_ascend(segments) or requests is None:
        return None
    return Join(
        *(theta, delta, gamma, slot, avg, burst, burst_bytes, JoinStep(step), incarnation, changes, segments, requests)
    )


def _segments_ascend(segments: tuple[Segment, ...]) -> bool:
    """Whether each segment begins after the previous one, by clock and by slot number."""
    for before, segment in pairwise((Segment(-1, -1, SLOT_MIN_NS), *segments)):
        if segment.theta_ns < SLOT_MIN_NS or max(segment.first_slot, segment.start_ns, segment.theta_ns) >= 2**62:
            return False
        if segment.first_slot <= before.first_slot or segment.start_ns <= before.start_ns:
            return False
    return True


def encode_slot_request(theta_ns: int) -> bytes:
    """Encode a request for another slot length, the body of an end-of-slot mark."""
    return _SLOT_REQUEST.pack(theta_ns)


def decode_slot_request(body: bytes | memoryview) -> int | None:
    """The requested slot length; None if malformed or out of range."""
    if len(body) != _SLOT_REQUEST.size:
        return None
    theta_ns: int = _SLOT_REQUEST.unpack(body)[0]
    return theta_ns if SLOT_MIN_NS <= theta_ns <= SLOT_MAX_NS else None


def encode_mark_requests(slot_request: bytes | None, setting_requests: bytes) -> bytes:
    """Encode the body of an end-of-slot mark with a slot request, setting requests, or both."""
    return (slot_request or bytes(_SLOT_REQUEST.size)) + setting_requests


def decode_mark_requests(body: bytes | memoryview) -> tuple[int | None, tuple[SettingRequest, ...]] | None:
    """The slot request and the setting requests of an end-of-slot mark; None if malformed."""
    head, rest = bytes(body[: _SLOT_REQUEST.size]), bytes(body[_SLOT_REQUEST.size :])
    slot_request, setting_requests = decode_slot_request(head), decode_setting_requests(rest)
    if setting_requests is None or (
        slot_request is None and (any(head) or len(head) != _SLOT_REQUEST.size or not rest)
    ):
        return None
    return slot_request, setting_requests


def encode_probe(sent_ns: int) -> bytes:
    """Encode the body of a PROBE: the prober's clock."""
    return _PROBE.pack(sent_ns)


def decode_probe(body: bytes) -> int | None:
    """The prober's clock; None if malformed."""
    if len(body) != _PROBE.size:
        return None
    value: int = _PROBE.unpack(body)[0]
    return value if value < 2**63 else None


def encode_echo(probe_sent_ns: int, received_ns: int, sent_ns: int) -> bytes:
    """Encode the body of an ECHO: the prober's clock, and ours at arrival and at departure."""
    return _ECHO.pack(probe_sent_ns, received_ns, sent_ns)


def decode_echo(body: bytes) -> tuple[int, int, int] | None:
    """The three clock readings of an ECHO; None if malformed."""
    if len(body) != _ECHO.size:
        return None
    probe, received, sent = _ECHO.unpack(body)
    if max(probe, received, sent) >= 2**63:
        return None
    return probe, received, sent


def encode_new_rate(serial: int, rate: int) -> bytes:
    """Encode the body of a NEW_RATE: the number of the request, and the rate that receivers must reserve."""
    return _NEW_RATE.pack(serial, rate)


def decode_new_rate(body: bytes) -> tuple[int, int] | None:
    """The number of the request and the rate in messages per second; None if malformed."""
    if len(body) != _NEW_RATE.size:
        return None
    serial, rate = _NEW_RATE.unpack(body)
    return (serial, rate) if rate else None


def encode_reserved(serial: int, granted: bool) -> bytes:
    """Encode the body of a RESERVED: the number of the request, and whether it was granted."""
    return _RESERVED.pack(serial, granted)


def decode_reserved(body: bytes) -> tuple[int, bool] | None:
    """The number of the request and the answer; None if malformed."""
    if len(body) != _RESERVED.size:
        return None
    serial, granted = _RESERVED.unpack(body)
    return (serial, bool(granted)) if granted <= 1 else None
