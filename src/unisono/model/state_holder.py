"""The interface through which an application's state is transferred to newcomers."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class StateHolder(Protocol):
    """An application whose state is transferred to a newcomer when the view with the newcomer begins.

    The state must be the result of all messages consumed so far. So the application must apply a consumed message to
    its state before it awaits anything else. Neither method may block. If one of them raises, this member stops.
    """

    def snapshot(self) -> bytes:
        """The current state."""

    def restore(self, state: bytes) -> None:
        """Replace the state by another member's snapshot. Called before the first message can be consumed.

        It is called again each time that this member was excluded and has rejoined.
        """
