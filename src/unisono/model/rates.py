"""The rate that a sender declares, and the bandwidth that it reserves for it (paper 000 §2.1, §5)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from unisono.errors import InvalidOption
from unisono.model.durations import NS_PER_S


@dataclass(frozen=True, slots=True)
class Rate:
    """AppAvgRate in messages per second and AppMaxBurst in messages per slot.

    `burst_bytes` limits the payload of one slot. The default is burst times the largest message.
    """

    avg: float
    burst: int
    burst_bytes: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.avg < 1e12:
            raise InvalidOption("rate.avg", f"expected a positive number of messages per second, got {self.avg}")
        if not 1 <= self.burst < 2**32:
            raise InvalidOption("rate.burst", f"expected at least one message per slot, got {self.burst}")
        if self.burst_bytes is not None and not 1 <= self.burst_bytes < 2**40:
            raise InvalidOption("rate.burst_bytes", f"expected a positive number, got {self.burst_bytes}")

    def bytes_per_slot(self, max_message: int) -> int:
        """The payload bytes that one slot may carry."""
        return self.burst * max_message if self.burst_bytes is None else self.burst_bytes

    def averaging_slots(self, theta_ns: int) -> int:
        """The paper's k: the number of slots over which the average must hold.

        They cover one second, or longer if one full burst would exceed the average of a second.
        """
        per_slot = Fraction(self.avg) * theta_ns / NS_PER_S
        return max(1, -(-NS_PER_S // theta_ns), -(-self.burst // per_slot))

    def allowance(self, theta_ns: int) -> int:
        """The number of messages that any `averaging_slots` consecutive slots may carry."""
        return int(Fraction(self.avg) * theta_ns * self.averaging_slots(theta_ns) / NS_PER_S)


@dataclass(frozen=True, slots=True)
class BandwidthReservation:
    """A request for bandwidth: NetAvgRate and NetMaxBurst, in bytes on the wire."""

    avg_bytes_per_s: int
    burst_bytes_per_slot: int
    theta_ns: int

    @property
    def peak_bytes_per_s(self) -> int:
        """The rate at which a full burst is sent within its slot."""
        return -(-self.burst_bytes_per_slot * NS_PER_S // self.theta_ns)


class Reserver(Protocol):
    """Grants or refuses a sender's bandwidth reservation. A granted one replaces the previous one."""

    def reserve(self, reservation: BandwidthReservation) -> None:
        """Grant the reservation, or raise ReservationRefused; then the old reservation stays in force."""


class UnlimitedNetwork:
    """A network that grants everything, as the papers assume."""

    def reserve(self, reservation: BandwidthReservation) -> None:
        """Grant it."""
