"""Total order by consensus: members agree on a log, value by value, and deliver it in its order.

The classic alternative to the orders of paper 000, and what paper 003 puts under each of its groups (§3). No clock
and no bound on delays is trusted for the order: whatever the network does there is one log, and it grows while
a majority can talk in time. With storage, members come back after a crash as the members that they were.

Messages travel to the leader in parcels, numbered by their sender; the leader puts whatever parcels it has into the
next instance, and has several instances under way. A parcel may reach the log twice, through two leaders: the first
counts, and each sender's parcels count only in their order, so deliveries are exactly once and FIFO.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

from unisono.agreement.membership.from_policy import every_ns, retry_ns
from unisono.agreement.paxos.consensus import Consensus
from unisono.agreement.paxos.decisions import Decided, Offered, Restored
from unisono.errors import MessageTooLarge
from unisono.model.durations import NS_PER_S
from unisono.model.events import Left, Violation, ViolationKind
from unisono.model.policy import Policy
from unisono.model.rates import Rate, Reservation, Reserver
from unisono.model.stored_records import Memory
from unisono.net.pacer import Pacer
from unisono.orders.base.modes import Mode
from unisono.orders.base.over_consensus import Agreeing
from unisono.orders.base.packing import Packer, reservation
from unisono.orders.leader.base import fitting
from unisono.orders.log.bounds import latency_bound_ns
from unisono.orders.log.delivery import AgreedLog
from unisono.wire.bundles import PARCEL_BYTES, Parcel, decode_parcel, encode_log_value, encode_parcel
from unisono.wire.frame import FIRST, HEADER_BYTES, MORE, PIECE, UDP_IP_BYTES, Frame, Kind

WINDOW = 64
"""Instances under way at once."""
PARCELS_MAX = 1 << 10
"""How many of a member's parcels may wait for their place."""
OFFERED_MAX = 1 << 8
"""How many of them may be on their way to the leader."""
AGAIN_AT_ONCE = 8
"""So many of these are sent again when nothing gets on: a leader keeps what came early."""
VALUE_BYTES = 2048
"""Parcels are put together up to this size: beyond it, several instances travel together as well as one."""
COMPACT_EVERY = 4096
"""So many instances are kept before the log is cut."""


class ConsensusLog(Agreeing):
    """The automaton of one member."""

    def __init__(self, policy: Policy, reserver: Reserver, memory: Memory | None = None) -> None:
        consensus = Consensus(
            policy.member,
            policy.view.members,
            every_ns=every_ns(policy.timing),
            retry_ns=retry_ns(policy.timing),
            max_frame=policy.max_frame,
            incarnation=policy.incarnation,
            epoch=policy.epoch,
            window=WINDOW,
            retain=COMPACT_EVERY,
            memory=memory,
            lazy=True,
        )
        super().__init__(policy, consensus)
        self.writes = consensus.writes
        self._reserver = reserver
        reserver.reserve(self._reservation(policy.rate))
        self._pacer = Pacer(policy.rate, policy.timing.theta_ns, policy.max_message)
        self._packer = Packer(self.consensus.max_value - PARCEL_BYTES + HEADER_BYTES)
        self._new_rate: Rate | None = None
        self._paced_slot = 0
        self.window_slots = -(-self.bound_ns() // self._timing.theta_ns) + 3
        # Sending.
        self._serial = self._sequence = 0
        self._waiting: deque[tuple[int, int, bytes]] = deque()
        """(serial, slot, parcel) of what has no place in the log yet."""
        self._offered = self._offered_at = 0
        """How many of these the leader has been offered, and when that last got on."""
        self._leaving_since: int | None = None
        # Leading.
        self._queue: deque[bytes] = deque()
        self._placed: dict[int, tuple[int, int]] = {}
        """By sender, its incarnation and its next parcel, as far as this leader has seen them."""
        self._early: dict[tuple[int, int], dict[int, bytes]] = {}
        self.log = AgreedLog()
        self._reigns = 0

    def _reservation(self, rate: Rate) -> Reservation:
        """A leader's: everybody's frames, whose rates are taken to be like one's own, and a sign of life."""
        own = reservation(self._policy, rate)
        beat, times = HEADER_BYTES + 64 + UDP_IP_BYTES, len(self._policy.view.members)
        average = own.avg_bytes_per_s * times + 2 * beat * NS_PER_S // every_ns(self._timing)
        return Reservation(average, own.burst_bytes_per_slot * times + 2 * beat, own.theta_ns)

    # -- inputs ----------------------------------------------------------------------------------------------

    def submit(self, now: int, messages: Sequence[bytes]) -> int:
        """Take what the declared rate has room for, unless too much waits for its place already."""
        sizes = list(map(len, messages))
        largest = max(sizes, default=0)
        if largest > self._policy.max_message:
            raise MessageTooLarge(largest, self._policy.max_message)
        if self.mode is not Mode.DELIVER_MESSAGES or self._leaving_since is not None or not sizes:
            return 0
        slot = self._timing.slot_of(now)
        if slot > self._paced_slot:
            self._paced_slot = slot
            self._pacer.open_slot(slot, self._new_rate)
            if self._new_rate is not None:
                self._reserver.reserve(self._reservation(self._new_rate))
                self._new_rate = None
        count = fitting(self._pacer, sizes)
        if count == 0 or len(self._waiting) >= PARCELS_MAX:
            return 0
        self._pacer.spend(count, sum(sizes[:count]))
        if not self._waiting:
            self._offered_at = now
        loads = self._packer.add(messages[:count], sizes[:count])
        rest = self._packer.rest()
        for load in loads if rest is None else [*loads, rest]:
            flags, body = 0, b""
            if load.run is not None:
                body = b"".join(load.run.parts())
            elif load.piece is not None:
                body = bytes(load.piece)
                flags = PIECE | (FIRST if load.first else 0) | (MORE if load.more else 0)
            self._send(slot, flags, body)
            self._sequence += load.messages
        self.now, self.stirred = now, True
        self._offer(now)
        return count

    def _send(self, slot: int, flags: int, body: bytes) -> None:
        policy = self._policy
        parcel = encode_parcel(Parcel(policy.member, policy.incarnation, self._serial, self._sequence, flags, body))
        self._waiting.append((self._serial, slot, parcel))
        self._serial += 1

    def from_below(self, now: int, frame: Frame) -> None:
        """net-receive."""
        if self.mode is not Mode.LEFT:
            if frame.kind is not Kind.HEARTBEAT:  # nothing follows from one before the next wake
                self.now, self.stirred = now, True
            self.consensus.from_below(now, frame)

    def wake(self, now: int) -> None:
        """Time has passed."""
        if self.mode is Mode.LEFT:
            return
        if self.mode is Mode.GET_RATE:
            self.mode, self.leaderless_since = Mode.DET_RATE, now
        self.now, self.stirred = now, True
        self.consensus.wake(now)
        self._watch(now)

    def wake_at(self) -> int | None:
        """The consensus's alarm, and one for parcels that are late."""
        if self.mode is Mode.LEFT:
            return None
        at = self.consensus.wake_at()
        times = [] if at is None else [at]
        if self._waiting and self.consensus.leader is not None:
            times.append(self._offered_at + self._patience_ns())
        return min(times, default=None)

    def new_rate(self, now: int, rate: Rate) -> None:
        """new-rate: in force from the next slot on; the larger of both rates is reserved until then."""
        self._policy.check_rate(rate)
        asked, held = self._reservation(rate), self._reservation(self._pacer.rate)
        larger = max(asked, held, key=lambda r: r.burst_bytes_per_slot)
        average = max(asked.avg_bytes_per_s, held.avg_bytes_per_s)
        self._reserver.reserve(Reservation(average, larger.burst_bytes_per_slot, asked.theta_ns))
        self._new_rate = rate

    def leave(self, now: int) -> None:
        """Depart when all that was accepted has its place; those who stay still need a majority of all there were."""
        if self._leaving_since is None:
            self._leaving_since = self.now = now
            self.stirred = True

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
            if consensus.offers:
                self._collect(consensus.offers)
                consensus.offers.clear()
            moved = consensus.leading and self._propose(now)
            consensus.flush(now)
            if consensus.decisions:
                decisions, consensus.decisions[:] = consensus.decisions[:], []
                self._deliver(now, decisions)
                moved = True
        if consensus.down:
            self.down += consensus.down
            consensus.down.clear()
        if self._leaving_since is not None:
            self._depart_if_done(now)

    def _collect(self, offers: Sequence[Offered]) -> None:
        """Parcels for the log, each sender's in order; one that comes before its turn waits for what is missing."""
        for offer in offers:
            parcel = decode_parcel(offer.value)
            if parcel is None or (parcel.sender, parcel.incarnation) != (offer.sender, offer.incarnation):
                self.ignored["malformed"] += 1
                continue
            sender, life = parcel.sender, parcel.incarnation
            placed, expected = max(self._placed.get(sender, (-1, 0)), (life, self.log.settled(sender, life)))
            if life < placed or not expected <= parcel.serial < expected + OFFERED_MAX:
                self.ignored["out of order"] += 1
                continue
            early = self._early.setdefault((sender, life), {})
            early[parcel.serial] = offer.value
            while (following := early.pop(expected, None)) is not None:
                self._queue.append(following)
                expected += 1
            self._placed[sender] = (life, expected)

    def _propose(self, now: int) -> bool:
        """The next value: as many parcels as it holds."""
        consensus = self.consensus
        k = consensus.next_free
        if not self._queue or k > consensus.decided + consensus.window:
            return False
        room = min(consensus.max_value, VALUE_BYTES) - PARCEL_BYTES
        parcels: list[bytes] = []
        while self._queue and (not parcels or len(self._queue[0]) + 4 <= room):
            parcels.append(self._queue.popleft())
            room -= len(parcels[-1]) + 4
        return consensus.propose(now, k, encode_log_value(max(self.log.slot, self._timing.slot_of(now)), parcels))

    def _deliver(self, now: int, decisions: Sequence[Decided]) -> None:
        log, me = self.log, self._policy
        for decision in decisions:
            if isinstance(decision, Restored):
                log.restore(decision)
                if self.mode is Mode.DELIVER_MESSAGES:
                    text = f"what was decided up to {decision.k} is not kept any more: it is not delivered here"
                    self.events.append(Violation(ViolationKind.TOO_FAR_BEHIND, text, me.member, log.slot))
            elif not log.take(decision.value):
                self.ignored["malformed"] += 1
            elif decision.k % COMPACT_EVERY == 0:
                self.consensus.compact(decision.k, log.state())
        self.events += log.batches
        log.batches.clear()
        settled = log.settled(me.member, me.incarnation)
        while self._waiting and self._waiting[0][0] < settled:
            self._waiting.popleft()
            self._offered, self._offered_at = max(0, self._offered - 1), now
        self._offer(now)

    # -- leaders ---------------------------------------------------------------------------------------------

    def _new_leader(self, now: int) -> None:
        """Offer everything again; what an earlier leader had collected is void."""
        self.consensus.withdraw()
        self._queue.clear()
        self._placed.clear()
        self._early.clear()
        self.follow(now, self.log.first_slot)
        self._offered, self._offered_at = 0, now
        self._offer(now)

    def _offer(self, now: int) -> None:
        """As many parcels as may be on their way."""
        if self.consensus.leader is not None and self._offered < min(len(self._waiting), OFFERED_MAX):
            for _, _, parcel in islice(self._waiting, self._offered, OFFERED_MAX):
                self.consensus.offer(now, parcel)
            self._offered = min(len(self._waiting), OFFERED_MAX)

    def _watch(self, now: int) -> None:
        consensus = self.consensus
        if self._waiting and consensus.leader is not None and now >= self._offered_at + self._patience_ns():
            self._offered_at = now
            for _, _, parcel in islice(self._waiting, min(self._offered, AGAIN_AT_ONCE)):
                consensus.offer(now, parcel)
        self.watch_leader(now)
        if self.disowned():
            self.mode = Mode.LEFT
            self.events.append(Left(self.log.slot))

    def _depart_if_done(self, now: int) -> None:
        """All is in its place; a leader stays until the others know, for as long as that can take."""
        overdue = now > (self._leaving_since or 0) + 4 * self.bound_ns()
        if self._waiting and self.mode is Mode.DELIVER_MESSAGES:
            return
        done = not self.consensus.leading or self.consensus.known_by(self.trusted())
        if self.mode is not Mode.LEFT and (overdue or done):
            self.mode = Mode.LEFT
            self.events.append(Left(self.log.slot))

    def bound_ns(self) -> int:
        """While nobody fails and nothing is lost."""
        return latency_bound_ns(self._timing)
