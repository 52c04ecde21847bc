"""What a sender declares, and what it reserves toward the network (paper 000 §2.1, §5)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from unisono.errors import InvalidOption
from unisono.model.durations import NS_PER_S


@dataclass(frozen=True, slots=True)
class Rate:
    """AppAvgRate in messages per second and AppMaxBurst in messages per slot.

    `burst_bytes` bounds the payload of one slot; left out, it is burst times the largest message.
    """

    avg: float
    burst: int
    burst_bytes: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.avg < 1e12:
            raise InvalidOption("rate.avg", f"a positive number of messages per second is needed, not {self.avg}")
        if not 1 <= self.burst < 2**32:
            raise InvalidOption("rate.burst", f"at least one message per slot is needed, not {self.burst}")
        if self.burst_bytes is not None and not 1 <= self.burst_bytes < 2**40:
            raise InvalidOption("rate.burst_bytes", f"a positive number is needed, not {self.burst_bytes}")

    def bytes_per_slot(self, max_message: int) -> int:
        """The payload that one slot may carry."""
        return self.burst * max_message if self.burst_bytes is None else self.burst_bytes

    def averaging_slots(self, theta_ns: int) -> int:
        """The paper's k: over how many slots the average is kept.

        A second, or longer where that is needed for one full burst to be within the average.
        """
        per_slot = Fraction(self.avg) * theta_ns / NS_PER_S
        return max(1, -(-NS_PER_S // theta_ns), -(-self.burst // per_slot))

    def allowance(self, theta_ns: int) -> int:
        """How many messages any `averaging_slots` consecutive slots may carry."""
        return int(Fraction(self.avg) * theta_ns * self.averaging_slots(theta_ns) / NS_PER_S)


@dataclass(frozen=True, slots=True)
class BandwidthReservation:
    """What `reserve` asks of the network: NetAvgRate and NetMaxBurst, in bytes on the wire."""

    avg_bytes_per_s: int
    burst_bytes_per_slot: int
    theta_ns: int

    @property
    def peak_bytes_per_s(self) -> int:
        """The rate at which one slot's burst leaves within its slot."""
        return -(-self.burst_bytes_per_slot * NS_PER_S // self.theta_ns)


class Reserver(Protocol):
    """The network's side of `reserve`: takes a reservation in place of the last, or refuses."""

    def reserve(self, reservation: BandwidthReservation) -> None:
        """Raise ReservationRefused, leaving the old reservation in force, when there is no room."""


class UnlimitedNetwork:
    """A network that grants everything, as the papers assume."""

    def reserve(self, reservation: BandwidthReservation) -> None:
        """Grant it."""
