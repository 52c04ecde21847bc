"""The formulas of reliable multicast (paper 002, appendices B and C, errata 002-4 to 002-11).

Three questions, for a group of n members, a network and a setting (ρ, η, ω):

- How likely is it that all members get a message in time? Equations (1)-(11). r_D is the probability that all have it
  within D of the call, u_S that all others have it within S of the first delivery. Both are pessimistic: r_D relies on
  the originator alone, u_S on the originator and one receiver.
- How many broadcasts does one multicast cost? `expected_broadcasts`, an estimate; the paper only simulates this.
- How likely is it that agreement fails because processes crash? f_n, equations (12) and (13).

The formulas hold for any delay distribution; equation (2) is equation (1) for the exponential one. Corrections of the
paper: equation (6) is 1 at k = ρ by definition, and equation (8) is the minimum over all k (erratum 002-4). Equation
(5) has k+1 factors (erratum 002-5). Comparisons are ≥ (erratum 002-6). r_D has a limit below 1, so negotiation may have
to refuse (erratum 002-11).

The paper assumes independent delays. A host that stalls delays all copies at once, and then equations (3) and (4)
promise too much. For a network with `delays_dependent`, every result here is a bound that holds for any dependence
between delays; docs/negotiation.md has the argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import comb, exp, expm1, prod

from unisono.errors import InvalidOption
from unisono.model.delays import DelayModel
from unisono.model.policy import Redundancy
from unisono.model.units import exact_duration_text

FOREVER_NS = 2**62
"""An ω that stands for no take-over at all."""


@dataclass(frozen=True, slots=True)
class NetworkModel:
    """The network: each datagram is lost with probability `loss` (q), or takes `delay` (ξ)."""

    delay: DelayModel
    loss: float = 0.0
    delays_dependent: bool = False
    """Whether delays may depend on each other in any way; losses are independent in any case."""

    def __post_init__(self) -> None:
        if not 0 <= self.loss < 1:
            raise InvalidOption("loss", f"expected a share of at least 0 and less than 1, not {self.loss}")

    def text(self) -> str:
        """The network in words, such as `exponential:1ms, loss 0.05`."""
        dependent = ", delays may depend on each other" if self.delays_dependent else ""
        return f"{self.delay.text()}, loss {self.loss:.4g}{dependent}"


def not_arrived_probability(network: NetworkModel, x_ns: int) -> float:
    """The probability that a datagram does not arrive within x after it was sent: h(x), paper 002, equation (1)."""
    if x_ns <= 0:
        return 1.0
    return network.loss + (1 - network.loss) * (1 - network.delay.cdf(x_ns))


def none_arrived_probability(network: NetworkModel, times_ns: Sequence[int]) -> float:
    """The probability that none of several datagrams arrives in time. Each has its own time in `times_ns`.

    Dependent delays are worst when all are long together. Then a datagram is in time only if each datagram with more
    time is in time too, unless that one is lost. So the (i+1)th datagram, by decreasing time, matters only if the i
    before it are lost.
    """
    if not network.delays_dependent:
        return prod(not_arrived_probability(network, x_ns) for x_ns in times_ns)
    in_time = sorted((network.delay.cdf(x_ns) if x_ns > 0 else 0.0 for x_ns in times_ns), reverse=True)
    return 1 - (1 - network.loss) * sum(network.loss**i * share for i, share in enumerate(in_time))


def all_reached_probability(network: NetworkModel, destinations: int, missed_by_one: float) -> float:
    """The probability that no destination misses the message, if one misses it with probability `missed_by_one`."""
    if network.delays_dependent:
        return max(1 - destinations * missed_by_one, 0.0)
    return float((1 - missed_by_one) ** destinations)


def miss_probability(network: NetworkModel, redundancy: Redundancy, d_ns: int) -> float:
    """The probability that one destination gets no copy from the originator within D: g_D, paper 002, equation (3)."""
    return none_arrived_probability(network, [d_ns - k * redundancy.eta_ns for k in range(redundancy.rho + 1)])


def reach_probability(members: int, network: NetworkModel, redundancy: Redundancy, d_ns: int) -> float:
    """The probability that every destination has a copy within D: r_D, paper 002, equation (4)."""
    return all_reached_probability(network, members - 1, miss_probability(network, redundancy, d_ns))


def reach_probability_limit(members: int, network: NetworkModel, redundancy: Redundancy) -> float:
    """The limit of r_D as D grows: (1 - q^(ρ+1))^(n-1) (erratum 002-11)."""
    return all_reached_probability(network, members - 1, network.loss ** (redundancy.rho + 1))


def miss_probability_of_started(network: NetworkModel, redundancy: Redundancy, k: int, s_ns: int) -> float:
    """The probability that a process has none of copies 0 to k at t+S, if another process got copy k at t.

    This is g_k(S), paper 002, equation (5).
    """
    return none_arrived_probability(network, _since_started(redundancy, k, s_ns))


def miss_probability_of_takeover(network: NetworkModel, redundancy: Redundancy, k: int, s_ns: int) -> float:
    """The probability that a process has no copy of a take-over at t+S, if a receiver got copy k at t and takes over.

    This is paper 002, equation (6), with ζ = η.
    """
    return none_arrived_probability(network, _since_takeover(redundancy, k, s_ns))


def _since_started(redundancy: Redundancy, k: int, s_ns: int) -> list[int]:
    """How long each of copies 0 to k has been travelling by t+S, if copy k arrived at t."""
    return [s_ns + m * redundancy.eta_ns for m in range(k + 1)]


def _since_takeover(redundancy: Redundancy, k: int, s_ns: int) -> list[int]:
    """How long each copy of a take-over has been travelling by t+S, if copy k arrived at t; empty for the last copy.

    No take-over follows the last copy. A negative time means that the copy is not sent yet.
    """
    if k == redundancy.rho:
        return []
    return [s_ns - (m + 1) * redundancy.eta_ns - redundancy.omega_ns for m in range(1, redundancy.rho - k + 2)]


def reach_probability_after_copy(
    members: int, network: NetworkModel, redundancy: Redundancy, k: int, s_ns: int
) -> float:
    """The probability that all others have the message within S after a given process got copy k.

    This is u_k(S), paper 002, equation (7).
    """
    neither = none_arrived_probability(
        network, _since_started(redundancy, k, s_ns) + _since_takeover(redundancy, k, s_ns)
    )
    return all_reached_probability(network, max(members - 2, 0), neither)


def reach_probability_after_first(members: int, network: NetworkModel, redundancy: Redundancy, s_ns: int) -> float:
    """The probability that all have the message within S of the first delivery: u_S, paper 002, equation (8)."""
    return min(reach_probability_after_copy(members, network, redundancy, k, s_ns) for k in range(redundancy.rho + 1))


def needs_no_takeover(
    members: int, network: NetworkModel, redundancy: Redundancy, k: int, s_ns: int, *, share: float
) -> bool:
    """Whether u_k(S) reaches `share` even if the receiver of copy k never takes over (paper 002, equation (9))."""
    return (
        all_reached_probability(network, max(members - 2, 0), miss_probability_of_started(network, redundancy, k, s_ns))
        >= share
    )


def meets_requirement(
    members: int, network: NetworkModel, redundancy: Redundancy, k: int, s_ns: int, *, share: float
) -> bool:
    """Whether u_k(S) reaches the required `share` with the ω of this redundancy (paper 002, equation (10))."""
    return reach_probability_after_copy(members, network, redundancy, k, s_ns) >= share


def longest_omega(
    members: int, network: NetworkModel, redundancy: Redundancy, k: int, s_ns: int, *, share: float
) -> int | None:
    """The largest ω for which u_k(S) reaches `share` (paper 002, equation (11)).

    It is FOREVER_NS if no take-over is needed, and None if even ω = 0 is too long.
    """
    if needs_no_takeover(members, network, redundancy, k, s_ns, share=share):
        return FOREVER_NS

    def reaches_share(omega_ns: int) -> bool:
        return meets_requirement(
            members, network, replace(redundancy, omega=exact_duration_text(omega_ns)), k, s_ns, share=share
        )

    return largest_where(reaches_share, s_ns)


def shortest_d(members: int, network: NetworkModel, redundancy: Redundancy, share: float) -> int | None:
    """The shortest D for which r_D reaches a share; None if r_D never reaches it. Orders over RMCast use it as Δ."""
    if reach_probability_limit(members, network, redundancy) < share:
        return None
    return smallest_where(lambda d_ns: reach_probability(members, network, redundancy, d_ns) >= share)


def shortest_s(members: int, network: NetworkModel, redundancy: Redundancy, share: float) -> int | None:
    """The shortest S for which u_S reaches a share; None if u_S never reaches it."""
    return smallest_where(lambda s_ns: reach_probability_after_first(members, network, redundancy, s_ns) >= share)


def largest_where(holds: Callable[[int], bool], up_to: int) -> int | None:
    """The largest integer from 0 to `up_to` for which `holds` is true; None if there is none.

    `holds` must be true up to some point and false after it.
    """
    if not holds(0):
        return None
    low, high = 0, up_to + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def smallest_where(holds: Callable[[int], bool]) -> int | None:
    """The smallest integer from 1 to 2**62 for which `holds` is true; None if there is none.

    `holds` must be false up to some point and true after it.
    """
    high = 1
    while not holds(high):
        if high >= FOREVER_NS:
            return None
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


_STEPS_PER_ETA = 24
_TAIL = 0.999


def expected_broadcasts(members: int, network: NetworkModel, redundancy: Redundancy) -> float:
    """The expected number of broadcasts of one multicast when no process crashes: an estimate to compare settings.

    It counts the originator's ρ+1 copies and the take-overs after each copy but the last. Each receiver of copy k takes
    over η + ω + ζ after it got the copy, unless a later copy of the originator or another take-over reaches it first.
    Take-overs that follow from take-overs are left out. docs/negotiation.md compares the estimate with simulations.
    """
    own = redundancy.rho + 1
    if members <= 2 or redundancy.rho == 0:
        return float(own)
    return own + sum(_takeovers(members, network, redundancy, k) for k in range(redundancy.rho))


def _takeovers(members: int, network: NetworkModel, redundancy: Redundancy, k: int) -> float:
    """The expected number of take-overs after copy k.

    It sums λ(t) = λ₀(t)·exp(-∫ λ(s)·P(reached by t) ds) over time t. λ is the rate of take-overs. λ₀ is the rate that
    they would have if no take-over prevented another one.
    """
    eta, start = redundancy.eta_ns, redundancy.eta_ns + redundancy.omega_ns
    step = max(eta // _STEPS_PER_ETA, 1)
    count = (eta + network.delay.quantile(_TAIL)) // step + 1
    within = [network.delay.cdf(i * step) for i in range(count + 1)]
    # A receiver waits δ + η + ω, then ζ, uniform on (0, η): the density is [F(x) - F(x - η)]/η.
    back = max(eta // step, 1)
    arrived = [1 - not_arrived_probability(network, i * step) for i in range(count + 1)]
    takeovers: list[float] = []
    for i in range(1, count + 1):
        density = (within[i] - within[max(i - back, 0)]) / back
        now = start + i * step
        no_later_copy = prod(not_arrived_probability(network, now - m * eta) for m in range(1, redundancy.rho - k + 1))
        stopped = sum(earlier * arrived[i - j] for j, earlier in enumerate(takeovers, 1))
        takeovers.append((members - 1) * (1 - network.loss) * density * no_later_copy * exp(-stopped))
    return sum(takeovers)


@dataclass(frozen=True, slots=True)
class CrashModel:
    """How processes crash: the mean time to failure 1/γ, and β, the probability of a crash at each send."""

    mttf_ns: int
    crash_in_broadcast: float

    def __post_init__(self) -> None:
        if self.mttf_ns <= 0:
            raise InvalidOption("mttf", f"expected a mean time above 0, not {self.mttf_ns} ns")
        if not 0 <= self.crash_in_broadcast <= 1:
            raise InvalidOption(
                "crash_in_broadcast", f"expected a probability from 0 to 1, not {self.crash_in_broadcast}"
            )

    def before_takeover(self, redundancy: Redundancy) -> float:
        """The probability v that a receiver crashes before it takes over.

        It assumes the longest possible wait: η, the largest ω, and the largest ζ, which is η.
        """
        return crash_within(redundancy.longest_wait_ns(), self.mttf_ns)


def crash_within(tau_ns: int, mttf_ns: int) -> float:
    """The probability that a process crashes before its time-out τ: v, paper 002, equation (12)."""
    return -expm1(-tau_ns / mttf_ns)


def agreement_failure(members: int, loss: float, v: float, beta: float) -> float:
    """The probability f_n that agreement fails (paper 002, equation (13)).

    As in the paper, agreement never fails if two or more receivers survive. The recursion starts from f_1 = f_2 = 0
    (erratum 002-7). Losses without a crash are not part of f_n: they are the difference between 1 and
    `reach_probability_limit` (erratum 002-10).
    """

    def after(j: int, n: int, f: Callable[[int], float]) -> float:
        return v**j + j * v ** (j - 1) * (1 - v) * f(n - j)

    return _recursion(members, loss, beta, after)


def agreement_failure_extended(members: int, loss: float, v: float, beta: float) -> float:
    """The probability f_n that agreement fails, as extended by erratum 002-8.

    Of the j direct receivers m survive the crash. Agreement fails only if none of the m reaches all members."""

    def after(j: int, n: int, f: Callable[[int], float]) -> float:
        survive = sum(comb(j, m) * (1 - v) ** m * v ** (j - m) * f(n - 1 - j + m) ** m for m in range(1, j + 1))
        return float(v**j + survive)

    return _recursion(members, loss, beta, after)


def _recursion(
    members: int, loss: float, beta: float, after: Callable[[int, int, Callable[[int], float]], float]
) -> float:
    """Compute f_n, the probability that agreement fails, by recursion over the number of processes.

    `after` is the probability of failure once j of n processes have the message.
    """
    known = [0.0, 0.0, 0.0]
    for n in range(3, members + 1):
        then = [after(j, n, known.__getitem__) for j in range(1, n)]
        total = 0.0
        for k in range(1, n):
            received = (comb(k, j) * (1 - loss) ** j * loss ** (k - j) * then[j - 1] for j in range(1, k + 1))
            total += (1 - beta) ** (k - 1) * beta * sum(received)
        known.append(total)
    return known[max(members, 0)]
