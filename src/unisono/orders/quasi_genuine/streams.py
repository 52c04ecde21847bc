"""How the messages of one member leave it: to its own group, and from its group to the other groups (paper 003).

`MulticastSender` is the first half of QGFTO-Mcast. It gives messages their timestamps, packs them into bundles, and
keeps every bundle until the own group has decided it.

`GroupStreams` sends decided entries and barriers to other groups until every member there has acknowledged them. In the
paper every member sends every decided message (Algorithm 1 line 24). Here one member sends each entry once: the relay,
or the leader of a group without a relay (see `relay_of`). The leader retransmits entries that are not acknowledged, and
sends those that the relay is not known to have. A new leader continues from the acknowledgments of the receivers.
Entries are numbered, so any member may send them (erratum 003-9).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from unisono.model.events import Violation, ViolationKind
from unisono.model.policy import Policy
from unisono.model.units import Rate, Reserver
from unisono.orders.packing import (
    BUNDLE_BYTES,
    BUNDLE_OVERHEAD_BYTES,
    Bundle,
    Pacer,
    Packer,
    checked_sizes,
    count_fitting_messages,
    reservation,
)
from unisono.orders.quasi_genuine.group_log import GroupLog, OutgoingStream
from unisono.orders.quasi_genuine.messages import (
    CAST_BYTES,
    ENTRY_BYTES,
    STREAM_BYTES,
    Cast,
    ReceivedByAll,
    StampedEntry,
    StreamSegment,
    TopologyControl,
    encode_control,
    stamp_of,
)
from unisono.orders.quasi_genuine.topology_change import LinkState
from unisono.wire.codec import control_frame
from unisono.wire.frame import HEADER_BYTES, Frame

BUNDLES_MAX = 1 << 10
"""Accept no more messages while this many of a member's bundles are undecided."""
UNDECIDED_BYTES_MAX = 1 << 20
"""Accept no more messages while a member's undecided bundles have this many bytes or more."""
WINDOW = 512
"""At most this many entries are in flight to one member of another group."""
RELAYED_MAX = 256
"""A relay that catches up sends only its last entries; the leader has sent the others."""
BACKOFF_DOUBLINGS_MAX = 5
TRIM_EVERY_ENTRIES = 512
"""When every receiver has this many more entries, the group agrees to drop them."""
TRIMS_AT_ONCE = 2
"""At most this many streams are trimmed by one proposal."""


@dataclass(slots=True)
class UndecidedCast:
    """A bundle that the own group has not decided yet."""

    serial: int
    cast: Cast
    announced: bool = False
    """Whether the destination groups, and those that may block the message, have been notified of it."""


class MulticastSender:
    """Holds the messages that one member submitted until its group has decided them."""

    def __init__(self, policy: Policy, reserver: Reserver, value_max_bytes: int) -> None:
        self._policy, self._reserver = policy, reserver
        reserver.reserve(reservation(policy, policy.rate))
        self._pacer = Pacer(policy.rate, policy.timing.theta_ns, policy.max_message)
        self._pending_rate: Rate | None = None
        self._paced_slot = 0
        cast_max_bytes = min(value_max_bytes, policy.max_frame - HEADER_BYTES - STREAM_BYTES - ENTRY_BYTES)
        self._packer = Packer(cast_max_bytes - BUNDLE_OVERHEAD_BYTES - CAST_BYTES + HEADER_BYTES)
        self._member, self._incarnation = policy.member, policy.incarnation
        self._next_serial = self._next_sequence = 0
        self._last_timestamp = 0
        self.undecided: deque[UndecidedCast] = deque()
        self._undecided_bytes = 0
        self.forwarded = 0
        """The number of undecided bundles that have been sent to the leader."""

    def change_rate(self, rate: Rate) -> None:
        """Change the rate from the next slot on."""
        self._policy.check_rate(rate)
        self._reserver.reserve(reservation(self._policy, rate))
        self._pending_rate = rate

    def submit(self, now: int, messages: Sequence[bytes], mask: int) -> int:
        """Accept messages for these groups, as many as the rate allows; none while too many bundles are undecided."""
        sizes = checked_sizes(messages, self._policy.max_message)
        slot = self._policy.timing.slot_of(now)
        if slot > self._paced_slot:
            self._paced_slot = slot
            self._pacer.open_slot(slot, self._pending_rate)
            self._pending_rate = None
        if not sizes or len(self.undecided) >= BUNDLES_MAX or self._undecided_bytes >= UNDECIDED_BYTES_MAX:
            return 0
        count = count_fitting_messages(self._pacer, sizes)
        if count:
            self._pacer.record_sent(count, sum(sizes[:count]))
            self._pacer.check(self._member)
            self._pack(now, messages[:count], sizes[:count], mask)
        return count

    def _pack(self, now: int, messages: Sequence[bytes], sizes: list[int], mask: int) -> None:
        """Pack messages into as few bundles as possible, each with its own timestamp."""
        for payload in self._packer.pack_all(messages, sizes):
            self._enqueue(now, mask, payload.flags, payload.encoded())
            self._next_sequence += payload.messages_completed

    def send_control(self, now: int, control: TopologyControl) -> int:
        """Send a topology control message to the own group, behind all messages so far; returns its serial number."""
        self._enqueue(now, 0, 0, encode_control(control))
        return self._next_serial - 1

    def _enqueue(self, now: int, mask: int, flags: int, body: bytes) -> None:
        # Timestamps grow even if the clock stands still or goes back: a later message must not overtake an earlier
        # one (erratum 003-15).
        self._last_timestamp = ts = max(now, self._last_timestamp + 1)
        bundle = Bundle(self._member, self._incarnation, self._next_serial, self._next_sequence, flags, body)
        self.undecided.append(UndecidedCast(self._next_serial, Cast(ts, mask, bundle)))
        self._undecided_bytes += len(body)
        self._next_serial += 1

    def discard_decided(self, next_serial: int) -> bool:
        """Remove the bundles with serials below `next_serial`: they are decided. Returns whether there were any."""
        removed = False
        while self.undecided and self.undecided[0].serial < next_serial:
            self._undecided_bytes -= len(self.undecided.popleft().cast.bundle.body)
            self.forwarded = max(0, self.forwarded - 1)
            removed = True
        return removed

    def expected_stamp(self, undecided: UndecidedCast) -> int:
        """The stamp that a bundle gets unless one with a later timestamp is decided before it."""
        return stamp_of(undecided.cast.ts, self._member)


def relay_of(members: Iterable[int], leader: int | None) -> int | None:
    """The member that sends decided entries to other groups: in a group of two or three, a follower.

    There, two members are a majority. A follower that accepts a proposal knows that it is decided, because the leader
    accepted it before. The leader itself learns it one round trip after its proposal. Larger groups have no relay.
    """
    followers = [member for member in members if member != leader]
    return None if leader is None or not 1 <= len(followers) <= 2 else min(followers)


class _ReceiverProgress:
    """How far one member of another group has received this group's stream."""

    __slots__ = ("acked", "attempts", "due_at", "has_reported", "incarnation", "sent", "was_asked")

    def __init__(self) -> None:
        self.incarnation = -1
        self.acked = self.sent = 0
        """The number of the last acknowledged entry, and of the last one sent."""
        self.has_reported = False
        """Whether the receiver has reported to this leader which entries it has."""
        self.was_asked = False
        self.due_at = 0
        """When to retransmit to this receiver; 0 if it has acknowledged everything."""
        self.attempts = 0


class GroupStreams:
    """One member's sending of decided entries and barriers to other groups, while it leads its group or relays.

    The owner drains `down`.
    """

    def __init__(self, me: int, incarnation: int, epoch: int, *, max_frame: int, retry_ns: int) -> None:
        self.down: list[Frame] = []
        self._frame_identity = (me, incarnation, epoch)
        self._max_entries_bytes = max_frame - HEADER_BYTES - STREAM_BYTES
        self._retry_ns = retry_ns
        self._is_leader = False
        self._progress: dict[tuple[int, int], _ReceiverProgress] = {}
        """By (receiving group, member), how far that member has received the stream."""
        self._sent_to_all: dict[int, int] = {}
        """By receiving group, the number of entries that have been sent to all of its members."""
        self._proposed_trims: dict[int, int] = {}
        """By receiving group, the number of entries that this leader has proposed to drop."""
        self._entries_missed: dict[int, int] = {}
        """By receiving member, the number of entries that it lacks and that are no longer retained."""
        self._reported_too_far: set[int] = set()

    def reset(self, log: GroupLog, *, leads: bool) -> None:
        """Start under a new leader. If this member leads, it asks all receivers which entries they have.

        Otherwise it sends, if it is the relay, only entries that are decided from now on.
        """
        self._is_leader = leads
        for progress in self._progress.values():
            progress.has_reported = progress.was_asked = False
            progress.due_at = progress.attempts = 0
        self._proposed_trims.clear()
        self._sent_to_all = {} if leads else {receiver: stream.head for receiver, stream in log.streams.items()}

    # -- sending ---------------------------------------------------------------------------------------------

    def send_missing_to_all(
        self, now: int, log: GroupLog, receiver: int, members: tuple[int, ...], *, barrier: bool, relayed: bool
    ) -> None:
        """Send each of these members the entries that it lacks; with `barrier`, also announce the last stamp.

        With `relayed`, the relay has every decided entry and sends it: the leader only waits for acknowledgments.
        """
        stream, sent_to_all = log.streams[receiver], self._sent_to_all.get(receiver)
        if not barrier and sent_to_all == stream.head:
            return
        if not self._is_leader:
            self._relay(now, log, receiver, members)
            return
        if relayed and sent_to_all is not None:
            for member in members:
                progress = self._progress[receiver, member]
                if progress.sent < stream.head:
                    progress.sent, progress.due_at = stream.head, progress.due_at or now + self._retry_ns
            self._sent_to_all[receiver] = stream.head
            return
        all_sent = True
        for member in members:
            progress = self._progress.setdefault((receiver, member), _ReceiverProgress())
            if progress.has_reported and progress.sent >= stream.head and not barrier:
                continue
            if not progress.has_reported and stream.head == 0:
                progress.has_reported = True
            sent = (
                progress.has_reported
                and progress.sent < stream.head
                and self._send_missing(now, log, receiver, member, progress)
            )
            if not progress.has_reported and not progress.was_asked:
                progress.was_asked, progress.due_at = True, now + self._retry_ns
                self.send_barrier(now, log, receiver, member, wants_ack=True)
            elif barrier and not sent:
                self.send_barrier(now, log, receiver, member)
            all_sent = all_sent and progress.has_reported and progress.sent >= stream.head
        if all_sent:
            self._sent_to_all[receiver] = stream.head

    def _relay(self, now: int, log: GroupLog, receiver: int, members: tuple[int, ...]) -> None:
        stream = log.streams[receiver]
        first = max(self._sent_to_all.get(receiver, 0) + 1, stream.first, stream.head - RELAYED_MAX + 1)
        for member in members:
            number = first
            while number <= stream.head:
                number = self._send_segment(now, log, receiver, member, number) + 1
            if first > stream.head:
                self.send_barrier(now, log, receiver, member)
        self._sent_to_all[receiver] = stream.head

    def _send_missing(self, now: int, log: GroupLog, receiver: int, member: int, progress: _ReceiverProgress) -> bool:
        stream, sent = log.streams[receiver], False
        if progress.sent + 1 < stream.first:
            self._entries_missed[member] = stream.first - 1 - progress.sent
            return False
        while progress.sent < stream.head and progress.sent - progress.acked < WINDOW:
            progress.sent = self._send_segment(now, log, receiver, member, progress.sent + 1)
            sent = True
        if sent and not progress.due_at:
            progress.due_at = now + self._retry_ns
        return sent

    def _send_segment(self, now: int, log: GroupLog, receiver: int, member: int, first: int) -> int:
        """Send one frame of entries from number `first` on; returns the number of its last entry."""
        stream, free_bytes = log.streams[receiver], self._max_entries_bytes
        entries: list[StampedEntry] = []
        for number in range(first, stream.head + 1):
            entry = stream.entry(number)
            entry_bytes = ENTRY_BYTES + BUNDLE_BYTES + len(entry.bundle.body)
            if entries and entry_bytes > free_bytes:
                break
            entries.append(entry)
            free_bytes -= entry_bytes
        segment = StreamSegment(log.own_group, first, stream.head, log.last_stamp, tuple(entries))
        self._send_frame(now, member, segment, wants_ack=True)
        return first + len(entries) - 1

    def send_barrier(self, now: int, log: GroupLog, receiver: int, member: int, *, wants_ack: bool = False) -> None:
        """Announce the last stamp and the number of entries to one member; `wants_ack` asks which entries it has."""
        head = log.streams[receiver].head
        segment = StreamSegment(log.own_group, head + 1, head, log.last_stamp, ())
        self._send_frame(now, member, segment, wants_ack=wants_ack)

    def _send_frame(self, now: int, member: int, segment: StreamSegment, *, wants_ack: bool) -> None:
        # In a stream's frame, `number` asks for an acknowledgment and `burst` says that the sender leads its group.
        number, burst = int(wants_ack), int(self._is_leader)
        self.down.append(
            control_frame(segment, *self._frame_identity, number=number, burst=burst, sent_ns=now, to=member)
        )

    # -- acknowledgments and retransmission ------------------------------------------------------------------

    def on_ack(self, now: int, member: int, incarnation: int, group: int, applied: int) -> None:
        """Process the acknowledgment of a member of another group: it has the first `applied` entries."""
        progress = self._progress.setdefault((group, member), _ReceiverProgress())
        if incarnation < progress.incarnation:
            return
        if incarnation > progress.incarnation or not progress.has_reported:
            self._sent_to_all.pop(group, None)
            progress.incarnation, progress.has_reported = incarnation, True
            progress.acked = progress.sent = applied
        elif applied > progress.acked:
            progress.acked, progress.sent = applied, max(progress.sent, applied)
        else:
            return
        # After a retransmission the next missing entry is sent at once.
        wait_ns = 0 if progress.attempts else self._retry_ns
        progress.due_at, progress.attempts = now + wait_ns if progress.sent > progress.acked else 0, 0

    def wake(self, now: int, log: GroupLog) -> None:
        """Retransmit to members that have not acknowledged in time: the first missing entries, with backoff."""
        for (receiver, member), progress in self._progress.items():
            if not progress.due_at or now < progress.due_at:
                continue
            if receiver not in log.streams:
                progress.due_at = 0
                continue
            progress.attempts += 1
            progress.due_at = now + (self._retry_ns << min(progress.attempts, BACKOFF_DOUBLINGS_MAX))
            stream = log.streams[receiver]
            if progress.has_reported and stream.first <= progress.acked + 1 <= stream.head:
                last_sent = self._send_segment(now, log, receiver, member, progress.acked + 1)
                progress.sent = max(progress.sent, last_sent)
            elif not progress.has_reported or progress.acked < stream.head:
                self.send_barrier(now, log, receiver, member, wants_ack=True)
            else:
                progress.due_at = 0

    def wake_at(self) -> int | None:
        """When the next retransmission is due; None if nothing is unacknowledged."""
        return min([progress.due_at for progress in self._progress.values() if progress.due_at], default=None)

    def all_acknowledged(self) -> bool:
        """Whether all entries that were sent have been acknowledged."""
        return all(progress.acked >= progress.sent for progress in self._progress.values())

    def report_too_far_behind(self) -> list[Violation]:
        """Report members of other groups that lack entries which are no longer retained; each once."""
        violations = [
            Violation(
                ViolationKind.TOO_FAR_BEHIND,
                f"member {member} cannot catch up: {entries} messages that it lacks are no longer retained",
                member,
            )
            for member, entries in self._entries_missed.items()
            if member not in self._reported_too_far
        ]
        self._reported_too_far.update(self._entries_missed)
        return violations

    # -- dropping entries that every receiver has ------------------------------------------------------------

    def trims_to_propose(
        self, log: GroupLog, members_of: Mapping[int, tuple[int, ...]], *, closed_only: bool
    ) -> list[ReceivedByAll]:
        """Items by which the group drops entries that all receivers have.

        With `closed_only`, only entries of closed streams.
        """
        trims: list[ReceivedByAll] = []
        for receiver, stream in log.streams.items():
            closed = log.topology.outgoing[receiver].state is LinkState.UNLINKED
            if closed_only and not closed:
                continue
            upto = self._trimmable_entries(receiver, members_of[receiver], stream, closed=closed)
            if upto is not None and len(trims) < TRIMS_AT_ONCE:
                trims.append(ReceivedByAll(receiver, upto))
        return trims

    def _trimmable_entries(
        self, receiver: int, members: tuple[int, ...], stream: OutgoingStream, *, closed: bool
    ) -> int | None:
        """How many entries of the stream all receivers have, so they can be dropped; None if too few for a proposal."""
        acked = []
        for member in members:
            progress = self._progress.get((receiver, member))
            if progress is None or not progress.has_reported:
                return None
            acked.append(progress.acked)
        upto, proposed = min(acked), self._proposed_trims.get(receiver, 0)
        whole_stream = closed and upto == stream.head > proposed
        if not whole_stream and upto < max(stream.first - 1, proposed) + TRIM_EVERY_ENTRIES:
            return None
        self._proposed_trims[receiver] = upto
        return upto
