"""What a group makes of the values that it agrees on (erratum 003-12): stamps, and a stream for every other group.

A function of the decided sequence alone, so every member has the same. The messages of a decided batch are sorted by
(time stamp, sender, number) and stamped with the larger of their time stamp and what follows the last stamp; so a stamp
never comes too late for a barrier that was announced. Decided messages are numbered per destination group. Whom the
group sends to is decided in the same sequence (see `relation`).
"""

from __future__ import annotations

from collections import deque

from unisono.orders.multigroup.messages import (
    Cast,
    Item,
    Null,
    StampedEntry,
    checked_bundle,
    decode_value,
    stamp_after,
    stamp_of,
)
from unisono.orders.multigroup.stored_state import GroupState, StreamState
from unisono.orders.multigroup.topology_messages import TopologyMessage, TopologyStep, control_in_bundle
from unisono.orders.multigroup.topology_state import SENDING_STATES, LinkState, TopologyState

RETAINED_ENTRIES = 1 << 14
"""So many entries are kept for members of another group that have not said that they have them."""


class OutgoingStream:
    """What this group has decided for one other group."""

    def __init__(self) -> None:
        self.head = 0
        """How many entries there have been."""
        self.entries: deque[StampedEntry] = deque(maxlen=RETAINED_ENTRIES)
        """The last ones, up to number `head`."""

    @property
    def first(self) -> int:
        """The number of the first entry that is still here."""
        return self.head - len(self.entries) + 1

    def append(self, entry: StampedEntry) -> None:
        """The next entry."""
        self.entries.append(entry)
        self.head += 1

    def entry(self, number: int) -> StampedEntry:
        """The entry of a number that is still here."""
        return self.entries[number - self.first]

    def drop(self, upto: int) -> None:
        """Everybody has these."""
        while self.entries and self.first <= upto:
            self.entries.popleft()


class GroupLog:
    """One member's reading of its group's decisions.

    `me` is the group's number, `receivers` those it may send to and `senders` those it gets from, at first; `mates` are
    its members.
    """

    def __init__(
        self,
        own_group: int,
        receivers: tuple[int, ...],
        senders: tuple[int, ...] = (),
        group_members: tuple[int, ...] = (),
    ) -> None:
        self.own_group = own_group
        self.topology = TopologyState(own_group, receivers, senders, group_members)
        self.last_stamp = 0
        """The last stamp: everything that is decided later has a larger one."""
        self.null_count = 0
        self.streams = {receiver: OutgoingStream() for receiver in receivers if receiver != own_group}
        """By receiver; also those that have ended, until everybody has all of them."""
        self._open_streams = dict(self.streams)
        self._reachable_mask = self._open_mask()
        self.refused: list[tuple[int, int, int, int]] = []
        """Messages to groups that this one sends to no longer: sender, life, first number, and those groups."""
        self._next_serials: dict[int, tuple[int, int]] = {}

    def next_serial(self, sender: int, incarnation: int) -> int:
        """How many parcels of a sender's life have counted; all that there will be, if another life has begun."""
        life, serial = self._next_serials.get(sender, (-1, 0))
        if life < incarnation:
            return 0
        return serial if life == incarnation else 1 << 63

    def apply(self, value: bytes) -> list[StampedEntry] | None:
        """Decide(k, value): what of it is for the own group; None if it is not a value of a group."""
        items = decode_value(value)
        if items is None:
            return None
        own: list[StampedEntry] = []
        for item in sorted(items, key=_sort_key):
            if isinstance(item, Cast):
                self._stamp_and_route(item, own)
            elif isinstance(item, Null):
                # Nulls of one number are equivalent: the first counts (footnote 6).
                if item.number == self.null_count:
                    self.null_count += 1
                    self.last_stamp = max(self.last_stamp, item.stamp)
            elif isinstance(item, TopologyMessage):
                self._apply_topology_message(item)
            elif item.receiver in self.streams:
                self.streams[item.receiver].drop(item.upto)
                self._update_streams()
        return own

    def _apply_topology_message(self, message: TopologyMessage) -> None:
        if message.step is TopologyStep.ADMITTED and self.topology.would_change(message):
            # What the receiver has delivered has stamps up to this: all that is decided for it has larger ones.
            self.last_stamp = max(self.last_stamp, message.stamp)
        self.topology.apply(message, self.last_stamp)
        self._update_streams()

    def _update_streams(self) -> None:
        """Streams begin and end as the relation has it."""
        for receiver, tied in self.topology.outgoing.items():
            stream = self.streams.get(receiver)
            if tied.state in SENDING_STATES:
                if stream is None:
                    stream = self.streams[receiver] = OutgoingStream()
                    stream.head = tied.head
                self._open_streams[receiver] = stream
                continue
            self._open_streams.pop(receiver, None)
            if stream is not None:
                tied.head = stream.head
                if tied.state is LinkState.UNLINKED and not stream.entries:
                    del self.streams[receiver]
                    self.topology.change_count += 1
        self._reachable_mask = self._open_mask()

    def _open_mask(self) -> int:
        """The groups that messages of this one can go to."""
        return 1 << self.own_group | sum(1 << receiver for receiver in self._open_streams)

    def _stamp_and_route(self, cast: Cast, own: list[StampedEntry]) -> None:
        parcel = checked_bundle(cast.bundle)
        sender, life = parcel.sender, parcel.incarnation
        if parcel.serial != self.next_serial(sender, life):
            return
        self._next_serials[sender] = (life, parcel.serial + 1)
        self.last_stamp = stamp_after(self.last_stamp, cast.ts, sender)
        if not cast.destination_mask:
            control = control_in_bundle(parcel)
            if control is not None:
                self.topology.apply_control(sender, control)
                self._update_streams()
            return
        if cast.destination_mask & ~self._reachable_mask:
            # It goes to all its destinations or to none.
            self.refused.append((sender, life, parcel.first_sequence, cast.destination_mask & ~self._reachable_mask))
            return
        entry = StampedEntry(self.last_stamp, cast.destination_mask, cast.bundle)
        for receiver, stream in self._open_streams.items():
            if cast.destination_mask >> receiver & 1:
                stream.append(entry)
        if cast.destination_mask >> self.own_group & 1:
            own.append(entry)

    def save(self, state: GroupState) -> None:
        """Put what stands for all that was decided into a state."""
        state.last_stamp, state.null_count, state.next_serials = (
            self.last_stamp,
            self.null_count,
            dict(self._next_serials),
        )
        state.streams = {
            receiver: StreamState(stream.head, stream.first, tuple(stream.entries))
            for receiver, stream in self.streams.items()
        }
        state.topology = self.topology.save()

    def restore(self, state: GroupState) -> None:
        """Go on from what stands for a prefix of the decisions."""
        self.last_stamp, self.null_count, self._next_serials = (
            state.last_stamp,
            state.null_count,
            dict(state.next_serials),
        )
        self.topology.restore(state.topology)
        self.streams, self._open_streams = {}, {}
        for receiver, saved in state.streams.items():
            stream = self.streams[receiver] = OutgoingStream()
            stream.entries.extend(saved.entries)
            stream.head = saved.head
        self._update_streams()


def _sort_key(item: Item) -> tuple[int, int]:
    """Messages by time stamp, sender and number; a null behind what it closes off."""
    if isinstance(item, Cast):
        parcel = checked_bundle(item.bundle)
        return stamp_of(item.ts, parcel.sender), parcel.serial
    return (item.stamp, 1 << 63) if isinstance(item, Null) else (1 << 90, 0)
