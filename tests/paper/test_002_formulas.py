"""Paper 002, equations (1) to (13), each compared with values computed here without the code under test.

The setting is the paper's: exponential delays of mean d = 1 (here 1 ms), q = 0.05, n = 50, η = 4.6.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import permutations, product
from math import e, exp, log, pi, sqrt

import pytest

from unisono.model.delays import (
    ConstantDelay,
    DelayModel,
    EmpiricalDelay,
    ExponentialDelay,
    Histogram,
    LognormalDelay,
    UniformDelay,
)
from unisono.model.policy import Redundancy, RelativeRequirement, eta_of_all, eta_of_one
from unisono.net.rmcast.timeouts import ExactOmega
from unisono.qos.plan.rmcast_model import (
    FOREVER_NS,
    CrashModel,
    NetworkModel,
    agreement_failure,
    agreement_failure_extended,
    crash_within,
    longest_omega,
    meets_requirement,
    miss_probability,
    miss_probability_of_started,
    miss_probability_of_takeover,
    needs_no_takeover,
    none_arrived_probability,
    not_arrived_probability,
    reach_probability,
    reach_probability_after_copy,
    reach_probability_after_first,
    reach_probability_limit,
    shortest_d,
    shortest_s,
)

MS = 1_000_000
Q, N, ETA = 0.05, 50, 4.6
NETWORK = NetworkModel(ExponentialDelay(MS), Q)
RHO_1 = Redundancy.of_ns(1, int(ETA * MS))
RHO_2 = Redundancy.of_ns(2, int(ETA * MS))


def at(units: float) -> int:
    """The paper's units of time as nanoseconds."""
    return round(units * MS)


def h(x: float) -> float:
    """Equation (2), in the paper's units."""
    return 1.0 if x <= 0 else Q + (1 - Q) * exp(-x)


def integral(density: Callable[[float], float], low: float, high: float, steps: int = 4000) -> float:
    """Simpson's rule."""
    width = (high - low) / steps
    inner = sum((4 if i % 2 else 2) * density(low + i * width) for i in range(1, steps))
    return width / 3 * (density(low) + density(high) + inner)


def test_equation_1_by_integrating_the_density() -> None:
    median, sigma = 2.0, 0.5

    def density(x: float) -> float:
        return exp(-(log(x / median) ** 2) / (2 * sigma**2)) / (x * sigma * sqrt(2 * pi))

    network = NetworkModel(LognormalDelay(at(median), sigma), 0.02)
    for x in (0.5, 1.7, 2.0, 4.0, 9.0):
        beyond = 1 - integral(density, 1e-9, x)
        assert not_arrived_probability(network, at(x)) == pytest.approx(0.02 + 0.98 * beyond, abs=1e-7)


def test_equation_1_of_measured_delays() -> None:
    network = NetworkModel(EmpiricalDelay.of_samples([at(1), at(2), at(2), at(9)]), 0.1)
    assert not_arrived_probability(network, at(1) - 1) == pytest.approx(1.0)
    assert not_arrived_probability(network, at(1)) == pytest.approx(0.1 + 0.9 * 3 / 4)
    assert not_arrived_probability(network, at(2)) == pytest.approx(0.1 + 0.9 * 1 / 4)
    assert not_arrived_probability(network, at(9)) == pytest.approx(0.1)


def test_equation_1_of_a_histogram_never_flatters_the_network() -> None:
    seen = [at(0.4 + 0.013 * i) for i in range(500)]
    histogram = Histogram()
    for delay in seen:
        histogram.add(delay)
    measured = NetworkModel(EmpiricalDelay.of_histogram(histogram), Q)
    exact = NetworkModel(EmpiricalDelay.of_samples(seen), Q)
    for x in (0.5, 1.0, 3.3, 6.0):
        assert not_arrived_probability(measured, at(x)) >= not_arrived_probability(exact, at(x)) - 1e-12
        assert not_arrived_probability(measured, at(x)) == pytest.approx(
            not_arrived_probability(exact, at(x)), abs=0.06
        )


@pytest.mark.parametrize(
    "delay", [ExponentialDelay(MS), UniformDelay(0, MS), ConstantDelay(0), EmpiricalDelay.of_samples([0, MS])]
)
def test_equation_1_nothing_arrives_in_zero_time(delay: DelayModel) -> None:
    assert not_arrived_probability(NetworkModel(delay, Q), 0) == 1
    assert not_arrived_probability(NetworkModel(delay, Q), -MS) == 1


def test_equation_2_by_hand() -> None:
    assert not_arrived_probability(NETWORK, MS) == pytest.approx(0.05 + 0.95 / e, rel=1e-12)
    assert not_arrived_probability(NETWORK, at(2.5)) == pytest.approx(0.05 + 0.95 * 0.0820849986238988, rel=1e-12)


def test_equation_3_by_hand() -> None:
    # D = 5: copy 0 has had 5, copy 1 has had 0.4, copy 2 is not sent yet.
    g = (0.05 + 0.95 * exp(-5)) * (0.05 + 0.95 * exp(-0.4))
    assert miss_probability(NETWORK, RHO_1, at(5)) == pytest.approx(g, rel=1e-9)
    assert miss_probability(NETWORK, RHO_2, at(5)) == pytest.approx(g, rel=1e-9)
    assert miss_probability(NETWORK, RHO_2, at(10)) == pytest.approx(h(10) * h(5.4) * h(0.8), rel=1e-9)


def test_equation_4_by_integrating_over_the_first_copys_delay() -> None:
    # One destination has it within D if copy 0 comes by D, or copy 1, sent at η, comes by D.
    d = 8.0
    second = (1 - Q) * integral(lambda y: exp(-y), 0, d - ETA)
    first = (1 - Q) * integral(lambda x: exp(-x), 0, d)
    one = first + (1 - first) * second
    assert reach_probability(N, NETWORK, RHO_1, at(d)) == pytest.approx(one ** (N - 1), rel=1e-6)


def test_equation_4_limits_erratum_11() -> None:
    assert reach_probability_limit(N, NETWORK, RHO_1) == pytest.approx(0.88457, abs=5e-6)
    assert reach_probability_limit(N, NETWORK, RHO_2) == pytest.approx(0.99389, abs=5e-6)
    assert reach_probability(N, NETWORK, RHO_1, at(10_000)) <= reach_probability_limit(N, NETWORK, RHO_1) + 1e-12
    assert shortest_d(N, NETWORK, RHO_1, 0.9) is None


def test_equation_5_by_hand_has_k_plus_1_factors() -> None:
    assert miss_probability_of_started(NETWORK, RHO_2, 0, at(3)) == pytest.approx(h(3), rel=1e-9)
    assert miss_probability_of_started(NETWORK, RHO_2, 2, at(3)) == pytest.approx(h(3) * h(7.6) * h(12.2), rel=1e-9)


def test_equation_6_by_hand_and_one_by_definition_at_rho() -> None:
    # The receiver of copy 0 sends copies 0, 1 and 2 at 2η, 3η and 4η, ζ taken as η.
    assert miss_probability_of_takeover(NETWORK, RHO_2, 0, at(20)) == pytest.approx(h(10.8) * h(6.2) * h(1.6), rel=1e-9)
    assert miss_probability_of_takeover(NETWORK, RHO_2, 1, at(20)) == pytest.approx(h(10.8) * h(6.2), rel=1e-9)
    assert miss_probability_of_takeover(NETWORK, RHO_2, 2, at(20)) == 1
    later = replace(RHO_2, omega=f"{at(1.5)}ns")
    assert miss_probability_of_takeover(NETWORK, later, 0, at(20)) == pytest.approx(h(9.3) * h(4.7) * h(0.1), rel=1e-9)
    assert miss_probability_of_takeover(NETWORK, RHO_2, 0, at(2 * ETA)) == 1


def test_equation_7_by_hand() -> None:
    g, g_takeover = h(12), h(12 - 9.2) * h(12 - 13.8)
    assert reach_probability_after_copy(N, NETWORK, RHO_1, 0, at(12)) == pytest.approx(
        (1 - g * g_takeover) ** 48, rel=1e-9
    )
    assert reach_probability_after_copy(2, NETWORK, RHO_1, 0, at(12)) == 1


@pytest.mark.parametrize(("redundancy", "from_s"), [(RHO_1, 14), (RHO_2, 19)])
def test_equation_8_erratum_4_the_minimum_moves_to_rho(redundancy: Redundancy, from_s: int) -> None:
    for s in range(1, 41):
        each = [reach_probability_after_copy(N, NETWORK, redundancy, k, at(s)) for k in range(redundancy.rho + 1)]
        smallest = min(range(len(each)), key=each.__getitem__)
        assert smallest == (redundancy.rho if s >= from_s else 0)
        assert reach_probability_after_first(N, NETWORK, redundancy, at(s)) == each[smallest]


def test_equations_9_and_10_include_equality_erratum_6() -> None:
    s = at(6)
    silent = (1 - miss_probability_of_started(NETWORK, RHO_2, 1, s)) ** (N - 2)
    assert needs_no_takeover(N, NETWORK, RHO_2, 1, s, share=silent)
    assert not needs_no_takeover(N, NETWORK, RHO_2, 1, s, share=silent + 1e-12)
    with_takeover = reach_probability_after_copy(N, NETWORK, RHO_2, 0, at(20))
    assert meets_requirement(N, NETWORK, RHO_2, 0, at(20), share=with_takeover)
    assert not meets_requirement(N, NETWORK, RHO_2, 0, at(20), share=with_takeover + 1e-12)


def test_equation_11_is_the_root_in_omega() -> None:
    s, share = 25.0, 0.9

    def u_0(omega: float) -> float:
        takeover = h(s - 2 * ETA - omega) * h(s - 3 * ETA - omega) * h(s - 4 * ETA - omega)
        return float((1 - h(s) * takeover) ** (N - 2))

    low, high = 0.0, s
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if u_0(middle) >= share else (low, middle)
    found = longest_omega(N, NETWORK, RHO_2, 0, at(s), share=share)
    assert found is not None
    assert found / MS == pytest.approx(low, abs=1e-5)
    # The rule that a running receiver follows is the same, in steps of S/1024.
    relative = RelativeRequirement(share, at(s), Q, ExponentialDelay(MS))
    followed = ExactOmega(replace(RHO_2, adaptive="exact", relative=relative), relative, N).first_omega(0)
    assert found - at(s) / 1024 <= followed <= found


def test_equation_11_at_its_ends() -> None:
    assert longest_omega(N, NETWORK, RHO_2, 1, at(30), share=0.5) == FOREVER_NS
    assert longest_omega(N, NETWORK, RHO_2, 0, at(3), share=0.9) is None


def test_equation_12_by_hand() -> None:
    assert crash_within(at(9.2), at(9.2)) == pytest.approx(1 - 1 / e, rel=1e-12)
    # A receiver waits η + ω and ζ, at most 2η + ω.
    crashes = CrashModel(at(1000), 1e-3)
    assert crashes.before_takeover(replace(RHO_1, omega=f"{at(0.8)}ns")) == pytest.approx(
        1 - exp(-10 / 1000), rel=1e-12
    )
    # With B.2's time-outs, which counting has too, ω may grow by ρη.
    counting = replace(RHO_2, adaptive="counting")
    assert crashes.before_takeover(counting) == pytest.approx(1 - exp(-4 * 4.6 / 1000), rel=1e-12)


def test_equation_13_base_erratum_7() -> None:
    assert agreement_failure(1, Q, 0.3, 0.2) == agreement_failure(2, Q, 0.3, 0.2) == 0
    assert agreement_failure_extended(1, Q, 0.3, 0.2) == agreement_failure_extended(2, Q, 0.3, 0.2) == 0


def test_equation_13_by_hand_for_three_and_four() -> None:
    q, v, b = 0.1, 0.3, 0.2
    r = 1 - q
    three = b * r * v + (1 - b) * b * (2 * r * q * v + r**2 * v**2)
    assert agreement_failure(3, q, v, b) == pytest.approx(three, rel=1e-12)
    one = v + (1 - v) * three
    two = v**2  # f_2 = 0
    four = (
        b * (r * one)
        + (1 - b) * b * (2 * r * q * one + r**2 * two)
        + (1 - b) ** 2 * b * (3 * r * q**2 * one + 3 * r**2 * q * two + r**3 * v**3)
    )
    assert agreement_failure(4, q, v, b) == pytest.approx(four, rel=1e-12)


def enumerated(members: int, q: float, v: float, b: float, survivors_counted: Callable[[int], bool]) -> float:
    """All failures, enumerated: receivers served, receivers that get the message, and those that crash."""

    @cache
    def f(n: int) -> float:
        if n <= 2:
            return 0.0
        total = 0.0
        for served in range(1, n):
            crash_here = (1 - b) ** (served - 1) * b
            for got in product((False, True), repeat=served):
                j = sum(got)
                received = crash_here * (1 - q) ** j * q ** (served - j)
                for crashed in product((False, True), repeat=j):
                    survivors = j - sum(crashed)
                    each = received * v ** sum(crashed) * (1 - v) ** survivors
                    if j == 0:
                        continue
                    if survivors == 0:
                        total += each
                    elif survivors_counted(survivors):
                        total += each * f(n - 1 - j + survivors) ** survivors
        return total

    return f(members)


@pytest.mark.parametrize("members", [3, 4, 5, 6])
def test_equation_13_and_its_extension_by_enumeration(members: int) -> None:
    q, v, b = 0.1, 0.3, 0.2
    assert agreement_failure(members, q, v, b) == pytest.approx(
        enumerated(members, q, v, b, lambda m: m == 1), rel=1e-12
    )
    assert agreement_failure_extended(members, q, v, b) == pytest.approx(
        enumerated(members, q, v, b, lambda _: True), rel=1e-12
    )


def test_figure_17_plateau_errata_8_and_9() -> None:
    assert agreement_failure(50, Q, 1e-4, 1e-3) == pytest.approx(1.05374e-7, abs=5e-13)
    assert agreement_failure_extended(50, Q, 1e-4, 1e-3) == pytest.approx(1.05374e-7, abs=5e-13)
    assert agreement_failure(50, Q, 0.95e-4, 1e-3) == pytest.approx(1.001e-7, abs=5e-11)
    assert agreement_failure(50, Q, 1e-4, 1e-3) == pytest.approx(1e-7 / (1 - Q), rel=2e-3)
    # None at n = 2, then growing, and from n = 5 within half a per cent of where it stays.
    by_size = [agreement_failure(n, Q, 0.95e-4, 1e-3) for n in range(2, 51)]
    assert 0 == by_size[0] < by_size[1] < by_size[2] < by_size[3]
    assert by_size[3:] == [pytest.approx(by_size[-1], rel=5e-3)] * len(by_size[3:])


def test_eta_of_section_3_3() -> None:
    assert eta_of_one(ExponentialDelay(MS), 0.99) / MS == pytest.approx(-log(0.01), abs=1e-6)
    assert eta_of_all(ExponentialDelay(MS), 0.99, N) / MS == pytest.approx(-log(1 - 0.99 ** (1 / 49)), abs=1e-6)


def test_the_time_at_which_a_share_is_reached() -> None:
    d_ns = shortest_d(N, NETWORK, RHO_2, 0.99)
    s_ns = shortest_s(N, NETWORK, RHO_2, 0.99)
    assert d_ns is not None
    assert s_ns is not None
    assert reach_probability(N, NETWORK, RHO_2, d_ns - 1) < 0.99 <= reach_probability(N, NETWORK, RHO_2, d_ns)
    assert (
        reach_probability_after_first(N, NETWORK, RHO_2, s_ns - 1)
        < 0.99
        <= reach_probability_after_first(N, NETWORK, RHO_2, s_ns)
    )


def worst_of_all_couplings(network: NetworkModel, times: list[int], delays: list[int]) -> float:
    """None of two sends in time: the largest probability over all joint distributions of two delays, each as likely.

    The corners of all joint distributions with such marginals are the permutations (Birkhoff), and a probability is
    linear in the joint distribution, so that its largest value is at a corner.
    """
    q, n = network.loss, len(delays)

    def none(pairs: tuple[int, ...]) -> float:
        return sum(
            (q if delays[i] <= times[0] else 1) * (q if delays[j] <= times[1] else 1) for i, j in enumerate(pairs)
        ) / float(n)

    return max(none(pairs) for pairs in permutations(range(n)))


@pytest.mark.parametrize("times", [[3, 2], [9, 1], [4, 4], [0, 9], [9, 9], [2, 7]], ids=str)
def test_equation_3_for_dependent_delays_is_the_worst_of_all_joint_distributions(times: list[int]) -> None:
    delays = [1, 2, 2, 4, 7, 9]
    network = NetworkModel(EmpiricalDelay.of_samples(delays), 0.1, delays_dependent=True)
    assert none_arrived_probability(network, times) == pytest.approx(
        worst_of_all_couplings(network, times, delays), rel=1e-12
    )


def test_equation_3_for_dependent_delays_by_hand() -> None:
    # Half of all delays are 1, half 10: copies at 0 and 2, and D = 4. Independent: (q + (1-q)/2)². Together: half the
    # time both are late; else both are lost.
    network = NetworkModel(EmpiricalDelay.of_samples([at(1), at(10)]), 0.1, delays_dependent=True)
    setting = Redundancy.of_ns(1, at(2))
    assert miss_probability(network, setting, at(4)) == pytest.approx(0.5 + 0.5 * 0.01, rel=1e-12)
    assert miss_probability(replace(network, delays_dependent=False), setting, at(4)) == pytest.approx(
        0.55**2, rel=1e-12
    )


def test_equations_4_and_7_for_dependent_delays_add_the_misses_of_each_destination() -> None:
    network = NetworkModel(ConstantDelay(at(1)), 0.1, delays_dependent=True)
    assert reach_probability(4, network, RHO_1, at(10)) == pytest.approx(1 - 3 * 0.01, rel=1e-12)
    assert reach_probability_limit(4, network, RHO_1) == pytest.approx(1 - 3 * 0.01, rel=1e-12)
    # The receiver of copy 0 takes over and sends two at 2η and 3η: three copies in all.
    assert reach_probability_after_copy(4, network, RHO_1, 0, at(20)) == pytest.approx(1 - 2 * 0.001, rel=1e-12)
    assert reach_probability(400, network, RHO_1, at(10)) == 0


@pytest.mark.parametrize(
    "delay", [ExponentialDelay(MS), LognormalDelay(at(2), 0.5), UniformDelay(0, at(7)), ConstantDelay(MS)]
)
def test_dependent_delays_never_guarantee_more_and_are_equal_for_one_copy_to_one_member(delay: DelayModel) -> None:
    free, bound = NetworkModel(delay, Q), NetworkModel(delay, Q, delays_dependent=True)
    for rho, d in product(range(4), (0.3, 1, 3, 5, 8, 14, 30)):
        setting = Redundancy.of_ns(rho, at(2))
        assert reach_probability(5, bound, setting, at(d)) <= reach_probability(5, free, setting, at(d)) + 1e-12
        for k in range(rho + 1):
            ours, papers = (reach_probability_after_copy(5, network, setting, k, at(d)) for network in (bound, free))
            assert ours <= papers + 1e-12
    assert reach_probability(2, bound, Redundancy.of_ns(0, MS), at(3)) == pytest.approx(
        reach_probability(2, free, Redundancy.of_ns(0, MS), at(3))
    )
