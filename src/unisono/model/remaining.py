"""What is left of messages that travelled together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from unisono.model.events import Batch, Delivery


class RemainingMessages:
    """A run of messages that have been taken apart already."""

    def __init__(self, messages: list[bytes]) -> None:
        self._messages = messages

    @property
    def count(self) -> int:
        """How many messages there are."""
        return len(self._messages)

    @property
    def payload_bytes(self) -> int:
        """How much payload they are together."""
        return sum(map(len, self._messages))

    def messages(self) -> list[bytes]:
        """The messages, in order."""
        return self._messages

    def sizes(self) -> list[int]:
        """Their sizes."""
        return list(map(len, self._messages))


def remaining(batch: Batch, deliveries: Sequence[Delivery]) -> Batch:
    """The batch that these last deliveries of an opened one make up."""
    given = batch.count - len(deliveries)
    return replace(
        batch,
        first_sequence=batch.first_sequence + given,
        first_position=batch.first_position + given,
        first_index=batch.first_index + given,
        count=len(deliveries),
        packed_messages=[RemainingMessages([delivery.payload for delivery in deliveries])],
    )
