"""What members make of the log that they agree on: the final order, as a function of the log.

An extent may be in the log twice, through two leaders, and messages of an old slot may come behind those of later ones:
what only a member held that the group had gone on without. What is in the log first counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from unisono.agreement.paxos.log import RestoredState
from unisono.errors import StorageError
from unisono.model.message_range import MessageRange
from unisono.model.message_set import NO_MESSAGES, MessageSet
from unisono.orders.final.messages import FinalLogState, decode_state, decode_value, encode_state

INCARNATIONS_KEPT = 16
"""Of so many lives of a sender it is remembered what was final; of older ones nothing becomes final any more."""


@dataclass(frozen=True, slots=True)
class AgreedRange:
    """Messages that have their place in the final order."""

    k: int
    """The instance that decided it."""
    slot: int
    """The slot under which they are final: their own, or that of what is before them, if that is later."""
    position: int
    """How many messages are final before them."""
    message_range: MessageRange


class FinalLog:
    """One member's reading of the log; the same at every member."""

    def __init__(self) -> None:
        self.k = 0
        """The last instance that was read."""
        self.message_count = self.slot = 0
        self.participants: dict[int, int] = {}
        """By member, the life in which it takes part."""
        self.final: MessageSet = NO_MESSAGES
        self._closed_incarnations: dict[int, int] = {}

    def apply(self, k: int, value: bytes) -> list[AgreedRange] | None:
        """The log's next value; what becomes final by it, or None if it is no value of this log."""
        read = decode_value(value)
        if read is None:
            return None
        self.k = k
        for member, life in read.new_participants.items():
            self.participants[member] = max(life, self.participants.get(member, 0))
        return [agreed for extent in read.message_ranges for agreed in self._finalize(k, extent)]

    def not_yet_final(self, message_range: MessageRange) -> list[MessageRange]:
        """What of an extent could still become final."""
        if message_range.incarnation <= self._closed_incarnations.get(message_range.sender, -1):
            return []
        return message_range.without(self.final)

    def _finalize(self, k: int, message_range: MessageRange) -> list[AgreedRange]:
        self.slot = max(self.slot, message_range.slot)
        counted = []
        for part in self.not_yet_final(message_range):
            counted.append(AgreedRange(k, self.slot, self.message_count, part))
            self.message_count += part.length
        if counted:
            if message_range.origin not in self.final.ranges:
                self._close_oldest_incarnation(message_range.sender)
            self.final |= message_range.messages()
        return counted

    def _close_oldest_incarnation(self, sender: int) -> None:
        lives = sorted(life for member, life in self.final.ranges if member == sender)
        if len(lives) >= INCARNATIONS_KEPT:
            self._closed_incarnations[sender] = lives[0]
            ranges = self.final.ranges
            self.final = MessageSet({origin: ranges[origin] for origin in ranges if origin != (sender, lives[0])})

    def state(self) -> bytes:
        """What stands for all that was read."""
        return encode_state(
            FinalLogState(self.message_count, self.slot, self.participants, self.final, self._closed_incarnations)
        )

    def restore(self, restored: RestoredState) -> None:
        """Go on from what stands for a prefix of the log."""
        state = decode_state(restored.state)
        if state is None:
            raise StorageError(f"the state that stands for the final order up to {restored.k} cannot be read")
        self.k, self.message_count, self.slot, self.final = restored.k, state.message_count, state.slot, state.final
        self.participants, self._closed_incarnations = dict(state.participants), dict(state.closed_incarnations)
