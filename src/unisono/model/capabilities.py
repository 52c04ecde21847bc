"""What each order can do: one value per order, for the stack, the planner, the checkers and the tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from unisono.errors import InvalidOption
from unisono.model.policy import Policy

OPTION_DEFAULTS: Final = {
    "failures": False,
    "loss_burst": 0,
    "fec": None,
    "processing_ns": 0,
    "reservation": "sender",
    "reliable": None,
    "grades": "early",
    "multigroup": None,
}
"""The options that some orders do not honour, with their defaults, which request nothing."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What one order can do."""

    options: frozenset[str] = frozenset()
    """The options of `OPTION_DEFAULTS` that it honours; all others are refused."""
    total_order: bool = True
    """All members deliver in one order. The services over reliable multicast (paper 002 §2.2) do not."""
    services: tuple[str, ...] = ()
    """Without a total order: the layers above reliable multicast, from the top down."""
    checks: tuple[str, ...] = ()
    """Without a total order: the checks that judge its promises, beside integrity and latency."""
    durable: bool = False
    """Keeps records on stable storage and recovers from them."""
    by_clock: bool = False
    """Relies on synchronised clocks, and therefore reports clocks that differ by more than Γ."""
    slotted: bool = False
    """Delivers by slot and sender. Its deliveries can be made final by agreement on what each slot contains."""
    resizable_slots: bool = False
    """The slot length can change while the group runs."""
    led: bool = False
    """A leader orders messages; they are late while a crashed leader is replaced."""
    pulled: bool = False
    """The application pulls messages. The consumers set the pace, so no latency bound exists."""
    routed: bool = False
    """Sends to several groups; members deliver different messages."""
    waits_for_all: bool = False
    """Waits for ever for a lost message or a crashed member, unless an option makes it tolerate these."""
    admits_late_members: bool = False
    """Takes in members that start while the group runs, without any option."""
    keyed: bool = True
    """All members deliver one sequence of (slot, place) keys."""
    rate_checked: bool = False
    """Sends at most one declared burst per slot, which its traces show."""
    numbers_finals: bool = False
    """Numbers the final deliveries, so that a late member knows how many it has missed."""
    starts_together: bool = False
    """All members start together, unless deliveries come in two grades."""


def _service(layers: tuple[str, ...], checks: tuple[str, ...]) -> Capabilities:
    options = frozenset({"failures", "reliable"})
    return Capabilities(options, False, layers, checks, admits_late_members=True, keyed=False)


_PRIORITY = Capabilities(frozenset({"failures"}), pulled=True, admits_late_members=True)
_LEADER = Capabilities(frozenset({"processing_ns", "failures", "reliable"}), led=True, starts_together=True)

CAPABILITIES: Final[dict[str, Capabilities]] = {
    "cbr": Capabilities(
        frozenset({"reservation", "reliable", "grades"}),
        by_clock=True,
        slotted=True,
        waits_for_all=True,
        numbers_finals=True,
        starts_together=True,
    ),
    "consensus": Capabilities(frozenset({"failures"}), durable=True, admits_late_members=True, numbers_finals=True),
    "leader": _LEADER,
    "priority": _PRIORITY,
    "priority_coordinator": _PRIORITY,
    "quasi_genuine": Capabilities(
        frozenset({"failures", "multigroup"}),
        durable=True,
        routed=True,
        admits_late_members=True,
        keyed=False,
        starts_together=True,
    ),
    "timestamp": _LEADER,
    "vbr": Capabilities(
        frozenset({"failures", "loss_burst", "fec", "reliable", "grades"}),
        by_clock=True,
        slotted=True,
        resizable_slots=True,
        waits_for_all=True,
        rate_checked=True,
        numbers_finals=True,
        starts_together=True,
    ),
    "reliable": _service((), ("agreement",)),
    "fifo": _service(("fifo",), ("agreement", "fifo")),
    "causal": _service(("causal",), ("agreement", "fifo", "causal")),
    "uniform": _service(("uniform",), ("uniform_agreement",)),
    "uniform_fifo": _service(("uniform", "fifo"), ("uniform_agreement", "fifo")),
    "uniform_causal": _service(("uniform", "causal"), ("uniform_agreement", "fifo", "causal")),
}
"""The orders by name.

The leader orders, consensus and the services survive crashes with and without `failures`. Forward error correction
needs the end-of-slot marks of VBR.
"""


SERVICES: Final = tuple(name for name, each in CAPABILITIES.items() if not each.total_order)
"""The orders without a total order: the services over reliable multicast."""


def recorded_capabilities(order: str) -> Capabilities:
    """What the order of a recorded run can do. An unknown order counts as a total order without further promises."""
    return CAPABILITIES.get(order, Capabilities())


def capabilities_of(order: str) -> Capabilities:
    """What the order of this name can do; raises InvalidOption if there is no such order."""
    found = CAPABILITIES.get(order)
    if found is None:
        raise InvalidOption("order", f"expected one of {', '.join(sorted(CAPABILITIES))}, got {order!r}")
    return found


def orders_with(capability: str) -> tuple[str, ...]:
    """The names of the orders that have a capability, sorted."""
    return tuple(sorted(name for name, each in CAPABILITIES.items() if getattr(each, capability)))


def needs_storage(order: str, grades: str = "early") -> bool:
    """Whether an order that gives these grades keeps records on stable storage."""
    return grades != "early" or (order in CAPABILITIES and CAPABILITIES[order].durable)


def check_options(policy: Policy) -> None:
    """Raise InvalidOption if the order does not honour an option, or if two options exclude each other."""
    for field, default in OPTION_DEFAULTS.items():
        if getattr(policy, field) != default and field not in capabilities_of(policy.order).options:
            others = [order for order, each in CAPABILITIES.items() if field in each.options]
            text = f"the order {policy.order} does not support this option; orders that do: {', '.join(others)}"
            if field == "grades" and policy.multigroup is not None:
                text += (
                    "; for early and final deliveries between groups, leave out grades and use "
                    "Multigroup(topology, optimistic=True, window_ns=...)"
                )
            raise InvalidOption("topology" if field == "multigroup" else field, text)
    if policy.loss_burst and not policy.failures:
        raise InvalidOption("loss_burst", "lost messages leave gaps in the deliveries; set failures=True to allow gaps")
    if policy.reliable is not None and (policy.fec is not None or policy.loss_burst):
        raise InvalidOption("reliable", "cannot be combined with fec or loss_burst; give only one of the three")
    if policy.reliable is not None and policy.grades != "early":
        raise InvalidOption(
            "grades", "cannot be combined with reliable, which gives only early deliveries; leave out one of the two"
        )
