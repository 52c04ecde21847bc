"""Admission control: a link has a declared capacity, and reservations are granted while it lasts."""

from __future__ import annotations

import re
from fractions import Fraction

from unisono.errors import InvalidOption, ReservationRefused
from unisono.model.rates import BandwidthReservation

_CAPACITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kMG]?)(bit|B)/s\s*")
_SCALE = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}


def capacity_bytes_per_s(text: str | int) -> int:
    """`"100Mbit/s"` or `"12MB/s"` as bytes per second; an integer is bytes per second already."""
    if isinstance(text, int):
        if text <= 0:
            raise InvalidOption("capacity", f"a positive number of bytes per second is needed, not {text}")
        return text
    match = _CAPACITY.fullmatch(text)
    if match is None:
        raise InvalidOption("capacity", f"a rate such as '100Mbit/s' or '12MB/s' is needed, not {text!r}")
    amount = int(Fraction(match[1]) * _SCALE[match[2]] / (8 if match[3] == "bit" else 1))
    if amount == 0:
        raise InvalidOption("capacity", f"{text!r} is less than one byte per second")
    return amount


class Link:
    """The way out of this machine, shared by all groups that are given it."""

    def __init__(self, capacity: str | int = "1Gbit/s") -> None:
        self.capacity_bytes_per_s = capacity_bytes_per_s(capacity)
        self._granted: dict[int, int] = {}
        self._share_count = 0

    @property
    def free_bytes_per_s(self) -> int:
        """What no reservation holds."""
        return self.capacity_bytes_per_s - sum(self._granted.values())

    def share(self, copies: int) -> LinkShare:
        """A share for one group, whose datagrams leave in that many copies (one per peer, or one by multicast)."""
        self._share_count += 1
        return LinkShare(self, self._share_count, copies)

    def grant(self, share: int, asked_bytes_per_s: int) -> None:
        """Put what one share holds at `asked_bytes_per_s`, or refuse and leave it as it was."""
        free = self.free_bytes_per_s + self._granted.get(share, 0)
        if asked_bytes_per_s > free:
            raise ReservationRefused(asked_bytes_per_s, free, self.capacity_bytes_per_s)
        self._granted[share] = asked_bytes_per_s

    def release(self, share: int) -> None:
        """Give back what one share holds."""
        self._granted.pop(share, None)


class LinkShare:
    """One group's hold on a link: a Reserver."""

    def __init__(self, link: Link, number: int, copies: int) -> None:
        self._link = link
        self._number = number
        self._copies = copies
        self._peak_bytes_per_s = 0

    def reserve(self, reservation: BandwidthReservation) -> None:
        """Admit by the peak: a slot's burst must be able to leave within its slot, or Δ would not hold."""
        self._link.grant(self._number, reservation.peak_bytes_per_s * self._copies)
        self._peak_bytes_per_s = reservation.peak_bytes_per_s

    def set_copies(self, copies: int) -> None:
        """The group's datagrams leave in that many copies after all; ReservationRefused changes nothing."""
        self._link.grant(self._number, self._peak_bytes_per_s * copies)
        self._copies = copies

    def release(self) -> None:
        """Give it all back."""
        self._link.release(self._number)
