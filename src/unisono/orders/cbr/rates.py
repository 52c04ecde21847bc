"""Rates and the bandwidth reserved for them in the CBR order: by the sender of a flow, or by its receivers (§4.2).

A member declares in every frame the rate of its next cycle, and the last frame of a cycle decides: everybody has it
before the first turn that it concerns. Under receiver-based reservation a larger rate is asked for first, with a
NEW_RATE outside the cadence; each receiver reserves and answers RESERVED; until all have, the smaller of the old and
the new rate is declared. The frame that then declares the new rate is the special message of §4.2.
"""

from __future__ import annotations

from unisono.errors import InvalidPolicy, ReservationRefused
from unisono.model.events import Violation, ViolationKind
from unisono.model.policy import Policy
from unisono.model.rates import Rate, Reservation, Reserver
from unisono.net.rmcast.copies import RMCAST_BYTES
from unisono.net.rmcast.layer import copies_reservation
from unisono.orders.cbr.turns import CYCLE_NS, RATE_MAX, turn_number
from unisono.wire.control import decode_new_rate, decode_reserved, encode_new_rate, encode_reserved
from unisono.wire.frame import FRAME_NUMBER_MAX, HEADER_BYTES, UDP_IP_BYTES, Frame, Kind
from unisono.wire.packed_messages import HEAD_BYTES


def whole_rate(rate: Rate) -> int:
    """The rate in messages per second, if this order can keep it."""
    if rate.avg != int(rate.avg) or not 1 <= rate.avg <= RATE_MAX:
        raise InvalidPolicy(
            "rate.avg",
            f"the CBR order needs a whole number of messages per second, 1 to {RATE_MAX:,}, not {rate.avg:g}",
        )
    return int(rate.avg)


def frames_per_turn(policy: Policy) -> int:
    """How many frames the largest message takes."""
    frames = -(-policy.max_message // (policy.max_frame - HEADER_BYTES))
    if frames > FRAME_NUMBER_MAX:
        raise InvalidPolicy(
            "max_message", f"a turn would need {frames:,} frames, and {FRAME_NUMBER_MAX:,} are possible"
        )
    return frames


def reservation(policy: Policy, rate: int) -> Reservation:
    """NetRate = AppRate (§4.4): as many turns per second as the application declared, in bytes on the wire."""
    header = HEADER_BYTES + UDP_IP_BYTES + (RMCAST_BYTES if policy.reliable else 0)
    turn = policy.max_message + HEAD_BYTES + frames_per_turn(policy) * header
    once = Reservation(rate * turn, rate * turn, CYCLE_NS)
    return once if policy.reliable is None else copies_reservation(once, policy.reliable)


class Renegotiation:
    """One member's rate, what it wishes, and what is reserved here."""

    def __init__(self, policy: Policy, reserver: Reserver, down: list[Frame]) -> None:
        self.rate = whole_rate(policy.rate)
        """myRate, in force in the cycle being sent."""
        self.wish: int | None = None
        """The rate asked for that is not in force yet."""
        self._next = self.rate
        """The rate of the next cycle, once this cycle's last turn has declared it."""
        self._policy = policy
        self._reserver = reserver
        self._down = down
        self._by_receiver = policy.reservation == "receiver"
        self._peers = tuple(m for m in policy.view.members if m != policy.member)
        self._serial = 0
        self._awaited: dict[int, None] = {}
        """Receivers that have not confirmed the wish, in member order."""
        self._incoming: dict[int, int] = {}
        """By peer, its rate in force."""
        self._promised: dict[int, int] = {}
        """By peer, a larger rate that was reserved here for its wish."""
        if not self._by_receiver:
            reserver.reserve(reservation(policy, self.rate))

    # -- this member's rate ----------------------------------------------------------------------------------

    def ask(self, rate: int) -> None:
        """new-rate; under sender-based reservation ReservationRefused changes nothing."""
        if not self._by_receiver:
            # The old rate is in use until the change, so the largest is held.
            self._reserver.reserve(reservation(self._policy, max(self.rate, self._next, rate)))
        self.wish = rate
        self._serial += 1
        larger = self._by_receiver and rate > self._next
        self._awaited = dict.fromkeys(self._peers) if larger else {}

    def request(self, now: int) -> None:
        """Ask those receivers that have not confirmed yet; asking twice does no harm."""
        if self.wish is not None:
            for peer in self._awaited:
                self._say(now, peer, Kind.NEW_RATE, encode_new_rate(self._serial, self.wish))

    def declared(self) -> int:
        """The rate of the next cycle, as things stand: the smaller one until all receivers have confirmed."""
        if self.wish is None:
            return self._next
        return min(self._next, self.wish) if self._awaited else self.wish

    def settle(self) -> int:
        """The cycle's last turn is sent: what it declares is the rate of the next cycle."""
        self._next = self.declared()
        return self._next

    def adopt(self) -> bool:
        """The next cycle begins; whether its rate is the one wished for."""
        self.rate = self._next
        if self.wish != self.rate or self._awaited:
            return False
        self.wish = None
        if not self._by_receiver:
            self._reserver.reserve(reservation(self._policy, self.rate))
        return True

    # -- the rates of others ---------------------------------------------------------------------------------

    def expect(self, peer: int, rate: int) -> bool:
        """A peer declares its first rate; False if there is no room to receive it."""
        return not self._by_receiver or self._reserve_incoming({**self._incoming, peer: rate}, self._promised)

    def expected(self) -> bool:
        """reserve has been done for everybody's first rate."""
        return not self._by_receiver or len(self._incoming) == len(self._peers)

    def follow(self, rates: dict[int, int]) -> None:
        """A cycle begins with these rates of all members that are left."""
        self._peers = tuple(m for m in self._peers if m in rates)
        self._awaited = {peer: None for peer in self._awaited if peer in rates}
        if self._by_receiver:
            incoming = {peer: rates[peer] for peer in self._peers}
            promised = {p: r for p, r in self._promised.items() if incoming.get(p, r) < r}
            if (incoming, promised) != (self._incoming, self._promised):
                # No more than was reserved already, so it cannot be refused.
                self._reserve_incoming(incoming, promised)

    def take(self, now: int, frame: Frame) -> Violation | None:
        """A peer's NEW_RATE is answered; a RESERVED counts if it answers the last request."""
        body = bytes(frame.body)
        if frame.kind is Kind.NEW_RATE:
            request = decode_new_rate(body)
            if request is not None:
                granted = self._promise(frame.sender, request[1])
                self._say(now, frame.sender, Kind.RESERVED, encode_reserved(request[0], granted))
            return None
        answer = decode_reserved(body)
        if answer is None or answer[0] != self._serial or frame.sender not in self._awaited:
            return None
        if answer[1]:
            del self._awaited[frame.sender]
            return None
        return self._give_up(now, frame.sender)

    def _promise(self, peer: int, rate: int) -> bool:
        if not self._by_receiver or rate > RATE_MAX:
            return False
        promised = {**self._promised, peer: rate}
        if rate <= self._incoming.get(peer, 0):
            del promised[peer]
        return self._reserve_incoming(self._incoming, promised)

    def _give_up(self, now: int, refuser: int) -> Violation:
        """One receiver has no room: the wish is dropped, and those who reserved for it give that back."""
        asked, self.wish, self._awaited = self.wish, None, {}
        self._serial += 1
        for peer in self._peers:
            self._say(now, peer, Kind.NEW_RATE, encode_new_rate(self._serial, self._next))
        text = f"member {refuser} has no room for {asked} messages per second; the rate stays {self._next}"
        return Violation(ViolationKind.RESERVATION_REFUSED, text, refuser)

    def _reserve_incoming(self, incoming: dict[int, int], promised: dict[int, int]) -> bool:
        total = sum(max(rate, promised.get(peer, 0)) for peer, rate in incoming.items())
        try:
            self._reserver.reserve(reservation(self._policy, total))
        except ReservationRefused:
            return False
        self._incoming, self._promised = dict(incoming), dict(promised)
        return True

    def _say(self, now: int, to: int, kind: Kind, body: bytes) -> None:
        policy = self._policy
        slot = turn_number(now // CYCLE_NS, 0)
        me, life = policy.member, policy.incarnation
        self._down.append(Frame(kind, me, life, policy.epoch, slot, 0, sent_ns=now, body=body, to=to))
