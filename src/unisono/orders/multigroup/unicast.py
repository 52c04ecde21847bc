"""What one member of a quasi-genuine group says to single members of others, and whom it asks for a group's barrier."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from unisono.model.policy import Policy
from unisono.orders.multigroup.messages import BarrierRequest, encode_barrier_request
from unisono.wire.frame import Frame, Kind


def relay_of(members: Iterable[int], leader: int | None) -> int | None:
    """Who sends on what a group has decided: where two are a majority, one that the leader's proposals reach.

    Such a member decides what it accepts, for the leader has accepted it before; the leader knows two ways later.
    """
    others = [member for member in members if member != leader]
    return None if leader is None or not 1 <= len(others) <= 2 else min(others)


class GroupContacts:
    """Frames on their way `down`; `members` says who is in a group."""

    def __init__(self, policy: Policy, members_of: Callable[[int], tuple[int, ...]], down: list[Frame]) -> None:
        self._policy, self._members_of, self._down = policy, members_of, down
        self.known_leaders: dict[int, int] = {}
        """By other group, who seems to lead it."""

    def unicast(self, now: int, kind: Kind, body: bytes, to: int) -> None:
        """Send a body to a member."""
        me = self._policy
        self._down.append(Frame(kind, me.member, me.incarnation, me.epoch, 0, 0, sent_ns=now, body=body, to=to))

    def update_leader(self, group: int, frame: Frame) -> int:
        """Who leads a group, as far as this frame of its stream tells: who is to hear what has come."""
        if frame.burst:
            self.known_leaders[group] = frame.sender
        return self.known_leaders.get(group, frame.sender)

    def request_barrier(self, now: int, group: int, request: BarrierRequest, *, all_members: bool = False) -> None:
        """Ask a group's leader and its herald for a barrier; everybody there, if they are not known or did not help."""
        guide, members = self.known_leaders.get(group), self._members_of(group)
        for member in members:
            if guide is None or all_members or member in {guide, relay_of(members, guide)}:
                self.unicast(now, Kind.BARRIER_REQUEST, encode_barrier_request(request), member)
