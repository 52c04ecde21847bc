"""Negotiation: a requirement goes down the layers to the network, and a guarantee comes back up (paper 002 §2.2).

Each layer answers two questions: what must the layer below guarantee so that this layer can meet a requirement, and
what does this layer guarantee given the guarantee below. RMCast is the lowest layer, directly on the network. Its
settings are ρ, η and ω; among the settings that meet the requirement, negotiation picks the one with the fewest
expected broadcasts. If no setting does, a counter-offer says what this network can guarantee and how good a network the
requirement needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from unisono.errors import InvalidOption
from unisono.model.delays import ScaledDelay
from unisono.model.policy import Redundancy, eta_of_all, eta_of_one
from unisono.model.units import duration_text
from unisono.qos.plan import rmcast_model as rmcast
from unisono.qos.plan.rmcast_model import CrashModel, NetworkModel, agreement_failure_extended, expected_broadcasts

RHO_MOST = 8
"""Largest ρ to try: with 30 % loss, nine copies miss 2 receivers in 100,000."""
ALPHA = 0.99
"""Probability that η exceeds the time of one transmission; the value that paper 002 uses."""
OMEGA_MOST_ETAS = 4
"""ω is at most this many η: a later take-over would come too late to be useful."""

DELAY_FACTOR_MAX = 1000
"""Largest factor for all delays to try when looking for the worst network that is still good enough."""


@dataclass(frozen=True, slots=True)
class Target:
    """A share of all multicasts and the time within which they must arrive. Without a time: eventually."""

    share: float
    within_ns: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise InvalidOption("share", f"expected a probability of at least 0 and less than 1, not {self.share}")
        if self.within_ns is not None and self.within_ns < 0:
            raise InvalidOption("within", f"expected a duration of 0 or more, not {self.within_ns} ns")

    def text(self) -> str:
        """The target in words, such as `0.999 within 20ms`."""
        share = f"{self.share:.6g}"
        # No guarantee is certain, so rounding must not turn it into 1.
        share = f"1 - {1 - self.share:.2g}" if share == "1" else share
        return share + (f" within {duration_text(self.within_ns)}" if self.within_ns is not None else "")


@dataclass(frozen=True, slots=True)
class Requirement:
    """A required guarantee.

    `latency` is (R, D): all members have the message within D of the call. `relative` is (U, S): all other members have
    it within S of the first delivery. `agreement` is the required probability of agreement if a member crashes.
    """

    latency: Target | None = None
    relative: Target | None = None
    agreement: float = 0.0

    def without_times(self) -> Requirement:
        """The same requirement without time limits."""
        latency = Target(self.latency.share) if self.latency else None
        relative = Target(self.relative.share) if self.relative else None
        return Requirement(latency, relative, self.agreement)

    def text(self) -> str:
        """The requirement in words."""
        parts = [
            f"all members with probability {self.latency.text()}" if self.latency else "",
            f"all others after the first with probability {self.relative.text()}" if self.relative else "",
            f"agreement {self.agreement:.9g} if a member crashes" if self.agreement else "",
        ]
        return "; ".join(filter(None, parts)) or "nothing"


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What a layer guarantees, with the same fields as `Requirement`."""

    latency: Target | None = None
    relative: Target | None = None
    agreement: float | None = None

    def text(self) -> str:
        """The guarantee in words."""
        parts = [
            f"all members with probability {self.latency.text()}" if self.latency else "",
            f"all others after the first with probability {self.relative.text()}" if self.relative else "",
            f"agreement with probability 1 - {1 - self.agreement:.3g} if a member crashes"
            if self.agreement is not None
            else "",
        ]
        return "; ".join(filter(None, parts)) or "nothing"


class QosLayer(Protocol):
    """How a layer above RMCast takes part in negotiation (paper 002, figure 2: qos_i)."""

    @property
    def name(self) -> str:
        """The name that users see."""

    def needs(self, requirement: Requirement) -> Requirement | None:
        """What the layer below must guarantee to meet this requirement; None if nothing would be enough."""

    def guarantee(self, guarantee_below: Guarantee) -> Guarantee:
        """What this layer guarantees if the layer below guarantees `guarantee_below`."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The size of the group, its network, and how its processes crash if that is known."""

    members: int
    network: NetworkModel
    crashes: CrashModel | None = None
    rho_most: int = RHO_MOST
    """The largest ρ to try."""

    def __post_init__(self) -> None:
        if self.members < 2:
            raise InvalidOption("members", f"expected at least 2 members for a multicast, not {self.members}")


@dataclass(frozen=True, slots=True)
class WorstNetwork:
    """The worst network on which a setting still meets a requirement: more loss, or longer delays, but not both."""

    loss: float | None
    """The largest loss at the given delays; None if even a lossless network is not enough."""
    delay_factor: float | None
    """The largest factor for all delays at the given loss; None if even a thousandth of the delays is too long."""

    def text(self, network: NetworkModel) -> str:
        """The worst networks in words, compared with the given network."""
        at_loss = f"a loss of at most {self.loss:.4g}" if self.loss is not None else "not even a lossless network"
        if self.delay_factor is None:
            at_delay = f"with loss {network.loss:.4g}, no delay is short enough"
        else:
            at_most = (
                "any delay"
                if self.delay_factor >= DELAY_FACTOR_MAX
                else f"delays of at most {self.delay_factor:.4g} times that"
            )
            at_delay = f"with loss {network.loss:.4g}, {at_most}"
        return f"{at_loss} with delays {network.delay.text()}; or {at_delay}"


@dataclass(frozen=True, slots=True)
class NegotiationStep:
    """One step of the negotiation: which layer, in which direction, with which result."""

    layer: str
    direction: str
    """`down` for a requirement, `up` for a guarantee."""
    text: str


@dataclass(frozen=True, slots=True)
class Agreement:
    """The requirement can be met: the setting, the guarantee at the top, its cost, and the steps of the negotiation."""

    redundancy: Redundancy
    guarantee: Guarantee
    rmcast_guarantee: Guarantee
    expected_broadcasts: float
    """Expected broadcasts per multicast without crashes; receivers that count copies need fewer."""
    worst_network: WorstNetwork
    steps: tuple[NegotiationStep, ...]


@dataclass(frozen=True, slots=True)
class CounterOffer:
    """The requirement cannot be met: what this network can guarantee, and how good a network would be needed."""

    reason: str
    alternatives: tuple[Guarantee, ...]
    worst_network: WorstNetwork | None
    steps: tuple[NegotiationStep, ...]


def negotiate(
    requirement: Requirement, environment: Environment, layers: Sequence[QosLayer] = ()
) -> Agreement | CounterOffer:
    """Take the requirement down through `layers` (topmost first) to RMCast, and the guarantee of RMCast back up."""
    steps: list[NegotiationStep] = []
    asked, too_slow = requirement, ""
    for layer in layers:
        needed = layer.needs(asked)
        if needed is None:
            too_slow = too_slow or f"{layer.name} alone takes longer than required, on any network"
            needed = layer.needs(asked.without_times())
        if needed is None:
            return CounterOffer(f"{layer.name} cannot guarantee {asked.text()}", (), None, tuple(steps))
        steps.append(NegotiationStep(layer.name, "down", f"needs {needed.text()}"))
        asked = needed
    found = None if too_slow else _cheapest(asked, environment)
    if found is None:
        return _counter_offer(asked, environment, layers, steps, too_slow)
    redundancy, broadcasts = found
    if asked.relative is None and not asked.agreement:
        # r_D relies on the sender alone, so receivers may wait longer and count copies, which only saves broadcasts.
        # u_S and f_n rely on take-overs after η+ω, so there the time-outs stay as they are.
        redundancy = replace(redundancy, adaptive="counting")
    worst = worst_network_for(asked, environment, redundancy)
    at_rmcast = guarantee_of(environment, redundancy, asked)
    steps += [
        NegotiationStep("rmcast", "down", f"with {redundancy.text()} needs {worst.text(environment.network)}"),
        NegotiationStep("network", "up", f"provides {environment.network.text()}: accepted"),
        NegotiationStep("rmcast", "up", f"guarantees {at_rmcast.text()}, with about {broadcasts:.3g} broadcasts"),
    ]
    at_top = _walk_up(at_rmcast, layers, steps)
    return Agreement(redundancy, at_top, at_rmcast, broadcasts, worst, tuple(steps))


def candidate_settings(environment: Environment) -> Iterator[tuple[int, int]]:
    """All pairs (ρ, η) to try. η is the time in which one datagram arrives, or all n-1 of a broadcast (002 §3.3)."""
    delay = environment.network.delay
    etas = sorted({eta_of_one(delay, ALPHA), eta_of_all(delay, ALPHA, environment.members)})
    for rho in range(environment.rho_most + 1):
        for eta_ns in etas:
            yield rho, eta_ns


def meets(requirement: Requirement, environment: Environment, redundancy: Redundancy) -> bool:
    """Whether a setting meets the requirement on this network."""
    members, network = environment.members, environment.network
    if requirement.latency is not None:
        share, within_ns = requirement.latency.share, requirement.latency.within_ns
        if within_ns is None:
            reached = rmcast.reach_probability_limit(members, network, redundancy)
        else:
            reached = rmcast.reach_probability(members, network, redundancy, within_ns)
        if reached < share:
            return False
    if requirement.relative is not None:
        share, within_ns = requirement.relative.share, requirement.relative.within_ns
        at_ns = rmcast.FOREVER_NS if within_ns is None else within_ns
        if rmcast.reach_probability_after_first(members, network, redundancy, at_ns) < share:
            return False
    return not requirement.agreement or _agreement_probability(environment, redundancy) >= requirement.agreement


def guarantee_of(environment: Environment, redundancy: Redundancy, requirement: Requirement) -> Guarantee:
    """What a setting guarantees: the time in which it reaches the required share, or the share that it does reach."""
    latency = relative = None
    if requirement.latency is not None:
        latency = _latency_guarantee(environment, redundancy, requirement.latency)
    if requirement.relative is not None:
        relative = _relative_guarantee(environment, redundancy, requirement.relative)
    return Guarantee(
        latency, relative, _agreement_probability(environment, redundancy) if environment.crashes else None
    )


def _latency_guarantee(environment: Environment, redundancy: Redundancy, target: Target) -> Target:
    members, network = environment.members, environment.network
    within_ns = rmcast.shortest_d(members, network, redundancy, target.share)
    if within_ns is not None and target.share > 0:
        return Target(min(rmcast.reach_probability(members, network, redundancy, within_ns), _BELOW_ONE), within_ns)
    if target.within_ns is not None:
        return Target(rmcast.reach_probability(members, network, redundancy, target.within_ns), target.within_ns)
    return Target(min(rmcast.reach_probability_limit(members, network, redundancy), _BELOW_ONE))


def _relative_guarantee(environment: Environment, redundancy: Redundancy, target: Target) -> Target:
    members, network = environment.members, environment.network
    after_ns = rmcast.shortest_s(members, network, redundancy, target.share)
    if after_ns is None:
        after_ns = target.within_ns if target.within_ns is not None else rmcast.FOREVER_NS
    return Target(
        min(rmcast.reach_probability_after_first(members, network, redundancy, after_ns), _BELOW_ONE), after_ns
    )


_BELOW_ONE = 1 - 2**-53
"""The largest probability to guarantee: floating point may round a probability up to 1, which none reaches."""


def worst_network_for(requirement: Requirement, environment: Environment, redundancy: Redundancy) -> WorstNetwork:
    """The worst networks on which this setting still meets the requirement."""
    return _worst_network(
        environment, lambda network: meets(requirement, replace(environment, network=network), redundancy)
    )


def worst_network_for_any(requirement: Requirement, environment: Environment) -> WorstNetwork:
    """The worst networks on which some setting still meets the requirement; η is chosen for each network."""

    def acceptable(network: NetworkModel) -> bool:
        on_network = replace(environment, network=network)
        settings = (Redundancy.of_ns(rho, eta_ns) for rho, eta_ns in candidate_settings(on_network))
        return any(meets(requirement, on_network, setting) for setting in settings)

    return _worst_network(environment, acceptable)


def _worst_network(environment: Environment, acceptable: Callable[[NetworkModel], bool]) -> WorstNetwork:
    network = environment.network
    most = rmcast.largest_where(lambda millionths: acceptable(replace(network, loss=millionths / 1e6)), 999_999)

    def slower(thousandths: int) -> NetworkModel:
        return replace(network, delay=ScaledDelay(network.delay, max(thousandths, 1) / 1e3))

    slowest = rmcast.largest_where(lambda thousandths: acceptable(slower(thousandths)), DELAY_FACTOR_MAX * 1000)
    return WorstNetwork(None if most is None else most / 1e6, slowest / 1e3 if slowest else None)


def _cheapest(requirement: Requirement, environment: Environment) -> tuple[Redundancy, float] | None:
    """The setting with the fewest expected broadcasts, and their number; None if no setting meets the requirement.

    ω is as long as the requirement allows, because a longer ω causes fewer take-overs.
    """
    best: tuple[float, int, Redundancy] | None = None
    for rho, eta_ns in candidate_settings(environment):
        if best is not None and rho + 1 >= best[0]:
            break

        def omega_suffices(omega_ns: int, rho: int = rho, eta_ns: int = eta_ns) -> bool:
            return meets(requirement, environment, Redundancy.of_ns(rho, eta_ns, omega_ns))

        omega_ns = rmcast.largest_where(omega_suffices, OMEGA_MOST_ETAS * eta_ns)
        if omega_ns is None:
            continue
        setting = Redundancy.of_ns(rho, eta_ns, omega_ns)
        cost = expected_broadcasts(environment.members, environment.network, setting)
        if best is None or (cost, eta_ns) < best[:2]:
            best = (cost, eta_ns, setting)
    return None if best is None else (best[2], best[0])


def _agreement_probability(environment: Environment, redundancy: Redundancy) -> float:
    if environment.crashes is None:
        raise InvalidOption(
            "agreement",
            "needs a model of crashes; give the mean time to failure and the probability of a crash at each send",
        )
    v = environment.crashes.before_takeover(redundancy)
    return 1 - agreement_failure_extended(
        environment.members, environment.network.loss, v, environment.crashes.crash_in_broadcast
    )


def _counter_offer(
    requirement: Requirement,
    environment: Environment,
    layers: Sequence[QosLayer],
    steps: list[NegotiationStep],
    too_slow: str,
) -> CounterOffer:
    """What RMCast and the layers above can guarantee on this network, although it is not enough."""
    tried = [Redundancy.of_ns(rho, eta_ns) for rho, eta_ns in candidate_settings(environment)]
    offers = _latency_alternatives(environment, tried, requirement.latency) if requirement.latency else []
    if requirement.relative is not None:
        offers += _relative_alternatives(environment, tried, requirement)
    worst = None
    if not too_slow:
        worst = worst_network_for_any(requirement, environment)
        steps.append(NegotiationStep("rmcast", "down", f"needs {worst.text(environment.network)}"))
    steps.append(
        NegotiationStep("network", "up", f"provides {environment.network.text()}{'' if too_slow else ': not enough'}")
    )
    at_top = []
    for offer in offers:
        steps.append(NegotiationStep("rmcast", "up", f"could guarantee {offer.text()}"))
        at_top.append(_walk_up(offer, layers, steps))
    reason = too_slow or f"no ρ, η and ω guarantee {requirement.text()} over {environment.network.text()}"
    return CounterOffer(reason, tuple(at_top), worst, tuple(steps))


def _latency_alternatives(environment: Environment, tried: list[Redundancy], target: Target) -> list[Guarantee]:
    """What the tried settings guarantee instead: the best share within D, and the shortest D for the share."""
    members, network, within_ns = environment.members, environment.network, target.within_ns

    def reached_share(setting: Redundancy) -> float:
        if within_ns is None:
            return rmcast.reach_probability_limit(members, network, setting)
        return rmcast.reach_probability(members, network, setting, within_ns)

    offers = [guarantee_of(environment, max(tried, key=reached_share), Requirement(Target(0.0, within_ns)))]
    able = [(d, setting) for setting in tried if (d := rmcast.shortest_d(members, network, setting, target.share))]
    if able:
        soonest = min(able, key=lambda pair: (pair[0], pair[1].rho))[1]
        offers.append(guarantee_of(environment, soonest, Requirement(Target(target.share))))
    return offers


def _relative_alternatives(
    environment: Environment, tried: list[Redundancy], requirement: Requirement
) -> list[Guarantee]:
    """What the tried settings guarantee instead: the shortest time S in which the required share U is reached."""
    members, network, relative = environment.members, environment.network, requirement.relative
    if relative is None:
        return []
    able = [(s, setting) for setting in tried if (s := rmcast.shortest_s(members, network, setting, relative.share))]
    if not able:
        return []
    soonest = min(able, key=lambda pair: (pair[0], pair[1].rho))[1]
    latency = Target(requirement.latency.share) if requirement.latency else None
    return [guarantee_of(environment, soonest, Requirement(latency, Target(relative.share)))]


def _walk_up(guarantee: Guarantee, layers: Sequence[QosLayer], steps: list[NegotiationStep]) -> Guarantee:
    for layer in reversed(layers):
        guarantee = layer.guarantee(guarantee)
        steps.append(NegotiationStep(layer.name, "up", f"guarantees {guarantee.text()}"))
    return guarantee
