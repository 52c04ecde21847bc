"""Messages on their way into frames and out of them: `Pacer`, `Packer`, `Rqueue`, and the bundles of agreed logs.

The pacer holds a sender to its declared rate (paper 000 §2.1): messages per slot, payload per slot, and the average
over k slots (the averaging slots). The paper assumes that applications keep their rates; here further messages wait at
the application.

The packer packs messages into frames. Full frames leave at once; the rest of a slot waits for its end-of-slot mark.
Holding messages back costs no latency, since a slot is delivered after its end (compare erratum 001-7). It saves the
paper's dummy in every slot that has messages. The cost in Python is per frame and per call, not per message.

Rqueue(j) holds the received frames of sender j until their slot is delivered (paper 000 figure 6). Frames are keyed by
slot and by number within the slot, so datagrams may overtake each other.

A bundle holds messages that a member forwards to the leader of an agreed log; the values of that log are bundles.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import NamedTuple

from unisono.errors import InvalidOption, InvariantViolated, MessageTooLarge
from unisono.model.policy import Policy
from unisono.model.units import NS_PER_S, BandwidthReservation, Rate, Reserver
from unisono.net.fec.layer import net_max_burst
from unisono.net.rmcast.copies import RMCAST_BYTES
from unisono.net.rmcast.layer import copies_reservation
from unisono.wire.codec import SEQUENCE_LIMIT, Bytes, Items, Spec, Unreadable, count, u16, u32, u64
from unisono.wire.frame import (
    END_OF_SLOT,
    FIRST_FRAGMENT,
    FRAGMENT,
    FRAME_NUMBER_MAX,
    HEADER_BYTES,
    MORE_FRAGMENTS,
    PACKED_HEADER_BYTES,
    SIZE_ENTRY_BYTES,
    UDP_IP_BYTES,
    Frame,
    Kind,
    OutgoingMessages,
    read_packed_messages,
)


class Pacer:
    """Counts what one sender submits in each slot, and says how much more its declared rate allows."""

    def __init__(self, rate: Rate, theta_ns: int, max_message: int) -> None:
        self.theta_ns = theta_ns
        self._max_message = max_message
        self._past_slots: deque[tuple[int, int]] = deque()
        self._past_messages = 0
        self._slot = 0
        self.slot_messages = 0
        self.slot_bytes = 0
        self._set_rate(rate)

    def _set_rate(self, rate: Rate) -> None:
        self.rate = rate
        self.burst_bytes = rate.bytes_per_slot(self._max_message)
        self._averaging_slots = rate.averaging_slots(self.theta_ns)
        self._allowance = rate.allowance(self.theta_ns)

    def open_slot(self, slot: int, rate: Rate | None = None) -> None:
        """Start a slot, with a new rate if one is given."""
        if self.slot_messages:
            self._past_slots.append((self._slot, self.slot_messages))
            self._past_messages += self.slot_messages
        if rate is not None:
            self._set_rate(rate)
        self._slot, self.slot_messages, self.slot_bytes = slot, 0, 0
        while self._past_slots and self._past_slots[0][0] <= slot - self._averaging_slots:
            self._past_messages -= self._past_slots.popleft()[1]

    def change_slot(self, slot: int, theta_ns: int) -> None:
        """Change the slot length from `slot` on. The next slot to open must be `slot`.

        The pacer renumbers the earlier slots in units of the new length, so that the average still counts their
        messages for about the same time.
        """
        old_theta_ns, self.theta_ns = self.theta_ns, theta_ns
        if self.slot_messages:
            self._past_slots.append((self._slot, self.slot_messages))
            self._past_messages += self.slot_messages
            self.slot_messages = 0
        self._past_slots = deque(
            (slot - (slot - past_slot) * old_theta_ns // theta_ns, count) for past_slot, count in self._past_slots
        )
        self._set_rate(self.rate)

    def messages_left(self) -> int:
        """How many more messages this slot can take."""
        return max(0, min(self.rate.burst, self._allowance - self._past_messages) - self.slot_messages)

    def bytes_left(self) -> int:
        """How many more bytes of payload this slot can take."""
        return self.burst_bytes - self.slot_bytes

    def record_sent(self, messages: int, payload_bytes: int) -> None:
        """Count messages and payload bytes that were accepted in this slot."""
        self.slot_messages += messages
        self.slot_bytes += payload_bytes

    def check(self, member: int) -> None:
        """Raise InvariantViolated if this slot has more messages or bytes than the burst that this member declared."""
        if self.slot_messages > self.rate.burst or self.slot_bytes > self.burst_bytes:
            text = f"this member accepted more messages or bytes in slot {self._slot} than it reserved"
            expected = f"at most {self.rate.burst} messages and {self.burst_bytes} bytes"
            found = f"{self.slot_messages} messages and {self.slot_bytes} bytes"
            raise InvariantViolated("reservation", member, text, expected, found)

    def is_full(self) -> bool:
        """Whether this slot can take no more messages, not even an empty one."""
        return self.messages_left() == 0


@dataclass(slots=True)
class FramePayload:
    """The content of one frame: packed messages, or a body such as one fragment of a message."""

    packed_messages: OutgoingMessages | None = None
    body: bytes | memoryview = b""
    flags: int = 0
    """The header flags that say what the body is."""
    messages_completed: int = 0
    """The number of messages that end in this frame; the sender's sequence number grows by this number."""
    message: object = None
    """The control message that the body encodes; None if the body holds no control message."""

    def data_frame(
        self,
        policy: Policy,
        now: int,
        slot: int,
        number: int,
        flags: int,
        *,
        burst: int,
        sequence: int,
        multicast: bool = False,
    ) -> Frame:
        """The DATA frame of this member that carries the payload. `flags` are added to those of the payload."""
        return Frame(
            Kind.DATA,
            policy.member,
            policy.incarnation,
            policy.epoch,
            slot,
            number,
            flags | self.flags,
            burst,
            sequence,
            now,
            self.packed_messages,
            self.body,
            multicast=multicast,
            message=self.message,
        )

    def encoded(self) -> bytes:
        """The payload as one bytes object."""
        return bytes(self.body) if self.packed_messages is None else b"".join(self.packed_messages.parts())


NO_MESSAGES = FramePayload()
"""The payload of a frame that only carries flags, such as the paper's dummy."""


class Packer:
    """Packs messages into frames of at most `max_frame` bytes, and holds back those that do not fill a frame yet."""

    def __init__(self, max_frame: int) -> None:
        self._capacity_bytes = max_frame - HEADER_BYTES - PACKED_HEADER_BYTES
        self._fragment_bytes = max_frame - HEADER_BYTES
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._held_size = -1
        """The size of all held messages if they have the same size, else -1."""

    def add(self, messages: Sequence[bytes], sizes: list[int]) -> list[FramePayload]:
        """Add messages; returns the payloads of the frames that are now full."""
        if sizes.count(sizes[0]) == len(sizes):
            return self._add_uniform(messages, sizes[0])
        return self._add_mixed(messages, sizes)

    def pack_all(self, messages: Sequence[bytes], sizes: list[int]) -> list[FramePayload]:
        """The payloads of frames that carry all these messages; none is held back."""
        payloads = self.add(messages, sizes)
        rest = self.flush()
        return payloads if rest is None else [*payloads, rest]

    def _add_uniform(self, messages: Sequence[bytes], size: int) -> list[FramePayload]:
        cost = size + SIZE_ENTRY_BYTES
        if cost > self._capacity_bytes:
            return [payload for message in messages for payload in self._fragments(message)]
        full: list[FramePayload] = []
        done, count = 0, len(messages)
        while done < count:
            fits = (self._capacity_bytes - self._held_bytes) // cost
            if fits == 0:
                full.append(self._release())
                continue
            part = messages[done : done + fits]
            self._hold(part, size, cost * len(part))
            done += len(part)
        return full

    def _add_mixed(self, messages: Sequence[bytes], sizes: list[int]) -> list[FramePayload]:
        full: list[FramePayload] = []
        ends = list(accumulate(size + SIZE_ENTRY_BYTES for size in sizes))
        done, base, count = 0, 0, len(messages)
        while done < count:
            fit = bisect_right(ends, base + self._capacity_bytes - self._held_bytes, lo=done)
            if fit > done:
                part = messages[done:fit]
                self._hold(part, sizes[done] if len(part) == 1 else -1, ends[fit - 1] - base)
                done, base = fit, ends[fit - 1]
            elif sizes[done] + SIZE_ENTRY_BYTES > self._capacity_bytes:
                full.extend(self._fragments(messages[done]))
                done, base = done + 1, ends[done]
            else:
                full.append(self._release())
        return full

    def _hold(self, part: Sequence[bytes], size: int, cost: int) -> None:
        self._held_size = size if not self._held or self._held_size == size else -1
        self._held.extend(part)
        self._held_bytes += cost

    def _release(self) -> FramePayload:
        packed = OutgoingMessages(self._held, self._held_size >= 0)
        payload = FramePayload(packed, messages_completed=len(self._held))
        self._held, self._held_bytes, self._held_size = [], 0, -1
        return payload

    def _fragments(self, message: bytes) -> list[FramePayload]:
        payloads = [self._release()] if self._held else []
        view, step = memoryview(message), self._fragment_bytes
        for at in range(0, len(view), step):
            is_last = at + step >= len(view)
            flags = FRAGMENT | (FIRST_FRAGMENT if at == 0 else 0) | (0 if is_last else MORE_FRAGMENTS)
            payloads.append(FramePayload(None, view[at : at + step], flags, int(is_last)))
        return payloads

    def held(self) -> tuple[int, int]:
        """The number of messages held back, and their payload bytes."""
        return len(self._held), self._held_bytes - SIZE_ENTRY_BYTES * len(self._held)

    def flush(self) -> FramePayload | None:
        """The messages held back, for the last frame of the slot; None if there are none."""
        return self._release() if self._held else None


def checked_sizes(messages: Sequence[bytes], max_message: int) -> list[int]:
    """The sizes of the messages; raises MessageTooLarge if one is larger than `max_message`."""
    sizes = list(map(len, messages))
    largest = max(sizes, default=0)
    if largest > max_message:
        raise MessageTooLarge(largest, max_message)
    return sizes


def count_fitting_messages(pacer: Pacer, sizes: list[int]) -> int:
    """How many messages of these sizes, starting with the first, still fit into the current slot."""
    count = min(len(sizes), pacer.messages_left())
    if sum(sizes[:count]) <= pacer.bytes_left():
        return count
    return bisect_right(list(accumulate(sizes[:count])), pacer.bytes_left())


def frames_per_slot(rate: Rate, max_message: int, max_frame: int) -> int:
    """The most frames that a slot of this rate needs, including its end-of-slot mark."""
    capacity = max_frame - HEADER_BYTES - PACKED_HEADER_BYTES
    payload = rate.bytes_per_slot(max_message) + SIZE_ENTRY_BYTES * rate.burst
    fragmented = max_message + SIZE_ENTRY_BYTES > capacity
    # A frame is released because the next message does not fit, so two neighbours carry more than one capacity.
    # A fragmented message is larger than one capacity, and leaves a part-filled frame before it and one at its end.
    by_bytes = (3 if fragmented else 2) * -(-payload // capacity) + 1
    by_messages = rate.burst + (-(-payload // capacity) if fragmented else 0)
    return min(by_bytes, by_messages) + 1


def reservation(policy: Policy, rate: Rate, theta_ns: int | None = None) -> BandwidthReservation:
    """The bandwidth that a member reserves for a declared rate, in bytes (paper 000, Theorem 3, counted in frames).

    The average grows by one header per slot, the 1/Θ of the theorem. `theta_ns` is the slot length; by default it is
    the one that the policy declares. Bytes may wait in the sender's queue for half of Δ; the network has the rest.
    """
    theta_ns, largest = theta_ns or policy.timing.theta_ns, policy.max_message
    frames = frames_per_slot(rate, largest, policy.max_frame)
    if frames > FRAME_NUMBER_MAX:
        raise InvalidOption(
            "rate.burst",
            f"a slot would need {frames:,} frames, but at most {FRAME_NUMBER_MAX:,} are possible; lower the burst",
        )
    header = HEADER_BYTES + PACKED_HEADER_BYTES + UDP_IP_BYTES + (RMCAST_BYTES if policy.reliable else 0)
    burst = rate.bytes_per_slot(largest) + SIZE_ENTRY_BYTES * rate.burst + frames * header
    if policy.fec is not None:
        # Each frame travels in a share, and a block's redundant shares are as long as its longest frame.
        redundant = net_max_burst(frames, *policy.fec) - frames
        burst += frames * HEADER_BYTES + redundant * (policy.max_frame + HEADER_BYTES + UDP_IP_BYTES)
        return BandwidthReservation(burst * NS_PER_S // theta_ns + 1, burst, theta_ns)
    fragments = -(-largest // (policy.max_frame - HEADER_BYTES))
    average = rate.avg * (largest + SIZE_ENTRY_BYTES + fragments * header) + header * NS_PER_S / theta_ns
    peak = burst * NS_PER_S / theta_ns
    full_slots = -(-rate.allowance(theta_ns) // rate.burst)
    once = BandwidthReservation(
        int(min(average, peak)) + 1,
        burst,
        theta_ns,
        run_bytes=full_slots * burst,
        run_ns=(full_slots - 1) * theta_ns,
        queue_ns=policy.timing.delta_ns // 2,
    )
    return once if policy.reliable is None else copies_reservation(once, policy.reliable)


class ReservedPacer(Pacer):
    """A pacer that also reserves bandwidth for its rate.

    A new rate is in force from the next slot on. Until then the reservation covers the old and the new rate.
    """

    def __init__(
        self, policy: Policy, reserver: Reserver, reservation_of: Callable[[Rate], BandwidthReservation]
    ) -> None:
        super().__init__(policy.rate, policy.timing.theta_ns, policy.max_message)
        self._policy, self._reserver, self._reservation_of = policy, reserver, reservation_of
        self.next_rate: Rate | None = None
        """The rate that is in force from the next slot on; None if the rate does not change."""
        self.reserve()

    def reserve(self) -> None:
        """Reserve the bandwidth that the present rate needs."""
        self._reserver.reserve(self._reservation_of(self.rate))

    def change_rate(self, rate: Rate) -> None:
        """Use a new rate from the next slot on.

        Until then, reserve enough for the larger of the old and the new rate.
        """
        self._policy.check_rate(rate)
        new, old = self._reservation_of(rate), self._reservation_of(self.rate)
        self._reserver.reserve(
            replace(
                new,
                avg_bytes_per_s=max(new.avg_bytes_per_s, old.avg_bytes_per_s),
                burst_bytes_per_slot=max(new.burst_bytes_per_slot, old.burst_bytes_per_slot),
                run_bytes=max(new.run_bytes, old.run_bytes),
                run_ns=min(new.run_ns, old.run_ns),
            )
        )
        self.next_rate = rate

    def enter_slot(self, slot: int) -> None:
        """Start a slot, with the new rate if there is one."""
        self.open_slot(slot, self.next_rate)
        if self.next_rate is not None:
            self.reserve()
            self.next_rate = None


@dataclass(slots=True)
class SlotFrames:
    """The frames that one sender sent in one slot and that have arrived here."""

    waiting: dict[int, Frame] = field(default_factory=dict)
    next_number: int = 0
    last_number: int | None = None
    fragments: list[bytes | memoryview] = field(default_factory=list)

    def ended(self) -> bool:
        """Whether every frame of the slot has been delivered."""
        return self.last_number is not None and self.next_number > self.last_number

    def missing(self) -> list[int]:
        """The numbers of the frames that have not arrived, up to the last known frame of the slot."""
        top = self.last_number if self.last_number is not None else max(self.waiting, default=-1)
        return [n for n in range(self.next_number, top + 1) if n not in self.waiting]


class Rqueue:
    """The received and undelivered frames of one sender, by slot (the Rqueue of paper 000)."""

    def __init__(self) -> None:
        self.slots: dict[int, SlotFrames] = {}

    def add(self, frame: Frame) -> bool:
        """Store a frame. Returns False if the frame is a duplicate or contradicts the end-of-slot mark of its slot."""
        frames = self.slots.get(frame.slot)
        if frames is None:
            frames = self.slots[frame.slot] = SlotFrames()
        number = frame.number
        if number < frames.next_number or number in frames.waiting:
            return False
        if frames.last_number is not None and (number > frames.last_number or frame.flags & END_OF_SLOT):
            return False
        if frame.flags & END_OF_SLOT:
            if frames.waiting and max(frames.waiting) > number:
                return False
            frames.last_number = number
        frames.waiting[number] = frame
        return True

    def forget_before(self, slot: int) -> None:
        """Drop the frames of slots before `slot`."""
        for old in [s for s in self.slots if s < slot]:
            del self.slots[old]


_BUNDLE = struct.Struct("!HIQQB")
_SLOT = struct.Struct("!Q")
_LENGTH = struct.Struct("!I")
BUNDLE_BYTES = _BUNDLE.size
"""The number of bytes of an encoded bundle before its body."""
LENGTH_BYTES = _LENGTH.size
BUNDLE_OVERHEAD_BYTES = _SLOT.size + LENGTH_BYTES + BUNDLE_BYTES
"""The number of bytes before the body of the bundle, in a log value that holds a single bundle."""
_FLAGS = FRAGMENT | MORE_FRAGMENTS | FIRST_FRAGMENT


class Bundle(NamedTuple):  # created for each message of an agreed log, and cheaper to create than a dataclass
    """Bundle number `serial` of a sender. The frame flags say if it holds packed messages or a fragment."""

    sender: int
    incarnation: int
    serial: int
    first_sequence: int
    flags: int
    body: bytes


def encode_bundle(bundle: Bundle) -> bytes:
    """Encode a bundle as bytes, for its way to the leader and in a log value."""
    return _BUNDLE.pack(*bundle[:5]) + bundle.body


def decode_bundle(data: bytes) -> Bundle:
    """Decode a bundle; raises Unreadable if it is malformed."""
    return read_bundle(data, 0, len(data))


def read_bundle(data: bytes, at: int, end: int) -> Bundle:
    """Read the bundle in data[at:end]; raises Unreadable if it is malformed."""
    start = at + BUNDLE_BYTES
    if not start <= end <= len(data):
        raise Unreadable(f"a bundle of {end - at} bytes at offset {at} does not fit into {len(data)} bytes")
    sender, incarnation, serial, sequence, flags = _BUNDLE.unpack_from(data, at)
    body = data[start:end]
    if serial >= SEQUENCE_LIMIT or sequence >= SEQUENCE_LIMIT or flags & ~_FLAGS:
        raise Unreadable(f"a bundle has a number of 2**63 or more, or unknown flags: {serial=}, {sequence=}, {flags=}")
    if not (body if flags & FRAGMENT else not flags and read_packed_messages(body, 0, len(body)) is not None):
        raise Unreadable(f"a bundle of {len(body)} bytes with {flags=} holds neither a fragment nor packed messages")
    return Bundle(sender, incarnation, serial, sequence, flags, body)


def encode_log_value(slot: int, bundles: Sequence[bytes]) -> bytes:
    """Encode a log value: the slot in which it was proposed, and its bundles."""
    parts = [_SLOT.pack(slot)]
    for bundle in bundles:
        parts += (_LENGTH.pack(len(bundle)), bundle)
    return b"".join(parts)


def decode_log_value(value: bytes) -> tuple[int, list[Bundle]]:
    """Decode a log value into its slot and bundles; raises Unreadable if it is malformed."""
    if len(value) < _SLOT.size:
        raise Unreadable(f"a log value of {len(value)} bytes is too short for its slot field of {_SLOT.size} bytes")
    (slot,) = _SLOT.unpack_from(value)
    if slot >= SEQUENCE_LIMIT:
        raise Unreadable(f"slot {slot} of a log value is too large; it must be less than 2**63")
    bundles: list[Bundle] = []
    at = _SLOT.size
    while at < len(value):
        start = at + LENGTH_BYTES
        if start > len(value):
            raise Unreadable(f"a log value of {len(value)} bytes ends in the length field of a bundle at offset {at}")
        at = start + _LENGTH.unpack_from(value, at)[0]
        bundles.append(read_bundle(value, start, at))
    return slot, bundles


@dataclass(frozen=True, slots=True)
class SenderState:
    """A sender's incarnation, its next bundle, and the fragments so far of an incomplete message."""

    member: int
    incarnation: int
    next_serial: int
    fragments: bytes


@dataclass(frozen=True, slots=True)
class LogState:
    """A snapshot that replaces the first part of an agreed log.

    It has the number of messages in that part, its last slot, and the state of each sender, in ascending order.
    """

    messages: int
    slot: int
    senders: tuple[SenderState, ...]


_SENDER_STATE = Spec(
    SenderState, u16("member"), u32("incarnation"), u64("next_serial"), count("fragments", "I"), Bytes("fragments")
)
_LOG_STATE = Spec(LogState, u64("messages"), u64("slot"), count("senders"), Items("senders", _SENDER_STATE))


def encode_log_state(state: LogState) -> bytes:
    """Encode a log state as bytes, for a snapshot."""
    return _LOG_STATE.encode(state)


def decode_log_state(data: bytes) -> LogState:
    """Decode a log state; raises Unreadable if it is malformed."""
    return _LOG_STATE.decode(data)
