"""Gathering: n processes that know only the group's name agree on their member numbers 1, 2, … n (paper 002 §4.2).

This replaces the paper's group manager. There is no registry that could fail.

Each process repeats a beacon that lists all processes it knows. From the same list all processes propose the same
table: the first n processes by incarnation and address. A process votes only once, for one table. It votes for its own
proposal if all processes of that table propose it and no new process has appeared for a while (`QUIET_NS`). It votes
for a table for which another process of the table has voted if it knows all processes in it. A table is decided when
all its processes have voted for it.

Safety: two decided tables with a common process are equal, because that process has voted for both and votes only once.
A process that receives a decided table with itself in it has voted for it, so it adopts the table. Two tables without a
common process can both be decided. Then there are at least 2n processes, as if two groups used the same name.

Cost: if a process crashes after its vote, or processes vote for different tables because the network splits at that
moment, the others get no table. They give up at their time-out and start again as new processes.

Receiving: `on_beacon`. Sending: `wake` puts a beacon into `outgoing` when it is due. The result is `table`.
"""

from __future__ import annotations

from dataclasses import dataclass

from unisono.model.addresses import is_unspecified
from unisono.wire.beacon import Applicant, Beacon, table_key

BEACON_INTERVAL_NS = 50_000_000
DECIDED_BEACON_INTERVAL_NS = 1_000_000_000
QUIET_NS = 400_000_000
"""A process casts the first vote for a table only if no new process has appeared for this long."""
ANSWER_INTERVAL_MIN_NS = 20_000_000
"""A process with a decided table answers beacons at most once per this interval."""


def choose_table(known: tuple[Applicant, ...], members: int) -> tuple[Applicant, ...] | None:
    """The table for the known processes: the first `members` of them that fit, or None if there are too few.

    A process is skipped if the member number that it requests is taken or above `members`, or if its address is taken.
    """
    taken: set[int] = set()
    table: list[Applicant] = []
    for applicant in sorted(known):
        if len(table) == members:
            break
        if applicant.requested_member and (applicant.requested_member in taken or applicant.requested_member > members):
            continue
        if any((applicant.host, applicant.port) == (other.host, other.port) for other in table):
            continue
        if applicant.requested_member:
            taken.add(applicant.requested_member)
        table.append(applicant)
    return tuple(table) if len(table) == members else None


def assign_numbers(table: tuple[Applicant, ...]) -> dict[int, Applicant]:
    """Number the processes of a table: requested numbers first, then the free numbers in the order of the table."""
    found = {applicant.requested_member: applicant for applicant in table if applicant.requested_member}
    free = (number for number in range(1, len(table) + 1) if number not in found)
    for applicant in sorted(table):
        if not applicant.requested_member:
            found[next(free)] = applicant
    return dict(sorted(found.items()))


@dataclass(slots=True)
class _PeerVote:
    proposal: int
    voted: bool


class Gathering:
    """The automaton with which one process agrees with the others on the table of members."""

    def __init__(self, group: int, me: Applicant, members: int) -> None:
        self.me = me
        self.outgoing: list[Beacon] = []
        """Beacons to broadcast. The driver drains the list."""
        self.table: tuple[Applicant, ...] | None = None
        """The decided table that this process is in, or None until such a table is decided."""
        self.table_without_me: tuple[Applicant, ...] | None = None
        """A decided table that this process is not in (the group is complete without it), or None."""
        self.refusal_reasons: dict[int, str] = {}
        """Why this process ignores the beacons of another one, by the nonce of the other process."""
        self._group, self._members = group, members
        self._known: dict[int, Applicant] = {me.nonce: me}
        self._peer_votes: dict[int, _PeerVote] = {}
        self._vote: tuple[Applicant, ...] | None = None
        self._last_new_process_ns: int | None = None
        self._next_beacon_ns = self._last_answer_ns = 0

    # -- inputs ----------------------------------------------------------------------------------------------

    def on_beacon(self, now: int, beacon: Beacon) -> None:
        """Handle another process's beacon: learn the processes that it lists, count its vote, and vote if possible."""
        if beacon.group != self._group or beacon.sender == self.me.nonce:
            return
        if beacon.members != self._members:
            reason = f"another process expects {beacon.members} members, this process {self._members}"
            self.refusal_reasons[beacon.sender] = reason
            return
        if unusable := [applicant.host for applicant in beacon.known if is_unspecified(applicant.host)]:
            reason = f"another process advertises {unusable[0]}, to which no member can send"
            self.refusal_reasons[beacon.sender] = reason
            return
        if self.table is not None:
            if not beacon.decided and now - self._last_answer_ns >= ANSWER_INTERVAL_MIN_NS:
                self._last_answer_ns = now
                self._send_beacon()
            return
        if beacon.decided:
            self._adopt_decided_table(beacon.known)
            return
        self._peer_votes[beacon.sender] = _PeerVote(beacon.proposal, beacon.voted)
        if self._vote is None:
            self._add_known(now, beacon.known)
            if beacon.voted and self._can_vote_with(beacon):
                self._cast_vote(beacon.known)
        self._decide(now)

    def wake(self, now: int) -> None:
        """Do what is due at `now`: vote if this process may, and send the next beacon."""
        if self._last_new_process_ns is None:
            self._last_new_process_ns = now
        self._decide(now)
        if now >= self._next_beacon_ns:
            self._next_beacon_ns = now + (BEACON_INTERVAL_NS if self.table is None else DECIDED_BEACON_INTERVAL_NS)
            self._send_beacon()

    def wake_at(self) -> int:
        """The time to call `wake`: when the next beacon is due."""
        return self._next_beacon_ns

    # -- the protocol ----------------------------------------------------------------------------------------

    def _add_known(self, now: int, known: tuple[Applicant, ...]) -> None:
        for applicant in known:
            if applicant.nonce in self._known or any(self._replaces(old, applicant) for old in self._known.values()):
                continue
            # There is one process per address, so an earlier process at this address has ended.
            for old in [old for old in self._known.values() if self._replaces(applicant, old) and old != self.me]:
                del self._known[old.nonce]
            self._known[applicant.nonce] = applicant
            self._last_new_process_ns = now

    @staticmethod
    def _replaces(new: Applicant, old: Applicant) -> bool:
        return (new.host, new.port) == (old.host, old.port) and (new.incarnation, new.nonce) > (
            old.incarnation,
            old.nonce,
        )

    def _adopt_decided_table(self, table: tuple[Applicant, ...]) -> None:
        """Adopt a decided table if this process is in it, and otherwise keep it as `table_without_me`.

        A table with this process in it cannot have been decided without the vote of this process.
        """
        if self.me in table:
            self.table = self._vote = table
            self._next_beacon_ns = 0
        elif self._vote is None:
            self.table_without_me = table

    def _can_vote_with(self, beacon: Beacon) -> bool:
        """Whether this process can vote for the table that the beacon's sender has voted for."""
        table = beacon.known
        return (
            self.me in table
            and len(table) == self._members
            and beacon.proposal == table_key(table)
            and all(self._known.get(applicant.nonce) == applicant for applicant in table)
        )

    def _proposal(self) -> tuple[Applicant, ...] | None:
        return self._vote or choose_table(tuple(self._known.values()), self._members)

    def _decide(self, now: int) -> None:
        if self.table is not None:
            return
        proposal = self._proposal()
        if proposal is None or self.me not in proposal:
            return
        key = table_key(proposal)
        others = [self._peer_votes.get(applicant.nonce) for applicant in proposal if applicant != self.me]
        quiet = self._last_new_process_ns is not None and now - self._last_new_process_ns >= QUIET_NS
        if self._vote is None and quiet and all(vote is not None and vote.proposal == key for vote in others):
            self._cast_vote(proposal)
        if self._vote is not None and all(vote is not None and vote.voted and vote.proposal == key for vote in others):
            self.table = self._vote
            self._next_beacon_ns = 0

    def _has_voted(self, applicant: Applicant) -> bool:
        vote = self._peer_votes.get(applicant.nonce)
        return vote is not None and vote.voted

    def _cast_vote(self, table: tuple[Applicant, ...]) -> None:
        self._vote = table
        self._next_beacon_ns = 0

    def _send_beacon(self) -> None:
        proposal = self._proposal()
        known = self.table or self._vote or tuple(sorted(self._known.values()))
        self.outgoing.append(
            Beacon(
                self._group,
                self._members,
                self.me.nonce,
                0 if proposal is None else table_key(proposal),
                self._vote is not None,
                self.table is not None,
                known,
            )
        )

    def why_incomplete(self) -> str:
        """A text that says why this process has no table yet: the known processes, the missing votes, refusals."""
        if self.table_without_me is not None:
            members = ", ".join(
                f"{n} at {applicant.host}:{applicant.port}"
                for n, applicant in assign_numbers(self.table_without_me).items()
            )
            return f"the group is complete without this process: {members}"
        known = ", ".join(f"{applicant.host}:{applicant.port}" for applicant in sorted(self._known.values()))
        text = f"{len(self._known)} of {self._members} processes known ({known})"
        if self._vote is not None:
            silent = [applicant for applicant in self._vote if applicant != self.me and not self._has_voted(applicant)]
            text += "; no vote received from " + ", ".join(f"{applicant.host}:{applicant.port}" for applicant in silent)
        return "; ".join([text, *sorted(set(self.refusal_reasons.values()))])
