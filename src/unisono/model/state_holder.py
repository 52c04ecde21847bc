"""What an application shares with a member that comes later."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class StateHolder(Protocol):
    """An application whose state can be handed to a newcomer, at the cut where the view begins that brings it.

    The state is what came of the messages that were consumed so far. So whoever consumes a message takes it into the
    state before it next awaits anything. Neither function may wait; what they raise ends the group here.
    """

    def snapshot(self) -> bytes:
        """The state as it is now."""

    def restore(self, state: bytes) -> None:
        """Become what the giver was: called before the first message is there to be consumed.

        It is called again each time that the others went on without this member and it has joined again.
        """
