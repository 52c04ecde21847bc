"""Control messages.

HELLO exchanges rates, PLAN the options of two members, JOIN announces a member, PROBE and ECHO measure clocks,
HEARTBEAT feeds the failure detector, NEW_RATE and RESERVED let receivers reserve bandwidth. An end-of-slot mark can
carry a request for another slot length and setting requests; a setting request of the measurement service includes the
SLA verdict behind it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from math import isfinite
from typing import get_args

from unisono.model.events import GRADES, NoticeKind, SlaCleared, SlaVerdict, SlaViolation, ViolationKind
from unisono.model.policy import MESSAGE_MAX, RHO_MAX, SHARES_MAX, Gaps, Settings
from unisono.model.sla import METRICS, Shape, value_text
from unisono.model.timing import SEGMENTS_MAX, SLOT_MAX_NS, SLOT_MIN_NS, Segment
from unisono.wire.codec import (
    SEQUENCE_LIMIT,
    Bytes,
    Items,
    Spec,
    boolean,
    choice,
    count,
    real,
    register,
    u8,
    u16,
    u32,
    u63,
    u64,
    word,
)
from unisono.wire.frame import Kind


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Heartbeat number `serial` of the sender's incarnation, which sends one every `every_ns`."""

    serial: int
    every_ns: int


# -- setting requests ----------------------------------------------------------------------------------------

SETTING_REQUEST_CONTENT_MAX_BYTES = 160
"""The largest size in bytes of requested settings together with the SLA verdict that led to them."""
_SETTINGS = struct.Struct("!BBQQHHQ")
_COPIES, _FEC, _THETA = 1, 2, 4


@dataclass(frozen=True, slots=True, order=True)
class SettingRequest:
    """A setting request: the settings that a member needs, and the slot in which it first requested them.

    Members repeat the request unchanged.
    """

    origin_slot: int
    member: int
    content: bytes


_SETTING_REQUEST = Spec(
    SettingRequest,
    u63("origin_slot", most=2**62 - 1),
    u16("member"),
    count("content", "B", least=1, most=SETTING_REQUEST_CONTENT_MAX_BYTES),
    Bytes("content"),
)
SETTING_REQUEST_MAX_BYTES = _SETTING_REQUEST.size + SETTING_REQUEST_CONTENT_MAX_BYTES
"""The largest size in bytes of an encoded setting request."""


def encode_settings(settings: Settings) -> bytes:
    """Encode settings: first which of them are requested, then the value of each, 0 if it is not requested."""
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
"""The name of a service level agreement is truncated to this many bytes in a setting request."""


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


# -- forming a group, joining, clocks and reservations -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SeenPeer:
    """Part of a HELLO: a member whose HELLO the sender has received, and whether it also came by IP multicast."""

    member: int
    incarnation: int
    by_multicast: bool


@dataclass(frozen=True, slots=True)
class Hello:
    """The message HELLO, which members repeat until the group runs: the sender's options, rate, first slot and peers.

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
    fec_redundant: int = 0
    fec_shares: int = 0
    loss_burst: int = 0
    slot_changes: int = 0
    order_key: int = 0

    @property
    def fec(self) -> tuple[int, int] | None:
        """The sender's setting (a, b) of forward error correction, a of b shares redundant; None without it."""
        return (self.fec_redundant, self.fec_shares) if self.fec_shares else None


@dataclass(frozen=True, slots=True)
class Plan:
    """The message PLAN: the options with which the sender has joined.

    `known_incarnation` is the incarnation of the receiver whose PLAN the sender has; 0 if it has none. `wants_answer`
    says that the sender has no PLAN of the receiver that shows the sender's incarnation. `order_key` is a key of the
    order's name. A deadline of 0 means none, an FEC of 0 shares none, and η = 0 no reliable multicast.
    `slots_changed` says that the sender knows of a slot-length change, so that the declared length counts no more.
    """

    known_incarnation: int
    wants_answer: bool
    order_key: int
    order_is_given: bool
    gaps: Gaps
    deadline_ns: int
    theta_ns: int
    slot_is_given: bool
    slots_changed: bool
    delta_ns: int
    gamma_ns: int
    grades: str
    failures: bool
    loss_burst: int
    fec_redundant: int
    fec_shares: int
    rho: int
    eta_ns: int
    omega_ns: int
    max_message: int
    members_key: int


class JoinStep(IntEnum):
    """What the sender of a JOIN message asks of the receiver."""

    JOIN = 0
    """The sender starts or restarts: "Add me to your members from this slot on" (paper 000 §6.3)."""
    MERGE = 1
    """The sender receives frames of a member that is not in its view: "Add me from this slot on, and answer".

    This merges the parts of a divided group (paper 000 §6.6).
    """
    ANSWER = 2
    """The answer to MERGE: "Add me to your members from this slot on; do not answer"."""
    FENCED = 3
    """The sender refuses the receiver, because their clocks differ by more than Γ, until it has a new incarnation."""


@dataclass(frozen=True, slots=True)
class Join:
    """The message JOIN: a member announces the slot from which on it sends.

    `receiver_incarnation` is the receiver's incarnation as far as the sender knows. `theta_ns` is the declared slot
    length. `segments` is the sender's slot schedule after `slot_changes` changes. `setting_requests` are the setting
    requests that the sender knows.
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


def _segments_ascend(segments: tuple[Segment, ...]) -> bool:
    """Whether each segment of a slot schedule begins after the previous one, by clock and by slot number."""
    return all(
        before.first_slot < segment.first_slot and before.start_ns < segment.start_ns
        for before, segment in pairwise(segments)
    )


@dataclass(frozen=True, slots=True)
class MarkRequests:
    """The requests that an end-of-slot mark carries: another slot length (0 for none), and setting requests."""

    theta_ns: int
    setting_requests: tuple[SettingRequest, ...] = ()


@dataclass(frozen=True, slots=True)
class Probe:
    """The message PROBE: asks a peer for its clock. `sent_ns` is the sender's clock."""

    sent_ns: int


@dataclass(frozen=True, slots=True)
class Echo:
    """The message ECHO, which answers a PROBE.

    It has the clock reading in the probe, and the readings of its sender's clock when the probe arrived and when this
    answer left.
    """

    probe_sent_ns: int
    received_ns: int
    sent_ns: int


@dataclass(frozen=True, slots=True)
class NewRate:
    """The message NEW_RATE: asks the receiver to reserve bandwidth for `rate` messages per second from the sender.

    `serial` numbers these requests.
    """

    serial: int
    rate: int


@dataclass(frozen=True, slots=True)
class Reserved:
    """The message RESERVED: the answer to the NEW_RATE request with this `serial`."""

    serial: int
    granted: bool


_SEEN_PEER = Spec(SeenPeer, u16("member"), u32("incarnation"), boolean("by_multicast"))
_SEGMENT = Spec(
    Segment,
    u63("first_slot", most=2**62 - 1),
    u63("start_ns", most=2**62 - 1),
    u63("theta_ns", least=SLOT_MIN_NS, most=2**62 - 1),
)
_RATE = (real("avg", above=0, below=1e12), u32("burst", least=1))
_HELLO = Spec(
    Hello,
    u64("theta_ns"),
    u64("delta_ns"),
    u64("gamma_ns"),
    u32("members_key"),
    *_RATE,
    u63("burst_bytes", least=1, most=2**40 - 1),
    u64("first_slot"),
    boolean("complete"),
    count("seen_peers"),
    boolean("failures"),
    u16("fec_redundant"),
    u16("fec_shares"),
    u32("loss_burst"),
    u32("slot_changes"),
    u32("order_key"),
    Items("seen_peers", _SEEN_PEER),
    check=lambda hello: hello.first_slot * hello.theta_ns < SEQUENCE_LIMIT,
)
_PLAN = Spec(
    Plan,
    u32("known_incarnation"),
    boolean("wants_answer"),
    u32("order_key"),
    boolean("order_is_given"),
    word("gaps", get_args(Gaps)),
    u63("deadline_ns"),
    u63("theta_ns", least=1),
    boolean("slot_is_given"),
    boolean("slots_changed"),
    u63("delta_ns"),
    u63("gamma_ns"),
    word("grades", GRADES),
    boolean("failures"),
    u32("loss_burst"),
    u16("fec_redundant"),
    u16("fec_shares", most=SHARES_MAX),
    u8("rho", most=RHO_MAX),
    u63("eta_ns"),
    u63("omega_ns"),
    u32("max_message", least=1, most=MESSAGE_MAX),
    u32("members_key"),
    check=lambda plan: (
        (plan.fec_redundant < plan.fec_shares or plan.fec_redundant == plan.fec_shares == 0)
        and (plan.eta_ns > 0 or plan.rho == plan.omega_ns == 0)
    ),
)
_JOIN = Spec(
    Join,
    u64("theta_ns"),
    u64("delta_ns"),
    u64("gamma_ns"),
    u63("slot"),
    *_RATE,
    u64("burst_bytes"),
    choice("step", JoinStep),
    u32("receiver_incarnation"),
    u32("slot_changes"),
    count("segments", "B", most=SEGMENTS_MAX),
    Items("segments", _SEGMENT),
    Items("setting_requests", _SETTING_REQUEST),
    check=lambda join: _segments_ascend(join.segments) and (not join.slot_changes or len(join.segments) > 0),
)
MARK_REQUESTS = Spec(
    MarkRequests,
    u63("theta_ns", most=SLOT_MAX_NS),
    Items("setting_requests", _SETTING_REQUEST),
    check=lambda mark: mark.theta_ns >= SLOT_MIN_NS or (not mark.theta_ns and len(mark.setting_requests) > 0),
)
"""The body of an end-of-slot mark with requests. It is part of a DATA frame, so it has no kind of its own."""
register(
    {
        Kind.HEARTBEAT: Spec(Heartbeat, u63("serial"), u63("every_ns", least=1)),
        Kind.HELLO: _HELLO,
        Kind.JOIN: _JOIN,
        Kind.PLAN: _PLAN,
        Kind.PROBE: Spec(Probe, u63("sent_ns")),
        Kind.ECHO: Spec(Echo, u63("probe_sent_ns"), u63("received_ns"), u63("sent_ns")),
        Kind.NEW_RATE: Spec(NewRate, u32("serial"), u32("rate", least=1)),
        Kind.RESERVED: Spec(Reserved, u32("serial"), boolean("granted")),
    }
)
