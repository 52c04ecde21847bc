"""A coordinator's attempt at the next view: who is to be in it, and whether all of them have what one of them has.

A view is proposed only when everybody who goes on has every message of the cut. So whoever may crash afterwards, the
others can install the view: none of them waits for a message that went down with somebody.
"""

from __future__ import annotations

from unisono.agreement.membership.messages import Flush, Flushed, LastMessages, NextView, Vector


class ViewChangeAttempt:
    """One attempt of this member's."""

    def __init__(self, number: int, members: Vector, survivors: tuple[int, ...]) -> None:
        self.number = number
        self.members = dict(members)
        self.survivors = survivors
        """Who is in this view and in the next."""
        self.proposed = self.last_messages_requested = False
        self._received: dict[int, Vector] = {}
        self._ready: set[int] = set()
        self._last_messages: LastMessages | None = None

    def on_flushed(self, member: int, flushed: Flushed) -> None:
        """An answer."""
        if flushed.attempt != self.number or member not in self.survivors:
            return
        if flushed.ready:
            self._ready.add(member)
        elif self._last_messages is None:
            self._received[member] = flushed.received
            if len(self._received) == len(self.survivors):
                self._last_messages = self._find_last_messages()

    def _find_last_messages(self) -> LastMessages:
        """What somebody who goes on has received of each member's messages, and who has it."""
        best: dict[int, int] = {}
        holders: dict[int, int] = {}
        for survivor in self.survivors:
            for member, number in self._received[survivor].items():
                if number > best.get(member, -1):
                    best[member], holders[member] = number, survivor
        return LastMessages(self.number, best, holders)

    def open_question(self) -> tuple[Flush | LastMessages, list[int]]:
        """What is to be asked, and who has not answered it."""
        if self._last_messages is None:
            return Flush(self.number, self.members), [m for m in self.survivors if m not in self._received]
        return self._last_messages, [m for m in self.survivors if m not in self._ready]

    def next_view(self) -> NextView | None:
        """The next view, once everybody who goes on has all of the cut."""
        if self._last_messages is None or len(self._ready) < len(self.survivors):
            return None
        return NextView(self.members, self._last_messages.received)
