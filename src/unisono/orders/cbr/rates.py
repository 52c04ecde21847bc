"""Rates and the bandwidth reserved for them in the CBR order: by the sender of a flow, or by its receivers (§4.2).

A member declares in every frame the rate of its next cycle, and the last frame of a cycle decides: everybody has it
before the first turn that it concerns. Under receiver-based reservation a larger rate is asked for first, with a
NEW_RATE outside the cadence; each receiver reserves and answers RESERVED; until all have, the smaller of the old and
the new rate is declared. The frame that then declares the new rate is the special message of §4.2.
"""

from __future__ import annotations

from unisono.errors import InvalidOption, ReservationRefused
from unisono.model.events import Violation, ViolationKind
from unisono.model.policy import Policy
from unisono.model.rates import BandwidthReservation, Rate, Reserver
from unisono.net.rmcast.copies import RMCAST_BYTES
from unisono.net.rmcast.layer import copies_reservation
from unisono.orders.cbr.turns import CYCLE_NS, RATE_MAX, turn_number
from unisono.wire.control import decode_new_rate, decode_reserved, encode_new_rate, encode_reserved
from unisono.wire.frame import FRAME_NUMBER_MAX, HEADER_BYTES, UDP_IP_BYTES, Frame, Kind
from unisono.wire.packed_messages import PACKED_HEADER_BYTES


def whole_rate(rate: Rate) -> int:
    """The rate in messages per second, if this order can keep it."""
    if rate.avg != int(rate.avg) or not 1 <= rate.avg <= RATE_MAX:
        raise InvalidOption(
            "rate.avg",
            f"the CBR order needs a whole number of messages per second, 1 to {RATE_MAX:,}, not {rate.avg:g}",
        )
    return int(rate.avg)


def frames_per_turn(policy: Policy) -> int:
    """How many frames the largest message takes."""
    frames = -(-policy.max_message // (policy.max_frame - HEADER_BYTES))
    if frames > FRAME_NUMBER_MAX:
        raise InvalidOption(
            "max_message", f"a turn would need {frames:,} frames, and {FRAME_NUMBER_MAX:,} are possible"
        )
    return frames


def cbr_reservation(policy: Policy, rate: int) -> BandwidthReservation:
    """NetRate = AppRate (§4.4): as many turns per second as the application declared, in bytes on the wire."""
    header = HEADER_BYTES + UDP_IP_BYTES + (RMCAST_BYTES if policy.reliable else 0)
    turn = policy.max_message + PACKED_HEADER_BYTES + frames_per_turn(policy) * header
    once = BandwidthReservation(rate * turn, rate * turn, CYCLE_NS)
    return once if policy.reliable is None else copies_reservation(once, policy.reliable)


class RateRenegotiation:
    """One member's rate, what it wishes, and what is reserved here."""

    def __init__(self, policy: Policy, reserver: Reserver, down: list[Frame]) -> None:
        self.rate = whole_rate(policy.rate)
        """myRate, in force in the cycle being sent."""
        self.requested_rate: int | None = None
        """The rate asked for that is not in force yet."""
        self._next_rate = self.rate
        """The rate of the next cycle, once this cycle's last turn has declared it."""
        self._policy = policy
        self._reserver = reserver
        self._down = down
        self._by_receiver = policy.reservation == "receiver"
        self._peers = tuple(m for m in policy.view.members if m != policy.member)
        self._serial = 0
        self._unconfirmed_receivers: dict[int, None] = {}
        """Receivers that have not confirmed the wish, in member order."""
        self._incoming_rates: dict[int, int] = {}
        """By peer, its rate in force."""
        self._promised_rates: dict[int, int] = {}
        """By peer, a larger rate that was reserved here for its wish."""
        if not self._by_receiver:
            reserver.reserve(cbr_reservation(policy, self.rate))

    # -- this member's rate ----------------------------------------------------------------------------------

    def request_rate(self, rate: int) -> None:
        """new-rate; under sender-based reservation ReservationRefused changes nothing."""
        if not self._by_receiver:
            # The old rate is in use until the change, so the largest is held.
            self._reserver.reserve(cbr_reservation(self._policy, max(self.rate, self._next_rate, rate)))
        self.requested_rate = rate
        self._serial += 1
        larger = self._by_receiver and rate > self._next_rate
        self._unconfirmed_receivers = dict.fromkeys(self._peers) if larger else {}

    def send_requests(self, now: int) -> None:
        """Ask those receivers that have not confirmed yet; asking twice does no harm."""
        if self.requested_rate is not None:
            for peer in self._unconfirmed_receivers:
                self._send(now, peer, Kind.NEW_RATE, encode_new_rate(self._serial, self.requested_rate))

    def declared_rate(self) -> int:
        """The rate of the next cycle, as things stand: the smaller one until all receivers have confirmed."""
        if self.requested_rate is None:
            return self._next_rate
        return min(self._next_rate, self.requested_rate) if self._unconfirmed_receivers else self.requested_rate

    def decide_next_rate(self) -> int:
        """The cycle's last turn is sent: what it declares is the rate of the next cycle."""
        self._next_rate = self.declared_rate()
        return self._next_rate

    def adopt_next_rate(self) -> bool:
        """The next cycle begins; whether its rate is the one wished for."""
        self.rate = self._next_rate
        if self.requested_rate != self.rate or self._unconfirmed_receivers:
            return False
        self.requested_rate = None
        if not self._by_receiver:
            self._reserver.reserve(cbr_reservation(self._policy, self.rate))
        return True

    # -- the rates of others ---------------------------------------------------------------------------------

    def reserve_first_rate(self, peer: int, rate: int) -> bool:
        """A peer declares its first rate; False if there is no room to receive it."""
        return not self._by_receiver or self._reserve_incoming(
            {**self._incoming_rates, peer: rate}, self._promised_rates
        )

    def are_first_rates_reserved(self) -> bool:
        """reserve has been done for everybody's first rate."""
        return not self._by_receiver or len(self._incoming_rates) == len(self._peers)

    def on_cycle_start(self, rates: dict[int, int]) -> None:
        """A cycle begins with these rates of all members that are left."""
        self._peers = tuple(m for m in self._peers if m in rates)
        self._unconfirmed_receivers = {peer: None for peer in self._unconfirmed_receivers if peer in rates}
        if self._by_receiver:
            incoming = {peer: rates[peer] for peer in self._peers}
            promised = {p: r for p, r in self._promised_rates.items() if incoming.get(p, r) < r}
            if (incoming, promised) != (self._incoming_rates, self._promised_rates):
                # No more than was reserved already, so it cannot be refused.
                self._reserve_incoming(incoming, promised)

    def receive(self, now: int, frame: Frame) -> Violation | None:
        """A peer's NEW_RATE is answered; a RESERVED counts if it answers the last request."""
        body = bytes(frame.body)
        if frame.kind is Kind.NEW_RATE:
            request = decode_new_rate(body)
            if request is not None:
                granted = self._promise(frame.sender, request[1])
                self._send(now, frame.sender, Kind.RESERVED, encode_reserved(request[0], granted))
            return None
        answer = decode_reserved(body)
        if answer is None or answer[0] != self._serial or frame.sender not in self._unconfirmed_receivers:
            return None
        if answer[1]:
            del self._unconfirmed_receivers[frame.sender]
            return None
        return self._withdraw_request(now, frame.sender)

    def _promise(self, peer: int, rate: int) -> bool:
        if not self._by_receiver or rate > RATE_MAX:
            return False
        promised = {**self._promised_rates, peer: rate}
        if rate <= self._incoming_rates.get(peer, 0):
            del promised[peer]
        return self._reserve_incoming(self._incoming_rates, promised)

    def _withdraw_request(self, now: int, refused_by: int) -> Violation:
        """One receiver has no room: the wish is dropped, and those who reserved for it give that back."""
        asked, self.requested_rate, self._unconfirmed_receivers = self.requested_rate, None, {}
        self._serial += 1
        for peer in self._peers:
            self._send(now, peer, Kind.NEW_RATE, encode_new_rate(self._serial, self._next_rate))
        text = f"member {refused_by} has no room for {asked} messages per second; the rate stays {self._next_rate}"
        return Violation(ViolationKind.RESERVATION_REFUSED, text, refused_by)

    def _reserve_incoming(self, incoming: dict[int, int], promised: dict[int, int]) -> bool:
        total = sum(max(rate, promised.get(peer, 0)) for peer, rate in incoming.items())
        try:
            self._reserver.reserve(cbr_reservation(self._policy, total))
        except ReservationRefused:
            return False
        self._incoming_rates, self._promised_rates = dict(incoming), dict(promised)
        return True

    def _send(self, now: int, to: int, kind: Kind, body: bytes) -> None:
        policy = self._policy
        slot = turn_number(now // CYCLE_NS, 0)
        me, life = policy.member, policy.incarnation
        self._down.append(Frame(kind, me, life, policy.epoch, slot, 0, sent_ns=now, body=body, to=to))
