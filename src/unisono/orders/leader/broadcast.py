"""Leader broadcast (paper 000 §8.1): members send to a leader, and it multicasts what arrives, in that order.

A frame goes to the leader at once and whole, and from there to everybody with another header: order is decided per
frame. It takes Δ to the leader, at most p there and Δ to everyone: AppLatency = 2Δ+p, with no clock compared to
another. Timers are set Γ short, so that a clock that strays by Γ meanwhile does no harm to the bound.

`led` is what every order with a leader is made of; `election` is how the leader is replaced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from unisono.model.durations import NS_PER_S, duration_text
from unisono.model.offers import Ask, Offer
from unisono.model.policy import Policy
from unisono.model.rates import Rate, Reservation, Reserver
from unisono.model.timing import Timing
from unisono.orders.base.modes import Mode
from unisono.orders.base.packing import Load, reservation
from unisono.orders.leader.base import Led, fitting
from unisono.orders.leader.messages import ORDERED_BYTES, What
from unisono.orders.leader.stream import Entry
from unisono.orders.leader.timeouts import gap_bound_ns, outage_ns
from unisono.wire.frame import (
    FINAL,
    HEADER_BYTES,
    LAST,
    UDP_IP_BYTES,
    Frame,
    Kind,
)
from unisono.wire.packed_messages import HEAD_BYTES

NUMBERS = 1 << 16
UNSETTLED_MAX = 1 << 12
"""How many frames of its own a member may have on the way to their place."""


def latency_bound_ns(timing: Timing, processing_ns: int) -> int:
    """§8.1: 2Δ+p."""
    return 2 * timing.delta_ns + processing_ns


class Leader(Led):
    """The automaton of one member."""

    def __init__(self, policy: Policy, reserver: Reserver) -> None:
        super().__init__(policy, reserver)
        self._paced_slot = -1
        self._number = 0
        self._unsettled: deque[Frame] = deque()
        self._sent_at = 0
        self._next = dict.fromkeys(policy.view.members, 0)
        """By member, the number of its next frame in the order."""
        # As the leader.
        self._expected = dict(self._next)
        self._early: dict[int, dict[int, Frame]] = {member: {} for member in policy.view.members}
        self._ready: deque[tuple[int, Frame]] = deque()

    def _reservation(self, rate: Rate) -> Reservation:
        return relaying_reservation(self._policy, rate, leads=self.succession.leading)

    def bound_ns(self) -> int:
        """§8.1."""
        return latency_bound_ns(self._timing, self._policy.processing_ns)

    # -- sending ---------------------------------------------------------------------------------------------

    def _take(self, now: int, messages: Sequence[bytes], sizes: list[int]) -> int:
        slot = self._timing.slot_of(now)
        if slot > self._paced_slot:
            self._paced_slot = slot
            self._adopt_rate(slot)
        count = fitting(self._pacer, sizes)
        if count == 0 or len(self._unsettled) >= UNSETTLED_MAX:
            return 0
        for load in self._loads(messages[:count], sizes[:count]):
            self._send(now, load, 0)
        return count

    def _say_last(self, now: int) -> None:
        self._send(now, None, LAST | FINAL)

    def _send(self, now: int, load: Load | None, flags: int) -> None:
        frame = self._frame(now, load, slot=self._timing.slot_of(now), number=self._number % NUMBERS, flags=flags)
        self._number += 1
        if not self._unsettled:
            self._sent_at = now
        self._unsettled.append(frame)
        self._post(now, frame)

    def _post(self, now: int, frame: Frame) -> None:
        leader = self.succession.leader
        if leader == self._policy.member:
            self._arrived(now, frame)
        elif leader is not None:
            self.down.append(replace(frame, to=leader))

    def _post_again(self, now: int) -> None:
        """Whatever has no place yet; the leader knows by its number what it has seen."""
        self._sent_at = now
        for frame in self._unsettled:
            self._post(now, frame)

    def _oldest(self) -> int | None:
        return self._unsettled[0].slot if self._unsettled else None

    # -- leading ---------------------------------------------------------------------------------------------

    def _arrived(self, now: int, frame: Frame) -> None:
        sender = frame.sender
        if frame.kind is not Kind.DATA or self.succession.leader != self._policy.member:
            self.ignored["not the leader"] += 1
            return
        early = self._early[sender]
        if not self.succession.roster.inside(sender):
            self.ignored["not on the roll"] += 1
        elif (frame.number - self._expected[sender]) % NUMBERS >= NUMBERS // 2 or frame.number in early:
            self.ignored["duplicate"] += 1
        elif len(early) >= 2 * UNSETTLED_MAX:
            self.ignored["too far ahead"] += 1
        else:
            early[frame.number] = frame
            while (following := early.pop(self._expected[sender], None)) is not None:
                self._ready.append((now + self._hold_ns, following))
                self._expected[sender] = (self._expected[sender] + 1) % NUMBERS

    def _work(self, now: int) -> None:
        """Multicast what has been here for p, in the order in which it came."""
        while self._ready and self._ready[0][0] <= now and self.succession.may_order(now):
            _, frame = self._ready.popleft()
            if self.succession.roster.inside(frame.sender):
                self.succession.append(now, What.RELAY, frame)
        wait = self.bound_ns() + self._timing.gamma_ns
        if self._unsettled and now > self._sent_at + wait and not self.succession.leading:
            self._post_again(now)

    def _due(self) -> int | None:
        return self._ready[0][0] if self._ready and self._hold_ns and self.succession.leading else None

    # -- delivering ------------------------------------------------------------------------------------------

    def _advance(self, now: int) -> None:
        succession = self.succession
        while succession.stream.accepted and self.mode is Mode.DELIVER_MESSAGES:
            entry = succession.stream.accepted.popleft()
            succession.stream.consumed = entry.position
            if entry.what is What.RELAY:
                self._place(now, entry)
            else:
                changed = {*self.view.members} ^ {*entry.roll().members}
                self._turn_roll(entry)
                self._begin_anew(now, entry, changed)

    def _place(self, now: int, entry: Entry) -> None:
        sender = entry.origin
        self._next[sender] = (entry.number + 1) % NUMBERS
        if sender == self._policy.member and self._unsettled:
            self._unsettled.popleft()
            self._sent_at = now
        if entry.flags & FINAL:
            self.succession.roster.finals.add(sender)
        run = self._pieces.run_of(sender, entry.flags, entry.run, entry.payload)
        if run is not None:
            self._deliver(entry, entry.ordinal, entry.first_sequence, run)

    def _begin_anew(self, now: int, entry: Entry, changed: set[int]) -> None:
        """What a leader had collected of earlier reigns, or of members that come or go, is void; it is sent again."""
        if entry.reign != self._begun:
            self._begun, changed = entry.reign, set(self._next)
        for member in changed:
            self._expected[member] = self._next[member]
            self._early[member].clear()
        self._ready = deque(waiting for waiting in self._ready if waiting[1].sender not in changed)
        self._reserve_as_leader()
        if self._policy.member in changed:
            self._post_again(now)


def relaying_reservation(policy: Policy, rate: Rate, *, leads: bool) -> Reservation:
    """A member's own frames and a beat per slot; the leader's as many times that as there are members.

    The others' rates are taken to be like one's own, so that a leader can reserve before it has heard them.
    """
    own = reservation(policy, rate)
    beat = HEADER_BYTES + ORDERED_BYTES + UDP_IP_BYTES
    times = len(policy.view.members) if leads else 1
    return Reservation(
        own.avg_bytes_per_s * times + beat * NS_PER_S // policy.timing.theta_ns,
        own.burst_bytes_per_slot * times + beat,
        own.theta_ns,
    )


def offer(ask: Ask) -> Offer:
    """What leader broadcast gives."""
    timing, rate, n = ask.timing, ask.rate, ask.members
    beats = NS_PER_S / timing.theta_ns
    bound = latency_bound_ns(timing, ask.processing_ns)
    delta, p, sums = duration_text(timing.delta_ns), duration_text(ask.processing_ns), duration_text(bound)
    why = (
        f"latency 2Δ+p = 2·{delta} + {p} = {sums}, whatever the number of members; Γ and Θ do not enter",
        f"average: each message is sent twice, 2·{rate.avg:g}/s per member; and a beat per slot, {beats:g}/s",
        f"the leader itself sends for all {n} members: {rate.avg * n:g}/s",
        f"burst: the leader's, {rate.burst} from each of {n}, and a beat; another member's is {rate.burst} + 1",
    )
    return led_offer("leader", ask, bound, why, average=2 * rate.avg + beats, burst=rate.burst * n + 1)


def led_offer(order: str, ask: Ask, bound: int, why: tuple[str, ...], *, average: float, burst: int) -> Offer:
    """What any order with a leader gives: with failures there is the gap at a leader's death, and a majority."""
    gap, outage, against = gap_bound_ns(ask.timing), outage_ns(ask.timing, ask.processing_ns), []
    longest = bound + ask.failures * outage
    if ask.failures and ask.deadline_ns is not None and bound <= ask.deadline_ns < longest:
        worst, deadline = duration_text(longest), duration_text(ask.deadline_ns)
        times = "" if ask.failures == 1 else f" {ask.failures} times"
        text = f"when the leader dies{times} a message takes up to {worst}, more than the deadline of {deadline}"
        against.append(text)
    if 2 * ask.failures >= ask.members and ask.failures:
        against.append(f"a majority must survive, and {ask.failures} of {ask.members} is half or more")
    if ask.loss or ask.loss_burst or ask.fec is not None:
        against.append("a lost datagram is sent again, later than the bound")
    dies = f"when the leader dies nothing is ordered for Θ+5Δ+7Γ = {duration_text(gap)} at most"
    return Offer(
        order,
        not against,
        bound,
        average,
        burst,
        HEADER_BYTES + HEAD_BYTES + UDP_IP_BYTES + (ORDERED_BYTES if order == "leader" else 0),
        True,
        "what is lost is sent again, late",
        1.0,
        (*against, *why, dies),
        outage_ns=outage,
    )
