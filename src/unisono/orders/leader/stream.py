"""The ordered stream of a led group: numbered entries that everybody takes in sequence.

Each entry says in which reign it was ordered and in which the one before it was, so two streams that differ at one
position are never joined. Entries are kept for members that lack them: as long as any may, and RETAINED beyond that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from unisono.model.events import Run
from unisono.model.ids import EVERYONE
from unisono.model.policy import Policy
from unisono.orders.leader.messages import (
    ORDERED_BYTES,
    Need,
    Place,
    Roll,
    What,
    decode_roll,
    encode_need,
    encode_place,
)
from unisono.wire.frame import MORE, PIECE, Frame, Kind
from unisono.wire.packed_messages import OwnRun, PackedRun

WINDOW = 4096
"""How many entries the leader may be ahead of what all members have delivered."""
RETAINED = 4096
"""How many entries are kept beyond those, for members that come back."""
RESENT_AT_ONCE = 512


@dataclass(slots=True)
class Entry:
    """One entry of the ordered stream."""

    position: int
    reign: int
    previous_reign: int
    slot: int
    what: What
    origin: int
    incarnation: int
    number: int
    flags: int
    first_sequence: int
    ordinal: int
    count: int
    request: int
    run: Run | None
    payload: bytes | memoryview

    @property
    def span(self) -> int:
        """How many numbers of the whole order it takes up."""
        if self.what is What.RELAY:
            if self.flags & PIECE:
                return 0 if self.flags & MORE else 1
            return 0 if self.run is None else self.run.count
        return self.count

    def roll(self) -> Roll:
        """The members, of a ROLL."""
        roll = decode_roll(self.payload)
        if roll is None:
            raise ValueError("a roll that passed the door cannot be malformed")
        return roll

    def write(self, frame: Frame, reign: int) -> Frame:
        """Into a frame that is sent in a reign."""
        place = Place(
            reign,
            self.position,
            self.reign,
            self.previous_reign,
            self.what,
            self.origin,
            self.incarnation,
            self.ordinal,
            self.count,
            self.request,
        )
        frame.body = b"".join((encode_place(place), self.payload))
        frame.slot, frame.number = self.slot, self.number
        frame.flags, frame.first_sequence = self.flags, self.first_sequence
        return frame


def read_entry(frame: Frame, place: Place) -> Entry:
    """The entry that an ORDERED frame carries."""
    return Entry(
        place.position,
        place.entry_reign,
        place.previous_reign,
        frame.slot,
        place.what,
        place.origin,
        place.incarnation,
        frame.number,
        frame.flags,
        frame.first_sequence,
        place.ordinal,
        place.count,
        place.request,
        frame.run,
        frame.body[ORDERED_BYTES:],
    )


def payload_of(frame: Frame) -> bytes | memoryview:
    """A DATA frame's body, whole, to be passed on."""
    run = frame.run
    if not isinstance(run, OwnRun | PackedRun):
        return frame.body
    parts = run.parts()
    return parts[0] if len(parts) == 1 else b"".join(parts)


def write_copy(original: Frame, frame: Frame, reign: int) -> Frame:
    """Another member's frame, into one that is sent in its place."""
    place = Place(reign, 0, 0, 0, What.COPY, original.sender, original.incarnation, 0, 0, original.slot)
    frame.body = b"".join((encode_place(place), payload_of(original)))
    frame.slot, frame.number = original.slot, original.number
    frame.flags, frame.first_sequence = original.flags, original.first_sequence
    return frame


def read_copy(frame: Frame, place: Place) -> Frame:
    """The member's frame that such a frame carries."""
    return Frame(
        Kind.DATA,
        place.origin,
        place.incarnation,
        frame.epoch,
        place.request,
        frame.number,
        frame.flags,
        first_sequence=frame.first_sequence,
        run=frame.run,
        body=frame.body[ORDERED_BYTES:] if frame.flags & PIECE else b"",
    )


class Voice:
    """One member's frames, on their way down."""

    def __init__(self, policy: Policy, down: list[Frame]) -> None:
        self.multicast = False
        """Whether everybody is known to hear this member by IP multicast."""
        self._policy = policy
        self._down = down

    def frame(self, now: int, kind: Kind, body: bytes = b"", to: int = EVERYONE) -> Frame:
        """A frame of this member's."""
        policy, slot = self._policy, self._policy.timing.slot_of(now)
        frame = Frame(kind, policy.member, policy.incarnation, policy.epoch, slot, 0, sent_ns=now, body=body, to=to)
        frame.multicast = self.multicast and to == EVERYONE
        return frame

    def say(self, now: int, kind: Kind, body: bytes, to: int = EVERYONE) -> None:
        """Send a control message."""
        self._down.append(self.frame(now, kind, body, to))

    def need(self, now: int, need: Need, to: int) -> None:
        """Ask for something that is missing here."""
        self.say(now, Kind.NEED, encode_need(need), to)

    def entry(self, now: int, entry: Entry, reign: int, to: int = EVERYONE) -> None:
        """Send an entry."""
        self._down.append(entry.write(self.frame(now, Kind.ORDERED, to=to), reign))

    def copy(self, now: int, original: Frame, reign: int, to: int) -> None:
        """Send another member's frame once more."""
        self._down.append(write_copy(original, self.frame(now, Kind.ORDERED, to=to), reign))


class Stream:
    """What one member has of it."""

    def __init__(self) -> None:
        self.position = 0
        """Of the last entry taken."""
        self.consumed = 0
        """Up to where the order on top has delivered."""
        self.stable = 0
        """Up to where everybody is known to have."""
        self.last_reign = 0
        self.slot = 0
        self.accepted: deque[Entry] = deque()
        """Taken, and not yet seen by the order."""
        self._log: dict[int, Entry] = {}
        self._ahead: dict[int, Entry] = {}
        self._ordinal = 0

    def next_entry(self, reign: int, slot: int, what: What, frame: Frame, payload: bytes | memoryview) -> Entry:
        """The entry that a leader puts behind the last one; `frame` is whose it is, its burst the stamps granted."""
        relayed = what is What.RELAY
        return Entry(
            self.position + 1,
            reign,
            self.last_reign,
            max(self.slot, slot),
            what,
            frame.sender,
            frame.incarnation,
            frame.number,
            frame.flags if relayed else 0,
            frame.first_sequence,
            self._ordinal,
            frame.burst if what is What.GRANT else 0,
            frame.slot,
            frame.run,
            payload_of(frame) if relayed else payload,
        )

    def accept(self, entry: Entry) -> None:
        """Take the next entry."""
        self._log[entry.position] = entry
        self.position, self.last_reign = entry.position, entry.reign
        self.slot, self._ordinal = max(self.slot, entry.slot), entry.ordinal + entry.span
        self.accepted.append(entry)

    def contradicts(self, entry: Entry) -> bool:
        """Whether another entry was taken at its position, or it follows upon another than was."""
        if entry.position == self.position + 1:
            return entry.previous_reign != self.last_reign
        known = self._log.get(entry.position)
        return known is not None and known.reign != entry.reign

    def keep_ahead(self, entry: Entry) -> bool:
        """Keep an entry for its turn, unless it is too far off."""
        if entry.position > self.position + 2 * WINDOW:
            return False
        self._ahead[entry.position] = entry
        return True

    def pop_ahead(self) -> Entry | None:
        """The next entry, if it has come."""
        return self._ahead.pop(self.position + 1, None)

    def holes(self) -> bool:
        """Whether later entries have come than the next one."""
        return bool(self._ahead)

    def forget_ahead(self) -> None:
        """Whatever was on the way in an earlier reign."""
        self._ahead.clear()

    def prune(self) -> None:
        """Let go of what nobody lacks, except for the last RETAINED."""
        end = min(self.stable, self.position - RETAINED)
        first = next(iter(self._log), end + 1)
        for position in range(first, end + 1):
            self._log.pop(position, None)

    def since(self, first: int) -> Iterator[Entry]:
        """Entries from a position on, as many as are sent again at once."""
        first = max(first, next(iter(self._log), 1))
        for position in range(first, min(first + RESENT_AT_ONCE, self.position + 1)):
            yield self._log[position]
