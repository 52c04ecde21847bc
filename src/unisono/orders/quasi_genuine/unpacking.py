"""Unpacks bundles into batches of messages: whole messages at once, fragments when the last one has arrived."""

from __future__ import annotations

from unisono.model.events import Batch, Grade, PackedMessages
from unisono.model.timing import Timing
from unisono.orders.packing import Bundle
from unisono.orders.quasi_genuine.messages import (
    STAMP_SENDERS,
    time_of,
)
from unisono.wire.frame import (
    FIRST_FRAGMENT,
    FRAGMENT,
    MORE_FRAGMENTS,
    ReassembledMessage,
    read_packed_messages,
)

POSITIONS_PER_STAMP = 1 << 16
"""The number of positions that each stamp has for its messages: no bundle holds more messages than this."""


class BundleUnpacker:
    """Turns decided bundles into deliveries of one grade."""

    def __init__(self, timing: Timing, grade: Grade | None) -> None:
        self.slot = 0
        """The slot of the last delivered message."""
        self.fragments: dict[tuple[int, int], list[bytes]] = {}
        """By (sender, incarnation), the fragments received of an incomplete message."""
        self._timing, self._grade = timing, grade
        self._index = 0
        """The index of this member's next delivery. Every other field of a batch is the same at all members."""

    def batch(self, stamp: int, bundle: Bundle) -> Batch | None:
        """The messages of a bundle, or None if its message is incomplete."""
        packed = self._packed_messages(bundle)
        if packed is None:
            return None
        self.slot = slot = self._timing.slot_of(time_of(stamp))
        position = (stamp - slot * self._timing.theta_ns * STAMP_SENDERS) * POSITIONS_PER_STAMP
        batch = Batch(
            bundle.sender,
            bundle.incarnation,
            slot,
            bundle.first_sequence,
            position,
            self._index,
            packed.count,
            [packed],
            grade=self._grade,
        )
        self._index += packed.count
        return batch

    def _packed_messages(self, bundle: Bundle) -> PackedMessages | None:
        if not bundle.flags & FRAGMENT:
            return read_packed_messages(bundle.body, 0, len(bundle.body))
        sender_run = (bundle.sender, bundle.incarnation)
        if bundle.flags & FIRST_FRAGMENT:
            self.fragments[sender_run] = []
        elif sender_run not in self.fragments:
            return None
        self.fragments[sender_run].append(bundle.body)
        return None if bundle.flags & MORE_FRAGMENTS else ReassembledMessage(self.fragments.pop(sender_run))
