"""Who wants to come into a view and who wants to go, and what the next view should be for all that one member knows."""

from __future__ import annotations

from unisono.agreement.failure_detector import FailureDetector
from unisono.agreement.membership.messages import Vector

JOIN_REQUEST_TIMEOUTS = 8
"""A newcomer that is not heard for so many time-outs has given up."""


class MembershipRequests:
    """Newcomers with their incarnations, and members that want to leave."""

    def __init__(self, detector: FailureDetector) -> None:
        self.leaving: set[int] = set()
        self._detector = detector
        self._joining: dict[int, tuple[int, int]] = {}
        """By member, its incarnation and when it last asked."""

    def request_join(self, now: int, incarnations: Vector, member: int, incarnation: int) -> None:
        """A newcomer, or a member in another life, asks."""
        self._joining[member] = (incarnation, now)
        self._detector.set_peers(now, {*incarnations, *self._joining})

    def joining_incarnation(self, member: int) -> int | None:
        """The incarnation in which a member wants to come."""
        return self._joining[member][0] if member in self._joining else None

    def no_change_needed(self) -> bool:
        """Whether nobody comes, goes or is suspected."""
        return not self.leaving and not self._joining and not self._detector.suspects_any()

    def next_members(self, incarnations: Vector) -> dict[int, int]:
        """The next view: without those who are suspected or go, with those who come."""
        suspected = self._detector.suspected
        wanted = {m: life for m, life in incarnations.items() if not suspected(m) and m not in self.leaving}
        for member, (life, _) in self._joining.items():
            if life > incarnations.get(member, -1) and not suspected(member):
                wanted[member] = life
        return dict(sorted(wanted.items()))

    def start_view(self, now: int, incarnations: Vector) -> None:
        """A view begins: the wishes that it fulfils are over. Who still wants to go says so when it may go from it."""
        self.leaving = set()
        self._joining = {m: wish for m, wish in self._joining.items() if wish[0] > incarnations.get(m, -1)}
        self._detector.set_peers(now, {*incarnations, *self._joining})

    def expire(self, now: int, retry_ns: int) -> None:
        """Those who have given up."""
        for member, (_, heard) in list(self._joining.items()):
            if now - heard > JOIN_REQUEST_TIMEOUTS * max(retry_ns, self._detector.timeout_ns(member)):
                del self._joining[member]
