"""How a group forms: every member knows the first slot before it begins (paper 000 §5.1 init-rate, §6.3 Smax)."""

import heapq
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from unisono.model.events import View, Violation
from unisono.model.policy import Policy, Redundancy
from unisono.model.timing import Timing
from unisono.model.units import Rate, members_key
from unisono.orders.formation import RateExchange
from unisono.wire.codec import control_frame, message_in
from unisono.wire.control import Hello
from unisono.wire.frame import Frame

MS = 1_000_000
T0 = 10**18
TIMING = Timing(10 * MS, 2 * MS, 5 * MS)


def policy(member: int = 1, members: tuple[int, ...] = (1, 2, 3), **changes: Any) -> Policy:
    fields: dict[str, Any] = {"timing": TIMING, "rate": Rate(50, 8)}
    fields.update(changes)
    return Policy("g", member, View(members), **fields)


def hello_of(peer: Policy, first_slot: int = 0, complete: bool = False) -> Frame:
    timing, rate = peer.timing, peer.rate
    hello = Hello(
        timing.theta_ns,
        timing.delta_ns,
        timing.gamma_ns,
        members_key(peer.view.members),
        rate.avg,
        rate.burst,
        rate.bytes_per_slot(peer.max_message),
        first_slot,
        complete,
        (),
    )
    return control_frame(hello, peer.member, peer.incarnation, peer.epoch)


class Start:
    """Members that start at different times, on a network of delays up to Δ that may reorder and lose."""

    def __init__(self, seed: int, loss: float = 0.0) -> None:
        self.chance = random.Random(seed)
        self.loss = loss
        members = tuple(range(1, self.chance.randint(1, 5) + 1))
        margin = self.chance.choice([0, 0, 30 * MS])
        half = TIMING.gamma_ns // 2
        self.offset = {m: self.chance.choice([-half, half, self.chance.randint(-half, half)]) for m in members}
        self.started = {m: T0 + self.chance.randint(0, 100 * MS) for m in members}
        self.exchanges = {m: RateExchange(policy(m, members, start_margin_ns=margin)) for m in members}
        self.complete_at: dict[int, int] = {}
        self.sent: Counter[int] = Counter()
        self._heap: list[tuple[int, int, int, Frame]] = []

    def run(self, until: int) -> None:
        now = 0
        while now <= until:
            arrival = self._heap[0][0] if self._heap else until + 1
            due = [
                (max(at - self.offset[m], self.started[m]), m)
                for m, exchange in self.exchanges.items()
                if (at := exchange.next_hello_at) is not None
            ]
            now = min(arrival, *(at for at, _ in due), until + 1)
            if now > until:
                return
            if arrival == now:
                _, _, member, frame = heapq.heappop(self._heap)
                if self.started[member] <= now:
                    assert self.exchanges[member].from_below(now + self.offset[member], frame) is None
            else:
                member = min(due)[1]
                clock = now + self.offset[member]
                self.exchanges[member].wake(clock)
                again = self.exchanges[member].next_hello_at
                assert again is None or again > clock, "a wake makes progress"
            self._after(now, member)

    def _after(self, now: int, member: int) -> None:
        exchange = self.exchanges[member]
        if exchange.complete:
            self.complete_at.setdefault(member, now + self.offset[member])
        for frame in exchange.down:
            for peer in self.exchanges:
                if peer != member and frame.to in {0, peer}:
                    self.sent[member] += 1
                    if self.chance.random() >= self.loss:
                        delay = self.chance.choice([0, TIMING.delta_ns, self.chance.randint(0, TIMING.delta_ns)])
                        heapq.heappush(self._heap, (now + delay, self.sent.total(), peer, frame))
        exchange.down.clear()


@pytest.mark.parametrize("seed", range(150))
def test_every_member_knows_the_first_slot_before_it_begins(seed: int) -> None:
    start = Start(seed)
    start.run(T0 + 400 * MS)
    (first,) = {exchange.first_slot() for exchange in start.exchanges.values()}
    for member, clock in start.complete_at.items():
        assert clock < TIMING.start_of(first), f"member {member} learned of slot {first} too late"
    assert len(start.complete_at) == len(start.exchanges)


@pytest.mark.parametrize("seed", range(150))
def test_hellos_end_once_every_member_knows_the_first_slot(seed: int) -> None:
    start = Start(seed)
    start.run(T0 + 400 * MS)
    assert all(
        exchange.is_complete_everywhere() and exchange.next_hello_at is None for exchange in start.exchanges.values()
    )


@pytest.mark.parametrize("seed", range(100))
def test_lost_hellos_are_repeated_until_every_member_knows_the_first_slot(seed: int) -> None:
    start = Start(seed, loss=0.5)
    start.run(T0 + 5_000 * MS)
    assert len(start.complete_at) == len(start.exchanges)
    assert len({exchange.first_slot() for exchange in start.exchanges.values()}) == 1
    assert all(exchange.missing() == () for exchange in start.exchanges.values())


def test_a_member_names_its_first_slot_only_after_a_hello_of_every_peer() -> None:
    exchange = RateExchange(policy(1))
    exchange.wake(T0)
    assert message_in(exchange.down.pop(), Hello).first_slot == 0
    assert exchange.from_below(T0, hello_of(policy(2))) is None
    assert exchange.down == []
    assert exchange.missing() == (2, 3)
    assert exchange.from_below(T0, hello_of(policy(3), 9)) is None
    (frame,) = exchange.down
    assert message_in(frame, Hello).first_slot == TIMING.smax(T0)
    assert not message_in(frame, Hello).complete, "member 2 has not named its slot"
    assert exchange.missing() == (2,)
    assert [h.member for h in message_in(frame, Hello).seen_peers] == [2, 3]


def test_a_member_that_becomes_complete_sends_one_hello_to_all() -> None:
    """A member that becomes complete by a HELLO of a complete peer has no other reason to send one."""
    exchange = RateExchange(policy(1, (1, 2)))
    exchange.wake(T0)
    exchange.from_below(T0, hello_of(policy(2, (1, 2))))
    exchange.down.clear()
    exchange.from_below(T0, hello_of(policy(2, (1, 2)), 200_000_000_003, complete=True))
    (frame,) = exchange.down
    assert frame.to == 0
    assert message_in(frame, Hello).complete
    exchange.down.clear()
    exchange.from_below(T0, hello_of(policy(2, (1, 2)), 200_000_000_003, complete=True))
    assert exchange.down == [], "nothing new, so no HELLO"
    exchange.from_below(T0, hello_of(policy(2, (1, 2)), 200_000_000_003))
    assert [f.to for f in exchange.down] == [2], "a peer that is not complete gets another HELLO, alone"


def test_naming_a_slot_and_becoming_complete_takes_one_hello() -> None:
    exchange = RateExchange(policy(1, (1, 2)))
    exchange.from_below(T0, hello_of(policy(2, (1, 2)), 7))
    (frame,) = exchange.down
    assert message_in(frame, Hello).complete


def test_an_earlier_hello_that_arrives_late_changes_nothing() -> None:
    exchange = RateExchange(policy(1, (1, 2)))
    exchange.from_below(T0, hello_of(policy(2, (1, 2)), 7, complete=True))
    assert exchange.is_complete_everywhere()
    exchange.from_below(T0, hello_of(policy(2, (1, 2))))
    assert exchange.is_complete_everywhere()
    exchange.from_below(T0, hello_of(policy(2, (1, 2)), 7))
    assert exchange.is_complete_everywhere()


@pytest.mark.parametrize(
    "changes",
    [
        {"timing": replace(TIMING, theta_ns=6 * MS)},
        {"timing": replace(TIMING, delta_ns=11 * MS)},
        {"timing": replace(TIMING, gamma_ns=3 * MS)},
        {"members": (2, 3)},
        {"failures": True},
        {"failures": True, "loss_burst": 2},
        {"fec": (1, 4)},
        {"order": "leader"},
        {"reliable": Redundancy(2, "10ms")},
    ],
    ids=str,
)
def test_the_group_does_not_begin_with_a_member_of_another_policy(changes: dict[str, Any]) -> None:
    exchange, other = RateExchange(policy(1)), RateExchange(policy(2, **changes))
    other.wake(T0)
    assert exchange.from_below(T0, other.down[0]) is None, "the plan exchange reports the difference"
    assert 2 in exchange.missing()
    assert exchange.problems == {2: "joined with other options"}
    exchange.from_below(T0, hello_of(policy(2)))
    assert exchange.problems == {}, "the peer has fixed its policy"


def test_another_epoch_is_reported_once() -> None:
    exchange = RateExchange(policy(1))
    violations = [exchange.from_below(T0 + n, hello_of(policy(2, epoch=4), 9)) for n in range(5)]
    (violation,) = [v for v in violations if v is not None]
    assert (violation.kind, violation.member) == ("policy_differs", 2)
    assert 2 in exchange.missing()
    assert exchange.problems == {2: "is in epoch 4, here it is 0"}


def test_a_member_that_restarts_before_the_group_begins_takes_part_as_its_new_incarnation() -> None:
    exchange = RateExchange(policy(1))
    exchange.from_below(T0, hello_of(policy(2), 100))
    exchange.from_below(T0, hello_of(policy(2, incarnation=5)))
    assert exchange.incarnations[2] == 5
    assert 2 in exchange.missing(), "the slot named by its earlier incarnation does not count"


def test_a_member_that_restarts_later_is_reported_once_and_changes_nothing() -> None:
    exchange = RateExchange(policy(1, (1, 2)))
    exchange.from_below(T0, hello_of(policy(2, (1, 2)), 7, complete=True))
    first = exchange.first_slot()
    again = [exchange.from_below(T0, hello_of(policy(2, (1, 2), incarnation=5), 10**9)) for _ in range(4)]
    (violation,) = [v for v in again if isinstance(v, Violation)]
    assert (violation.kind, violation.member) == ("restarted", 2)
    assert (exchange.first_slot(), exchange.incarnations[2]) == (first, 1)


def test_a_start_margin_makes_the_first_slot_later() -> None:
    margin = RateExchange(policy(1, (1,), start_margin_ns=500 * MS))
    margin.wake(T0)
    assert margin.first_slot() == (T0 + 500 * MS) // TIMING.theta_ns + 1
    small = RateExchange(policy(1, (1,), start_margin_ns=1))
    small.wake(T0)
    assert small.first_slot() == TIMING.smax(T0), "never earlier than Smax"


def test_a_group_of_one_member_is_complete_at_once() -> None:
    exchange = RateExchange(policy(1, (1,)))
    exchange.wake(T0)
    assert exchange.complete
    assert exchange.is_complete_everywhere()
    assert exchange.next_hello_at is None
    assert exchange.first_slot() == TIMING.smax(T0)


def test_a_peers_rate_is_the_declared_one() -> None:
    exchange = RateExchange(policy(1))
    exchange.from_below(T0, hello_of(policy(2, rate=Rate(12.5, 3), max_message=100)))
    assert exchange.rate(2) == Rate(12.5, 3, 300)


def test_multicast_is_used_only_if_it_reaches_every_peer() -> None:
    members = (1, 2, 3)
    exchanges = {m: RateExchange(policy(m, members, multicast=True)) for m in members}
    for _ in range(3):
        for sender, exchange in exchanges.items():
            exchange.wake(exchange.next_hello_at or T0)
            frames, exchange.down[:] = exchange.down[:], []
            assert {f.multicast for f in frames if not f.to} <= {True, False}
            for frame in frames:
                for m, other in exchanges.items():
                    # Member 3 is behind a switch that drops multicast from member 1.
                    blocked = frame.multicast and (sender, m) == (1, 3)
                    if m != sender and frame.to in {0, m} and not blocked:
                        other.from_below(T0, frame)
    assert not exchanges[1].reaches_all_by_multicast()
    assert exchanges[2].reaches_all_by_multicast()
    assert exchanges[3].reaches_all_by_multicast()


def test_loss_bursts_must_be_equal() -> None:
    exchange = RateExchange(policy(1, failures=True, loss_burst=1))
    other = RateExchange(policy(2, failures=True, loss_burst=2))
    other.wake(T0)
    exchange.from_below(T0, other.down[0])
    assert 2 in exchange.problems


def test_after_a_slot_length_change_declared_lengths_may_differ() -> None:
    exchange, other = RateExchange(policy(1)), RateExchange(policy(2, timing=replace(TIMING, theta_ns=7 * MS)))
    other.wake(T0)
    exchange.from_below(T0, other.down[0])
    assert 2 in exchange.problems
    exchange.slot_changes = 1
    exchange.from_below(T0, other.down[0])
    assert exchange.problems == {}
