"""What orders that rest on consensus have in common: they form when somebody leads, and say so when nobody does."""

from __future__ import annotations

from collections import Counter

from unisono.agreement.paxos.consensus import Consensus
from unisono.model.durations import NS_PER_MS
from unisono.model.events import StackEvent, ViewChange, Violation, ViolationKind
from unisono.model.policy import Policy
from unisono.model.rates import Rate
from unisono.model.stored_records import Write
from unisono.model.views import View
from unisono.orders.base.modes import Mode
from unisono.wire.frame import Frame


class Agreeing:
    """One member of a group that agrees on a log. Nothing is said, and nothing is to be durable, before `flush`."""

    def __init__(self, policy: Policy, consensus: Consensus) -> None:
        self.down: list[Frame] = []
        self.events: list[StackEvent] = []
        self.writes: list[Write] = []
        self.mode = Mode.GET_RATE
        self.now = 0
        """The clock at the last input."""
        self.stirred = True
        """Whether anything has happened since the last `flush`."""
        self.view = policy.view
        self.consensus = consensus
        self.ignored: Counter[str] = consensus.ignored
        self._policy = policy
        self._timing = policy.timing
        self.leaderless_since: int | None = None
        self._leader: int | None = None
        self._blocked_told = False
        self._told_amnesiacs: set[int] = set()
        self._told_refusers: set[int] = set()

    def flush(self) -> None:
        """Say what there is to say to all that has happened since the last time."""
        raise NotImplementedError

    def bound_ns(self) -> int:
        """While nobody fails and nothing is lost."""
        raise NotImplementedError

    def follow(self, now: int, first_slot: int) -> None:
        """There is a leader: the group begins, or has another one."""
        leader = self.consensus.leader
        if self.mode is Mode.DET_RATE:
            self.mode = Mode.DELIVER_MESSAGES
            self.view = View(self.view.members, first_slot)
            self.events.append(ViewChange(self.view, joined=self.view.members))
        elif leader != self._leader:
            lost = now - (self.leaderless_since or now)
            text = f"member {self._leader} leads no longer, member {leader} does; {lost / NS_PER_MS:.3f} ms without one"
            self.events.append(Violation(ViolationKind.LEADER_LOST, text, self._leader))
        self._leader, self.leaderless_since, self._blocked_told = leader, None, False

    def watch_leader(self, now: int) -> None:
        """Tell of members that do not count any more, and of a group in which nobody leads."""
        consensus = self.consensus
        for member in sorted(consensus.remembering.amnesiacs - self._told_amnesiacs):
            self._told_amnesiacs.add(member)
            text = f"member {member} has come back without the storage it had: its votes do not count any more"
            self.events.append(Violation(ViolationKind.MEMORY_LOST, text, member))
        self._tell_refusers()
        if consensus.leader is not None:
            return
        self.leaderless_since = now if self.leaderless_since is None else self.leaderless_since
        longest = max((consensus.detector.timeout_ns(peer) for peer in consensus.peers), default=0)
        blocked = self.mode is Mode.DELIVER_MESSAGES and now - self.leaderless_since > 2 * longest + self._patience_ns()
        if blocked and not self._blocked_told:
            self._blocked_told = True
            heard = consensus.detector.trusted(consensus.members)
            text = f"no majority follows a leader; of {len(consensus.members)} members {len(heard)} are heard: {heard}"
            self.events.append(Violation(ViolationKind.BLOCKED, text, self._policy.member))

    def trusted(self) -> list[int]:
        """The peers that are not suspected."""
        return self.consensus.detector.trusted(self.consensus.peers)

    def _tell_refusers(self) -> None:
        refusers = self.consensus.remembering.refusers
        for member in sorted(refusers - self._told_refusers):
            self._told_refusers.add(member)
            text = (
                f"this is not the storage that member {self._policy.member} had: member {member} does not listen to it "
                "any more. Restore the file, or give this member a new number"
            )
            self.events.append(Violation(ViolationKind.MEMORY_LOST, text, self._policy.member))

    def disowned(self) -> bool:
        """Whether this member can get nothing into the log: the leader knows it by another memory, or too many do."""
        consensus, refusers = self.consensus, self.consensus.remembering.refusers
        return consensus.leader in refusers or len(consensus.members) - len(refusers) < consensus.majority

    def _patience_ns(self) -> int:
        return max(self.bound_ns(), self.consensus.detector.pace_ns()) + NS_PER_MS

    # -- questions -------------------------------------------------------------------------------------------

    def latest_slot(self, now: int) -> int:
        """Clocks are not compared, so any slot that a clock can show."""
        return ((1 << 63) - 1) // self._timing.theta_ns

    def returning(self) -> bool:
        """Members that are gone may come back."""
        return True

    def reliable(self) -> bool:
        """One log without gaps, whatever happens."""
        return True

    def running(self) -> bool:
        """Whether there has been a leader."""
        return self.mode is Mode.DELIVER_MESSAGES

    def waiting_for(self) -> tuple[int, ...]:
        """Peers that have not been heard, until there is a leader."""
        heard = self.consensus.detector.heard
        return () if self.running() else tuple(peer for peer in self.consensus.peers if not heard(peer))

    def complaint(self) -> str:
        """Who does not count."""
        lost = sorted(self.consensus.remembering.amnesiacs)
        return f"members {lost} have lost their storage" if lost else ""

    def peer_rate(self, peer: int) -> Rate | None:
        """Rates are not exchanged."""
        return None

    def by_multicast(self) -> bool:
        """Votes go to one member each, and so does everything."""
        return False
