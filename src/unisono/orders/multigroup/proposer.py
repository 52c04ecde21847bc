"""What a group's leader proposes next: the messages whose window is over, and a null where a barrier is needed.

Nulls on demand bring the stamps as far as somebody needs (Algorithm 3 lines 9-14); periodic ones say that nothing was
sent for `barrierThreshold` (Algorithm 2). Either is numbered, and of one number the first that is decided counts, so
that the nulls of two leaders are recognised as equivalent. `lastBarrierCreated` begins with the first clock reading
(erratum 003-11), and is the last stamp, which all members share (erratum 003-18).
"""

from __future__ import annotations

from unisono.model.topology import Multigroup
from unisono.orders.multigroup.barrier_requests import BarrierRequests
from unisono.orders.multigroup.group_log import GroupLog
from unisono.orders.multigroup.messages import Item, Null, ReceivedByAll, encode_value, stamp_of, time_of
from unisono.orders.multigroup.proposals import PendingProposals
from unisono.orders.multigroup.streams import GroupStreams
from unisono.orders.multigroup.topology_messages import TopologyMessage, TopologyStep
from unisono.orders.multigroup.topology_state import LinkState

RESERVED_VALUE_BYTES = 64
"""What is kept free in a value for a null and notes of what is not needed any more."""
RECEIVED_BY_ALL_AT_ONCE = 2
TOPOLOGY_MESSAGES_AT_ONCE = 8


class GroupProposer:
    """One member's proposals, while it leads."""

    def __init__(
        self,
        multigroup: Multigroup,
        log: GroupLog,
        proposals: PendingProposals,
        barrier_requests: BarrierRequests,
        group_streams: GroupStreams,
    ) -> None:
        self._multigroup, self._log, self._proposals, self._barrier_requests, self._group_streams = (
            multigroup,
            log,
            proposals,
            barrier_requests,
            group_streams,
        )
        self._covered_stamp = self._next_null_number = 0
        """How far what was proposed brings the stamps, and the number of the next null."""
        self._null_undecided = False
        self._leading_since = 0
        self.topology_messages: dict[tuple[TopologyStep, int], TopologyMessage] = {}
        """What is to be agreed on of who may send to whom."""

    def start_term(self, now: int) -> None:
        """A new reign: what is not settled is proposed again."""
        self._leading_since = now
        for sender, life in self._proposals.senders():
            self._proposals.propose_again_from(sender, self._log.next_serial(sender, life))
        self.on_all_decided()

    def on_all_decided(self) -> None:
        """Nothing is under way any more: what was proposed has brought the stamps as far as they are."""
        self._covered_stamp, self._next_null_number, self._null_undecided = (
            self._log.last_stamp,
            self._log.null_count,
            False,
        )

    def next_value(self, now: int, window_ns: int, max_bytes: int) -> bytes | None:
        """The next value, if there is anything to propose now; bonds have one of their own."""
        if self.topology_messages:
            first = list(self.topology_messages)[:TOPOLOGY_MESSAGES_AT_ONCE]
            return encode_value([self.topology_messages.pop(what) for what in first])
        horizon = now - window_ns
        casts, top = self._proposals.pop_until(horizon, max_bytes - RESERVED_VALUE_BYTES)
        items: list[Item] = list(casts)
        self._covered_stamp = max(self._covered_stamp, top, self._log.last_stamp)
        null = self._null_if_needed(horizon, window_ns)
        if null is not None:
            items.append(null)
            self._next_null_number, self._null_undecided = null.number + 1, True
            self._covered_stamp = max(self._covered_stamp, null.stamp)
        items += self._received_by_all(ended_only=not items)
        return encode_value(items) if items else None

    def _null_if_needed(self, horizon: int, window_ns: int) -> Null | None:
        number = max(self._next_null_number, self._log.null_count)
        if self._multigroup.liveness == "on_demand":
            wanted = self._barrier_requests.largest_requested(
                self._log.last_stamp, self._covered_stamp, stamp_of(horizon + 1, 0) - 1 if window_ns else None
            )
            return None if wanted is None else Null(number, wanted)
        if self._null_undecided and self._log.null_count < self._next_null_number:
            return None
        if horizon < self._last_barrier_time() + self._multigroup.barrier_threshold_ns:
            return None
        return Null(number, stamp_of(horizon + 1, 0) - 1)

    def _last_barrier_time(self) -> int:
        return time_of(self._covered_stamp) if self._covered_stamp else self._leading_since

    def _received_by_all(self, *, ended_only: bool) -> list[Item]:
        """What everybody has; for that alone nothing is proposed, unless it lets go of a stream that has ended."""
        found: list[Item] = []
        for receiver, stream in self._log.streams.items():
            ended = self._log.topology.outgoing[receiver].state is LinkState.UNLINKED
            if ended_only and not ended:
                continue
            upto = self._group_streams.trimmable_entries(
                receiver, self._barrier_requests.members_of(receiver), stream, ended=ended
            )
            if upto is not None and len(found) < RECEIVED_BY_ALL_AT_ONCE:
                found.append(ReceivedByAll(receiver, upto))
        return found

    def due_at(self, window_ns: int) -> int | None:
        """When there will be something to propose, if nothing happens before."""
        first = self._proposals.first_timestamp()
        times = [] if first is None else [first + window_ns]
        if self._multigroup.liveness == "periodic":
            if not (self._null_undecided and self._log.null_count < self._next_null_number):
                times.append(self._last_barrier_time() + self._multigroup.barrier_threshold_ns + window_ns)
        elif (wanted := self._barrier_requests.first_requested(self._covered_stamp)) is not None:
            times.append(time_of(wanted) + window_ns)
        return min(times, default=None)
