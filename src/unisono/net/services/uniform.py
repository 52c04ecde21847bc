"""Uniform reliable multicast (paper 002 §2.2, §3.1; erratum 002-3).

If any member delivers a message, even one that crashes right after, then all members that stay up deliver it.

Sending: every frame gets the sender's next number. A member's own frames wait like those of its peers.
Receiving: a message goes up when (n+1)//2 members are known to have it, this member and its sender included. Then it
survives the crash of any (n-1)//2 members. Messages go up in the order in which they came from below, so FIFO order
stays FIFO and causal order stays causal under this layer.

Members report the messages that they have in HAVE messages. While messages arrive, a member sends a HAVE at most once
per slot and repeats it ρ times, η apart. While a message still waits after that, the member keeps sending HAVEs, which
ask for an immediate answer. A HAVE carries the whole state, so a lost one only costs time.

A message that has waited for two lifetimes will not become known to enough members. It is dropped and reported.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from unisono.errors import InvalidOption
from unisono.model.policy import Policy
from unisono.model.units import EVERYONE
from unisono.net.layer import LostMessages, SequenceWindow, Service
from unisono.wire.frame import HEADER_BYTES, LEAVING, Frame, Kind, Nested

# -- the bytes of a HAVE ---------------------------------------------------------------------------------------------

MASK_BITS = 64
LOST_MAX = 32
"""How many lost messages a HAVE can list."""
_HAVE = struct.Struct("!QQ")
_COUNT = struct.Struct("!H")
_LOST = struct.Struct("!HQ")

MESSAGE, HAVE, HAVE_REQUEST = 0, 1, 2
"""The number field in the header of a UNIFORM frame: a message, a HAVE, or a HAVE that asks for one in return."""


@dataclass(frozen=True, slots=True)
class Have:
    """The messages of one sender that a member has.

    It has all messages numbered below `floor` except `lost`, and of the next 64 those whose bit in `mask` is set.
    """

    floor: int
    mask: int
    lost: frozenset[int] = frozenset()

    def holds(self, number: int) -> bool:
        """Whether the member has the message of this number."""
        if number < self.floor:
            return number not in self.lost
        return number - self.floor < MASK_BITS and bool(self.mask >> (number - self.floor) & 1)


def have_bytes(members: int, lost: int) -> int:
    """The size of a HAVE frame for this many members and lost messages."""
    return HEADER_BYTES + members * _HAVE.size + _COUNT.size + lost * _LOST.size


def encode_haves(haves: Sequence[Have]) -> bytes:
    """The body of a HAVE frame: one entry per member, in member order."""
    lost = [(at, number) for at, have in enumerate(haves) for number in sorted(have.lost)]
    body = b"".join(_HAVE.pack(have.floor, have.mask) for have in haves)
    return body + _COUNT.pack(len(lost)) + b"".join(_LOST.pack(*one) for one in lost)


def decode_haves(body: bytes, members: int) -> list[Have] | None:
    """The entries of a HAVE frame, one per member; None if the bytes are invalid."""
    at = members * _HAVE.size
    if len(body) < at + _COUNT.size:
        return None
    (count,) = _COUNT.unpack_from(body, at)
    if len(body) != at + _COUNT.size + count * _LOST.size or count > LOST_MAX:
        return None
    lost: dict[int, set[int]] = {}
    for position, number in _LOST.iter_unpack(body[at + _COUNT.size :]):
        if position >= members:
            return None
        lost.setdefault(position, set()).add(number)
    entries = enumerate(_HAVE.iter_unpack(body[:at]))
    return [Have(floor, mask, frozenset(lost.get(position, ()))) for position, (floor, mask) in entries]


# -- the layer -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _WaitingMessage:
    """A message that waits here, and the members known to have it."""

    sender: int
    number: int
    frame: Frame
    waiting_since: int
    holders: set[int]


class UniformDelivery(Service):
    """The layer that delivers a message only when enough members are known to have it."""

    name: ClassVar[str] = "uniform"
    opens = frozenset({Kind.UNIFORM})
    kind = Kind.UNIFORM

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self._members = policy.view.members
        self._peers = [member for member in self._members if member != policy.member]
        self._received = {member: SequenceWindow() for member in self._members}
        self._lost: deque[tuple[int, int, int]] = deque()
        """(time, member, number) of recently lost messages: a HAVE lists them as lost while a peer may still wait."""
        least = have_bytes(len(self._members), LOST_MAX)
        if least > policy.max_frame:
            missing = least - policy.max_frame
            delivery = f"uniform delivery to {len(self._members)} members"
            raise InvalidOption(
                "max_frame", f"{delivery} needs {missing} more bytes per frame; raise max_frame by {missing}"
            )
        self._incarnations: dict[int, tuple[int, int]] = {}
        self._waiting: deque[_WaitingMessage] = deque()
        self._last_haves: dict[int, list[Have]] = {}
        """The last HAVE of each member."""
        self._departed: set[int] = set()
        self._holders_needed = (len(self._members) + 1) // 2
        self._send_have_at: int | None = None
        self._have_sent_at = 0
        self._repeats_left = 0
        self.dropped_messages = 0
        """The number of messages dropped because too few members were known to have them."""

    # -- messages --------------------------------------------------------------------------------------------

    def from_above(self, now: int, frame: Frame) -> None:
        """Number a frame for everyone, and let it wait here too; a frame for one member passes unchanged."""
        if frame.to != EVERYONE:
            self.down.append(frame)
            return
        number = self._sequence
        self._send_numbered(now, frame)
        self._add_waiting(now, self._policy.member, number, frame)

    def from_below(self, now: int, frame: Frame) -> None:
        """Handle a message, or a HAVE in which a peer reports the messages that it has."""
        if not isinstance(frame, Nested):
            self.up.append(frame)
        elif frame.number == MESSAGE:
            self._on_message(now, frame)
        else:
            haves = decode_haves(bytes(frame.body), len(self._members))
            if haves is None or not self._is_current_incarnation(frame):
                self.ignored["invalid HAVE, or an earlier incarnation"] += 1
                return
            self._last_haves[frame.sender] = haves
            for waiting in self._waiting:
                if haves[self._members.index(waiting.sender)].holds(waiting.number):
                    waiting.holders.add(frame.sender)
            self._release(now)
            if frame.number == HAVE_REQUEST:
                self._send_have(now, HAVE, frame.sender)

    def _on_message(self, now: int, frame: Nested) -> None:
        sender, number = frame.sender, frame.first_sequence
        if not self._is_current_incarnation(frame) or self._received[sender].is_known(number):
            self.ignored["duplicate, or an earlier incarnation"] += 1
            return
        inner = self._open(frame)
        if inner is not None:
            self._add_waiting(now, sender, number, inner)

    def _is_current_incarnation(self, frame: Frame) -> bool:
        """Whether a frame is of its sender's current incarnation; the first frame of a later one resets the state."""
        incarnation_id, sender = (frame.epoch, frame.incarnation), frame.sender
        known = self._incarnations.get(sender)
        if known is None or known < incarnation_id:
            self._incarnations[sender] = incarnation_id
            self._received[sender] = SequenceWindow()
            self._last_haves.pop(sender, None)
            self._waiting = deque(waiting for waiting in self._waiting if waiting.sender != sender)
        return self._incarnations[sender] == incarnation_id

    def _add_waiting(self, now: int, sender: int, number: int, frame: Frame) -> None:
        position = self._members.index(sender)
        self._record_lost(now, sender, self._received[sender].add(number, now + self._message_lifetime_ns))
        holders = {peer for peer, haves in self._last_haves.items() if haves[position].holds(number)}
        holders |= {self._policy.member, sender}
        self._waiting.append(_WaitingMessage(sender, number, frame, now, holders))
        self._repeats_left = self._redundancy.rho
        soon = max(now, self._have_sent_at + self._policy.timing.theta_ns)
        self._send_have_at = soon if self._send_have_at is None else min(self._send_have_at, soon)
        self._release(now)

    def _release(self, now: int) -> None:
        """Pass up the first messages that wait, while enough members have them; drop those that waited too long."""
        waiting = self._waiting
        while waiting and (
            len(waiting[0].holders - self._departed) >= self._holders_needed or self._has_expired(now, waiting[0])
        ):
            first = waiting.popleft()
            # A LEAVING frame goes up in any case: crashed members must not hold up a departure.
            if len(first.holders - self._departed) >= self._holders_needed or first.frame.flags & LEAVING:
                self._pass_up(first)
            else:
                self._drop(now, first)

    def _pass_up(self, message: _WaitingMessage) -> None:
        self.up.append(message.frame)
        if message.frame.flags & LEAVING:
            # A departed member no longer counts as a holder, nor as a member.
            self._departed.add(message.sender)
            self._holders_needed = (len(self._members) - len(self._departed) + 1) // 2

    def _has_expired(self, now: int, message: _WaitingMessage) -> bool:
        return message.waiting_since + 2 * self._message_lifetime_ns <= now

    def _drop(self, now: int, message: _WaitingMessage) -> None:
        self.dropped_messages += 1
        epoch, incarnation = self._incarnations.get(message.sender, (self._policy.epoch, self._policy.incarnation))
        self.up.append(
            LostMessages(
                self.kind,
                message.sender,
                incarnation,
                epoch,
                self._policy.timing.slot_of(now),
                0,
                first_sequence=message.number,
                count=1,
                reason=f"was not delivered: fewer than {self._holders_needed} members are known to have it",
            )
        )

    # -- HAVE ------------------------------------------------------------------------------------------------

    def _send_have(self, now: int, message_type: int, *to: int) -> None:
        if len(self._lost) > LOST_MAX:
            return  # A HAVE cannot list all lost messages, so send none until the oldest ones have expired.
        body = encode_haves([self._have_of(member) for member in self._members])
        policy, slot = self._policy, self._policy.timing.slot_of(now)
        for peer in to:
            self.down.append(
                Frame(
                    self.kind,
                    policy.member,
                    policy.incarnation,
                    policy.epoch,
                    slot,
                    message_type,
                    sent_ns=now,
                    body=body,
                    to=peer,
                )
            )

    def _have_of(self, member: int) -> Have:
        numbers = self._received[member]
        mask = sum(1 << number - numbers.floor for number in numbers.seen if number - numbers.floor < MASK_BITS)
        return Have(numbers.floor, mask, frozenset(number for _, sender, number in self._lost if sender == member))

    def _record_lost(self, now: int, member: int, numbers: list[int]) -> None:
        while self._lost and self._lost[0][0] + 2 * self._message_lifetime_ns <= now:
            self._lost.popleft()
        self._lost.extend((now, member, number) for number in numbers)

    def wake(self, now: int) -> None:
        """Record lost messages, drop expired ones, and send the HAVE that is due."""
        for member, numbers in self._received.items():
            self._record_lost(now, member, numbers.expire(now))
        self._release(now)
        if self._send_have_at is None or now < self._send_have_at:
            return
        self._send_have(now, HAVE if self._repeats_left else HAVE_REQUEST, *self._peers)
        self._have_sent_at = now
        if self._repeats_left:
            self._repeats_left -= 1
        self._send_have_at = now + self._redundancy.eta_ns if self._repeats_left or self._waiting else None

    def wake_at(self) -> int | None:
        """The earliest time at which a HAVE is due or a message expires or counts as lost; None if there is none."""
        times = [] if self._send_have_at is None else [self._send_have_at]
        if self._waiting:
            times.append(self._waiting[0].waiting_since + 2 * self._message_lifetime_ns)
        times += [due for numbers in self._received.values() if (due := numbers.next_loss_at()) is not None]
        return min(times, default=None)

    def counters(self) -> Mapping[str, int]:
        """How many frames were not used, and how many messages were dropped because too few members had them."""
        return {**super().counters(), "dropped": self.dropped_messages}
