"""Gathering without a registry: there is one table, whatever beacons are lost and whenever processes start."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.agreement.gathering import BEACON_INTERVAL_NS, Gathering, assign_numbers, choose_table
from unisono.wire.beacon import Applicant, Beacon, decode_beacon, encode_beacon, table_key

MS = 1_000_000
GROUP = 77

APPLICANT = st.builds(
    Applicant,
    incarnation=st.integers(0, 2**32 - 1),
    host=st.sampled_from(["127.0.0.1", "10.0.0.7", "fe80::1"]),
    port=st.integers(1, 65535),
    nonce=st.integers(1, 2**64 - 1),
    requested_member=st.integers(0, 5),
)
BEACON = st.builds(
    Beacon,
    group=st.integers(0, 2**32 - 1),
    members=st.integers(1, 200),
    sender=st.integers(1, 2**64 - 1),
    proposal=st.integers(0, 2**64 - 1),
    voted=st.booleans(),
    decided=st.booleans(),
    known=st.lists(APPLICANT, max_size=6, unique_by=lambda each: each.nonce).map(tuple),
)


@given(BEACON)
def test_a_beacon_survives_the_wire(beacon: Beacon) -> None:
    assert decode_beacon(encode_beacon(beacon)) == beacon


@given(BEACON, st.data())
def test_a_damaged_beacon_is_refused_or_decodes_to_another_one(beacon: Beacon, data: st.DataObject) -> None:
    raw = bytearray(encode_beacon(beacon))
    assert decode_beacon(bytes(raw[: data.draw(st.integers(0, len(raw) - 1))])) is None
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    found = decode_beacon(bytes(raw))
    assert found is None or decode_beacon(encode_beacon(found)) == found


@given(st.lists(APPLICANT, max_size=8, unique_by=lambda each: each.nonce), st.integers(1, 5), st.randoms())
def test_the_same_knowledge_gives_the_same_table(known: list[Applicant], members: int, chance: random.Random) -> None:
    table = choose_table(tuple(known), members)
    chance.shuffle(known)
    assert choose_table(tuple(known), members) == table
    if table is not None:
        numbers = assign_numbers(table)
        assert sorted(numbers) == list(range(1, members + 1))
        assert set(numbers.values()) == set(table)
        assert all(each.requested_member in {0, number} for number, each in numbers.items())


def applicant(number: int, *, requested: int = 0, incarnation: int = 10) -> Applicant:
    return Applicant(incarnation, "10.0.0.1", 9000 + number, 1000 + number, requested)


class Net:
    """A network that broadcasts beacons and loses, delays and duplicates some of them."""

    def __init__(self, seed: int, loss: float) -> None:
        self.chance = random.Random(seed)
        self.loss = loss
        self.now = 0
        self.processes: dict[int, Gathering] = {}
        self.in_transit: list[tuple[int, int, Beacon]] = []
        self.crashed: set[int] = set()

    def add(self, process: Applicant, members: int) -> Gathering:
        self.processes[process.nonce] = Gathering(GROUP, process, members)
        return self.processes[process.nonce]

    def run(self, seconds: float) -> None:
        until = self.now + int(seconds * 1000 * MS)
        while self.now < until:
            self.now += 10 * MS
            due = [entry for entry in self.in_transit if entry[0] <= self.now]
            self.in_transit = [entry for entry in self.in_transit if entry[0] > self.now]
            for _, to, beacon in due:
                if to in self.processes and to not in self.crashed:
                    self.processes[to].on_beacon(self.now, beacon)
            for nonce, process in self.processes.items():
                if nonce in self.crashed:
                    continue
                if process.wake_at() <= self.now:
                    process.wake(self.now)
                for beacon in process.outgoing:
                    for to in self.processes:
                        for _ in range(1 + (self.chance.random() < 0.05)):
                            if to != nonce and self.chance.random() >= self.loss:
                                at = self.now + self.chance.randrange(1, 200) * MS
                                self.in_transit.append((at, to, beacon))
                process.outgoing.clear()

    def tables(self) -> set[int]:
        return {table_key(p.table) for p in self.processes.values() if p.table is not None}


@pytest.mark.parametrize("seed", range(30))
def test_all_processes_decide_one_table_despite_losses_and_late_starts(seed: int) -> None:
    chance = random.Random(seed)
    net, members = Net(seed, loss=chance.choice([0.0, 0.1, 0.4])), chance.randint(1, 7)
    order = list(range(members))
    chance.shuffle(order)
    for number in order:
        net.add(applicant(number, incarnation=10 + chance.randrange(3)), members)
        net.run(chance.choice([0, 0.01, 0.3, 2.0]))
        assert len(net.tables()) <= 1
    net.run(10)
    assert len(net.tables()) == 1
    assert all(process.table is not None for process in net.processes.values())


@pytest.mark.parametrize("seed", range(60))
def test_no_two_tables_are_decided_although_too_many_processes_start_and_some_crash(seed: int) -> None:
    chance = random.Random(1000 + seed)
    members = chance.randint(2, 4)
    net = Net(seed, loss=chance.choice([0.0, 0.3, 0.6]))
    # Fewer than 2n processes, so any two tables share one.
    for number in range(chance.randint(members, 2 * members - 1)):
        net.add(applicant(number, incarnation=10 + chance.randrange(4)), members)
        net.run(chance.choice([0, 0.05, 0.6]))
        if chance.random() < 0.2:
            net.crashed.add(chance.choice(list(net.processes)))
    net.run(6)
    assert len(net.tables()) <= 1


def test_a_process_votes_only_once() -> None:
    """If it changed its vote, two tables that share it could both be decided."""
    a, b, c, d = (applicant(number) for number in range(4))
    process = Gathering(GROUP, b, 3)
    first, second = (a, b, c), (b, c, d)
    process.wake(0)
    process.on_beacon(1, Beacon(GROUP, 3, a.nonce, table_key(first), False, False, first))
    process.on_beacon(2, Beacon(GROUP, 3, a.nonce, table_key(first), True, False, first))
    assert process._vote == first
    process.on_beacon(3, Beacon(GROUP, 3, d.nonce, table_key(second), True, False, second))
    assert process._vote == first, "the first vote stands"


def test_a_late_process_learns_that_the_group_is_complete() -> None:
    net = Net(1, 0.0)
    for number in range(3):
        net.add(applicant(number), 3)
    net.run(3)
    late = net.add(applicant(9), 3)
    net.run(2)
    assert late.table is None
    assert late.table_without_me == next(iter(net.processes.values())).table
    assert "the group is complete without this process: 1 at 10.0.0.1:9000" in late.why_incomplete()


def test_requested_numbers_are_assigned_and_a_second_request_is_skipped() -> None:
    net = Net(2, 0.0)
    applicants = [
        applicant(0, requested=3),
        applicant(1),
        applicant(2, requested=1),
        applicant(3, requested=3, incarnation=11),
    ]
    for each in applicants:
        net.add(each, 3)
    net.run(3)
    tables = {nonce: process.table for nonce, process in net.processes.items() if process.table}
    assert set(tables) == {each.nonce for each in applicants[:3]}
    assert assign_numbers(next(iter(tables.values()))) == {1: applicants[2], 2: applicants[1], 3: applicants[0]}


def test_a_restarted_process_replaces_its_earlier_incarnation_before_the_vote() -> None:
    net = Net(3, 0.0)
    old = applicant(0)
    net.add(old, 3)
    net.run(0.2)
    net.crashed.add(old.nonce)
    new = Applicant(11, old.host, old.port, 5000)
    for each in (new, applicant(1), applicant(2)):
        net.add(each, 3)
    net.run(4)
    table = net.processes[new.nonce].table
    assert table is not None
    assert new in table
    assert old not in table


def test_a_different_group_size_is_reported() -> None:
    process = Gathering(GROUP, applicant(0), 3)
    process.on_beacon(0, Beacon(GROUP, 4, 5, 0, False, False, (applicant(1),)))
    assert "expects 4 members, this process 3" in process.why_incomplete()
    process.wake(0)
    assert process.wake_at() == BEACON_INTERVAL_NS
