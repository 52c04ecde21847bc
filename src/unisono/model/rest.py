"""What is left of messages that travelled together."""

from __future__ import annotations


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
