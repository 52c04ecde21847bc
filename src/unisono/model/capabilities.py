"""What each order can do: one value per order, for the stack, the planner, the checkers and the tools."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from unisono.errors import InvalidOption
from unisono.model.options import OrderName, options_of, order_class
from unisono.model.policy import OrderSettings, Policy

OPTION_DEFAULTS: Final = {field.name: field.default for field in fields(OrderSettings)}
"""The options that only some orders support, each with its default. The default means that the option is not used."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The features of one order: what it promises, what it needs and which options it supports."""

    options: frozenset[str] = frozenset()
    """The options of `OPTION_DEFAULTS` that the order supports; `check_options` refuses all others."""
    total_order: bool = True
    """Whether all members deliver in one order. The services over reliable multicast (paper 002 §2.2) do not."""
    services: tuple[str, ...] = ()
    """For a service without a total order: the names of its layers above reliable multicast, from the top down."""
    checks: tuple[str, ...] = ()
    """For a service without a total order: the checks of its promises, beside integrity and latency."""
    durable: bool = False
    """Whether a member keeps records on stable storage and recovers from them after a restart."""
    by_clock: bool = False
    """Whether the order relies on synchronised clocks. If it does, members report clocks that differ by more than Γ."""
    slotted: bool = False
    """Whether the order delivers slot by slot and, within a slot, sender by sender.

    Only then can `grades` add final deliveries: the members agree on the messages of each slot.
    """
    resizable_slots: bool = False
    """Whether the slot length can change while the group runs."""
    led: bool = False
    """Whether a leader orders the messages. Messages are late while the group replaces a crashed leader."""
    pulled: bool = False
    """Whether the application pulls messages with `consume`. The consumers set the pace, so no latency bound exists."""
    routed: bool = False
    """Whether messages go to some of several groups, so that members deliver different messages."""
    waits_for_all: bool = False
    """Whether a lost message or a crashed member stops deliveries for ever, unless an option prevents that."""
    admits_late_members: bool = False
    """Whether members may start while the group runs, without any option."""
    keyed: bool = True
    """Whether every message has a key (slot, position in slot). All members deliver in the order of these keys."""
    rate_checked: bool = False
    """Whether a trace shows in which slot each message was sent, so that the declared burst per slot can be checked."""
    numbers_finals: bool = False
    """Whether final deliveries are numbered, so that a member that joins late knows how many it has missed."""
    paced_by_slot: bool = True
    """Whether a sender's declared burst limits its messages in each slot. In CBR they leave one by one instead."""
    starts_together: bool = False
    """Whether all members must start together. With two grades of delivery they need not."""


def _options(order: OrderName, *always: str) -> frozenset[str]:
    """The options of `OPTION_DEFAULTS` that an order has.

    `always` names options that make no difference, because the order always behaves as if they were set.
    """
    return frozenset(option.policy_field for option in options_of(order_class(order)) if option.policy_field) | {
        *always
    }


def _service(layers: tuple[str, ...], checks: tuple[str, ...]) -> Capabilities:
    return Capabilities(_options("reliable"), False, layers, checks, keyed=False)


_PRIORITY = Capabilities(_options("priority", "failures"), pulled=True, admits_late_members=True)
_LEADER = Capabilities(_options("leader", "failures"), led=True, starts_together=True)

CAPABILITIES: Final[dict[str, Capabilities]] = {
    "cbr": Capabilities(
        _options("cbr"),
        by_clock=True,
        slotted=True,
        waits_for_all=True,
        numbers_finals=True,
        paced_by_slot=False,
        starts_together=True,
    ),
    "consensus": Capabilities(
        _options("consensus", "failures"), durable=True, admits_late_members=True, numbers_finals=True
    ),
    "leader": _LEADER,
    "priority": _PRIORITY,
    "priority_coordinator": _PRIORITY,
    "quasi_genuine": Capabilities(
        _options("quasi_genuine", "failures"),
        durable=True,
        routed=True,
        admits_late_members=True,
        keyed=False,
        starts_together=True,
    ),
    "timestamp": _LEADER,
    "vbr": Capabilities(
        _options("vbr"),
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
"""The capabilities of every order, by the order's name.

The leader orders, consensus and the services survive crashes with and without `failures`. Forward error correction
needs the end-of-slot marks of VBR.
"""


SERVICES: Final = tuple(name for name, each in CAPABILITIES.items() if not each.total_order)
"""The orders without a total order: the services over reliable multicast."""


def recorded_capabilities(order: str) -> Capabilities:
    """The capabilities of the order of a recorded run.

    An unknown order counts as a total order without other promises.
    """
    return CAPABILITIES.get(order, Capabilities())


def capabilities_of(order: str) -> Capabilities:
    """The capabilities of the order with this name; raises InvalidOption if there is no such order."""
    found = CAPABILITIES.get(order)
    if found is None:
        raise InvalidOption("order", f"expected one of {', '.join(sorted(CAPABILITIES))}, got {order!r}")
    return found


def orders_with(capability: str) -> tuple[str, ...]:
    """The sorted names of the orders for which the field `capability` of `Capabilities` is true."""
    return tuple(sorted(name for name, each in CAPABILITIES.items() if getattr(each, capability)))


def needs_storage(order: str, grades: str = "early") -> bool:
    """Whether members need stable storage with this order and this value of the option `grades`."""
    return grades != "early" or (order in CAPABILITIES and CAPABILITIES[order].durable)


def check_options(policy: Policy) -> None:
    """Raise InvalidOption if the order does not support an option, or if two options exclude each other.

    The second case includes an average rate that the burst per slot does not allow.
    """
    if capabilities_of(policy.order).paced_by_slot:
        policy.check_rate(policy.rate)
    for field, default in OPTION_DEFAULTS.items():
        if getattr(policy, field) != default and field not in capabilities_of(policy.order).options:
            others = [order for order, each in CAPABILITIES.items() if field in each.options]
            text = f"the order {policy.order} does not support this option; orders that do: {', '.join(others)}"
            if field == "grades" and policy.multigroup is not None:
                text += (
                    "; for early and final deliveries between groups, leave out grades and use "
                    "Multigroup(topology, optimistic=True, window=...)"
                )
            raise InvalidOption("topology" if field == "multigroup" else field, text)
    if policy.loss_burst and not policy.failures:
        raise InvalidOption(
            "loss_burst",
            "lost messages leave gaps, which the order must tolerate; set failures too, or leave out loss_burst",
        )
    if policy.reliable is not None and (policy.fec is not None or policy.loss_burst):
        raise InvalidOption("reliable", "cannot be combined with fec or loss_burst; give only one of the three")
    if policy.reliable is not None and policy.grades != "early":
        raise InvalidOption(
            "grades", "cannot be combined with reliable, which gives only early deliveries; leave out one of the two"
        )
