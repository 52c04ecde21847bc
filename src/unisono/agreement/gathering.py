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

EVERY_NS = 50_000_000
SETTLED_EVERY_NS = 1_000_000_000
QUIET_NS = 400_000_000
"""So long nobody new may have come before a process votes of its own accord."""
ANSWER_LEAST_NS = 20_000_000
"""A settled process answers at most so often."""


def choose(known: tuple[Applicant, ...], members: int) -> tuple[Applicant, ...] | None:
    """The table that follows from what is known: the first that fit, or None if there are too few.

    Who insists on a number that an earlier one has, or that there is not, is passed over.
    """
    taken: set[int] = set()
    table: list[Applicant] = []
    for who in sorted(known):
        if len(table) == members:
            break
        if who.wanted and (who.wanted in taken or who.wanted > members):
            continue
        if any((who.host, who.port) == (other.host, other.port) for other in table):
            continue
        if who.wanted:
            taken.add(who.wanted)
        table.append(who)
    return tuple(table) if len(table) == members else None


def numbered(table: tuple[Applicant, ...]) -> dict[int, Applicant]:
    """Everybody's number: what it insists on, and for the others the free ones in the table's order."""
    found = {who.wanted: who for who in table if who.wanted}
    free = (number for number in range(1, len(table) + 1) if number not in found)
    for who in sorted(table):
        if not who.wanted:
            found[next(free)] = who
    return dict(sorted(found.items()))


@dataclass(slots=True)
class _Heard:
    proposal: int
    voted: bool


class Gathering:
    """One process's part in it."""

    def __init__(self, group: int, me: Applicant, members: int) -> None:
        self.me = me
        self.out: list[Beacon] = []
        """What to send to everybody; the driver empties it."""
        self.table: tuple[Applicant, ...] | None = None
        """The settled table, once there is one with this process in it."""
        self.closed_to_me: tuple[Applicant, ...] | None = None
        """A settled table without this process: the group runs already."""
        self.complaints: dict[int, str] = {}
        """By process, why its beacons were not used."""
        self._group, self._members = group, members
        self._known: dict[int, Applicant] = {me.nonce: me}
        self._heard: dict[int, _Heard] = {}
        self._vote: tuple[Applicant, ...] | None = None
        self._newest_ns: int | None = None
        self._next_ns = self._answered_ns = 0

    # -- inputs ----------------------------------------------------------------------------------------------

    def beacon(self, now: int, beacon: Beacon) -> None:
        """Somebody's beacon has come."""
        if beacon.group != self._group or beacon.sender == self.me.nonce:
            return
        if beacon.members != self._members:
            self.complaints[beacon.sender] = f"expects {beacon.members} members, here it is {self._members}"
            return
        if self.table is not None:
            if not beacon.settled and now - self._answered_ns >= ANSWER_LEAST_NS:
                self._answered_ns = now
                self._say()
            return
        if beacon.settled:
            self._learn(beacon.known)
            return
        self._heard[beacon.sender] = _Heard(beacon.proposal, beacon.voted)
        if self._vote is None:
            self._meet(now, beacon.known)
            if beacon.voted and self._fits(beacon):
                self._cast(beacon.known)
        self._decide(now)

    def wake(self, now: int) -> None:
        """Time has passed."""
        if self._newest_ns is None:
            self._newest_ns = now
        self._decide(now)
        if now >= self._next_ns:
            self._next_ns = now + (EVERY_NS if self.table is None else SETTLED_EVERY_NS)
            self._say()

    def wake_at(self) -> int:
        """When the next beacon is due."""
        return self._next_ns

    # -- the protocol ----------------------------------------------------------------------------------------

    def _meet(self, now: int, known: tuple[Applicant, ...]) -> None:
        for who in known:
            if who.nonce in self._known or any(self._replaces(old, who) for old in self._known.values()):
                continue
            # At one address there is one process: an earlier one is gone.
            for old in [old for old in self._known.values() if self._replaces(who, old) and old != self.me]:
                del self._known[old.nonce]
            self._known[who.nonce] = who
            self._newest_ns = now

    @staticmethod
    def _replaces(new: Applicant, old: Applicant) -> bool:
        return (new.host, new.port) == (old.host, old.port) and (new.incarnation, new.nonce) > (
            old.incarnation,
            old.nonce,
        )

    def _learn(self, table: tuple[Applicant, ...]) -> None:
        """A settled table: ours, if we are in it, since it was not settled without our vote."""
        if self.me in table:
            self.table = self._vote = table
            self._next_ns = 0
        elif self._vote is None:
            self.closed_to_me = table

    def _fits(self, beacon: Beacon) -> bool:
        """Whether somebody's vote can be ours too."""
        table = beacon.known
        return (
            self.me in table
            and len(table) == self._members
            and beacon.proposal == table_key(table)
            and all(self._known.get(who.nonce) == who for who in table)
        )

    def _proposal(self) -> tuple[Applicant, ...] | None:
        return self._vote or choose(tuple(self._known.values()), self._members)

    def _decide(self, now: int) -> None:
        if self.table is not None:
            return
        proposal = self._proposal()
        if proposal is None or self.me not in proposal:
            return
        key = table_key(proposal)
        others = [self._heard.get(who.nonce) for who in proposal if who != self.me]
        quiet = self._newest_ns is not None and now - self._newest_ns >= QUIET_NS
        if self._vote is None and quiet and all(h is not None and h.proposal == key for h in others):
            self._cast(proposal)
        if self._vote is not None and all(h is not None and h.voted and h.proposal == key for h in others):
            self.table = self._vote
            self._next_ns = 0

    def _cast(self, table: tuple[Applicant, ...]) -> None:
        self._vote = table
        self._next_ns = 0

    def _say(self) -> None:
        proposal = self._proposal()
        known = self.table or self._vote or tuple(sorted(self._known.values()))
        self.out.append(
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

    def missing(self) -> str:
        """What is known of why there is no table yet, in words."""
        if self.closed_to_me is not None:
            there = ", ".join(f"{n} at {who.host}:{who.port}" for n, who in numbered(self.closed_to_me).items())
            return f"the group has its members already: {there}"
        known = ", ".join(f"{who.host}:{who.port}" for who in sorted(self._known.values()))
        what = f"{len(self._known)} of {self._members} processes known ({known})"
        if self._vote is not None:
            silent = [w for w in self._vote if w != self.me and not getattr(self._heard.get(w.nonce), "voted", False)]
            what += "; no vote heard from " + ", ".join(f"{who.host}:{who.port}" for who in silent)
        return "; ".join([what, *sorted(set(self.complaints.values()))])
