"""After `complete_until` returned T, no message sent at T or before is delivered, except late ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from unisono.check.complete_until import CompleteMark, check_complete_until
from unisono.check.verdict import MessageId, Status, Verdict
from unisono.model.events import Batch, Grade, StackEvent
from unisono.model.faults import Partition, Span
from unisono.model.scenario import Scenario
from unisono.model.units import NS_PER_MS
from unisono.sim.member import SimulatedMember
from unisono.sim.run import run
from unisono.sim.swarm.final import cbr_finals, finals
from unisono.sim.swarm.vbr import calm, churning, stormy
from unisono.sim.world import World
from unisono.stack import Stack
from unisono.trace.table import Trace


@dataclass
class Marks:
    """Asks the stack of each member for its mark after every step of a run, and notes late deliveries."""

    early: bool
    marks: list[CompleteMark] = field(default_factory=list)
    late: set[tuple[int, MessageId]] = field(default_factory=set)
    delivered: dict[tuple[int, int], int] = field(default_factory=dict)
    last: dict[tuple[int, int], int] = field(default_factory=dict)

    def on_event(self, member: SimulatedMember, event: StackEvent) -> None:
        if isinstance(event, Batch) and event.grade in (None, Grade.EARLY if self.early else Grade.FINAL):
            self.delivered[member.member, member.incarnation] = event.first_index + event.count
            if event.late:
                for number in range(event.first_sequence, event.first_sequence + event.count):
                    self.late.add((member.member, MessageId(event.sender, event.incarnation, number)))

    def check(self, world: World) -> None:
        for member in world.members.values():
            assert isinstance(member.stack, Stack)
            run_id, until = (member.member, member.incarnation), member.stack.complete_until(early=self.early)
            if until is not None and until > self.last.get(run_id, -1):
                self.last[run_id] = until
                self.marks.append(CompleteMark(*run_id, self.delivered.get(run_id, 0), until))


def played(scenario: Scenario, monkeypatch: pytest.MonkeyPatch, *, early: bool) -> tuple[Trace, Marks]:
    marks, on_event = Marks(early), SimulatedMember.on_event

    def noting(member: SimulatedMember, event: StackEvent) -> None:
        marks.on_event(member, event)
        on_event(member, event)

    with monkeypatch.context() as patch:
        patch.setattr(SimulatedMember, "on_event", noting)
        result = run(scenario, check=marks.check)
    grade = Grade.EARLY if early else Grade.FINAL
    return result.trace if scenario.grades == "early" else result.trace.with_grade(grade.value), marks


def verdict(trace: Trace, marks: Marks, shift_ns: int = 0) -> Verdict:
    shifted = [CompleteMark(m.member, m.incarnation, m.index, m.until_ns + shift_ns) for m in marks.marks]
    return check_complete_until(trace, shifted, marks.late)


@pytest.mark.parametrize("draw", [calm, stormy, churning])
def test_marks_of_slot_orders_hold(draw: Callable[[int], Scenario], monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(6):
        trace, marks = played(draw(seed), monkeypatch, early=True)
        found = verdict(trace, marks)
        assert found.status is Status.VALID, (seed, found)
        assert not marks.late
        assert not len(trace.deliveries()) or marks.marks


@pytest.mark.parametrize("draw", [finals, cbr_finals])
@pytest.mark.parametrize("early", [True, False], ids=["early", "final"])
def test_marks_of_two_grades_hold(
    draw: Callable[[int], Scenario], early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(4):
        scenario = draw(seed)
        trace, marks = played(scenario, monkeypatch, early=early)
        found = verdict(trace, marks)
        assert found.status is Status.VALID, (seed, found)
        assert marks.marks


def test_a_mark_that_is_two_slots_ahead_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = churning(1)
    trace, marks = played(scenario, monkeypatch, early=True)
    assert verdict(trace, marks).status is Status.VALID
    found = verdict(trace, marks, shift_ns=2 * max(timing.theta_ns for timing in scenario.timings))
    assert found.status is Status.VIOLATED
    assert found.witness is not None
    assert "after complete_until returned" in found.witness.text


def test_messages_of_a_member_that_was_cut_off_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_off = Partition(Span(200 * NS_PER_MS, 1500 * NS_PER_MS), ((1,),))
    scenario = replace(finals(1), faults=(cut_off,), steps=(), loss_burst=0, run_ns=3000 * NS_PER_MS)
    trace, marks = played(scenario, monkeypatch, early=False)
    assert verdict(trace, marks).status is Status.VALID
    late = {member: {message for at, message in marks.late if at == member} for member in scenario.members}
    assert late[1]
    assert {message.sender for message in late[1]} == {1}
    assert all(found == late[1] for found in late.values()), "a message is late at all members or at none"
    unmarked = check_complete_until(trace, marks.marks)
    assert unmarked.status is Status.VIOLATED
    assert unmarked.count <= len(marks.late)
