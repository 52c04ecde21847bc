"""The timestamp leader as an automaton: requests, grants, releases, and stamps of removed members."""

from __future__ import annotations

import pytest
from tests.full_rate import full_rate
from tests.stepping import outgoing
from tests.unit.test_leader import MS, START, TIMING, Bench

from unisono.model.events import Batch, LeaveComplete
from unisono.orders.leader.election import leader_change_bound_ns
from unisono.orders.leader.timestamp import TimestampLeader
from unisono.wire.frame import END_OF_SLOT, Kind, unpack_header


def order_of(bench: Bench, member: int) -> TimestampLeader:
    order = bench.order(member)
    assert isinstance(order, TimestampLeader)
    return order


def kinds(bench: Bench, member: int) -> list[int]:
    return [unpack_header(datagram.data, 0)[1] for datagram in outgoing(bench.stacks[member])]


def test_the_first_message_requests_a_burst_and_later_ones_do_not() -> None:
    bench = Bench(order="timestamp")
    bench.stacks[2].submit(bench.now, [b"a"])
    assert kinds(bench, 2) == [Kind.STAMP_REQUEST, Kind.DATA]
    assert order_of(bench, 2)._pending_requests[0].stamps == 4
    bench.stacks[2].submit(bench.now + MS, [b"b"])
    assert kinds(bench, 2) == [Kind.DATA]


def test_a_request_stays_open_for_theta_less_gamma_and_is_released_once() -> None:
    bench = Bench(order="timestamp")
    bench.stacks[2].submit(bench.now, [b"a"])
    bench.exchange()
    closes = START + TIMING.theta_ns - TIMING.gamma_ns
    bench.stacks[2].wake(closes - 1)
    assert Kind.DATA not in kinds(bench, 2)
    bench.stacks[2].wake(closes)
    released = [unpack_header(datagram.data, 0) for datagram in outgoing(bench.stacks[2])]
    assert [(fields[1], fields[2]) for fields in released if fields[1] == Kind.DATA] == [(Kind.DATA, END_OF_SLOT)]
    assert bench.stacks[2].submit(closes, [b"b"]) == 0, "requests are at least Θ apart"
    assert bench.stacks[2].submit(START + TIMING.theta_ns, [b"b"]) == 1


def test_a_full_burst_ends_its_request() -> None:
    bench = Bench(order="timestamp")
    assert bench.stacks[2].submit(bench.now, [b"x"] * 6) == 4
    data = [unpack_header(d.data, 0) for d in outgoing(bench.stacks[2])]
    assert [(fields[1], fields[2]) for fields in data] == [(Kind.STAMP_REQUEST, 0), (Kind.DATA, END_OF_SLOT)]


def test_grants_are_delivered_one_after_the_other() -> None:
    bench = Bench(order="timestamp")
    bench.stacks[2].submit(bench.now, [b"a"])
    bench.exchange()
    bench.stacks[3].submit(bench.now + MS, [b"c"])
    bench.now += MS
    bench.exchange()
    assert bench.texts(1) == [b"a"], "member 2 may still use its other stamps"
    bench.stacks[2].submit(bench.now + MS, [b"b"])
    bench.now += MS
    bench.exchange()
    bench.wait(20 * MS)
    assert bench.texts(1) == bench.texts(2) == bench.texts(3) == [b"a", b"b", b"c"]
    positions = [event.first_position for event in bench.events[1] if isinstance(event, Batch)]
    assert positions == [0, 1, 4]


def test_requests_are_granted_once_and_in_the_order_of_their_sender() -> None:
    bench = Bench(order="timestamp")
    bench.stacks[2].submit(bench.now, [b"a"] * 4)
    first = outgoing(bench.stacks[2])
    bench.stacks[2].submit(bench.now + 5 * MS, [b"b"] * 4)
    second = outgoing(bench.stacks[2])
    bench.now += 5 * MS
    for datagram in [*second, *first, *second, *first]:
        for member in (1, 3):
            if member in datagram.destinations:
                bench.stacks[member].receive(bench.now, datagram.data)
    bench.exchange()
    assert bench.texts(3) == [b"a"] * 4 + [b"b"] * 4


def test_stamps_of_a_crashed_member_do_not_block_the_others() -> None:
    bench = Bench(4, "timestamp")
    bench.stacks[3].submit(bench.now, [b"before"])
    bench.exchange()
    bench.isolated = {3}
    bench.stacks[2].submit(bench.now + MS, [b"after"])
    bench.now += MS
    bench.exchange()
    assert bench.texts(4) == [b"before"]
    bench.wait(leader_change_bound_ns(TIMING))
    assert bench.texts(4) == bench.texts(1) == [b"before", b"after"]
    assert bench.order(1).view.members == (1, 2, 4)


def test_messages_of_a_removed_member_are_delivered_once_after_it_returns() -> None:
    bench = Bench(4, "timestamp")
    bench.stacks[3].submit(bench.now, [b"one"])
    bench.exchange()
    bench.isolated = {3}
    bench.wait(6 * MS)
    assert bench.stacks[3].submit(bench.now, [b"two"]) == 1
    bench.wait(80 * MS)
    assert 3 not in bench.order(1).view.members
    bench.isolated = set()
    bench.wait(400 * MS)
    assert bench.order(1).view.members == (1, 2, 3, 4)
    assert bench.texts(1) == bench.texts(3) == [b"one", b"two"]


@pytest.mark.parametrize("open_request", [True, False])
def test_a_leaving_member_releases_its_stamps(open_request: bool) -> None:
    bench = Bench(order="timestamp")
    if open_request:
        bench.stacks[3].submit(bench.now, [b"bye"])
    bench.stacks[3].leave(bench.now)
    bench.exchange()
    bench.wait(20 * MS)
    assert isinstance(bench.events[3][-1], LeaveComplete)
    assert bench.order(1).view.members == (1, 2)
    assert bench.texts(1) == bench.texts(3) == ([b"bye"] if open_request else [])


def test_a_new_rate_takes_effect_with_the_next_request() -> None:
    bench = Bench(order="timestamp")
    bench.stacks[2].submit(bench.now, [b"x"])
    bench.stacks[2].change_rate(bench.now, full_rate(2, TIMING))
    assert bench.stacks[2].submit(bench.now, [b"x"] * 5) == 3
    bench.exchange()
    bench.wait(5 * MS)
    assert bench.stacks[2].submit(bench.now, [b"x"] * 5) == 2


def test_a_lost_request_is_repeated() -> None:
    bench = Bench(order="timestamp")
    bench.stacks[2].submit(bench.now, [b"x"])
    for datagram in outgoing(bench.stacks[2]):
        if datagram.to_group:
            bench.stacks[1].receive(bench.now, datagram.data)
            bench.stacks[3].receive(bench.now, datagram.data)
    bench.wait(80 * MS)
    assert bench.texts(1) == bench.texts(2) == bench.texts(3) == [b"x"]


def test_lost_frames_are_requested() -> None:
    bench = Bench(order="timestamp")
    bench.stacks[2].submit(bench.now, [b"x"] * 4)
    for datagram in outgoing(bench.stacks[2]):
        bench.stacks[1].receive(bench.now, datagram.data)
    bench.wait(80 * MS)
    assert bench.texts(3) == [b"x"] * 4
