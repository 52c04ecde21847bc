"""Who wants to come into a view and who wants to go, and what the next view should be for all that one member knows."""

from __future__ import annotations

from unisono.agreement.failure_detector import Detector
from unisono.agreement.membership.messages import Vector

PATIENCE = 8
"""A newcomer that is not heard for so many time-outs has given up."""


class Wishes:
    """Newcomers with their incarnations, and members that want to leave."""

    def __init__(self, detector: Detector) -> None:
        self.going: set[int] = set()
        self._detector = detector
        self._coming: dict[int, tuple[int, int]] = {}
        """By member, its incarnation and when it last asked."""

    def come(self, now: int, lives: Vector, member: int, life: int) -> None:
        """A newcomer, or a member in another life, asks."""
        self._coming[member] = (life, now)
        self._detector.watch(now, {*lives, *self._coming})

    def coming(self, member: int) -> int | None:
        """The incarnation in which a member wants to come."""
        return self._coming[member][0] if member in self._coming else None

    def none(self) -> bool:
        """Whether nobody comes, goes or is suspected."""
        return not self.going and not self._coming and not self._detector.suspects()

    def wanted(self, lives: Vector) -> dict[int, int]:
        """The next view: without those who are suspected or go, with those who come."""
        suspected = self._detector.suspected
        wanted = {m: life for m, life in lives.items() if not suspected(m) and m not in self.going}
        for member, (life, _) in self._coming.items():
            if life > lives.get(member, -1) and not suspected(member):
                wanted[member] = life
        return dict(sorted(wanted.items()))

    def begin(self, now: int, lives: Vector) -> None:
        """A view begins: the wishes that it fulfils are over. Who still wants to go says so when it may go from it."""
        self.going = set()
        self._coming = {m: wish for m, wish in self._coming.items() if wish[0] > lives.get(m, -1)}
        self._detector.watch(now, {*lives, *self._coming})

    def forget(self, now: int, retry_ns: int) -> None:
        """Those who have given up."""
        for member, (_, heard) in list(self._coming.items()):
            if now - heard > PATIENCE * max(retry_ns, self._detector.timeout_ns(member)):
                del self._coming[member]
