"""How many broadcasts one RMCast costs when nobody crashes: an estimate, for comparing ρ, η and ω with each other.

The paper counts broadcasts by simulation only. Here the receivers of copy k are a crowd: each would take over at
δ + η + ω + ζ unless a later copy of the originator's has come, and each takeover silences those that it reaches before
their own. Takeovers in reply to takeovers are left out. docs/negotiation.md shows the estimate beside simulated counts.
"""

from __future__ import annotations

from math import exp, prod

from unisono.model.redundancy import Redundancy
from unisono.qos.plan.rmcast_model import NetworkModel, not_arrived_probability

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
