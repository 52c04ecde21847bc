"""What one member multicasts to groups: time stamps, parcels, and those that have no place in the order yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from unisono.errors import MessageTooLarge
from unisono.model.policy import Policy
from unisono.model.rates import Rate, Reserver
from unisono.net.pacer import Pacer
from unisono.orders.base.packing import Packer, reservation
from unisono.orders.leader.base import fitting
from unisono.orders.multigroup.messages import CAST_BYTES, ENTRY_BYTES, STREAM_BYTES, Cast, stamp_of
from unisono.orders.multigroup.topology_messages import Control, control_body
from unisono.wire.bundles import PARCEL_BYTES, Parcel, encode_parcel
from unisono.wire.frame import FIRST, HEADER_BYTES, MORE, PIECE

PARCELS_MAX = 1 << 10
"""How many of a member's parcels may wait for their place."""


@dataclass(slots=True)
class Unsettled:
    """A message that has no place yet; `told` once the groups that it concerns have been told of it."""

    serial: int
    cast: Cast
    told: bool = False


class Sending:
    """QGFTO-Mcast's first half."""

    def __init__(self, policy: Policy, reserver: Reserver, value_room: int) -> None:
        self._policy, self._reserver = policy, reserver
        reserver.reserve(reservation(policy, policy.rate))
        self._pacer = Pacer(policy.rate, policy.timing.theta_ns, policy.max_message)
        self._new_rate: Rate | None = None
        self._paced_slot = 0
        room = min(value_room, policy.max_frame - HEADER_BYTES - STREAM_BYTES - ENTRY_BYTES) - PARCEL_BYTES - CAST_BYTES
        self._packer = Packer(room + HEADER_BYTES)
        self._member, self._life = policy.member, policy.incarnation
        self._serial = self._sequence = 0
        self._last_ts = 0
        self.waiting: deque[Unsettled] = deque()
        self.offered = 0
        """How many of these have been sent to the leader."""

    def new_rate(self, rate: Rate) -> None:
        """In force from the next slot on."""
        self._policy.check_rate(rate)
        self._reserver.reserve(reservation(self._policy, rate))
        self._new_rate = rate

    def submit(self, now: int, messages: Sequence[bytes], mask: int) -> int:
        """Messages for these groups: as many as the rate has room for, unless too much waits for its place already."""
        sizes = list(map(len, messages))
        largest = max(sizes, default=0)
        if largest > self._policy.max_message:
            raise MessageTooLarge(largest, self._policy.max_message)
        slot = self._policy.timing.slot_of(now)
        if slot > self._paced_slot:
            self._paced_slot = slot
            self._pacer.open_slot(slot, self._new_rate)
            self._new_rate = None
        if not sizes or len(self.waiting) >= PARCELS_MAX:
            return 0
        count = fitting(self._pacer, sizes)
        if count:
            self._pacer.spend(count, sum(sizes[:count]))
            self._pack(now, messages[:count], sizes[:count], mask)
        return count

    def _pack(self, now: int, messages: Sequence[bytes], sizes: list[int], mask: int) -> None:
        """As few parcels as they fit into, each with its time stamp."""
        loads = self._packer.add(messages, sizes)
        rest = self._packer.rest()
        for load in loads if rest is None else [*loads, rest]:
            flags, body = 0, b""
            if load.run is not None:
                body = b"".join(load.run.parts())
            elif load.piece is not None:
                body = bytes(load.piece)
                flags = PIECE | (FIRST if load.first else 0) | (MORE if load.more else 0)
            # A clock that stands still or goes back would let a later message overtake (erratum 003-15).
            self._last_ts = ts = max(now, self._last_ts + 1)
            parcel = Parcel(self._member, self._life, self._serial, self._sequence, flags, body)
            self.waiting.append(Unsettled(self._serial, Cast(ts, mask, encode_parcel(parcel))))
            self._serial += 1
            self._sequence += load.messages

    def control(self, now: int, control: Control) -> int:
        """A word to the own group, behind all messages so far; its serial."""
        self._last_ts = ts = max(now, self._last_ts + 1)
        parcel = Parcel(self._member, self._life, self._serial, self._sequence, 0, control_body(control))
        self.waiting.append(Unsettled(self._serial, Cast(ts, 0, encode_parcel(parcel))))
        self._serial += 1
        return self._serial - 1

    def settle(self, settled: int) -> bool:
        """So many have their place; whether any more than before."""
        moved = False
        while self.waiting and self.waiting[0].serial < settled:
            self.waiting.popleft()
            self.offered = max(0, self.offered - 1)
            moved = True
        return moved

    def stamp(self, unsettled: Unsettled) -> int:
        """The stamp that a message will have unless a later one is decided before it."""
        return stamp_of(unsettled.cast.ts, self._member)
