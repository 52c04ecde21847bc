"""Turns and rates of the CBR order: Porder and rate changes (paper 000 §4.1, §4.2, figure 5).

Turns (errata 000-1 to -4, -7, -11). A cycle is one second, counted from the Unix epoch. A member of rate r has the
turns 0 to r-1 in each cycle, and turn k is due at the instant k/r. Porder lists the turns of all members, sorted by
(k/r, member). All arithmetic is in exact integers. A member sends turn k at k/r rounded down to nanoseconds, which
keeps the order: if k/r < k'/r', then equal clocks never send the first turn after the second.

Rates (§4.2). Every frame declares its sender's rate for the next cycle, and the last frame of a cycle decides. All
members have that frame before the first turn that it affects. Under receiver-based reservation a member first asks
for a larger rate, with a NEW_RATE that takes no turn. Each receiver reserves and answers RESERVED. Until all have
confirmed, the member declares the smaller of the old and the new rate. The frame that then declares the new rate is
the special message of §4.2.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from math import lcm
from typing import TypeAlias

from unisono.errors import InvalidOption, ReservationRefused
from unisono.model.events import Violation, ViolationKind
from unisono.model.policy import Policy
from unisono.model.units import NS_PER_S, BandwidthReservation, Rate, Reserver
from unisono.net.rmcast.copies import RMCAST_BYTES
from unisono.net.rmcast.layer import copies_reservation
from unisono.wire.codec import control_frame
from unisono.wire.control import NewRate, Reserved
from unisono.wire.frame import FRAME_NUMBER_MAX, HEADER_BYTES, PACKED_HEADER_BYTES, UDP_IP_BYTES, Frame

# -- turns -----------------------------------------------------------------------------------------------------------

Porder: TypeAlias = tuple[int, ...]
"""The turns of one cycle in delivery order; each entry is the member that has the turn."""

CYCLE_NS = NS_PER_S
RATE_MAX = 100_000
"""The highest rate of one member, in turns per second: its period is at least 10 µs."""
_TURN_BITS = 20
_TURN_MASK = (1 << _TURN_BITS) - 1


def due_ns(cycle: int, turn: int, rate: int) -> int:
    """The clock reading at which a turn is sent: the start of the cycle plus turn/rate (000-6, 000-7)."""
    return cycle * CYCLE_NS + turn * CYCLE_NS // rate


def period_ns(rate: int) -> int:
    """The longest time between two consecutive turns of a member."""
    return -(-CYCLE_NS // rate)


def turn_number(cycle: int, turn: int) -> int:
    """The number of a turn in frame headers: it grows from turn to turn of a sender, also across rate changes."""
    return cycle << _TURN_BITS | turn


def cycle_and_turn(number: int) -> tuple[int, int]:
    """The cycle, and the turn within it, of a turn number."""
    return number >> _TURN_BITS, number & _TURN_MASK


def porder_by_sorting(rates: Mapping[int, int]) -> Porder:
    """Porder by its definition: the turns k of all members with rates `rates`, sorted by (k/rate, member)."""
    scale = lcm(*rates.values())
    steps = {member: scale // rate for member, rate in rates.items()}
    turns = [(k * steps[member], member) for member, rate in rates.items() for k in range(rate)]
    turns.sort()
    return tuple(member for _, member in turns)


def initial_porder(rates: Mapping[int, int]) -> Porder:
    """The Porder with which the group starts, made by merging in the turns of one member after the other."""
    order: Porder = ()
    merged: dict[int, int] = {}
    for member in sorted(rates):
        order, _ = update_porder(order, 0, merged, member, rates[member])
        merged[member] = rates[member]
    return order


def update_porder(
    order: Sequence[int], current: int, rates: Mapping[int, int], member: int, rate: int
) -> tuple[Porder, int]:
    """The Porder and `current` after `member` changes from its rate in `rates` to `rate` (paper 000: change-rate).

    The turn at `current` is the next one to process. Processed turns of the other members stay processed. A turn q of
    `member` counts as processed if (q/rate, member) comes before the turn at `current`. The new `current` is the number
    of processed turns (000-4); it equals the length of the new Porder if no turn of the cycle is left.

    A member that is not in `rates` has no processed turns (000-2). Rate 0 removes a member, and a member with rate 0 in
    `rates` counts as absent. Turns are merged by (k/rate, member), so the result does not depend on the history of
    changes (000-11).
    """
    others = [i for i in order if i != member]
    turns_seen: Counter[int] = Counter()
    keys: list[tuple[int, int]] = []
    scale = lcm(*(r for i, r in rates.items() if i != member and r), rate or 1)
    for i in others:
        keys.append((turns_seen[i] * (scale // rates[i]), i))
        turns_seen[i] += 1
    merged: list[int] = []
    copied = 0
    for q in range(rate):
        at = bisect_left(keys, (q * (scale // rate), member), lo=copied)
        merged.extend(others[copied:at])
        merged.append(member)
        copied = at
    merged.extend(others[copied:])
    return tuple(merged), _updated_current(order, current, rates, member, rate)


def _updated_current(order: Sequence[int], current: int, rates: Mapping[int, int], member: int, rate: int) -> int:
    if not 0 <= current < max(1, len(order)):
        raise IndexError(f"current = {current} is outside a cycle of {len(order)} turns")
    if current == 0:
        return 0
    before = order[:current]
    next_member = order[current]
    next_turn, next_rate = before.count(next_member), rates[next_member]
    # Turn q of `member` is processed if q/rate < next_turn/next_rate, or if both are equal and `member` comes first.
    processed = next_turn * rate // next_rate + 1 if member < next_member else -(-next_turn * rate // next_rate)
    return current - before.count(member) + min(processed, rate)


# -- rates -------------------------------------------------------------------------------------------------------------


def whole_rate(rate: Rate) -> int:
    """The rate in messages per second; raises InvalidOption if it is not a whole number in the allowed range."""
    if rate.avg != int(rate.avg) or not 1 <= rate.avg <= RATE_MAX:
        raise InvalidOption(
            "rate.avg",
            f"the CBR order needs a whole number of messages per second, 1 to {RATE_MAX:,}, not {rate.avg:g}",
        )
    return int(rate.avg)


def frames_per_turn(policy: Policy) -> int:
    """The number of frames that the largest message needs; raises InvalidOption if a turn cannot have that many."""
    frames = -(-policy.max_message // (policy.max_frame - HEADER_BYTES))
    if frames > FRAME_NUMBER_MAX:
        raise InvalidOption(
            "max_message",
            f"a turn would need {frames:,} frames, but at most {FRAME_NUMBER_MAX:,} are possible; lower max_message",
        )
    return frames


def cbr_reservation(policy: Policy, rate: int) -> BandwidthReservation:
    """The bandwidth for `rate` turns per second, each with a message of the largest size (paper 000 §4.4)."""
    header = HEADER_BYTES + UDP_IP_BYTES + (RMCAST_BYTES if policy.reliable else 0)
    turn = policy.max_message + PACKED_HEADER_BYTES + frames_per_turn(policy) * header
    once = BandwidthReservation(rate * turn, rate * turn, CYCLE_NS)
    return once if policy.reliable is None else copies_reservation(once, policy.reliable)


class RateRenegotiation:
    """One member's own rate, the rate that it has requested, and its reservations for incoming messages.

    Outgoing NEW_RATE and RESERVED frames are appended to `down`, the order's list of frames to send.
    """

    def __init__(self, policy: Policy, reserver: Reserver, down: list[Frame]) -> None:
        self.rate = whole_rate(policy.rate)
        """This member's rate in the cycle that it sends in (paper 000: myRate)."""
        self.requested_rate: int | None = None
        """The rate that this member has requested and that is not in force yet; None if there is none."""
        self._next_rate = self.rate
        """The rate of the next cycle, once this cycle's last turn has declared it."""
        self._policy = policy
        self._reserver = reserver
        self._down = down
        self._by_receiver = policy.reservation == "receiver"
        self._peers = tuple(m for m in policy.view.members if m != policy.member)
        self._serial = 0
        self._unconfirmed_receivers: dict[int, None] = {}
        """Receivers that have not confirmed the requested rate yet, in member order."""
        self._incoming_rates: dict[int, int] = {}
        """By peer, its rate in the cycle that is being delivered."""
        self._promised_rates: dict[int, int] = {}
        """By peer that has requested a larger rate, the rate that this member has reserved for it."""
        if not self._by_receiver:
            reserver.reserve(cbr_reservation(policy, self.rate))

    # -- this member's rate ----------------------------------------------------------------------------------

    def request_rate(self, rate: int) -> None:
        """Request another rate for this member.

        Under sender-based reservation this may raise ReservationRefused. Then nothing has changed.
        """
        if not self._by_receiver:
            # The old rate stays in use until the change, so reserve for the largest.
            self._reserver.reserve(cbr_reservation(self._policy, max(self.rate, self._next_rate, rate)))
        self.requested_rate = rate
        self._serial += 1
        larger = self._by_receiver and rate > self._next_rate
        self._unconfirmed_receivers = dict.fromkeys(self._peers) if larger else {}

    def send_requests(self, now: int) -> None:
        """Send a NEW_RATE to each receiver that has not confirmed the requested rate yet. Repeats are harmless."""
        if self.requested_rate is not None:
            for peer in self._unconfirmed_receivers:
                self._send(now, peer, NewRate(self._serial, self.requested_rate))

    def declared_rate(self) -> int:
        """The rate to declare now for the next cycle.

        Until all receivers have confirmed a requested rate, this is the smaller of the old and the requested rate.
        """
        if self.requested_rate is None:
            return self._next_rate
        return min(self._next_rate, self.requested_rate) if self._unconfirmed_receivers else self.requested_rate

    def decide_next_rate(self) -> int:
        """Fix and return this member's rate of the next cycle. Called when the last turn of a cycle is sent."""
        self._next_rate = self.declared_rate()
        return self._next_rate

    def adopt_next_rate(self) -> bool:
        """Start sending the next cycle. Returns True if the requested rate comes into force with it."""
        self.rate = self._next_rate
        if self.requested_rate != self.rate or self._unconfirmed_receivers:
            return False
        self.requested_rate = None
        if not self._by_receiver:
            self._reserver.reserve(cbr_reservation(self._policy, self.rate))
        return True

    # -- the rates of the peers ------------------------------------------------------------------------------

    def reserve_first_rate(self, peer: int, rate: int) -> bool:
        """Reserve for the first rate that a peer declares. Returns False if the network refuses the reservation."""
        return not self._by_receiver or self._reserve_incoming(
            {**self._incoming_rates, peer: rate}, self._promised_rates
        )

    def are_first_rates_reserved(self) -> bool:
        """Whether this member has reserved for the first rates of all peers, or need not do so."""
        return not self._by_receiver or len(self._incoming_rates) == len(self._peers)

    def on_cycle_start(self, rates: dict[int, int]) -> None:
        """Adjust the reservations to the rates of the cycle that delivery enters.

        Members that are not in `rates` have left.
        """
        self._peers = tuple(m for m in self._peers if m in rates)
        self._unconfirmed_receivers = {peer: None for peer in self._unconfirmed_receivers if peer in rates}
        if self._by_receiver:
            incoming = {peer: rates[peer] for peer in self._peers}
            promised = {p: r for p, r in self._promised_rates.items() if incoming.get(p, r) < r}
            if (incoming, promised) != (self._incoming_rates, self._promised_rates):
                # This is at most the present reservation, so it cannot be refused.
                self._reserve_incoming(incoming, promised)

    def receive(self, now: int, frame: Frame) -> Violation | None:
        """Answer a peer's NEW_RATE, or process the RESERVED with which a peer answers this member's latest request.

        Returns a violation if the peer refuses the requested rate, otherwise None.
        """
        match frame.message:
            case NewRate(serial, rate):
                self._send(now, frame.sender, Reserved(serial, self._promise(frame.sender, rate)))
            case Reserved(self._serial, granted) if frame.sender in self._unconfirmed_receivers:
                if not granted:
                    return self._withdraw_request(now, frame.sender)
                del self._unconfirmed_receivers[frame.sender]
        return None

    def _promise(self, peer: int, rate: int) -> bool:
        if not self._by_receiver or rate > RATE_MAX:
            return False
        promised = {**self._promised_rates, peer: rate}
        if rate <= self._incoming_rates.get(peer, 0):
            del promised[peer]
        return self._reserve_incoming(self._incoming_rates, promised)

    def _withdraw_request(self, now: int, refused_by: int) -> Violation:
        """Drop the requested rate, since a receiver refused it; the other receivers release their reservations."""
        requested, self.requested_rate, self._unconfirmed_receivers = self.requested_rate, None, {}
        self._serial += 1
        for peer in self._peers:
            self._send(now, peer, NewRate(self._serial, self._next_rate))
        text = (
            f"member {refused_by} could not reserve bandwidth for {requested} messages per second; "
            f"the rate stays at {self._next_rate}"
        )
        return Violation(ViolationKind.RESERVATION_REFUSED, text, refused_by)

    def _reserve_incoming(self, incoming: dict[int, int], promised: dict[int, int]) -> bool:
        total = sum(max(rate, promised.get(peer, 0)) for peer, rate in incoming.items())
        try:
            self._reserver.reserve(cbr_reservation(self._policy, total))
        except ReservationRefused:
            return False
        self._incoming_rates, self._promised_rates = dict(incoming), dict(promised)
        return True

    def _send(self, now: int, to: int, message: NewRate | Reserved) -> None:
        policy = self._policy
        header = (policy.member, policy.incarnation, policy.epoch)
        slot = turn_number(now // CYCLE_NS, 0)
        self._down.append(control_frame(message, *header, slot=slot, sent_ns=now, to=to))
