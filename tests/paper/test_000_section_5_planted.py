"""Bugs planted into the order of one replica, each caught by the checker of the claim that it breaks.

A checker that never says "violated" proves nothing. Here one member of four runs a VbrOrder with one mistake in one
slot, and the verdict has to name the messages and the members.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from tests.paper.schedule import MS, Group, figure_8, fixed
from tests.worlds.adversaries import adversarial_network
from tests.worlds.unchecked import unchecked_members

from unisono.check.verdict import MessageId, Status, Verdict, Witness
from unisono.model.events import Batch
from unisono.model.timing import Timing
from unisono.orders.packing import SlotFrames
from unisono.orders.vbr.order import VbrOrder
from unisono.sim.network import SimulatedNetwork, constant_delay, full_mesh

TIMING = Timing(10 * MS, 2 * MS, 5 * MS)
MEMBERS = (1, 2, 3, 4)
BUGGY = 3
SLOTS = 6


@pytest.fixture(autouse=True)
def unchecked() -> Iterator[None]:
    """A member with a planted defect goes on: these tests judge what the checkers of traces find."""
    with unchecked_members():
        yield


class Planted(VbrOrder):
    """A VbrOrder that goes wrong in one slot only: the third in which anything is delivered."""

    wrong_slot: int | None = None

    def _is_wrong(self) -> bool:
        return self._deliver_slot == self.wrong_slot


class SwapsTwoMembers(Planted):
    """Delivers member 4 before member 2 in one slot."""

    def _finish_slot(self, now: int) -> None:
        super()._finish_slot(now)
        # A View refuses members out of order, so the bug has to force it.
        object.__setattr__(self.view, "members", (1, 4, 3, 2) if self._is_wrong() else MEMBERS)


class Drops(Planted):
    """Drops the messages that member 2 sent in one slot."""

    def _deliver(self, sender: int, frames: SlotFrames) -> None:
        before, index = len(self.events), self._index
        super()._deliver(sender, frames)
        if self._is_wrong() and sender == 2:
            del self.events[before:]
            self._index = index


class DeliversTwice(Planted):
    """Delivers the messages that member 2 sent in one slot twice."""

    def _deliver(self, sender: int, frames: SlotFrames) -> None:
        super()._deliver(sender, frames)
        last = self.events[-1] if self.events else None
        if self._is_wrong() and sender == 2 and isinstance(last, Batch):
            again = Batch(
                2,
                last.incarnation,
                last.slot,
                last.first_sequence,
                last.first_position,
                self._index,
                1,
                last.packed_messages,
            )
            self._index += 1
            self.events.append(again)


class Misattributes(Planted):
    """Assigns member 4's messages of one slot to the next slot, as the published accounting does."""

    def _deliver(self, sender: int, frames: SlotFrames) -> None:
        before = len(self.events)
        super()._deliver(sender, frames)
        if self._is_wrong() and sender == 4:
            for event in self.events[before:]:
                if isinstance(event, Batch):
                    event.slot += 1


class Spills(VbrOrder):
    """Sends messages in the slot after the one in which they were submitted."""

    spilled: tuple[int, Sequence[bytes]] = (0, ())

    def submit(self, now: int, messages: Sequence[bytes]) -> int:
        self.spilled = (self.grid.slot_of(now), messages)
        return len(messages)

    def wake(self, now: int) -> None:
        super().wake(now)
        slot, messages = self.spilled
        if messages and self.grid.slot_of(now) > slot:
            self.spilled = (0, ())
            super().submit(now, messages)


def run_with(bug: type[Planted]) -> tuple[dict[str, Verdict], int]:
    """The verdicts on a run in which every member sends one message in each of some slots, and the slot of the bug."""
    group = Group(
        TIMING,
        fixed({1: MS, 2: -MS, 3: 0, 4: MS // 2}),
        adversarial_network(MEMBERS, constant_delay(MS), TIMING.delta_ns),
        orders={BUGGY: bug},
    )
    wrong = group.base_ns // TIMING.theta_ns + 2
    buggy = group.orders[BUGGY]
    assert isinstance(buggy, Planted)
    buggy.wrong_slot = wrong
    for number in range(SLOTS):
        for member in MEMBERS:
            group.send(group.slot_start(member, number), member, 50)
    return group.run().verdicts(), wrong


def violated(verdicts: dict[str, Verdict]) -> dict[str, Witness]:
    return {
        name: verdict.witness
        for name, verdict in verdicts.items()
        if verdict.status is Status.VIOLATED and verdict.witness is not None
    }


def test_without_a_bug_the_same_run_is_valid() -> None:
    verdicts, _ = run_with(Planted)
    assert {verdict.status for verdict in verdicts.values()} == {Status.VALID}


def test_swapping_two_members_in_one_slot_is_caught_with_both_messages_and_both_members() -> None:
    """In the wrong slot members 2 and 4 send their third messages: number 2."""
    found = violated(run_with(SwapsTwoMembers)[0])
    assert set(found) == {"total_order"}, "no message is lost or doubled, and each sender's order is kept"
    witness = found["total_order"]
    # The smallest witness: the first two messages, in a correct member's order, that are swapped.
    assert witness.messages == (MessageId(2, 1, 2), MessageId(3, 1, 2))
    assert witness.members == (1, BUGGY)
    assert witness.text == f"member 1 delivered (2,2) before (3,2), member {BUGGY} after it"


def test_swapping_two_neighbours_names_exactly_these_two() -> None:
    class SwapsNeighbours(SwapsTwoMembers):
        def _finish_slot(self, now: int) -> None:
            super()._finish_slot(now)
            object.__setattr__(self.view, "members", (1, 2, 4, 3) if self._is_wrong() else MEMBERS)

    verdicts, _ = run_with(SwapsNeighbours)
    witness = violated(verdicts)["total_order"]
    assert witness.text == f"member 1 delivered (3,2) before (4,2), member {BUGGY} after it"
    assert {position.member for position in witness.positions} == {1, BUGGY}
    assert verdicts["total_order"].count == 3, "one disagreement with each of the three correct members"


def test_dropping_a_message_is_caught_as_a_gap() -> None:
    verdicts, wrong = run_with(Drops)
    found = violated(verdicts)
    assert set(found) == {"gap_freedom"}, "the other messages are in order"
    witness = found["gap_freedom"]
    assert witness.messages == (MessageId(2, 1, 2),)
    assert witness.text.startswith(f"member {BUGGY} never delivered (2,2) of slot {wrong}; member 1 delivered it")
    assert verdicts["gap_freedom"].count == 1


def test_delivering_a_message_twice_is_caught_by_integrity() -> None:
    found = violated(run_with(DeliversTwice)[0])
    assert set(found) == {"integrity", "fifo"}
    assert found["integrity"].messages == (MessageId(2, 1, 2),)
    assert found["integrity"].text == f"member {BUGGY} delivered (2,2) twice, at indices 9 and 10"


def test_assigning_a_message_to_another_slot_is_caught_by_its_key() -> None:
    verdicts, wrong = run_with(Misattributes)
    found = violated(verdicts)
    assert set(found) == {"total_order"}
    text = found["total_order"].text
    assert f"member {BUGGY} delivered (1,3) under the key (slot {wrong + 1}, " in text
    assert f"which is not after the key of (4,2) (slot {wrong + 1}, " in text


def test_sending_in_the_next_slot_is_caught_as_one_slot_too_much_latency() -> None:
    """All members agree on the wrong slot, so only the clock shows it: Figure 8's message takes Θ more than allowed."""
    group = figure_8(TIMING, 3, orders={3: Spills})
    group.run(group.last_ns + 2 * group.bound_ns)
    verdicts = group.verdicts()
    assert set(violated(verdicts)) == {"latency"}
    assert violated(verdicts)["latency"].messages == (MessageId(3, 1, 0),)
    assert verdicts["latency"].figures["max_ns"] == group.bound_ns + TIMING.theta_ns


@pytest.mark.parametrize("excess_ns", [0, 1, 3 * MS])
def test_a_link_slower_than_delta_is_caught_as_latency_to_the_nanosecond(excess_ns: int) -> None:
    def delay(sender: int) -> int:
        return TIMING.delta_ns + excess_ns * (sender == 1)

    network = SimulatedNetwork(full_mesh((1, 2), lambda sender, _: lambda now: delay(sender)))
    group = Group(TIMING, fixed({1: -MS, 2: MS}), network)
    group.send(group.slot_start(2, 1), 2, 10)
    verdicts = group.run(group.last_ns + 2 * group.bound_ns).verdicts()
    assert verdicts["latency"].figures["max_ns"] == 17 * MS + excess_ns
    if excess_ns == 0:
        assert not violated(verdicts)
        return
    found = violated(verdicts)
    assert found["latency"].messages == (MessageId(2, 1, 0),)
    assert found["latency"].members == (2,)
    assert verdicts["latency"].count == 1
    assert verdicts["total_order"].status is Status.VALID, "late, and still in order"
