"""Control messages: the rate exchange's HELLO, the PROBE and ECHO that measure clocks, and the
NEW_RATE and RESERVED by which receivers reserve."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

_HELLO = struct.Struct("!QQQIdIQQBH")
_HEARD = struct.Struct("!HIB")
_JOIN = struct.Struct("!QQQQdIQBI")
_NEW_RATE = struct.Struct("!II")
_RESERVED = struct.Struct("!IB")
_PROBE = struct.Struct("!Q")
_ECHO = struct.Struct("!QQQ")


@dataclass(frozen=True, slots=True)
class Heard:
    """A member that the HELLO's sender has heard from, and whether by IP multicast too."""

    member: int
    incarnation: int
    by_multicast: bool


@dataclass(frozen=True, slots=True)
class Hello:
    """What a member says of itself until the group runs: its policies, its rate, its first slot, whom it hears.

    `first_slot` is 0 until the sender has heard everyone; `complete` says that it knows everyone's first slot.
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
    heard: tuple[Heard, ...]


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
        len(hello.heard),
    )
    return head + b"".join(_HEARD.pack(h.member, h.incarnation, h.by_multicast) for h in hello.heard)


def decode_hello(body: bytes) -> Hello | None:
    """The HELLO, or None if it is malformed."""
    if len(body) < _HELLO.size:
        return None
    theta, delta, gamma, key, avg, burst, burst_bytes, first_slot, complete, count = _HELLO.unpack_from(body)
    # NaN fails every comparison, so it is refused here too.
    if len(body) != _HELLO.size + count * _HEARD.size or complete > 1 or burst < 1 or not 0 < avg < 1e12:
        return None
    if not 1 <= burst_bytes < 2**40 or first_slot * theta >= 2**63:
        return None
    heard = tuple(Heard(m, i, bool(p)) for m, i, p in _HEARD.iter_unpack(body[_HELLO.size :]))
    return Hello(theta, delta, gamma, key, avg, burst, burst_bytes, first_slot, bool(complete), heard)


class JoinStep(IntEnum):
    """What a JOIN asks for."""

    JOIN = 0
    """Add me at this slot (paper 000 §6.3)."""
    MERGE = 1
    """I hear you, but you are not in my list: add me at this slot, and answer (§6.6)."""
    ANSWER = 2
    """Add me at this slot; no answer is wanted."""


@dataclass(frozen=True, slots=True)
class Join:
    """A member names the slot from which on it is to be expected. `known` is the receiver's incarnation known here."""

    theta_ns: int
    delta_ns: int
    gamma_ns: int
    slot: int
    avg: float
    burst: int
    burst_bytes: int
    step: JoinStep
    known: int


def encode_join(join: Join) -> bytes:
    """The body of a JOIN frame."""
    return _JOIN.pack(
        join.theta_ns,
        join.delta_ns,
        join.gamma_ns,
        join.slot,
        join.avg,
        join.burst,
        join.burst_bytes,
        join.step,
        join.known,
    )


def decode_join(body: bytes) -> Join | None:
    """The JOIN, or None if it is malformed."""
    if len(body) != _JOIN.size:
        return None
    theta, delta, gamma, slot, avg, burst, burst_bytes, step, known = _JOIN.unpack(body)
    if step > JoinStep.ANSWER or burst < 1 or not 0 < avg < 1e12 or slot >= 2**63:
        return None
    return Join(theta, delta, gamma, slot, avg, burst, burst_bytes, JoinStep(step), known)


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
