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

from unisono.agreement.membership.from_policy import retry_ns
from unisono.agreement.paxos.decisions import Decided, Restored
from unisono.errors import InvalidPolicy
from unisono.model.durations import earliest
from unisono.model.events import Left, Violation, ViolationKind
from unisono.model.grades import Grade
from unisono.model.ids import EVERYONE
from unisono.model.policy import Policy
from unisono.model.rates import Rate, Reserver
from unisono.model.stored_records import Memory
from unisono.orders.base.modes import Mode
from unisono.orders.base.over_consensus import Agreeing
from unisono.orders.multigroup.barrier_requests import BarrierCalls
from unisono.orders.multigroup.barrier_retry import HeldUp
from unisono.orders.multigroup.barriers import Gate
from unisono.orders.multigroup.bounds import latency_bound_ns
from unisono.orders.multigroup.group_log import GroupLog
from unisono.orders.multigroup.messages import (
    DECODERS,
    ITEM_BYTES,
    Ack,
    Cast,
    Stream,
    Want,
    encode_ack,
    encode_cast,
    parcel_of,
    stamp_of,
    time_of,
)
from unisono.orders.multigroup.optimistic import Early, Window
from unisono.orders.multigroup.proposals import AHEAD_MAX, Proposals
from unisono.orders.multigroup.proposer import NULL_BYTES, GroupLeading
from unisono.orders.multigroup.sender import Sending
from unisono.orders.multigroup.storage import foreign_write, own_consensus, own_writes, recall, restore, saved
from unisono.orders.multigroup.streams import Outward
from unisono.orders.multigroup.topology_change import Relating
from unisono.orders.multigroup.topology_messages import Bond
from unisono.orders.multigroup.unicast import Asking, herald_of
from unisono.orders.multigroup.unpacking import Unpacking
from unisono.wire.bundles import Parcel
from unisono.wire.frame import Frame, Kind, addressed

WINDOW = 64
"""Instances under way at once."""
AGAIN_AT_ONCE = 8
COMPACT_EVERY = 4096
"""So many instances are kept before the log is cut."""
BLOCKED_AFTER = 4
"""Having asked for a barrier so often, a member says that it is held up."""


class QuasiGenuine(Agreeing):
    """The automaton of one member."""

    def __init__(self, policy: Policy, reserver: Reserver, memory: Memory | None = None) -> None:
        if policy.multigroup is None:
            raise InvalidPolicy("topology", "a quasi-genuine order has to know which group may send to which")
        self.rules = policy.multigroup
        topology = self.rules.topology
        self.home = topology.group_of(policy.member)
        self._groups = {member: topology.index(topology.group_of(member)) for member in topology.members}
        self.calls = BarrierCalls(topology, self.home)
        self.me = self.calls.me
        self._mates = self.calls.members(self.me)
        consensus = own_consensus(policy, self._mates, memory, window=WINDOW, retain=COMPACT_EVERY)
        super().__init__(policy, consensus)
        self.asking = Asking(policy, self.calls.members, self.down)
        self._say = self.asking.say
        self.log = GroupLog(self.me, self.calls.receivers, self.calls.senders, self._mates)
        self.gate = Gate(self.me, self.calls.senders)
        self.proposals = Proposals()
        self.sending = Sending(policy, reserver, consensus.max_value - ITEM_BYTES - NULL_BYTES)
        self.outward = Outward(
            policy.member,
            policy.incarnation,
            policy.epoch,
            max_frame=policy.max_frame,
            retry_ns=retry_ns(policy.timing),
        )
        self.window = Window(self.rules.window_ns, policy.timing.delta_ns + policy.timing.gamma_ns)
        self.early = Early(self.window, policy.timing) if self.rules.optimistic else None
        self.unpacking = Unpacking(policy.timing, None if self.early is None else Grade.FINAL)
        self.window_slots = -(-self.bound_ns() // self._timing.theta_ns) + 3
        self._offered_at = self._reigns = 0
        self._leaving_since: int | None = None
        self.leading = GroupLeading(self.rules, self.log, self.proposals, self.calls, self.outward)
        self.relating = Relating(policy, self.log, self.gate, self.calls, sending=self.sending, say=self._say)
        self.leading.bonds = self.relating.bonding.news
        self._acks: dict[tuple[int, int], None] = {}
        periodic = self.rules.liveness == "periodic"
        self.held_up = HeldUp(max(retry_ns(policy.timing), self.bound_ns() if periodic else 0))
        self._first_slot = 0
        """From here on this member delivers everything."""
        if consensus.decisions and isinstance(consensus.decisions[0], Restored):
            self._restore(consensus.decisions[0])
            del consensus.decisions[0]
        recall(memory, self.gate)
        self.events += self.relating.come_up(memory)

    # -- inputs ----------------------------------------------------------------------------------------------

    def submit(self, now: int, messages: Sequence[bytes]) -> int:
        """To the own group alone."""
        return self.submit_to(now, messages, (self.home,))

    def submit_to(self, now: int, messages: Sequence[bytes], destinations: Sequence[str]) -> int:
        """QGFTO-Mcast; NotRelated if the topology does not let this group send there."""
        mask = self.relating.checked(destinations)
        if self.mode is not Mode.DELIVER_MESSAGES or self._leaving_since is not None or self.relating.reads():
            return 0
        begins = not self.sending.waiting
        count = self.sending.submit(now, messages, mask)
        if begins:
            self._offered_at = now
        self.now, self.stirred = now, True
        self._offer(now)
        return count

    def destinations(self, groups: Sequence[str]) -> tuple[int, ...]:
        """The members of these groups; NotRelated if this group may not send there now."""
        self.relating.checked(groups)
        return self.rules.topology.members_of(groups)

    def change_topology(self, now: int, sends: Sequence[str]) -> Callable[[], bool]:
        """Have the own group send to these groups and no others; the result says whether it does."""
        done = self.relating.change(now, sends)
        self.now, self.stirred = now, True
        self._offer(now)
        return done

    def from_below(self, now: int, frame: Frame) -> None:
        """net-receive."""
        if self.mode is Mode.LEFT:
            return
        if frame.kind is not Kind.HEARTBEAT:  # nothing follows from one before the next wake
            self.now, self.stirred = now, True
        if frame.kind not in DECODERS:
            self.consensus.from_below(now, frame)
            return
        group = self._groups.get(frame.sender)
        if group is None or frame.epoch != self._policy.epoch:
            self.ignored["not of these groups"] += 1
            return
        match DECODERS[frame.kind](bytes(frame.body)):
            case Cast() as cast:
                parcel = parcel_of(cast.parcel)
                if (parcel.sender, parcel.incarnation) == (frame.sender, frame.incarnation):
                    self.window.note(now - frame.sent_ns)
                    self._on_cast(now, group, parcel, cast)
                else:
                    self.ignored["malformed"] += 1
            case Stream() as stream:
                self._on_stream(frame, group, stream)
            case Ack() as ack if ack.source == self.me:
                self.outward.hear(now, frame.sender, frame.incarnation, group, ack.applied)
            case Want() as want:
                self._on_want(now, frame.sender, group, want)
            case Bond() as bond if bond.group == group:
                self.relating.bonding.hear(now, frame.sender, bond, leads=self.consensus.leading)
            case _:
                self.ignored["malformed"] += 1

    def wake(self, now: int) -> None:
        """Time has passed."""
        if self.mode is Mode.LEFT:
            return
        if self.mode is Mode.GET_RATE:
            self.mode = Mode.DET_RATE
        self.now, self.stirred = now, True
        self.consensus.wake(now)
        if self.consensus.leading:
            self.outward.wake(now, self.log)
            self.relating.bonding.wake(now, self.consensus.detector.suspected)
        self._watch(now)

    def wake_at(self) -> int | None:
        """The consensus's alarm, and those for what is held back, late or unanswered."""
        if self.mode is Mode.LEFT:
            return None
        times = [self.consensus.wake_at(), self.held_up.again_at()]
        if self.sending.waiting and self.consensus.leader is not None:
            times.append(self._offered_at + self._patience_ns())
        if self.early is not None:
            times.append(self.early.due_at())
        if self.consensus.leading:
            times += [self.outward.wake_at(), self.relating.bonding.due_at()]
            if self._room():
                times.append(self.leading.due_at(self.window.ns))
        return earliest(times)

    def new_rate(self, now: int, rate: Rate) -> None:
        """new-rate: in force from the next slot on."""
        self.sending.new_rate(rate)

    def leave(self, now: int) -> None:
        """Depart when all that was accepted has its place; those who stay still need a majority of all there were."""
        if self._leaving_since is None:
            self._leaving_since = self.now = now
            self.stirred = True

    # -- what others say -------------------------------------------------------------------------------------

    def _on_cast(self, now: int, group: int, parcel: Parcel, cast: Cast) -> None:
        """FR-Deliver(m)."""
        stamp = stamp_of(cast.ts, parcel.sender)
        if self.early is not None and cast.mask >> self.me & 1:
            self.early.add(now, stamp, parcel, cast.parcel)
        if group == self.me:
            settled = self.log.settled(parcel.sender, parcel.incarnation)
            if self.proposals.add(parcel, cast, settled):
                self.calls.own(stamp, cast.mask)
        else:
            self._called(now, group, stamp, cast.mask)

    def _called(self, now: int, group: int, stamp: int, mask: int) -> None:
        unreached = self.calls.called(group, stamp, mask)
        if self.consensus.leading:
            for other in unreached:
                self.asking.ask(now, other, Want(stamp, 1 << self.me))

    def _on_want(self, now: int, sender: int, group: int, want: Want) -> None:
        if self.rules.liveness != "on_demand":
            self.ignored["not on demand"] += 1
            return
        self._called(now, group, want.stamp, want.mask)
        # Who asks for itself may have lost what the others got.
        if want.mask >> group & 1 and group in self.log.streams and self.log.last >= want.stamp:
            self.outward.tell(now, self.log, group, sender)

    def _on_stream(self, frame: Frame, group: int, stream: Stream) -> None:
        """Decided messages of another group, and its barrier."""
        if stream.source != group or group not in self.gate.sources:
            self.ignored["not a sender to this group"] += 1
            return
        leader = self.asking.leader(group, frame)
        fresh = self.gate.hear(group, stream.first, stream.entries)
        self.gate.promise(group, stream.head, stream.last)
        if fresh:
            self.writes.append(foreign_write(group, fresh))
            if self.rules.liveness == "on_demand":
                self.calls.want(fresh[-1][1].stamp)
        if frame.number:
            self._acks[leader, group] = None

    # -- what this member says -------------------------------------------------------------------------------

    def _offer(self, now: int) -> None:
        """Send messages to whoever leads, and tell the groups that they concern."""
        leader, sending = self.consensus.leader, self.sending
        if leader is None or sending.offered >= min(len(sending.waiting), AHEAD_MAX):
            return
        hints: dict[int, tuple[int, int]] = {}
        for unsettled in islice(sending.waiting, sending.offered, AHEAD_MAX):
            self._hand_in(now, leader, unsettled.cast)
            if self.early is not None and not unsettled.told:
                self._cast(now, leader, unsettled.cast)
            told, unsettled.told, mask = unsettled.told, True, unsettled.cast.mask
            if not told and self.rules.liveness == "on_demand":
                for group in self.calls.hints(mask):
                    if self.early is not None and mask >> group & 1:
                        continue
                    hints[group] = (sending.stamp(unsettled), hints.get(group, (0, 0))[1] | mask)
        sending.offered = min(len(sending.waiting), AHEAD_MAX)
        for group, (stamp, mask) in hints.items():
            self.asking.ask(now, group, Want(stamp, mask))

    def _cast(self, now: int, leader: int, cast: Cast) -> None:
        """FR-MCast to all destinations, which deliver early."""
        me, topology = self._policy.member, self.rules.topology
        if leader != me and cast.mask >> self.me & 1:
            self._on_cast(now, self.me, parcel_of(cast.parcel), cast)
        for member in topology.members_of(topology.unmasked(cast.mask)):
            if member not in {leader, me}:
                self._say(now, Kind.CAST, encode_cast(cast), member)

    def _hand_in(self, now: int, leader: int, cast: Cast) -> None:
        if leader == self._policy.member:
            self._on_cast(now, self.me, parcel_of(cast.parcel), cast)
        else:
            self._say(now, Kind.CAST, encode_cast(cast), leader)

    # -- the log ---------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Say what there is to say to all that has happened since the last time: what came together counts together."""
        now, consensus = self.now, self.consensus
        if self.mode is Mode.LEFT or not self.stirred:
            return
        self.stirred = False
        if consensus.reigns != self._reigns:
            self._reigns = consensus.reigns
            self._new_leader(now)
        moved = True
        while moved:
            moved = consensus.leading and self._propose(now)
            consensus.flush(now)
            if consensus.decisions:
                decisions, consensus.decisions[:] = consensus.decisions[:], []
                self._decide(now, decisions)
                moved = True
        self._deliver(now)
        herald = herald_of(consensus.members, consensus.leader)
        if consensus.leading:
            self.relating.bonding.wake(now, self.consensus.detector.suspected)
            self._push(now, heralded=herald is not None and consensus.known_by((herald,)))
        elif herald == consensus.me:
            self._push(now)
        for member, group in self._acks:
            self._say(now, Kind.APPLIED, encode_ack(Ack(group, self.gate.sources[group].applied)), member)
        self._acks.clear()
        for frame in consensus.down:
            # "Everyone" is the own group here; nobody else is to hear of its votes.
            to = consensus.peers if frame.to == EVERYONE else (frame.to,)
            self.down += [addressed(frame, mate) for mate in to]
        self.down += self.outward.down
        consensus.down.clear()
        self.outward.down.clear()
        self.writes += own_writes(consensus.writes)
        consensus.writes.clear()
        if self._leaving_since is not None:
            self._depart_if_done(now)

    def _propose(self, now: int) -> bool:
        consensus = self.consensus
        value = self.leading.value(now, self.window.ns, consensus.max_value) if self._room() else None
        return value is not None and consensus.propose(now, consensus.next_free, value)

    def _room(self) -> bool:
        return self.consensus.next_free <= self.consensus.decided + self.consensus.window

    def _decide(self, now: int, decisions: Sequence[Decided]) -> None:
        """When Decide(k, msgSet)."""
        log, me = self.log, self._policy
        for decision in decisions:
            if isinstance(decision, Restored):
                if self._restore(decision) and self.mode is Mode.DELIVER_MESSAGES:
                    text = f"what was decided up to {decision.k} is not kept any more: some of it is not delivered here"
                    self.events.append(Violation(ViolationKind.TOO_FAR_BEHIND, text, me.member, self.unpacking.slot))
                continue
            own = log.take(decision.value)
            if own is None:
                self.ignored["malformed"] += 1
                continue
            for entry in own:
                self.gate.add_own(entry)
            if decision.k % COMPACT_EVERY == 0 and not self.gate.recalled:
                self.consensus.compact(decision.k, saved(log, self.gate, self.unpacking))
        for sender, life in self.proposals.senders():
            self.proposals.settle(sender, life, log.settled(sender, life))
        if self.sending.settle(log.settled(me.member, me.incarnation)):
            self._offered_at = now
        if self.consensus.next_free == self.consensus.decided + 1:
            self.leading.landed()
        self.events += self.relating.follow(now, leads=self.consensus.leading)
        self._offer(now)

    def _deliver(self, now: int) -> None:
        for _, entry in self.gate.open(self.log.last):
            if self.early is not None:
                self.early.final(entry.parcel)
            batch = self.unpacking.batch(entry.stamp, entry.parcel)
            if batch is not None:
                self.events.append(batch)
        if self.early is not None:
            self.events += self.early.due(now)
        pending = self.gate.pending
        self.held_up.note(now, pending[0][0] if pending else None)
        if pending and self.consensus.leading and self.rules.liveness == "on_demand":
            if self.log.last < self.gate.top:
                self.calls.want(self.gate.top)
            for group in self.calls.missing(self.gate.blockers(), self.gate.top):
                self.asking.ask(now, group, Want(self.gate.top, 1 << self.me))

    def _push(self, now: int, *, heralded: bool = False) -> None:
        """Send(m, 'cons') to the destinations, and barriers to who needs them."""
        log, calls = self.log, self.calls
        on_demand = self.rules.liveness == "on_demand"
        threshold_ns, ready = self.rules.barrier_threshold_ns, log.streams
        due = calls.due(log.last, ready) if on_demand else calls.behind(log.last, threshold_ns, ready)
        for receiver in log.streams:
            self.outward.push(now, log, receiver, calls.members(receiver), barrier=receiver in due, heralded=heralded)
        self.events += self.outward.lost()

    def _restore(self, restored: Restored) -> bool:
        upto = restore(restored, self.log, self.gate, self.unpacking)
        if upto is not None:
            self._first_slot = self._timing.slot_of(time_of(upto)) + 1
        return upto is not None

    # -- leaders ---------------------------------------------------------------------------------------------

    def _new_leader(self, now: int) -> None:
        """Hand everything in again; what an earlier leader was doing is void."""
        self.consensus.withdraw()
        self.calls.reset()
        self.outward.reset(self.log, leads=self.consensus.leading)
        self.leading.begin(now)
        self.relating.bonding.begin(now)
        self.follow(now, self._first_slot)
        self.sending.offered, self._offered_at = 0, now
        self._offer(now)

    def _watch(self, now: int) -> None:
        """Say again what has waited too long: to the leader, and to groups that hold this one up."""
        leader, sending = self.consensus.leader, self.sending
        if sending.waiting and leader is not None and now >= self._offered_at + self._patience_ns():
            self._offered_at = now
            for unsettled in islice(sending.waiting, min(sending.offered, AGAIN_AT_ONCE)):
                self._hand_in(now, leader, unsettled.cast)
        if self.held_up.due(now):
            blockers = self.gate.blockers()
            if self.rules.liveness == "on_demand":
                for group in blockers:
                    self.asking.ask(now, group, Want(self.gate.top, 1 << self.me), everybody=True)
            if self.held_up.asks == BLOCKED_AFTER and blockers:
                names = ", ".join(self.rules.topology.names[group] for group in blockers)
                text = f"deliveries wait for barriers of {names}, asked for {self.held_up.asks} times"
                self.events.append(Violation(ViolationKind.HELD_UP, text, self._policy.member))
        self.watch_leader(now)

    def _depart_if_done(self, now: int) -> None:
        """All is in its place, and sent on; a leader stays until the others know, for as long as that can take."""
        overdue = now > (self._leaving_since or 0) + 4 * self.bound_ns()
        if self.sending.waiting and self.mode is Mode.DELIVER_MESSAGES:
            return
        done = not self.consensus.leading or (self.consensus.known_by(self.trusted()) and self.outward.done())
        if self.mode is not Mode.LEFT and (overdue or done):
            self.mode = Mode.LEFT
            self.events.append(Left(self.unpacking.slot))

    def bound_ns(self) -> int:
        """While nobody fails and nothing is lost."""
        return latency_bound_ns(self._timing, self.rules)
