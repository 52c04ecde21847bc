"""Links between groups that open and close while the groups run (paper 003, assumption A1 over time).

The paper fixes sendersTo(G) and receiversFrom(G). Here a group may change the groups that it sends to. Every group
concerned agrees on each step by consensus, so all members of a group switch at the same point of their log.

Opening a link: the sending group asks the receiver to admit it (ADMIT). The receiver agrees at a point of its log. Let
s be its last stamp at that point. All that it delivered before has stamps up to s; beyond s it waits for the sender's
barriers. Its answer (ADMITTED) carries s. The sending group agrees to use only larger stamps, and only then accepts
messages for the receiver.

Closing a link: all members of the sending group confirm, behind the messages that they have submitted, that they
submit no more for the receiver. Then the stream has an end. The receiver agrees to stop waiting once it has all
entries up to there (RELEASE, RELEASED). A member that has been suspected for a while does not block this
(SKIP_MEMBER). If it is alive after all, its later messages to that receiver are refused as a whole, and it gets a
violation.

`TopologyState` is the agreed state, a function of the decided sequence alone. `TopologyExchange` repeats requests to
other groups until the answer is known here, so any message may be lost and a new leader can continue.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from unisono.model.units import NS_PER_S
from unisono.orders.quasi_genuine.messages import (
    ConfirmTopology,
    IncomingLinkState,
    OutgoingLinkState,
    SetReceivers,
    TopologyControl,
    TopologyMessage,
    TopologySnapshot,
    TopologyStep,
)

SKIP_SUSPECTED_AFTER_NS = 2 * NS_PER_S
"""A member suspected for this long no longer blocks its group from closing a link."""
PROPOSED_AT_ONCE = 8
"""At most this many topology messages go into one proposal."""


class LinkState(IntEnum):
    """The states of a link over which the own group sends to one other group."""

    UNLINKED = 0
    OPENING = 1
    """The own group asks the receiver to admit it as a sender."""
    OPEN = 2
    CLOSING = 3
    """The own group accepts no new messages for the receiver, and waits until all its members have confirmed that."""
    CLOSED = 4
    """The stream to the receiver has ended; the own group asks the receiver to stop waiting for its barriers."""


SENDING_STATES = frozenset({LinkState.OPEN, LinkState.CLOSING})
"""In these states a message decided for the other group becomes an entry of its stream."""


@dataclass(slots=True)
class OutgoingLink:
    """The link over which the own group sends to one other group, as the own group has agreed on it."""

    state: LinkState = LinkState.UNLINKED
    epoch: int = 0
    head: int = 0
    """The number of entries of the stream when the link was last closed."""
    closing_version: int = 0
    """The version of the topology since which the link closes."""


@dataclass(slots=True)
class IncomingLink:
    """The link from one other group. `head` counts the entries up to the last time that the link opened or closed."""

    epoch: int
    open: bool = True
    stamp: int = 0
    """The own group's last stamp when the link opened: all entries have larger stamps."""
    head: int = 0


class TopologyState:
    """The own group's links, as one member reads them from the decided sequence."""

    def __init__(
        self, own_group: int, receivers: tuple[int, ...], senders: tuple[int, ...], group_members: tuple[int, ...]
    ) -> None:
        self._own_group, self._group_members = own_group, group_members
        self.version = 0
        """The number of topology changes so far."""
        self.change_count = 0
        """A counter that grows with every change of this state, so that others notice a change."""
        self.wanted_mask = sum(1 << receiver for receiver in receivers)
        """The groups that the own group is to send to, by the last change."""
        self.outgoing = {receiver: OutgoingLink(LinkState.OPEN, 1) for receiver in receivers if receiver != own_group}
        self.incoming = {sender: IncomingLink(1) for sender in senders if sender != own_group}
        self.confirmed_versions: dict[int, int] = {}
        """By member of the own group, the version that it has confirmed last."""

    # -- decisions -------------------------------------------------------------------------------------------

    def apply_control(self, sender: int, control: TopologyControl) -> None:
        """Apply a decided control message of a member of the own group."""
        if isinstance(control, ConfirmTopology):
            self.confirmed_versions[sender] = max(control.version, self.confirmed_versions.get(sender, 0))
        else:
            self._set_receivers(control)
        self._close_confirmed_links()

    def _close_confirmed_links(self) -> None:
        for link in self.outgoing.values():
            if link.state is LinkState.CLOSING and all(
                self.confirmed_versions.get(member, 0) >= link.closing_version for member in self._group_members
            ):
                link.state = LinkState.CLOSED
                self.change_count += 1

    def _set_receivers(self, request: SetReceivers) -> None:
        self.version += 1
        self.change_count += 1
        self.wanted_mask = request.receiver_mask
        for group in range(request.receiver_mask.bit_length()):
            if request.receiver_mask >> group & 1 and group != self._own_group:
                link = self.outgoing.setdefault(group, OutgoingLink())
                if link.state is LinkState.UNLINKED:
                    link.state, link.epoch = LinkState.OPENING, link.epoch + 1
                elif link.state is LinkState.CLOSING:
                    link.state = LinkState.OPEN
        for group, link in self.outgoing.items():
            if link.state is LinkState.OPEN and not request.receiver_mask >> group & 1:
                link.state, link.closing_version = LinkState.CLOSING, self.version

    def would_change(self, message: TopologyMessage) -> bool:
        """Whether deciding this message would change the state."""
        if message.step is TopologyStep.SKIP_MEMBER:
            return (
                message.group == self._own_group
                and message.epoch == self.version
                and self.awaits_confirmation_of(message.head)
            )
        if message.step in {TopologyStep.ADMIT, TopologyStep.RELEASE}:
            incoming = self.incoming.get(message.group)
            if message.step is TopologyStep.ADMIT:
                return incoming is None or incoming.epoch < message.epoch
            return incoming is not None and incoming.open and incoming.epoch == message.epoch
        outgoing = self.outgoing.get(message.group)
        awaited = LinkState.OPENING if message.step is TopologyStep.ADMITTED else LinkState.CLOSED
        return outgoing is not None and outgoing.state is awaited and outgoing.epoch == message.epoch

    def apply(self, message: TopologyMessage, last_stamp: int) -> None:
        """Apply a topology message that the own group decided when its last stamp was `last_stamp`."""
        if not self.would_change(message):
            return
        self.change_count += 1
        match message.step:
            case TopologyStep.ADMIT:
                self.incoming[message.group] = IncomingLink(message.epoch, stamp=last_stamp, head=message.head)
            case TopologyStep.RELEASE:
                incoming = self.incoming[message.group]
                incoming.open, incoming.head = False, message.head
            case TopologyStep.ADMITTED:
                # No member has been allowed to send there yet. If the link is no longer wanted, it closes at once.
                wanted = self.wanted_mask >> message.group & 1
                self.outgoing[message.group].state = LinkState.OPEN if wanted else LinkState.CLOSED
            case TopologyStep.SKIP_MEMBER:
                self.confirmed_versions[message.head] = message.epoch
                self._close_confirmed_links()
            case TopologyStep.RELEASED:
                outgoing = self.outgoing[message.group]
                outgoing.state = LinkState.UNLINKED
                if self.wanted_mask >> message.group & 1:
                    outgoing.state, outgoing.epoch = LinkState.OPENING, outgoing.epoch + 1

    # -- questions -------------------------------------------------------------------------------------------

    def allowed_mask(self) -> int:
        """The groups for which messages are accepted now, as a mask with one bit per group."""
        mask = self.wanted_mask & 1 << self._own_group
        for group, link in self.outgoing.items():
            if link.state is LinkState.OPEN:
                mask |= 1 << group
        return mask

    def awaits_confirmation_of(self, member: int) -> bool:
        """Whether a closing link waits for this member's confirmation."""
        return any(
            link.state is LinkState.CLOSING and self.confirmed_versions.get(member, 0) < link.closing_version
            for link in self.outgoing.values()
        )

    def skip_member_proposals(self) -> list[TopologyMessage]:
        """A SKIP_MEMBER message for each member that closing links wait for, to propose if that member is dead."""
        return [
            TopologyMessage(TopologyStep.SKIP_MEMBER, self._own_group, self.version, member)
            for member in self._group_members
            if self.awaits_confirmation_of(member)
        ]

    def is_settled(self) -> bool:
        """Whether all changes of this group's links to other groups are complete, on both sides."""
        return all(link.state in {LinkState.UNLINKED, LinkState.OPEN} for link in self.outgoing.values())

    def receivers(self) -> tuple[int, ...]:
        """The groups that wait for this one's barriers, or are about to."""
        return tuple(group for group, link in sorted(self.outgoing.items()) if link.state is not LinkState.UNLINKED)

    def senders(self) -> tuple[int, ...]:
        """The groups whose barriers this one waits for."""
        return tuple(group for group, link in sorted(self.incoming.items()) if link.open)

    def requests(self) -> list[tuple[int, TopologyMessage]]:
        """Requests to other groups that are not answered yet, by receiving group."""
        found = []
        for group, link in self.outgoing.items():
            if link.state is LinkState.OPENING:
                found.append((group, TopologyMessage(TopologyStep.ADMIT, self._own_group, link.epoch, link.head)))
            elif link.state is LinkState.CLOSED:
                found.append((group, TopologyMessage(TopologyStep.RELEASE, self._own_group, link.epoch, link.head)))
        return found

    def answer(self, group: int) -> TopologyMessage | None:
        """The answer to another group's request, from the state of its link; None if it never sent here."""
        link = self.incoming.get(group)
        if link is None:
            return None
        if link.open:
            return TopologyMessage(TopologyStep.ADMITTED, self._own_group, link.epoch, stamp=link.stamp)
        return TopologyMessage(TopologyStep.RELEASED, self._own_group, link.epoch)

    # -- snapshots -------------------------------------------------------------------------------------------

    def save(self) -> TopologySnapshot:
        """The agreed topology as a part of a snapshot."""
        return TopologySnapshot(
            self.version,
            self.wanted_mask,
            {
                group: OutgoingLinkState(link.state, link.epoch, link.head, link.closing_version)
                for group, link in self.outgoing.items()
            },
            {
                group: IncomingLinkState(link.epoch, link.open, link.stamp, link.head)
                for group, link in self.incoming.items()
            },
            dict(self.confirmed_versions),
        )

    def restore(self, snapshot: TopologySnapshot) -> None:
        """Continue from a snapshot."""
        self.change_count += snapshot != self.save()
        self.version, self.wanted_mask = snapshot.version, snapshot.wanted_mask
        self.confirmed_versions = dict(snapshot.confirmed_versions)
        self.outgoing = {
            group: OutgoingLink(LinkState(state), *fields) for group, (state, *fields) in snapshot.outgoing.items()
        }
        self.incoming = {group: IncomingLink(*fields) for group, fields in snapshot.incoming.items()}


class TopologyExchange:
    """One member's part in the exchange of topology messages between groups."""

    def __init__(self, topology: TopologyState, *, retry_ns: int) -> None:
        self._topology, self._retry_ns = topology, retry_ns
        self._due_at = 0
        self._requests, self._skip_member_proposals = topology.requests(), topology.skip_member_proposals()
        self._suspected_since: dict[int, int] = {}
        """By suspected member of the own group that a closing link waits for, since when it is suspected."""
        self._to_propose: dict[tuple[TopologyStep, int], TopologyMessage] = {}
        """Messages that the own group is to agree on; the other groups repeat them until it has."""
        self._answers: dict[int, TopologyMessage | None] = {
            group: topology.answer(group) for group in topology.incoming
        }
        """By sending group, the latest answer to its requests."""

    def receive(self, message: TopologyMessage, *, leads: bool) -> TopologyMessage | None:
        """Receive a message of another group. If this member leads and the message is new, it will propose it.

        Returns the answer if the message is a request that the own group has already decided.
        """
        if message.step is TopologyStep.SKIP_MEMBER:
            return None
        if self._topology.would_change(message):
            if leads:
                self._to_propose[message.step, message.group] = message
            return None
        if message.step not in {TopologyStep.ADMIT, TopologyStep.RELEASE}:
            return None
        answer = self._topology.answer(message.group)
        return answer if answer is not None and answer.epoch >= message.epoch else None

    def pop_to_propose(self) -> list[TopologyMessage]:
        """Remove and return the next messages that the own group is to agree on."""
        first = list(self._to_propose)[:PROPOSED_AT_ONCE]
        return [self._to_propose.pop(key) for key in first]

    def start_term(self, now: int) -> None:
        """Start a new leader's term: repeat all open requests."""
        self._due_at = now
        self._suspected_since.clear()
        self._to_propose.clear()

    def on_topology_changed(self, now: int) -> list[tuple[int, TopologyMessage]]:
        """Follow a change of the topology. Returns the new answers for a leader to send, by receiving group."""
        new_answers: list[tuple[int, TopologyMessage]] = []
        for group in self._topology.incoming:
            answer = self._topology.answer(group)
            if answer is not None and answer != self._answers.get(group):
                self._answers[group] = answer
                new_answers.append((group, answer))
        self._due_at = now
        self._requests = self._topology.requests()
        self._skip_member_proposals = self._topology.skip_member_proposals()
        return new_answers

    def wake(self, now: int, is_suspected: Callable[[int], bool]) -> list[tuple[int, TopologyMessage]]:
        """Return the requests to send now, by receiving group.

        Also propose to skip members that have been suspected for too long.
        """
        if now < self._due_at or not (self._requests or self._skip_member_proposals):
            return []
        self._due_at = now + self._retry_ns
        for proposal in self._skip_member_proposals:
            member = proposal.head
            if not is_suspected(member):
                self._suspected_since.pop(member, None)
                continue
            since = self._suspected_since.setdefault(member, now)
            if now >= since + SKIP_SUSPECTED_AFTER_NS and self._topology.would_change(proposal):
                self._to_propose[proposal.step, member] = proposal
        return self._requests

    def due_at(self) -> int | None:
        """When to repeat the open requests to other groups; None if there are none."""
        return self._due_at if self._requests or self._skip_member_proposals else None
