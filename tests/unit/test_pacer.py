"""The pacer: a sender exceeds neither the burst per slot, nor the payload per slot, nor the average (000 §2.1)."""

import random

import pytest

from unisono.model.units import Rate
from unisono.orders.packing import Pacer

THETA_NS = 250_000_000
"""Averages hold over one second, which is four slots."""


def test_a_slot_accepts_at_most_its_burst() -> None:
    pacer = Pacer(Rate(1000, 3), THETA_NS, 100)
    pacer.open_slot(10)
    assert (pacer.messages_left(), pacer.bytes_left(), pacer.is_full()) == (3, 300, False)
    pacer.record_sent(2, 150)
    assert (pacer.messages_left(), pacer.bytes_left(), pacer.is_full()) == (1, 150, False)
    pacer.record_sent(1, 0)
    assert (pacer.messages_left(), pacer.is_full()) == (0, True)
    pacer.open_slot(11)
    assert (pacer.messages_left(), pacer.bytes_left(), pacer.is_full()) == (3, 300, False)


def test_the_average_limits_a_sender_until_old_slots_leave_the_window() -> None:
    pacer = Pacer(Rate(6, 3), THETA_NS, 100)  # 6 in any 4 slots
    sent = []
    for slot in range(12):
        pacer.open_slot(slot)
        sent.append(pacer.messages_left())
        pacer.record_sent(sent[-1], 0)
    assert sent == [3, 3, 0, 0] * 3


def test_skipped_slots_count_as_empty() -> None:
    pacer = Pacer(Rate(3, 3), THETA_NS, 100)
    pacer.open_slot(0)
    pacer.record_sent(3, 0)
    pacer.open_slot(3)
    assert pacer.is_full(), "slots 0 to 3 are one window"
    pacer.open_slot(4)
    assert pacer.messages_left() == 3


@pytest.mark.parametrize("seed", range(40))
def test_no_sender_exceeds_any_of_the_three_limits(seed: int) -> None:
    chance = random.Random(seed)
    rate = Rate(chance.choice([0.5, 2, 7.5, 40, 1000]), chance.randint(1, 12), chance.choice([None, 500]))
    theta_ns, max_message = chance.choice([THETA_NS, 100_000_000, 2_000_000_000]), 100
    pacer = Pacer(rate, theta_ns, max_message)
    sent: dict[int, int] = {}
    slot = 1000
    while slot < 1300:
        pacer.open_slot(slot)
        sent[slot], sent_bytes = 0, 0
        greedy = chance.random() < 0.7
        for _ in range(chance.randint(0, 4)):
            count = pacer.messages_left() if greedy else chance.randint(0, pacer.messages_left())
            size = chance.randint(0, min(pacer.bytes_left(), count * max_message))
            pacer.record_sent(count, size)
            sent[slot] += count
            sent_bytes += size
        assert sent[slot] <= rate.burst
        assert sent_bytes <= rate.bytes_per_slot(max_message)
        assert pacer.messages_left() >= 0 <= pacer.bytes_left()
        slot += chance.choice([1, 1, 1, 2, 9])
    window, allowance = rate.averaging_slots(theta_ns), rate.allowance(theta_ns)
    for start in range(1000 - window, 1300):
        assert sum(sent.get(s, 0) for s in range(start, start + window)) <= allowance


@pytest.mark.parametrize("seed", range(40))
def test_after_a_rate_change_the_new_average_holds_over_its_own_window(seed: int) -> None:
    chance = random.Random(seed)
    old, new = (Rate(chance.randint(4, 40), chance.randint(1, 9)) for _ in range(2))
    pacer = Pacer(old, THETA_NS, 100)
    sent: dict[int, int] = {}
    change = chance.randint(5, 15)
    for slot in range(40):
        pacer.open_slot(slot, new if slot == change else None)
        in_force = new if slot >= change else old
        assert pacer.rate == in_force
        sent[slot] = chance.randint(0, pacer.messages_left())
        pacer.record_sent(sent[slot], 0)
        assert sent[slot] <= in_force.burst
    window, allowance = new.averaging_slots(THETA_NS), new.allowance(THETA_NS)
    for start in range(change, 40):
        assert sum(sent.get(s, 0) for s in range(start, start + window)) <= allowance


def test_messages_before_a_rate_change_count_after_it() -> None:
    pacer = Pacer(Rate(40, 10), THETA_NS, 100)
    pacer.open_slot(0)
    pacer.record_sent(10, 0)
    pacer.open_slot(1, Rate(4, 4))
    assert pacer.messages_left() == 0
    pacer.open_slot(4)
    assert pacer.messages_left() == 4
