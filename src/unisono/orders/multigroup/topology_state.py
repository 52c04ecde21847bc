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

from unisono.orders.multigroup.stored_state import RelationState
from unisono.orders.multigroup.topology_messages import Bond, Confirm, Control, Relate, What


class Tie(IntEnum):
    """How far it is with sending to another group."""

    APART = 0
    OPENING = 1
    """Asks to be admitted."""
    OPEN = 2
    CLOSING = 3
    """Takes nothing new; waits until all members have confirmed that."""
    CLOSED = 4
    """The stream has an end, which the receiver is told."""


FLOWING = frozenset({Tie.OPEN, Tie.CLOSING})
"""What is decided for the other group becomes an entry."""


@dataclass(slots=True)
class Outgoing:
    """Sending to one other group."""

    tie: Tie = Tie.APART
    epoch: int = 0
    head: int = 0
    """How many entries there had been when it closed last."""
    since: int = 0
    """The version of the relation since which it closes."""


@dataclass(slots=True)
class Incoming:
    """One other group that sends here; `head` entries have come before it began, or in all once it has ended."""

    epoch: int
    open: bool = True
    stamp: int = 0
    """What the group had stamped when it began: nothing that comes has a smaller stamp."""
    head: int = 0


class Relation:
    """One member's reading of what its group agreed on. Groups are their numbers."""

    def __init__(self, me: int, receivers: tuple[int, ...], senders: tuple[int, ...], mates: tuple[int, ...]) -> None:
        self._me, self._mates = me, mates
        self.version = 0
        """How often the relation has been changed."""
        self.steps = 0
        """Grows with whatever changes here."""
        self.wanted = sum(1 << receiver for receiver in receivers)
        self.out = {receiver: Outgoing(Tie.OPEN, 1) for receiver in receivers if receiver != me}
        self.into = {sender: Incoming(1) for sender in senders if sender != me}
        self.confirms: dict[int, int] = {}
        """By member, the version behind which it hands in nothing else."""

    # -- what is decided -------------------------------------------------------------------------------------

    def control(self, sender: int, control: Control) -> None:
        """A member wishes for another relation, or has heard of one."""
        if isinstance(control, Confirm):
            self.confirms[sender] = max(control.version, self.confirms.get(sender, 0))
        else:
            self._relate(control)
        self._close()

    def _close(self) -> None:
        for tied in self.out.values():
            if tied.tie is Tie.CLOSING and all(self.confirms.get(mate, 0) >= tied.since for mate in self._mates):
                tied.tie = Tie.CLOSED
                self.steps += 1

    def _relate(self, wish: Relate) -> None:
        self.version += 1
        self.steps += 1
        self.wanted = wish.mask
        for group in range(wish.mask.bit_length()):
            if wish.mask >> group & 1 and group != self._me:
                tied = self.out.setdefault(group, Outgoing())
                if tied.tie is Tie.APART:
                    tied.tie, tied.epoch = Tie.OPENING, tied.epoch + 1
                elif tied.tie is Tie.CLOSING:
                    tied.tie = Tie.OPEN
        for group, tied in self.out.items():
            if tied.tie is Tie.OPEN and not wish.mask >> group & 1:
                tied.tie, tied.since = Tie.CLOSING, self.version

    def news(self, bond: Bond) -> bool:
        """Whether agreeing on this would change anything."""
        if bond.what is What.WITHOUT:
            return bond.group == self._me and bond.epoch == self.version and self.unconfirmed(bond.head)
        if bond.what in {What.ADMIT, What.RELEASE}:
            came = self.into.get(bond.group)
            if bond.what is What.ADMIT:
                return came is None or came.epoch < bond.epoch
            return came is not None and came.open and came.epoch == bond.epoch
        tied = self.out.get(bond.group)
        awaited = Tie.OPENING if bond.what is What.ADMITTED else Tie.CLOSED
        return tied is not None and tied.tie is awaited and tied.epoch == bond.epoch

    def take(self, bond: Bond, last: int) -> None:
        """What another group said has been decided here, behind the stamp `last`."""
        if not self.news(bond):
            return
        self.steps += 1
        match bond.what:
            case What.ADMIT:
                self.into[bond.group] = Incoming(bond.epoch, stamp=last, head=bond.head)
            case What.RELEASE:
                came = self.into[bond.group]
                came.open, came.head = False, bond.head
            case What.ADMITTED:
                tied = self.out[bond.group]
                # Nobody has been allowed to send there yet: if nobody wants to any more, it ends at once.
                tied.tie = Tie.OPEN if self.wanted >> bond.group & 1 else Tie.CLOSED
            case What.WITHOUT:
                self.confirms[bond.head] = bond.epoch
                self._close()
            case What.RELEASED:
                tied = self.out[bond.group]
                tied.tie = Tie.APART
                if self.wanted >> bond.group & 1:
                    tied.tie, tied.epoch = Tie.OPENING, tied.epoch + 1

    # -- questions -------------------------------------------------------------------------------------------

    def allowed(self) -> int:
        """The groups to which messages are accepted now."""
        mask = self.wanted & 1 << self._me
        for group, tied in self.out.items():
            if tied.tie is Tie.OPEN:
                mask |= 1 << group
        return mask

    def unconfirmed(self, member: int) -> bool:
        """Whether something that closes waits for this member."""
        return any(tied.tie is Tie.CLOSING and self.confirms.get(member, 0) < tied.since for tied in self.out.values())

    def awaited(self) -> list[Bond]:
        """What could be agreed on if the members that something which closes waits for are gone."""
        return [Bond(What.WITHOUT, self._me, self.version, mate) for mate in self._mates if self.unconfirmed(mate)]

    def settled(self) -> bool:
        """Whether all that was wished for is so, here and in the other groups."""
        return all(tied.tie in {Tie.APART, Tie.OPEN} for tied in self.out.values())

    def receivers(self) -> tuple[int, ...]:
        """The groups that wait for this one's barriers, or will in a moment."""
        return tuple(group for group, tied in sorted(self.out.items()) if tied.tie is not Tie.APART)

    def senders(self) -> tuple[int, ...]:
        """The groups whose barriers this one waits for."""
        return tuple(group for group, came in sorted(self.into.items()) if came.open)

    def asks(self) -> list[tuple[int, Bond]]:
        """What other groups are to agree on."""
        found = []
        for group, tied in self.out.items():
            if tied.tie is Tie.OPENING:
                found.append((group, Bond(What.ADMIT, self._me, tied.epoch, tied.head)))
            elif tied.tie is Tie.CLOSED:
                found.append((group, Bond(What.RELEASE, self._me, tied.epoch, tied.head)))
        return found

    def answer(self, group: int) -> Bond | None:
        """How it is with what another group sends here."""
        came = self.into.get(group)
        if came is None:
            return None
        if came.open:
            return Bond(What.ADMITTED, self._me, came.epoch, stamp=came.stamp)
        return Bond(What.RELEASED, self._me, came.epoch)

    # -- states ----------------------------------------------------------------------------------------------

    def save(self) -> RelationState:
        """What stands for all that was decided of it."""
        return RelationState(
            self.version,
            self.wanted,
            {group: (tied.tie, tied.epoch, tied.head, tied.since) for group, tied in self.out.items()},
            {group: (came.epoch, came.open, came.stamp, came.head) for group, came in self.into.items()},
            dict(self.confirms),
        )

    def restore(self, state: RelationState) -> None:
        """Go on from a state."""
        self.steps += state != self.save()
        self.version, self.wanted, self.confirms = state.version, state.wanted, dict(state.confirms)
        self.out = {group: Outgoing(Tie(tied[0]), *tied[1:]) for group, tied in state.outgoing.items()}
        self.into = {group: Incoming(*came) for group, came in state.incoming.items()}
