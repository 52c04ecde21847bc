"""Paper 000 §5.2 proves Definition 1 of §3.1: one order, and every message in the slot of its submission."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from random import Random

import pytest
from tests.full_rate import full_rate
from tests.paper.schedule import MS, Group, fixed, random_schedule
from tests.worlds.adversaries import adversarial_network

from unisono.check.verdict import Status, overall
from unisono.model.policy import Policy
from unisono.model.scenario import EPOCH_NS
from unisono.model.timing import Timing
from unisono.model.units import Reserver
from unisono.orders.vbr.order import VbrOrder
from unisono.sim.network import constant_delay, corners
from unisono.wire.frame import Kind, unpack_header

TIMING = Timing(10 * MS, 2 * MS, 5 * MS)
SEEDS = range(150)


@cache
def run_of(seed: int) -> Group:
    """A random schedule in which applications try to send more than they declared; run once for all tests."""
    return random_schedule(seed, slots=3, greedy=True)[1].run()


def replay(seed: int) -> str:
    """The call that replays a failing schedule."""
    return f"random_schedule({seed}, slots=3, greedy=True)"


# -- Definition 1 ------------------------------------------------------------------------------------------------


def test_definition_1_total_order_two_members_deliver_any_two_messages_in_the_same_order() -> None:
    for seed in SEEDS:
        orders = [[row.message for row in rows] for rows in run_of(seed).delivered().values()]
        place = {message: number for number, message in enumerate(orders[0])}
        for order in orders[1:]:
            shared = [place[message] for message in order if message in place]
            assert shared == sorted(shared), replay(seed)


def test_definition_1_integrity_members_deliver_only_sent_messages_and_each_once() -> None:
    for seed in SEEDS:
        sent = run_of(seed).sent()
        for member, rows in run_of(seed).delivered().items():
            messages = [row.message for row in rows]
            assert len(messages) == len(set(messages)), f"{replay(seed)}, member {member}"
            assert set(messages) <= set(sent), f"{replay(seed)}, member {member}"
            # The simulated world compares each delivered payload with the sent one (`payloads=True`).
            assert all(sent[row.message].real_ns <= row.real_ns for row in rows), f"{replay(seed)}, member {member}"


def test_definition_1_liveness_every_member_delivers_every_message_within_the_bound() -> None:
    accepted = 0
    for seed in SEEDS:
        plan, group = random_schedule(seed)
        sent = group.run().sent()
        assert len(sent) == plan.sends, f"random_schedule({seed}): within its burst, a message is accepted at once"
        for member, rows in group.delivered().items():
            assert {row.message for row in rows} == set(sent), f"random_schedule({seed}), member {member}"
        accepted += len(sent)
    assert accepted > 1000


def test_definition_1_of_two_members_deliveries_one_is_a_prefix_of_the_other_at_any_time() -> None:
    for seed in SEEDS[:60]:
        _, group = random_schedule(seed)
        longest: list[tuple[int, int]] = []
        for at in range(group.world.now, group.last_ns + group.bound_ns, max(1, group.timing.theta_ns // 4)):
            orders = sorted(([row.message for row in rows] for rows in group.run(at).delivered().values()), key=len)
            for shorter, longer in pairwise(orders):
                assert longer[: len(shorter)] == shorter, f"random_schedule({seed}) at {at}"
            assert orders[-1][: len(longest)] == longest, "deliveries are never taken back"
            longest = orders[-1]


def test_the_projects_checkers_agree_that_definition_1_and_theorem_2_hold() -> None:
    valid = 0
    for seed in SEEDS:
        verdicts = run_of(seed).verdicts()
        assert set(verdicts) == {"total_order", "integrity", "fifo", "gap_freedom", "latency"}
        assert overall(verdicts) is not Status.VIOLATED, f"{replay(seed)}: {verdicts}"
        valid += overall(verdicts) is Status.VALID
    assert valid == len(SEEDS)


# -- Lemma 5.1 ---------------------------------------------------------------------------------------------------


class Observed(VbrOrder):
    """Records maxSend at the end of each own slot, and maxRate after the delivery of each slot."""

    def __init__(self, policy: Policy, reserver: Reserver) -> None:
        self.max_send_of: dict[int, int] = {}
        self.max_rate_of: dict[tuple[int, int], int] = {}
        super().__init__(policy, reserver)

    def _open_slot(self, slot: int) -> None:
        self.max_send_of[self._send_slot] = self.max_send()
        super()._open_slot(slot)

    def _finish_slot(self, now: int) -> None:
        for member in self.view.members:
            self.max_rate_of[self._deliver_slot, member] = self.max_rate(member)
        super()._finish_slot(now)


@pytest.mark.parametrize("seed", range(40))
def test_lemma_5_1_max_send_of_a_slot_is_max_rate_of_that_slot_at_every_member(seed: int) -> None:
    chance = Random(seed)
    members = tuple(range(1, chance.randint(2, 5) + 1))
    slots = 20
    offsets = {member: chance.randint(-MS, MS) for member in members}
    group = Group(
        TIMING,
        fixed(offsets),
        adversarial_network(members, corners(chance, TIMING.delta_ns), TIMING.delta_ns),
        rates={member: full_rate(chance.randint(1, 9), TIMING) for member in members},
        orders=dict.fromkeys(members, Observed),
    )
    first = group.base_ns // TIMING.theta_ns
    changes: dict[int, list[tuple[int, int]]] = {
        member: [(first, group.policies[member].rate.burst)] for member in members
    }
    for member in members:
        for number in sorted(chance.sample(range(slots), 8)):
            # At the first, the last or another instant of the slot; twice in some slots.
            at = group.slot_start(member, number) + chance.choice((0, TIMING.theta_ns - 1, 2 * MS))
            for burst in chance.sample(range(1, 10), chance.choice((1, 1, 2))):
                group.change_rate(at, member, full_rate(burst, TIMING))
                changes[member].append((first + number + 1, burst))
        for number in range(slots):
            for _ in range(chance.choice((0, 1, 9))):
                group.send(group.slot_start(member, number) + chance.randrange(TIMING.theta_ns), member, 10)
    group.run(group.base_ns + slots * TIMING.theta_ns + group.bound_ns)

    compared = 0
    for sender in members:
        order = group.orders[sender]
        assert isinstance(order, Observed)
        for slot in range(first, first + slots):
            in_force = [burst for since, burst in changes[sender] if since <= slot][-1]
            assert order.max_send_of[slot] == in_force, "a new rate applies from the next slot on"
            for receiver in members:
                other = group.orders[receiver]
                assert isinstance(other, Observed)
                assert other.max_rate_of[slot, sender] == order.max_send_of[slot], (sender, receiver, slot)
                compared += 1
    assert compared == slots * len(members) ** 2
    assert len({burst for order in group.orders.values() for burst in order.max_send_of.values()}) > 3  # type: ignore[attr-defined]


# -- Lemma 5.2 ---------------------------------------------------------------------------------------------------


def test_lemma_5_2_a_slot_is_delivered_in_the_same_order_everywhere_and_before_later_slots() -> None:
    compared = 0
    for seed in SEEDS:
        by_slot: list[dict[int, list[tuple[int, int]]]] = []
        for rows in run_of(seed).delivered().values():
            slots = [row.slot for row in rows]
            assert slots == sorted(slots), replay(seed)
            by_slot.append({slot: [row.message for row in rows if row.slot == slot] for slot in slots})
        for slot in sorted({slot for slots in by_slot for slot in slots}):
            # Only the latest slot that a member has delivered from may be incomplete at that member.
            orders = [slots.get(slot, []) for slots in by_slot if max(slots, default=-1) > slot]
            assert orders[1:] == orders[:-1], f"{replay(seed)}, slot {slot}"
            senders = [sender for sender, _ in orders[0]] if orders else []
            assert senders == sorted(senders), "sender by sender, in member order"
            compared += len(orders) > 1
    assert compared > len(SEEDS)


def test_lemma_5_2_a_message_is_delivered_in_the_slot_in_which_it_was_submitted() -> None:
    for seed in SEEDS:
        group = run_of(seed)
        sent = group.sent()
        for message, row in sent.items():
            assert row.slot == row.local_ns // group.timing.theta_ns, f"{replay(seed)}: {message}"
        for rows in group.delivered().values():
            assert all(row.slot == sent[row.message].slot for row in rows), replay(seed)


@pytest.mark.parametrize("burst", [1, 2, 3])
def test_000_15_16_17_full_load_with_rate_changes_moves_no_message_to_another_slot(burst: int) -> None:
    """The published accounting assigns 12 of 12 messages (burst 2) or 16 of 18 (burst 3) to another slot.

    Every member sends a full burst at the first instant of every slot, and changes its rate repeatedly.
    """
    members, slots = (1, 2, 3), 30
    for delay in (0, TIMING.delta_ns):
        group = Group(
            TIMING,
            fixed({1: -MS, 2: 0, 3: MS}),
            adversarial_network(members, constant_delay(delay), TIMING.delta_ns),
            rates=dict.fromkeys(members, full_rate(burst, TIMING)),
        )
        first, offered = group.base_ns // TIMING.theta_ns, 0
        due: dict[tuple[int, int], tuple[int, int]] = {}
        for member in members:
            in_force, sequence = burst, 0
            for number in range(slots):
                at = group.slot_start(member, number)
                group.send(at, member, *[100] * in_force)
                for _ in range(in_force):
                    due[member, sequence] = (first + number, at)
                    sequence += 1
                if number % 3 == member % 3:
                    in_force = burst + (number % 2)
                    group.change_rate(at + MS, member, full_rate(in_force, TIMING))
            offered += sequence
        sent = group.run().sent()
        assert {message: (row.slot, row.real_ns) for message, row in sent.items()} == due, "all accepted at once"
        assert all(node.waiting_count == 0 for node in group.world.members.values())
        for rows in group.delivered().values():
            assert len(rows) == offered == len(due)
            misattributed = [row for row in rows if row.slot != due[row.message][0]]
            assert misattributed == []
        # One frame carries all messages of a slot, the rate and the end-of-slot mark.
        for load in group.ledger.traffic.values():
            assert {n for slot, n in load.frames_by_slot.items() if first <= slot < first + slots} == {1}


def test_000_17_every_header_carries_the_burst_also_in_dummies() -> None:
    group = Group(TIMING, fixed({1: 0, 2: 0}), adversarial_network((1, 2), constant_delay(0), TIMING.delta_ns))
    seen: list[tuple[int, int]] = []
    inner = group.world.transmit

    def tapped(now: int, sender: object, datagrams: object) -> None:
        for datagram in datagrams:  # type: ignore[attr-defined]
            header = unpack_header(datagram.data, 0)
            if header[1] == Kind.DATA and header[4] == 1:
                seen.append((header[10], header[9]))
        inner(now, sender, datagrams)  # type: ignore[arg-type]

    group.world.transmit = tapped  # type: ignore[method-assign]
    first = group.base_ns // TIMING.theta_ns
    group.change_rate(group.base_ns + MS, 1, full_rate(5, TIMING))
    group.run(group.base_ns + 4 * TIMING.theta_ns)
    # No application sends, so all frames are dummies.
    assert [burst for slot, burst in seen if slot in range(first, first + 3)] == [8, 5, 5]


# -- corrections to slots and members ----------------------------------------------------------------------------


@pytest.mark.parametrize("members", [(1, 2, 3), (2, 3, 4), (5,), (7, 9, 65535), (3, 10, 11, 400)])
def test_000_13_members_with_any_ids_are_delivered(members: tuple[int, ...]) -> None:
    """With processes 1..n, the published `current := (current+1) mod n` never delivers process n."""
    group = Group(
        TIMING, fixed(dict.fromkeys(members, 0)), adversarial_network(members, constant_delay(MS), TIMING.delta_ns)
    )
    for number in range(1, 4):
        for member in members:
            group.send(group.slot_start(member, number), member, 10)
    for rows in group.run().delivered().values():
        assert [row.message for row in rows] == [(member, k) for k in range(3) for member in members]


def test_000_19_members_that_start_at_different_times_number_slots_alike() -> None:
    members = (1, 2, 3)
    start = EPOCH_NS + 1_234_567
    group = Group(
        TIMING,
        fixed({1: -MS, 2: 0, 3: MS}),
        adversarial_network(members, constant_delay(MS), TIMING.delta_ns),
        start_ns=start,
        starts_ns={1: start, 2: start + 7 * MS + 1, 3: start + 133 * MS + 3},
    )
    assert {order.view.first_slot for order in group.orders.values()} == {group.orders[1].view.first_slot}
    for number in range(1, 6):
        for member in members:
            group.send(group.slot_start(member, number), member, 10)
            group.send(group.slot_start(member, number + 1) - 1, member, 10)
    sent = group.run().sent()
    assert len(sent) == 30
    for row in sent.values():
        assert row.slot == row.local_ns // TIMING.theta_ns, "slot = ⌊clock/Θ⌋, from the Unix epoch"
    for rows in group.delivered().values():
        assert all(row.slot == sent[row.message].slot for row in rows)
        assert len(rows) == 30
