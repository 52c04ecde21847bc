"""Who may send to whom, as one group has agreed on it: sendersTo(G) and receiversFrom(G) over time.

The paper's assumption A1 gives the relation; here it may change while the groups run. A function of the decided
sequence alone, so all members of a group switch at the same point.

To send to another group, the group first asks to be admitted. The receiver agrees on that at a point of its log: what
it delivered before has stamps up to the last one there, and from there on it waits for the sender's barriers. The
sender agrees to give larger stamps than that, and only then hands out anything. To stop, all members of the group first
confirm that they hand in nothing more, behind what they have handed in; then the stream has an end. The receiver agrees
to wait no longer once it has all entries up to there. A member that is gone is not waited for: should it be there after
all, what it hands in later for that receiver is refused, whole, and it is told.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from unisono.orders.multigroup.stored_state import TopologySnapshot
from unisono.orders.multigroup.topology_messages import (
    ConfirmTopology,
    SetReceivers,
    TopologyControl,
    TopologyMessage,
    TopologyStep,
)


class LinkState(IntEnum):
    """How far it is with sending to another group."""

    UNLINKED = 0
    OPENING = 1
    """Asks to be admitted."""
    OPEN = 2
    CLOSING = 3
    """Takes nothing new; waits until all members have confirmed that."""
    CLOSED = 4
    """The stream has an end, which the receiver is told."""


SENDING_STATES = frozenset({LinkState.OPEN, LinkState.CLOSING})
"""What is decided for the other group becomes an entry."""


@dataclass(slots=True)
class OutgoingLink:
    """Sending to one other group."""

    state: LinkState = LinkState.UNLINKED
    epoch: int = 0
    head: int = 0
    """How many entries there had been when it closed last."""
    closing_version: int = 0
    """The version of the relation since which it closes."""


@dataclass(slots=True)
class IncomingLink:
    """One other group that sends here; `head` entries have come before it began, or in all once it has ended."""

    epoch: int
    open: bool = True
    stamp: int = 0
    """What the group had stamped when it began: nothing that comes has a smaller stamp."""
    head: int = 0


class TopologyState:
    """One member's reading of what its group agreed on. Groups are their numbers."""

    def __init__(
        self, own_group: int, receivers: tuple[int, ...], senders: tuple[int, ...], group_members: tuple[int, ...]
    ) -> None:
        self._own_group, self._group_members = own_group, group_members
        self.version = 0
        """How often the relation has been changed."""
        self.change_count = 0
        """Grows with whatever changes here."""
        self.wanted_mask = sum(1 << receiver for receiver in receivers)
        self.outgoing = {receiver: OutgoingLink(LinkState.OPEN, 1) for receiver in receivers if receiver != own_group}
        self.incoming = {sender: IncomingLink(1) for sender in senders if sender != own_group}
        self.confirmed_versions: dict[int, int] = {}
        """By member, the version behind which it hands in nothing else."""

    # -- what is decided -------------------------------------------------------------------------------------

    def apply_control(self, sender: int, control: TopologyControl) -> None:
        """A member wishes for another relation, or has heard of one."""
        if isinstance(control, ConfirmTopology):
            self.confirmed_versions[sender] = max(control.version, self.confirmed_versions.get(sender, 0))
        else:
            self._set_receivers(control)
        self._close_confirmed_links()

    def _close_confirmed_links(self) -> None:
        for tied in self.outgoing.values():
            if tied.state is LinkState.CLOSING and all(
                self.confirmed_versions.get(mate, 0) >= tied.closing_version for mate in self._group_members
            ):
                tied.state = LinkState.CLOSED
                self.change_count += 1

    def _set_receivers(self, request: SetReceivers) -> None:
        self.version += 1
        self.change_count += 1
        self.wanted_mask = request.receiver_mask
        for group in range(request.receiver_mask.bit_length()):
            if request.receiver_mask >> group & 1 and group != self._own_group:
                tied = self.outgoing.setdefault(group, OutgoingLink())
                if tied.state is LinkState.UNLINKED:
                    tied.state, tied.epoch = LinkState.OPENING, tied.epoch + 1
                elif tied.state is LinkState.CLOSING:
                    tied.state = LinkState.OPEN
        for group, tied in self.outgoing.items():
            if tied.state is LinkState.OPEN and not request.receiver_mask >> group & 1:
                tied.state, tied.closing_version = LinkState.CLOSING, self.version

    def would_change(self, message: TopologyMessage) -> bool:
        """Whether agreeing on this would change anything."""
        if message.step is TopologyStep.SKIP_MEMBER:
            return (
                message.group == self._own_group
                and message.epoch == self.version
                and self.awaits_confirmation_of(message.head)
            )
        if message.step in {TopologyStep.ADMIT, TopologyStep.RELEASE}:
            came = self.incoming.get(message.group)
            if message.step is TopologyStep.ADMIT:
                return came is None or came.epoch < message.epoch
            return came is not None and came.open and came.epoch == message.epoch
        tied = self.outgoing.get(message.group)
        awaited = LinkState.OPENING if message.step is TopologyStep.ADMITTED else LinkState.CLOSED
        return tied is not None and tied.state is awaited and tied.epoch == message.epoch

    def apply(self, message: TopologyMessage, last_stamp: int) -> None:
        """What another group said has been decided here, behind the stamp `last`."""
        if not self.would_change(message):
            return
        self.change_count += 1
        match message.step:
            case TopologyStep.ADMIT:
                self.incoming[message.group] = IncomingLink(message.epoch, stamp=last_stamp, head=message.head)
            case TopologyStep.RELEASE:
                came = self.incoming[message.group]
                came.open, came.head = False, message.head
            case TopologyStep.ADMITTED:
                tied = self.outgoing[message.group]
                # Nobody has been allowed to send there yet: if nobody wants to any more, it ends at once.
                tied.state = LinkState.OPEN if self.wanted_mask >> message.group & 1 else LinkState.CLOSED
            case TopologyStep.SKIP_MEMBER:
                self.confirmed_versions[message.head] = message.epoch
                self._close_confirmed_links()
            case TopologyStep.RELEASED:
                tied = self.outgoing[message.group]
                tied.state = LinkState.UNLINKED
                if self.wanted_mask >> message.group & 1:
                    tied.state, tied.epoch = LinkState.OPENING, tied.epoch + 1

    # -- questions -------------------------------------------------------------------------------------------

    def allowed_mask(self) -> int:
        """The groups to which messages are accepted now."""
        mask = self.wanted_mask & 1 << self._own_group
        for group, tied in self.outgoing.items():
            if tied.state is LinkState.OPEN:
                mask |= 1 << group
        return mask

    def awaits_confirmation_of(self, member: int) -> bool:
        """Whether something that closes waits for this member."""
        return any(
            tied.state is LinkState.CLOSING and self.confirmed_versions.get(member, 0) < tied.closing_version
            for tied in self.outgoing.values()
        )

    def skip_member_proposals(self) -> list[TopologyMessage]:
        """What could be agreed on if the members that something which closes waits for are gone."""
        return [
            TopologyMessage(TopologyStep.SKIP_MEMBER, self._own_group, self.version, mate)
            for mate in self._group_members
            if self.awaits_confirmation_of(mate)
        ]

    def is_settled(self) -> bool:
        """Whether all that was wished for is so, here and in the other groups."""
        return all(tied.state in {LinkState.UNLINKED, LinkState.OPEN} for tied in self.outgoing.values())

    def receivers(self) -> tuple[int, ...]:
        """The groups that wait for this one's barriers, or will in a moment."""
        return tuple(group for group, tied in sorted(self.outgoing.items()) if tied.state is not LinkState.UNLINKED)

    def senders(self) -> tuple[int, ...]:
        """The groups whose barriers this one waits for."""
        return tuple(group for group, came in sorted(self.incoming.items()) if came.open)

    def requests(self) -> list[tuple[int, TopologyMessage]]:
        """What other groups are to agree on."""
        found = []
        for group, tied in self.outgoing.items():
            if tied.state is LinkState.OPENING:
                found.append((group, TopologyMessage(TopologyStep.ADMIT, self._own_group, tied.epoch, tied.head)))
            elif tied.state is LinkState.CLOSED:
                found.append((group, TopologyMessage(TopologyStep.RELEASE, self._own_group, tied.epoch, tied.head)))
        return found

    def answer(self, group: int) -> TopologyMessage | None:
        """How it is with what another group sends here."""
        came = self.incoming.get(group)
        if came is None:
            return None
        if came.open:
            return TopologyMessage(TopologyStep.ADMITTED, self._own_group, came.epoch, stamp=came.stamp)
        return TopologyMessage(TopologyStep.RELEASED, self._own_group, came.epoch)

    # -- states ----------------------------------------------------------------------------------------------

    def save(self) -> TopologySnapshot:
        """What stands for all that was decided of it."""
        return TopologySnapshot(
            self.version,
            self.wanted_mask,
            {group: (tied.state, tied.epoch, tied.head, tied.closing_version) for group, tied in self.outgoing.items()},
            {group: (came.epoch, came.open, came.stamp, came.head) for group, came in self.incoming.items()},
            dict(self.confirmed_versions),
        )

    def restore(self, state: TopologySnapshot) -> None:
        """Go on from a state."""
        self.change_count += state != self.save()
        self.version, self.wanted_mask, self.confirmed_versions = (
            state.version,
            state.wanted_mask,
            dict(state.confirmed_versions),
        )
        self.outgoing = {group: OutgoingLink(LinkState(tied[0]), *tied[1:]) for group, tied in state.outgoing.items()}
        self.incoming = {group: IncomingLink(*came) for group, came in state.incoming.items()}
