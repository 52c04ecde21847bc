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
from unisono.orders.modes import Mode
from unisono.wire.frame import Frame


class ConsensusOrderBase:
    """One member of a group that agrees on a log. Nothing is said, and nothing is to be durable, before `flush`."""

    def __init__(self, policy: Policy, consensus: Consensus) -> None:
        self.down: list[Frame] = []
        self.events: list[StackEvent] = []
        self.writes: list[Write] = []
        self.mode = Mode.GET_RATE
        self.now = 0
        """The clock at the last input."""
        self.has_pending_input = True
        """Whether anything has happened since the last `flush`."""
        self.view = policy.view
        self.consensus = consensus
        self.ignored: Counter[str] = consensus.ignored
        self._policy = policy
        self._timing = policy.timing
        self.leaderless_since: int | None = None
        self._last_leader: int | None = None
        self._blocked_reported = False
        self._reported_lost_storage: set[int] = set()
        self._reported_refused_by: set[int] = set()

    def flush(self) -> None:
        """Say what there is to say to all that has happened since the last time."""
        raise NotImplementedError

    def bound_ns(self) -> int:
        """While nobody fails and nothing is lost."""
        raise NotImplementedError

    def adopt_leader(self, now: int, first_slot: int) -> None:
        """There is a leader: the group begins, or has another one."""
        leader = self.consensus.leader
        if self.mode is Mode.DET_RATE:
            self.mode = Mode.DELIVER_MESSAGES
            self.view = View(self.view.members, first_slot)
            self.events.append(ViewChange(self.view, joined=self.view.members))
        elif leader != self._last_leader:
            lost = now - (self.leaderless_since or now)
            gap_ms = lost / NS_PER_MS
            text = f"member {self._last_leader} leads no longer, member {leader} does; {gap_ms:.3f} ms without a leader"
            self.events.append(Violation(ViolationKind.LEADER_LOST, text, self._last_leader))
        self._last_leader, self.leaderless_since, self._blocked_reported = leader, None, False

    def report_consensus_problems(self, now: int) -> None:
        """Tell of members that do not count any more, and of a group in which nobody leads."""
        consensus = self.consensus
        for member in sorted(consensus.storage_identity.lost_storage - self._reported_lost_storage):
            self._reported_lost_storage.add(member)
            text = f"member {member} has come back without the storage it had: its votes do not count any more"
            self.events.append(Violation(ViolationKind.MEMORY_LOST, text, member))
        self._report_refusals()
        if consensus.leader is not None:
            return
        self.leaderless_since = now if self.leaderless_since is None else self.leaderless_since
        longest = max((consensus.detector.timeout_ns(peer) for peer in consensus.peers), default=0)
        blocked = (
            self.mode is Mode.DELIVER_MESSAGES
            and now - self.leaderless_since > 2 * longest + self._forward_timeout_ns()
        )
        if blocked and not self._blocked_reported:
            self._blocked_reported = True
            heard = consensus.detector.trusted(consensus.members)
            text = f"no majority follows a leader; of {len(consensus.members)} members {len(heard)} are heard: {heard}"
            self.events.append(Violation(ViolationKind.BLOCKED, text, self._policy.member))

    def trusted(self) -> list[int]:
        """The peers that are not suspected."""
        return self.consensus.detector.trusted(self.consensus.peers)

    def _report_refusals(self) -> None:
        refusers = self.consensus.storage_identity.refused_by
        for member in sorted(refusers - self._reported_refused_by):
            self._reported_refused_by.add(member)
            text = (
                f"this is not the storage that member {self._policy.member} had: member {member} does not listen to it "
                "any more. Restore the file, or give this member a new number"
            )
            self.events.append(Violation(ViolationKind.MEMORY_LOST, text, self._policy.member))

    def is_refused(self) -> bool:
        """Whether this member can get nothing into the log: the leader knows it by another memory, or too many do."""
        consensus, refusers = self.consensus, self.consensus.storage_identity.refused_by
        return consensus.leader in refusers or len(consensus.members) - len(refusers) < consensus.majority

    def _forward_timeout_ns(self) -> int:
        return max(self.bound_ns(), self.consensus.detector.response_time_ns()) + NS_PER_MS

    # -- questions -------------------------------------------------------------------------------------------

    def latest_slot(self, now: int) -> int:
        """Clocks are not compared, so any slot that a clock can show."""
        return ((1 << 63) - 1) // self._timing.theta_ns

    def keeps_sending_to_departed(self) -> bool:
        """Members that are gone may come back."""
        return True

    def gap_free(self) -> bool:
        """One log without gaps, whatever happens."""
        return True

    def running(self) -> bool:
        """Whether there has been a leader."""
        return self.mode is Mode.DELIVER_MESSAGES

    def waiting_for(self) -> tuple[int, ...]:
        """Peers that have not been heard, until there is a leader."""
        heard = self.consensus.detector.has_received_from
        return () if self.running() else tuple(peer for peer in self.consensus.peers if not heard(peer))

    def why_not_formed(self) -> str:
        """Who does not count."""
        lost = sorted(self.consensus.storage_identity.lost_storage)
        return f"members {lost} have lost their storage" if lost else ""

    def peer_rate(self, peer: int) -> Rate | None:
        """Rates are not exchanged."""
        return None

    def by_multicast(self) -> bool:
        """Votes go to one member each, and so does everything."""
        return False
