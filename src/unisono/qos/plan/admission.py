"""Admission control: a link has a declared capacity and grants reservations until the capacity is used up."""

from __future__ import annotations

import re
from fractions import Fraction

from unisono.errors import InvalidOption, ReservationRefused
from unisono.model.units import BandwidthReservation, check_is_text

_CAPACITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kMG]?)(bit|B)/s\s*")
_SCALE = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}


def capacity_bytes_per_s(text: str) -> int:
    """Convert `"100Mbit/s"` or `"12MB/s"` to bytes per second. A number without a unit raises TypeError."""
    check_is_text(text, "capacity", "a rate such as '100Mbit/s'", unit="B/s")
    match = _CAPACITY.fullmatch(text)
    if match is None:
        raise InvalidOption("capacity", f"expected a rate such as '100Mbit/s' or '12MB/s', not {text!r}")
    amount = int(Fraction(match[1]) * _SCALE[match[2]] / (8 if match[3] == "bit" else 1))
    if amount == 0:
        raise InvalidOption("capacity", f"expected at least one byte per second, not {text!r}")
    return amount


class Link:
    """The outgoing link of this machine, shared by the groups that use it."""

    def __init__(self, capacity: str = "1Gbit/s") -> None:
        self.capacity_bytes_per_s = capacity_bytes_per_s(capacity)
        self._granted: dict[int, int] = {}
        self._share_count = 0

    @property
    def free_bytes_per_s(self) -> int:
        """Capacity that no reservation uses."""
        return self.capacity_bytes_per_s - sum(self._granted.values())

    def share(self, copies: int) -> LinkShare:
        """A share for one group that sends each datagram `copies` times: once per peer, or once by IP multicast."""
        self._share_count += 1
        return LinkShare(self, self._share_count, copies)

    def grant(self, share: int, asked_bytes_per_s: int) -> None:
        """Set a share to `asked_bytes_per_s`. Raises ReservationRefused, and changes nothing, if too little is free."""
        free = self.free_bytes_per_s + self._granted.get(share, 0)
        if asked_bytes_per_s > free:
            raise ReservationRefused(asked_bytes_per_s, free, self.capacity_bytes_per_s)
        self._granted[share] = asked_bytes_per_s

    def release(self, share: int) -> None:
        """Free the capacity of one share."""
        self._granted.pop(share, None)


class LinkShare:
    """The capacity that one group reserves on a link; implements the `Reserver` protocol."""

    def __init__(self, link: Link, number: int, copies: int) -> None:
        self._link = link
        self._number = number
        self._copies = copies
        self._needed_bytes_per_s = 0

    def reserve(self, reservation: BandwidthReservation) -> None:
        """Reserve the rate at which bursts leave soon enough for Δ to hold."""
        self._link.grant(self._number, reservation.needed_bytes_per_s * self._copies)
        self._needed_bytes_per_s = reservation.needed_bytes_per_s

    def set_copies(self, copies: int) -> None:
        """Change the copies per datagram. Raises ReservationRefused, and changes nothing, if too little is free."""
        self._link.grant(self._number, self._needed_bytes_per_s * copies)
        self._copies = copies

    def release(self) -> None:
        """Free all that the group has reserved."""
        self._link.release(self._number)
