"""Who is in a led group, whose each reign is, and the votes for the next one."""

from __future__ import annotations

from collections.abc import Sequence

from unisono.model.events import Violation, ViolationKind
from unisono.orders.leader.messages import ALL, Vote
from unisono.orders.leader.stream import Entry


class Roster:
    """The members as the ordered stream has them: everybody's roster is the same at the same position."""

    def __init__(self, members: Sequence[int]) -> None:
        self.members = tuple(members)
        self.roll = self.members
        self.admitted_at = dict.fromkeys(members, 0)
        """The position at which each was last admitted, or removed."""
        self.finals: set[int] = set()
        """Who has said its last word, and is to leave."""
        self.departed: set[int] = set()
        self.departure_at = 0

    def owner(self, reign: int) -> int:
        """Whose a reign is."""
        return self.members[reign % len(self.members)]

    def reign_after(self, reign: int, member: int) -> int:
        """The first reign of a member after another reign."""
        return reign + 1 + (self.members.index(member) - reign - 1) % len(self.members)

    def inside(self, member: int) -> bool:
        """Whether a member is on the roll."""
        return member in self.roll

    def may_return(self, member: int, position: int) -> bool:
        """Whether a member that was removed, and has come as far as `position`, may be admitted again."""
        gone_for_good = member in self.departed or member in self.finals
        return not self.inside(member) and not gone_for_good and position >= self.admitted_at[member]

    def majority(self) -> int:
        """How many of the group, without those that left in order, are more than half of it."""
        return (len(self.members) - len(self.departed)) // 2 + 1

    def turn(self, entry: Entry) -> None:
        """A roll has been taken."""
        roll = entry.roll()
        for cut in roll.cuts:
            if cut.request == ALL:
                self.departed.add(cut.member)
                self.departure_at = entry.position
        for member in sorted({*roll.members} ^ {*self.roll}):
            self.admitted_at[member] = entry.position
        self.roll = roll.members


class Ballot:
    """One member's own candidacy, and whom it believes to be dead."""

    def __init__(self) -> None:
        self.asking = False
        self.asked_by: tuple[int, int] | None = None
        """Somebody else's candidacy that cannot be answered yet: (member, reign)."""
        self.dead: set[int] = set()
        self.votes: dict[int, Vote] = {}
        self.ends_at = 0
        self.fetching = 0
        """The voter from whom entries are being fetched."""
        self.completing = False
        """Whether it is frames of those entries that are being fetched now."""

    def open(self, me: int, vote: Vote, ends_at: int) -> None:
        """Ask for votes; one's own is the first."""
        self.asking, self.fetching, self.completing, self.asked_by = True, 0, False, None
        self.votes, self.ends_at = {me: vote}, ends_at

    def close(self) -> None:
        """It is decided, or given up."""
        self.asking, self.fetching, self.asked_by = False, 0, None

    def best(self, me: int) -> int:
        """The voter that has come furthest; oneself if nobody has come further."""
        return max(self.votes, key=lambda m: (self.votes[m].last_reign, self.votes[m].position, m == me))


# -- what is said of leaders -----------------------------------------------------------------------------------------


def deposed(new: int, slot: int) -> Violation:
    """To one that slept, or was cut off."""
    return Violation(
        ViolationKind.DEPOSED, f"this member was not heard and leads no longer; member {new} does", new, slot
    )


def leader_lost(old: int, new: int, gap_ns: int, slot: int) -> Violation:
    """To all others, with what it has cost."""
    gap_ms = max(0, gap_ns) / 1e6
    text = f"member {old} is gone; member {new} leads. Nothing was ordered for {gap_ms:.3f} ms"
    return Violation(ViolationKind.LEADER_LOST, text, old, slot)


def fenced_out(me: int, position: int) -> Violation:
    """To one that must not go on."""
    text = f"this member was cut off: the group's order from position {position} on is not the one known here"
    return Violation(ViolationKind.FENCED_OUT, text, me)


def no_majority(reached: int, members: int) -> Violation:
    """To one that can do nothing for now."""
    text = f"{reached} of {members} members can be reached: nothing is ordered until more can"
    return Violation(ViolationKind.NO_MAJORITY, text)
