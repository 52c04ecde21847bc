"""The collectors around a real stack: both sides of each layer, compared with a known network."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.stepping import events, outgoing

from unisono.errors import InvalidOption, SlaError
from unisono.model.events import SlaViolation, StackEvent, View
from unisono.model.policy import Policy
from unisono.model.sla import EVERY_LINK, MetricRow, Side
from unisono.model.text.sla import parse_slas
from unisono.model.timing import Timing
from unisono.model.units import Rate
from unisono.qos.watch.observer import QosObserver
from unisono.stack import Stack, build
from unisono.wire.frame import END_OF_SLOT, SERIAL_MAX, Frame, Kind

MS = 1_000_000
S = 1000 * MS
T0 = 1_700_000_000 * S
TIMING = Timing(20 * MS, 2 * MS, 5 * MS)
SLA = """
[[sla]]
name = "{name}"
provider = "{provider}"
consumer = "{consumer}"
metric = "{metric}"
bound = {bound}
probability = {probability}
window = "1s"
"""

Lose = Callable[[int, int, int], bool]


def sla(metric: str, bound: object, probability: float, provider: str = "network", consumer: str = "order") -> str:
    fields = {"metric": metric, "bound": bound, "probability": probability, "provider": provider, "consumer": consumer}
    return SLA.format(name=metric, **fields)


class Pair:
    """Two members with a network of fixed delays between them, run by hand."""

    def __init__(
        self, text: str = "", delay_ns: int = MS, lose: Lose | None = None, ahead_ns: int = 0, **policy: Any
    ) -> None:
        """The second member's clock may be ahead."""
        self.delay_ns = delay_ns
        self.ahead_ns = {1: 0, 2: ahead_ns}
        self.lose = lose or (lambda now, sender, number: False)
        self.stacks: dict[int, Stack] = {}
        self.rows: dict[int, list[MetricRow]] = {1: [], 2: []}
        self.events: dict[int, list[StackEvent]] = {1: [], 2: []}
        self.sent = {1: 0, 2: 0}
        slas = parse_slas(text, "sla.toml") if text else None
        for member in (1, 2):
            fields: dict[str, Any] = {"rate": Rate(1000, 8), "probe_every_ns": 100 * MS, **policy}
            stack = build(Policy("g", member, View((1, 2)), TIMING, **fields))
            self.stacks[member] = stack
            stack.observer = QosObserver(stack.policy, stack.order_and_service_names, stack.clock_check, slas)
        self.now = T0
        self._under_way: list[tuple[int, int, int, bytes]] = []

    def oversight(self, member: int) -> QosObserver:
        watcher = self.stacks[member].observer
        assert isinstance(watcher, QosObserver)
        return watcher

    def run(self, seconds: float, messages: Callable[[int, int], list[bytes]] = lambda now, member: []) -> None:
        until = self.now + int(seconds * S)
        while self.now < until:
            self.now += MS
            due = [entry for entry in self._under_way if entry[0] <= self.now]
            self._under_way = [entry for entry in self._under_way if entry[0] > self.now]
            for _, _, to, data in sorted(due):
                self.stacks[to].receive(self.now + self.ahead_ns[to], data)
            for member, stack in self.stacks.items():
                own_now = self.now + self.ahead_ns[member]
                stack.wake(own_now)
                if offered := messages(self.now, member):
                    stack.submit(own_now, offered)
                for datagram in outgoing(stack):
                    self.sent[member] += 1
                    if not self.lose(self.now, member, self.sent[member]):
                        self._under_way.append((self.now + self.delay_ns, self.sent[member], 3 - member, datagram.data))
                self.events[member] += events(stack)
                self.rows[member] += self.oversight(member).pop_rows()

    def of(self, member: int, layer: str, side: Side, metric: str) -> list[MetricRow]:
        return [r for r in self.rows[member] if (r.layer, r.side, r.metric) == (layer, side, metric)]


def test_delay_jitter_and_gamma_of_a_steady_link() -> None:
    pair = Pair(delay_ns=3 * MS)
    pair.run(3)
    (delay, *_) = pair.of(1, "vbr", Side.BELOW, "delay")[-1:]
    assert delay.link == 2
    assert delay.count == pytest.approx(50, abs=2), "a mark each 5 ms, for 250 ms"
    assert delay.value == pytest.approx(3 * MS, rel=1 / 32)
    assert pair.of(1, "vbr", Side.BELOW, "jitter")[-1].value == 0
    assert pair.of(1, "vbr", Side.BELOW, "loss")[-1].value == 0
    assert pair.of(1, "vbr", Side.BELOW, "gamma")[-1].value == pytest.approx(3 * MS, abs=MS), "half a round trip"
    silences = [row.value for row in pair.of(2, "vbr", Side.BELOW, "silence")[2:]]
    assert set(silences) == {5 * MS}


def test_measured_network_loss_is_the_planted_loss() -> None:
    chance = random.Random(4)
    pair = Pair(lose=lambda now, sender, number: sender == 2 and now > T0 + S and chance.random() < 0.1, failures=True)
    pair.run(11)
    rows = [row for row in pair.of(1, "vbr", Side.BELOW, "loss") if row.window_start_ns > T0 + 2 * S]
    lost, count = sum(row.value * row.count for row in rows), sum(row.count for row in rows)
    assert count == pytest.approx(9 * 200, rel=0.05)
    assert lost / count == pytest.approx(0.1, abs=0.025)
    assert all(row.value == 0 for row in pair.of(2, "vbr", Side.BELOW, "loss")), "the other direction loses nothing"


def test_latency_of_own_messages_and_of_peers_messages() -> None:
    pair = Pair(delay_ns=2 * MS)
    pair.run(3, lambda now, member: [b"x"] if member == 1 and now % (20 * MS) == MS else [])
    own, other = (pair.of(m, "application", Side.BELOW, "latency")[-1] for m in (1, 2))
    # Submitted 1 ms into a slot of 5 ms and sent at its end. The sender delivers its own message then, the other
    # member 2 ms later. There latency counts from the start of the slot, so it is 1 ms too long: an upper bound.
    assert own.link == other.link == 1
    assert own.value == pytest.approx(4 * MS, rel=1 / 32)
    assert other.value == pytest.approx(7 * MS, rel=1 / 32)
    assert own.count == other.count == pytest.approx(12, abs=1)


@pytest.mark.parametrize("ahead_ms", [-2, 2])
def test_a_clock_difference_shows_in_gamma_but_not_in_delay_or_latency(ahead_ms: int) -> None:
    pair = Pair(delay_ns=2 * MS, ahead_ns=ahead_ms * MS)
    pair.run(4, lambda now, member: [b"x"] if member == 1 and now % (20 * MS) == MS else [])
    for member in (1, 2):
        gamma = pair.of(member, "vbr", Side.BELOW, "gamma")[-1]
        assert gamma.value == pytest.approx((2 + 2) * MS, abs=MS), "the difference, and half a round trip"
        assert pair.of(member, "vbr", Side.BELOW, "delay")[-1].value == pytest.approx(2 * MS, abs=0.6 * MS)
    other = pair.of(2, "application", Side.BELOW, "latency")[-1]
    assert other.value == pytest.approx(7 * MS, abs=0.6 * MS), "from the beginning of the sender's slot"


def test_a_window_that_is_closed_late_has_its_real_length() -> None:
    pair = Pair()
    pair.run(1)
    pair.now += 800 * MS  # the process did not run
    pair.run(1, lambda now, member: [b"x"] if now % (50 * MS) == 0 else [])
    rows = pair.of(1, "vbr", Side.ABOVE, "rate")
    assert {row.window_ns for row in rows} == {250 * MS, 750 * MS}
    ends = [row.window_start_ns + row.window_ns for row in rows]
    assert ends[:-1] == [row.window_start_ns for row in rows[1:]], "nothing is left out"
    assert all(row.value == pytest.approx(row.count * S / row.window_ns) for row in rows)


def test_usage_is_collected_above_the_order_and_above_the_network() -> None:
    pair = Pair()
    pair.run(3, lambda now, member: [bytes(40)] * 12 if member == 1 and now % (50 * MS) == MS else [])
    rate, burst, held, size = (pair.of(1, "vbr", Side.ABOVE, m)[-1] for m in ("rate", "burst", "held_back", "size"))
    assert rate.link == EVERY_LINK
    assert (rate.value, burst.value) == (5 * 8 * 4, 8), "a burst of 8 is all that a slot takes"
    assert held.value == pytest.approx(1 / 3)
    assert size.largest == 40
    assert (
        pair.of(1, "network", Side.ABOVE, "bandwidth")[-1].value
        > pair.of(2, "network", Side.ABOVE, "bandwidth")[-1].value
    )


def test_loss_is_measured_below_and_above_a_reliable_service() -> None:
    pair = Pair(lose=lambda now, sender, number: now > T0 + S and number % 7 == 0, fec=(1, 3))
    pair.run(6, lambda now, member: [bytes(100)] * 4)
    network = pair.of(1, "fec", Side.BELOW, "loss")[8:-1]
    above = pair.of(1, "vbr", Side.BELOW, "loss")[8:-1]
    assert network
    assert above
    assert sum(row.value for row in network) / len(network) == pytest.approx(1 / 7, abs=0.02)
    assert {row.value for row in above} == {0.0}
    used = pair.of(1, "fec", Side.ABOVE, "rate")[-1]
    assert used.value == pytest.approx(200, abs=10), "the order hands a frame per slot to the layer under it"


def test_windows_have_the_same_numbers_at_all_members_and_leave_nothing_out() -> None:
    pair = Pair()
    pair.run(4)
    for member in (1, 2):
        starts = sorted({row.window_start_ns for row in pair.rows[member]})
        assert all(start % (250 * MS) == 0 for start in starts)
        assert starts == list(range(starts[0], starts[-1] + 1, 250 * MS))


def test_a_violation_reaches_the_application_and_the_listeners() -> None:
    pair = Pair(sla("delay", '"10ms"', 0.95))
    heard: list[object] = []
    pair.oversight(1).register("delay", heard.append)
    with pytest.raises(InvalidOption, match="there is no SLA 'dealy'; the SLAs of this group are: delay"):
        pair.oversight(1).register("dealy", heard.append)
    pair.run(3)
    assert not heard
    pair.delay_ns = 15 * MS
    pair.run(3)
    (violation,) = [event for event in pair.events[1] if isinstance(event, SlaViolation)]
    assert heard == [violation]
    assert (violation.sla, violation.link) == ("delay", 2)
    pair.delay_ns = MS
    pair.run(3)
    assert [type(event).__name__ for event in heard] == ["SlaViolation", "SlaCleared"]


WRONG_PARTIES = [
    (sla("loss", 0.1, 0.9, "network", "rmcast"), "consumer: there is no layer rmcast in this stack"),
    (sla("loss", 0.1, 0.9, "network", "application"), "provider: the layer below application is vbr, not network"),
    (sla("latency", '"1s"', 0.9, "network", "vbr"), "metric: latency is not collected between network and vbr"),
    (sla("delay", '"1s"', 0.9, "vbr", "application"), "metric: delay is not collected between vbr and application"),
    (sla("rate", 5, 0.9, "network", "vbr"), "metric: rate is not collected between network and vbr"),
    (sla("loss", 0.1, 0.9) + 'informs = ["fec"]', "informs: there is no layer fec in this stack"),
    (sla("loss", 0.1, 0.9) + "links = [2, 9]", "links: there is no member 9 in this group; its members are 1, 2"),
]


@pytest.mark.parametrize(("text", "problem"), WRONG_PARTIES)
def test_an_agreement_that_this_stack_cannot_evaluate_is_refused(text: str, problem: str) -> None:
    """It names the line and the field, as an error in the file itself does."""
    with pytest.raises(SlaError) as caught:
        Pair(text)
    assert problem in str(caught.value)
    field = problem.partition(":")[0]
    assert caught.value.field == f"sla[1].{field}"
    assert text.splitlines()[caught.value.line - 1].startswith(field)


def test_memory_use_does_not_grow_with_traffic() -> None:
    pair = Pair()
    pair.run(2, lambda now, member: [b"x"] * 8)
    monitor = pair.oversight(1).monitor
    sizes = (len(monitor._awaited), len(monitor._links))
    pair.run(2, lambda now, member: [b"x"] * 8)
    assert (len(monitor._awaited), len(monitor._links)) == sizes
    monitor._awaited.clear()
    for n in range(10_000):
        monitor.submitted(T0 + n, [b"x"], 1)
    assert len(monitor._awaited) <= 4096


class Arrivals:
    """Datagrams from two peers, counted in reads of several or one by one."""

    def __init__(self) -> None:
        stack = build(Policy("g", 1, View((1, 2, 3)), TIMING, rate=Rate(1000, 8)))
        self.monitor = QosObserver(stack.policy, stack.order_and_service_names, stack.clock_check).monitor

    def read(self, now: int, frames: list[Frame], serials: bytes, together: bool) -> None:
        if together:
            self.monitor.arrived_in_batch(now, frames, serials, bytes(frame.flags for frame in frames))
            return
        for frame, number in zip(frames, serials, strict=True):
            self.monitor.arrived(now, frame, number)

    def counts(self) -> dict[int, tuple[object, ...]]:
        return {
            peer: (link.incarnation, link.counted, link.lost, link.late, link.duplicated, link.reordered, link.bursts)
            for peer, link in self.monitor._links.items()
        }


@pytest.mark.parametrize("seed", range(12))
def test_datagrams_read_together_count_like_single_ones(seed: int) -> None:
    chance = random.Random(seed)
    apart, together = Arrivals(), Arrivals()
    sent, incarnation, now = {2: 0, 3: 0}, {2: 1, 3: 1}, T0
    for _ in range(400):
        now += MS
        peer = chance.choice((2, 3))
        if chance.random() < 0.01:
            incarnation[peer] += 1
        frames, serials = [], []
        for _ in range(chance.randrange(1, 50)):
            sent[peer] += 1 + (chance.random() < 0.01) * chance.randrange(1, 60)
            flags = END_OF_SLOT if chance.random() < 0.1 else 0
            frames.append(
                Frame(Kind.DATA, peer, incarnation[peer], 0, 1, 0, flags, sent_ns=now - 2 * MS + sent[peer] % MS)
            )
            serials.append(sent[peer] % SERIAL_MAX + 1)
            if chance.random() < 0.005:  # overtaken
                frames.insert(0, frames.pop())
                serials.insert(0, serials.pop())
        apart.read(now, frames, bytes(serials), together=False)
        together.read(now, frames, bytes(serials), together=True)
        assert together.counts() == apart.counts()
    timed = [len(link.delays.counts) for link in together.monitor._links.values()]
    assert all(timed)


def test_of_datagrams_read_together_end_of_slot_marks_and_the_last_are_timed() -> None:
    arrivals = Arrivals()
    frames = [
        Frame(Kind.DATA, 2, 1, 0, 1, n, END_OF_SLOT if n in {3, 7} else 0, sent_ns=T0 + n * MS) for n in range(20)
    ]
    arrivals.read(T0 + 20 * MS, frames[:1], bytes([1]), together=False)
    arrivals.read(T0 + 20 * MS, frames[1:], bytes(range(2, 21)), together=True)
    delays = arrivals.monitor._links[2].delays
    assert (delays.total, delays.largest) == (3, 17 * MS)


def test_a_read_with_a_refused_datagram_counts_the_accepted_ones() -> None:
    pair = Pair()
    pair.run(1)
    sender, receiver = pair.stacks[2], pair.stacks[1]
    for _, _, to, data in pair._under_way:
        pair.stacks[to].receive(pair.now, data)
    link = pair.oversight(1).monitor._links[2]
    before = link.counted
    sender.submit(pair.now, [b"x"])
    pair.now += 5 * MS
    sender.wake(pair.now)
    (datagram,) = [each.data for each in outgoing(sender) if each.to_group]
    alien = datagram[:8] + b"\0\0\0\0" + datagram[12:]
    read = datagram + alien
    receiver.receive_segments(pair.now, read, 0, len(read), len(datagram), multicast=False)
    assert sum(receiver.door.refused.values()) == 1
    assert link.counted == before + 1
