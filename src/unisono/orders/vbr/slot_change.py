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

from unisono.model.slot_schedule import Grid, Segment
from unisono.wire.control import encode_wish


def change_slot(grid: Grid, wished_in: int) -> int:
    """S: where a wish takes effect that was sent in a slot."""
    known_ns = grid.end_of(wished_in) + 2 * grid.delta_ns + 3 * grid.gamma_ns
    slot = grid.slot_of(known_ns)
    return slot if grid.start_of(slot) == known_ns else slot + 1


class SlotChange:
    """One member's part in it."""

    def __init__(self) -> None:
        self.asked: int | None = None
        """The length that this member's application wants, until it is agreed on."""
        self._granted: Segment | None = None
        """What was agreed on as this member asked for, until it is in effect."""
        self._wished_in: int | None = None
        self._wishes: dict[int, int] = {}
        """By member, the lengths wished for in the slot that is being delivered."""

    def wish(self, slot: int, grid: Grid) -> bytes | None:
        """What the mark of this member's slot is to carry, if anything."""
        first = grid.last.first_slot
        if self._granted is not None and slot >= self._granted.first_slot:
            self._granted = None
        if self.asked is None or slot < first or (self._wished_in is not None and self._wished_in >= first):
            return None
        self._wished_in = slot
        return encode_wish(self.asked)

    def heard(self, sender: int, theta_ns: int) -> None:
        """A mark with a wish is being delivered."""
        self._wishes[sender] = theta_ns

    def decide(self, slot: int, grid: Grid) -> Grid | None:
        """A slot has been delivered: the slots as they will be, if a change is agreed on now."""
        if not self._wishes:
            return None
        wishes, self._wishes = self._wishes, {}
        if slot < grid.last.first_slot:
            return None
        return grid.changed(change_slot(grid, slot), wishes[min(wishes)])

    def forget(self) -> None:
        """Slots are others than they seemed: what was wished for in them is void."""
        self._wishes.clear()
        self._wished_in = None

    def agreed(self, grid: Grid) -> None:
        """These are the slots now; what this member asked for is fulfilled if they are of that length.

        If they are in place of those that it had been granted, and these were not in effect yet, it asks again.
        """
        if self._granted is not None and self._granted not in grid.segments:
            self.asked, self._granted = self.asked or self._granted.theta_ns, None
        if self.asked == grid.last.theta_ns:
            self.asked, self._granted = None, grid.last
