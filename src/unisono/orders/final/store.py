"""The messages that a member keeps until they are final everywhere, by slot and sender."""

from __future__ import annotations

from unisono.model.events import PackedMessages
from unisono.model.message_range import MessageRange, SenderSlot
from unisono.model.message_set import SequenceRange
from unisono.model.remaining import RemainingMessages


class MessageStore:
    """Runs of messages. What came together stays together: a run is taken apart only where it has to be cut."""

    def __init__(self) -> None:
        self.payload_bytes = 0
        self._held: dict[SenderSlot, list[tuple[int, PackedMessages]]] = {}
        """By cell, (first number, run), ascending and without overlap."""

    def put(self, sender_slot: SenderSlot, first: int, messages: PackedMessages) -> bool:
        """Keep messages; those that are there already stay as they are. Whether any are new."""
        pieces = self._held.setdefault(sender_slot, [])
        if not pieces or first >= pieces[-1][0] + pieces[-1][1].count:  # the usual case
            pieces.append((first, messages))
            self.payload_bytes += messages.payload_bytes
            return True
        fresh = [(first, messages)]
        for start, held in pieces:
            fresh = [part for one in fresh for part in _without_range(one, start, start + held.count)]
        pieces.extend(fresh)
        pieces.sort(key=lambda piece: piece[0])
        self.payload_bytes += sum(part.payload_bytes for _, part in fresh)
        return bool(fresh)

    def ranges(self, sender_slot: SenderSlot) -> tuple[SequenceRange, ...]:
        """Which numbers are held there, those that touch made one."""
        made: list[SequenceRange] = []
        for first, run in self._held.get(sender_slot, ()):
            last = first + run.count - 1
            if made and made[-1][1] + 1 == first:
                made[-1] = (made[-1][0], last)
            else:
                made.append((first, last))
        return tuple(made)

    def packed_messages(self, message_range: MessageRange) -> list[PackedMessages] | None:
        """The messages of an extent, or None if one of them is missing."""
        found: list[PackedMessages] = []
        at, end = message_range.first, message_range.first + message_range.length
        for first, run in self._held.get(message_range.sender_slot, ()):
            if first + run.count <= at:
                continue
            if first > at or at == end:
                break
            upto = min(end, first + run.count)
            whole = first == at and first + run.count == upto
            found.append(run if whole else RemainingMessages(run.messages()[at - first : upto - first]))
            at = upto
        return found if at == end else None

    def drop(self, message_range: MessageRange) -> None:
        """Keep these no longer."""
        pieces = self._held.pop(message_range.sender_slot, [])
        first, end = message_range.first, message_range.first + message_range.length
        left = [part for piece in pieces for part in _without_range(piece, first, end)]
        self.payload_bytes -= sum(run.payload_bytes for _, run in pieces) - sum(run.payload_bytes for _, run in left)
        if left:
            self._held[message_range.sender_slot] = left


def _without_range(held: tuple[int, PackedMessages], first: int, end: int) -> list[tuple[int, PackedMessages]]:
    """What of a piece has numbers below `first`, and from `end` on."""
    start, run = held
    stop = start + run.count
    if stop <= first or end <= start:
        return [held]
    messages = run.messages()
    parts: list[tuple[int, PackedMessages]] = []
    if start < first:
        parts.append((start, RemainingMessages(messages[: first - start])))
    if end < stop:
        parts.append((end, RemainingMessages(messages[end - start :])))
    return parts
