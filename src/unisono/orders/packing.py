"""Packs messages into frames: full frames leave at once, the rest of a slot waits for its end-of-slot mark.

Holding messages back costs no latency, since a slot is delivered after its end (compare 001-7), and it saves the
paper's dummy in every slot that has messages. The cost in Python is per frame and per call, not per message.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from unisono.errors import InvalidOption
from unisono.model.durations import NS_PER_S
from unisono.model.policy import Policy
from unisono.model.rates import BandwidthReservation, Rate
from unisono.net.fec.layer import net_max_burst
from unisono.net.rmcast.copies import RMCAST_BYTES
from unisono.net.rmcast.layer import copies_reservation
from unisono.wire.frame import (
    FIRST_FRAGMENT,
    FRAGMENT,
    FRAME_NUMBER_MAX,
    HEADER_BYTES,
    MORE_FRAGMENTS,
    UDP_IP_BYTES,
)
from unisono.wire.packed_messages import PACKED_HEADER_BYTES, SIZE_ENTRY_BYTES, OutgoingMessages


@dataclass(slots=True)
class FramePayload:
    """The content of one frame: packed messages, or one fragment of a message."""

    packed_messages: OutgoingMessages | None
    fragment: memoryview | None
    is_first_fragment: bool
    has_more_fragments: bool
    messages_completed: int
    """The number of messages that end in this frame; the sender's sequence number advances by it."""

    def fragment_flags(self) -> int:
        """The header flags of a frame that carries this fragment."""
        first = FIRST_FRAGMENT if self.is_first_fragment else 0
        return FRAGMENT | first | (MORE_FRAGMENTS if self.has_more_fragments else 0)


class Packer:
    """Fills frames of at most `max_frame` bytes."""

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
        payload = FramePayload(packed, None, False, False, len(self._held))
        self._held, self._held_bytes, self._held_size = [], 0, -1
        return payload

    def _fragments(self, message: bytes) -> list[FramePayload]:
        payloads = [self._release()] if self._held else []
        view, step = memoryview(message), self._fragment_bytes
        for at in range(0, len(view), step):
            more = at + step < len(view)
            payloads.append(FramePayload(None, view[at : at + step], at == 0, more, 0 if more else 1))
        return payloads

    def held(self) -> tuple[int, int]:
        """The number of messages held back, and their payload bytes."""
        return len(self._held), self._held_bytes - SIZE_ENTRY_BYTES * len(self._held)

    def flush(self) -> FramePayload | None:
        """The messages held back, for the last frame of the slot; None if there are none."""
        return self._release() if self._held else None


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
    """NetAvgRate and NetMaxBurst, in bytes, for a declared rate (Theorem 3, counted in frames).

    The average grows by one header per slot, the 1/Θ of the theorem. Θ is the declared one unless given.
    """
    theta_ns, largest = theta_ns or policy.timing.theta_ns, policy.max_message
    frames = frames_per_slot(rate, largest, policy.max_frame)
    if frames > FRAME_NUMBER_MAX:
        raise InvalidOption(
            "rate.burst", f"a slot would need {frames:,} frames, and at most {FRAME_NUMBER_MAX:,} are possible"
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
    once = BandwidthReservation(int(min(average, peak)) + 1, burst, theta_ns)
    return once if policy.reliable is None else copies_reservation(once, policy.reliable)
