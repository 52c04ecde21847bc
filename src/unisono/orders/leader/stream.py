"""The ordered stream of a group with a leader: numbered entries that every member accepts in sequence.

Each entry states the term in which it was ordered and the term of the entry before it. Two streams that differ at one
position are therefore never joined: `OrderedStream.contradicts` detects the difference. A member keeps entries for
members that may lack them, and RETAINED_ENTRIES more, or as many as RETAINED_BYTES allow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from unisono.model.events import PackedMessages
from unisono.model.policy import Policy
from unisono.model.timing import Timing
from unisono.model.units import EVERYONE
from unisono.orders.leader.messages import (
    MEMBER_LIST,
    ORDERED_BYTES,
    ElectionMessage,
    EntryHeader,
    EntryType,
    MemberList,
    Ordered,
    StampRequest,
    encode_entry_header,
)
from unisono.wire.codec import control_frame, message_in
from unisono.wire.frame import FRAGMENT, MORE_FRAGMENTS, Frame, IncomingMessages, Kind, OutgoingMessages

WINDOW = 4096
"""The leader orders at most this many entries beyond the last one that all members have delivered."""
WINDOW_BYTES = 8 << 20
"""The leader orders no further entry while the entries beyond that one have this many bytes or more."""
RETAINED_ENTRIES = 4096
"""Keep this many entries that all current members have, for removed members that come back."""
RETAINED_BYTES = 8 << 20
"""Keep fewer entries that all current members have if all entries together have more bytes than this."""
MAX_RESENT_ENTRIES = 512
"""Request at most this many missing entries at a time, and answer one request with at most this many."""
MAX_RESENT_BYTES = 1 << 20
"""Answer one request with no further entry once its entries have this many bytes."""
MAX_REQUESTED_HOLES = 16
"""Request the entries of at most this many holes at a time."""


@dataclass(slots=True)
class StreamEntry:
    """One entry of the ordered stream: a member's frame, a list of members, or a grant of stamps."""

    position: int
    term: int
    previous_term: int
    slot: int
    entry_type: EntryType
    origin: int
    incarnation: int
    number: int
    flags: int
    first_sequence: int
    ordinal: int
    stamps_granted: int
    request: int
    packed_messages: PackedMessages | None
    payload: bytes | memoryview
    members: MemberList | None
    """The content of a MEMBER_LIST entry, which `payload` encodes; None for other types."""

    @property
    def ordinals_used(self) -> int:
        """How many positions of the total order the entry takes: one per message, or one per granted timestamp."""
        if self.entry_type is EntryType.RELAY:
            if self.flags & FRAGMENT:
                return 0 if self.flags & MORE_FRAGMENTS else 1
            return 0 if self.packed_messages is None else self.packed_messages.count
        return self.stamps_granted

    def member_list(self) -> MemberList:
        """The content of this MEMBER_LIST entry; raises TypeError for other types."""
        if self.members is None:
            raise TypeError(f"entry {self.position} of the stream is a {self.entry_type.name}, not a MEMBER_LIST")
        return self.members

    def write(self, frame: Frame, term: int) -> Frame:
        """Write the entry into `frame`, which is sent in `term`."""
        header = EntryHeader(
            term,
            self.position,
            self.term,
            self.previous_term,
            self.entry_type,
            self.origin,
            self.incarnation,
            self.ordinal,
            self.stamps_granted,
            self.request,
        )
        frame.body = b"".join((encode_entry_header(header), self.payload))
        frame.message = Ordered(header, self.members)
        frame.slot, frame.number = self.slot, self.number
        frame.flags, frame.first_sequence = self.flags, self.first_sequence
        return frame


def read_entry(frame: Frame, ordered: Ordered) -> StreamEntry:
    """Build the stream entry that an ORDERED frame carries."""
    header = ordered.header
    return StreamEntry(
        header.position,
        header.entry_term,
        header.previous_term,
        frame.slot,
        header.entry_type,
        header.origin,
        header.incarnation,
        frame.number,
        frame.flags,
        frame.first_sequence,
        header.ordinal,
        header.stamps,
        header.request,
        frame.packed_messages,
        frame.body[ORDERED_BYTES:],
        ordered.member_list,
    )


def payload_of(frame: Frame) -> bytes | memoryview:
    """The complete body of a DATA frame, to be relayed."""
    packed_messages = frame.packed_messages
    if not isinstance(packed_messages, OutgoingMessages | IncomingMessages):
        return frame.body
    parts = packed_messages.parts()
    return parts[0] if len(parts) == 1 else b"".join(parts)


def write_copy(original: Frame, frame: Frame, term: int) -> Frame:
    """Write another member's frame into `frame`, which is sent in `term`."""
    header = EntryHeader(term, 0, 0, 0, EntryType.COPY, original.sender, original.incarnation, 0, 0, original.slot)
    frame.body = b"".join((encode_entry_header(header), payload_of(original)))
    frame.message = Ordered(header)
    frame.slot, frame.number = original.slot, original.number
    frame.flags, frame.first_sequence = original.flags, original.first_sequence
    return frame


def read_copy(frame: Frame, header: EntryHeader) -> Frame:
    """The original frame that `write_copy` wrote into an ORDERED frame."""
    return Frame(
        Kind.DATA,
        header.origin,
        header.incarnation,
        frame.epoch,
        header.request,
        frame.number,
        frame.flags,
        first_sequence=frame.first_sequence,
        packed_messages=frame.packed_messages,
        body=frame.body[ORDERED_BYTES:] if frame.flags & FRAGMENT else b"",
    )


class RetransmitTimer:
    """Says when to request data that are missing at the end of a slot.

    A member requests them once they are also missing at the end of the next slot, since a datagram may be overtaken.
    If no answer comes within Θ plus the time that the last answer took, it requests them again, and then waits twice as
    long each time, but at most for Θ plus the longest round trip, 2Δ+2Γ.
    """

    def __init__(self, timing: Timing) -> None:
        self._theta_ns = timing.theta_ns
        self._longest_round_trip_ns = 2 * timing.delta_ns + 2 * timing.gamma_ns
        self._round_trip_ns = 0
        self._missing: int | None = None
        self._requests = self._last_asked_at = 0
        self._next_at = self._wait_ns = 0

    def is_due(self, now: int, missing: int | None) -> bool:
        """Whether to request the missing data now. `missing` names the first missing datum; None if there is none."""
        if missing != self._missing:
            self.record_progress(now, missing)
            return False
        return missing is not None and now >= self._next_at

    def expect(self, missing: int | None) -> None:
        """Request these data at the end of this slot, if they are still missing then."""
        self._missing, self._requests = missing, 0
        self._next_at, self._wait_ns = 0, self._theta_ns + self._round_trip_ns

    def record_asked(self, now: int) -> None:
        """Wait for the answer to a request that is sent now."""
        self._requests += 1
        self._last_asked_at, self._next_at = now, now + self._wait_ns
        self._wait_ns = min(2 * self._wait_ns, self._theta_ns + self._longest_round_trip_ns)

    def record_progress(self, now: int, missing: int | None) -> None:
        """Measure how long the answer took; other data are missing now, or none.

        After several requests, it is unknown which one was answered.
        """
        since_last_ns = min(now - self._last_asked_at, self._longest_round_trip_ns)
        if self._requests == 1:
            self._round_trip_ns = since_last_ns
        elif self._requests:
            self._round_trip_ns = max(self._round_trip_ns, since_last_ns)
        self.expect(missing)


class FrameSender:
    """Creates one member's frames and appends them to `down`, its list of outgoing frames."""

    def __init__(self, policy: Policy, down: list[Frame]) -> None:
        self.uses_multicast = False
        """Whether every peer receives this member's IP multicast."""
        self._policy = policy
        self._down = down

    def ordered_frame(self, now: int, to: int = EVERYONE) -> Frame:
        """An ORDERED frame from this member in the current slot, without an entry yet."""
        policy, slot = self._policy, self._policy.timing.slot_of(now)
        frame = Frame(Kind.ORDERED, policy.member, policy.incarnation, policy.epoch, slot, 0, sent_ns=now, to=to)
        frame.multicast = self.uses_multicast and to == EVERYONE
        return frame

    def send(self, now: int, message: ElectionMessage, to: int = EVERYONE) -> None:
        """Send a control message of the election or of the stream to one member or to all."""
        policy, multicast = self._policy, self.uses_multicast and to == EVERYONE
        self._down.append(
            control_frame(
                message,
                policy.member,
                policy.incarnation,
                policy.epoch,
                slot=policy.timing.slot_of(now),
                sent_ns=now,
                to=to,
                multicast=multicast,
            )
        )

    def send_entry(self, now: int, entry: StreamEntry, term: int, to: int = EVERYONE) -> None:
        """Send an entry of the stream, in `term`, to one member or to all."""
        self._down.append(entry.write(self.ordered_frame(now, to), term))

    def send_copy(self, now: int, original: Frame, term: int, to: int) -> None:
        """Retransmit another member's frame to the member `to`."""
        self._down.append(write_copy(original, self.ordered_frame(now, to), term))


class OrderedStream:
    """One member's copy of the stream of entries that the leader orders."""

    def __init__(self) -> None:
        self.position = 0
        """The position of the last entry that this member has accepted."""
        self.delivered_position = 0
        """The position up to which this member has delivered the entries."""
        self.stable = 0
        """The position up to which every member is known to have delivered the entries."""
        self.last_term = 0
        self.last_slot = 0
        self.accepted: deque[StreamEntry] = deque()
        """Accepted entries that the order has not read yet."""
        self._log: dict[int, StreamEntry] = {}
        self._log_bytes = 0
        """The size of the payloads in `_log`."""
        self._unstable: deque[tuple[int, int]] = deque()
        """(position, size) of entries that some member may not have delivered, and some that all have delivered."""
        self._unstable_bytes = 0
        self._ahead: dict[int, StreamEntry] = {}
        self._next_ordinal = 0

    def next_entry(
        self, term: int, slot: int, entry_type: EntryType, frame: Frame, member_list: MemberList | None
    ) -> StreamEntry:
        """The entry that the leader appends for `frame`. A GRANT is for the stamps that the frame requests."""
        is_relay = entry_type is EntryType.RELAY
        content = b"" if member_list is None else MEMBER_LIST.encode(member_list)
        return StreamEntry(
            self.position + 1,
            term,
            self.last_term,
            max(self.last_slot, slot),
            entry_type,
            frame.sender,
            frame.incarnation,
            frame.number,
            frame.flags if is_relay else 0,
            frame.first_sequence,
            self._next_ordinal,
            message_in(frame, StampRequest).count if entry_type is EntryType.GRANT else 0,
            frame.slot,
            frame.packed_messages,
            payload_of(frame) if is_relay else content,
            member_list,
        )

    def accept(self, entry: StreamEntry) -> None:
        """Append the next entry to this member's copy of the stream."""
        size = len(entry.payload)
        self._log[entry.position] = entry
        self._log_bytes += size
        self._unstable.append((entry.position, size))
        self._unstable_bytes += size
        self.position, self.last_term = entry.position, entry.term
        self.last_slot, self._next_ordinal = max(self.last_slot, entry.slot), entry.ordinal + entry.ordinals_used
        self.accepted.append(entry)

    def window_is_full(self) -> bool:
        """Whether the slowest member is so far behind that the leader must wait for it."""
        self._trim_unstable()
        return self.position - self.stable >= WINDOW or self._unstable_bytes >= WINDOW_BYTES

    def _trim_unstable(self) -> None:
        while self._unstable and self._unstable[0][0] <= self.stable:
            self._unstable_bytes -= self._unstable.popleft()[1]

    def contradicts(self, entry: StreamEntry) -> bool:
        """Whether this member accepted a different entry at the position of `entry`, or just before it."""
        if entry.position == self.position + 1:
            return entry.previous_term != self.last_term
        known = self._log.get(entry.position)
        return known is not None and known.term != entry.term

    def store_ahead(self, entry: StreamEntry) -> bool:
        """Keep an entry that arrived out of sequence. False if it is too far ahead."""
        if entry.position > self.position + 2 * WINDOW:
            return False
        self._ahead[entry.position] = entry
        return True

    def pop_ahead(self) -> StreamEntry | None:
        """Remove and return the next entry in sequence; None if it has not arrived."""
        return self._ahead.pop(self.position + 1, None)

    def has_holes(self) -> bool:
        """Whether later entries have arrived while the next one is missing."""
        return bool(self._ahead)

    def holes(self, end: int) -> Iterator[tuple[int, int]]:
        """Missing entries up to position `end`: the first position and the number of entries of each hole.

        At most MAX_REQUESTED_HOLES holes with MAX_RESENT_ENTRIES entries in total.
        """
        first, entries_left, holes_left = self.position + 1, MAX_RESENT_ENTRIES, MAX_REQUESTED_HOLES
        for position in (*sorted(self._ahead), end + 1):
            count = min(position - first, entries_left)
            if count > 0:
                yield first, count
                entries_left, holes_left = entries_left - count, holes_left - 1
            if not entries_left or not holes_left:
                return
            first = position + 1

    def forget_ahead(self) -> None:
        """Drop the entries that arrived out of sequence: they belong to an earlier term."""
        self._ahead.clear()

    def retained_from(self) -> int:
        """The position of the first entry that this member retains; the next position if it retains none."""
        return next(iter(self._log), self.position + 1)

    def prune(self) -> None:
        """Drop entries that all members have, except for the last RETAINED_ENTRIES and RETAINED_BYTES."""
        self._trim_unstable()
        while self._log:
            first = next(iter(self._log))
            is_surplus = first <= self.position - RETAINED_ENTRIES or self._log_bytes > RETAINED_BYTES
            if first > self.stable or not is_surplus:
                return
            self._log_bytes -= len(self._log.pop(first).payload)

    def retained_entries(self, first: int, count: int) -> Iterator[StreamEntry]:
        """Those of `count` entries from position `first` on that are retained.

        At most MAX_RESENT_ENTRIES, and no further one after MAX_RESENT_BYTES, so that the answer fits into a receive
        buffer.
        """
        end = min(first + min(count, MAX_RESENT_ENTRIES), self.position + 1)
        bytes_left = MAX_RESENT_BYTES
        for position in range(max(first, self.retained_from()), end):
            if bytes_left <= 0:
                return
            bytes_left -= len(self._log[position].payload)
            yield self._log[position]
