"""Who is in a led group, whose each reign is, and the votes for the next one."""

from __future__ import annotations

from collections.abc import Sequence

from unisono.model.events import Violation, ViolationKind
from unisono.orders.leader.messages import ALL_REQUESTS, Vote
from unisono.orders.leader.stream import StreamEntry


class StreamMembership:
    """The members as the ordered stream has them: everybody's roster is the same at the same position."""

    def __init__(self, members: Sequence[int]) -> None:
        self.members = tuple(members)
        self.current_members = self.members
        self.admitted_at = dict.fromkeys(members, 0)
        """The position at which each was last admitted, or removed."""
        self.leaving: set[int] = set()
        """Who has said its last word, and is to leave."""
        self.departed: set[int] = set()
        self.last_departure_position = 0

    def leader_of(self, term: int) -> int:
        """Whose a reign is."""
        return self.members[term % len(self.members)]

    def next_term_of(self, term: int, member: int) -> int:
        """The first reign of a member after another reign."""
        return term + 1 + (self.members.index(member) - term - 1) % len(self.members)

    def is_current_member(self, member: int) -> bool:
        """Whether a member is on the roll."""
        return member in self.current_members

    def may_readmit(self, member: int, position: int) -> bool:
        """Whether a member that was removed, and has come as far as `position`, may be admitted again."""
        gone_for_good = member in self.departed or member in self.leaving
        return not self.is_current_member(member) and not gone_for_good and position >= self.admitted_at[member]

    def majority(self) -> int:
        """How many of the group, without those that left in order, are more than half of it."""
        return (len(self.members) - len(self.departed)) // 2 + 1

    def apply_member_list(self, entry: StreamEntry) -> None:
        """A roll has been taken."""
        roll = entry.member_list()
        for cut in roll.last_frames:
            if cut.request == ALL_REQUESTS:
                self.departed.add(cut.member)
                self.last_departure_position = entry.position
        for member in sorted({*roll.members} ^ {*self.current_members}):
            self.admitted_at[member] = entry.position
        self.current_members = roll.members


class ElectionState:
    """One member's own candidacy, and whom it believes to be dead."""

    def __init__(self) -> None:
        self.is_candidate = False
        self.deferred_vote_request: tuple[int, int] | None = None
        """Somebody else's candidacy that cannot be answered yet: (member, reign)."""
        self.suspected: set[int] = set()
        self.votes: dict[int, Vote] = {}
        self.poll_ends_at = 0
        self.fetching_from = 0
        """The voter from whom entries are being fetched."""
        self.fetching_frames = False
        """Whether it is frames of those entries that are being fetched now."""

    def start_poll(self, candidate: int, vote: Vote, ends_at: int) -> None:
        """Ask for votes; one's own is the first."""
        self.is_candidate, self.fetching_from, self.fetching_frames, self.deferred_vote_request = True, 0, False, None
        self.votes, self.poll_ends_at = {candidate: vote}, ends_at

    def end_poll(self) -> None:
        """It is decided, or given up."""
        self.is_candidate, self.fetching_from, self.deferred_vote_request = False, 0, None

    def most_advanced_voter(self, candidate: int) -> int:
        """The voter that has come furthest; oneself if nobody has come further."""
        return max(self.votes, key=lambda m: (self.votes[m].last_term, self.votes[m].position, m == candidate))


# -- what is said of leaders -----------------------------------------------------------------------------------------


def stepped_down_violation(new_leader: int, slot: int) -> Violation:
    """To one that slept, or was cut off."""
    return Violation(
        ViolationKind.DEPOSED,
        f"this member was not heard and leads no longer; member {new_leader} does",
        new_leader,
        slot,
    )


def leader_lost_violation(old_leader: int, new_leader: int, gap_ns: int, slot: int) -> Violation:
    """To all others, with what it has cost."""
    gap_ms = max(0, gap_ns) / 1e6
    text = f"member {old_leader} is gone; member {new_leader} leads. Nothing was ordered for {gap_ms:.3f} ms"
    return Violation(ViolationKind.LEADER_LOST, text, old_leader, slot)


def fenced_violation(member: int, position: int) -> Violation:
    """To one that must not go on."""
    text = f"this member was cut off: the group's order from position {position} on is not the one known here"
    return Violation(ViolationKind.FENCED_OUT, text, member)


def no_majority_violation(reachable_count: int, member_count: int) -> Violation:
    """To one that can do nothing for now."""
    text = f"{reachable_count} of {member_count} members can be reached: nothing is ordered until more can"
    return Violation(ViolationKind.NO_MAJORITY, text)
