"""What a group's leader proposes next: the messages whose window is over, and a null where a barrier is needed.

Nulls on demand bring the stamps as far as somebody needs (Algorithm 3 lines 9-14); periodic ones say that nothing was
sent for `barrierThreshold` (Algorithm 2). Either is numbered, and of one number the first that is decided counts, so
that the nulls of two leaders are recognised as equivalent. `lastBarrierCreated` begins with the first clock reading
(erratum 003-11), and is the last stamp, which all members share (erratum 003-18).
"""

from __future__ import annotations

from unisono.model.topology import Multigroup
from unisono.orders.multigroup.barrier_requests import BarrierCalls
from unisono.orders.multigroup.group_log import GroupLog
from unisono.orders.multigroup.messages import Heard, Item, Null, encode_value, stamp_of, time_of
from unisono.orders.multigroup.proposals import Proposals
from unisono.orders.multigroup.streams import Outward
from unisono.orders.multigroup.topology_messages import Bond, What
from unisono.orders.multigroup.topology_state import Tie

NULL_BYTES = 64
"""What is kept free in a value for a null and notes of what is not needed any more."""
HEARD_AT_ONCE = 2
BONDS_AT_ONCE = 8


class GroupLeading:
    """One member's proposals, while it leads."""

    def __init__(
        self, rules: Multigroup, log: GroupLog, proposals: Proposals, calls: BarrierCalls, outward: Outward
    ) -> None:
        self._rules, self._log, self._proposals, self._calls, self._outward = rules, log, proposals, calls, outward
        self._covered = self._nulls = 0
        """How far what was proposed brings the stamps, and the number of the next null."""
        self._null_under_way = False
        self._since = 0
        self.bonds: dict[tuple[What, int], Bond] = {}
        """What is to be agreed on of who may send to whom."""

    def begin(self, now: int) -> None:
        """A new reign: what is not settled is proposed again."""
        self._since = now
        for sender, life in self._proposals.senders():
            self._proposals.again(sender, self._log.settled(sender, life))
        self.landed()

    def landed(self) -> None:
        """Nothing is under way any more: what was proposed has brought the stamps as far as they are."""
        self._covered, self._nulls, self._null_under_way = self._log.last, self._log.nulls, False

    def value(self, now: int, window_ns: int, room: int) -> bytes | None:
        """The next value, if there is anything to propose now; bonds have one of their own."""
        if self.bonds:
            first = list(self.bonds)[:BONDS_AT_ONCE]
            return encode_value([self.bonds.pop(what) for what in first])
        horizon = now - window_ns
        casts, top = self._proposals.take(horizon, room - NULL_BYTES)
        items: list[Item] = list(casts)
        self._covered = max(self._covered, top, self._log.last)
        null = self._null(horizon, window_ns)
        if null is not None:
            items.append(null)
            self._nulls, self._null_under_way = null.number + 1, True
            self._covered = max(self._covered, null.stamp)
        items += self._heard(ended_only=not items)
        return encode_value(items) if items else None

    def _null(self, horizon: int, window_ns: int) -> Null | None:
        number = max(self._nulls, self._log.nulls)
        if self._rules.liveness == "on_demand":
            wanted = self._calls.wanted(
                self._log.last, self._covered, stamp_of(horizon + 1, 0) - 1 if window_ns else None
            )
            return None if wanted is None else Null(number, wanted)
        if self._null_under_way and self._log.nulls < self._nulls:
            return None
        if horizon < self._last_barrier() + self._rules.barrier_threshold_ns:
            return None
        return Null(number, stamp_of(horizon + 1, 0) - 1)

    def _last_barrier(self) -> int:
        return time_of(self._covered) if self._covered else self._since

    def _heard(self, *, ended_only: bool) -> list[Item]:
        """What everybody has; for that alone nothing is proposed, unless it lets go of a stream that has ended."""
        found: list[Item] = []
        for receiver, stream in self._log.streams.items():
            ended = self._log.relation.out[receiver].tie is Tie.APART
            if ended_only and not ended:
                continue
            upto = self._outward.heard(receiver, self._calls.members(receiver), stream, ended=ended)
            if upto is not None and len(found) < HEARD_AT_ONCE:
                found.append(Heard(receiver, upto))
        return found

    def due_at(self, window_ns: int) -> int | None:
        """When there will be something to propose, if nothing happens before."""
        first = self._proposals.due_at()
        times = [] if first is None else [first + window_ns]
        if self._rules.liveness == "periodic":
            if not (self._null_under_way and self._log.nulls < self._nulls):
                times.append(self._last_barrier() + self._rules.barrier_threshold_ns + window_ns)
        elif (wanted := self._calls.first_wanted(self._covered)) is not None:
            times.append(time_of(wanted) + window_ns)
        return min(times, default=None)
