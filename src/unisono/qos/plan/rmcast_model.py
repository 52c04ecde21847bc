"""What RMCast offers over a network with a known delay distribution: equations (1)–(11) of paper 002, Appendix B.

All are pessimistic: r_D counts on the originator alone, u_S on the originator and one receiver. Nothing here is tied to
one distribution; (2) is what (1) gives for the exponential. Readings: (6) is 1 at k = ρ by definition and (8) is the
minimum over all k (002-4), (5) has k+1 factors (002-5), ≥ throughout (002-6), r_D has a limit below 1 (002-11), which
is why negotiation has to be able to say no.

The paper takes delays for independent. A host that stalls keeps all copies back at once, and then (3) and (4) promise
too much. For a network whose delays are `dependent` everything here is a bound that holds however delays depend on each
other: docs/negotiation.md has the argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import comb, exp, expm1, prod

from unisono.errors import InvalidOption
from unisono.model.delays import DelayModel
from unisono.model.redundancy import Redundancy

FOREVER_NS = 2**62
"""As an ω: never take over."""


@dataclass(frozen=True, slots=True)
class NetworkModel:
    """What lies below: each datagram is lost with probability `loss` (q), or takes `delay` (ξ)."""

    delay: DelayModel
    loss: float = 0.0
    delays_dependent: bool = False
    """Whether delays may depend on each other in any way; losses never do."""

    def __post_init__(self) -> None:
        if not 0 <= self.loss < 1:
            raise InvalidOption("loss", f"a share from 0 to less than 1 is needed, not {self.loss}")

    def text(self) -> str:
        """In words."""
        together = ", delays that may depend on each other" if self.delays_dependent else ""
        return f"{self.delay.text()}, {self.loss:.4g} lost{together}"


def not_arrived_probability(network: NetworkModel, x_ns: int) -> float:
    """(1): h(x), the probability that a send does not succeed within x."""
    if x_ns <= 0:
        return 1.0
    return network.loss + (1 - network.loss) * (1 - network.delay.cdf(x_ns))


def none_arrived_probability(network: NetworkModel, times_ns: Sequence[int]) -> float:
    """The probability that none of several sends succeeds, each within its own time.

    Dependent delays are at their worst when all are long together: then a send has succeeded only if all with more time
    have come too, unless they are lost, and i+1 sends come in time with the (i+1)th largest probability.
    """
    if not network.delays_dependent:
        return prod(not_arrived_probability(network, x_ns) for x_ns in times_ns)
    come = sorted((network.delay.cdf(x_ns) if x_ns > 0 else 0.0 for x_ns in times_ns), reverse=True)
    return 1 - (1 - network.loss) * sum(network.loss**i * share for i, share in enumerate(come))


def all_reached_probability(network: NetworkModel, destinations: int, missed_by_one: float) -> float:
    """The probability that no destination is one that misses something."""
    if network.delays_dependent:
        return max(1 - destinations * missed_by_one, 0.0)
    return float((1 - missed_by_one) ** destinations)


def miss_probability(network: NetworkModel, redundancy: Redundancy, d_ns: int) -> float:
    """(3): g_D, the probability that one destination gets none of the originator's ρ+1 copies within D."""
    return none_arrived_probability(network, [d_ns - k * redundancy.eta_ns for k in range(redundancy.rho + 1)])


def reach_probability(members: int, network: NetworkModel, redundancy: Redundancy, d_ns: int) -> float:
    """(4): r_D, the probability that every destination has a copy within D."""
    return all_reached_probability(network, members - 1, miss_probability(network, redundancy, d_ns))


def reach_probability_limit(members: int, network: NetworkModel, redundancy: Redundancy) -> float:
    """What r_D tends to as D grows: (1 - q^(ρ+1))^(n-1) (002-11)."""
    return all_reached_probability(network, members - 1, network.loss ** (redundancy.rho + 1))


def miss_probability_of_started(network: NetworkModel, redundancy: Redundancy, k: int, s_ns: int) -> float:
    """(5): g_k(S), that a process gets none of copies 0 to k before t+S, when another got copy k at t."""
    return none_arrived_probability(network, _since_started(redundancy, k, s_ns))


def miss_probability_of_takeover(network: NetworkModel, redundancy: Redundancy, k: int, s_ns: int) -> float:
    """(6): that it gets none of the copies that the receiver of copy k would send itself; ζ is taken as η."""
    return none_arrived_probability(network, _since_takeover(redundancy, k, s_ns))


def _since_started(redundancy: Redundancy, k: int, s_ns: int) -> list[int]:
    """How long copies 0 to k are under way by t+S, when copy k was got at t."""
    return [s_ns + m * redundancy.eta_ns for m in range(k + 1)]


def _since_takeover(redundancy: Redundancy, k: int, s_ns: int) -> list[int]:
    """How long the copies of a takeover after copy k are; there is none after the last."""
    if k == redundancy.rho:
        return []
    return [s_ns - (m + 1) * redundancy.eta_ns - redundancy.omega_ns for m in range(1, redundancy.rho - k + 2)]


def reach_probability_after_copy(
    members: int, network: NetworkModel, redundancy: Redundancy, k: int, s_ns: int
) -> float:
    """(7): u_k(S), that all others have the message within S after a given process got copy k."""
    neither = none_arrived_probability(
        network, _since_started(redundancy, k, s_ns) + _since_takeover(redundancy, k, s_ns)
    )
    return all_reached_probability(network, max(members - 2, 0), neither)


def reach_probability_after_first(members: int, network: NetworkModel, redundancy: Redundancy, s_ns: int) -> float:
    """(8): u_S, the smallest of the u_k(S)."""
    return min(reach_probability_after_copy(members, network, redundancy, k, s_ns) for k in range(redundancy.rho + 1))


def needs_no_takeover(
    members: int, network: NetworkModel, redundancy: Redundancy, k: int, s_ns: int, *, share: float
) -> bool:
    """(9): whether the receiver of copy k need not take over at all for u_k(S) to reach U."""
    return (
        all_reached_probability(network, max(members - 2, 0), miss_probability_of_started(network, redundancy, k, s_ns))
        >= share
    )


def meets_requirement(
    members: int, network: NetworkModel, redundancy: Redundancy, k: int, s_ns: int, *, share: float
) -> bool:
    """(10): whether u_k(S) reaches U with this ω."""
    return reach_probability_after_copy(members, network, redundancy, k, s_ns) >= share


def longest_omega(
    members: int, network: NetworkModel, redundancy: Redundancy, k: int, s_ns: int, *, share: float
) -> int | None:
    """(11): the largest ω for which u_k(S) ≥ U; FOREVER_NS where (9) holds, None where even ω = 0 is too long."""
    if needs_no_takeover(members, network, redundancy, k, s_ns, share=share):
        return FOREVER_NS

    def keeps(omega_ns: int) -> bool:
        return meets_requirement(members, network, replace(redundancy, omega_ns=omega_ns), k, s_ns, share=share)

    return largest_where(keeps, s_ns)


def shortest_d(members: int, network: NetworkModel, redundancy: Redundancy, share: float) -> int | None:
    """The D at which r_D reaches a share: the hard Δ that an order over RMCast may count on. None: it never does."""
    if reach_probability_limit(members, network, redundancy) < share:
        return None
    return smallest_where(lambda d_ns: reach_probability(members, network, redundancy, d_ns) >= share)


def shortest_s(members: int, network: NetworkModel, redundancy: Redundancy, share: float) -> int | None:
    """The S at which u_S reaches a share; None if it never does."""
    return smallest_where(lambda s_ns: reach_probability_after_first(members, network, redundancy, s_ns) >= share)


def largest_where(holds: Callable[[int], bool], up_to: int) -> int | None:
    """The largest whole number from 0 to `up_to` for which something holds that holds up to a point; None if never."""
    if not holds(0):
        return None
    low, high = 0, up_to + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def smallest_where(holds: Callable[[int], bool]) -> int | None:
    """The smallest whole number for which something holds that holds from a point on; None if not within 2**62."""
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
    """The originator's ρ+1, and the takeovers at each copy before the last."""
    own = redundancy.rho + 1
    if members <= 2 or redundancy.rho == 0:
        return float(own)
    return own + sum(_takeovers(members, network, redundancy, k) for k in range(redundancy.rho))


def _takeovers(members: int, network: NetworkModel, redundancy: Redundancy, k: int) -> float:
    """λ(t) = λ₀(t)·exp(-∫ λ(s)·P(reached by t) ds), summed over time since copy k was broadcast."""
    eta, start = redundancy.eta_ns, redundancy.eta_ns + redundancy.omega_ns
    step = max(eta // _STEPS_PER_ETA, 1)
    count = (eta + network.delay.quantile(_TAIL)) // step + 1
    within = [network.delay.cdf(i * step) for i in range(count + 1)]
    # The time-out after δ + η + ω, then ζ uniform on (0, η): the density is [F(x) - F(x - η)]/η.
    back = max(eta // step, 1)
    heard = [1 - not_arrived_probability(network, i * step) for i in range(count + 1)]
    takeovers: list[float] = []
    for i in range(1, count + 1):
        density = (within[i] - within[max(i - back, 0)]) / back
        now = start + i * step
        alone = prod(not_arrived_probability(network, now - m * eta) for m in range(1, redundancy.rho - k + 1))
        silenced = sum(earlier * heard[i - j] for j, earlier in enumerate(takeovers, 1))
        takeovers.append((members - 1) * (1 - network.loss) * density * alone * exp(-silenced))
    return sum(takeovers)


@dataclass(frozen=True, slots=True)
class CrashModel:
    """How processes fail: `mttf_ns` is their mean time to failure (1/γ); `in_broadcast` is β, per receiver served."""

    mttf_ns: int
    crash_in_broadcast: float

    def __post_init__(self) -> None:
        if self.mttf_ns <= 0:
            raise InvalidOption("mttf", f"a mean time above zero is needed, not {self.mttf_ns} ns")
        if not 0 <= self.crash_in_broadcast <= 1:
            raise InvalidOption("crash_in_broadcast", f"a probability is needed, not {self.crash_in_broadcast}")

    def before_takeover(self, redundancy: Redundancy) -> float:
        """v for the longest that a receiver may wait: η + ω, as long as ω may become, and ζ at most η."""
        return crash_within(redundancy.longest_wait_ns(), self.mttf_ns)


def crash_within(tau_ns: int, mttf_ns: int) -> float:
    """(12): v, the probability that a process fails before its time-out τ."""
    return -expm1(-tau_ns / mttf_ns)


def agreement_failure(members: int, loss: float, v: float, beta: float) -> float:
    """(13): f_n, where at most one of the j receivers survives to go on."""

    def after(j: int, n: int, f: Callable[[int], float]) -> float:
        return v**j + j * v ** (j - 1) * (1 - v) * f(n - j)

    return _recursion(members, loss, beta, after)


def agreement_failure_extended(members: int, loss: float, v: float, beta: float) -> float:
    """The extended f_n: any number m of the j receivers survives, and all m would have to fail (002-8)."""

    def after(j: int, n: int, f: Callable[[int], float]) -> float:
        survive = sum(comb(j, m) * (1 - v) ** m * v ** (j - m) * f(n - 1 - j + m) ** m for m in range(1, j + 1))
        return float(v**j + survive)

    return _recursion(members, loss, beta, after)


def _recursion(
    members: int, loss: float, beta: float, after: Callable[[int, int, Callable[[int], float]], float]
) -> float:
    """Both forms differ only in what follows once j processes have the message in a group of n."""
    known = [0.0, 0.0, 0.0]
    for n in range(3, members + 1):
        then = [after(j, n, known.__getitem__) for j in range(1, n)]
        total = 0.0
        for k in range(1, n):
            received = (comb(k, j) * (1 - loss) ** j * loss ** (k - j) * then[j - 1] for j in range(1, k + 1))
            total += (1 - beta) ** (k - 1) * beta * sum(received)
        known.append(total)
    return known[max(members, 0)]
