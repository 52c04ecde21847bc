"""Reliable multicast over a network that loses datagrams (paper 002 §3; errata 002-2, -3, -12, -14, -15).

Every frame for everyone becomes a message of its own. Its originator broadcasts it in ρ+1 copies, η apart. If the
originator stops before the last copy, a process that has the message takes over. Each process passes a message up once,
when the first copy arrives, in order of arrival.

Sending: `from_above` numbers and broadcasts a message; later copies leave from `wake`.
Receiving: `from_below` passes up new messages and feeds all copies to the automaton of the message, an `RmcastMessage`
(message.py), which makes the protocol's decisions. This module keeps numbers, buffers and deadlines.

State: the number of a message is kept until all earlier ones have arrived. Its buffer, the body of the datagram that
brought it, is kept while this process may still have to broadcast it. A message that is still missing at the end of its
lifetime (`Redundancy.message_lifetime_ns` after a later one arrived) is lost. The layer passes up a `LostMessages` and
refuses late copies.

A frame for a single member, such as a message to a leader, has no other process that could take over. The layer sends
it unchanged ρ+1 times, η apart. The order ignores duplicates, which the network may create anyway.

Reservations count the member's own ρ+1 copies (`copies_reservation`), but not the copies that it broadcasts for other
members: their number depends on chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import ClassVar

from unisono.errors import InvalidOption
from unisono.model.delays import RandomSource, SplitMix64
from unisono.model.policy import FRAME_MIN, Policy, Redundancy
from unisono.model.units import EVERYONE, BandwidthReservation, exact_duration_text, group_key
from unisono.net.layer import LostMessages, SequenceWindow
from unisono.net.rmcast.copies import RMCAST_BYTES, RmcastCopy, pack_message
from unisono.net.rmcast.message import DONE, NEVER, NO_COPY, RmcastMessage, RmcastRules
from unisono.wire.door import Door, Refusal
from unisono.wire.frame import Frame, Kind

_REPEATED = frozenset({Kind.DATA, Kind.JOIN, Kind.STAMP_REQUEST, Kind.NEW_RATE, Kind.RESERVED})
"""Frames for one member that are repeated. Frames of other kinds are sent once, since their senders repeat them."""
RULES_MAX = 64
"""The cache keeps the rules of at most this many pairs of ρ and η."""


class _HeldMessage(RmcastMessage):
    """A message that this process may have to broadcast, with the bytes that it would send."""

    __slots__ = ("body", "expires_at", "multicast", "planned_at", "sequence", "stream")

    body: bytes | memoryview
    expires_at: int
    multicast: bool
    planned_at: int
    """The time of the message's entry in the heap of deadlines."""
    sequence: int
    stream: _OriginatorStream | None
    """The originator's stream; None for this process's own messages."""


@dataclass(slots=True)
class _RepeatedFrame:
    """A frame for one member, and the number of copies still to send."""

    frame: Frame
    copies_left: int


class _OriginatorStream:
    """The messages that have arrived from one incarnation of an originator."""

    __slots__ = ("held", "incarnation_id", "originator", "received")

    def __init__(self, originator: int, incarnation_id: tuple[int, int], received: SequenceWindow) -> None:
        self.originator = originator
        self.incarnation_id = incarnation_id
        self.received = received
        self.held: dict[int, _HeldMessage] = {}


def order_policy(policy: Policy) -> Policy:
    """The policy for the layers above: their frames leave room for this layer's header."""
    least = FRAME_MIN + RMCAST_BYTES
    if policy.max_frame < least:
        raise InvalidOption(
            "max_frame",
            f"expected at least {least} bytes for reliable multicast, got {policy.max_frame}; raise max_frame",
        )
    reliable = policy.reliable
    if reliable is not None and policy.rho_most > reliable.rho:
        reliable = replace(reliable, rho=policy.rho_most)
    return replace(policy, max_frame=policy.max_frame - RMCAST_BYTES, reliable=reliable)


def copies_reservation(own: BandwidthReservation, redundancy: Redundancy) -> BandwidthReservation:
    """The reservation for all ρ+1 copies of a sender's messages, if one copy of each needs `own`.

    The average is ρ+1 times as large. A slot carries at most 2ρ+1 bursts: one of first copies, and two for each of the
    ρ later copies. Later copies may be of messages from two slots, because η need not be a multiple of Θ.
    """
    burst = own.burst_bytes_per_slot * (2 * redundancy.rho + 1)
    return replace(own.scaled(redundancy.rho + 1), burst_bytes_per_slot=burst)


class Rmcast:
    """The layer of reliable multicast: broadcasts frames in ρ+1 copies, and takes over for originators that stop."""

    name: ClassVar[str] = "rmcast"
    wraps = frozenset({Kind.DATA, Kind.ORDERED, Kind.FIFO, Kind.CAUSAL, Kind.UNIFORM}) | _REPEATED
    """Frames of these kinds for everyone are multicast reliably; those for one member are repeated."""
    opens = frozenset({Kind.RMCAST})

    def __init__(self, policy: Policy, chance: RandomSource | None = None) -> None:
        """`chance` draws ζ. By default it is a random stream seeded with the group, the member and its incarnation."""
        if policy.reliable is None:
            raise InvalidOption("reliable", "expected Redundancy(...) with ρ, η and ω for reliable multicast, got None")
        self.down: list[Frame] = []
        self.up: list[Frame] = []
        self.ignored: Counter[str] = Counter()
        """Copies that the door admitted but this layer did not use, by reason."""
        self.lost: Counter[int] = Counter()
        """The number of lost messages, by originator."""
        self.copies_taken_over = 0
        """The number of copies that this process has broadcast for other originators."""
        self._policy = policy
        self._redundancy = policy.reliable
        self._members = len(policy.view.members)
        self._random = (chance or SplitMix64(group_key(policy.group), policy.member, policy.incarnation)).random
        self._rules: dict[tuple[int, int], tuple[RmcastRules, int]] = {}
        self._own_rules = self._new_rules(policy.reliable)
        self._group = group_key(policy.group)
        self._door = Door(self._group, policy.member, policy.view.members)
        self._next_redundancy: tuple[Redundancy, int] | None = None
        """The agreed redundancy that is not in force yet, and the slot from which on it holds."""
        self._sequence = 0
        self._own_broadcasting = 0
        """The number of this process's own messages and repeated frames that have copies left to send."""
        self._multicast = False
        self._streams: dict[int, _OriginatorStream] = {}
        self._deadlines: list[tuple[int, int, _HeldMessage | _OriginatorStream | _RepeatedFrame]] = []
        """A heap of (time, serial, entry); the serial keeps entries of equal times in order."""
        self._deadline_serial = 0

    def _rules_for(self, rho: int, eta_ns: int) -> tuple[RmcastRules, int]:
        """The rules for messages that carry this ρ and η, and the lifetime of such a message."""
        found = self._rules.get((rho, eta_ns))
        if found is None:
            if len(self._rules) >= RULES_MAX:
                self._rules.pop(next(iter(self._rules)))  # Messages in transit keep a reference to their rules.
            found = self._rules[rho, eta_ns] = self._new_rules(
                replace(self._redundancy, rho=rho, eta=exact_duration_text(eta_ns))
            )
        return found

    def _new_rules(self, redundancy: Redundancy) -> tuple[RmcastRules, int]:
        rules = RmcastRules(self._policy.member, self._members, redundancy, self._zeta)
        return rules, redundancy.message_lifetime_ns(self._members, self._policy.timing.delta_ns)

    def _zeta(self, eta_ns: int) -> int:
        return int(self._random() * eta_ns)

    def change_redundancy(self, redundancy: Redundancy, slot: int) -> None:
        """Use these ρ and η for messages of `slot` and later slots, and ω from the first of these messages on.

        Each message carries its ρ and η, so members that change later, or not at all, understand it.
        """
        self._next_redundancy = redundancy, slot

    def _adopt_redundancy(self, slot: int) -> None:
        if self._next_redundancy is not None and slot >= self._next_redundancy[1]:
            self._redundancy, self._next_redundancy = self._next_redundancy[0], None
            self._rules.clear()
            self._own_rules = self._new_rules(self._redundancy)

    # -- sending ---------------------------------------------------------------------------------------------

    def from_above(self, now: int, frame: Frame) -> None:
        """Number a frame for everyone and broadcast its first copy; send and repeat a frame for one member."""
        if frame.kind is Kind.DATA:
            self._adopt_redundancy(frame.slot)
        rules, lifetime_ns = self._own_rules
        if frame.to != EVERYONE:
            self._repeat(now, _RepeatedFrame(frame, rules.rho if frame.kind in _REPEATED else 0))
            return
        policy = self._policy
        held = _HeldMessage(rules, policy.member)
        held.stream, held.sequence, held.expires_at = None, self._sequence, now + lifetime_ns
        held.multicast = self._multicast = frame.multicast
        held.body = pack_message(frame, rules.rho, rules.eta_ns, self._group)
        self._sequence += 1
        self._broadcast(now, held, held.originate(now))
        if held.phase != DONE:
            self._own_broadcasting += 1
            self._schedule_message(held)

    def _repeat(self, now: int, repeat: _RepeatedFrame) -> None:
        """Send a frame for one member, and schedule its next copy."""
        self.down.append(repeat.frame)
        if repeat.copies_left:
            repeat.copies_left -= 1
            self._own_broadcasting += 1
            self._schedule(now + self._redundancy.eta_ns, repeat)

    def _broadcast(self, now: int, held: _HeldMessage, k: int) -> None:
        """Send copy k of a message to all other members, with this process as the broadcaster."""
        policy = self._policy
        self.down.append(
            Frame(
                Kind.RMCAST,
                policy.member,
                policy.incarnation,
                policy.epoch,
                policy.timing.slot_of(now),
                k,
                0,
                0,
                held.sequence,
                now,
                None,
                held.body,
                EVERYONE,
                held.multicast,
            )
        )

    # -- receiving -------------------------------------------------------------------------------------------

    def from_below(self, now: int, frame: Frame) -> None:
        """Give a copy that has arrived to the automaton of its message, and pass the message up if it is new."""
        if not isinstance(frame, RmcastCopy):
            self.up.append(frame)
            return
        if frame.originator == self._policy.member:
            self.ignored["own message"] += 1  # 002-14
            return
        stream = self._stream_of(frame)
        if stream is None:
            self.ignored["an earlier incarnation"] += 1
        elif stream.received.is_known(frame.first_sequence):
            held = stream.held.get(frame.first_sequence)
            if held is None:
                self.ignored["already finished"] += 1
                return
            held.on_copy(now, frame.number, frame.sender)
            self._after_step(held)
        else:
            self._on_new_message(now, stream, frame)

    def _stream_of(self, copy: RmcastCopy) -> _OriginatorStream | None:
        """The stream of the copy's originator; None if the copy is of an earlier incarnation."""
        incarnation_id = (copy.epoch, copy.originator_incarnation)
        stream = self._streams.get(copy.originator)
        if stream is None or stream.incarnation_id < incarnation_id:
            if stream is not None:
                for held in stream.held.values():
                    held.phase, held.body = DONE, b""
            received = SequenceWindow(copy.first_sequence, may_start_midstream=self._policy.failures)
            stream = self._streams[copy.originator] = _OriginatorStream(copy.originator, incarnation_id, received)
        return stream if stream.incarnation_id == incarnation_id else None

    def _on_new_message(self, now: int, stream: _OriginatorStream, copy: RmcastCopy) -> None:
        """Pass a new message up, and keep it as long as this process may have to broadcast it."""
        rules, lifetime_ns = self._rules_for(copy.rho, copy.eta_ns)
        frame = self._door.open_nested(copy, copy.originator, copy.originator_incarnation)
        if isinstance(frame, Refusal):
            self.ignored[f"contains: {frame}"] += 1
            return
        sequence, received = copy.first_sequence, stream.received
        if sequence > received.highest + 1:
            self._schedule(now + lifetime_ns, stream)
        self._report_lost(now, stream, received.add(sequence, now + lifetime_ns))
        held = _HeldMessage(rules, copy.originator)
        held.on_copy(now, copy.number, copy.sender)
        if held.phase != DONE:
            held.stream, held.sequence, held.body = stream, sequence, copy.body
            held.expires_at, held.multicast = now + lifetime_ns, self._multicast
            stream.held[sequence] = held
            self._schedule_message(held)
        self.up.append(frame)

    def _report_lost(self, now: int, stream: _OriginatorStream, lost: list[int]) -> None:
        """Pass up a report of messages that are lost, if there are any."""
        if not lost:
            return
        self.lost[stream.originator] += len(lost)
        epoch, incarnation = stream.incarnation_id
        self.up.append(
            LostMessages(
                Kind.RMCAST,
                stream.originator,
                incarnation,
                epoch,
                self._policy.timing.slot_of(now),
                0,
                first_sequence=lost[-1],
                count=len(lost),
                reason="did not arrive in any copy",
            )
        )

    # -- deadlines -------------------------------------------------------------------------------------------

    def _schedule(self, at: int, entry: _HeldMessage | _OriginatorStream | _RepeatedFrame) -> None:
        self._deadline_serial += 1
        heappush(self._deadlines, (at, self._deadline_serial, entry))

    def _schedule_message(self, held: _HeldMessage) -> None:
        held.planned_at = min(held.deadline, held.expires_at)
        self._schedule(held.planned_at, held)

    def _after_step(self, held: _HeldMessage) -> None:
        """Release a finished message; schedule an unfinished one again if its deadline is earlier than planned.

        A deadline that has moved to a later time needs no new entry: `wake` finds it at the planned time.
        """
        if held.phase == DONE:
            self._release(held)
        elif held.deadline < held.planned_at:
            self._schedule_message(held)

    def _release(self, held: _HeldMessage) -> None:
        held.phase, held.deadline = DONE, NEVER
        held.body = b""
        if held.stream is not None:
            held.stream.held.pop(held.sequence, None)
        else:
            self._own_broadcasting -= 1

    def wake(self, now: int) -> None:
        """Handle all deadlines that have passed."""
        heap = self._deadlines
        while heap and heap[0][0] <= now:
            _, _, entry = heappop(heap)
            if isinstance(entry, _RepeatedFrame):
                self._own_broadcasting -= 1
                self._repeat(now, entry)
            elif isinstance(entry, _OriginatorStream):
                self._report_lost(now, entry, entry.received.expire(now))
            elif entry.phase != DONE:
                self._on_deadline(now, entry)

    def _on_deadline(self, now: int, held: _HeldMessage) -> None:
        if held.expires_at <= now:
            self._release(held)
        elif held.deadline <= now:
            k = held.wake(now)
            if k != NO_COPY:
                self.copies_taken_over += held.stream is not None
                self._broadcast(now, held, k)
            if held.phase == DONE:
                self._release(held)
            else:
                self._schedule_message(held)
        elif held.planned_at <= now:
            self._schedule_message(held)

    def wake_at(self) -> int | None:
        """When the earliest time-out, take-over or broadcast is due, or None if none is."""
        heap = self._deadlines
        while heap and isinstance(entry := heap[0][2], _HeldMessage) and entry.phase == DONE:
            heappop(heap)
        return heap[0][0] if heap else None

    # -- questions -------------------------------------------------------------------------------------------

    def is_broadcasting(self) -> bool:
        """Whether copies of this process's own messages remain to be sent."""
        return self._own_broadcasting > 0

    def counters(self) -> Mapping[str, int]:
        """How many copies this process broadcast for others, and how many messages were lost or copies ignored."""
        return {"taken_over": self.copies_taken_over, "lost": self.lost.total(), "ignored": self.ignored.total()}
