"""Entries into deliveries: what a parcel holds, as a batch at its place in the order of stamps."""

from __future__ import annotations

from unisono.model.events import Batch, Run
from unisono.model.grades import Grade
from unisono.model.timing import Timing
from unisono.orders.multigroup.messages import STAMP_SENDERS, parcel_of, time_of
from unisono.wire.bundles import Parcel
from unisono.wire.frame import FIRST, MORE, PIECE
from unisono.wire.packed_messages import WholeMessage, read_run

PLACES_PER_STAMP = 1 << 16
"""No parcel has more messages."""


class Unpacking:
    """One member's deliveries of one grade; only their index is its own."""

    def __init__(self, timing: Timing, grade: Grade | None) -> None:
        self.slot = 0
        """The slot of what was delivered last."""
        self.pieces: dict[tuple[int, int], list[bytes]] = {}
        """By sender and life, what has come of a message in pieces."""
        self._timing, self._grade = timing, grade
        self._index = 0

    def batch(self, stamp: int, data: bytes) -> Batch | None:
        """The messages of a parcel; None if its message is not complete yet."""
        parcel = parcel_of(data)
        run = self._run_of(parcel)
        if run is None:
            return None
        self.slot = slot = self._timing.slot_of(time_of(stamp))
        place = (stamp - slot * self._timing.theta_ns * STAMP_SENDERS) * PLACES_PER_STAMP
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

    def _run_of(self, parcel: Parcel) -> Run | None:
        if not parcel.flags & PIECE:
            return read_run(parcel.body, 0, len(parcel.body))
        who = (parcel.sender, parcel.incarnation)
        if parcel.flags & FIRST:
            self.pieces[who] = []
        elif who not in self.pieces:
            return None
        self.pieces[who].append(parcel.body)
        return None if parcel.flags & MORE else WholeMessage(self.pieces.pop(who))
