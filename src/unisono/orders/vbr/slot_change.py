"""How a group agrees on another slot length while it runs: by a wish in the order itself.

A member's wish rides on the end-of-slot mark of one of its slots, which is sent so often in a row that one arrives
(§7). Once that slot is delivered everybody has every wish of it, and the first one, by member, is agreed on. It takes
effect at a slot that begins so late that everybody has delivered the wish by then, and whoever joins in between has
been told:

    S = the first slot that begins 2Δ+3Γ or more after the end of the slot in which the wish was sent.

By its own clock every member has delivered a slot Δ+Γ after the slot's end, by the mark or by the time-out; what it
then tells a newcomer arrives Δ+Γ later, and Γ more lets no frame of S be seen before, by whatever two clocks.

Other wishes of that slot are void, and so are those of slots before S: their members wish again once the change is in
effect. So nobody has to remember other members' wishes, and whoever joins need not be told of them.
"""

from __future__ import annotations

from unisono.model.slot_schedule import Segment, SlotGrid
from unisono.wire.control import encode_slot_request


def effective_slot(grid: SlotGrid, requested_in: int) -> int:
    """S: where a wish takes effect that was sent in a slot."""
    known_ns = grid.end_of(requested_in) + 2 * grid.delta_ns + 3 * grid.gamma_ns
    slot = grid.slot_of(known_ns)
    return slot if grid.start_of(slot) == known_ns else slot + 1


class SlotChange:
    """One member's part in it."""

    def __init__(self) -> None:
        self.requested_theta_ns: int | None = None
        """The length that this member's application wants, until it is agreed on."""
        self._granted_segment: Segment | None = None
        """What was agreed on as this member asked for, until it is in effect."""
        self._requested_in: int | None = None
        self._requests: dict[int, int] = {}
        """By member, the lengths wished for in the slot that is being delivered."""

    def next_request(self, slot: int, grid: SlotGrid) -> bytes | None:
        """What the mark of this member's slot is to carry, if anything."""
        first = grid.last_segment.first_slot
        if self._granted_segment is not None and slot >= self._granted_segment.first_slot:
            self._granted_segment = None
        if (
            self.requested_theta_ns is None
            or slot < first
            or (self._requested_in is not None and self._requested_in >= first)
        ):
            return None
        self._requested_in = slot
        return encode_slot_request(self.requested_theta_ns)

    def on_request(self, sender: int, theta_ns: int) -> None:
        """A mark with a wish is being delivered."""
        self._requests[sender] = theta_ns

    def decide(self, slot: int, grid: SlotGrid) -> SlotGrid | None:
        """A slot has been delivered: the slots as they will be, if a change is agreed on now."""
        if not self._requests:
            return None
        wishes, self._requests = self._requests, {}
        if slot < grid.last_segment.first_slot:
            return None
        return grid.with_slot_length(effective_slot(grid, slot), wishes[min(wishes)])

    def discard_requests(self) -> None:
        """Slots are others than they seemed: what was wished for in them is void."""
        self._requests.clear()
        self._requested_in = None

    def on_agreed(self, grid: SlotGrid) -> None:
        """These are the slots now; what this member asked for is fulfilled if they are of that length.

        If they are in place of those that it had been granted, and these were not in effect yet, it asks again.
        """
        if self._granted_segment is not None and self._granted_segment not in grid.segments:
            self.requested_theta_ns, self._granted_segment = (
                self.requested_theta_ns or self._granted_segment.theta_ns,
                None,
            )
        if self.requested_theta_ns == grid.last_segment.theta_ns:
            self.requested_theta_ns, self._granted_segment = None, grid.last_segment
