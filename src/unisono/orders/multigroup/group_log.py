"""What a group makes of the values that it agrees on (erratum 003-12): stamps, and a stream for every other group.

A function of the decided sequence alone, so every member has the same. The messages of a decided batch are sorted by
(time stamp, sender, number) and stamped with the larger of their time stamp and what follows the last stamp; so a stamp
never comes too late for a barrier that was announced. Decided messages are numbered per destination group. Whom the
group sends to is decided in the same sequence (see `relation`).
"""

from __future__ import annotations

from collections import deque

from unisono.orders.multigroup.messages import Cast, Entry, Item, Null, decode_value, parcel_of, stamp_after, stamp_of
from unisono.orders.multigroup.stored_state import GroupState, StreamState
from unisono.orders.multigroup.topology_messages import Bond, What, control_in
from unisono.orders.multigroup.topology_state import FLOWING, Relation, Tie

RETAIN = 1 << 14
"""So many entries are kept for members of another group that have not said that they have them."""


class OutStream:
    """What this group has decided for one other group."""

    def __init__(self) -> None:
        self.head = 0
        """How many entries there have been."""
        self.entries: deque[Entry] = deque(maxlen=RETAIN)
        """The last ones, up to number `head`."""

    @property
    def first(self) -> int:
        """The number of the first entry that is still here."""
        return self.head - len(self.entries) + 1

    def append(self, entry: Entry) -> None:
        """The next entry."""
        self.entries.append(entry)
        self.head += 1

    def entry(self, number: int) -> Entry:
        """The entry of a number that is still here."""
        return self.entries[number - self.first]

    def forget(self, upto: int) -> None:
        """Everybody has these."""
        while self.entries and self.first <= upto:
            self.entries.popleft()


class GroupLog:
    """One member's reading of its group's decisions.

    `me` is the group's number, `receivers` those it may send to and `senders` those it gets from, at first; `mates` are
    its members.
    """

    def __init__(
        self, me: int, receivers: tuple[int, ...], senders: tuple[int, ...] = (), mates: tuple[int, ...] = ()
    ) -> None:
        self.me = me
        self.relation = Relation(me, receivers, senders, mates)
        self.last = 0
        """The last stamp: everything that is decided later has a larger one."""
        self.nulls = 0
        self.streams = {receiver: OutStream() for receiver in receivers if receiver != me}
        """By receiver; also those that have ended, until everybody has all of them."""
        self._flowing = dict(self.streams)
        self._reached = self._mask()
        self.refused: list[tuple[int, int, int, int]] = []
        """Messages to groups that this one sends to no longer: sender, life, first number, and those groups."""
        self._senders: dict[int, tuple[int, int]] = {}

    def settled(self, sender: int, incarnation: int) -> int:
        """How many parcels of a sender's life have counted; all that there will be, if another life has begun."""
        life, serial = self._senders.get(sender, (-1, 0))
        if life < incarnation:
            return 0
        return serial if life == incarnation else 1 << 63

    def take(self, value: bytes) -> list[Entry] | None:
        """Decide(k, value): what of it is for the own group; None if it is not a value of a group."""
        items = decode_value(value)
        if items is None:
            return None
        own: list[Entry] = []
        for item in sorted(items, key=_place):
            if isinstance(item, Cast):
                self._count(item, own)
            elif isinstance(item, Null):
                # Nulls of one number are equivalent: the first counts (footnote 6).
                if item.number == self.nulls:
                    self.nulls += 1
                    self.last = max(self.last, item.stamp)
            elif isinstance(item, Bond):
                self._bind(item)
            elif item.receiver in self.streams:
                self.streams[item.receiver].forget(item.upto)
                self._flow()
        return own

    def _bind(self, bond: Bond) -> None:
        if bond.what is What.ADMITTED and self.relation.news(bond):
            # What the receiver has delivered has stamps up to this: all that is decided for it has larger ones.
            self.last = max(self.last, bond.stamp)
        self.relation.take(bond, self.last)
        self._flow()

    def _flow(self) -> None:
        """Streams begin and end as the relation has it."""
        for receiver, tied in self.relation.out.items():
            stream = self.streams.get(receiver)
            if tied.tie in FLOWING:
                if stream is None:
                    stream = self.streams[receiver] = OutStream()
                    stream.head = tied.head
                self._flowing[receiver] = stream
                continue
            self._flowing.pop(receiver, None)
            if stream is not None:
                tied.head = stream.head
                if tied.tie is Tie.APART and not stream.entries:
                    del self.streams[receiver]
                    self.relation.steps += 1
        self._reached = self._mask()

    def _mask(self) -> int:
        """The groups that messages of this one can go to."""
        return 1 << self.me | sum(1 << receiver for receiver in self._flowing)

    def _count(self, cast: Cast, own: list[Entry]) -> None:
        parcel = parcel_of(cast.parcel)
        sender, life = parcel.sender, parcel.incarnation
        if parcel.serial != self.settled(sender, life):
            return
        self._senders[sender] = (life, parcel.serial + 1)
        self.last = stamp_after(self.last, cast.ts, sender)
        if not cast.mask:
            control = control_in(parcel)
            if control is not None:
                self.relation.control(sender, control)
                self._flow()
            return
        if cast.mask & ~self._reached:
            # It goes to all its destinations or to none.
            self.refused.append((sender, life, parcel.first_sequence, cast.mask & ~self._reached))
            return
        entry = Entry(self.last, cast.mask, cast.parcel)
        for receiver, stream in self._flowing.items():
            if cast.mask >> receiver & 1:
                stream.append(entry)
        if cast.mask >> self.me & 1:
            own.append(entry)

    def save(self, state: GroupState) -> None:
        """Put what stands for all that was decided into a state."""
        state.last, state.nulls, state.senders = self.last, self.nulls, dict(self._senders)
        state.streams = {
            receiver: StreamState(stream.head, stream.first, tuple(stream.entries))
            for receiver, stream in self.streams.items()
        }
        state.relation = self.relation.save()

    def restore(self, state: GroupState) -> None:
        """Go on from what stands for a prefix of the decisions."""
        self.last, self.nulls, self._senders = state.last, state.nulls, dict(state.senders)
        self.relation.restore(state.relation)
        self.streams, self._flowing = {}, {}
        for receiver, saved in state.streams.items():
            stream = self.streams[receiver] = OutStream()
            stream.entries.extend(saved.entries)
            stream.head = saved.head
        self._flow()


def _place(item: Item) -> tuple[int, int]:
    """Messages by time stamp, sender and number; a null behind what it closes off."""
    if isinstance(item, Cast):
        parcel = parcel_of(item.parcel)
        return stamp_of(item.ts, parcel.sender), parcel.serial
    return (item.stamp, 1 << 63) if isinstance(item, Null) else (1 << 90, 0)
