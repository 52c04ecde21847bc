"""Links: FIFO per ordered pair, delays within Δ, adversaries."""

from collections.abc import Callable
from random import Random

import pytest
from tests.worlds.adversaries import adversarial_network

from unisono.errors import InvalidOption
from unisono.model.delays import ConstantDelay, DelayModel, ExponentialDelay, UniformDelay
from unisono.sim.network import (
    DelaySource,
    SimulatedLink,
    SimulatedNetwork,
    constant_delay,
    corners,
    delays_from_model,
    network_with_model,
)
from unisono.sim.random_streams import RandomStreams

MS = 1_000_000


def scripted(*delays: int) -> DelaySource:
    left = iter(delays)
    return lambda _now: next(left)


def test_a_later_datagram_never_arrives_before_an_earlier_one() -> None:
    link = SimulatedLink(1, 2, scripted(10, 0, 3, 50))
    assert [link.arrival(now) for now in (0, 1, 9, 20)] == [10, 10, 12, 70]


def test_fifo_waits_within_delta() -> None:
    chance = Random(4)
    link = SimulatedLink(1, 2, delays_from_model(UniformDelay(0, 10 * MS), 10 * MS, chance))
    now = last = 0
    for _ in range(2000):
        now += int(chance.random() * MS)
        at = link.arrival(now)
        assert last <= at <= now + 10 * MS
        last = at


def test_without_fifo_datagrams_overtake() -> None:
    link = SimulatedLink(1, 2, scripted(10, 0), fifo=False)
    assert [link.arrival(0), link.arrival(1)] == [10, 1]


def test_links_connect_every_member_to_every_other() -> None:
    network = network_with_model((1, 2, 5), ConstantDelay(1), 1, lambda a, b: Random(0))
    assert [link.receiver for link in network.links_from(2)] == [1, 5]
    assert network.links_from(9) == ()


@pytest.mark.parametrize("model", [ExponentialDelay(5 * MS), UniformDelay(0, 30 * MS), ConstantDelay(10 * MS)])
def test_delays_of_models_stay_within_delta(model: DelayModel) -> None:
    draw = delays_from_model(model, 10 * MS, Random(1))
    assert max(draw(0) for _ in range(500)) <= 10 * MS


def test_each_link_has_its_own_random_stream() -> None:
    def first(members: tuple[int, ...]) -> int:
        streams = RandomStreams(1)
        network = network_with_model(members, UniformDelay(0, MS), MS, lambda a, b: streams.stream("network", a, b))
        return network.links_from(1)[0].draw_delay(0)

    assert first((1, 2)) == first((1, 2, 3, 4))


def test_adversaries_choose_within_delta() -> None:
    toss = corners(Random(1), MS)
    seen = {toss(1, 2, now, now) for now in range(50)}
    assert seen == {0, MS}
    assert constant_delay(7)(1, 2, 0, 0) == 7


def test_an_adversary_gets_sender_receiver_time_and_number() -> None:
    asked: list[tuple[int, int, int, int]] = []

    def adversary(sender: int, receiver: int, now: int, ordinal: int) -> int:
        asked.append((sender, receiver, now, ordinal))
        return 0

    network = adversarial_network((1, 2), adversary, MS)
    for now in (10, 20):
        network.links_from(1)[0].arrival(now)
    network.links_from(2)[0].arrival(30)
    assert asked == [(1, 2, 10, 0), (1, 2, 20, 1), (2, 1, 30, 0)]


@pytest.mark.parametrize("delay", [-1, MS + 1])
def test_an_adversary_that_exceeds_delta_is_refused(delay: int) -> None:
    with pytest.raises(InvalidOption, match="from member 1 to 2"):
        adversarial_network((1, 2), constant_delay(delay), MS).links_from(1)[0].draw_delay(0)


def test_without_faults_both_ways_to_compute_arrivals_agree() -> None:
    def link() -> SimulatedLink:
        return SimulatedLink(1, 2, scripted(10, 0, 3))

    make: Callable[[], SimulatedLink] = link
    plain, composed = make(), make()
    network = SimulatedNetwork([composed])
    assert [[plain.arrival(now)] for now in (0, 1, 20)] == [network.arrival_times(composed, now) for now in (0, 1, 20)]
