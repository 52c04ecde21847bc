"""What every order with a leader is made of: its modes, its beginning and its end, its rate, and its succession.

A subclass says what becomes of messages that are taken (`_take`), of frames that arrive (`_arrived`), what a leader
does (`_work`) and how entries of the ordered stream are delivered (`_advance`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate

from unisono.errors import MessageTooLarge, ReservationRefused
from unisono.model.durations import earliest
from unisono.model.events import Batch, Left, Run, StackEvent, ViewChange, Violation, ViolationKind
from unisono.model.policy import Policy
from unisono.model.rates import Rate, Reservation, Reserver
from unisono.model.views import View
from unisono.net.pacer import Pacer
from unisono.orders.base.formation import RateExchange
from unisono.orders.base.modes import TAKES, Input, Mode
from unisono.orders.base.packing import Load, Packer
from unisono.orders.leader.election import Succession
from unisono.orders.leader.messages import ORDERED_BYTES
from unisono.orders.leader.stream import Entry
from unisono.orders.leader.timeouts import gap_bound_ns, outage_ns, poll_ns
from unisono.wire.frame import (
    FIRST,
    MORE,
    PIECE,
    Frame,
    Kind,
)
from unisono.wire.packed_messages import WholeMessage

_SUCCESSION = frozenset({Kind.BEAT, Kind.ASK, Kind.VOTE, Kind.NEED, Kind.ORDERED})


def fitting(pacer: Pacer, sizes: list[int]) -> int:
    """How many messages of these sizes, from the first on, a slot still takes."""
    count = min(len(sizes), pacer.messages_left())
    if sum(sizes[:count]) <= pacer.bytes_left():
        return count
    return bisect_right(list(accumulate(sizes[:count])), pacer.bytes_left())


class Pieces:
    """Puts the frames of each sender back together into runs."""

    def __init__(self, members: Iterable[int]) -> None:
        self._open: dict[int, list[bytes | memoryview]] = {member: [] for member in members}

    def run_of(self, sender: int, flags: int, run: Run | None, body: bytes | memoryview) -> Run | None:
        """What a frame completes: its run, or the message whose last piece it is."""
        if not flags & PIECE:
            return run
        pieces = self._open[sender]
        if flags & FIRST:
            pieces.clear()
        pieces.append(body)
        if flags & MORE:
            return None
        self._open[sender] = []
        return WholeMessage(pieces)


class Led(ABC):
    """The part of an order that does not depend on what the leader does for a message."""

    waits_for_all = False
    """Whether the order also stops for a member that dies without leading, until the leader removes it."""

    def __init__(self, policy: Policy, reserver: Reserver) -> None:
        self.down: list[Frame] = []
        self.events: list[StackEvent] = []
        self.ignored: Counter[str] = Counter()
        self.mode = Mode.GET_RATE
        self.view = policy.view
        self.exchange = RateExchange(policy)
        self.exchange.down = self.down
        self.succession = Succession(policy, self.down, self.events, self.ignored)
        self._policy = policy
        self._timing = policy.timing
        self._reserver = reserver
        self._reserved_as_leader = self.succession.leading
        reserver.reserve(self._reservation(policy.rate))
        self._packer = Packer(policy.max_frame - ORDERED_BYTES)
        self._pacer = Pacer(policy.rate, policy.timing.theta_ns, policy.max_message)
        self._pieces = Pieces(policy.view.members)
        self._new_rate: Rate | None = None
        self._sequence = 0
        self._index = 0
        self._leaving = False
        self._late_reported = -1
        self._begun = 0
        """The last reign whose roll has come."""
        self._hold_ns = max(0, policy.processing_ns - policy.timing.gamma_ns)
        self.window_slots = -(-self.bound_ns() // self._timing.theta_ns) + 3

    # -- what the two orders differ in -----------------------------------------------------------------------

    @abstractmethod
    def _reservation(self, rate: Rate) -> Reservation: ...
    @abstractmethod
    def _take(self, now: int, messages: Sequence[bytes], sizes: list[int]) -> int: ...
    @abstractmethod
    def _arrived(self, now: int, frame: Frame) -> None: ...
    @abstractmethod
    def _advance(self, now: int) -> None: ...
    @abstractmethod
    def _work(self, now: int) -> None: ...
    @abstractmethod
    def _due(self) -> int | None: ...
    @abstractmethod
    def _say_last(self, now: int) -> None: ...
    @abstractmethod
    def _oldest(self) -> int | None: ...
    @abstractmethod
    def bound_ns(self) -> int:
        """AppLatency while nobody dies."""

    # -- inputs ----------------------------------------------------------------------------------------------

    def submit(self, now: int, messages: Sequence[bytes]) -> int:
        """Take what the declared rate has room for; it is on its way when this returns."""
        sizes = list(map(len, messages))
        largest = max(sizes, default=0)
        if largest > self._policy.max_message:
            raise MessageTooLarge(largest, self._policy.max_message)
        if Input.SUBMIT not in TAKES[self.mode] or self._leaving or not sizes:
            return 0
        self.succession.notice(now)
        oldest = self._oldest()
        behind = oldest is not None and self._timing.slot_of(now) - oldest > self.window_slots
        taken = 0
        if self.succession.roster.inside(self._policy.member) and not behind:
            taken = self._take(now, messages, sizes)
        self._settle(now)
        return taken

    def from_below(self, now: int, frame: Frame) -> None:
        """net-receive."""
        if frame.kind is Kind.HELLO:
            if Input.HELLO in TAKES[self.mode]:
                violation = self.exchange.from_below(now, frame)
                if violation is not None:
                    self.events.append(violation)
                self.succession.voice.multicast = self.exchange.heard_by_multicast()
                self._start_deliver(now)
            return
        if Input.DATA not in TAKES[self.mode]:
            self.ignored["data in mode " + self.mode] += 1
            return
        if frame.epoch != self._policy.epoch or self.exchange.incarnation(frame.sender) != frame.incarnation:
            self.ignored["another incarnation or epoch"] += 1
            return
        if frame.kind in _SUCCESSION:
            self.succession.from_below(now, frame)
        else:
            self.succession.notice(now)
            self._arrived(now, frame)
        self._settle(now)

    def new_rate(self, now: int, rate: Rate) -> None:
        """new-rate: in force from the next slot on; the larger of both rates is reserved until then."""
        if Input.NEW_RATE not in TAKES[self.mode]:
            return
        self._policy.check_rate(rate)
        asked, held = self._reservation(rate), self._reservation(self._pacer.rate)
        self._reserver.reserve(
            Reservation(
                max(asked.avg_bytes_per_s, held.avg_bytes_per_s),
                max(asked.burst_bytes_per_slot, held.burst_bytes_per_slot),
                asked.theta_ns,
            )
        )
        self._new_rate = rate

    def leave(self, now: int) -> None:
        """Depart when all that was accepted is in its place; a leader hands over with its departure."""
        if self.mode in {Mode.GET_RATE, Mode.DET_RATE}:
            self._depart(self._timing.slot_of(now))
        elif self.mode is Mode.DELIVER_MESSAGES and not self._leaving:
            self._leaving = True
            if not self.succession.roster.inside(self._policy.member):
                self._depart(self._timing.slot_of(now))
                return
            self._say_last(now)
            self._settle(now)

    def wake(self, now: int) -> None:
        """Time has passed."""
        if self.mode is Mode.LEFT:
            return
        if self.mode is Mode.GET_RATE:
            self.mode = Mode.DET_RATE
        self.exchange.wake(now)
        self._start_deliver(now)
        if self.mode is Mode.DELIVER_MESSAGES:
            self.succession.wake(now)
            self._settle(now)
            self._watch(now)

    def wake_at(self) -> int | None:
        """A HELLO, a beat, a suspicion, or something of the order's own."""
        if self.mode is Mode.GET_RATE:
            return 0
        if self.mode is Mode.LEFT:
            return None
        times = [self.exchange.wake_at()]
        if self.mode is Mode.DELIVER_MESSAGES:
            times += [self.succession.wake_at(), self._due()]
        return earliest(times)

    # -- shared steps ----------------------------------------------------------------------------------------

    def _start_deliver(self, now: int) -> None:
        """start-deliver: every rate is known. No slot is waited for, since no clock is trusted."""
        if self.mode is not Mode.DET_RATE or not self.exchange.complete:
            return
        first = self.exchange.first_slot()
        self.mode = Mode.DELIVER_MESSAGES
        self.view = View(self.view.members, first)
        self.events.append(ViewChange(self.view, joined=self.view.members))
        self.succession.start(now, first)
        self._settle(now)

    def _settle(self, now: int) -> None:
        """Deliver what can be delivered and, as the leader, order what can be ordered, until nothing moves."""
        moved = -1
        while (
            self.mode is Mode.DELIVER_MESSAGES
            and moved != self.succession.stream.position + self.succession.stream.consumed
        ):
            moved = self.succession.stream.position + self.succession.stream.consumed
            if self.succession.fenced:
                self._depart(self._timing.slot_of(now))
                return
            self._advance(now)
            self.succession.tend(now)
            self._work(now)
            self._advance(now)
        if self.succession.roster.finals >= {*self.view.members}:
            # The last of all has nobody to tell.
            self._depart(self._timing.slot_of(now))

    def _depart(self, final_slot: int) -> None:
        if self.mode is not Mode.LEFT:
            self.mode = Mode.LEFT
            self.events.append(Left(final_slot))

    def _turn_roll(self, entry: Entry) -> None:
        """The members change here, at the same place in the order everywhere."""
        old, new, me = self.view.members, entry.roll().members, self._policy.member
        joined, left = tuple(m for m in new if m not in old), tuple(m for m in old if m not in new)
        self.view = View(new, entry.slot)
        self.exchange.stop()
        if joined or left:
            self.events.append(ViewChange(self.view, joined, left))
        if me in left and me in self.succession.roster.finals:
            self._depart(entry.slot)

    def _deliver(self, entry: Entry, ordinal: int, first_sequence: int, run: Run) -> None:
        self.events.append(
            Batch(entry.origin, entry.incarnation, entry.slot, first_sequence, ordinal, self._index, run.count, [run])
        )
        self._index += run.count

    def _reserve_as_leader(self) -> None:
        """Who comes to lead needs more room; without it, it leads all the same, and says so."""
        if self.succession.leading == self._reserved_as_leader:
            return
        self._reserved_as_leader = self.succession.leading
        try:
            self._reserver.reserve(self._reservation(self._pacer.rate))
        except ReservationRefused as refused:
            self.events.append(
                Violation(ViolationKind.RESERVATION_REFUSED, f"leading without room: {refused}", self._policy.member)
            )

    def _adopt_rate(self, slot: int) -> None:
        """The pacer's slot; a new rate comes into force with it."""
        self._pacer.open_slot(slot, self._new_rate)
        if self._new_rate is not None:
            self._reserver.reserve(self._reservation(self._new_rate))
            self._new_rate = None

    def _frame(self, now: int, load: Load | None, *, slot: int, number: int, flags: int) -> Frame:
        run, body = None, b""  # type: Run | None, bytes | memoryview
        if load is not None:
            run = load.run
            if load.piece is not None:
                body, flags = load.piece, flags | PIECE | (FIRST if load.first else 0) | (MORE if load.more else 0)
        policy = self._policy
        frame = Frame(
            Kind.DATA,
            policy.member,
            policy.incarnation,
            policy.epoch,
            slot,
            number,
            flags,
            self._pacer.rate.burst,
            self._sequence,
            now,
            run,
            body,
        )
        if load is not None:
            self._sequence += load.messages
        return frame

    def _loads(self, messages: Sequence[bytes], sizes: list[int]) -> list[Load]:
        """All of these messages in frames: nothing is held back."""
        self._pacer.spend(len(sizes), sum(sizes))
        loads = self._packer.add(messages, sizes)
        rest = self._packer.rest()
        return loads if rest is None else [*loads, rest]

    def _watch(self, now: int) -> None:
        """Own messages should have been delivered by now; if not, say so once."""
        oldest = self._oldest()
        if oldest is None or oldest <= self._late_reported:
            return
        late = self._timing.end_of(oldest) + self.bound_ns() + self._timing.gamma_ns
        if now > late:
            self._late_reported = self._timing.slot_of(now)
            leader = self.succession.leader
            who = f"member {leader}, the leader" if leader is not None else "a new leader"
            text = f"waiting for {who}: what was sent in slot {oldest} is {(now - late) / 1e6:.3f} ms late"
            self.events.append(Violation(ViolationKind.LATE, text, leader, oldest))

    # -- questions -------------------------------------------------------------------------------------------

    def latest_slot(self, now: int) -> int:
        """Clocks are not compared, so any slot that a clock can show."""
        return ((1 << 63) - 1) // self._timing.theta_ns

    def returning(self) -> bool:
        """Who was given up may be back, and has to hear us for that."""
        return True

    def reliable(self) -> bool:
        """Survivors deliver all that survivors send, also when the leader dies (Definition 1)."""
        return True

    def waiting_for(self) -> tuple[int, ...]:
        """Members that the rate exchange still lacks."""
        return () if self.mode is Mode.DELIVER_MESSAGES else self.exchange.missing()

    def running(self) -> bool:
        """Whether the order is in DeliverMessages."""
        return self.mode is Mode.DELIVER_MESSAGES

    def complaint(self) -> str:
        """What peers' HELLOs were refused for."""
        return "; ".join(f"member {peer} {problem}" for peer, problem in sorted(self.exchange.complaints.items()))

    def peer_rate(self, peer: int) -> Rate | None:
        """What a peer declared at the start."""
        return self.exchange.rate(peer)

    def by_multicast(self) -> bool:
        """Whether every peer has heard this member by IP multicast."""
        return self.succession.voice.multicast

    def gap_bound_ns(self) -> int:
        """How long nothing is ordered when the leader dies, at most."""
        return gap_bound_ns(self._timing)

    def outage_ns(self, died: Sequence[int]) -> int:
        """How much longer than the bound a message takes at most in a run in which these members die, in this order.

        The lowest that lives leads; who dies beside a leader may add a poll.
        """
        alive, leaders = list(self._policy.view.members), 0
        for member in died:
            leaders += member == alive[0]
            alive.remove(member)
        stops = max(leaders, 1 if died and self.waits_for_all else 0)
        each_ns = outage_ns(self._timing, self._policy.processing_ns)
        return stops and stops * each_ns + (len(died) - stops) * poll_ns(self._timing)
