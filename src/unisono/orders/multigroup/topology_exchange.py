"""What groups say to each other when who may send to whom changes: leaders ask, and whoever knows answers.

Asked is until the other group has agreed and this one has heard of it, so any of it may be lost, and a new leader goes
on where it was.
"""

from __future__ import annotations

from collections.abc import Callable

from unisono.model.durations import NS_PER_S
from unisono.orders.multigroup.topology_messages import TopologyMessage, TopologyStep, encode_topology_message
from unisono.orders.multigroup.topology_state import TopologyState
from unisono.wire.frame import Kind

SKIP_SUSPECTED_AFTER_NS = 2 * NS_PER_S
"""A member that is taken for dead for so long is not waited for when its group stops sending somewhere."""
UnicastFunction = Callable[[int, Kind, bytes, int], None]


class TopologyExchange:
    """The part of one member; `members` says who is in a group, `say` sends a body to one of them."""

    def __init__(
        self,
        topology: TopologyState,
        members_of: Callable[[int], tuple[int, ...]],
        unicast: UnicastFunction,
        *,
        retry_ns: int,
    ) -> None:
        self._topology, self._members_of, self._unicast, self._retry_ns = topology, members_of, unicast, retry_ns
        self._due_at = 0
        self._requests, self._skip_member_proposals = topology.requests(), topology.skip_member_proposals()
        self._suspected_since: dict[int, int] = {}
        """By member of the own group that is waited for and taken for dead, since when."""
        self.to_propose: dict[tuple[TopologyStep, int], TopologyMessage] = {}
        """What the own group is to agree on; others ask again until it has."""
        self._sent_answers: dict[int, TopologyMessage | None] = {
            group: topology.answer(group) for group in topology.incoming
        }

    def receive(self, now: int, sender: int, message: TopologyMessage, *, leads: bool) -> None:
        """Another group asks or answers: a leader has it agreed on. What has been agreed on is answered."""
        if message.step is TopologyStep.SKIP_MEMBER:
            return
        if self._topology.would_change(message):
            if leads:
                self.to_propose[message.step, message.group] = message
            return
        answer = self._topology.answer(message.group)
        if (
            message.step in {TopologyStep.ADMIT, TopologyStep.RELEASE}
            and answer is not None
            and answer.epoch >= message.epoch
        ):
            self._unicast(now, Kind.TOPOLOGY, encode_topology_message(answer), sender)

    def start_term(self, now: int) -> None:
        """A new reign."""
        self._due_at = now
        self._suspected_since.clear()
        self.to_propose.clear()

    def on_topology_changed(self, now: int, *, leads: bool) -> None:
        """The relation has changed: a leader tells those who wait for that, and asks what is to be asked."""
        for group in self._topology.incoming:
            answer = self._topology.answer(group)
            if answer is not None and answer != self._sent_answers.get(group):
                self._sent_answers[group] = answer
                if leads:
                    self._send_to_group(now, group, answer)
        self._due_at, self._requests, self._skip_member_proposals = (
            now,
            self._topology.requests(),
            self._topology.skip_member_proposals(),
        )

    def wake(self, now: int, is_suspected: Callable[[int], bool]) -> None:
        """Ask, and ask again, what the other groups have not agreed on yet; wait no longer for mates that are gone."""
        if (self._requests or self._skip_member_proposals) and now >= self._due_at:
            self._due_at = now + self._retry_ns
            for group, bond in self._requests:
                self._send_to_group(now, group, bond)
            for bond in self._skip_member_proposals:
                if not is_suspected(bond.head):
                    self._suspected_since.pop(bond.head, None)
                elif now >= self._suspected_since.setdefault(
                    bond.head, now
                ) + SKIP_SUSPECTED_AFTER_NS and self._topology.would_change(bond):
                    self.to_propose[bond.step, bond.head] = bond

    def _send_to_group(self, now: int, group: int, message: TopologyMessage) -> None:
        for member in self._members_of(group):
            self._unicast(now, Kind.TOPOLOGY, encode_topology_message(message), member)

    def due_at(self) -> int | None:
        """When to ask again."""
        return self._due_at if self._requests or self._skip_member_proposals else None
