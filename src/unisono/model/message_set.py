"""References to messages, ranges of messages, and sets of messages stored as sequence ranges."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

MessageOrigin: TypeAlias = tuple[int, int]
"""The pair (sender, incarnation), within which sequence numbers are unique."""
SequenceRange: TypeAlias = tuple[int, int]
"""Consecutive sequence numbers as the pair (first, last), both included."""


class MessageRef(NamedTuple):
    """Identifies a message by its sender, the sender's incarnation, and its sequence number."""

    sender: int
    incarnation: int
    sequence: int

    @property
    def origin(self) -> MessageOrigin:
        """The sender and its incarnation, which numbered the message."""
        return self.sender, self.incarnation

    def __str__(self) -> str:
        return f"({self.sender},{self.sequence})"


class MessageSet:
    """An immutable set of messages, stored as ranges of sequence numbers.

    Messages are consumed nearly in the order of sending, so there are few ranges.
    """

    __slots__ = ("ranges",)

    def __init__(self, ranges: Mapping[MessageOrigin, tuple[SequenceRange, ...]] | None = None) -> None:
        self.ranges: dict[MessageOrigin, tuple[SequenceRange, ...]] = dict(ranges) if ranges else {}
        """For each (sender, incarnation), ascending ranges with at least one number between two of them; never
        empty."""

    @classmethod
    def of(cls, refs: Iterable[MessageRef]) -> MessageSet:
        """The set of these messages."""
        by_origin: dict[MessageOrigin, list[int]] = {}
        for ref in refs:
            by_origin.setdefault((ref.sender, ref.incarnation), []).append(ref.sequence)
        return cls({origin: _merged((s, s) for s in sorted(numbers)) for origin, numbers in sorted(by_origin.items())})

    def __contains__(self, ref: object) -> bool:
        if not isinstance(ref, MessageRef):
            return False
        ranges = self.ranges.get((ref.sender, ref.incarnation))
        if ranges is None:
            return False
        at = bisect_right(ranges, (ref.sequence, 1 << 64)) - 1
        return at >= 0 and ref.sequence <= ranges[at][1]

    def __iter__(self) -> Iterator[MessageRef]:
        for sender, incarnation in sorted(self.ranges):
            for first, last in self.ranges[sender, incarnation]:
                for sequence in range(first, last + 1):
                    yield MessageRef(sender, incarnation, sequence)

    def __len__(self) -> int:
        return sum(last - first + 1 for ranges in self.ranges.values() for first, last in ranges)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MessageSet) and self.ranges == other.ranges

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.ranges.items())))

    def __repr__(self) -> str:
        return f"MessageSet({self})"

    def __str__(self) -> str:
        shown = []
        for (sender, _), ranges in sorted(self.ranges.items()):
            shown += [f"{sender}.{first}" if first == last else f"{sender}.{first}-{last}" for first, last in ranges]
        return " ".join(shown)

    def plus(self, ref: MessageRef) -> MessageSet:
        """This set with one more message."""
        ranges = dict(self.ranges)
        known = ranges.get(ref.origin, ())
        if known and known[-1][1] + 1 == ref.sequence:  # the usual case: the next in sequence
            ranges[ref.origin] = (*known[:-1], (known[-1][0], ref.sequence))
        else:
            ranges[ref.origin] = _merged(sorted((*known, (ref.sequence, ref.sequence))))
        return MessageSet(ranges)

    def __or__(self, other: MessageSet) -> MessageSet:
        if not other.ranges:
            return self
        ranges = dict(self.ranges)
        for origin, theirs in other.ranges.items():
            ours = ranges.get(origin)
            ranges[origin] = theirs if ours is None or ours == theirs else _merged(sorted((*ours, *theirs)))
        return MessageSet(ranges)

    def __and__(self, other: MessageSet) -> MessageSet:
        ranges = {}
        for origin, ours in self.ranges.items():
            both = _intersection(ours, other.ranges.get(origin, ()))
            if both:
                ranges[origin] = both
        return MessageSet(ranges)

    def __sub__(self, other: MessageSet) -> MessageSet:
        ranges = {}
        for origin, ours in self.ranges.items():
            theirs = other.ranges.get(origin)
            rest = ours if theirs is None else _intersection(ours, _complement(theirs))
            if rest:
                ranges[origin] = rest
        return MessageSet(ranges)


def _merged(ranges: Iterable[SequenceRange]) -> tuple[SequenceRange, ...]:
    """Merge sorted ranges of sequence numbers that touch or overlap."""
    merged: list[SequenceRange] = []
    for first, last in ranges:
        if merged and first <= merged[-1][1] + 1:
            if last > merged[-1][1]:
                merged[-1] = (merged[-1][0], last)
        else:
            merged.append((first, last))
    return tuple(merged)


def _intersection(left: tuple[SequenceRange, ...], right: tuple[SequenceRange, ...]) -> tuple[SequenceRange, ...]:
    found: list[SequenceRange] = []
    i = j = 0
    while i < len(left) and j < len(right):
        first, last = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if first <= last:
            found.append((first, last))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def _complement(ranges: tuple[SequenceRange, ...]) -> tuple[SequenceRange, ...]:
    """The ranges of all signed 64-bit numbers that are in none of the given ranges."""
    gaps: list[SequenceRange] = []
    before = -(1 << 63)
    for first, last in ranges:
        if before <= first - 1:
            gaps.append((before, first - 1))
        before = last + 1
    gaps.append((before, 1 << 64))
    return tuple(gaps)


NO_MESSAGES = MessageSet()


SenderSlot: TypeAlias = tuple[int, int, int]
"""The triple (slot, sender, incarnation), which stands for one sender's messages in one slot."""


class MessageRange(NamedTuple):
    """`length` consecutive messages of one sender in one slot, from sequence number `first` on.

    Sorts in delivery order.
    """

    slot: int
    sender: int
    incarnation: int
    first: int
    length: int

    @property
    def sender_slot(self) -> SenderSlot:
        """The slot, the sender and the sender's incarnation of these messages."""
        return self[:3]

    @property
    def origin(self) -> MessageOrigin:
        """The sender of these messages and the sender's incarnation."""
        return self.sender, self.incarnation

    @property
    def last(self) -> int:
        """The sequence number of the last message of the range."""
        return self.first + self.length - 1

    def messages(self) -> MessageSet:
        """The messages of the range as a set."""
        return MessageSet({self.origin: ((self.first, self.last),)})

    def without(self, excluded: MessageSet) -> list[MessageRange]:
        """The parts of this range that remain without the excluded messages."""
        left = self.messages() - excluded
        return [self._replace(first=a, length=b - a + 1) for a, b in left.ranges.get(self.origin, ())]
