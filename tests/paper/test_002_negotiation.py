"""Paper 002 §2.2 and §3.2: the negotiation of Figure 2, down to the network and back up, and counter-offers."""

from dataclasses import dataclass, replace

import pytest

from unisono.errors import InvalidOption
from unisono.model.delays import (
    DelayModel,
    EmpiricalDelay,
    ExponentialDelay,
    Histogram,
    LognormalDelay,
    ScaledDelay,
    UniformDelay,
)
from unisono.model.policy import Redundancy
from unisono.qos.plan.negotiation import (
    OMEGA_MOST_ETAS,
    Agreement,
    CounterOffer,
    Environment,
    Guarantee,
    Requirement,
    Target,
    candidate_settings,
    meets,
    negotiate,
    worst_network_for,
)
from unisono.qos.plan.rmcast_model import (
    CrashModel,
    NetworkModel,
    agreement_failure_extended,
    crash_within,
    expected_broadcasts,
    reach_probability,
    reach_probability_after_first,
)

MS = 1_000_000
PAPER = Environment(50, NetworkModel(ExponentialDelay(MS), 0.05))


def histogram(*samples_ms: float) -> EmpiricalDelay:
    counted = Histogram()
    for sample in samples_ms:
        counted.add(round(sample * MS))
    return EmpiricalDelay.of_histogram(counted)


@dataclass(frozen=True)
class Adds:
    """A layer that takes a fixed time and depends on `multicasts` of the layer below."""

    name: str
    takes_ns: int
    multicasts: int = 1

    def needs(self, requirement: Requirement) -> Requirement | None:
        if requirement.latency is None:
            return requirement
        within_ns = requirement.latency.within_ns
        if within_ns is not None and within_ns < self.takes_ns:
            return None
        left = None if within_ns is None else within_ns - self.takes_ns
        return replace(requirement, latency=Target(requirement.latency.share ** (1 / self.multicasts), left))

    def guarantee(self, guarantee_below: Guarantee) -> Guarantee:
        if guarantee_below.latency is None or guarantee_below.latency.within_ns is None:
            return guarantee_below
        latency = Target(
            guarantee_below.latency.share**self.multicasts, guarantee_below.latency.within_ns + self.takes_ns
        )
        return replace(guarantee_below, latency=latency)


def agreed(answer: Agreement | CounterOffer) -> Agreement:
    assert isinstance(answer, Agreement), answer
    return answer


def refused(answer: Agreement | CounterOffer) -> CounterOffer:
    assert isinstance(answer, CounterOffer), answer
    return answer


DELAYS = [
    pytest.param(ExponentialDelay(MS), id="exponential"),
    pytest.param(LognormalDelay(2 * MS, 0.6), id="lognormal"),
    pytest.param(UniformDelay(0, 4 * MS), id="uniform"),
    pytest.param(histogram(0.3, 0.5, 0.9, 1.0, 1.1, 1.3, 2.2, 5.9, 0.8, 0.7), id="measured"),
]


@pytest.mark.parametrize("delay", DELAYS)
def test_the_agreed_guarantee_holds_for_any_distribution(delay: DelayModel) -> None:
    below = Environment(20, NetworkModel(delay, 0.03))
    answer = agreed(negotiate(Requirement(Target(0.99, 60 * MS), Target(0.95, 120 * MS)), below))
    assert reach_probability(20, below.network, answer.redundancy, 60 * MS) >= 0.99
    assert reach_probability_after_first(20, below.network, answer.redundancy, 120 * MS) >= 0.95
    given = answer.guarantee.latency
    assert given is not None
    assert given.within_ns is not None
    assert given.within_ns <= 60 * MS
    assert reach_probability(20, below.network, answer.redundancy, given.within_ns) >= 0.99


@pytest.mark.parametrize("delay", DELAYS)
def test_no_setting_is_cheaper(delay: DelayModel) -> None:
    below = Environment(20, NetworkModel(delay, 0.03))
    required = Requirement(Target(0.99, 60 * MS), Target(0.95, 80 * MS))
    answer = agreed(negotiate(required, below))
    for rho, eta_ns in candidate_settings(below):
        for fifths in range(5 * OMEGA_MOST_ETAS + 1):
            other = Redundancy.of_ns(rho, eta_ns, fifths * eta_ns // 5)
            if meets(required, below, other):
                assert expected_broadcasts(20, below.network, other) >= answer.expected_broadcasts * (1 - 1e-9)


def test_achievable_means_at_least_erratum_6() -> None:
    network, redundancy = PAPER.network, Redundancy.of_ns(2, 4_600_000)
    exactly = reach_probability(50, network, redundancy, 12 * MS)
    assert meets(Requirement(Target(exactly, 12 * MS)), PAPER, redundancy)
    assert not meets(Requirement(Target(exactly + 1e-12, 12 * MS)), PAPER, redundancy)
    relative = reach_probability_after_first(50, network, redundancy, 15 * MS)
    assert meets(Requirement(relative=Target(relative, 15 * MS)), PAPER, redundancy)
    assert not meets(Requirement(relative=Target(relative + 1e-12, 15 * MS)), PAPER, redundancy)


def test_erratum_11_nine_tenths_are_not_achievable_with_one_repetition() -> None:
    limited = replace(PAPER, rho_most=1)
    answer = refused(negotiate(Requirement(Target(0.9, 3_600_000 * MS)), limited))
    assert len(answer.alternatives) == 1, "no D reaches 0.9, so the offer is the share that is reached"
    assert answer.alternatives[0].latency is not None
    assert answer.alternatives[0].latency.share == pytest.approx(0.88457, abs=5e-6)
    assert agreed(negotiate(Requirement(Target(0.9, 60 * MS)), PAPER)).redundancy.rho == 2


def test_a_requirement_that_repeats_a_counter_offer_is_accepted() -> None:
    answer = refused(negotiate(Requirement(Target(0.99, 6 * MS)), PAPER))
    assert len(answer.alternatives) == 2
    by_share, by_time = (offer.latency for offer in answer.alternatives)
    assert by_share is not None
    assert by_time is not None
    assert by_share.within_ns == 6 * MS
    assert by_share.share < 0.99 <= by_time.share
    assert by_time.within_ns is not None
    agreed(negotiate(Requirement(by_share), PAPER))
    agreed(negotiate(Requirement(Target(0.99, by_time.within_ns)), PAPER))
    refused(negotiate(Requirement(Target(0.99, by_time.within_ns - 1)), PAPER))


def test_a_relative_counter_offer_is_accepted_too() -> None:
    answer = refused(negotiate(Requirement(relative=Target(0.95, 10 * MS)), PAPER))
    (offer,) = answer.alternatives
    assert offer.relative is not None
    assert offer.relative.within_ns is not None
    agreed(negotiate(Requirement(relative=Target(0.95, offer.relative.within_ns)), PAPER))
    refused(negotiate(Requirement(relative=Target(0.95, offer.relative.within_ns - 1)), PAPER))


def test_the_worst_network_is_exactly_the_limit() -> None:
    required = Requirement(Target(0.99, 30 * MS))
    answer = agreed(negotiate(required, PAPER))
    need = answer.worst_network
    assert need.loss is not None
    assert need.delay_factor is not None
    assert need.loss > 0.05
    assert need.delay_factor > 1
    delay, setting = PAPER.network.delay, answer.redundancy
    assert meets(required, replace(PAPER, network=NetworkModel(delay, need.loss)), setting)
    assert not meets(required, replace(PAPER, network=NetworkModel(delay, need.loss + 2e-6)), setting)
    assert meets(required, replace(PAPER, network=NetworkModel(ScaledDelay(delay, need.delay_factor), 0.05)), setting)
    assert not meets(
        required, replace(PAPER, network=NetworkModel(ScaledDelay(delay, need.delay_factor + 2e-3), 0.05)), setting
    )
    assert worst_network_for(required, PAPER, setting) == need


def test_a_network_as_good_as_the_counter_offer_requires_is_accepted() -> None:
    required = Requirement(Target(0.9, 5 * MS))
    answer = refused(negotiate(required, PAPER))
    assert answer.worst_network is not None
    assert answer.worst_network.delay_factor is not None
    assert answer.worst_network.delay_factor < 1
    faster = NetworkModel(ScaledDelay(ExponentialDelay(MS), answer.worst_network.delay_factor), 0.05)
    agreed(negotiate(required, replace(PAPER, network=faster)))


def test_figure_2_the_negotiation_goes_down_to_the_network_and_back_up() -> None:
    layers = (Adds("order", 7 * MS), Adds("fifo", 2 * MS, multicasts=2))
    answer = agreed(negotiate(Requirement(Target(0.99, 60 * MS)), PAPER, layers))
    assert [(step.layer, step.direction) for step in answer.steps] == [
        ("order", "down"),
        ("fifo", "down"),
        ("rmcast", "down"),
        ("network", "up"),
        ("rmcast", "up"),
        ("fifo", "up"),
        ("order", "up"),
    ]
    assert "within 53ms" in answer.steps[0].text
    assert "within 51ms" in answer.steps[1].text
    bottom, top = answer.rmcast_guarantee.latency, answer.guarantee.latency
    assert bottom is not None
    assert top is not None
    assert bottom.within_ns is not None
    assert top.within_ns == bottom.within_ns + 9 * MS
    assert top.share == pytest.approx(bottom.share**2)
    assert top.share >= 0.99


def test_figure_2_the_counter_offer_is_stated_at_the_top() -> None:
    layers = (Adds("order", 7 * MS),)
    answer = refused(negotiate(Requirement(Target(0.99, 13 * MS)), PAPER, layers))
    top = answer.alternatives[-1].latency
    assert top is not None
    assert top.within_ns is not None
    assert [step.direction for step in answer.steps[:3]] == ["down", "down", "up"]
    again = agreed(negotiate(Requirement(Target(0.99, top.within_ns)), PAPER, layers))
    assert again.guarantee.latency is not None


def test_a_layer_that_is_too_slow_is_named_with_alternatives() -> None:
    answer = refused(negotiate(Requirement(Target(0.99, 5 * MS)), PAPER, (Adds("order", 7 * MS),)))
    assert "order alone takes longer" in answer.reason
    assert answer.worst_network is None
    top = answer.alternatives[-1].latency
    assert top is not None
    assert top.within_ns is not None
    assert top.within_ns > 7 * MS


def test_agreement_limits_how_long_a_receiver_may_wait() -> None:
    below = Environment(10, NetworkModel(ExponentialDelay(MS), 0.05), CrashModel(3_600_000 * MS, 1e-3))
    patient = agreed(negotiate(Requirement(Target(0.99)), below))
    assert patient.redundancy.omega_ns == OMEGA_MOST_ETAS * patient.redundancy.eta_ns
    given = patient.guarantee.agreement
    assert given is not None
    stricter = 1 - (1 - given) * 0.6
    answer = agreed(negotiate(Requirement(Target(0.99), agreement=stricter), below))
    setting = answer.redundancy
    assert setting.omega_ns < patient.redundancy.omega_ns
    v = crash_within(2 * setting.eta_ns + setting.omega_ns, 3_600_000 * MS)
    assert 1 - agreement_failure_extended(10, 0.05, v, 1e-3) >= stricter
    longer = replace(setting, omega=f"{setting.omega_ns + MS}ns")
    assert not meets(Requirement(Target(0.99), agreement=stricter), below, longer)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Target(1.0, MS), "share"),
        (lambda: Target(-0.1, MS), "share"),
        (lambda: Target(0.5, -1), "within"),
        (lambda: Environment(1, PAPER.network), "members"),
        (lambda: NetworkModel(ExponentialDelay(MS), 1.0), "loss"),
        (lambda: CrashModel(0, 0.1), "mttf"),
        (lambda: CrashModel(1, 1.1), "crash_in_broadcast"),
        (lambda: negotiate(Requirement(Target(0.9), agreement=0.99), PAPER), "agreement"),
        (lambda: ScaledDelay(ExponentialDelay(MS), 0), "delay"),
    ],
)
def test_an_invalid_value_is_refused_and_its_field_named(make, field: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidOption, match=field):
        make()


def test_receivers_count_copies_if_no_guarantee_relies_on_their_takeovers() -> None:
    """r_D relies on the originator alone; u_S relies on receivers that take over after η+ω."""
    within = negotiate(Requirement(Target(0.99, 60_000_000)), PAPER)
    assert isinstance(within, Agreement)
    assert within.redundancy.adaptive == "counting"
    relative = negotiate(Requirement(Target(0.99, 60_000_000), Target(0.99, 60_000_000)), PAPER)
    assert isinstance(relative, Agreement)
    assert relative.redundancy.adaptive == "none"
