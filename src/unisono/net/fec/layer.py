"""Forward error correction (paper 001 §5.1, errata 001-1, -2, -4, -6, -7): no loss is seen above it while the network
loses at most a of any b consecutive datagrams of a sender.

Each frame of the order is one original. A block is b-a originals and a redundant shares, of which any b-a give back
the originals. It is cut when one original more than that is waiting, so that the last block of a slot, which has
what is left, is never empty. The order ends every slot with its end-of-slot mark, the paper's FEC-end-slot; without
messages the mark is the paper's dummy. Waiting costs no latency, since a slot is delivered after its end (001-7).

How the b consecutive datagrams are counted (001-4): a block of at most b shares leaves in one go, so between its
first and last share the sender's link carries nothing else. Frames that are not the order's data (HELLO, JOIN, PROBE)
pass at once and uncoded, which is always between two blocks. Whatever lies between blocks, some b consecutive
datagrams contain all of a block, and so at most a of it are lost.

An original goes up as it arrives, behind a gap too, and a reconstructed one as soon as it can be. The order keeps
frames by slot and number (Rqueue) and delivers none before its turn, so holding back here would only cost time; and
when a crashed sender's block stays incomplete, what came of it is above already, for the order to deliver in its
order at its time-out (001-6). The order sees the paper's `end` as the mark, which is an original like any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import comb
from typing import ClassVar

from unisono.errors import InvalidOption
from unisono.model.durations import NS_PER_S
from unisono.model.ids import EVERYONE, group_key
from unisono.model.offers import Ask, Offer
from unisono.model.policy import Policy, check_fec
from unisono.model.slot_schedule import SlotGrid
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
"""Incomplete blocks are kept until their sender is this much and Δ+Γ further: a late share may still complete them."""
SENDER_TIMEOUT_NS = 60 * NS_PER_S
"""Of a sender that says nothing more, they are kept for this long by our clock, which a pause may have let leap."""
HELD_BYTES_MAX = 64 * 1024 * 1024
"""How much of one sender's incomplete blocks is kept; beyond that the oldest slot's are given up."""
_SHARE_OVERHEAD_BYTES = 512
"""What keeping a share takes beside its bytes, roughly."""


# -- the algebra ---------------------------------------------------------------------------------------------


def checked_fec(fec: tuple[int, int]) -> tuple[int, int]:
    """(a, b) if blocks of b shares with a redundant ones are possible."""
    check_fec(fec)
    return fec


def datagrams_per_slot(originals: int, a: int, b: int) -> int:
    """The datagrams of a slot with M originals: M' + a⌈M'/(b-a)⌉, M' = max(M, 1) for the dummy (001-2)."""
    sent = max(originals, 1)
    return sent + a * -(-sent // (b - a))


def net_max_burst(app_max_burst: int, a: int, b: int) -> int:
    """NetMaxBurst = AppMaxBurst + a⌈AppMaxBurst/(b-a)⌉, in datagrams per slot (001-2).

    It bounds a slot; a stretch of length Θ that is not a slot can contain more (001-3). Raises InvalidOption if a
    slot cannot number so many.
    """
    most = datagrams_per_slot(app_max_burst, a, b)
    if most > FRAME_NUMBER_MAX:
        raise InvalidOption("fec", f"a slot would need {most:,} datagrams, and {FRAME_NUMBER_MAX:,} are possible")
    return most


def net_avg_per_slot(app_avg_per_slot: float, a: int, b: int) -> float:
    """NetAvgRate <= AppAvgRate·b/(b-a) + a + 1, in datagrams per slot (001-2).

    By M' <= M + 1 and ⌈M'/(b-a)⌉ <= (M'+b-a-1)/(b-a). `app_avg_per_slot` is without dummies and marks.
    """
    return app_avg_per_slot * b / (b - a) + a + 1


def residual_loss(loss: float, a: int, b: int) -> float:
    """The share of originals that stay lost when each datagram is lost with this probability, independently.

    An original stays lost if it is lost and with it at least a of the other shares of its block. A slot's last block
    is at most as long, and so at least as safe.
    """
    others = b - 1
    bearable = sum(comb(others, lost) * loss**lost * (1 - loss) ** (others - lost) for lost in range(a))
    return loss * max(0.0, 1 - bearable)


def ask_above_fec(ask: Ask) -> Ask:
    """What an order on top of this layer is asked: the same, over a network that loses only what stays lost."""
    if ask.fec is None:
        return ask
    a, b = checked_fec(ask.fec)
    burst = 0 if ask.loss_burst <= a else ask.loss_burst
    return replace(ask, loss=residual_loss(ask.loss, a, b), loss_burst=burst, fec=None)


def offer_through_fec(offer: Offer, fec: tuple[int, int], theta_ns: int) -> Offer:
    """What an order's offer becomes when its frames go through this layer.

    The order sends at least its mark in each slot, so its O frames per second become at most
    O·b/(b-a) + a(b-a-1)/(b-a)/Θ; for O = AppAvgRate + 1/Θ that is `net_avg_per_slot`. The latency bound stays as it
    is (001-7).
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
        why.append(f"a slot would need {burst:,} datagrams, and {FRAME_NUMBER_MAX:,} are possible")
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
    """The policy of the order above: its frames leave room for the header that this layer puts before them."""
    fec = policy.fec
    if fec is not None and policy.fec_most > fec[0]:
        fec = (policy.fec_most, fec[1] - fec[0] + policy.fec_most)
    return replace(policy, max_frame=policy.max_frame - SHARE_HEADER_BYTES, fec=fec)


# -- the layer -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _SlotBlocks:
    """What is known of one sender's slot."""

    incomplete: dict[int, dict[int, Share]] = field(default_factory=dict)
    """Blocks that are not complete yet, by number, each with its shares by index."""
    complete: set[int] = field(default_factory=set)
    last_block: int | None = None
    """The number of the slot's last block, once it is known."""

    def is_finished(self) -> bool:
        """Whether every block is complete."""
        return self.last_block is not None and len(self.complete) == self.last_block + 1

    def is_consistent_with(self, share: Share) -> bool:
        """Whether a share agrees with what others of its slot and block have said."""
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
    """What has come from one sender in one life."""

    incarnation_id: tuple[int, int]
    floor: int
    """Slots before this one are finished or given up, and nothing is known of them."""
    slots: dict[int, _SlotBlocks] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    """Finished slots after an unfinished one."""
    held_bytes: int = 0

    def finish_slot(self, slot: int) -> None:
        """All of a slot is here."""
        del self.slots[slot]
        self.finished.add(slot)
        self._advance_floor()

    def raise_floor(self, floor: int) -> int:
        """Give up what is before a slot; how many blocks that were incomplete."""
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
    """What a block's shares take to keep."""
    return sum(len(share.body) + _SHARE_OVERHEAD_BYTES for share in shares.values())


class Fec:
    """The layer: the order's frames down in blocks, and up as they were."""

    name: ClassVar[str] = "fec"
    wraps = frozenset({Kind.DATA})
    opens = frozenset({Kind.FEC})

    def __init__(
        self, policy: Policy, held_bytes_max: int = HELD_BYTES_MAX, slots: Callable[[], SlotGrid] | None = None
    ) -> None:
        """`slots` says what slots are now, where their length may change.

        Raises InvalidOption if policy.fec makes no sense, MissingDependency if there is no erasure code here.
        """
        if policy.fec is None:
            raise InvalidOption("fec", "the layer needs an a/b")
        self.down: list[Frame] = []
        self.up: list[Frame] = []
        self.ignored: Counter[str] = Counter()
        """Shares that came through the door but were not used, by reason."""
        self.recovered_originals = 0
        """How many originals were reconstructed."""
        self.surplus_shares = 0
        """How many shares came when their block was complete."""
        self.incomplete_blocks = 0
        """How many blocks stayed incomplete."""
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
        """Blocks of this slot and later ones have these shares; a share says itself what its block is."""
        prepare_coder(fec[1] - fec[0], fec[0])
        self._next_code = checked_fec(fec), slot

    # -- down ------------------------------------------------------------------------------------------------

    def from_above(self, now: int, frame: Frame) -> None:
        """FEC-send, and with the end-of-slot mark FEC-end-slot."""
        if frame.kind is not Kind.DATA or frame.to != EVERYONE:
            self.down.append(frame)
            return
        waiting = self._waiting
        if frame.slot != self._slot:
            if waiting:
                # An order that stood still goes on in a later slot without having ended this one.
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
        """Send the first `count` originals as a block."""
        frames = self._waiting[:count]
        del self._waiting[:count]
        first, multicast = frames[0], all(frame.multicast for frame in frames)
        originals = [encode(frame, self._group) for frame in frames]
        shares = [(len(original), original) for original in originals]
        shares += redundant_shares(originals, self._redundant)
        sender, incarnation, epoch, slot, burst = first.sender, first.incarnation, first.epoch, first.slot, first.burst
        for index, (size, share) in enumerate(shares):
            number, place = (
                self._next_number + index,
                pack_share_position(size, self._next_block, index, count, self._redundant),
            )
            self.down.append(
                Frame(
                    Kind.FEC,
                    sender,
                    incarnation,
                    epoch,
                    slot,
                    number,
                    flags,
                    burst,
                    place,
                    now,
                    None,
                    share,
                    EVERYONE,
                    multicast,
                )
            )
        self._next_block += 1
        self._next_number += len(shares)

    # -- up --------------------------------------------------------------------------------------------------

    def from_below(self, now: int, frame: Frame) -> None:
        """net-receive."""
        if not isinstance(frame, Share):
            self.up.append(frame)
            return
        grid = self._slots()
        if frame.slot > grid.slot_of(now + grid.gamma_ns + LATE_SHARE_NS) + 1:
            # No clock is that far ahead. Were it taken for the sender's present slot, all before it would be given up.
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
        """What has come from the share's sender; None if it has begun a later life since."""
        life = (share.epoch, share.incarnation)
        stream = self._streams.get(share.sender)
        if stream is None or stream.incarnation_id < life:
            stream = self._streams[share.sender] = _SenderBlocks(life, max(0, share.slot - kept_slots))
        return stream if stream.incarnation_id == life else None

    def _open_slot(self, stream: _SenderBlocks, number: int, kept_slots: int) -> _SlotBlocks:
        """A slot's first share is here: what is much older is given up."""
        if stream.floor < number - kept_slots:
            self.incomplete_blocks += stream.raise_floor(number - kept_slots)
        slot = stream.slots[number] = _SlotBlocks()
        return slot

    def _pass_up_original(self, share: Share) -> None:
        """Nothing is known of the share's slot any more: what is readable goes up, for the order to judge."""
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
        """As many shares as originals are here: the originals that are not are reconstructed."""
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
            self.ignored["shares of no one block"] += len(shares)
            return
        for index, (data, size) in found.items():
            original = read_original(share, index, data, end=size, group=self._group)
            if isinstance(original, Refusal):
                self.ignored["reconstruction makes no sense"] += 1
                continue
            self.recovered_originals += 1
            original.multicast = share.multicast
            self.up.append(original)

    # -- time ------------------------------------------------------------------------------------------------

    def wake(self, now: int) -> None:
        """Time has passed: what is left of senders that have long been silent is given up."""
        if now < self._sweep_at:
            return
        self._sweep_at = now + SENDER_TIMEOUT_NS // 8
        floor = self._slots().slot_of(now - SENDER_TIMEOUT_NS)
        for stream in self._streams.values():
            if stream.floor < floor:
                self.incomplete_blocks += stream.raise_floor(floor)

    def wake_at(self) -> int | None:
        """Nothing here is due: the order says when a slot ends, and giving up can wait for any occasion."""
        return None

    def kept_slots(self, slot: int) -> int:
        """How many slots before this one of its sender incomplete blocks are kept."""
        return -(-self._keep_incomplete_ns // min(self._slots().lengths_from(slot))) + 1

    def held_bytes(self) -> int:
        """What incomplete blocks take at present."""
        return sum(stream.held_bytes for stream in self._streams.values())
