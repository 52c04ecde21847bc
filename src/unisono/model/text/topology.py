"""Reads the topology of a scenario: groups, which group may send to which, barrier options, and destinations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from unisono.errors import DestinationNotAllowed, InvalidOption
from unisono.model.text.toml import TomlTable
from unisono.model.topology import LIVENESS, Multigroup, Topology

Routes = Mapping[int, tuple[tuple[str, ...], ...]]
"""For each member, lists of destination groups. Its messages use these lists in turn."""
MEASURED = "measured"
_Item = TypeVar("_Item", int, str)


def parse_topology(table: TomlTable) -> tuple[Multigroup, Routes]:
    """Parse [topology] with its tables [topology.groups], [topology.sends] and [topology.to]."""
    groups = _lists(table, "groups", int, "member numbers")
    sends = _lists(table, "sends", str, "group names")
    window = table.pop("window", "0ns")
    held_ns = None if window == MEASURED else table.with_defaults({"window": window}).duration("window")
    threshold_ns = table.duration("barrier_threshold", "20ms")
    liveness = table.choice("barriers", LIVENESS, "on_demand")
    optimistic = table.flag("optimistic", False)
    try:
        topology = Topology(groups, sends)
        multigroup = Multigroup.of_ns(topology, liveness, threshold_ns, held_ns, optimistic)
    except InvalidOption as error:
        raise table.error(error.field.removeprefix("topology."), error.problem) from error
    routes = _routes(table, topology)
    table.reject_unknown_fields()
    return multigroup, routes


def parse_sends(table: TomlTable, multigroup: Multigroup | None) -> tuple[str, ...]:
    """Parse the field `sends` of a planned topology change: the groups that the group may send to from then on."""
    value = table.pop("sends")
    if multigroup is None:
        raise table.error("kind", "a topology step needs a [topology] table in the scenario; add one")
    names = multigroup.topology.names
    if not isinstance(value, list) or not all(name in names for name in value):
        raise table.error("sends", f"expected a list of groups among {', '.join(names)}, got {value!r}")
    table.reject_unknown_fields()
    return tuple(value)


def _lists(table: TomlTable, field: str, kind: type[_Item], expected: str) -> dict[str, tuple[_Item, ...]]:
    value = table.pop(field)
    if not isinstance(value, dict):
        raise table.error(field, f"expected a table of lists, got {value!r}")
    for name, listed in value.items():
        if not isinstance(listed, list) or not all(type(item) is kind for item in listed):
            raise table.error(f"{field}.{name}", f"expected a list of {expected}, got {listed!r}")
    return {name: tuple(listed) for name, listed in value.items()}


def _routes(table: TomlTable, topology: Topology) -> dict[int, tuple[tuple[str, ...], ...]]:
    """For each member, the lists of destination groups that its messages use in turn.

    The file gives these lists per group. The default is one list of all groups that the member's group may send to,
    followed by each of these groups alone.
    """
    destinations = table.pop("to", {})
    if not isinstance(destinations, dict):
        raise table.error("to", f"expected a table with lists such as [['a', 'b'], ['a']], got {destinations!r}")
    routes = {}
    for name in topology.names:
        receivers = topology.receivers_from(name)
        together = [list(receivers)] if len(receivers) > 1 else []
        listed = destinations.pop(name, [*together, *([receiver] for receiver in receivers)])
        if not _is_list_of_lists_of_text(listed):
            raise table.error(f"to.{name}", f"expected lists of groups, such as [['a', 'b'], ['a']], got {listed!r}")
        turns = tuple(tuple(turn) for turn in listed)
        try:
            for turn in turns:
                topology.check_destinations(name, turn)
        except DestinationNotAllowed as error:
            raise table.error(f"to.{name}", str(error)) from error
        routes.update(dict.fromkeys(topology.groups[name], turns))
    for name in destinations:
        raise table.error(f"to.{name}", f"expected one of the groups {', '.join(topology.names)}, got {name!r}")
    return routes


def _is_list_of_lists_of_text(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(turn, list) and all(isinstance(name, str) for name in turn) for turn in value
    )
