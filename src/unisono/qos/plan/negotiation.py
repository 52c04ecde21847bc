"""Negotiation: what is asked walks down the layers to the network, and what can be had walks back up (paper 002 §2.2).

Each layer knows two things: what it needs below to give what is asked above, and what it offers above from what it gets
below. RMCast stands on the network. Its control knobs are ρ, η and ω: of all settings that meet the request the one
with the fewest expected broadcasts is taken. If none does, the counter-offer says what the network at hand does allow,
and what the network would have to be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from unisono.errors import InvalidOption
from unisono.model.delays import ScaledDelay
from unisono.model.durations import duration_text
from unisono.model.redundancy import Redundancy, eta_of_all, eta_of_one
from unisono.qos.plan import rmcast_model as rmcast
from unisono.qos.plan.rmcast_model import CrashModel, NetworkModel, agreement_failure_extended, expected_broadcasts

RHO_MOST = 8
"""More copies than this are not tried: at a loss of 30 % nine copies leave 2 in 100,000 out."""
ALPHA = 0.99
"""How sure η is to exceed a transmission; the paper's own figure."""
OMEGA_MOST_ETAS = 4
"""ω is at most this many η: a takeover that comes later than that is no use to anybody who waits."""

DELAY_FACTOR_MAX = 1000
"""How much slower a network is looked at."""


@dataclass(frozen=True, slots=True)
class Target:
    """A share of all multicasts, and the time within which they have arrived; no time means whenever."""

    share: float
    within_ns: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise InvalidOption("share", f"a probability from 0 to less than 1 is needed, not {self.share}")
        if self.within_ns is not None and self.within_ns < 0:
            raise InvalidOption("within", f"a duration cannot be negative, and {self.within_ns} ns is")

    def text(self) -> str:
        """In words."""
        share = f"{self.share:.6g}"
        # A promise is never certain, and rounding must not make it look so.
        share = f"1 - {1 - self.share:.2g}" if share == "1" else share
        return share + (f" within {duration_text(self.within_ns)}" if self.within_ns is not None else "")


@dataclass(frozen=True, slots=True)
class Requirement:
    """What is asked: (R, D) from the call to everybody, (U, S) from the first to everybody else, agreement A."""

    latency: Target | None = None
    relative: Target | None = None
    agreement: float = 0.0

    def without_times(self) -> Requirement:
        """The same without its times."""
        latency = Target(self.latency.share) if self.latency else None
        relative = Target(self.relative.share) if self.relative else None
        return Requirement(latency, relative, self.agreement)

    def text(self) -> str:
        """In words."""
        parts = [
            f"everybody with probability {self.latency.text()}" if self.latency else "",
            f"after the first everybody with probability {self.relative.text()}" if self.relative else "",
            f"agreement {self.agreement:.9g} if somebody crashes" if self.agreement else "",
        ]
        return "; ".join(filter(None, parts)) or "nothing"


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What is given: the same words as in `Required`, as figures that hold."""

    latency: Target | None = None
    relative: Target | None = None
    agreement: float | None = None

    def text(self) -> str:
        """In words."""
        parts = [
            f"everybody with probability {self.latency.text()}" if self.latency else "",
            f"after the first everybody with probability {self.relative.text()}" if self.relative else "",
            f"agreement but for {1 - self.agreement:.3g} if somebody crashes" if self.agreement is not None else "",
        ]
        return "; ".join(filter(None, parts)) or "nothing"


class QosLayer(Protocol):
    """The QoS side of a service above RMCast (qos_i of Figure 2)."""

    @property
    def name(self) -> str:
        """What it is called on the screen."""

    def needs(self, requirement: Requirement) -> Requirement | None:
        """What the service below has to give for this to be given above; None: nothing would be enough."""

    def guarantee(self, guarantee_below: Guarantee) -> Guarantee:
        """What this service gives above, if the one below gives this."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The group and what it stands on: its size, its network, and how processes crash if that is known."""

    members: int
    network: NetworkModel
    crashes: CrashModel | None = None
    rho_most: int = RHO_MOST
    """How many times a message may be repeated."""

    def __post_init__(self) -> None:
        if self.members < 2:
            raise InvalidOption("members", f"a multicast needs at least two, not {self.members}")


@dataclass(frozen=True, slots=True)
class WorstNetwork:
    """The worst network with which a setting still meets a request: more loss, or slower by a factor; not both."""

    loss: float | None
    """The largest loss at the delays at hand; None: no loss at all would be enough."""
    delay_factor: float | None
    """How many times as long all delays may be at the loss at hand; None: not even a thousandth would do."""

    def text(self, network: NetworkModel) -> str:
        """In words, beside the network that there is."""
        at_loss = f"a loss of at most {self.loss:.4g}" if self.loss is not None else "not even a lossless network"
        if self.delay_factor is None:
            at_delay = f"with {network.loss:.4g} lost no delay is short enough"
        else:
            at_most = (
                "any delay"
                if self.delay_factor >= DELAY_FACTOR_MAX
                else f"delays of at most {self.delay_factor:.4g} times that"
            )
            at_delay = f"with {network.loss:.4g} lost {at_most}"
        return f"{at_loss} at {network.delay.text()}; or {at_delay}"


@dataclass(frozen=True, slots=True)
class NegotiationStep:
    """One station of the walk: which layer, which way, what was said."""

    layer: str
    direction: str
    """`down`: it needs; `up`: it offers."""
    text: str


@dataclass(frozen=True, slots=True)
class Agreement:
    """The request is met: the setting, what is given at the top, its price, and the walk that led there."""

    redundancy: Redundancy
    guarantee: Guarantee
    rmcast_guarantee: Guarantee
    expected_broadcasts: float
    """Expected per multicast, if nobody crashes and nobody counts copies: fewer where receivers do."""
    worst_network: WorstNetwork
    steps: tuple[NegotiationStep, ...]


@dataclass(frozen=True, slots=True)
class CounterOffer:
    """The request is not met. `offers` are what could be had instead, `need` what the network would have to be."""

    reason: str
    alternatives: tuple[Guarantee, ...]
    worst_network: WorstNetwork | None
    steps: tuple[NegotiationStep, ...]


def negotiate(
    requirement: Requirement, environment: Environment, layers: Sequence[QosLayer] = ()
) -> Agreement | CounterOffer:
    """Walk the request down through `layers` (the topmost first) and RMCast to the network, and back up."""
    steps: list[NegotiationStep] = []
    asked, too_slow = requirement, ""
    for layer in layers:
        needed = layer.needs(asked)
        if needed is None:
            too_slow = too_slow or f"{layer.name} alone takes longer than is asked, whatever is below it"
            needed = layer.needs(asked.without_times())
        if needed is None:
            return CounterOffer(f"{layer.name} cannot give {asked.text()}", (), None, tuple(steps))
        steps.append(NegotiationStep(layer.name, "down", f"needs {needed.text()}"))
        asked = needed
    found = None if too_slow else _cheapest(asked, environment)
    if found is None:
        return _counter_offer(asked, environment, layers, steps, too_slow)
    redundancy, broadcasts = found
    if asked.relative is None and not asked.agreement:
        # r_D counts on the sender alone, so receivers may wait longer and count copies: that only saves broadcasts.
        # u_S and f_n count on take-overs after η+ω as it is.
        redundancy = replace(redundancy, adaptive="counting")
    need = worst_network_for(asked, environment, redundancy)
    at_rmcast = guarantee_of(environment, redundancy, asked)
    steps += [
        NegotiationStep("rmcast", "down", f"with {redundancy.text()} needs {need.text(environment.network)}"),
        NegotiationStep("network", "up", f"gives {environment.network.text()}: accepted"),
        NegotiationStep("rmcast", "up", f"gives {at_rmcast.text()}, for about {broadcasts:.3g} broadcasts"),
    ]
    offered = _walk_up(at_rmcast, layers, steps)
    return Agreement(redundancy, offered, at_rmcast, broadcasts, need, tuple(steps))


def candidate_settings(environment: Environment) -> Iterator[tuple[int, int]]:
    """Every ρ with every η that is tried: η as the paper chooses it, for one transmission and for all n-1 at once."""
    delay = environment.network.delay
    etas = sorted({eta_of_one(delay, ALPHA), eta_of_all(delay, ALPHA, environment.members)})
    for rho in range(environment.rho_most + 1):
        for eta_ns in etas:
            yield rho, eta_ns


def meets(requirement: Requirement, environment: Environment, redundancy: Redundancy) -> bool:
    """Whether a setting gives what is asked over this network."""
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
    """What a setting gives of what is asked: the time at which the asked share is reached, or the share that is."""
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
"""Floating point may round a probability up to 1; none of these is."""


def worst_network_for(requirement: Requirement, environment: Environment, redundancy: Redundancy) -> WorstNetwork:
    """The worst networks that a setting bears: the evaluation in the other direction."""
    return _worst_network(
        environment, lambda network: meets(requirement, replace(environment, network=network), redundancy)
    )


def worst_network_for_any(requirement: Requirement, environment: Environment) -> WorstNetwork:
    """The worst networks that some setting bears; η follows the network's own delays."""

    def bearable(network: NetworkModel) -> bool:
        on = replace(environment, network=network)
        return any(meets(requirement, on, Redundancy(rho, eta_ns)) for rho, eta_ns in candidate_settings(on))

    return _worst_network(environment, bearable)


def _worst_network(environment: Environment, acceptable: Callable[[NetworkModel], bool]) -> WorstNetwork:
    network = environment.network
    most = rmcast.largest_where(lambda millionths: acceptable(replace(network, loss=millionths / 1e6)), 999_999)

    def slower(thousandths: int) -> NetworkModel:
        return replace(network, delay=ScaledDelay(network.delay, max(thousandths, 1) / 1e3))

    slowest = rmcast.largest_where(lambda thousandths: acceptable(slower(thousandths)), DELAY_FACTOR_MAX * 1000)
    return WorstNetwork(None if most is None else most / 1e6, slowest / 1e3 if slowest else None)


def _cheapest(requirement: Requirement, environment: Environment) -> tuple[Redundancy, float] | None:
    """The setting with the fewest expected broadcasts; ω as long as the request allows, which costs the fewest."""
    best: tuple[float, int, Redundancy] | None = None
    for rho, eta_ns in candidate_settings(environment):
        if best is not None and rho + 1 >= best[0]:
            break

        def bears(omega_ns: int, rho: int = rho, eta_ns: int = eta_ns) -> bool:
            return meets(requirement, environment, Redundancy(rho, eta_ns, omega_ns))

        omega_ns = rmcast.largest_where(bears, OMEGA_MOST_ETAS * eta_ns)
        if omega_ns is None:
            continue
        setting = Redundancy(rho, eta_ns, omega_ns)
        cost = expected_broadcasts(environment.members, environment.network, setting)
        if best is None or (cost, eta_ns) < best[:2]:
            best = (cost, eta_ns, setting)
    return None if best is None else (best[2], best[0])


def _agreement_probability(environment: Environment, redundancy: Redundancy) -> float:
    if environment.crashes is None:
        raise InvalidOption("agreement", "to promise it, say how processes crash (mean time to failure and β)")
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
    """What could be had instead of what is asked of RMCast, from the network up."""
    tried = [Redundancy(rho, eta_ns) for rho, eta_ns in candidate_settings(environment)]
    offers = _latency_alternatives(environment, tried, requirement.latency) if requirement.latency else []
    if requirement.relative is not None:
        offers += _relative_alternatives(environment, tried, requirement)
    need = None
    if not too_slow:
        need = worst_network_for_any(requirement, environment)
        steps.append(NegotiationStep("rmcast", "down", f"needs {need.text(environment.network)}"))
    steps.append(
        NegotiationStep("network", "up", f"gives {environment.network.text()}{'' if too_slow else ': not enough'}")
    )
    at_top = []
    for offer in offers:
        steps.append(NegotiationStep("rmcast", "up", f"could give {offer.text()}"))
        at_top.append(_walk_up(offer, layers, steps))
    reason = too_slow or f"no ρ, η and ω give {requirement.text()} over {environment.network.text()}"
    return CounterOffer(reason, tuple(at_top), need, tuple(steps))


def _latency_alternatives(environment: Environment, tried: list[Redundancy], target: Target) -> list[Guarantee]:
    """The best share within the asked D, and the shortest D for the asked share."""
    members, network, within_ns = environment.members, environment.network, target.within_ns

    def surely(setting: Redundancy) -> float:
        if within_ns is None:
            return rmcast.reach_probability_limit(members, network, setting)
        return rmcast.reach_probability(members, network, setting, within_ns)

    offers = [guarantee_of(environment, max(tried, key=surely), Requirement(Target(0.0, within_ns)))]
    able = [(d, setting) for setting in tried if (d := rmcast.shortest_d(members, network, setting, target.share))]
    if able:
        soonest = min(able, key=lambda pair: (pair[0], pair[1].rho))[1]
        offers.append(guarantee_of(environment, soonest, Requirement(Target(target.share))))
    return offers


def _relative_alternatives(
    environment: Environment, tried: list[Redundancy], requirement: Requirement
) -> list[Guarantee]:
    """The shortest S for the asked U."""
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
        steps.append(NegotiationStep(layer.name, "up", f"gives {guarantee.text()}"))
    return guarantee
