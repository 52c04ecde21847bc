"""What is left of messages that travelled together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from unisono.model.events import Batch, Delivery


class Rest:
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


def rest_of(opened: Batch, rest: Sequence[Delivery]) -> Batch:
    """The batch that these last deliveries of an opened one make up."""
    given = opened.count - len(rest)
    return replace(
        opened,
        first_sequence=opened.first_sequence + given,
        first_place=opened.first_place + given,
        first_index=opened.first_index + given,
        count=len(rest),
        runs=[Rest([delivery.payload for delivery in rest])],
    )
