"""Finds the messages of each sender that this member skips, by their sequence numbers.

Each frame, also an empty end-of-slot mark, has the sequence number of its first message or of the sender's next one. So
the first frame after skipped slots shows exactly which messages are missing.
"""

from __future__ import annotations

from unisono.model.events import Gap


class MissingMessages:
    """The messages that are missing at one member, by sender."""

    def __init__(self) -> None:
        self._next: dict[int, tuple[int, int]] = {}
        """By sender, its incarnation and the sequence number of the message that is due next."""
        self._skipped_from: dict[int, int] = {}
        """By sender, the first slot that was skipped since its last frame."""

    def skip(self, sender: int, slot: int) -> None:
        """Record that this member skips the sender's remaining messages of a slot, if there are any."""
        self._skipped_from.setdefault(sender, slot)

    def receive(self, sender: int, incarnation: int, first: int, count: int, slot: int) -> Gap | None:
        """Record `count` messages from number `first` on, in this slot; return the gap before them, if there is one."""
        due, skipped_from = self._due(sender, incarnation), self._skipped_from.pop(sender, None)
        self._next[sender] = incarnation, first + count
        if first == due or (due is None and (skipped_from is None or first == 0)):
            return None
        return Gap(sender, incarnation, slot if skipped_from is None else skipped_from, due, first - 1)

    def remove(self, sender: int, incarnation: int, slot: int) -> Gap:
        """Return the gap of a sender that failed before this slot: its length is unknown."""
        self.skip(sender, slot)
        return Gap(sender, incarnation, self._skipped_from[sender], self._due(sender, incarnation), None)

    def begin(self, sender: int, incarnation: int) -> None:
        """Record that a sender joins; slots skipped in an earlier incarnation do not concern a new one."""
        if self._due(sender, incarnation) is None:
            self._skipped_from.pop(sender, None)

    def _due(self, sender: int, incarnation: int) -> int | None:
        """The number of the next message of this incarnation; None if this member knows no frame of it."""
        known, due = self._next.get(sender, (incarnation, None))
        return due if known == incarnation else None
