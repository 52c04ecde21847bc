"""Entries into deliveries: what a parcel holds, as a batch at its place in the order of stamps."""

from __future__ import annotations

from unisono.model.events import Batch, PackedMessages
from unisono.model.grades import Grade
from unisono.model.timing import Timing
from unisono.orders.multigroup.messages import STAMP_SENDERS, checked_bundle, time_of
from unisono.wire.bundles import Bundle
from unisono.wire.frame import FIRST_FRAGMENT, FRAGMENT, MORE_FRAGMENTS
from unisono.wire.packed_messages import ReassembledMessage, read_packed_messages

POSITIONS_PER_STAMP = 1 << 16
"""No parcel has more messages."""


class BundleUnpacker:
    """One member's deliveries of one grade; only their index is its own."""

    def __init__(self, timing: Timing, grade: Grade | None) -> None:
        self.slot = 0
        """The slot of what was delivered last."""
        self.fragments: dict[tuple[int, int], list[bytes]] = {}
        """By sender and life, what has come of a message in pieces."""
        self._timing, self._grade = timing, grade
        self._index = 0

    def batch(self, stamp: int, data: bytes) -> Batch | None:
        """The messages of a parcel; None if its message is not complete yet."""
        parcel = checked_bundle(data)
        run = self._packed_messages(parcel)
        if run is None:
            return None
        self.slot = slot = self._timing.slot_of(time_of(stamp))
        place = (stamp - slot * self._timing.theta_ns * STAMP_SENDERS) * POSITIONS_PER_STAMP
        batch = Batch(
            parcel.sender,
            parcel.incarnation,
            slot,
            parcel.first_sequence,
            place,
            self._index,
            run.count,
            [run],
            grade=self._grade,
        )
        self._index += run.count
        return batch

    def _packed_messages(self, bundle: Bundle) -> PackedMessages | None:
        if not bundle.flags & FRAGMENT:
            return read_packed_messages(bundle.body, 0, len(bundle.body))
        who = (bundle.sender, bundle.incarnation)
        if bundle.flags & FIRST_FRAGMENT:
            self.fragments[who] = []
        elif who not in self.fragments:
            return None
        self.fragments[who].append(bundle.body)
        return None if bundle.flags & MORE_FRAGMENTS else ReassembledMessage(self.fragments.pop(who))
