"""Reliable multicast over a network that loses datagrams (paper 002 §3; errata 002-2, -3, -12, -14, -15).

Whatever is multicast from above travels as a message of its own, ρ+1 times and by whoever has it if its originator
falls silent; each process passes it up once, when its first copy comes, in whatever order messages come. One
`RmcastMessage` per message and process makes the protocol's decisions; here are numbers, buffers and memory.

What is kept of a message is its number, until all before it have come, and while this process may still have to
broadcast it one buffer, the body of the datagram that brought it. A message that has not come when its life is over
(`Redundancy.life_ns` after a later one came) will not come: it is told above as `Lost`, and refused from then on.

What an order sends to one member, such as a message to a leader, has nobody to take it over: it is sent ρ+1 times, η
apart, as it is, and the order ignores it when it has it, as it must ignore what the network duplicates.

Reservation counts this member's own ρ+1 copies (`copies_reservation`), not what it sends for others that crash or
are lost to it: how much that is rests on chance.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import ClassVar

from unisono.errors import InvalidOption
from unisono.model.delays import RandomSource
from unisono.model.ids import EVERYONE, group_key
from unisono.model.policy import FRAME_MIN, Policy
from unisono.model.rates import BandwidthReservation
from unisono.model.redundancy import Redundancy
from unisono.model.seeded_stream import SplitMix64
from unisono.net.layer import LostMessages, SequenceWindow
from unisono.net.rmcast.copies import RMCAST_BYTES, RmcastCopy, pack_message
from unisono.net.rmcast.message import DONE, NEVER, NO_COPY, RmcastMessage, RmcastRules
from unisono.wire.door import Door, Refusal
from unisono.wire.frame import Frame, Kind

_REPEATED = frozenset({Kind.DATA, Kind.JOIN, Kind.STAMP_REQUEST, Kind.NEW_RATE, Kind.RESERVED})
"""What is repeated when it goes to one member; the rest passes, since its sender says it again by itself."""
RULES_MAX = 64
"""How many pairs of ρ and η are remembered."""


class _HeldMessage(RmcastMessage):
    """A message that this process may have to broadcast, with the buffer that it would send."""

    __slots__ = ("body", "expires_at", "multicast", "planned_at", "sequence", "stream")

    body: bytes | memoryview
    expires_at: int
    multicast: bool
    planned_at: int
    sequence: int
    stream: _OriginatorStream | None


@dataclass(slots=True)
class _RepeatedFrame:
    """A frame for one member, and how often it is still to be sent."""

    frame: Frame
    copies_left: int


class _OriginatorStream:
    """What is known of one originator's messages in one incarnation."""

    __slots__ = ("held", "incarnation_id", "originator", "received")

    def __init__(self, originator: int, incarnation_id: tuple[int, int], received: SequenceWindow) -> None:
        self.originator = originator
        self.incarnation_id = incarnation_id
        self.received = received
        self.held: dict[int, _HeldMessage] = {}


def order_policy(policy: Policy) -> Policy:
    """The policy of what is above: its frames leave room for the header that this layer puts before them."""
    least = FRAME_MIN + RMCAST_BYTES
    if policy.max_frame < least:
        raise InvalidOption("max_frame", f"reliable multicast needs at least {least} bytes, not {policy.max_frame}")
    reliable = policy.reliable
    if reliable is not None and policy.rho_most > reliable.rho:
        reliable = replace(reliable, rho=policy.rho_most)
    return replace(policy, max_frame=policy.max_frame - RMCAST_BYTES, reliable=reliable)


def copies_reservation(own: BandwidthReservation, redundancy: Redundancy) -> BandwidthReservation:
    """What a sender's own copies take, if one copy of what it sends takes `own`.

    On average ρ+1 times as much. In one slot: what is sent in it, and for each later copy what was sent in a stretch
    of the same length, which lies in two slots at most: 2ρ+1 bursts.
    """
    return BandwidthReservation(
        own.avg_bytes_per_s * (redundancy.rho + 1), own.burst_bytes_per_slot * (2 * redundancy.rho + 1), own.theta_ns
    )


class Rmcast:
    """The layer."""

    name: ClassVar[str] = "rmcast"
    wraps = frozenset({Kind.DATA, Kind.ORDERED, Kind.FIFO, Kind.CAUSAL, Kind.UNIFORM}) | _REPEATED
    """Of these, what goes to everyone; what goes to one member is repeated."""
    opens = frozenset({Kind.RMCAST})

    def __init__(self, policy: Policy, chance: RandomSource | None = None) -> None:
        """`chance` draws ζ; unless given, a stream of this member's own."""
        if policy.reliable is None:
            raise InvalidOption("reliable", "the layer needs ρ, η and ω")
        self.down: list[Frame] = []
        self.up: list[Frame] = []
        self.ignored: Counter[str] = Counter()
        """Copies that came through the door but were not used, by reason."""
        self.lost: Counter[int] = Counter()
        """By originator, messages that did not come at all."""
        self.copies_taken_over = 0
        """How many copies of others' messages this process has broadcast."""
        self._policy = policy
        self._redundancy = policy.reliable
        self._members = len(policy.view.members)
        self._random = (chance or SplitMix64(group_key(policy.group), policy.member, policy.incarnation)).random
        self._rules: dict[tuple[int, int], tuple[RmcastRules, int]] = {}
        self._own_rules = self._new_rules(policy.reliable)
        self._group = group_key(policy.group)
        self._door = Door(self._group, policy.member, policy.view.members)
        self._next_redundancy: tuple[Redundancy, int] | None = None
        """The redundancy that is agreed on, and from which slot on."""
        self._sequence = 0
        self._own_broadcasting = 0
        """How many messages of this process's own are still being broadcast."""
        self._multicast = False
        self._streams: dict[int, _OriginatorStream] = {}
        self._deadlines: list[tuple[int, int, _HeldMessage | _OriginatorStream | _RepeatedFrame]] = []
        self._deadline_serial = 0

    def _rules_for(self, rho: int, eta_ns: int) -> tuple[RmcastRules, int]:
        """The rules for messages that carry this ρ and η, and how long such a message lives."""
        found = self._rules.get((rho, eta_ns))
        if found is None:
            if len(self._rules) >= RULES_MAX:
                self._rules.pop(next(iter(self._rules)))  # messages that are under way have their own
            found = self._rules[rho, eta_ns] = self._new_rules(replace(self._redundancy, rho=rho, eta_ns=eta_ns))
        return found

    def _new_rules(self, redundancy: Redundancy) -> tuple[RmcastRules, int]:
        rules = RmcastRules(self._policy.member, self._members, redundancy, self._zeta)
        return rules, redundancy.message_lifetime_ns(self._members, self._policy.timing.delta_ns)

    def _zeta(self, eta_ns: int) -> int:
        return int(self._random() * eta_ns)

    def change_redundancy(self, redundancy: Redundancy, slot: int) -> None:
        """Messages of this slot and later ones have these ρ and η, and with the first of them ω is in force too.

        A message carries its own ρ and η, so whoever changes later or not at all understands it.
        """
        self._next_redundancy = redundancy, slot

    def _adopt_redundancy(self, slot: int) -> None:
        if self._next_redundancy is not None and slot >= self._next_redundancy[1]:
            self._redundancy, self._next_redundancy = self._next_redundancy[0], None
            self._rules.clear()
            self._own_rules = self._new_rules(self._redundancy)

    # -- down ------------------------------------------------------------------------------------------------

    def from_above(self, now: int, frame: Frame) -> None:
        """RMCast(m)."""
        if frame.kind is Kind.DATA:
            self._adopt_redundancy(frame.slot)
        rules, life = self._own_rules
        if frame.to != EVERYONE:
            self._repeat(now, _RepeatedFrame(frame, rules.rho if frame.kind in _REPEATED else 0))
            return
        policy = self._policy
        held = _HeldMessage(rules, policy.member)
        held.stream, held.sequence, held.expires_at = None, self._sequence, now + life
        held.multicast = self._multicast = frame.multicast
        held.body = pack_message(frame, rules.rho, rules.eta_ns, self._group)
        self._sequence += 1
        self._broadcast(now, held, held.originate(now))
        if held.phase != DONE:
            self._own_broadcasting += 1
            self._schedule_message(held)

    def _repeat(self, now: int, repeat: _RepeatedFrame) -> None:
        self.down.append(repeat.frame)
        if repeat.copies_left:
            repeat.copies_left -= 1
            self._own_broadcasting += 1
            self._schedule(now + self._redundancy.eta_ns, repeat)

    def _broadcast(self, now: int, held: _HeldMessage, k: int) -> None:
        """broadcast(m): a copy to everyone else, under this process's name."""
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

    # -- up --------------------------------------------------------------------------------------------------

    def from_below(self, now: int, frame: Frame) -> None:
        """receive(m)."""
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
                self.ignored["done with"] += 1
                return
            held.on_copy(now, frame.number, frame.sender)
            self._after_step(held)
        else:
            self._on_new_message(now, stream, frame)

    def _stream_of(self, copy: RmcastCopy) -> _OriginatorStream | None:
        """What is known of the originator's messages; None if it has begun a later life since."""
        life = (copy.epoch, copy.originator_incarnation)
        stream = self._streams.get(copy.originator)
        if stream is None or stream.incarnation_id < life:
            if stream is not None:
                for held in stream.held.values():
                    held.phase, held.body = DONE, b""
            numbers = SequenceWindow(copy.first_sequence, may_start_midstream=self._policy.failures)
            stream = self._streams[copy.originator] = _OriginatorStream(copy.originator, life, numbers)
        return stream if stream.incarnation_id == life else None

    def _on_new_message(self, now: int, stream: _OriginatorStream, copy: RmcastCopy) -> None:
        """A message that has not been here: up with it, and be prepared to broadcast it."""
        rules, life = self._rules_for(copy.rho, copy.eta_ns)
        frame = self._door.open_nested(copy, copy.originator, copy.originator_incarnation)
        if isinstance(frame, Refusal):
            self.ignored[f"contains: {frame}"] += 1
            return
        sequence, numbers = copy.first_sequence, stream.received
        if sequence > numbers.highest + 1:
            self._schedule(now + life, stream)
        self._report_lost(now, stream, numbers.add(sequence, now + life))
        held = _HeldMessage(rules, copy.originator)
        held.on_copy(now, copy.number, copy.sender)
        if held.phase != DONE:
            held.stream, held.sequence, held.body = stream, sequence, copy.body
            held.expires_at, held.multicast = now + life, self._multicast
            stream.held[sequence] = held
            self._schedule_message(held)
        self.up.append(frame)

    def _report_lost(self, now: int, stream: _OriginatorStream, lost: list[int]) -> None:
        """Messages that will not come."""
        if not lost:
            return
        self.lost[stream.originator] += len(lost)
        epoch, life = stream.incarnation_id
        self.up.append(
            LostMessages(
                Kind.RMCAST,
                stream.originator,
                life,
                epoch,
                self._policy.timing.slot_of(now),
                0,
                first_sequence=lost[-1],
                count=len(lost),
                reason="did not come in any copy",
            )
        )

    # -- time ------------------------------------------------------------------------------------------------

    def _schedule(self, at: int, entry: _HeldMessage | _OriginatorStream | _RepeatedFrame) -> None:
        self._deadline_serial += 1
        heappush(self._deadlines, (at, self._deadline_serial, entry))

    def _schedule_message(self, held: _HeldMessage) -> None:
        held.planned_at = min(held.deadline, held.expires_at)
        self._schedule(held.planned_at, held)

    def _after_step(self, held: _HeldMessage) -> None:
        """After a step: let go of what is done; a deadline that has moved back is found when the planned one comes."""
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
        """Time has passed."""
        heap = self._deadlines
        while heap and heap[0][0] <= now:
            _, _, what = heappop(heap)
            if isinstance(what, _RepeatedFrame):
                self._own_broadcasting -= 1
                self._repeat(now, what)
            elif isinstance(what, _OriginatorStream):
                self._report_lost(now, what, what.received.expire(now))
            elif what.phase != DONE:
                self._on_deadline(now, what)

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
        """The earliest time-out, take-over or broadcast."""
        heap = self._deadlines
        while heap and isinstance(what := heap[0][2], _HeldMessage) and what.phase == DONE:
            heappop(heap)
        return heap[0][0] if heap else None

    # -- questions -------------------------------------------------------------------------------------------

    def is_broadcasting(self) -> bool:
        """Whether copies of this process's own messages are still to be broadcast."""
        return self._own_broadcasting > 0

    def held_counts(self) -> tuple[int, int]:
        """How many frames are kept for a broadcast, and how many numbers beyond the contiguous ones."""
        streams = self._streams.values()
        return self._own_broadcasting + sum(len(s.held) for s in streams), sum(len(s.received.seen) for s in streams)
