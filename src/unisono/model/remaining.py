"""The undelivered rest of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from unisono.model.events import Batch, Delivery


class RemainingMessages:
    """Messages that are already unpacked, with the interface of `PackedMessages`."""

    def __init__(self, messages: list[bytes]) -> None:
        self._messages = messages

    @property
    def count(self) -> int:
        """The number of messages."""
        return len(self._messages)

    @property
    def payload_bytes(self) -> int:
        """The total size of the messages."""
        return sum(map(len, self._messages))

    def messages(self) -> list[bytes]:
        """The messages, in order."""
        return self._messages

    def sizes(self) -> list[int]:
        """The size of each message."""
        return list(map(len, self._messages))


def remaining(batch: Batch, deliveries: Sequence[Delivery]) -> Batch:
    """The rest of a batch, given its last deliveries."""
    delivered = batch.count - len(deliveries)
    return replace(
        batch,
        first_sequence=batch.first_sequence + delivered,
        first_position=batch.first_position + delivered,
        first_index=batch.first_index + delivered,
        count=len(deliveries),
        packed_messages=[RemainingMessages([delivery.payload for delivery in deliveries])],
    )
