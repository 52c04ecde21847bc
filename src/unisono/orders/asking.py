"""What one member of a quasi-genuine group says to single members of others, and whom it asks for a group's barrier."""

from __future__ import annotations

from collections.abc import Callable

from unisono.model.policy import Policy
from unisono.wire.frame import Frame, Kind
from unisono.wire.multigroup import Want, encode_want


class Asking:
    """Frames on their way `down`; `members` says who is in a group."""

    def __init__(self, policy: Policy, members: Callable[[int], tuple[int, ...]], down: list[Frame]) -> None:
        self._policy, self._members, self._down = policy, members, down
        self.guides: dict[int, int] = {}
        """By other group, who seems to lead it."""

    def say(self, now: int, kind: Kind, body: bytes, to: int) -> None:
        """Send a body to a member."""
        me = self._policy
        self._down.append(Frame(kind, me.member, me.incarnation, me.epoch, 0, 0, sent_ns=now, body=body, to=to))

    def ask(self, now: int, group: int, want: Want, *, everybody: bool = False) -> None:
        """Ask who leads a group for a barrier; everybody there, if that is not known or did not help."""
        guide = self.guides.get(group)
        for member in self._members(group) if guide is None or everybody else (guide,):
            self.say(now, Kind.CALL, encode_want(want), member)
