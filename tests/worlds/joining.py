"""The one way in which tests and benchmarks join a group: `join_group` with flat options.

The options of orders, network, members and observers all have names of their own, so a test can keep them in one
dictionary. The default order is `vbr`, because most tests are about slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import fields
from typing import Any

from unisono.config import Beacon, Config, Dns, Network, Observe
from unisono.group import PendingJoin, open_group
from unisono.model.options import OrderOptions, options_of, order_class, order_options
from unisono.testing import MemoryNetwork, network


def group_config(group: str = "unisono", **options: Any) -> Config:
    """The configuration with these options, such as `slot`, `delta`, `recorder` or `max_message`, in any order."""
    given = {name: value for name, value in options.items() if value is not None}
    order = given.pop("order", "vbr")
    if order == "auto" or isinstance(order, OrderOptions):
        chosen = order
    else:
        known = {option.name for option in options_of(order_class(order))}
        if "failures" not in known and (order != "cbr" or not given.get("failures")):
            given.pop("failures", None)  # these orders tolerate failures anyway
        chosen = order_options(order, {name: given.pop(name) for name in known & given.keys()})
    made: dict[str, Any] = {"group": group, "order": chosen}
    for name, part in (("network", Network), ("observe", Observe)):
        names = {field.name for field in fields(part)}
        made[name] = part(**{each: given.pop(each) for each in names & given.keys()})
    if "members" in given:
        made["peers"] = _search(given)
    return Config(**made, **given)


def _search(given: dict[str, Any]) -> Beacon | Dns:
    """The search for members that the options `members`, `beacon`, `interface` and `peers="dns:…"` describe."""
    members, beacon, interface = given.pop("members"), given.pop("beacon", None), given.pop("interface", None)
    dns = given.pop("peers", None)
    if dns is None:
        return Beacon(members=members, address=beacon, interface=interface)
    name, _, port = dns.removeprefix("dns:").rpartition(":")
    return Dns(name=name, port=int(port), members=members)


def join_group(group: str = "unisono", **options: Any) -> PendingJoin:
    """Join a group with flat options; `incarnation` and `injection` go to `open_group`."""
    given = dict(options)
    incarnation, injection = given.pop("incarnation", None), given.pop("injection", None)
    return open_group(group_config(group, **given), incarnation=incarnation, injection=injection)


def memory_network(
    members: int | Sequence[int] = 3, *, later: Sequence[int] = (), seed: int = 1, **options: Any
) -> AbstractAsyncContextManager[MemoryNetwork]:
    """`unisono.testing.network` with flat options."""
    return network(members, later=later, seed=seed, config=group_config(**options))
