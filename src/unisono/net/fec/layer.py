"""Forward error correction (paper 001 §5.1, errata 001-1, -2, -4, -6, -7).

While the network loses at most a of any b consecutive datagrams of a sender, the order above sees no loss. Each frame
of the order is one original. A block has b-a originals and a redundant shares; any b-a of its shares restore the
originals.

Sending: `from_above` collects the order's frames. It sends a block when b-a+1 originals are waiting, so the last block
of a slot is never empty. The order ends every slot with an end-of-slot mark, the paper's FEC-end-slot, which closes
the last block. In a slot without messages the mark is the paper's dummy. Waiting costs no latency, since a slot is
delivered after its end (001-7).

How b consecutive datagrams are counted (001-4): a block of at most b shares leaves in one go. So the sender's link
carries nothing else between the first and the last share. Frames other than the order's data (HELLO, JOIN, PROBE) pass
at once and uncoded, always between two blocks. So every block lies within some b consecutive datagrams, of which at
most a are lost.

Receiving: an original goes up when it arrives, even behind a gap, and a reconstructed one as soon as it is computed.
The order stores frames by slot and number (Rqueue), so holding them back here would only cost time. If a block of a
crashed sender stays incomplete, the order already has the originals that arrived and delivers them at its time-out
(001-6). The paper's `end` is the end-of-slot mark, an original like any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import comb
from typing import ClassVar

from unisono.errors import InvalidOption
from unisono.model.offers import Ask, Offer
from unisono.model.policy import Policy, check_fec
from unisono.model.timing import SlotGrid
from unisono.model.units import EVERYONE, NS_PER_S, group_key
from unisono.net.fec.shares import (
    SHARE_HEADER_BYTES,
    Share,
    missing_originals,
    pack_share_position,
    prepare_coder,
    read_original,
    redundant_shares,
)
from unisono.wire.door import Refusal
from unisono.wire.frame import END_OF_SLOT, FRAME_NUMBER_MAX, Frame, Kind, encode

LATE_SHARE_NS = NS_PER_S
"""Keep an incomplete block until its sender's slots are Δ+Γ and this time ahead: a late share may complete it."""
SENDER_TIMEOUT_NS = 60 * NS_PER_S
"""Keep the incomplete blocks of an unresponsive sender for this long by our clock, which may jump after a pause."""
HELD_BYTES_MAX = 64 * 1024 * 1024
"""The most bytes of one sender's incomplete blocks; beyond that, the layer drops those of the oldest slot."""
_SHARE_OVERHEAD_BYTES = 512
"""The approximate cost of storing a share, in addition to its bytes."""


# -- the cost of redundancy ------------------------------------------------------------------------------------------


def checked_fec(fec: tuple[int, int]) -> tuple[int, int]:
    """Return (a, b) as given; raises InvalidOption if blocks of b shares with a redundant ones are not possible."""
    check_fec(fec)
    return fec


def datagrams_per_slot(originals: int, a: int, b: int) -> int:
    """The number of datagrams that FEC sends in a slot with M originals, the frames to protect (erratum 001-2).

    It is M' + a⌈M'/(b-a)⌉ with M' = max(M, 1), because a slot without messages still has its end-of-slot mark.
    """
    sent = max(originals, 1)
    return sent + a * -(-sent // (b - a))


def net_max_burst(app_max_burst: int, a: int, b: int) -> int:
    """The most datagrams that FEC sends in one slot: AppMaxBurst + a⌈AppMaxBurst/(b-a)⌉.

    This is the paper's NetMaxBurst (erratum 001-2). An interval of length Θ that is not a slot can contain more
    datagrams (erratum 001-3). Raises InvalidOption if a slot has more frames than the frame number in
    the header can count.
    """
    datagrams = datagrams_per_slot(app_max_burst, a, b)
    if datagrams > FRAME_NUMBER_MAX:
        text = f"a slot would need {datagrams:,} datagrams, but at most {FRAME_NUMBER_MAX:,} are possible"
        raise InvalidOption("fec", f"{text}; lower the burst or the redundancy")
    return datagrams


def residual_loss(loss: float, a: int, b: int) -> float:
    """The fraction of originals that stay lost if each datagram is lost with this probability, independently.

    An original stays lost if it is lost together with at least `a` other shares of its block. The last block of a slot
    may be shorter; then it is safer.
    """
    others = b - 1
    recoverable = sum(comb(others, lost) * loss**lost * (1 - loss) ** (others - lost) for lost in range(a))
    return loss * max(0.0, 1 - recoverable)


def ask_above_fec(ask: Ask) -> Ask:
    """The request to the order above FEC: the same request, over a network that has only the residual loss."""
    if ask.fec is None:
        return ask
    a, b = checked_fec(ask.fec)
    burst = 0 if ask.loss_burst <= a else ask.loss_burst
    return replace(ask, loss=residual_loss(ask.loss, a, b), loss_burst=burst, fec=None)


def offer_through_fec(offer: Offer, fec: tuple[int, int], theta_ns: int) -> Offer:
    """An order's offer, adjusted for the cost of forward error correction.

    The order sends at least an end-of-slot mark in each slot. So its O frames per second become at most O·b/(b-a) +
    a(b-a-1)/(b-a)/Θ. With O = AppAvgRate + 1/Θ that is AppAvgRate·b/(b-a) + (a+1)/Θ (001-2). The latency bound stays
    the same (001-7).
    """
    a, b = checked_fec(fec)
    k = b - a
    slots_per_s = NS_PER_S / theta_ns
    average = offer.avg_rate * b / k + a * (k - 1) / k * slots_per_s
    burst = datagrams_per_slot(offer.max_burst, a, b)
    why = [
        f"FEC {a}/{b}: NetMaxBurst = {offer.max_burst} + {a}·⌈{offer.max_burst}/{k}⌉ = {burst}",
        f"FEC {a}/{b}: NetAvgRate = {offer.avg_rate:g}·{b}/{k} + {a}·{k - 1}/{k}/Θ = {average:g} per second",
    ]
    if burst > FRAME_NUMBER_MAX:
        why.append(f"a slot would need {burst:,} datagrams, but at most {FRAME_NUMBER_MAX:,} are possible")
    return replace(
        offer,
        feasible=offer.feasible and burst <= FRAME_NUMBER_MAX,
        avg_rate=average,
        max_burst=burst,
        header_bytes=offer.header_bytes + SHARE_HEADER_BYTES,
        loss_tolerance=f"at most {a} of any {b} consecutive datagrams of a sender",
        reasons=(*offer.reasons, *why),
    )


def order_policy(policy: Policy) -> Policy:
    """The policy for the order above: its frames leave room for this layer's header."""
    fec = policy.fec
    if fec is not None and policy.fec_most > fec[0]:
        fec = (policy.fec_most, fec[1] - fec[0] + policy.fec_most)
    return replace(policy, max_frame=policy.max_frame - SHARE_HEADER_BYTES, fec=fec)


# -- the layer -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _SlotBlocks:
    """The FEC blocks that have arrived of one slot of one sender."""

    incomplete: dict[int, dict[int, Share]] = field(default_factory=dict)
    """The shares of incomplete blocks, by block number and share index."""
    complete: set[int] = field(default_factory=set)
    """The numbers of the complete blocks."""
    last_block: int | None = None
    """The number of the slot's last block, once known."""

    def is_finished(self) -> bool:
        """Whether every block of the slot is complete."""
        return self.last_block is not None and len(self.complete) == self.last_block + 1

    def is_consistent_with(self, share: Share) -> bool:
        """Whether a share agrees with the shares of its slot and block that arrived before."""
        if self.last_block is not None:
            if share.block > self.last_block or (share.flags & END_OF_SLOT != 0) != (share.block == self.last_block):
                return False
        elif share.flags & END_OF_SLOT and max((*self.incomplete, *self.complete), default=0) > share.block:
            return False
        shares = self.incomplete.get(share.block)
        if not shares:
            return True
        other = next(iter(shares.values()))
        return (
            share.originals == other.originals
            and share.redundant == other.redundant
            and share.number - share.index == other.number - other.index
            and share.flags == other.flags
        )


@dataclass(slots=True)
class _SenderBlocks:
    """The FEC blocks that have arrived from one incarnation of a sender."""

    incarnation_id: tuple[int, int]
    floor: int
    """All slots before this number are finished or dropped; no state is kept of them."""
    slots: dict[int, _SlotBlocks] = field(default_factory=dict)
    """The unfinished slots."""
    finished: set[int] = field(default_factory=set)
    """The finished slots that come after an unfinished one."""
    held_bytes: int = 0

    def finish_slot(self, slot: int) -> None:
        """Forget a slot of which all blocks are complete."""
        del self.slots[slot]
        self.finished.add(slot)
        self._advance_floor()

    def raise_floor(self, floor: int) -> int:
        """Drop all slots before `floor`. Returns how many incomplete blocks they had."""
        blocks = 0
        for slot in [s for s in self.slots if s < floor]:
            for shares in self.slots.pop(slot).incomplete.values():
                self.held_bytes -= stored_bytes(shares)
                blocks += 1
        self.finished = {slot for slot in self.finished if slot >= floor}
        self.floor = floor
        self._advance_floor()
        return blocks

    def _advance_floor(self) -> None:
        while self.floor in self.finished:
            self.finished.remove(self.floor)
            self.floor += 1


def stored_bytes(shares: dict[int, Share]) -> int:
    """The approximate cost of storing these shares."""
    return sum(len(share.body) + _SHARE_OVERHEAD_BYTES for share in shares.values())


class Fec:
    """The FEC layer: sends the order's frames in blocks with redundant shares, and restores lost frames on arrival."""

    name: ClassVar[str] = "fec"
    wraps = frozenset({Kind.DATA})
    opens = frozenset({Kind.FEC})

    def __init__(
        self, policy: Policy, held_bytes_max: int = HELD_BYTES_MAX, slots: Callable[[], SlotGrid] | None = None
    ) -> None:
        """`slots` returns the current slot schedule; without it the slot length stays as declared.

        Raises InvalidOption if policy.fec is not valid.
        """
        if policy.fec is None:
            raise InvalidOption("fec", "expected (a, b) for forward error correction, for example (1, 5), got None")
        self.down: list[Frame] = []
        self.up: list[Frame] = []
        self.ignored: Counter[str] = Counter()
        """Shares that the door admitted but this layer did not use, by reason."""
        self.recovered_originals = 0
        """The number of reconstructed originals."""
        self.surplus_shares = 0
        """The number of shares that arrived after their block was complete."""
        self.incomplete_blocks = 0
        """The number of blocks that stayed incomplete."""
        self._redundant, b = checked_fec(policy.fec)
        self._originals = b - self._redundant
        prepare_coder(self._originals, self._redundant)
        self._group = group_key(policy.group)
        declared = SlotGrid.of(policy.timing)
        self._slots = slots or (lambda: declared)
        self._keep_incomplete_ns = policy.timing.delta_ns + policy.timing.gamma_ns + LATE_SHARE_NS
        self._held_bytes_max = held_bytes_max
        # Sending.
        self._next_code: tuple[tuple[int, int], int] | None = None
        self._waiting: list[Frame] = []
        self._slot = -1
        self._next_block = 0
        self._next_number = 0
        # Receiving.
        self._streams: dict[int, _SenderBlocks] = {}
        self._sweep_at = 0

    def change_code(self, fec: tuple[int, int], slot: int) -> None:
        """Use blocks of b shares with a redundant ones from `slot` on.

        Receivers need not know, since every share describes its block.
        """
        a, b = checked_fec(fec)
        prepare_coder(b - a, a)
        self._next_code = (a, b), slot

    # -- sending ---------------------------------------------------------------------------------------------

    def from_above(self, now: int, frame: Frame) -> None:
        """Collect a frame of the order for the next block, and send the block if it is full or the slot ends.

        These are the paper's FEC-send and FEC-end-slot (paper 001 §5.1).
        """
        if frame.kind is not Kind.DATA or frame.to != EVERYONE:
            self.down.append(frame)
            return
        waiting = self._waiting
        if frame.slot != self._slot:
            if waiting:
                # The order was paused. It continues in a later slot and has not ended this one.
                self._send_block(now, len(waiting), 0)
            self._slot, self._next_block, self._next_number = frame.slot, 0, 0
            if self._next_code is not None and frame.slot >= self._next_code[1]:
                (self._redundant, b), self._next_code = self._next_code[0], None
                self._originals = b - self._redundant
        waiting.append(frame)
        if len(waiting) > self._originals:
            self._send_block(now, self._originals, 0)
        if frame.flags & END_OF_SLOT:
            self._send_block(now, len(waiting), END_OF_SLOT)

    def _send_block(self, now: int, count: int, flags: int) -> None:
        """Send the first `count` waiting originals as a block, with its redundant shares."""
        frames = self._waiting[:count]
        del self._waiting[:count]
        first, multicast = frames[0], all(frame.multicast for frame in frames)
        originals = [encode(frame, self._group) for frame in frames]
        shares = [(len(original), original) for original in originals]
        shares += redundant_shares(originals, self._redundant)
        sender, incarnation, epoch, slot, burst = first.sender, first.incarnation, first.epoch, first.slot, first.burst
        for index, (size, share) in enumerate(shares):
            self.down.append(
                Frame(
                    Kind.FEC,
                    sender,
                    incarnation,
                    epoch,
                    slot,
                    self._next_number + index,
                    flags,
                    burst,
                    pack_share_position(size, self._next_block, index, count, self._redundant),
                    now,
                    None,
                    share,
                    EVERYONE,
                    multicast,
                )
            )
        self._next_block += 1
        self._next_number += len(shares)

    # -- receiving -------------------------------------------------------------------------------------------

    def from_below(self, now: int, frame: Frame) -> None:
        """Handle a share that has arrived: pass up an original, and store the share until its block is complete."""
        if not isinstance(frame, Share):
            self.up.append(frame)
            return
        grid = self._slots()
        if frame.slot > grid.slot_of(now + grid.gamma_ns + LATE_SHARE_NS) + 1:
            # No clock is that far ahead. Storing the share would drop all earlier slots of its sender.
            self.ignored["slot ahead of any clock"] += 1
            self._pass_up_original(frame)
            return
        kept = self.kept_slots(frame.slot)
        stream = self._stream_of(frame, kept)
        if stream is None or frame.slot < stream.floor:
            self._pass_up_original(frame)
            return
        slot = stream.slots.get(frame.slot)
        if slot is None:
            if frame.slot in stream.finished:
                self.surplus_shares += 1
                return
            slot = self._open_slot(stream, frame.slot, kept)
        if frame.block in slot.complete:
            self.surplus_shares += 1
        elif not slot.is_consistent_with(frame):
            self.ignored["contradicts its block or slot"] += 1
        else:
            self._store_share(stream, slot, frame)

    def _stream_of(self, share: Share, kept_slots: int) -> _SenderBlocks | None:
        """The stored blocks of the share's sender; None if the share is of an earlier incarnation of the sender."""
        incarnation_id = (share.epoch, share.incarnation)
        stream = self._streams.get(share.sender)
        if stream is None or stream.incarnation_id < incarnation_id:
            stream = self._streams[share.sender] = _SenderBlocks(incarnation_id, max(0, share.slot - kept_slots))
        return stream if stream.incarnation_id == incarnation_id else None

    def _open_slot(self, stream: _SenderBlocks, number: int, kept_slots: int) -> _SlotBlocks:
        """Create the state of a slot whose first share has arrived, and drop slots that are too old."""
        if stream.floor < number - kept_slots:
            self.incomplete_blocks += stream.raise_floor(number - kept_slots)
        slot = stream.slots[number] = _SlotBlocks()
        return slot

    def _pass_up_original(self, share: Share) -> None:
        """Pass up an original whose slot has no state here. The order decides whether it still needs the frame."""
        if share.original is None:
            self.surplus_shares += 1
            return
        share.original.multicast = share.multicast
        self.up.append(share.original)

    def _store_share(self, stream: _SenderBlocks, slot: _SlotBlocks, share: Share) -> None:
        shares = slot.incomplete.setdefault(share.block, {})
        if share.index in shares:
            self.ignored["duplicate"] += 1
            return
        shares[share.index] = share
        stream.held_bytes += len(share.body) + _SHARE_OVERHEAD_BYTES
        if share.flags & END_OF_SLOT:
            slot.last_block = share.block
        original = share.original
        if original is not None:
            original.multicast = share.multicast
            self.up.append(original)
        if len(shares) == share.originals:
            self._complete_block(stream, slot, share)
        elif stream.held_bytes > self._held_bytes_max:
            self.incomplete_blocks += stream.raise_floor(min(stream.slots) + 1)

    def _complete_block(self, stream: _SenderBlocks, slot: _SlotBlocks, share: Share) -> None:
        """Reconstruct the missing originals of a block, after as many shares as it has originals have arrived."""
        shares = slot.incomplete.pop(share.block)
        stream.held_bytes -= stored_bytes(shares)
        slot.complete.add(share.block)
        if max(shares) >= share.originals:
            self._reconstruct(share, shares)
        if slot.is_finished():
            stream.finish_slot(share.slot)

    def _reconstruct(self, share: Share, shares: dict[int, Share]) -> None:
        found = missing_originals(shares)
        if found is None:
            self.ignored["shares of different blocks"] += len(shares)
            return
        for index, (data, size) in found.items():
            original = read_original(share, index, data, end=size, group=self._group)
            if isinstance(original, Refusal):
                self.ignored["invalid reconstruction"] += 1
                continue
            self.recovered_originals += 1
            original.multicast = share.multicast
            self.up.append(original)

    # -- time ------------------------------------------------------------------------------------------------

    def wake(self, now: int) -> None:
        """Drop the incomplete blocks of senders from which nothing has arrived for SENDER_TIMEOUT_NS."""
        if now < self._sweep_at:
            return
        self._sweep_at = now + SENDER_TIMEOUT_NS // 8
        floor = self._slots().slot_of(now - SENDER_TIMEOUT_NS)
        for stream in self._streams.values():
            if stream.floor < floor:
                self.incomplete_blocks += stream.raise_floor(floor)

    def wake_at(self) -> int | None:
        """Always None: the order ends the slots, and this layer drops old blocks at any later `wake`."""
        return None

    def kept_slots(self, slot: int) -> int:
        """For how many slots before `slot` this layer keeps the incomplete blocks of a sender."""
        return -(-self._keep_incomplete_ns // min(self._slots().lengths_from(slot))) + 1

    def held_bytes(self) -> int:
        """The approximate cost of storing all incomplete blocks."""
        return sum(stream.held_bytes for stream in self._streams.values())

    def counters(self) -> Mapping[str, int]:
        """How many originals were reconstructed, blocks stayed incomplete, and shares were surplus or ignored."""
        return {
            "recovered": self.recovered_originals,
            "surplus": self.surplus_shares,
            "given_up": self.incomplete_blocks,
            "ignored": self.ignored.total(),
        }
