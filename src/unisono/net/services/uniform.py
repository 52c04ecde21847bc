"""Uniform reliable multicast (paper 002 §2.2, §3.1; erratum 002-3): what any member delivers, all that stay up deliver.

A message is passed up when (n+1)//2 members are known to have it, its sender and this one included: then it outlives
the crash of any (n-1)//2 members, whoever delivered it. Members tell each other what they have (HAVE): at most once in
a slot while messages come, each time ρ more times, η apart, and while a message waits here, with a question in it that
is answered at once. A HAVE is the whole state, so a lost one costs time only.

Messages are passed up in the order in which they came from below. So under this layer FIFO stays FIFO and causal
order stays causal. What has waited for two lives of a message is not known to enough members and will not be: it is
dropped, and told. One's own messages come up like everybody's.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import ClassVar

from unisono.errors import InvalidOption
from unisono.model.ids import EVERYONE
from unisono.model.policy import Policy
from unisono.net.layer import LostMessages
from unisono.net.services.sequence_window import SequenceWindow
from unisono.net.services.service import Service
from unisono.net.services.uniform_messages import (
    HAVE,
    HAVE_REQUEST,
    LOST_MAX,
    MASK_BITS,
    MESSAGE,
    Have,
    decode_haves,
    encode_haves,
    have_bytes,
)
from unisono.wire.frame import LEAVING, Frame, Kind, Nested


@dataclass(slots=True)
class _WaitingMessage:
    """A message that too few are known to have, and who is."""

    sender: int
    number: int
    frame: Frame
    waiting_since: int
    holders: set[int]


class UniformDelivery(Service):
    """The layer."""

    name: ClassVar[str] = "uniform"
    opens = frozenset({Kind.UNIFORM})
    kind = Kind.UNIFORM

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self._members = policy.view.members
        self._peers = [member for member in self._members if member != policy.member]
        self._received = {member: SequenceWindow() for member in self._members}
        self._lost: deque[tuple[int, int, int]] = deque()
        """(when, member, number): messages that did not come here, which a HAVE must not claim while any may wait."""
        room = have_bytes(len(self._members), LOST_MAX)
        if room > policy.max_frame:
            raise InvalidOption("max_frame", f"uniform delivery to {len(self._members)} members needs {room} bytes")
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
        """How many messages were not known to enough members."""

    # -- messages --------------------------------------------------------------------------------------------

    def from_above(self, now: int, frame: Frame) -> None:
        """One's own message waits here like everybody's."""
        number = self._sequence
        super().from_above(now, frame)
        if frame.to == EVERYONE:
            self._add_waiting(now, self._policy.member, number, frame)

    def from_below(self, now: int, frame: Frame) -> None:
        """A message, or a HAVE."""
        if not isinstance(frame, Nested):
            self.up.append(frame)
        elif frame.number == MESSAGE:
            self._on_message(now, frame)
        else:
            haves = decode_haves(bytes(frame.body), len(self._members))
            if haves is None or not self._is_current_incarnation(frame):
                self.ignored["no HAVE, or an earlier incarnation"] += 1
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
        """Whether a frame is of its sender's present life; a later one than was known begins anew."""
        life, sender = (frame.epoch, frame.incarnation), frame.sender
        known = self._incarnations.get(sender)
        if known is None or known < life:
            self._incarnations[sender] = life
            self._received[sender] = SequenceWindow()
            self._last_haves.pop(sender, None)
            self._waiting = deque(waiting for waiting in self._waiting if waiting.sender != sender)
        return self._incarnations[sender] == life

    def _add_waiting(self, now: int, sender: int, number: int, frame: Frame) -> None:
        me, at = self._policy.member, self._members.index(sender)
        self._record_lost(now, sender, self._received[sender].add(number, now + self._message_lifetime_ns))
        holders = {me, sender} | {peer for peer, haves in self._last_haves.items() if haves[at].holds(number)}
        self._waiting.append(_WaitingMessage(sender, number, frame, now, holders))
        self._repeats_left = self._redundancy.rho
        soon = max(now, self._have_sent_at + self._policy.timing.theta_ns)
        self._send_have_at = soon if self._send_have_at is None else min(self._send_have_at, soon)
        self._release(now)

    def _release(self, now: int) -> None:
        waiting = self._waiting
        while waiting and (
            len(waiting[0].holders - self._departed) >= self._holders_needed or self._has_expired(now, waiting[0])
        ):
            first = waiting.popleft()
            # Nobody acts on a farewell, so it need not be certain; who leaves is not to be held up by the dead.
            if len(first.holders - self._departed) >= self._holders_needed or first.frame.flags & LEAVING:
                self._pass_up(first)
            else:
                self._drop(now, first)

    def _pass_up(self, message: _WaitingMessage) -> None:
        self.up.append(message.frame)
        if message.frame.flags & LEAVING:
            # Who has left holds nothing any more, and is no longer counted.
            self._departed.add(message.sender)
            self._holders_needed = (len(self._members) - len(self._departed) + 1) // 2

    def _has_expired(self, now: int, message: _WaitingMessage) -> bool:
        return message.waiting_since + 2 * self._message_lifetime_ns <= now

    def _drop(self, now: int, message: _WaitingMessage) -> None:
        self.dropped_messages += 1
        epoch, life = self._incarnations.get(message.sender, (self._policy.epoch, self._policy.incarnation))
        slot = self._policy.timing.slot_of(now)
        why = f"was not delivered: fewer than {self._holders_needed} members are known to have it"
        self.up.append(
            LostMessages(
                self.kind, message.sender, life, epoch, slot, 0, first_sequence=message.number, count=1, reason=why
            )
        )

    # -- HAVE ------------------------------------------------------------------------------------------------

    def _send_have(self, now: int, message_type: int, *to: int) -> None:
        if len(self._lost) > LOST_MAX:
            return  # so much is missing here that it cannot all be said: no claim is made until it is past
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
        return Have(numbers.floor, mask, frozenset(number for _, who, number in self._lost if who == member))

    def _record_lost(self, now: int, member: int, numbers: list[int]) -> None:
        while self._lost and self._lost[0][0] + 2 * self._message_lifetime_ns <= now:
            self._lost.popleft()
        self._lost.extend((now, member, number) for number in numbers)

    def wake(self, now: int) -> None:
        """Time has passed: say what is here, and stop waiting for what has not come."""
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
        """The next HAVE, or the end of a wait."""
        times = [] if self._send_have_at is None else [self._send_have_at]
        if self._waiting:
            times.append(self._waiting[0].waiting_since + 2 * self._message_lifetime_ns)
        times += [due for numbers in self._received.values() if (due := numbers.next_loss_at()) is not None]
        return min(times, default=None)
