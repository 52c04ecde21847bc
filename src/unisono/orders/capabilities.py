"""Which policies each order honours: one that is accepted is kept, so what an order does not do is refused."""

from __future__ import annotations

from unisono.errors import InvalidOption
from unisono.model.policy import Policy
from unisono.model.priorities import PRIORITY_ORDERS
from unisono.model.services import SERVICE_LAYERS

CAPABILITIES: dict[str, frozenset[str]] = {
    "cbr": frozenset({"reservation", "reliable", "grades"}),
    "consensus": frozenset({"failures"}),
    "leader": frozenset({"processing_ns", "failures", "reliable"}),
    **dict.fromkeys(PRIORITY_ORDERS, frozenset({"failures"})),
    "quasi_genuine": frozenset({"failures", "multigroup"}),
    "timestamp": frozenset({"processing_ns", "failures", "reliable"}),
    "vbr": frozenset({"failures", "loss_burst", "fec", "reliable", "grades"}),
    **dict.fromkeys(SERVICE_LAYERS, frozenset({"failures", "reliable"})),
}
"""What each order does about the policies that not every order knows; what it does not honour is refused.

The leader orders, consensus and the services without an order outlive crashes with and without `failures`. Forward
error correction needs the VBR order's marks.
"""
CHANGEABLE_SLOT_ORDERS = frozenset({"vbr"})
"""The orders whose slots' length can be changed while the group runs."""
OPTION_DEFAULTS = {
    "failures": False,
    "loss_burst": 0,
    "fec": None,
    "processing_ns": 0,
    "reservation": "sender",
    "reliable": None,
    "grades": "early",
    "multigroup": None,
}


def check_capabilities(policy: Policy) -> None:
    """Raise InvalidOption if the order does not do what is asked of it, or not together with the rest."""
    for field, unasked in OPTION_DEFAULTS.items():
        if getattr(policy, field) != unasked and field not in CAPABILITIES[policy.order]:
            others = [order for order, honoured in CAPABILITIES.items() if field in honoured]
            text = f"the order {policy.order} does not do that; possible with {', '.join(others)}"
            if field == "grades" and policy.multigroup is not None:
                text += (
                    "; between groups, Multigroup(topology, optimistic=True, window_ns=...) delivers early and finally"
                )
            raise InvalidOption("topology" if field == "multigroup" else field, text)
    if policy.loss_burst and not policy.failures:
        raise InvalidOption("loss_burst", "what is lost is a gap, which needs failures to be allowed for")
    if policy.reliable is not None and (policy.fec is not None or policy.loss_burst):
        raise InvalidOption("reliable", "one remedy against loss at a time: not with fec or loss_burst")
    if policy.reliable is not None and policy.grades != "early":
        raise InvalidOption("grades", "over reliable multicast there is one grade; leave that out, or the grades")
