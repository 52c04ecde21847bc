"""Quasi-genuine FIFO total order multicast between groups (paper 003, as corrected by erratum 003-12).

Every member belongs to one group. A message goes to one or several groups that its sender's group may send to
(assumption A1): the sender hands it to its own group, which agrees on its place and stamp by consensus, and sends it on
to the other groups. A group delivers a message when its own stamps and the barriers of all groups that may send to it
have come as far; so any two groups deliver what they both get in one order, and only related groups ever talk.

One leader per group proposes, as consensus has it; instances are pipelined, which takes T_cons of waiting off the
paper's δ + 2·T_cons. Nothing is discarded but duplicates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from unisono.agreement.failure_detector import retry_interval_ns
from unisono.agreement.paxos.log import ConsensusOutput, RestoredState
from unisono.errors import InvalidOption
from unisono.model.durations import earliest
from unisono.model.events import LeaveComplete, Violation, ViolationKind
from unisono.model.grades import Grade
from unisono.model.ids import EVERYONE
from unisono.model.policy import Policy
from unisono.model.rates import Rate, Reserver
from unisono.model.stored_records import StoredRecords
from unisono.orders.modes import Mode
from unisono.orders.multigroup.barrier_requests import BarrierRequests
from unisono.orders.multigroup.barrier_retry import BarrierRetry
from unisono.orders.multigroup.barriers import BarrierQueue
from unisono.orders.multigroup.bounds import quasi_genuine_latency_bound_ns
from unisono.orders.multigroup.group_log import GroupLog
from unisono.orders.multigroup.messages import (
    DECODERS,
    ITEM_BYTES,
    BarrierRequest,
    Cast,
    StreamAck,
    StreamSegment,
    checked_bundle,
    encode_cast,
    encode_stream_ack,
    stamp_of,
    time_of,
)
from unisono.orders.multigroup.optimistic import OptimisticDelivery, WaitWindow
from unisono.orders.multigroup.proposals import AHEAD_MAX, PendingProposals
from unisono.orders.multigroup.proposer import RESERVED_VALUE_BYTES, GroupProposer
from unisono.orders.multigroup.sender import MulticastSender
from unisono.orders.multigroup.storage import (
    build_group_consensus,
    encode_snapshot,
    restore_snapshot,
    restore_stream_entries,
    stream_entries_write,
    tagged_consensus_writes,
)
from unisono.orders.multigroup.streams import GroupStreams
from unisono.orders.multigroup.topology_change import TopologyChangeHandler
from unisono.orders.multigroup.topology_messages import TopologyMessage
from unisono.orders.multigroup.unicast import GroupContacts, relay_of
from unisono.orders.multigroup.unpacking import BundleUnpacker
from unisono.orders.over_consensus import ConsensusOrderBase
from unisono.wire.bundles import Bundle
from unisono.wire.frame import Frame, Kind, addressed_to

WINDOW = 64
"""Instances under way at once."""
RETRANSMIT_AT_ONCE = 8
COMPACT_EVERY_INSTANCES = 4096
"""So many instances are kept before the log is cut."""
BLOCKED_AFTER_REQUESTS = 4
"""Having asked for a barrier so often, a member says that it is held up."""


class QuasiGenuine(ConsensusOrderBase):
    """The automaton of one member."""

    def __init__(self, policy: Policy, reserver: Reserver, stored_records: StoredRecords | None = None) -> None:
        if policy.multigroup is None:
            raise InvalidOption("topology", "a quasi-genuine order has to know which group may send to which")
        self.multigroup = policy.multigroup
        topology = self.multigroup.topology
        self.own_group_name = topology.group_of(policy.member)
        self._group_of_member = {member: topology.index(topology.group_of(member)) for member in topology.members}
        self.barrier_requests = BarrierRequests(topology, self.own_group_name)
        self.own_group = self.barrier_requests.own_group
        self._group_members = self.barrier_requests.members_of(self.own_group)
        consensus = build_group_consensus(
            policy, self._group_members, stored_records, window=WINDOW, retain=COMPACT_EVERY_INSTANCES
        )
        super().__init__(policy, consensus)
        self.contacts = GroupContacts(policy, self.barrier_requests.members_of, self.down)
        self._unicast = self.contacts.unicast
        self.log = GroupLog(
            self.own_group, self.barrier_requests.receivers, self.barrier_requests.senders, self._group_members
        )
        self.barrier_queue = BarrierQueue(self.own_group, self.barrier_requests.senders)
        self.proposals = PendingProposals()
        self.message_sender = MulticastSender(
            policy, reserver, consensus.max_value_bytes - ITEM_BYTES - RESERVED_VALUE_BYTES
        )
        self.group_streams = GroupStreams(
            policy.member,
            policy.incarnation,
            policy.epoch,
            max_frame=policy.max_frame,
            retry_ns=retry_interval_ns(policy.timing),
        )
        self.wait_window = WaitWindow(self.multigroup.window_ns, policy.timing.delta_ns + policy.timing.gamma_ns)
        self.optimistic_delivery = (
            OptimisticDelivery(self.wait_window, policy.timing) if self.multigroup.optimistic else None
        )
        self.unpacker = BundleUnpacker(policy.timing, None if self.optimistic_delivery is None else Grade.FINAL)
        self.window_slots = -(-self.bound_ns() // self._timing.theta_ns) + 3
        self._forwarded_at = self._leader_changes_seen = 0
        self._leaving_since: int | None = None
        self.proposer = GroupProposer(
            self.multigroup, self.log, self.proposals, self.barrier_requests, self.group_streams
        )
        self.topology_changes = TopologyChangeHandler(
            policy,
            self.log,
            self.barrier_queue,
            self.barrier_requests,
            message_sender=self.message_sender,
            unicast=self._unicast,
        )
        self.proposer.topology_messages = self.topology_changes.exchange.to_propose
        self._pending_acks: dict[tuple[int, int], None] = {}
        periodic = self.multigroup.liveness == "periodic"
        self.barrier_retry = BarrierRetry(max(retry_interval_ns(policy.timing), self.bound_ns() if periodic else 0))
        self._first_slot = 0
        """From here on this member delivers everything."""
        if consensus.decisions and isinstance(consensus.decisions[0], RestoredState):
            self._restore(consensus.decisions[0])
            del consensus.decisions[0]
        restore_stream_entries(stored_records, self.barrier_queue)
        self.events += self.topology_changes.restore(stored_records)

    # -- inputs ----------------------------------------------------------------------------------------------

    def submit(self, now: int, messages: Sequence[bytes]) -> int:
        """To the own group alone."""
        return self.submit_to(now, messages, (self.own_group_name,))

    def submit_to(self, now: int, messages: Sequence[bytes], destinations: Sequence[str]) -> int:
        """QGFTO-Mcast; DestinationNotAllowed if the topology does not let this group send there."""
        mask = self.topology_changes.checked_mask(destinations)
        if (
            self.mode is not Mode.DELIVER_MESSAGES
            or self._leaving_since is not None
            or self.topology_changes.catching_up()
        ):
            return 0
        begins = not self.message_sender.undecided
        count = self.message_sender.submit(now, messages, mask)
        if begins:
            self._forwarded_at = now
        self.now, self.has_pending_input = now, True
        self._forward(now)
        return count

    def destinations(self, groups: Sequence[str]) -> tuple[int, ...]:
        """The members of these groups; DestinationNotAllowed if this group may not send there now."""
        self.topology_changes.checked_mask(groups)
        return self.multigroup.topology.members_of(groups)

    def change_topology(self, now: int, sends: Sequence[str]) -> Callable[[], bool]:
        """Have the own group send to these groups and no others; the result says whether it does."""
        done = self.topology_changes.request_change(now, sends)
        self.now, self.has_pending_input = now, True
        self._forward(now)
        return done

    def from_below(self, now: int, frame: Frame) -> None:
        """net-receive."""
        if self.mode is Mode.LEFT:
            return
        if frame.kind is not Kind.HEARTBEAT:  # nothing follows from one before the next wake
            self.now, self.has_pending_input = now, True
        if frame.kind not in DECODERS:
            self.consensus.from_below(now, frame)
            return
        group = self._group_of_member.get(frame.sender)
        if group is None or frame.epoch != self._policy.epoch:
            self.ignored["not of these groups"] += 1
            return
        match DECODERS[frame.kind](bytes(frame.body)):
            case Cast() as cast:
                parcel = checked_bundle(cast.bundle)
                if (parcel.sender, parcel.incarnation) == (frame.sender, frame.incarnation):
                    self.wait_window.record_delay(now - frame.sent_ns)
                    self._on_cast(now, group, parcel, cast)
                else:
                    self.ignored["malformed"] += 1
            case StreamSegment() as stream:
                self._on_stream(frame, group, stream)
            case StreamAck() as ack if ack.source == self.own_group:
                self.group_streams.on_ack(now, frame.sender, frame.incarnation, group, ack.applied)
            case BarrierRequest() as want:
                self._on_barrier_request(now, frame.sender, group, want)
            case TopologyMessage() as bond if bond.group == group:
                self.topology_changes.exchange.receive(now, frame.sender, bond, leads=self.consensus.is_leader)
            case _:
                self.ignored["malformed"] += 1

    def wake(self, now: int) -> None:
        """Time has passed."""
        if self.mode is Mode.LEFT:
            return
        if self.mode is Mode.GET_RATE:
            self.mode = Mode.DET_RATE
        self.now, self.has_pending_input = now, True
        self.consensus.wake(now)
        if self.consensus.is_leader:
            self.group_streams.wake(now, self.log)
            self.topology_changes.exchange.wake(now, self.consensus.detector.suspected)
        self._retransmit_overdue(now)

    def wake_at(self) -> int | None:
        """The consensus's alarm, and those for what is held back, late or unanswered."""
        if self.mode is Mode.LEFT:
            return None
        times = [self.consensus.wake_at(), self.barrier_retry.retry_at()]
        if self.message_sender.undecided and self.consensus.leader is not None:
            times.append(self._forwarded_at + self._forward_timeout_ns())
        if self.optimistic_delivery is not None:
            times.append(self.optimistic_delivery.due_at())
        if self.consensus.is_leader:
            times += [self.group_streams.wake_at(), self.topology_changes.exchange.due_at()]
            if self._has_free_instance():
                times.append(self.proposer.due_at(self.wait_window.ns))
        return earliest(times)

    def change_rate(self, now: int, rate: Rate) -> None:
        """new-rate: in force from the next slot on."""
        self.message_sender.change_rate(rate)

    def leave(self, now: int) -> None:
        """Depart when all that was accepted has its place; those who stay still need a majority of all there were."""
        if self._leaving_since is None:
            self._leaving_since = self.now = now
            self.has_pending_input = True

    # -- what others say -------------------------------------------------------------------------------------

    def _on_cast(self, now: int, group: int, bundle: Bundle, cast: Cast) -> None:
        """FR-Deliver(m)."""
        stamp = stamp_of(cast.ts, bundle.sender)
        if self.optimistic_delivery is not None and cast.destination_mask >> self.own_group & 1:
            self.optimistic_delivery.add(now, stamp, bundle, cast.bundle)
        if group == self.own_group:
            settled = self.log.next_serial(bundle.sender, bundle.incarnation)
            if self.proposals.add(bundle, cast, settled):
                self.barrier_requests.on_own_message(stamp, cast.destination_mask)
        else:
            self._record_barrier_request(now, group, stamp, cast.destination_mask)

    def _record_barrier_request(self, now: int, group: int, stamp: int, mask: int) -> None:
        unreached = self.barrier_requests.requested(group, stamp, mask)
        if self.consensus.is_leader:
            for other in unreached:
                self.contacts.request_barrier(now, other, BarrierRequest(stamp, 1 << self.own_group))

    def _on_barrier_request(self, now: int, sender: int, group: int, request: BarrierRequest) -> None:
        if self.multigroup.liveness != "on_demand":
            self.ignored["not on demand"] += 1
            return
        self._record_barrier_request(now, group, request.stamp, request.group_mask)
        # Who asks for itself may have lost what the others got.
        if request.group_mask >> group & 1 and group in self.log.streams and self.log.last_stamp >= request.stamp:
            self.group_streams.send_barrier(now, self.log, group, sender)

    def _on_stream(self, frame: Frame, group: int, segment: StreamSegment) -> None:
        """Decided messages of another group, and its barrier."""
        if segment.source != group or group not in self.barrier_queue.sources:
            self.ignored["not a sender to this group"] += 1
            return
        leader = self.contacts.update_leader(group, frame)
        fresh = self.barrier_queue.receive(group, segment.first, segment.entries)
        self.barrier_queue.promise(group, segment.head, segment.last_stamp)
        if fresh:
            self.writes.append(stream_entries_write(group, fresh))
            if self.multigroup.liveness == "on_demand":
                self.barrier_requests.request(fresh[-1][1].stamp)
        if frame.number:
            self._pending_acks[leader, group] = None

    # -- what this member says -------------------------------------------------------------------------------

    def _forward(self, now: int) -> None:
        """Send messages to whoever leads, and tell the groups that they concern."""
        leader, sending = self.consensus.leader, self.message_sender
        if leader is None or sending.forwarded >= min(len(sending.undecided), AHEAD_MAX):
            return
        hints: dict[int, tuple[int, int]] = {}
        for unsettled in islice(sending.undecided, sending.forwarded, AHEAD_MAX):
            self._forward_cast(now, leader, unsettled.cast)
            if self.optimistic_delivery is not None and not unsettled.announced:
                self._send_to_destinations(now, leader, unsettled.cast)
            told, unsettled.announced, mask = unsettled.announced, True, unsettled.cast.destination_mask
            if not told and self.multigroup.liveness == "on_demand":
                for group in self.barrier_requests.groups_to_notify(mask):
                    if self.optimistic_delivery is not None and mask >> group & 1:
                        continue
                    hints[group] = (sending.expected_stamp(unsettled), hints.get(group, (0, 0))[1] | mask)
        sending.forwarded = min(len(sending.undecided), AHEAD_MAX)
        for group, (stamp, mask) in hints.items():
            self.contacts.request_barrier(now, group, BarrierRequest(stamp, mask))

    def _send_to_destinations(self, now: int, leader: int, cast: Cast) -> None:
        """FR-MCast to all destinations, which deliver early."""
        me, topology = self._policy.member, self.multigroup.topology
        if leader != me and cast.destination_mask >> self.own_group & 1:
            self._on_cast(now, self.own_group, checked_bundle(cast.bundle), cast)
        for member in topology.members_of(topology.names_in_mask(cast.destination_mask)):
            if member not in {leader, me}:
                self._unicast(now, Kind.GROUP_CAST, encode_cast(cast), member)

    def _forward_cast(self, now: int, leader: int, cast: Cast) -> None:
        if leader == self._policy.member:
            self._on_cast(now, self.own_group, checked_bundle(cast.bundle), cast)
        else:
            self._unicast(now, Kind.GROUP_CAST, encode_cast(cast), leader)

    # -- the log ---------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Say what there is to say to all that has happened since the last time: what came together counts together."""
        now, consensus = self.now, self.consensus
        if self.mode is Mode.LEFT or not self.has_pending_input:
            return
        self.has_pending_input = False
        if consensus.leader_changes != self._leader_changes_seen:
            self._leader_changes_seen = consensus.leader_changes
            self._on_leader_change(now)
        moved = True
        while moved:
            moved = consensus.is_leader and self._propose(now)
            consensus.flush(now)
            if consensus.decisions:
                decisions, consensus.decisions[:] = consensus.decisions[:], []
                self._apply_decisions(now, decisions)
                moved = True
        self._deliver(now)
        herald = relay_of(consensus.members, consensus.leader)
        if consensus.is_leader:
            self.topology_changes.exchange.wake(now, self.consensus.detector.suspected)
            self._send_streams(now, relayed=herald is not None and consensus.decisions_known_by((herald,)))
        elif herald == consensus.me:
            self._send_streams(now)
        for member, group in self._pending_acks:
            self._unicast(
                now,
                Kind.GROUP_STREAM_ACK,
                encode_stream_ack(StreamAck(group, self.barrier_queue.sources[group].applied)),
                member,
            )
        self._pending_acks.clear()
        for frame in consensus.down:
            # "Everyone" is the own group here; nobody else is to hear of its votes.
            to = consensus.peers if frame.to == EVERYONE else (frame.to,)
            self.down += [addressed_to(frame, mate) for mate in to]
        self.down += self.group_streams.down
        consensus.down.clear()
        self.group_streams.down.clear()
        self.writes += tagged_consensus_writes(consensus.writes)
        consensus.writes.clear()
        if self._leaving_since is not None:
            self._depart_if_done(now)

    def _propose(self, now: int) -> bool:
        consensus = self.consensus
        value = (
            self.proposer.next_value(now, self.wait_window.ns, consensus.max_value_bytes)
            if self._has_free_instance()
            else None
        )
        return value is not None and consensus.propose(now, consensus.next_free, value)

    def _has_free_instance(self) -> bool:
        return self.consensus.next_free <= self.consensus.decided + self.consensus.window

    def _apply_decisions(self, now: int, decisions: Sequence[ConsensusOutput]) -> None:
        """When Decide(k, msgSet)."""
        log, me = self.log, self._policy
        for decision in decisions:
            if isinstance(decision, RestoredState):
                if self._restore(decision) and self.mode is Mode.DELIVER_MESSAGES:
                    text = f"what was decided up to {decision.k} is not kept any more: some of it is not delivered here"
                    self.events.append(Violation(ViolationKind.TOO_FAR_BEHIND, text, me.member, self.unpacker.slot))
                continue
            own = log.apply(decision.value)
            if own is None:
                self.ignored["malformed"] += 1
                continue
            for entry in own:
                self.barrier_queue.add_own(entry)
            if decision.k % COMPACT_EVERY_INSTANCES == 0 and not self.barrier_queue.awaiting_admission:
                self.consensus.compact(decision.k, encode_snapshot(log, self.barrier_queue, self.unpacker))
        for sender, life in self.proposals.senders():
            self.proposals.discard_decided(sender, life, log.next_serial(sender, life))
        if self.message_sender.discard_decided(log.next_serial(me.member, me.incarnation)):
            self._forwarded_at = now
        if self.consensus.next_free == self.consensus.decided + 1:
            self.proposer.on_all_decided()
        self.events += self.topology_changes.apply_changes(now, leads=self.consensus.is_leader)
        self._forward(now)

    def _deliver(self, now: int) -> None:
        for _, entry in self.barrier_queue.pop_deliverable(self.log.last_stamp):
            if self.optimistic_delivery is not None:
                self.optimistic_delivery.mark_final(entry.bundle)
            batch = self.unpacker.batch(entry.stamp, entry.bundle)
            if batch is not None:
                self.events.append(batch)
        if self.optimistic_delivery is not None:
            self.events += self.optimistic_delivery.pop_due(now)
        pending = self.barrier_queue.pending
        self.barrier_retry.set_blocked(now, pending[0][0] if pending else None)
        if pending and self.consensus.is_leader and self.multigroup.liveness == "on_demand":
            if self.log.last_stamp < self.barrier_queue.largest_stamp:
                self.barrier_requests.request(self.barrier_queue.largest_stamp)
            for group in self.barrier_requests.mark_unrequested(
                self.barrier_queue.blockers(), self.barrier_queue.largest_stamp
            ):
                self.contacts.request_barrier(
                    now, group, BarrierRequest(self.barrier_queue.largest_stamp, 1 << self.own_group)
                )

    def _send_streams(self, now: int, *, relayed: bool = False) -> None:
        """Send(m, 'cons') to the destinations, and barriers to who needs them."""
        log, calls = self.log, self.barrier_requests
        on_demand = self.multigroup.liveness == "on_demand"
        threshold_ns, ready = self.multigroup.barrier_threshold_ns, log.streams
        due = (
            calls.due_receivers(log.last_stamp, ready)
            if on_demand
            else calls.stale_receivers(log.last_stamp, threshold_ns, ready)
        )
        for receiver in log.streams:
            self.group_streams.send_missing_to_all(
                now, log, receiver, calls.members_of(receiver), barrier=receiver in due, relayed=relayed
            )
        self.events += self.group_streams.report_too_far_behind()

    def _restore(self, restored: RestoredState) -> bool:
        upto = restore_snapshot(restored, self.log, self.barrier_queue, self.unpacker)
        if upto is not None:
            self._first_slot = self._timing.slot_of(time_of(upto)) + 1
        return upto is not None

    # -- leaders ---------------------------------------------------------------------------------------------

    def _on_leader_change(self, now: int) -> None:
        """Hand everything in again; what an earlier leader was doing is void."""
        self.consensus.withdraw()
        self.barrier_requests.reset()
        self.group_streams.reset(self.log, leads=self.consensus.is_leader)
        self.proposer.start_term(now)
        self.topology_changes.exchange.start_term(now)
        self.adopt_leader(now, self._first_slot)
        self.message_sender.forwarded, self._forwarded_at = 0, now
        self._forward(now)

    def _retransmit_overdue(self, now: int) -> None:
        """Say again what has waited too long: to the leader, and to groups that hold this one up."""
        leader, sending = self.consensus.leader, self.message_sender
        if sending.undecided and leader is not None and now >= self._forwarded_at + self._forward_timeout_ns():
            self._forwarded_at = now
            for unsettled in islice(sending.undecided, min(sending.forwarded, RETRANSMIT_AT_ONCE)):
                self._forward_cast(now, leader, unsettled.cast)
        if self.barrier_retry.start_attempt_if_due(now):
            blockers = self.barrier_queue.blockers()
            if self.multigroup.liveness == "on_demand":
                for group in blockers:
                    self.contacts.request_barrier(
                        now,
                        group,
                        BarrierRequest(self.barrier_queue.largest_stamp, 1 << self.own_group),
                        all_members=True,
                    )
            if self.barrier_retry.attempts == BLOCKED_AFTER_REQUESTS and blockers:
                names = ", ".join(self.multigroup.topology.names[group] for group in blockers)
                text = f"deliveries wait for barriers of {names}, asked for {self.barrier_retry.attempts} times"
                self.events.append(Violation(ViolationKind.HELD_UP, text, self._policy.member))
        self.report_consensus_problems(now)

    def _depart_if_done(self, now: int) -> None:
        """All is in its place, and sent on; a leader stays until the others know, for as long as that can take."""
        overdue = now > (self._leaving_since or 0) + 4 * self.bound_ns()
        if self.message_sender.undecided and self.mode is Mode.DELIVER_MESSAGES:
            return
        done = not self.consensus.is_leader or (
            self.consensus.decisions_known_by(self.trusted()) and self.group_streams.all_acknowledged()
        )
        if self.mode is not Mode.LEFT and (overdue or done):
            self.mode = Mode.LEFT
            self.events.append(LeaveComplete(self.unpacker.slot))

    def bound_ns(self) -> int:
        """While nobody fails and nothing is lost."""
        return quasi_genuine_latency_bound_ns(self._timing, self.multigroup)
