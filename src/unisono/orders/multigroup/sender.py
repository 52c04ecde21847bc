"""What one member multicasts to groups: time stamps, parcels, and those that have no place in the order yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from unisono.errors import MessageTooLarge
from unisono.model.policy import Policy
from unisono.model.rates import Rate, Reserver
from unisono.net.pacer import Pacer
from unisono.orders.leader.base import count_fitting_messages
from unisono.orders.multigroup.messages import CAST_BYTES, ENTRY_BYTES, STREAM_BYTES, Cast, stamp_of
from unisono.orders.multigroup.topology_messages import TopologyControl, encode_control
from unisono.orders.packing import Packer, reservation
from unisono.wire.bundles import BUNDLE_OVERHEAD_BYTES, Bundle, encode_bundle
from unisono.wire.frame import FIRST_FRAGMENT, FRAGMENT, HEADER_BYTES, MORE_FRAGMENTS

BUNDLES_MAX = 1 << 10
"""How many of a member's parcels may wait for their place."""


@dataclass(slots=True)
class UndecidedCast:
    """A message that has no place yet; `told` once the groups that it concerns have been told of it."""

    serial: int
    cast: Cast
    announced: bool = False


class MulticastSender:
    """QGFTO-Mcast's first half."""

    def __init__(self, policy: Policy, reserver: Reserver, value_max_bytes: int) -> None:
        self._policy, self._reserver = policy, reserver
        reserver.reserve(reservation(policy, policy.rate))
        self._pacer = Pacer(policy.rate, policy.timing.theta_ns, policy.max_message)
        self._pending_rate: Rate | None = None
        self._paced_slot = 0
        room = (
            min(value_max_bytes, policy.max_frame - HEADER_BYTES - STREAM_BYTES - ENTRY_BYTES)
            - BUNDLE_OVERHEAD_BYTES
            - CAST_BYTES
        )
        self._packer = Packer(room + HEADER_BYTES)
        self._member, self._incarnation = policy.member, policy.incarnation
        self._next_serial = self._next_sequence = 0
        self._last_timestamp = 0
        self.undecided: deque[UndecidedCast] = deque()
        self.forwarded = 0
        """How many of these have been sent to the leader."""

    def change_rate(self, rate: Rate) -> None:
        """In force from the next slot on."""
        self._policy.check_rate(rate)
        self._reserver.reserve(reservation(self._policy, rate))
        self._pending_rate = rate

    def submit(self, now: int, messages: Sequence[bytes], mask: int) -> int:
        """Messages for these groups: as many as the rate has room for, unless too much waits for its place already."""
        sizes = list(map(len, messages))
        largest = max(sizes, default=0)
        if largest > self._policy.max_message:
            raise MessageTooLarge(largest, self._policy.max_message)
        slot = self._policy.timing.slot_of(now)
        if slot > self._paced_slot:
            self._paced_slot = slot
            self._pacer.open_slot(slot, self._pending_rate)
            self._pending_rate = None
        if not sizes or len(self.undecided) >= BUNDLES_MAX:
            return 0
        count = count_fitting_messages(self._pacer, sizes)
        if count:
            self._pacer.record_sent(count, sum(sizes[:count]))
            self._pack(now, messages[:count], sizes[:count], mask)
        return count

    def _pack(self, now: int, messages: Sequence[bytes], sizes: list[int], mask: int) -> None:
        """As few parcels as they fit into, each with its time stamp."""
        loads = self._packer.add(messages, sizes)
        rest = self._packer.flush()
        for load in loads if rest is None else [*loads, rest]:
            flags, body = 0, b""
            if load.packed_messages is not None:
                body = b"".join(load.packed_messages.parts())
            elif load.fragment is not None:
                body = bytes(load.fragment)
                flags = (
                    FRAGMENT
                    | (FIRST_FRAGMENT if load.is_first_fragment else 0)
                    | (MORE_FRAGMENTS if load.has_more_fragments else 0)
                )
            # A clock that stands still or goes back would let a later message overtake (erratum 003-15).
            self._last_timestamp = ts = max(now, self._last_timestamp + 1)
            parcel = Bundle(self._member, self._incarnation, self._next_serial, self._next_sequence, flags, body)
            self.undecided.append(UndecidedCast(self._next_serial, Cast(ts, mask, encode_bundle(parcel))))
            self._next_serial += 1
            self._next_sequence += load.messages_completed

    def send_control(self, now: int, control: TopologyControl) -> int:
        """A word to the own group, behind all messages so far; its serial."""
        self._last_timestamp = ts = max(now, self._last_timestamp + 1)
        parcel = Bundle(
            self._member, self._incarnation, self._next_serial, self._next_sequence, 0, encode_control(control)
        )
        self.undecided.append(UndecidedCast(self._next_serial, Cast(ts, 0, encode_bundle(parcel))))
        self._next_serial += 1
        return self._next_serial - 1

    def discard_decided(self, next_serial: int) -> bool:
        """So many have their place; whether any more than before."""
        moved = False
        while self.undecided and self.undecided[0].serial < next_serial:
            self.undecided.popleft()
            self.forwarded = max(0, self.forwarded - 1)
            moved = True
        return moved

    def expected_stamp(self, undecided: UndecidedCast) -> int:
        """The stamp that a message will have unless a later one is decided before it."""
        return stamp_of(undecided.cast.ts, self._member)
