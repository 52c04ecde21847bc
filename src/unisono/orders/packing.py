"""Messages into frames: full frames leave at once, the rest of a slot is held back for its end-of-slot mark.

Holding back costs no latency, since a slot is delivered after its end (compare 001-7), and makes the paper's dummy
needless in every slot in which anything was sent. Work is per frame and per call, never per message in Python code.
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
from unisono.wire.frame import FRAME_NUMBER_MAX, HEADER_BYTES, UDP_IP_BYTES
from unisono.wire.packed_messages import PACKED_HEADER_BYTES, SIZE_ENTRY_BYTES, OutgoingMessages


@dataclass(slots=True)
class FramePayload:
    """What one frame is to carry: a run, or a piece of a message."""

    packed_messages: OutgoingMessages | None
    fragment: memoryview | None
    is_first_fragment: bool
    """Whether the piece is its message's first."""
    has_more_fragments: bool
    messages_completed: int
    """How many messages end in this frame: what the frame advances the sender's sequence by."""


class Packer:
    """Fills frames of at most `max_frame` bytes."""

    def __init__(self, max_frame: int) -> None:
        self._capacity_bytes = max_frame - HEADER_BYTES - PACKED_HEADER_BYTES
        self._fragment_bytes = max_frame - HEADER_BYTES
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._held_size = -1
        """The size that all held messages have, or -1."""

    def add(self, messages: Sequence[bytes], sizes: list[int]) -> list[FramePayload]:
        """Take messages; the frames that are full now."""
        if sizes.count(sizes[0]) == len(sizes):
            return self._add_uniform(messages, sizes[0])
        return self._add_mixed(messages, sizes)

    def _add_uniform(self, messages: Sequence[bytes], size: int) -> list[FramePayload]:
        cost = size + SIZE_ENTRY_BYTES
        if cost > self._capacity_bytes:
            return [load for message in messages for load in self._fragments(message)]
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
        run = OutgoingMessages(self._held, self._held_size >= 0)
        load = FramePayload(run, None, False, False, len(self._held))
        self._held, self._held_bytes, self._held_size = [], 0, -1
        return load

    def _fragments(self, message: bytes) -> list[FramePayload]:
        loads = [self._release()] if self._held else []
        view, step = memoryview(message), self._fragment_bytes
        for at in range(0, len(view), step):
            more = at + step < len(view)
            loads.append(FramePayload(None, view[at : at + step], at == 0, more, 0 if more else 1))
        return loads

    def held(self) -> tuple[int, int]:
        """How many messages are held back, and how much payload they are."""
        return len(self._held), self._held_bytes - SIZE_ENTRY_BYTES * len(self._held)

    def flush(self) -> FramePayload | None:
        """What is held back, for the slot's last frame."""
        return self._release() if self._held else None


def frames_per_slot(rate: Rate, max_message: int, max_frame: int) -> int:
    """How many frames a slot of this rate can need at most, its end-of-slot mark included."""
    room = max_frame - HEADER_BYTES - PACKED_HEADER_BYTES
    payload = rate.bytes_per_slot(max_message) + SIZE_ENTRY_BYTES * rate.burst
    in_pieces = max_message + SIZE_ENTRY_BYTES > room
    # A frame is released because the next message does not fit, so two neighbours carry more than one room.
    # A message in pieces, itself more than one room, leaves a part-filled frame before it and one at its end.
    by_bytes = (3 if in_pieces else 2) * -(-payload // room) + 1
    by_messages = rate.burst + (-(-payload // room) if in_pieces else 0)
    return min(by_bytes, by_messages) + 1


def reservation(policy: Policy, rate: Rate, theta_ns: int | None = None) -> BandwidthReservation:
    """NetAvgRate and NetMaxBurst, in bytes, for what the application declared (Theorem 3, with frames).

    The average grows by one header per slot, the 1/Θ of the theorem. Θ is as declared unless told.
    """
    theta_ns, largest = theta_ns or policy.timing.theta_ns, policy.max_message
    frames = frames_per_slot(rate, largest, policy.max_frame)
    if frames > FRAME_NUMBER_MAX:
        raise InvalidOption("rate.burst", f"a slot would need {frames:,} frames, and {FRAME_NUMBER_MAX:,} are possible")
    header = HEADER_BYTES + PACKED_HEADER_BYTES + UDP_IP_BYTES + (RMCAST_BYTES if policy.reliable else 0)
    burst = rate.bytes_per_slot(largest) + SIZE_ENTRY_BYTES * rate.burst + frames * header
    if policy.fec is not None:
        # Each frame travels in a share, and a block's redundant shares are as long as its longest frame.
        redundant = net_max_burst(frames, *policy.fec) - frames
        burst += frames * HEADER_BYTES + redundant * (policy.max_frame + HEADER_BYTES + UDP_IP_BYTES)
        return BandwidthReservation(burst * NS_PER_S // theta_ns + 1, burst, theta_ns)
    pieces = -(-largest // (policy.max_frame - HEADER_BYTES))
    average = rate.avg * (largest + SIZE_ENTRY_BYTES + pieces * header) + header * NS_PER_S / theta_ns
    peak = burst * NS_PER_S / theta_ns
    once = BandwidthReservation(int(min(average, peak)) + 1, burst, theta_ns)
    return once if policy.reliable is None else copies_reservation(once, policy.reliable)
