"""How processes that know only the group's name agree who is member 1, 2, … (paper 002 §4.2: the group manager).

There is no registry that can fail.

Each process repeats a beacon with everybody that it knows. From the same knowledge all propose the same table: the
first n by incarnation and address. A process votes once, for one table: when everybody in it proposes it and nobody
new has come for a while, or when somebody in it has voted for it and it knows them all. A table is settled when
everybody in it has voted for it.

Safety: two settled tables that share a process are the same, because that process has voted for both, and a process
votes once. Whoever hears a settled table that it is in has voted for it, and takes it over. Two tables without a common
process can both be settled: then there are at least 2n processes, as if two groups had one name.

The price: a process that dies after it has voted, or votes crosswise in a network that splits just then, leaves the
others without a table. They give up at their time-out and begin again, with new nonces.
"""

from __future__ import annotations

from dataclasses import dataclass

from unisono.wire.beacon import Applicant, Beacon, table_key

BEACON_INTERVAL_NS = 50_000_000
DECIDED_BEACON_INTERVAL_NS = 1_000_000_000
QUIET_NS = 400_000_000
"""So long nobody new may have come before a process votes of its own accord."""
ANSWER_INTERVAL_MIN_NS = 20_000_000
"""A settled process answers at most so often."""


def choose_table(known: tuple[Applicant, ...], members: int) -> tuple[Applicant, ...] | None:
    """The table that follows from what is known: the first that fit, or None if there are too few.

    Who insists on a number that an earlier one has, or that there is not, is passed over.
    """
    taken: set[int] = set()
    table: list[Applicant] = []
    for who in sorted(known):
        if len(table) == members:
            break
        if who.requested_member and (who.requested_member in taken or who.requested_member > members):
            continue
        if any((who.host, who.port) == (other.host, other.port) for other in table):
            continue
        if who.requested_member:
            taken.add(who.requested_member)
        table.append(who)
    return tuple(table) if len(table) == members else None


def assign_numbers(table: tuple[Applicant, ...]) -> dict[int, Applicant]:
    """Everybody's number: what it insists on, and for the others the free ones in the table's order."""
    found = {who.requested_member: who for who in table if who.requested_member}
    free = (number for number in range(1, len(table) + 1) if number not in found)
    for who in sorted(table):
        if not who.requested_member:
            found[next(free)] = who
    return dict(sorted(found.items()))


@dataclass(slots=True)
class _PeerVote:
    proposal: int
    voted: bool


class Gathering:
    """One process's part in it."""

    def __init__(self, group: int, me: Applicant, members: int) -> None:
        self.me = me
        self.outgoing: list[Beacon] = []
        """What to send to everybody; the driver empties it."""
        self.table: tuple[Applicant, ...] | None = None
        """The settled table, once there is one with this process in it."""
        self.table_without_me: tuple[Applicant, ...] | None = None
        """A settled table without this process: the group runs already."""
        self.refusal_reasons: dict[int, str] = {}
        """By process, why its beacons were not used."""
        self._group, self._members = group, members
        self._known: dict[int, Applicant] = {me.nonce: me}
        self._peer_votes: dict[int, _PeerVote] = {}
        self._vote: tuple[Applicant, ...] | None = None
        self._last_new_process_ns: int | None = None
        self._next_beacon_ns = self._last_answer_ns = 0

    # -- inputs ----------------------------------------------------------------------------------------------

    def on_beacon(self, now: int, beacon: Beacon) -> None:
        """Somebody's beacon has come."""
        if beacon.group != self._group or beacon.sender == self.me.nonce:
            return
        if beacon.members != self._members:
            self.refusal_reasons[beacon.sender] = f"expects {beacon.members} members, here it is {self._members}"
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
        """Time has passed."""
        if self._last_new_process_ns is None:
            self._last_new_process_ns = now
        self._decide(now)
        if now >= self._next_beacon_ns:
            self._next_beacon_ns = now + (BEACON_INTERVAL_NS if self.table is None else DECIDED_BEACON_INTERVAL_NS)
            self._send_beacon()

    def wake_at(self) -> int:
        """When the next beacon is due."""
        return self._next_beacon_ns

    # -- the protocol ----------------------------------------------------------------------------------------

    def _add_known(self, now: int, known: tuple[Applicant, ...]) -> None:
        for who in known:
            if who.nonce in self._known or any(self._replaces(old, who) for old in self._known.values()):
                continue
            # At one address there is one process: an earlier one is gone.
            for old in [old for old in self._known.values() if self._replaces(who, old) and old != self.me]:
                del self._known[old.nonce]
            self._known[who.nonce] = who
            self._last_new_process_ns = now

    @staticmethod
    def _replaces(new: Applicant, old: Applicant) -> bool:
        return (new.host, new.port) == (old.host, old.port) and (new.incarnation, new.nonce) > (
            old.incarnation,
            old.nonce,
        )

    def _adopt_decided_table(self, table: tuple[Applicant, ...]) -> None:
        """A settled table: ours, if we are in it, since it was not settled without our vote."""
        if self.me in table:
            self.table = self._vote = table
            self._next_beacon_ns = 0
        elif self._vote is None:
            self.table_without_me = table

    def _can_vote_with(self, beacon: Beacon) -> bool:
        """Whether somebody's vote can be ours too."""
        table = beacon.known
        return (
            self.me in table
            and len(table) == self._members
            and beacon.proposal == table_key(table)
            and all(self._known.get(who.nonce) == who for who in table)
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
        others = [self._peer_votes.get(who.nonce) for who in proposal if who != self.me]
        quiet = self._last_new_process_ns is not None and now - self._last_new_process_ns >= QUIET_NS
        if self._vote is None and quiet and all(h is not None and h.proposal == key for h in others):
            self._cast_vote(proposal)
        if self._vote is not None and all(h is not None and h.voted and h.proposal == key for h in others):
            self.table = self._vote
            self._next_beacon_ns = 0

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
        """What is known of why there is no table yet, in words."""
        if self.table_without_me is not None:
            there = ", ".join(
                f"{n} at {who.host}:{who.port}" for n, who in assign_numbers(self.table_without_me).items()
            )
            return f"the group has its members already: {there}"
        known = ", ".join(f"{who.host}:{who.port}" for who in sorted(self._known.values()))
        what = f"{len(self._known)} of {self._members} processes known ({known})"
        if self._vote is not None:
            silent = [
                w for w in self._vote if w != self.me and not getattr(self._peer_votes.get(w.nonce), "voted", False)
            ]
            what += "; no vote heard from " + ", ".join(f"{who.host}:{who.port}" for who in silent)
        return "; ".join([what, *sorted(set(self.refusal_reasons.values()))])
