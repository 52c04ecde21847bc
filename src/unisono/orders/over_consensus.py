"""The common part of orders over consensus: forming the group, following its leader, and reporting trouble.

A subclass (`log/order.py`, `multigroup/order.py`) owns a log of messages that `Consensus` decides, and keeps this
contract:

- Each input sets `now` and `has_pending_input`. The stack calls `flush` before it takes `writes`, `down` or `events`.
  `flush` calls `_on_leader_change`, `_propose`, `_apply_decisions` and `_finish_flush` of the subclass.
- On its first `wake` it enters the mode DET_RATE: it waits for a leader.
- `_on_leader_change` calls `adopt_leader`, which forms the group the first time.
- `wake` calls `report_consensus_problems`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence

from unisono.agreement.failure_detector import heartbeat_interval_ns, retry_interval_ns
from unisono.agreement.paxos.consensus import Consensus
from unisono.agreement.paxos.log import ConsensusOutput
from unisono.model.effects import StoredRecords, Write
from unisono.model.events import StackEvent, View, ViewChange, Violation, ViolationKind
from unisono.model.policy import Policy
from unisono.model.units import NS_PER_MS, Rate
from unisono.orders.contract import Mode
from unisono.wire.frame import Frame


def build_consensus(
    policy: Policy, members: Sequence[int], stored_records: StoredRecords | None, *, window: int, retain: int
) -> Consensus:
    """Consensus among `members`, with the intervals that the policy's timing asks for, continued from its records."""
    return Consensus(
        policy.member,
        members,
        every_ns=heartbeat_interval_ns(policy.timing),
        retry_ns=retry_interval_ns(policy.timing),
        max_frame=policy.max_frame,
        incarnation=policy.incarnation,
        epoch=policy.epoch,
        window=window,
        retain=retain,
        stored_records=stored_records,
        batch_replies=True,
    )


class ConsensusOrderBase(ABC):
    """One member of a group that agrees on a log; see the module docstring for the contract."""

    gap_free = True
    keeps_sending_to_departed = True  # a member that has failed may return

    def __init__(self, policy: Policy, consensus: Consensus, bound_ns: int) -> None:
        """`bound_ns` is the latency bound while no member fails and no frame is lost."""
        self.down: list[Frame] = []
        self.events: list[StackEvent] = []
        self.writes: list[Write] = []
        self.mode = Mode.GET_RATE
        self.now = 0
        """The time of the last input."""
        self.has_pending_input = True
        """Whether there was any input since the last `flush`."""
        self.view = policy.view
        self.consensus = consensus
        self.ignored: Counter[str] = consensus.ignored
        self._policy = policy
        self._timing = policy.timing
        self._bound_ns = bound_ns
        self.window_slots = -(-bound_ns // policy.timing.theta_ns) + 3
        self._leaving_since: int | None = None
        self._leader_changes_seen = 0
        self.leaderless_since: int | None = None
        self._last_leader: int | None = None
        self._blocked_reported = False
        self._reported_lost_storage: set[int] = set()
        self._reported_refused_by: set[int] = set()

    # -- batches of input ------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Process all input since the last call as one batch, and queue frames, records and deliveries."""
        now, consensus = self.now, self.consensus
        if self.mode is Mode.LEFT or not self.has_pending_input:
            return
        self.has_pending_input = False
        if consensus.leader_changes != self._leader_changes_seen:
            self._leader_changes_seen = consensus.leader_changes
            self._on_leader_change(now)
        progress = True
        while progress:
            progress = self._propose(now)
            consensus.flush(now)
            if consensus.decisions:
                decisions, consensus.decisions[:] = consensus.decisions[:], []
                self._apply_decisions(now, decisions)
                progress = True
        self._finish_flush(now)

    @abstractmethod
    def _on_leader_change(self, now: int) -> None:
        """There is another leader, or the first one: call `adopt_leader`, and send it what is not decided."""

    @abstractmethod
    def _propose(self, now: int) -> bool:
        """As the leader, propose the next value. False if there is none, or this member does not lead."""

    @abstractmethod
    def _apply_decisions(self, now: int, decisions: Sequence[ConsensusOutput]) -> None:
        """Apply decided values to the log."""

    @abstractmethod
    def _finish_flush(self, now: int) -> None:
        """Nothing is left to propose or to apply: queue the frames that follow, and leave if that is due."""

    def leave(self, now: int) -> None:
        """Leave when all submitted messages are in the log. The others still need a majority of all members."""
        if self._leaving_since is None:
            self._leaving_since = self.now = now
            self.has_pending_input = True

    # -- leaders ---------------------------------------------------------------------------------------------

    def adopt_leader(self, now: int, first_slot: int) -> None:
        """There is a leader. If it is the first one, the group is formed; otherwise report the change."""
        leader = self.consensus.leader
        if self.mode is Mode.DET_RATE:
            self.mode = Mode.DELIVER_MESSAGES
            self.view = View(self.view.members, first_slot)
            self.events.append(ViewChange(self.view, joined=self.view.members))
        elif leader != self._last_leader:
            leaderless_ms = (now - (self.leaderless_since or now)) / NS_PER_MS
            text = (
                f"member {leader} replaced member {self._last_leader} as the leader; the group had no leader for "
                f"{leaderless_ms:.3f} ms"
            )
            self.events.append(Violation(ViolationKind.LEADER_LOST, text, self._last_leader))
        self._last_leader, self.leaderless_since, self._blocked_reported = leader, None, False

    def trusted(self) -> list[int]:
        """The peers that are not suspected."""
        return self.consensus.detector.trusted(self.consensus.peers)

    def _forward_timeout_ns(self) -> int:
        """How long to wait for a decision before messages are forwarded to the leader again."""
        return max(self._bound_ns, self.consensus.detector.response_time_ns()) + NS_PER_MS

    # -- trouble ---------------------------------------------------------------------------------------------

    def report_consensus_problems(self, now: int) -> None:
        """Report members without their storage, and a group that has had no leader for too long, each once."""
        self._report_lost_storage()
        self._report_refusals()
        consensus = self.consensus
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
            reachable = consensus.detector.trusted(consensus.members)
            text = (
                f"no leader has a majority: of {len(consensus.members)} members {len(reachable)} are reachable "
                f"({', '.join(map(str, reachable))}), {consensus.majority} are needed"
            )
            self.events.append(Violation(ViolationKind.BLOCKED, text, self._policy.member))

    def _report_lost_storage(self) -> None:
        for member in sorted(self.consensus.storage_identity.lost_storage - self._reported_lost_storage):
            self._reported_lost_storage.add(member)
            text = (
                f"member {member} restarted without its storage, so its votes do not count; restore its file or give "
                "it a new member number"
            )
            self.events.append(Violation(ViolationKind.MEMORY_LOST, text, member))

    def _report_refusals(self) -> None:
        me = self._policy.member
        for member in sorted(self.consensus.storage_identity.refused_by - self._reported_refused_by):
            self._reported_refused_by.add(member)
            text = (
                f"the storage of member {me} does not match the one that member {member} recorded, so member {member} "
                "ignores it; restore the original file or give this member a new number"
            )
            self.events.append(Violation(ViolationKind.MEMORY_LOST, text, me))

    # -- questions of the stack ------------------------------------------------------------------------------

    def bound_ns(self) -> int:
        """The latency bound while no member fails and no frame is lost."""
        return self._bound_ns

    def latest_slot(self, now: int) -> int:
        """The last slot that a frame may name: any, because these orders do not compare clocks."""
        return ((1 << 63) - 1) // self._timing.theta_ns

    def running(self) -> bool:
        """Whether the group is formed: it has had a leader."""
        return self.mode is Mode.DELIVER_MESSAGES

    def waiting_for(self) -> tuple[int, ...]:
        """While the group is not formed, the peers that have sent nothing yet."""
        received_from = self.consensus.detector.has_received_from
        return () if self.running() else tuple(peer for peer in self.consensus.peers if not received_from(peer))

    def why_not_formed(self) -> str:
        """Which members do not count because they lost their storage; empty if all count."""
        lost = sorted(self.consensus.storage_identity.lost_storage)
        return f"members {lost} have lost their storage" if lost else ""

    def peer_rate(self, peer: int) -> Rate | None:
        """None: members do not exchange their rates."""
        return None

    def by_multicast(self) -> bool:
        """No: most frames go to one member."""
        return False
