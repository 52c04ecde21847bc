"""The ordered stream of a led group: numbered entries that everybody takes in sequence.

Each entry says in which reign it was ordered and in which the one before it was, so two streams that differ at one
position are never joined. Entries are kept for members that lack them: as long as any may, and RETAINED beyond that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from unisono.model.events import PackedMessages
from unisono.model.ids import EVERYONE
from unisono.model.policy import Policy
from unisono.orders.leader.messages import (
    ORDERED_BYTES,
    EntryHeader,
    EntryType,
    MemberList,
    RetransmitRequest,
    decode_member_list,
    encode_entry_header,
    encode_retransmit_request,
)
from unisono.wire.frame import FRAGMENT, MORE_FRAGMENTS, Frame, Kind
from unisono.wire.packed_messages import IncomingMessages, OutgoingMessages

WINDOW = 4096
"""How many entries the leader may be ahead of what all members have delivered."""
RETAINED_ENTRIES = 4096
"""How many entries are kept beyond those, for members that come back."""
MAX_RESENT_ENTRIES = 512


@dataclass(slots=True)
class StreamEntry:
    """One entry of the ordered stream."""

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

    @property
    def ordinals_used(self) -> int:
        """How many numbers of the whole order it takes up."""
        if self.entry_type is EntryType.RELAY:
            if self.flags & FRAGMENT:
                return 0 if self.flags & MORE_FRAGMENTS else 1
            return 0 if self.packed_messages is None else self.packed_messages.count
        return self.stamps_granted

    def member_list(self) -> MemberList:
        """The members, of a ROLL."""
        roll = decode_member_list(self.payload)
        if roll is None:
            raise ValueError("a roll that passed the door cannot be malformed")
        return roll

    def write(self, frame: Frame, term: int) -> Frame:
        """Into a frame that is sent in a reign."""
        place = EntryHeader(
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
        frame.body = b"".join((encode_entry_header(place), self.payload))
        frame.slot, frame.number = self.slot, self.number
        frame.flags, frame.first_sequence = self.flags, self.first_sequence
        return frame


def read_entry(frame: Frame, header: EntryHeader) -> StreamEntry:
    """The entry that an ORDERED frame carries."""
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
        header.count,
        header.request,
        frame.packed_messages,
        frame.body[ORDERED_BYTES:],
    )


def payload_of(frame: Frame) -> bytes | memoryview:
    """A DATA frame's body, whole, to be passed on."""
    run = frame.packed_messages
    if not isinstance(run, OutgoingMessages | IncomingMessages):
        return frame.body
    parts = run.parts()
    return parts[0] if len(parts) == 1 else b"".join(parts)


def write_copy(original: Frame, frame: Frame, term: int) -> Frame:
    """Another member's frame, into one that is sent in its place."""
    place = EntryHeader(term, 0, 0, 0, EntryType.COPY, original.sender, original.incarnation, 0, 0, original.slot)
    frame.body = b"".join((encode_entry_header(place), payload_of(original)))
    frame.slot, frame.number = original.slot, original.number
    frame.flags, frame.first_sequence = original.flags, original.first_sequence
    return frame


def read_copy(frame: Frame, header: EntryHeader) -> Frame:
    """The member's frame that such a frame carries."""
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


class FrameSender:
    """One member's frames, on their way down."""

    def __init__(self, policy: Policy, down: list[Frame]) -> None:
        self.uses_multicast = False
        """Whether everybody is known to hear this member by IP multicast."""
        self._policy = policy
        self._down = down

    def make_frame(self, now: int, kind: Kind, body: bytes = b"", to: int = EVERYONE) -> Frame:
        """A frame of this member's."""
        policy, slot = self._policy, self._policy.timing.slot_of(now)
        frame = Frame(kind, policy.member, policy.incarnation, policy.epoch, slot, 0, sent_ns=now, body=body, to=to)
        frame.multicast = self.uses_multicast and to == EVERYONE
        return frame

    def send(self, now: int, kind: Kind, body: bytes, to: int = EVERYONE) -> None:
        """Send a control message."""
        self._down.append(self.make_frame(now, kind, body, to))

    def request_retransmit(self, now: int, request: RetransmitRequest, to: int) -> None:
        """Ask for something that is missing here."""
        self.send(now, Kind.RETRANSMIT_REQUEST, encode_retransmit_request(request), to)

    def send_entry(self, now: int, entry: StreamEntry, term: int, to: int = EVERYONE) -> None:
        """Send an entry."""
        self._down.append(entry.write(self.make_frame(now, Kind.ORDERED, to=to), term))

    def send_copy(self, now: int, original: Frame, term: int, to: int) -> None:
        """Send another member's frame once more."""
        self._down.append(write_copy(original, self.make_frame(now, Kind.ORDERED, to=to), term))


class OrderedStream:
    """What one member has of it."""

    def __init__(self) -> None:
        self.position = 0
        """Of the last entry taken."""
        self.delivered_position = 0
        """Up to where the order on top has delivered."""
        self.stable = 0
        """Up to where everybody is known to have."""
        self.last_term = 0
        self.last_slot = 0
        self.accepted: deque[StreamEntry] = deque()
        """Taken, and not yet seen by the order."""
        self._log: dict[int, StreamEntry] = {}
        self._ahead: dict[int, StreamEntry] = {}
        self._next_ordinal = 0

    def next_entry(
        self, term: int, slot: int, entry_type: EntryType, frame: Frame, payload: bytes | memoryview
    ) -> StreamEntry:
        """The entry that a leader puts behind the last one; `frame` is whose it is, its burst the stamps granted."""
        relayed = entry_type is EntryType.RELAY
        return StreamEntry(
            self.position + 1,
            term,
            self.last_term,
            max(self.last_slot, slot),
            entry_type,
            frame.sender,
            frame.incarnation,
            frame.number,
            frame.flags if relayed else 0,
            frame.first_sequence,
            self._next_ordinal,
            frame.burst if entry_type is EntryType.GRANT else 0,
            frame.slot,
            frame.packed_messages,
            payload_of(frame) if relayed else payload,
        )

    def accept(self, entry: StreamEntry) -> None:
        """Take the next entry."""
        self._log[entry.position] = entry
        self.position, self.last_term = entry.position, entry.term
        self.last_slot, self._next_ordinal = max(self.last_slot, entry.slot), entry.ordinal + entry.ordinals_used
        self.accepted.append(entry)

    def contradicts(self, entry: StreamEntry) -> bool:
        """Whether another entry was taken at its position, or it follows upon another than was."""
        if entry.position == self.position + 1:
            return entry.previous_term != self.last_term
        known = self._log.get(entry.position)
        return known is not None and known.term != entry.term

    def store_ahead(self, entry: StreamEntry) -> bool:
        """Keep an entry for its turn, unless it is too far off."""
        if entry.position > self.position + 2 * WINDOW:
            return False
        self._ahead[entry.position] = entry
        return True

    def pop_ahead(self) -> StreamEntry | None:
        """The next entry, if it has come."""
        return self._ahead.pop(self.position + 1, None)

    def has_holes(self) -> bool:
        """Whether later entries have come than the next one."""
        return bool(self._ahead)

    def forget_ahead(self) -> None:
        """Whatever was on the way in an earlier reign."""
        self._ahead.clear()

    def prune(self) -> None:
        """Let go of what nobody lacks, except for the last RETAINED."""
        end = min(self.stable, self.position - RETAINED_ENTRIES)
        first = next(iter(self._log), end + 1)
        for position in range(first, end + 1):
            self._log.pop(position, None)

    def entries_from(self, first: int) -> Iterator[StreamEntry]:
        """Entries from a position on, as many as are sent again at once."""
        first = max(first, next(iter(self._log), 1))
        for position in range(first, min(first + MAX_RESENT_ENTRIES, self.position + 1)):
            yield self._log[position]
