"""The log of one group and the proposals of its leader (paper 003, Algorithm 1 lines 14-27, erratum 003-12).

`GroupLog` reads the values that the group decides. It is a function of the decided sequence alone, so every member
computes the same. It sorts the messages of a decided value by timestamp, sender and serial number. The stamp of each
message is its timestamp, or the next number after the last stamp if that is larger. So every stamp is above all
barriers that were announced before. For each destination group it numbers the decided messages: these are the entries
of the stream to that group. Topology changes are decided in the same sequence.

`PendingProposals` is the paper's propPending: messages of the own group that are not decided yet. `GroupProposer` makes
the leader's next proposal from it, and adds a null where a barrier is needed:

- on demand (Algorithm 3 lines 9-14), up to the largest stamp that any group has requested;
- periodically (Algorithm 2), when the group has stamped nothing for `barrierThreshold`. The paper's
  `lastBarrierCreated` is here the last stamp, which all members share (erratum 003-18). It starts with the first clock
  reading (erratum 003-11).

Nulls are numbered, and only the first decided null of each number counts. So two leaders may propose the same one.
"""

from __future__ import annotations

from collections import deque

from unisono.model.topology import Multigroup
from unisono.orders.packing import BUNDLE_BYTES
from unisono.orders.quasi_genuine.barriers import BarrierRequests
from unisono.orders.quasi_genuine.messages import (
    ITEM_BYTES,
    Cast,
    GroupState,
    LogItem,
    NextBundle,
    Null,
    StampedEntry,
    StreamState,
    TopologyMessage,
    TopologyStep,
    control_in_bundle,
    decode_value,
    stamp_after,
    stamp_of,
    time_of,
)
from unisono.orders.quasi_genuine.topology_change import SENDING_STATES, LinkState, TopologyState

RETAINED_ENTRIES = 1 << 14
"""Keep this many entries for members of another group that have not acknowledged them."""
AHEAD_MAX = 1 << 8
"""Accept a sender's bundles up to this many serials ahead of its first undecided one."""
RESERVED_VALUE_BYTES = 64
"""The bytes of a log value that are kept free for a null and for `ReceivedByAll` items."""


class OutgoingStream:
    """The messages that this group has decided for one other group."""

    def __init__(self) -> None:
        self.head = 0
        """The number of entries that the stream has had so far."""
        self.entries: deque[StampedEntry] = deque(maxlen=RETAINED_ENTRIES)
        """The retained entries of the stream; the last one has the number `head`."""

    @property
    def first(self) -> int:
        """The number of the first retained entry."""
        return self.head - len(self.entries) + 1

    def append(self, entry: StampedEntry) -> None:
        """Add the next entry to the stream."""
        self.entries.append(entry)
        self.head += 1

    def entry(self, number: int) -> StampedEntry:
        """The retained entry with this number."""
        return self.entries[number - self.first]

    def drop(self, upto: int) -> None:
        """Drop the entries up to this number: every receiver has them."""
        while self.entries and self.first <= upto:
            self.entries.popleft()


class GroupLog:
    """The state that one member computes from the decisions of its group: stamps, streams and links.

    `receivers` and `senders` are the groups that the own group sends to and receives from at first; `group_members` are
    the members of the own group.
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
        """The last stamp that the group has used: everything that is decided later has a larger one."""
        self.null_count = 0
        self.streams = {receiver: OutgoingStream() for receiver in receivers if receiver != own_group}
        """By receiving group, the stream to it; a closed stream stays until every receiver has all of it."""
        self._open_streams = dict(self.streams)
        self._reachable_mask = self._open_mask()
        self.refused: list[tuple[int, int, int, int]] = []
        """Messages to groups that this one no longer sends to: sender, incarnation, first sequence, those groups."""
        self._next_serials: dict[int, tuple[int, int]] = {}
        """By sender, its incarnation and the serial of its next bundle."""

    def next_serial(self, sender: int, incarnation: int) -> int:
        """How many bundles of this incarnation of a sender are decided.

        It is the largest possible number if a later incarnation has started.
        """
        latest_incarnation, serial = self._next_serials.get(sender, (-1, 0))
        if latest_incarnation < incarnation:
            return 0
        return serial if latest_incarnation == incarnation else 1 << 63

    def apply(self, value: bytes) -> list[StampedEntry]:
        """Apply the next decided value.

        Returns the messages for the own group; raises Unreadable if it is malformed.
        """
        own: list[StampedEntry] = []
        for item in sorted(decode_value(value), key=_sort_key):
            if isinstance(item, Cast):
                self._stamp_and_route(item, own)
            elif isinstance(item, Null):
                # Nulls with the same number are equivalent: the first one counts (footnote 6).
                if item.number == self.null_count:
                    self.null_count += 1
                    self.last_stamp = max(self.last_stamp, item.stamp)
            elif isinstance(item, TopologyMessage):
                self._apply_topology_message(item)
            elif item.receiver in self.streams:
                self.streams[item.receiver].drop(item.upto)
                self._update_streams()
        return own

    def _stamp_and_route(self, cast: Cast, own: list[StampedEntry]) -> None:
        bundle = cast.bundle
        sender, incarnation = bundle.sender, bundle.incarnation
        if bundle.serial != self.next_serial(sender, incarnation):
            return
        self._next_serials[sender] = (incarnation, bundle.serial + 1)
        self.last_stamp = stamp_after(self.last_stamp, cast.ts, sender)
        if not cast.destination_mask:
            control = control_in_bundle(bundle)
            if control is not None:
                self.topology.apply_control(sender, control)
                self._update_streams()
            return
        unreachable = cast.destination_mask & ~self._reachable_mask
        if unreachable:
            # A message goes to all its destinations or to none.
            self.refused.append((sender, incarnation, bundle.first_sequence, unreachable))
            return
        entry = StampedEntry(self.last_stamp, cast.destination_mask, bundle)
        for receiver, stream in self._open_streams.items():
            if cast.destination_mask >> receiver & 1:
                stream.append(entry)
        if cast.destination_mask >> self.own_group & 1:
            own.append(entry)

    def _apply_topology_message(self, message: TopologyMessage) -> None:
        if message.step is TopologyStep.ADMITTED and self.topology.would_change(message):
            # The receiver has delivered messages with stamps up to this one: entries for it need larger stamps.
            self.last_stamp = max(self.last_stamp, message.stamp)
        self.topology.apply(message, self.last_stamp)
        self._update_streams()

    def _update_streams(self) -> None:
        """Start and end the streams to other groups as the agreed topology says."""
        for receiver, link in self.topology.outgoing.items():
            stream = self.streams.get(receiver)
            if link.state in SENDING_STATES:
                if stream is None:
                    stream = self.streams[receiver] = OutgoingStream()
                    stream.head = link.head
                self._open_streams[receiver] = stream
                continue
            self._open_streams.pop(receiver, None)
            if stream is not None:
                link.head = stream.head
                if link.state is LinkState.UNLINKED and not stream.entries:
                    del self.streams[receiver]
                    self.topology.change_count += 1
        self._reachable_mask = self._open_mask()

    def _open_mask(self) -> int:
        return 1 << self.own_group | sum(1 << receiver for receiver in self._open_streams)

    def save(self, state: GroupState) -> None:
        """Write the result of all decisions so far into a snapshot."""
        state.last_stamp, state.null_count = self.last_stamp, self.null_count
        state.next_serials = {sender: NextBundle(*each) for sender, each in self._next_serials.items()}
        state.streams = {
            receiver: StreamState(stream.head, stream.first, tuple(stream.entries))
            for receiver, stream in self.streams.items()
        }
        state.topology = self.topology.save()

    def restore(self, state: GroupState) -> None:
        """Continue from a snapshot of a prefix of the decisions."""
        self.last_stamp, self.null_count = state.last_stamp, state.null_count
        self._next_serials = dict(state.next_serials)
        self.topology.restore(state.topology)
        self.streams, self._open_streams = {}, {}
        for receiver, saved in state.streams.items():
            stream = self.streams[receiver] = OutgoingStream()
            stream.entries.extend(saved.entries)
            stream.head = saved.head
        self._update_streams()


def _sort_key(item: LogItem) -> tuple[int, int]:
    """Sorts messages by timestamp, sender and serial; a null behind the messages up to its stamp; other items last."""
    if isinstance(item, Cast):
        return stamp_of(item.ts, item.bundle.sender), item.bundle.serial
    return (item.stamp, 1 << 63) if isinstance(item, Null) else (1 << 90, 0)


class _SenderQueue:
    """The undecided messages of one sender of the own group."""

    __slots__ = ("casts", "incarnation", "next_to_propose")

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.next_to_propose = 0
        """The serial of the next message to propose."""
        self.casts: dict[int, Cast] = {}
        """The sender's undecided multicasts, by serial number."""


class PendingProposals:
    """Messages of the own group that are not decided yet (the paper's propPending).

    The messages of each sender are proposed in their order.

    With a window w(p), a message is proposed when the clock has passed its timestamp by w(p) (Algorithm 3 lines 19-24).
    By then, messages with earlier timestamps have normally arrived too. Unlike the paper, a message that arrives later
    is still proposed (errata 003-6, 003-7).
    """

    def __init__(self) -> None:
        self._queues: dict[int, _SenderQueue] = {}

    def add(self, cast: Cast, next_serial: int) -> bool:
        """Add a message of the own group. Returns whether it is new.

        `next_serial` is the number of bundles of its sender that are decided.
        """
        bundle = cast.bundle
        queue = self._queues.get(bundle.sender)
        if queue is None or queue.incarnation < bundle.incarnation:
            queue = self._queues[bundle.sender] = _SenderQueue(bundle.incarnation)
        if bundle.incarnation < queue.incarnation or not next_serial <= bundle.serial < next_serial + AHEAD_MAX:
            return False
        queue.next_to_propose = max(queue.next_to_propose, next_serial)
        if bundle.serial in queue.casts:
            return False
        queue.casts[bundle.serial] = cast
        return True

    def discard_decided(self, sender: int, incarnation: int, next_serial: int) -> None:
        """Remove a sender's messages with serials below `next_serial`, because they are decided."""
        queue = self._queues.get(sender)
        if queue is None or queue.incarnation > incarnation:
            return
        for serial in [serial for serial in queue.casts if serial < next_serial]:
            del queue.casts[serial]
        queue.next_to_propose = max(queue.next_to_propose, next_serial)

    def senders(self) -> list[tuple[int, int]]:
        """The (sender, incarnation) pairs with messages here."""
        return [(sender, queue.incarnation) for sender, queue in self._queues.items()]

    def propose_again_from(self, sender: int, next_serial: int) -> None:
        """Propose a sender's undecided messages again: an earlier leader's proposals may be lost."""
        self._queues[sender].next_to_propose = next_serial

    def first_timestamp(self) -> int | None:
        """The smallest timestamp among the messages that could be proposed next; None if there is no message."""
        first = self._first()
        return None if first is None else first[1].ts

    def _first(self) -> tuple[int, Cast, _SenderQueue] | None:
        first = None
        for sender, queue in self._queues.items():
            cast = queue.casts.get(queue.next_to_propose)
            if cast is not None and (first is None or stamp_of(cast.ts, sender) < first[0]):
                first = (stamp_of(cast.ts, sender), cast, queue)
        return first

    def pop_until(self, horizon: int, max_bytes: int) -> tuple[list[Cast], int]:
        """Remove and return the messages with timestamps up to `horizon`, as many as fit into `max_bytes`.

        They are sorted by timestamp. The second result is the largest of their stamps.
        """
        casts: list[Cast] = []
        largest_stamp = 0
        while (first := self._first()) is not None and first[1].ts <= horizon:
            stamp, cast, queue = first
            size = ITEM_BYTES + BUNDLE_BYTES + len(cast.bundle.body)
            if casts and size > max_bytes:
                break
            queue.next_to_propose += 1
            casts.append(cast)
            max_bytes -= size
            largest_stamp = max(largest_stamp, stamp)
        return casts, largest_stamp


class GroupProposer:
    """Chooses the messages and nulls that a member proposes while it leads its group."""

    def __init__(
        self, multigroup: Multigroup, log: GroupLog, proposals: PendingProposals, barrier_requests: BarrierRequests
    ) -> None:
        self._multigroup, self._log = multigroup, log
        self._proposals, self._barrier_requests = proposals, barrier_requests
        self._covered_stamp = 0
        """The stamp that the group will have reached when all present proposals are decided."""
        self._next_null_number = 0
        self._null_undecided = False
        self._leading_since = 0

    def start_term(self, now: int) -> None:
        """Start a new leader's term: propose all undecided messages again."""
        self._leading_since = now
        for sender, incarnation in self._proposals.senders():
            self._proposals.propose_again_from(sender, self._log.next_serial(sender, incarnation))
        self.on_all_decided()

    def on_all_decided(self) -> None:
        """All proposals are decided: continue from the stamp that the log has reached."""
        self._covered_stamp, self._next_null_number = self._log.last_stamp, self._log.null_count
        self._null_undecided = False

    def next_items(self, now: int, window_ns: int, max_bytes: int) -> list[LogItem]:
        """The items of the next proposal: the messages whose window is over, then a null if one is needed."""
        horizon = now - window_ns
        casts, largest_stamp = self._proposals.pop_until(horizon, max_bytes - RESERVED_VALUE_BYTES)
        items: list[LogItem] = list(casts)
        self._covered_stamp = max(self._covered_stamp, largest_stamp, self._log.last_stamp)
        null = self._null_if_needed(horizon, window_ns)
        if null is not None:
            items.append(null)
            self._next_null_number, self._null_undecided = null.number + 1, True
            self._covered_stamp = max(self._covered_stamp, null.stamp)
        return items

    def _null_if_needed(self, horizon: int, window_ns: int) -> Null | None:
        number = max(self._next_null_number, self._log.null_count)
        if self._multigroup.liveness == "on_demand":
            limit = stamp_of(horizon + 1, 0) - 1 if window_ns else None
            stamp = self._barrier_requests.largest_requested(self._log.last_stamp, self._covered_stamp, limit)
            return None if stamp is None else Null(number, stamp)
        if self._awaits_null():
            return None
        if horizon < self._last_barrier_time() + self._multigroup.barrier_threshold_ns:
            return None
        return Null(number, stamp_of(horizon + 1, 0) - 1)

    def _awaits_null(self) -> bool:
        return self._null_undecided and self._log.null_count < self._next_null_number

    def _last_barrier_time(self) -> int:
        return time_of(self._covered_stamp) if self._covered_stamp else self._leading_since

    def due_at(self, window_ns: int) -> int | None:
        """When there will be something to propose, if nothing arrives before; None if never."""
        first = self._proposals.first_timestamp()
        times = [] if first is None else [first + window_ns]
        if self._multigroup.liveness == "periodic":
            if not self._awaits_null():
                times.append(self._last_barrier_time() + self._multigroup.barrier_threshold_ns + window_ns)
        elif (stamp := self._barrier_requests.first_requested(self._covered_stamp)) is not None:
            times.append(time_of(stamp) + window_ns)
        return min(times, default=None)
