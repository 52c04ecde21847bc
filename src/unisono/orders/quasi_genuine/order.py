"""Quasi-genuine FIFO total order multicast between groups (paper 003 Algorithms 1 to 3, errata 003-1 to 003-18).

Every member belongs to one group. A message goes to one or several groups that its sender's group may send to
(assumption A1). Any two groups deliver the messages that both receive in the same order. Only groups that are linked,
because one may send to the other, ever exchange datagrams. Only duplicates are discarded.

Sending: `submit_to` gives messages timestamps and forwards them to the leader of the own group. With barriers on demand
it also asks the groups that may block a message for their barriers. The leader proposes batches of messages, and
several consensus instances run at once. That saves one of the two consensus rounds in the paper's latency δ + 2·T_cons.
The group gives each decided message a stamp (erratum 003-12) and sends it on to the other destination groups.

Receiving: `from_below` takes casts of the own group's members, streams of decided messages and barriers from other
groups, acknowledgments, barrier requests and topology messages. `flush` processes all input since the last call as one
batch: it proposes, applies decisions, delivers, and queues the replies.

Delivering: a message is delivered when the stamps of the own group and the barriers of all groups that may send here
have reached its stamp. With `optimistic`, members also get a message directly from its sender and deliver it early, at
the end of its window w(p) (Algorithm 3).

The parts: `group_log` (decided sequence, proposals), `barriers` (messages that wait, barrier requests), `streams` (own
messages, entries for other groups), `topology_change` (links that open and close), `messages` (wire form and storage).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from unisono.agreement.failure_detector import retry_interval_ns
from unisono.agreement.paxos.acceptor import ConsensusOutput, RestoredState
from unisono.errors import DestinationNotAllowed, InvalidOption, StorageError
from unisono.model.effects import StoredRecords
from unisono.model.events import Grade, LeaveComplete, TopologyChange, Violation, ViolationKind
from unisono.model.policy import Policy
from unisono.model.timing import earliest
from unisono.model.units import EVERYONE, Rate, Reserver
from unisono.orders.consensus.order import ConsensusOrderBase, build_consensus
from unisono.orders.contract import Mode
from unisono.orders.quasi_genuine.barriers import BarrierQueue, BarrierRequests, BarrierRetry
from unisono.orders.quasi_genuine.bounds import quasi_genuine_latency_bound_ns
from unisono.orders.quasi_genuine.group_log import (
    AHEAD_MAX,
    RESERVED_VALUE_BYTES,
    GroupLog,
    GroupProposer,
    PendingProposals,
)
from unisono.orders.quasi_genuine.messages import (
    ITEM_BYTES,
    SPECS,
    BarrierRequest,
    Cast,
    ConfirmTopology,
    GroupMessage,
    GroupState,
    LogItem,
    SetReceivers,
    StreamAck,
    StreamSegment,
    TopologyMessage,
    consensus_records,
    decode_state,
    encode_state,
    encode_value,
    stamp_of,
    stored_stream_entries,
    stream_entries_write,
    tagged_consensus_writes,
    time_of,
)
from unisono.orders.quasi_genuine.optimistic import OptimisticDelivery, WaitWindow
from unisono.orders.quasi_genuine.streams import GroupStreams, MulticastSender, relay_of
from unisono.orders.quasi_genuine.topology_change import TopologyExchange
from unisono.orders.quasi_genuine.unpacking import BundleUnpacker
from unisono.wire.codec import Unreadable, control_frame
from unisono.wire.frame import (
    Frame,
    Kind,
    addressed_to,
)

WINDOW = 64
"""The number of consensus instances that may be in progress at once."""
RETRANSMIT_AT_ONCE = 8
COMPACT_EVERY_INSTANCES = 4096
"""A snapshot replaces the log after this many instances."""
COMPACT_EVERY_BYTES = 4 << 20
"""A snapshot also replaces the log when the values decided since the last one have more bytes than this."""
BLOCKED_AFTER_REQUESTS = 4
"""A member reports that its deliveries are blocked after requesting the same barriers this many times."""


class QuasiGenuineOrder(ConsensusOrderBase):
    """One member's automaton of the order `quasi_genuine`."""

    def __init__(self, policy: Policy, reserver: Reserver, stored_records: StoredRecords | None = None) -> None:
        if policy.multigroup is None:
            raise InvalidOption("topology", "the order quasi_genuine needs a topology: which group may send to which")
        self.multigroup = policy.multigroup
        topology = self.multigroup.topology
        self.own_group_name = topology.group_of(policy.member)
        self.own_group = topology.index(self.own_group_name)
        self._members_of = {group: tuple(topology.groups[name]) for group, name in enumerate(topology.names)}
        self._group_of_member = {member: topology.index(topology.group_of(member)) for member in topology.members}
        group_members = self._members_of[self.own_group]
        records = consensus_records(stored_records)
        retain = COMPACT_EVERY_INSTANCES
        consensus = build_consensus(
            policy, group_members, records, window=WINDOW, retain=retain, check_state=decode_state
        )
        super().__init__(policy, consensus, quasi_genuine_latency_bound_ns(policy.timing, self.multigroup))
        retry_ns = retry_interval_ns(policy.timing)
        self._on_demand = self.multigroup.liveness == "on_demand"

        self.barrier_requests = BarrierRequests(topology, self.own_group_name)
        receivers, senders = self.barrier_requests.receivers, self.barrier_requests.senders
        self.barrier_queue = BarrierQueue(self.own_group, senders)
        self.barrier_retry = BarrierRetry(retry_ns if self._on_demand else max(retry_ns, self._bound_ns))
        self.log = GroupLog(self.own_group, receivers, senders, group_members)
        self.proposals = PendingProposals()
        self.proposer = GroupProposer(self.multigroup, self.log, self.proposals, self.barrier_requests)
        self.message_sender = MulticastSender(
            policy, reserver, consensus.max_value_bytes - ITEM_BYTES - RESERVED_VALUE_BYTES
        )
        self.group_streams = GroupStreams(
            policy.member, policy.incarnation, policy.epoch, max_frame=policy.max_frame, retry_ns=retry_ns
        )
        self.topology_exchange = TopologyExchange(self.log.topology, retry_ns=retry_ns)
        self.wait_window = WaitWindow(self.multigroup.window_ns, policy.timing.delta_ns + policy.timing.gamma_ns)
        self.optimistic_delivery = (
            OptimisticDelivery(self.wait_window, policy.timing) if self.multigroup.optimistic else None
        )
        self.unpacker = BundleUnpacker(policy.timing, None if self.optimistic_delivery is None else Grade.FINAL)

        self._forwarded_at = self._uncompacted_bytes = 0
        self._known_leaders: dict[int, int] = {}
        """By other group, the member that seems to lead it."""
        self._pending_acks: dict[tuple[int, int], None] = {}
        """The acknowledgments to send at the next flush: (member to send to, group whose stream is acknowledged)."""
        self._allowed_mask = self.log.topology.allowed_mask()
        """The groups that this member may send to now."""
        self._applied_topology_changes = self._confirmed_version = 0
        self._restarted = False
        self._first_slot = 0
        """From this slot on this member delivers everything."""
        self._restore_stored_records(stored_records)

    # -- inputs ----------------------------------------------------------------------------------------------

    def submit(self, now: int, messages: Sequence[bytes]) -> int:
        """Multicast messages to the own group alone; returns how many were accepted."""
        return self.submit_to(now, messages, (self.own_group_name,))

    def submit_to(self, now: int, messages: Sequence[bytes], destinations: Sequence[str]) -> int:
        """Multicast messages to the groups `destinations`; returns how many were accepted.

        Raises DestinationNotAllowed if the topology does not let this group send to all of them.
        """
        mask = self._checked_mask(destinations)
        if self.mode is not Mode.DELIVER_MESSAGES or self._leaving_since is not None or self._topology_unknown():
            return 0
        none_undecided = not self.message_sender.undecided
        count = self.message_sender.submit(now, messages, mask)
        if none_undecided:
            self._forwarded_at = now
        self.now, self.has_pending_input = now, True
        self._forward(now)
        return count

    def destinations(self, groups: Sequence[str]) -> tuple[int, ...]:
        """The members of these groups. Raises DestinationNotAllowed if this group may not send there now."""
        self._checked_mask(groups)
        return self.multigroup.topology.members_of(groups)

    def change_topology(self, now: int, sends: Sequence[str]) -> Callable[[], bool]:
        """Let the own group send to these groups and no others. Returns a function that says whether this is done."""
        topology = self.multigroup.topology
        for name in sends:
            if name not in topology.groups:
                raise InvalidOption(
                    "topology.sends", f"unknown group {name!r}; expected one of {', '.join(topology.names)}"
                )
        serial = self.message_sender.send_control(now, SetReceivers(topology.mask(sends)))
        self.now, self.has_pending_input = now, True
        self._forward(now)
        return lambda: self._own_next_serial() > serial and self.log.topology.is_settled()

    def from_below(self, now: int, frame: Frame) -> None:
        """Process a frame that has arrived from a member of the own group or of a linked group."""
        if self.mode is Mode.LEFT:
            return
        if frame.kind is not Kind.HEARTBEAT:  # a heartbeat has no effect before the next wake
            self.now, self.has_pending_input = now, True
        if frame.kind not in SPECS:
            self.consensus.from_below(now, frame)
            return
        group = self._group_of_member.get(frame.sender)
        if group is None or frame.epoch != self._policy.epoch:
            self.ignored["not of these groups"] += 1
            return
        match frame.message:
            case Cast() as cast:
                if (cast.bundle.sender, cast.bundle.incarnation) == (frame.sender, frame.incarnation):
                    self.wait_window.record_delay(now - frame.sent_ns)
                    self._on_cast(now, group, cast)
                else:
                    self.ignored["cast of another sender"] += 1
            case StreamSegment() as segment:
                self._on_stream_segment(frame, group, segment)
            case StreamAck() as ack if ack.source == self.own_group:
                self.group_streams.on_ack(now, frame.sender, frame.incarnation, group, ack.applied)
            case BarrierRequest() as request:
                self._on_barrier_request(now, frame.sender, group, request)
            case TopologyMessage() as message if message.group == group:
                answer = self.topology_exchange.receive(message, leads=self.consensus.is_leader)
                if answer is not None:
                    self._unicast(now, answer, frame.sender)
            case _:
                self.ignored["not for this group"] += 1

    def wake(self, now: int) -> None:
        """Handle the timers that are due: consensus, retransmissions, proposals and early deliveries."""
        if self.mode is Mode.LEFT:
            return
        if self.mode is Mode.GET_RATE:
            self.mode = Mode.DET_RATE
        self.now, self.has_pending_input = now, True
        self.consensus.wake(now)
        if self.consensus.is_leader:
            self.group_streams.wake(now, self.log)
            self._send_topology_requests(now)
        self._retransmit_overdue(now)

    def wake_at(self) -> int | None:
        """The earliest time at which consensus, a retransmission, a proposal or an early delivery is due."""
        if self.mode is Mode.LEFT:
            return None
        times = [self.consensus.wake_at(), self.barrier_retry.retry_at()]
        if self.message_sender.undecided and self.consensus.leader is not None:
            times.append(self._forwarded_at + self._forward_timeout_ns())
        if self.optimistic_delivery is not None:
            times.append(self.optimistic_delivery.due_at())
        if self.consensus.is_leader:
            times += [self.group_streams.wake_at(), self.topology_exchange.due_at()]
            if self.consensus.may_propose_next(self.now):
                times.append(self.proposer.due_at(self.wait_window.ns))
        return earliest(times)

    def change_rate(self, now: int, rate: Rate) -> None:
        """Use a new rate from the next slot on."""
        self.message_sender.change_rate(rate)

    # -- sending ---------------------------------------------------------------------------------------------

    def _forward(self, now: int) -> None:
        """Send undecided messages to the leader, and notify the groups that they concern."""
        leader, sender = self.consensus.leader, self.message_sender
        if leader is None or sender.forwarded >= min(len(sender.undecided), AHEAD_MAX):
            return
        hints: dict[int, tuple[int, int]] = {}
        for undecided in islice(sender.undecided, sender.forwarded, AHEAD_MAX):
            self._forward_cast(now, leader, undecided.cast)
            if self.optimistic_delivery is not None and not undecided.announced:
                self._send_to_destinations(now, leader, undecided.cast)
            announced, undecided.announced, mask = undecided.announced, True, undecided.cast.destination_mask
            if not announced and self._on_demand:
                for group in self.barrier_requests.groups_to_notify(mask):
                    if self.optimistic_delivery is not None and mask >> group & 1:
                        continue
                    hints[group] = (sender.expected_stamp(undecided), hints.get(group, (0, 0))[1] | mask)
        sender.forwarded = min(len(sender.undecided), AHEAD_MAX)
        for group, (stamp, mask) in hints.items():
            self._request_barrier(now, group, BarrierRequest(stamp, mask))

    def _send_to_destinations(self, now: int, leader: int, cast: Cast) -> None:
        """Send a multicast directly to all members of its destination groups, which deliver it early."""
        me, topology = self._policy.member, self.multigroup.topology
        if leader != me and cast.destination_mask >> self.own_group & 1:
            self._on_cast(now, self.own_group, cast)
        for member in topology.members_of(topology.names_in_mask(cast.destination_mask)):
            if member not in {leader, me}:
                self._unicast(now, cast, member)

    def _forward_cast(self, now: int, leader: int, cast: Cast) -> None:
        if leader == self._policy.member:
            self._on_cast(now, self.own_group, cast)
        else:
            self._unicast(now, cast, leader)

    def _request_barrier(self, now: int, group: int, request: BarrierRequest, *, all_members: bool = False) -> None:
        """Ask a group's leader and its relay for a barrier; all its members if its leader is unknown."""
        leader, members = self._known_leaders.get(group), self._members_of[group]
        for member in members:
            if leader is None or all_members or member in {leader, relay_of(members, leader)}:
                self._unicast(now, request, member)

    def _request_own_barrier(self, now: int, group: int, *, all_members: bool = False) -> None:
        """Ask a group for a barrier up to the largest stamp of the messages that wait here."""
        request = BarrierRequest(self.barrier_queue.largest_stamp, 1 << self.own_group)
        self._request_barrier(now, group, request, all_members=all_members)

    def _unicast(self, now: int, message: GroupMessage, to: int) -> None:
        me = self._policy
        self.down.append(control_frame(message, me.member, me.incarnation, me.epoch, sent_ns=now, to=to))

    # -- receiving -------------------------------------------------------------------------------------------

    def _on_cast(self, now: int, group: int, cast: Cast) -> None:
        """Process a multicast that arrived directly from its sender (FR-Deliver in paper 003)."""
        bundle = cast.bundle
        stamp = stamp_of(cast.ts, bundle.sender)
        if self.optimistic_delivery is not None and cast.destination_mask >> self.own_group & 1:
            self.optimistic_delivery.add(now, stamp, bundle)
        if group == self.own_group:
            next_serial = self.log.next_serial(bundle.sender, bundle.incarnation)
            if self.proposals.add(cast, next_serial):
                self.barrier_requests.on_own_message(stamp, cast.destination_mask)
        else:
            self._record_barrier_request(now, group, stamp, cast.destination_mask)

    def _on_barrier_request(self, now: int, sender: int, group: int, request: BarrierRequest) -> None:
        if not self._on_demand:
            self.ignored["not on demand"] += 1
            return
        self._record_barrier_request(now, group, request.stamp, request.group_mask)
        # A member that asks for its own group may have lost the barrier that the others received.
        if request.group_mask >> group & 1 and group in self.log.streams and self.log.last_stamp >= request.stamp:
            self.group_streams.send_barrier(now, self.log, group, sender)

    def _record_barrier_request(self, now: int, group: int, stamp: int, mask: int) -> None:
        unreached = self.barrier_requests.requested(group, stamp, mask)
        if self.consensus.is_leader:
            for other in unreached:
                self._request_barrier(now, other, BarrierRequest(stamp, 1 << self.own_group))

    def _on_stream_segment(self, frame: Frame, group: int, segment: StreamSegment) -> None:
        """Process decided messages of another group, and the barrier that comes with them."""
        if segment.source != group or group not in self.barrier_queue.sources:
            self.ignored["not a sender to this group"] += 1
            return
        if frame.burst:  # the sender leads its group
            self._known_leaders[group] = frame.sender
        leader = self._known_leaders.get(group, frame.sender)
        fresh = self.barrier_queue.receive(group, segment.first, segment.entries)
        self.barrier_queue.promise(group, segment.head, segment.last_stamp)
        if fresh:
            self.writes.append(stream_entries_write(group, fresh))
            if self._on_demand:
                self.barrier_requests.request(fresh[-1][1].stamp)
        if frame.number:  # the sender wants an acknowledgment
            self._pending_acks[leader, group] = None

    # -- agreeing --------------------------------------------------------------------------------------------

    def _finish_flush(self, now: int) -> None:
        """Deliver, send to other groups, and pass on the frames and records of consensus."""
        consensus = self.consensus
        self._deliver(now)
        relay = relay_of(consensus.members, consensus.leader)
        if consensus.is_leader:
            self._send_topology_requests(now)
            self._send_streams(now, relayed=relay is not None and consensus.decisions_known_by((relay,)))
        elif relay == consensus.me:
            self._send_streams(now)
        self._send_acks(now)
        for frame in consensus.down:
            # Consensus addresses "everyone", which means the own group: no other group sees its votes.
            receivers = consensus.peers if frame.to == EVERYONE else (frame.to,)
            self.down += [addressed_to(frame, member) for member in receivers]
        consensus.down.clear()
        self.down += self.group_streams.down
        self.group_streams.down.clear()
        self.writes += tagged_consensus_writes(consensus.writes)
        consensus.writes.clear()
        if self._leaving_since is not None:
            self._depart_if_done(now)

    def _propose(self, now: int) -> bool:
        """Propose the next value, if there is one; topology messages get a value of their own."""
        consensus = self.consensus
        if not consensus.may_propose_next(now):
            return False
        items: list[LogItem] = [*self.topology_exchange.pop_to_propose()]
        if not items:
            items = self.proposer.next_items(now, self.wait_window.ns, consensus.max_value_bytes)
            # Trims alone are not worth a proposal, unless they free a closed stream.
            items += self.group_streams.trims_to_propose(self.log, self._members_of, closed_only=not items)
        return bool(items) and consensus.propose(now, consensus.next_free, encode_value(items))

    def _apply_decisions(self, now: int, decisions: Sequence[ConsensusOutput]) -> None:
        """Apply decided values to the group's log, and add the messages for this group to the barrier queue."""
        log = self.log
        for decision in decisions:
            if isinstance(decision, RestoredState):
                if self._restore_snapshot(decision) and self.mode is Mode.DELIVER_MESSAGES:
                    self._report_skipped_messages(decision.k)
                continue
            try:
                own = log.apply(decision.value)
            except Unreadable:
                self.ignored["malformed"] += 1
                continue
            for entry in own:
                self.barrier_queue.add_own(entry)
            self._uncompacted_bytes += len(decision.value)
            is_due = decision.k % COMPACT_EVERY_INSTANCES == 0 or self._uncompacted_bytes > COMPACT_EVERY_BYTES
            if is_due and not self.barrier_queue.awaiting_admission:
                self._uncompacted_bytes = 0
                self.consensus.compact(decision.k, self._encode_snapshot())
        for sender, incarnation in self.proposals.senders():
            self.proposals.discard_decided(sender, incarnation, log.next_serial(sender, incarnation))
        if self.message_sender.discard_decided(self._own_next_serial()):
            self._forwarded_at = now
        if self.consensus.next_free == self.consensus.decided + 1:
            self.proposer.on_all_decided()
        self._apply_topology_changes(now, leads=self.consensus.is_leader)
        self._forward(now)

    def _own_next_serial(self) -> int:
        return self.log.next_serial(self._policy.member, self._policy.incarnation)

    def _report_skipped_messages(self, upto: int) -> None:
        text = f"decisions up to instance {upto} are no longer retained: this member misses some of their messages"
        self.events.append(
            Violation(ViolationKind.TOO_FAR_BEHIND, text, self._policy.member, self.unpacker.slot),
        )

    # -- delivering ------------------------------------------------------------------------------------------

    def _deliver(self, now: int) -> None:
        """Deliver every message that all barriers have passed, and request the barriers that the waiting ones need."""
        for _, entry in self.barrier_queue.pop_deliverable(self.log.last_stamp):
            if self.optimistic_delivery is not None:
                self.optimistic_delivery.mark_final(entry.bundle)
            batch = self.unpacker.batch(entry.stamp, entry.bundle)
            if batch is not None:
                self.events.append(batch)
        if self.optimistic_delivery is not None:
            self.events += self.optimistic_delivery.pop_due(now)
        pending, largest_stamp = self.barrier_queue.pending, self.barrier_queue.largest_stamp
        self.barrier_retry.set_blocked(now, pending[0][0] if pending else None)
        if pending and self.consensus.is_leader and self._on_demand:
            if self.log.last_stamp < largest_stamp:
                self.barrier_requests.request(largest_stamp)
            for group in self.barrier_requests.mark_unrequested(self.barrier_queue.blockers(), largest_stamp):
                self._request_own_barrier(now, group)

    # -- sending to other groups -----------------------------------------------------------------------------

    def _send_streams(self, now: int, *, relayed: bool = False) -> None:
        """Send decided messages to their other destination groups, and barriers to the groups that need them."""
        log, requests = self.log, self.barrier_requests
        if self._on_demand:
            due = requests.due_receivers(log.last_stamp, log.streams)
        else:
            due = requests.stale_receivers(log.last_stamp, self.multigroup.barrier_threshold_ns, log.streams)
        for receiver in log.streams:
            self.group_streams.send_missing_to_all(
                now, log, receiver, self._members_of[receiver], barrier=receiver in due, relayed=relayed
            )
        self.events += self.group_streams.report_too_far_behind()

    def _send_acks(self, now: int) -> None:
        for member, group in self._pending_acks:
            ack = StreamAck(group, self.barrier_queue.sources[group].applied)
            self._unicast(now, ack, member)
        self._pending_acks.clear()

    # -- topology changes ------------------------------------------------------------------------------------

    def _checked_mask(self, destinations: Sequence[str]) -> int:
        """These groups as a mask. Raises DestinationNotAllowed if the own group may not send to all of them now."""
        topology = self.multigroup.topology
        outside = tuple(name for name in destinations if name not in topology.groups)
        mask = 0 if outside else topology.mask(destinations)
        if not mask or mask & ~self._allowed_mask:
            outside = outside or topology.names_in_mask(mask & ~self._allowed_mask)
            raise DestinationNotAllowed(self.own_group_name, outside, topology.names_in_mask(self._allowed_mask))
        return mask

    def _topology_unknown(self) -> bool:
        """Whether this member has restarted and not yet caught up to the current topology."""
        return self._restarted and not self._own_next_serial()

    def _apply_topology_changes(self, now: int, *, leads: bool) -> None:
        """Follow the topology as the log has it, confirm it if needed, and report it to the application."""
        self._report_refused_messages()
        topology, own_group = self.log.topology, self.own_group
        if topology.change_count == self._applied_topology_changes:
            return
        self._applied_topology_changes, self._allowed_mask = topology.change_count, topology.allowed_mask()
        self.barrier_queue.update_sources(topology.incoming)
        own_mask = topology.wanted_mask & 1 << own_group
        receivers, senders = topology.receivers(), topology.senders()
        itself = (own_group,) if own_mask else ()
        new_senders = frozenset(group for group in senders if topology.incoming[group].epoch > 1)
        self.barrier_requests.set_links((*itself, *receivers), (*itself, *senders), new_senders)
        if topology.awaits_confirmation_of(self._policy.member) and self._confirmed_version < topology.version:
            self._confirmed_version = topology.version
            self.message_sender.send_control(now, ConfirmTopology(topology.version))
        new_answers = self.topology_exchange.on_topology_changed(now)
        if leads:
            self._send_topology_messages(now, new_answers)
        names = self.multigroup.topology.names_in_mask
        sends_to = names(self._allowed_mask)
        receives_from = names(own_mask | sum(1 << group for group in senders))
        linked = {own_group, *receivers, *senders, *self.log.streams}
        talks_with = names(sum(1 << group for group in linked))
        complete = topology.is_settled()
        self.events.append(
            TopologyChange.of(self._policy.member, sends_to, receives_from, talks_with, complete=complete)
        )

    def _report_refused_messages(self) -> None:
        for sender, incarnation, first_sequence, mask in self.log.refused:
            if (sender, incarnation) == (self._policy.member, self._policy.incarnation):
                groups = ", ".join(self.multigroup.topology.names_in_mask(mask))
                text = (
                    f"message {first_sequence} of member {sender} is not delivered anywhere: "
                    f"its group no longer sends to {groups}"
                )
                self.events.append(Violation(ViolationKind.NOT_RELATED, text, sender))
        self.log.refused.clear()

    def _send_topology_requests(self, now: int) -> None:
        self._send_topology_messages(now, self.topology_exchange.wake(now, self.consensus.detector.suspected))

    def _send_topology_messages(self, now: int, messages: Sequence[tuple[int, TopologyMessage]]) -> None:
        for group, message in messages:
            for member in self._members_of[group]:
                self._unicast(now, message, member)

    # -- leader changes and retries --------------------------------------------------------------------------

    def _on_leader_change(self, now: int) -> None:
        """Forward all undecided messages again, and forget the plans of an earlier leader."""
        self.consensus.withdraw()
        self.barrier_requests.reset()
        self.group_streams.reset(self.log, leads=self.consensus.is_leader)
        self.proposer.start_term(now)
        self.topology_exchange.start_term(now)
        self.adopt_leader(now, self._first_slot)
        self.message_sender.forwarded, self._forwarded_at = 0, now
        self._forward(now)

    def _retransmit_overdue(self, now: int) -> None:
        """Retransmit overdue messages to the leader, and overdue barrier requests to the groups that block this one."""
        leader, sender = self.consensus.leader, self.message_sender
        if sender.undecided and leader is not None and now >= self._forwarded_at + self._forward_timeout_ns():
            self._forwarded_at = now
            for undecided in islice(sender.undecided, min(sender.forwarded, RETRANSMIT_AT_ONCE)):
                self._forward_cast(now, leader, undecided.cast)
        if self.barrier_retry.start_attempt_if_due(now):
            blockers = self.barrier_queue.blockers()
            if self._on_demand:
                for group in blockers:
                    self._request_own_barrier(now, group, all_members=True)
            if self.barrier_retry.attempts == BLOCKED_AFTER_REQUESTS and blockers:
                names = ", ".join(self.multigroup.topology.names[group] for group in blockers)
                text = f"deliveries wait for barriers of {names}, requested {self.barrier_retry.attempts} times"
                self.events.append(Violation(ViolationKind.HELD_UP, text, self._policy.member))
        self.report_consensus_problems(now)

    def _depart_if_done(self, now: int) -> None:
        """Leave once all own messages are decided; a leader also waits until the others have all it knows.

        After four latency bounds the member leaves in any case.
        """
        overdue = now > (self._leaving_since or 0) + 4 * self.bound_ns()
        if self.message_sender.undecided and self.mode is Mode.DELIVER_MESSAGES:
            return
        done = not self.consensus.is_leader or (
            self.consensus.decisions_known_by(self.trusted()) and self.group_streams.all_acknowledged()
        )
        if self.mode is not Mode.LEFT and (overdue or done):
            self.mode = Mode.LEFT
            self.events.append(LeaveComplete(self.unpacker.slot))

    def counters(self) -> Mapping[str, int]:
        """Counters for the statistics: bundles not delivered early, because they were late or held a fragment."""
        early = self.optimistic_delivery
        return {} if early is None else {"not_early": early.late_bundles}

    # -- snapshots -------------------------------------------------------------------------------------------

    def _encode_snapshot(self) -> bytes:
        """Encode a snapshot: the result of all decisions and of all messages received so far."""
        state = GroupState()
        self.log.save(state)
        self.barrier_queue.save(state)
        state.fragments = {sender_run: b"".join(fragments) for sender_run, fragments in self.unpacker.fragments.items()}
        return encode_state(state)

    def _restore_snapshot(self, restored: RestoredState) -> bool:
        """Continue from a snapshot. Returns whether it skips messages that this member has not delivered."""
        try:
            state = decode_state(restored.state)
        except Unreadable as error:
            raise StorageError(
                f"the snapshot of the group's log up to instance {restored.k} cannot be read: {error}. Check that all "
                "members use the same order and the same release of unisono, and that they wrote this member's storage "
                "file. Do not restore an older copy of the file: it lacks promises that this member made later"
            ) from error
        self.log.restore(state)
        self.barrier_queue.update_sources(self.log.topology.incoming)
        if not self.barrier_queue.restore(state):
            return False
        self.unpacker.fragments = {sender_run: [fragments] for sender_run, fragments in state.fragments.items()}
        self._first_slot = self._timing.slot_of(time_of(state.delivered_stamp)) + 1
        return True

    def _restore_stored_records(self, stored_records: StoredRecords | None) -> None:
        """Continue from stable storage: the snapshot, then the entries of other groups received after it."""
        decisions = self.consensus.decisions
        if decisions and isinstance(decisions[0], RestoredState):
            self._restore_snapshot(decisions[0])
            del decisions[0]
        for source, number, entry in stored_stream_entries(stored_records):
            self.barrier_queue.restore_entry(source, number, entry)
        if stored_records is not None and stored_records.records:
            # The earlier incarnation may have confirmed a topology that this one has not read yet.
            self._restarted = True
            self.message_sender.send_control(0, ConfirmTopology(self.log.topology.version))
            self._apply_topology_changes(0, leads=False)
