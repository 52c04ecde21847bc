"""Control messages: the rate exchange's HELLO, and the PROBE and ECHO that measure clocks."""

from __future__ import annotations

import struct
from dataclasses import dataclass

_HELLO = struct.Struct("!QQQIdIQQBH")
_HEARD = struct.Struct("!HIB")
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
