"""Units: durations, sending rates and reserved bandwidth, and the numbers that stand for groups and members."""

from __future__ import annotations

import hashlib
import re
import zlib
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Protocol

from unisono.errors import InvalidOption

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
_UNITS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": NS_PER_MS, "s": NS_PER_S, "min": 60 * NS_PER_S, "h": 3600 * NS_PER_S}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ns|us|µs|ms|s|min|h)\s*")


def duration_ns(text: str, field: str = "duration") -> int:
    """Parse `"5ms"`, `"200us"` or `"2s"` into nanoseconds. A number without a unit raises TypeError."""
    check_is_text(text, field, "a duration with a unit, such as '5ms'", unit="ms")
    match = _DURATION.fullmatch(text)
    if match is None:
        raise InvalidOption(field, f"expected a duration with a unit, such as '5ms', '200us' or '2s', got {text!r}")
    return int(Fraction(match[1]) * _UNITS[match[2]])


def check_is_text(value: object, field: str, expected: str, unit: str) -> None:
    """Raise TypeError unless `value` is text; for a bare number the error says how to write it with a unit."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise TypeError(f"{field}={value} has no unit; write '{value}{unit}'")
    if not isinstance(value, str):
        raise TypeError(f"{field}: expected {expected}, got {value!r}")


def duration_text(ns: int) -> str:
    """A duration as a short text with a unit, rounded to six digits."""
    for unit, size in (("s", NS_PER_S), ("ms", NS_PER_MS), ("us", 1_000)):
        if abs(ns) >= size:
            return f"{ns / size:.6g}{unit}"
    return f"{ns}ns"


def exact_duration_text(ns: int) -> str:
    """The exact duration in the largest unit that gives a whole number; `duration_ns` reads it back."""
    for unit, size in (("s", NS_PER_S), ("ms", NS_PER_MS), ("us", 1_000)):
        if ns >= size and ns % size == 0:
            return f"{ns // size}{unit}"
    return f"{ns}ns"


def ns_to_ms(ns: int) -> float:
    """Convert nanoseconds to milliseconds, the unit of JSON output."""
    return ns / NS_PER_MS


@dataclass(frozen=True, slots=True)
class Rate:
    """The rate that a sender declares: messages per second on average, and messages in one slot at most.

    `avg` and `burst` are AppAvgRate and AppMaxBurst of paper 000. `burst_bytes` limits the payload of one slot. The
    default is `burst` times the largest message.
    """

    avg: float
    burst: int
    burst_bytes: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.avg < 1e12:
            raise InvalidOption(
                "rate.avg", f"expected a positive number of messages per second, below 1e12, got {self.avg}"
            )
        if not 1 <= self.burst < 2**32:
            raise InvalidOption("rate.burst", f"expected 1 to {2**32 - 1:,} messages per slot, got {self.burst}")
        if self.burst_bytes is not None and not 1 <= self.burst_bytes < 2**40:
            raise InvalidOption(
                "rate.burst_bytes", f"expected 1 to {2**40 - 1:,} bytes per slot, got {self.burst_bytes}"
            )

    def average_excess(self, theta_ns: int) -> str:
        """Why slots of this length cannot carry the average; empty if they can, because avg × Θ ≤ burst.

        The comparison ignores rounding: an average may be the burst divided by Θ.
        """
        if self.avg * theta_ns <= self.burst * NS_PER_S * (1 + 1e-9):
            return ""
        carried_per_s = self.burst * NS_PER_S / theta_ns
        slots = f"burst = {self.burst:,} messages per slot of {duration_text(theta_ns)}"
        return f"{slots} is {carried_per_s:,.10g} messages/s, less than avg = {self.avg:,.10g} messages/s"

    def reduced_to(self, theta_ns: int) -> Rate:
        """This rate with the average that slots of this length can carry, if that is less."""
        return replace(self, avg=min(self.avg, self.burst * NS_PER_S / theta_ns))

    def bytes_per_slot(self, max_message: int) -> int:
        """The payload bytes that one slot may carry."""
        return self.burst * max_message if self.burst_bytes is None else self.burst_bytes

    def averaging_slots(self, theta_ns: int) -> int:
        """The number of consecutive slots over which the average must hold (k in paper 000).

        These slots cover one second, or more if one full burst is more than the average allows in a second.
        """
        per_slot = Fraction(self.avg) * theta_ns / NS_PER_S
        return max(1, -(-NS_PER_S // theta_ns), -(-self.burst // per_slot))

    def allowance(self, theta_ns: int) -> int:
        """The number of messages that any `averaging_slots` consecutive slots may carry."""
        return int(Fraction(self.avg) * theta_ns * self.averaging_slots(theta_ns) / NS_PER_S)


@dataclass(frozen=True, slots=True)
class BandwidthReservation:
    """A request for bandwidth: average and burst in bytes on the wire (NetAvgRate and NetMaxBurst of paper 000).

    The declared average limits how many consecutive slots may be full: `run_bytes` is the content of the longest run of
    full slots, of which the last begins `run_ns` after the first; 0 if any number of slots may be full. Bytes may wait
    `queue_ns` in the sender's queue before they leave; that time is a part of Δ.
    """

    avg_bytes_per_s: int
    burst_bytes_per_slot: int
    theta_ns: int
    run_bytes: int = 0
    run_ns: int = 0
    queue_ns: int = 0

    @property
    def needed_bytes_per_s(self) -> int:
        """The bytes per second at which no byte waits longer than `queue_ns`, or one slot if that is longer."""
        if not self.run_bytes:
            return -(-self.burst_bytes_per_slot * NS_PER_S // self.theta_ns)
        queue_ns = max(self.queue_ns, self.theta_ns)
        return max(
            self.avg_bytes_per_s,
            -(-self.burst_bytes_per_slot * NS_PER_S // queue_ns),
            -(-self.run_bytes * NS_PER_S // (self.run_ns + queue_ns)),
        )

    def scaled(self, factor: int) -> BandwidthReservation:
        """The reservation for `factor` times as many bytes."""
        return replace(
            self,
            avg_bytes_per_s=self.avg_bytes_per_s * factor,
            burst_bytes_per_slot=self.burst_bytes_per_slot * factor,
            run_bytes=self.run_bytes * factor,
        )

    def with_extra(self, bytes_per_s: int, bytes_per_slot: int) -> BandwidthReservation:
        """This reservation with more bytes: on average per second, and at most in one slot."""
        run_bytes = bytes_per_s * self.run_ns // NS_PER_S + bytes_per_slot
        return replace(
            self,
            avg_bytes_per_s=self.avg_bytes_per_s + bytes_per_s,
            burst_bytes_per_slot=self.burst_bytes_per_slot + bytes_per_slot,
            run_bytes=self.run_bytes + run_bytes if self.run_bytes else 0,
        )


class Reserver(Protocol):
    """Grants or refuses a sender's bandwidth reservations. A granted reservation replaces the previous one."""

    def reserve(self, reservation: BandwidthReservation) -> None:
        """Grant the reservation, or raise ReservationRefused; then the old reservation stays in force."""


class UnlimitedNetwork:
    """A network that grants everything, as the papers assume."""

    def reserve(self, reservation: BandwidthReservation) -> None:
        """Grant every reservation."""


MEMBER_MAX = 0xFFFF
EVERYONE = 0
"""The destination of a frame that goes to all members; member numbers start at 1."""


def group_key(name: str) -> int:
    """The 32-bit key that frames carry for the group of this name."""
    if not name or len(name) > 200:
        raise InvalidOption("group", f"expected a name of 1 to 200 characters, got {name!r}")
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest())


def members_key(members: tuple[int, ...]) -> int:
    """A 32-bit key of a member list: members compare it to find out that their lists differ."""
    return zlib.crc32(",".join(map(str, members)).encode())


def checked_member(member: int) -> int:
    """`member`, if it is a valid member number; else raise InvalidOption."""
    if not 1 <= member <= MEMBER_MAX:
        raise InvalidOption("member", f"expected a member number from 1 to {MEMBER_MAX}, got {member}")
    return member
