"""Validity, uniform agreement, destinations and genuineness between groups, on planted violations first."""

from __future__ import annotations

import pytest

from unisono.check.multigroup import GRACE_DELAYS, genuineness, genuineness_over_time, multigroup_agreement
from unisono.check.suite import check_all
from unisono.check.verdict import Status, Verdict
from unisono.model.events import TopologyChange
from unisono.model.topology import Topology
from unisono.model.units import NS_PER_MS
from unisono.trace.recorder import MemoryTrace, report_extras
from unisono.trace.schema import OBSERVER, EventKind, RunMeta
from unisono.trace.table import Trace

PAIR = Topology({"a": (1, 2), "b": (3, 4), "c": (5,)}, {"a": ("a", "b"), "b": ("b",), "c": ()})
BOTH, B = (1, 2, 3, 4), (3, 4)


class Run:
    """A small run, told step by step; time goes on by itself."""

    def __init__(self) -> None:
        self.memory = MemoryTrace("r", "g")
        self.now = 0
        self.delivered: dict[int, int] = {}
        self.sent: dict[int, int] = {}
        for member in PAIR.members:
            self.memory.recorder(member, incarnation=1).event(EventKind.START, slot=0, real_ns=0, local_ns=0)

    def send(self, member: int, to: tuple[int, ...]) -> tuple[int, int]:
        self.now += 1
        number = self.sent[member] = self.sent.get(member, -1) + 1
        times = {"real_ns": self.now, "local_ns": self.now}
        recorder = self.memory.recorder(member, incarnation=1)
        recorder.sent(first_sequence=number, count=1, sizes=1, slot=0, first_place=0, destinations=to, **times)
        return member, number

    def deliver(self, message: tuple[int, int], *members: int, place: int) -> None:
        for member in members:
            self.now += 1
            index = self.delivered[member] = self.delivered.get(member, -1) + 1
            self.memory.recorder(member, incarnation=1).delivered(
                sender=message[0],
                sender_incarnation=1,
                first_sequence=message[1],
                count=1,
                sizes=1,
                slot=1,
                first_place=place,
                first_index=index,
                real_ns=self.now,
                local_ns=self.now,
            )

    def crash(self, member: int) -> None:
        self.now += 1
        self.memory.recorder(OBSERVER).event(
            EventKind.CRASH, slot=0, real_ns=self.now, local_ns=self.now, subject=member, subject_incarnation=1
        )

    def trace(self) -> Trace:
        return self.memory.trace(RunMeta("r", "g", "quasi_genuine", PAIR.members, 1, 0, 1, None, True, "made"))

    def verdicts(self) -> dict[str, Verdict]:
        return multigroup_agreement(self.trace(), until_ns=self.now + 1_000, bound_ns=100)


def test_a_run_in_which_all_is_right() -> None:
    run = Run()
    for place, to in enumerate((BOTH, B, BOTH)):
        run.deliver(run.send(1, to), *to, place=place)
    assert {verdict.status for verdict in run.verdicts().values()} == {Status.VALID}
    assert {name: v.status for name, v in check_all(run.trace()).items()}.keys() >= {"total_order", "fifo", "validity"}


def test_messages_of_a_correct_member_are_delivered() -> None:
    run = Run()
    lost = run.send(2, BOTH)
    verdict = run.verdicts()["validity"]
    assert verdict.status is Status.VIOLATED
    assert verdict.witness is not None
    assert (verdict.witness.messages[0].sender, verdict.witness.messages[0].sequence) == lost


def test_messages_of_a_crashed_member_oblige_no_other_member() -> None:
    """Erratum 003-16."""
    run = Run()
    run.send(2, BOTH)
    run.crash(2)
    assert run.verdicts()["validity"].status is Status.VALID


def test_a_message_delivered_at_one_destination_is_due_at_all() -> None:
    run = Run()
    run.deliver(run.send(1, BOTH), 1, 2, 4, place=0)
    verdict = run.verdicts()["uniform_agreement"]
    assert verdict.status is Status.VIOLATED
    assert verdict.witness is not None
    assert verdict.witness.members[0] == 3


def test_agreement_is_uniform_and_crashed_destinations_are_excused() -> None:
    run = Run()
    message = run.send(1, BOTH)
    run.deliver(message, 1, place=0)
    run.crash(1)
    assert run.verdicts()["uniform_agreement"].status is Status.VIOLATED
    run.deliver(message, 2, 3, place=0)
    run.crash(4)
    assert run.verdicts()["uniform_agreement"].status is Status.VALID


def test_members_deliver_only_messages_addressed_to_them() -> None:
    run = Run()
    run.deliver(run.send(1, B), 2, 3, 4, place=0)
    verdict = run.verdicts()["destined"]
    assert (verdict.status, verdict.count) == (Status.VIOLATED, 1)


def test_a_cycle_over_three_groups_is_found_though_no_two_members_disagree() -> None:
    """Acyclic order: each pair of messages has one group in common, and each group is content by itself."""
    run = Run()
    x, y, z = run.send(1, (1, 3)), run.send(2, (1, 5)), run.send(3, (3, 5))
    run.deliver(x, 1, place=0)
    run.deliver(y, 1, place=1)
    run.deliver(y, 5, place=1)
    run.deliver(z, 5, place=2)
    run.deliver(z, 3, place=2)
    run.deliver(x, 3, place=0)
    verdict = check_all(run.trace())["total_order"]
    assert verdict.status is Status.VIOLATED
    assert verdict.witness is not None
    assert len(verdict.witness.messages) == 3


@pytest.mark.parametrize(
    ("pair", "status"),
    [
        ((1, 2), Status.VALID),
        ((1, 3), Status.VALID),
        ((3, 1), Status.VALID),
        ((1, 5), Status.VIOLATED),
        ((4, 5), Status.VIOLATED),
        ((1, 0), Status.VIOLATED),
    ],
)
def test_only_related_groups_talk(pair: tuple[int, int], status: Status) -> None:
    """A relation in one direction is enough: what is sent one way is acknowledged the other way."""
    assert genuineness(PAIR, {(1, 2): 9, pair: 3}).status is status


class Changing(Run):
    """Group a begins to send to c and stops, told by its members as they learn of it; Δ is 5 ms."""

    def trace(self) -> Trace:
        delta_ns = 5 * NS_PER_MS
        return self.memory.trace(RunMeta("r", "g", "quasi_genuine", PAIR.members, delta_ns, 0, 1, None, True, "made"))

    def tell(self, at_ms: int, member: int, *talks: str) -> None:
        event = TopologyChange.of(member, ("a",), ("a",), talks, complete=True)
        recorder = self.memory.recorder(member, incarnation=1)
        recorder.event(
            EventKind.NOTICE,
            slot=0,
            real_ns=at_ms * NS_PER_MS,
            local_ns=at_ms * NS_PER_MS,
            extras=report_extras(event),
        )

    def judged(self, contacts: dict[tuple[int, int], list[int]], paused_ms: int = 0) -> Verdict:
        at = {pair: [ms * NS_PER_MS for ms in times] for pair, times in contacts.items()}
        return genuineness_over_time(PAIR, self.trace(), at, paused_ms * NS_PER_MS)


@pytest.mark.parametrize(
    ("contacts", "status"),
    [
        ({(1, 5): [98]}, Status.VIOLATED),
        ({(1, 5): [100, 150, 200]}, Status.VALID),
        ({(5, 1): [100, 200]}, Status.VALID),
        ({(1, 5): [200, 230]}, Status.VIOLATED),
        ({(5, 1): [230]}, Status.VIOLATED),
        ({(2, 5): [230, 290]}, Status.VALID),
        ({(1, 3): [5, 500], (1, 2): [7]}, Status.VALID),
        ({(1, 0): [150]}, Status.VIOLATED),
    ],
)
def test_contacts_during_a_topology_change(contacts: dict[tuple[int, int], list[int]], status: Status) -> None:
    """Member 2 learns of the end later than member 1; member 5, of the other group, says nothing."""
    run = Changing()
    for member, ends in ((1, 200), (2, 300)):
        run.tell(100, member, "a", "b", "c")
        run.tell(ends, member, "a", "b")
    verdict = run.judged(contacts)
    assert verdict.status is status
    if status is Status.VIOLATED:
        assert verdict.witness is not None
        assert "allowed to send to the other" in verdict.witness.text or "to all members" in verdict.witness.text


def test_messages_in_transit_are_answered() -> None:
    run = Changing()
    for member in (1, 2):
        run.tell(100, member, "a", "b", "c")
        run.tell(200, member, "a", "b")
    grace_ms = GRACE_DELAYS * 5
    assert run.judged({(5, 1): [200 + grace_ms - 1]}).status is Status.VALID
    assert run.judged({(5, 1): [202 + grace_ms]}).status is Status.VIOLATED
    assert run.judged({(5, 1): [202 + grace_ms]}, paused_ms=5).status is Status.VALID


def test_a_new_incarnation_starts_with_the_declared_topology() -> None:
    run = Changing()
    run.tell(1, 1, "a")
    assert run.judged({(1, 3): [50]}).status is Status.VALID, "member 3 knows of no change"
    run.tell(1, 3, "b")
    assert run.judged({(1, 3): [50]}).status is Status.VIOLATED
    run.now = 40 * NS_PER_MS
    run.crash(1)
    assert run.judged({(1, 3): [50]}).status is Status.VALID


def test_only_a_member_that_returns_with_an_old_relation_is_answered_by_its_group() -> None:
    run = Changing()
    for member in (1, 2):
        run.tell(1, member, "a", "b", "c")
        run.tell(30, member, "a", "b")
    run.now = 40 * NS_PER_MS
    run.crash(1)
    assert run.judged({(5, 1): [200]}).status is Status.VALID
    assert run.judged({(5, 2): [200]}).status is Status.VIOLATED
    run.memory.recorder(1, incarnation=2).event(
        EventKind.START, slot=0, real_ns=150 * NS_PER_MS, local_ns=150 * NS_PER_MS
    )
    assert run.judged({(5, 2): [200]}).status is Status.VALID
    assert run.judged({(5, 2): [39]}).status is Status.VALID, "what was under way"
    assert run.judged({(2, 0): [200]}).status is Status.VIOLATED
