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

from unisono.errors import InvalidPolicy
from unisono.model.delays import Stretched
from unisono.model.durations import duration_text
from unisono.model.redundancy import Redundancy, eta_of_all, eta_of_one
from unisono.qos.plan import rmcast_model as rmcast
from unisono.qos.plan.rmcast_agreement import Crashes, failure_extended
from unisono.qos.plan.rmcast_model import Network
from unisono.qos.plan.rmcast_traffic import expected_broadcasts

RHO_MOST = 8
"""More copies than this are not tried: at a loss of 30 % nine copies leave 2 in 100,000 out."""
ALPHA = 0.99
"""How sure η is to exceed a transmission; the paper's own figure."""
OMEGA_MOST_ETAS = 4
"""ω is at most this many η: a takeover that comes later than that is no use to anybody who waits."""

STRETCH_MOST = 1000
"""How much slower a network is looked at."""


@dataclass(frozen=True, slots=True)
class Target:
    """A share of all multicasts, and the time within which they have arrived; no time means whenever."""

    share: float
    within_ns: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise InvalidPolicy("share", f"a probability from 0 to less than 1 is needed, not {self.share}")
        if self.within_ns is not None and self.within_ns < 0:
            raise InvalidPolicy("within", f"a duration cannot be negative, and {self.within_ns} ns is")

    def text(self) -> str:
        """In words."""
        share = f"{self.share:.6g}"
        # A promise is never certain, and rounding must not make it look so.
        share = f"1 - {1 - self.share:.2g}" if share == "1" else share
        return share + (f" within {duration_text(self.within_ns)}" if self.within_ns is not None else "")


@dataclass(frozen=True, slots=True)
class Required:
    """What is asked: (R, D) from the call to everybody, (U, S) from the first to everybody else, agreement A."""

    latency: Target | None = None
    relative: Target | None = None
    agreement: float = 0.0

    def whenever(self) -> Required:
        """The same without its times."""
        latency = Target(self.latency.share) if self.latency else None
        relative = Target(self.relative.share) if self.relative else None
        return Required(latency, relative, self.agreement)

    def text(self) -> str:
        """In words."""
        parts = [
            f"everybody with probability {self.latency.text()}" if self.latency else "",
            f"after the first everybody with probability {self.relative.text()}" if self.relative else "",
            f"agreement {self.agreement:.9g} if somebody crashes" if self.agreement else "",
        ]
        return "; ".join(filter(None, parts)) or "nothing"


@dataclass(frozen=True, slots=True)
class Offered:
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


class Layer(Protocol):
    """The QoS side of a service above RMCast (qos_i of Figure 2)."""

    @property
    def name(self) -> str:
        """What it is called on the screen."""

    def needs(self, required: Required) -> Required | None:
        """What the service below has to give for this to be given above; None: nothing would be enough."""

    def offers(self, below: Offered) -> Offered:
        """What this service gives above, if the one below gives this."""


@dataclass(frozen=True, slots=True)
class Below:
    """The group and what it stands on: its size, its network, and how processes crash if that is known."""

    members: int
    network: Network
    crashes: Crashes | None = None
    rho_most: int = RHO_MOST
    """How many times a message may be repeated."""

    def __post_init__(self) -> None:
        if self.members < 2:
            raise InvalidPolicy("members", f"a multicast needs at least two, not {self.members}")


@dataclass(frozen=True, slots=True)
class Need:
    """The worst network with which a setting still meets a request: more loss, or slower by a factor; not both."""

    loss: float | None
    """The largest loss at the delays at hand; None: no loss at all would be enough."""
    stretch: float | None
    """How many times as long all delays may be at the loss at hand; None: not even a thousandth would do."""

    def text(self, network: Network) -> str:
        """In words, beside the network that there is."""
        at_loss = f"a loss of at most {self.loss:.4g}" if self.loss is not None else "not even a lossless network"
        if self.stretch is None:
            at_delay = f"with {network.loss:.4g} lost no delay is short enough"
        else:
            at_most = (
                "any delay" if self.stretch >= STRETCH_MOST else f"delays of at most {self.stretch:.4g} times that"
            )
            at_delay = f"with {network.loss:.4g} lost {at_most}"
        return f"{at_loss} at {network.delay.text()}; or {at_delay}"


@dataclass(frozen=True, slots=True)
class Step:
    """One station of the walk: which layer, which way, what was said."""

    layer: str
    way: str
    """`down`: it needs; `up`: it offers."""
    says: str


@dataclass(frozen=True, slots=True)
class Agreement:
    """The request is met: the setting, what is given at the top, its price, and the walk that led there."""

    redundancy: Redundancy
    offered: Offered
    at_rmcast: Offered
    broadcasts: float
    """Expected per multicast, if nobody crashes and nobody counts copies: fewer where receivers do."""
    need: Need
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Counter:
    """The request is not met. `offers` are what could be had instead, `need` what the network would have to be."""

    reason: str
    offers: tuple[Offered, ...]
    need: Need | None
    steps: tuple[Step, ...]


def negotiate(required: Required, below: Below, layers: Sequence[Layer] = ()) -> Agreement | Counter:
    """Walk the request down through `layers` (the topmost first) and RMCast to the network, and back up."""
    steps: list[Step] = []
    asked, too_slow = required, ""
    for layer in layers:
        needed = layer.needs(asked)
        if needed is None:
            too_slow = too_slow or f"{layer.name} alone takes longer than is asked, whatever is below it"
            needed = layer.needs(asked.whenever())
        if needed is None:
            return Counter(f"{layer.name} cannot give {asked.text()}", (), None, tuple(steps))
        steps.append(Step(layer.name, "down", f"needs {needed.text()}"))
        asked = needed
    found = None if too_slow else _cheapest(asked, below)
    if found is None:
        return _counter(asked, below, layers, steps, too_slow)
    redundancy, broadcasts = found
    if asked.relative is None and not asked.agreement:
        # r_D counts on the sender alone, so receivers may wait longer and count copies: that only saves broadcasts.
        # u_S and f_n count on take-overs after η+ω as it is.
        redundancy = replace(redundancy, adaptive="counting")
    need = need_of(asked, below, redundancy)
    at_rmcast = offer_of(below, redundancy, asked)
    steps += [
        Step("rmcast", "down", f"with {redundancy.text()} needs {need.text(below.network)}"),
        Step("network", "up", f"gives {below.network.text()}: accepted"),
        Step("rmcast", "up", f"gives {at_rmcast.text()}, for about {broadcasts:.3g} broadcasts"),
    ]
    offered = _upward(at_rmcast, layers, steps)
    return Agreement(redundancy, offered, at_rmcast, broadcasts, need, tuple(steps))


def settings(below: Below) -> Iterator[tuple[int, int]]:
    """Every ρ with every η that is tried: η as the paper chooses it, for one transmission and for all n-1 at once."""
    delay = below.network.delay
    etas = sorted({eta_of_one(delay, ALPHA), eta_of_all(delay, ALPHA, below.members)})
    for rho in range(below.rho_most + 1):
        for eta_ns in etas:
            yield rho, eta_ns


def meets(required: Required, below: Below, redundancy: Redundancy) -> bool:
    """Whether a setting gives what is asked over this network."""
    members, network = below.members, below.network
    if required.latency is not None:
        share, within_ns = required.latency.share, required.latency.within_ns
        if within_ns is None:
            reached = rmcast.reached_limit(members, network, redundancy)
        else:
            reached = rmcast.reached(members, network, redundancy, within_ns)
        if reached < share:
            return False
    if required.relative is not None:
        share, within_ns = required.relative.share, required.relative.within_ns
        at_ns = rmcast.FOREVER_NS if within_ns is None else within_ns
        if rmcast.reached_after_first(members, network, redundancy, at_ns) < share:
            return False
    return not required.agreement or _agreement(below, redundancy) >= required.agreement


def offer_of(below: Below, redundancy: Redundancy, required: Required) -> Offered:
    """What a setting gives of what is asked: the time at which the asked share is reached, or the share that is."""
    latency = relative = None
    if required.latency is not None:
        latency = _latency_of(below, redundancy, required.latency)
    if required.relative is not None:
        relative = _relative_of(below, redundancy, required.relative)
    return Offered(latency, relative, _agreement(below, redundancy) if below.crashes else None)


def _latency_of(below: Below, redundancy: Redundancy, asked: Target) -> Target:
    members, network = below.members, below.network
    within_ns = rmcast.shortest_d(members, network, redundancy, asked.share)
    if within_ns is not None and asked.share > 0:
        return Target(min(rmcast.reached(members, network, redundancy, within_ns), _BELOW_ONE), within_ns)
    if asked.within_ns is not None:
        return Target(rmcast.reached(members, network, redundancy, asked.within_ns), asked.within_ns)
    return Target(min(rmcast.reached_limit(members, network, redundancy), _BELOW_ONE))


def _relative_of(below: Below, redundancy: Redundancy, asked: Target) -> Target:
    members, network = below.members, below.network
    after_ns = rmcast.shortest_s(members, network, redundancy, asked.share)
    if after_ns is None:
        after_ns = asked.within_ns if asked.within_ns is not None else rmcast.FOREVER_NS
    return Target(min(rmcast.reached_after_first(members, network, redundancy, after_ns), _BELOW_ONE), after_ns)


_BELOW_ONE = 1 - 2**-53
"""Floating point may round a probability up to 1; none of these is."""


def need_of(required: Required, below: Below, redundancy: Redundancy) -> Need:
    """The worst networks that a setting bears: the evaluation in the other direction."""
    return _need(below, lambda network: meets(required, replace(below, network=network), redundancy))


def need_of_any(required: Required, below: Below) -> Need:
    """The worst networks that some setting bears; η follows the network's own delays."""

    def bearable(network: Network) -> bool:
        on = replace(below, network=network)
        return any(meets(required, on, Redundancy(rho, eta_ns)) for rho, eta_ns in settings(on))

    return _need(below, bearable)


def _need(below: Below, bearable: Callable[[Network], bool]) -> Need:
    network = below.network
    most = rmcast.largest(lambda millionths: bearable(replace(network, loss=millionths / 1e6)), 999_999)

    def slower(thousandths: int) -> Network:
        return replace(network, delay=Stretched(network.delay, max(thousandths, 1) / 1e3))

    slowest = rmcast.largest(lambda thousandths: bearable(slower(thousandths)), STRETCH_MOST * 1000)
    return Need(None if most is None else most / 1e6, slowest / 1e3 if slowest else None)


def _cheapest(required: Required, below: Below) -> tuple[Redundancy, float] | None:
    """The setting with the fewest expected broadcasts; ω as long as the request allows, which costs the fewest."""
    best: tuple[float, int, Redundancy] | None = None
    for rho, eta_ns in settings(below):
        if best is not None and rho + 1 >= best[0]:
            break

        def bears(omega_ns: int, rho: int = rho, eta_ns: int = eta_ns) -> bool:
            return meets(required, below, Redundancy(rho, eta_ns, omega_ns))

        omega_ns = rmcast.largest(bears, OMEGA_MOST_ETAS * eta_ns)
        if omega_ns is None:
            continue
        setting = Redundancy(rho, eta_ns, omega_ns)
        cost = expected_broadcasts(below.members, below.network, setting)
        if best is None or (cost, eta_ns) < best[:2]:
            best = (cost, eta_ns, setting)
    return None if best is None else (best[2], best[0])


def _agreement(below: Below, redundancy: Redundancy) -> float:
    if below.crashes is None:
        raise InvalidPolicy("agreement", "to promise it, say how processes crash (mean time to failure and β)")
    v = below.crashes.before_takeover(redundancy)
    return 1 - failure_extended(below.members, below.network.loss, v, below.crashes.in_broadcast)


def _counter(asked: Required, below: Below, layers: Sequence[Layer], steps: list[Step], too_slow: str) -> Counter:
    """What could be had instead of what is asked of RMCast, from the network up."""
    tried = [Redundancy(rho, eta_ns) for rho, eta_ns in settings(below)]
    offers = _instead(below, tried, asked.latency) if asked.latency else []
    if asked.relative is not None:
        offers += _instead_relative(below, tried, asked)
    need = None
    if not too_slow:
        need = need_of_any(asked, below)
        steps.append(Step("rmcast", "down", f"needs {need.text(below.network)}"))
    steps.append(Step("network", "up", f"gives {below.network.text()}{'' if too_slow else ': not enough'}"))
    at_top = []
    for offer in offers:
        steps.append(Step("rmcast", "up", f"could give {offer.text()}"))
        at_top.append(_upward(offer, layers, steps))
    reason = too_slow or f"no ρ, η and ω give {asked.text()} over {below.network.text()}"
    return Counter(reason, tuple(at_top), need, tuple(steps))


def _instead(below: Below, tried: list[Redundancy], asked: Target) -> list[Offered]:
    """The best share within the asked D, and the shortest D for the asked share."""
    members, network, within_ns = below.members, below.network, asked.within_ns

    def surely(setting: Redundancy) -> float:
        if within_ns is None:
            return rmcast.reached_limit(members, network, setting)
        return rmcast.reached(members, network, setting, within_ns)

    offers = [offer_of(below, max(tried, key=surely), Required(Target(0.0, within_ns)))]
    able = [(d, setting) for setting in tried if (d := rmcast.shortest_d(members, network, setting, asked.share))]
    if able:
        soonest = min(able, key=lambda pair: (pair[0], pair[1].rho))[1]
        offers.append(offer_of(below, soonest, Required(Target(asked.share))))
    return offers


def _instead_relative(below: Below, tried: list[Redundancy], asked: Required) -> list[Offered]:
    """The shortest S for the asked U."""
    members, network, relative = below.members, below.network, asked.relative
    if relative is None:
        return []
    able = [(s, setting) for setting in tried if (s := rmcast.shortest_s(members, network, setting, relative.share))]
    if not able:
        return []
    soonest = min(able, key=lambda pair: (pair[0], pair[1].rho))[1]
    latency = Target(asked.latency.share) if asked.latency else None
    return [offer_of(below, soonest, Required(latency, Target(relative.share)))]


def _upward(offer: Offered, layers: Sequence[Layer], steps: list[Step]) -> Offered:
    for layer in reversed(layers):
        offer = layer.offers(offer)
        steps.append(Step(layer.name, "up", f"gives {offer.text()}"))
    return offer
