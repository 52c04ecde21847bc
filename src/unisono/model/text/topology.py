"""Reads the topology of a scenario: groups, who may send to whom, how barriers are made, and where messages go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from unisono.errors import DestinationNotAllowed, InvalidOption
from unisono.model.text.tables import TomlTable
from unisono.model.topology import LIVENESS, Multigroup, Topology

Routes = Mapping[int, tuple[tuple[str, ...], ...]]
"""By member, the destination groups of its messages, in turn."""
MEASURED = "measured"
_Item = TypeVar("_Item", int, str)


def parse_topology(table: TomlTable) -> tuple[Multigroup, Routes]:
    """The tables [topology.groups], [topology.sends], [topology.to], and what else [topology] says."""
    groups = _lists(table, "groups", int, "members' numbers")
    sends = _lists(table, "sends", str, "groups")
    window = table.pop("window", "0ns")
    held_ns = None if window == MEASURED else table.with_defaults({"window": window}).duration("window")
    threshold_ns = table.duration("barrier_threshold", "20ms")
    liveness = table.choice("barriers", LIVENESS, "on_demand")
    optimistic = table.flag("optimistic", False)
    try:
        topology = Topology(groups, sends)
        rules = Multigroup(topology, liveness, threshold_ns, held_ns, optimistic)
    except InvalidOption as error:
        raise table.error(error.field.removeprefix("topology."), error.problem) from error
    routes = _routes(table, topology)
    table.reject_unknown_fields()
    return rules, routes


def parse_sends(table: TomlTable, multigroup: Multigroup | None) -> tuple[str, ...]:
    """The groups that a step has a group send to."""
    value = table.pop("sends")
    if multigroup is None:
        raise table.error("kind", "without [topology] there is nothing to change")
    names = multigroup.topology.names
    if not isinstance(value, list) or not all(name in names for name in value):
        raise table.error("sends", f"a list of groups is needed, of {', '.join(names)}, not {value!r}")
    table.reject_unknown_fields()
    return tuple(value)


def _lists(table: TomlTable, field: str, kind: type[_Item], expected: str) -> dict[str, tuple[_Item, ...]]:
    value = table.pop(field)
    if not isinstance(value, dict):
        raise table.error(field, f"a table of lists is needed, not {value!r}")
    for name, listed in value.items():
        if not isinstance(listed, list) or not all(type(item) is kind for item in listed):
            raise table.error(f"{field}.{name}", f"a list of {expected} is needed, not {listed!r}")
    return {name: tuple(listed) for name, listed in value.items()}


def _routes(table: TomlTable, topology: Topology) -> dict[int, tuple[tuple[str, ...], ...]]:
    """As said for a group; else to all receivers together, and to each of them alone, in turn."""
    given = table.pop("to", {})
    if not isinstance(given, dict):
        raise table.error("to", f"a table of lists of lists of groups is needed, not {given!r}")
    routes = {}
    for name in topology.names:
        receivers = topology.receivers_from(name)
        listed = given.pop(name, None)
        if listed is None:
            listed = [list(receivers), *([receiver] for receiver in receivers)] if len(receivers) > 1 else [receivers]
        try:
            turns = tuple(tuple(map(str, turn)) for turn in listed)
            for turn in turns if receivers else ():
                topology.check_destinations(name, turn)
        except (DestinationNotAllowed, TypeError) as error:
            raise table.error(f"to.{name}", str(error)) from error
        routes.update(dict.fromkeys(topology.groups[name], turns))
    for name in given:
        raise table.error(f"to.{name}", f"there is no group {name!r}")
    return routes
