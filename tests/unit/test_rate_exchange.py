"""How a group begins: everyone knows the first slot before it begins (paper 000 §5.1 init-rate, §6.3 Smax)."""

import heapq
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from unisono.model.events import Violation
from unisono.model.policy import Policy
from unisono.model.rates import Rate
from unisono.model.timing import Timing
from unisono.model.views import View
from unisono.orders.formation import RateExchange, members_key
from unisono.wire.control import Hello, decode_hello, encode_hello
from unisono.wire.frame import Frame, Kind

MS = 1_000_000
T0 = 10**18
TIMING = Timing(10 * MS, 2 * MS, 5 * MS)


def policy(member: int = 1, members: tuple[int, ...] = (1, 2, 3), **changes: Any) -> Policy:
    fields: dict[str, Any] = {"timing": TIMING, "rate": Rate(50, 8)}
    fields.update(changes)
    return Policy("g", member, View(members), **fields)


def said(frame: Frame) -> Hello:
    hello = decode_hello(bytes(frame.body))
    assert hello is not None
    return hello


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
    return Frame(Kind.HELLO, peer.member, peer.incarnation, peer.epoch, 0, 0, body=encode_hello(hello))


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
        self.parts = {m: RateExchange(policy(m, members, start_margin_ns=margin)) for m in members}
        self.complete_at: dict[int, int] = {}
        self.sent: Counter[int] = Counter()
        self._heap: list[tuple[int, int, int, Frame]] = []

    def run(self, until: int) -> None:
        now = 0
        while now <= until:
            arrival = self._heap[0][0] if self._heap else until + 1
            due = [
                (max(at - self.offset[m], self.started[m]), m)
                for m, part in self.parts.items()
                if (at := part.wake_at()) is not None
            ]
            now = min(arrival, *(at for at, _ in due), until + 1)
            if now > until:
                return
            if arrival == now:
                _, _, member, frame = heapq.heappop(self._heap)
                if self.started[member] <= now:
                    assert self.parts[member].from_below(now + self.offset[member], frame) is None
            else:
                member = min(due)[1]
                clock = now + self.offset[member]
                self.parts[member].wake(clock)
                again = self.parts[member].wake_at()
                assert again is None or again > clock, "a wake makes progress"
            self._after(now, member)

    def _after(self, now: int, member: int) -> None:
        part = self.parts[member]
        if part.complete:
            self.complete_at.setdefault(member, now + self.offset[member])
        for frame in part.down:
            for peer in self.parts:
                if peer != member and frame.to in {0, peer}:
                    self.sent[member] += 1
                    if self.chance.random() >= self.loss:
                        delay = self.chance.choice([0, TIMING.delta_ns, self.chance.randint(0, TIMING.delta_ns)])
                        heapq.heappush(self._heap, (now + delay, self.sent.total(), peer, frame))
        part.down.clear()


@pytest.mark.parametrize("seed", range(150))
def test_everyone_knows_the_first_slot_before_it_begins(seed: int) -> None:
    start = Start(seed)
    start.run(T0 + 400 * MS)
    (first,) = {part.first_slot() for part in start.parts.values()}
    for member, clock in start.complete_at.items():
        assert clock < TIMING.start_of(first), f"member {member} learnt of slot {first} too late"
    assert len(start.complete_at) == len(start.parts)


@pytest.mark.parametrize("seed", range(150))
def test_once_everyone_knows_the_hellos_end(seed: int) -> None:
    start = Start(seed)
    start.run(T0 + 400 * MS)
    assert all(part.is_complete_everywhere() and part.wake_at() is None for part in start.parts.values())


@pytest.mark.parametrize("seed", range(100))
def test_lost_hellos_are_repeated_until_everyone_knows(seed: int) -> None:
    start = Start(seed, loss=0.5)
    start.run(T0 + 5_000 * MS)
    assert len(start.complete_at) == len(start.parts)
    assert len({part.first_slot() for part in start.parts.values()}) == 1
    assert all(part.missing() == () for part in start.parts.values())


def test_the_first_slot_is_named_only_when_everyone_is_heard() -> None:
    part = RateExchange(policy(1))
    part.wake(T0)
    assert said(part.down.pop()).first_slot == 0
    assert part.from_below(T0, hello_of(policy(2))) is None
    assert part.down == []
    assert part.missing() == (2, 3)
    assert part.from_below(T0, hello_of(policy(3), 9)) is None
    (frame,) = part.down
    assert said(frame).first_slot == TIMING.smax(T0)
    assert not said(frame).complete, "member 2 has not named its slot"
    assert part.missing() == (2,)
    assert [h.member for h in said(frame).seen_peers] == [2, 3]


def test_who_becomes_complete_tells_everyone_once() -> None:
    """A member whose last HELLO came from a complete peer has no other occasion to say so."""
    part = RateExchange(policy(1, (1, 2)))
    part.wake(T0)
    part.from_below(T0, hello_of(policy(2, (1, 2))))
    part.down.clear()
    part.from_below(T0, hello_of(policy(2, (1, 2)), 200_000_000_003, complete=True))
    (frame,) = part.down
    assert frame.to == 0
    assert said(frame).complete
    part.down.clear()
    part.from_below(T0, hello_of(policy(2, (1, 2)), 200_000_000_003, complete=True))
    assert part.down == [], "nothing new, nothing said"
    part.from_below(T0, hello_of(policy(2, (1, 2)), 200_000_000_003))
    assert [f.to for f in part.down] == [2], "who is not complete is told again, alone"


def test_naming_and_completing_at_once_is_one_hello() -> None:
    part = RateExchange(policy(1, (1, 2)))
    part.from_below(T0, hello_of(policy(2, (1, 2)), 7))
    (frame,) = part.down
    assert said(frame).complete


def test_a_hello_that_was_overtaken_takes_nothing_back() -> None:
    part = RateExchange(policy(1, (1, 2)))
    part.from_below(T0, hello_of(policy(2, (1, 2)), 7, complete=True))
    assert part.is_complete_everywhere()
    part.from_below(T0, hello_of(policy(2, (1, 2))))
    assert part.is_complete_everywhere()
    part.from_below(T0, hello_of(policy(2, (1, 2)), 7))
    assert part.is_complete_everywhere()


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"timing": replace(TIMING, theta_ns=6 * MS)}, "slot 6ms, here it is 5ms"),
        ({"timing": replace(TIMING, delta_ns=11 * MS)}, "delta 11ms, here it is 10ms"),
        ({"timing": replace(TIMING, gamma_ns=3 * MS)}, "gamma 3ms, here it is 2ms"),
        ({"members": (2, 3)}, "another list of members"),
        ({"epoch": 4}, "epoch 4, here it is 0"),
    ],
)
def test_a_policy_that_differs_is_one_violation_however_often_it_is_said(changes: dict[str, Any], word: str) -> None:
    part = RateExchange(policy(1))
    violations = [part.from_below(T0 + n, hello_of(policy(2, **changes), 9)) for n in range(5)]
    (violation,) = [v for v in violations if v is not None]
    assert (violation.kind, violation.member) == ("policy_differs", 2)
    assert word in violation.text
    assert 2 in part.missing(), "it is not taken into the group"
    assert word in part.problems[2]
    assert part.from_below(T0, hello_of(policy(2))) is None
    assert part.problems == {}, "it was put right"


def test_a_member_that_restarts_before_the_group_began_is_taken_anew() -> None:
    part = RateExchange(policy(1))
    part.from_below(T0, hello_of(policy(2), 100))
    part.from_below(T0, hello_of(policy(2, incarnation=5)))
    assert part.incarnation(2) == 5
    assert 2 in part.missing(), "the slot that its earlier life named does not count"


def test_a_member_that_restarts_later_is_one_violation_and_changes_nothing() -> None:
    part = RateExchange(policy(1, (1, 2)))
    part.from_below(T0, hello_of(policy(2, (1, 2)), 7, complete=True))
    first = part.first_slot()
    again = [part.from_below(T0, hello_of(policy(2, (1, 2), incarnation=5), 10**9)) for _ in range(4)]
    (violation,) = [v for v in again if isinstance(v, Violation)]
    assert (violation.kind, violation.member) == ("restarted", 2)
    assert (part.first_slot(), part.incarnation(2)) == (first, 1)


def test_a_margin_puts_the_first_slot_later() -> None:
    margin = RateExchange(policy(1, (1,), start_margin_ns=500 * MS))
    margin.wake(T0)
    assert margin.first_slot() == (T0 + 500 * MS) // TIMING.theta_ns + 1
    small = RateExchange(policy(1, (1,), start_margin_ns=1))
    small.wake(T0)
    assert small.first_slot() == TIMING.smax(T0), "never earlier than Smax"


def test_a_group_of_one_needs_nobody() -> None:
    part = RateExchange(policy(1, (1,)))
    part.wake(T0)
    assert part.complete
    assert part.is_complete_everywhere()
    assert part.wake_at() is None
    assert part.first_slot() == TIMING.smax(T0)


def test_rates_are_those_that_were_declared() -> None:
    part = RateExchange(policy(1))
    part.from_below(T0, hello_of(policy(2, rate=Rate(12.5, 3), max_message=100)))
    assert part.rate(2) == Rate(12.5, 3, 300)


def test_multicast_is_used_only_when_every_peer_has_heard_it() -> None:
    members = (1, 2, 3)
    parts = {m: RateExchange(policy(m, members, multicast=True)) for m in members}
    for _ in range(3):
        for sender, part in parts.items():
            part.wake(part.wake_at() or T0)
            frames, part.down[:] = part.down[:], []
            assert {f.multicast for f in frames if not f.to} <= {True, False}
            for frame in frames:
                for m, other in parts.items():
                    # Member 3 is behind a switch that lets no multicast from member 1 through.
                    blocked = frame.multicast and (sender, m) == (1, 3)
                    if m != sender and frame.to in {0, m} and not blocked:
                        other.from_below(T0, frame)
    assert not parts[1].reaches_all_by_multicast()
    assert parts[2].reaches_all_by_multicast()
    assert parts[3].reaches_all_by_multicast()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"failures": True}, "has failures True, here it is False"),
        ({"failures": True, "loss_burst": 2}, "has failures True, here it is False"),
        ({"fec": (1, 4)}, "has fec 1/4, here it is none"),
    ],
    ids=str,
)
def test_policies_about_failures_and_loss_have_to_be_the_same(changes: dict[str, Any], problem: str) -> None:
    part, other = RateExchange(policy(1)), RateExchange(policy(2, **changes))
    other.wake(T0)
    frame = other.down[0]
    violation = part.from_below(T0, frame)
    assert violation is not None
    assert (violation.kind, violation.text) == ("policy_differs", f"member 2 {problem}")
    assert part.from_below(T0, frame) is None, "said once"
    assert part.problems == {2: problem}


def test_a_loss_burst_has_to_be_the_same() -> None:
    part = RateExchange(policy(1, failures=True, loss_burst=1))
    other = RateExchange(policy(2, failures=True, loss_burst=2))
    other.wake(T0)
    violation = part.from_below(T0, other.down[0])
    assert violation is not None
    assert violation.text == "member 2 has loss_burst 2, here it is 1"


def test_a_slot_that_was_changed_since_need_not_be_as_declared() -> None:
    part, other = RateExchange(policy(1)), RateExchange(policy(2, timing=replace(TIMING, theta_ns=7 * MS)))
    other.wake(T0)
    assert part.from_below(T0, other.down[0]) is not None
    part.slot_changes = 1
    assert part.from_below(T0, other.down[0]) is None
    assert part.problems == {}
