"""Control messages.

HELLO exchanges rates, JOIN announces a member, PROBE and ECHO measure clocks, HEARTBEAT feeds the failure detector,
NEW_RATE and RESERVED are the reservation by receivers. An end-of-slot mark can carry a request for another slot length
and setting requests; a setting request of the measurement service includes the SLA verdict behind it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from math import isfinite

from unisono.model.events import NoticeKind, SlaCleared, SlaVerdict, SlaViolation, ViolationKind
from unisono.model.policy import RHO_MAX, SHARES_MAX, Settings
from unisono.model.sla import METRICS, Shape, value_text
from unisono.model.timing import SEGMENTS_MAX, SLOT_MAX_NS, SLOT_MIN_NS, Segment

_HEARTBEAT = struct.Struct("!QQ")


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Heartbeat number `serial` of the sender's incarnation, which sends one every `every_ns`."""

    serial: int
    every_ns: int


def encode_heartbeat(heartbeat: Heartbeat) -> bytes:
    """Encode the body of a HEARTBEAT."""
    return _HEARTBEAT.pack(heartbeat.serial, heartbeat.every_ns)


def decode_heartbeat(body: bytes) -> Heartbeat | None:
    """Decode a heartbeat; None if it is malformed."""
    if len(body) != _HEARTBEAT.size:
        return None
    serial, every = _HEARTBEAT.unpack(body)
    return Heartbeat(serial, every) if max(serial, every) < 2**63 and every else None


_SETTING_REQUEST = struct.Struct("!QHB")
SETTING_REQUEST_CONTENT_MAX_BYTES = 160
"""The largest size of the requested settings together with the verdict behind them."""
SETTING_REQUEST_MAX_BYTES = _SETTING_REQUEST.size + SETTING_REQUEST_CONTENT_MAX_BYTES
"""The largest size of an encoded request."""
_SETTINGS = struct.Struct("!BBQQHHQ")
_COPIES, _FEC, _THETA = 1, 2, 4


@dataclass(frozen=True, slots=True, order=True)
class SettingRequest:
    """The settings that a member needs, and the slot in which it first requested them. Repetitions are identical."""

    origin_slot: int
    member: int
    content: bytes


def encode_setting_requests(requests: Iterable[SettingRequest]) -> bytes:
    """Encode the requests one after the other."""
    return b"".join(_SETTING_REQUEST.pack(r.origin_slot, r.member, len(r.content)) + r.content for r in requests)


def decode_setting_requests(body: bytes) -> tuple[SettingRequest, ...] | None:
    """Decode requests; None if they are malformed."""
    found, at = [], 0
    while at < len(body):
        if at + _SETTING_REQUEST.size > len(body):
            return None
        origin, member, size = _SETTING_REQUEST.unpack_from(body, at)
        at += _SETTING_REQUEST.size
        content = body[at : at + size]
        if not 0 < size <= SETTING_REQUEST_CONTENT_MAX_BYTES or len(content) != size or origin >= 2**62:
            return None
        found.append(SettingRequest(origin, member, content))
        at += size
    return tuple(found)


def encode_settings(settings: Settings) -> bytes:
    """Encode which settings are requested, then the value of each setting, 0 if it is not requested."""
    requested = (
        (_COPIES if settings.redundancy is not None else 0)
        | (_FEC if settings.fec is not None else 0)
        | (_THETA if settings.theta_ns is not None else 0)
    )
    values = (*(settings.redundancy or (0, 0, 0)), *(settings.fec or (0, 0)), settings.theta_ns or 0)
    return _SETTINGS.pack(requested, *values)


def decode_settings(body: bytes) -> Settings | None:
    """Decode settings; None if they are malformed or out of range."""
    if len(body) != _SETTINGS.size:
        return None
    requested, rho, eta_ns, omega_ns, a, b, theta_ns = _SETTINGS.unpack(body)
    if requested & ~(_COPIES | _FEC | _THETA):
        return None
    if requested & _COPIES and not (rho <= RHO_MAX and 1_000 <= eta_ns < 2**62 and omega_ns < 2**62):
        return None
    if requested & _FEC and not 0 < a < b <= SHARES_MAX:
        return None
    if requested & _THETA and not SLOT_MIN_NS <= theta_ns <= SLOT_MAX_NS:
        return None
    return Settings(
        (rho, eta_ns, omega_ns) if requested & _COPIES else None,
        (a, b) if requested & _FEC else None,
        theta_ns if requested & _THETA else None,
    )


# -- with a verdict of the measurement service -----------------------------------------------------------------

_VERDICT = struct.Struct("!B8sHHQQdddB")
NAME_MAX_BYTES = 60
"""The name of an agreement is truncated to this many bytes."""


def encode_settings_with_verdict(settings: Settings, event: SlaVerdict | None = None) -> bytes:
    """Encode settings and, if given, the verdict on the whole group that led to them."""
    body = encode_settings(settings)
    if event is None:
        return body
    violated = isinstance(event, SlaViolation)
    metric, bound, measured, probability, link = "", 0.0, 0.0, 0.0, 0
    if isinstance(event, SlaViolation):
        metric, bound, measured = event.metric, event.bound, event.measured
        probability, link = event.probability, event.link
    name = event.sla.encode()[:NAME_MAX_BYTES].decode(errors="ignore").encode()
    return (
        body
        + _VERDICT.pack(
            *(violated, bytes.fromhex(event.id), event.member or 0, link),
            *(event.window_start_ns, event.window_ns, bound, measured, probability, len(name)),
        )
        + name
        + metric.encode()
    )


def decode_settings_with_verdict(body: bytes) -> tuple[Settings, SlaVerdict | None] | None:
    """Decode settings and the optional verdict; None if they are malformed."""
    settings, rest = decode_settings(body[: _SETTINGS.size]), body[_SETTINGS.size :]
    if settings is None or not rest:
        return None if settings is None else (settings, None)
    if len(rest) < _VERDICT.size:
        return None
    violated, number, member, link, start_ns, window_ns, bound, measured, probability, length = _VERDICT.unpack_from(
        rest
    )
    try:
        name = rest[_VERDICT.size : _VERDICT.size + length].decode()
        metric = rest[_VERDICT.size + length :].decode()
    except UnicodeDecodeError:
        return None
    if violated > 1 or not name or not name.isprintable() or metric not in (METRICS if violated else ("",)):
        return None
    if not all(map(isfinite, (bound, measured, probability))) or max(start_ns, window_ns) >= 2**63:
        return None
    about_member, verdict_id = member or None, number.hex()
    if not violated:
        text = f"{name!r} is kept again in the whole group"
        return settings, SlaCleared(
            *(NoticeKind.SYSTEM_SLA_CLEARED, text, about_member),
            sla=name,
            window_start_ns=start_ns,
            window_ns=window_ns,
            id=verdict_id,
        )
    value = f"{value_text(metric, measured)}" if METRICS[metric].shape is Shape.SHARE else f"{measured:.4%} within"
    at = f" at member {member}" if member else ""
    text = f"{name!r} is violated in the group: {metric}{at} {value}, agreed was {value_text(metric, bound)}"
    event = SlaViolation(
        *(ViolationKind.SYSTEM_SLA, text, about_member),
        sla=name,
        metric=metric,
        bound=bound,
        measured=measured,
        probability=probability,
        link=link,
        window_start_ns=start_ns,
        window_ns=window_ns,
        id=verdict_id,
    )
    return settings, event


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
