"""Topologies (paper 003 §3): assumption A1, refused topologies and refused destinations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.worlds.joining import join_group

from unisono.errors import DestinationNotAllowed, InvalidOption
from unisono.model.topology import Multigroup, Topology

RING = Topology({"a": (1, 2), "b": (3,), "c": (4,)}, {"a": ("a", "b"), "b": ("c",), "c": ("a",)})


def test_senders_receivers_and_blockers() -> None:
    assert RING.receivers_from("a") == ("a", "b")
    assert RING.senders_to("a") == ("a", "c")
    assert RING.senders_to("c") == ("b",)
    assert RING.blockers(("b",)) == ("a",)
    assert RING.blockers(("a", "c")) == ("a", "b", "c")
    assert RING.group_of(4) == "c"


def test_groups_are_connected_if_one_may_send_to_the_other() -> None:
    line = Topology({"a": (1,), "b": (2,), "c": (3,)}, {"a": ("b",), "b": ("c",)})
    assert line.connected("b", "a")
    assert not line.connected("a", "c")
    assert line.neighbours("a") == ("a", "b")


def test_a_set_of_groups_is_encoded_as_a_mask() -> None:
    assert RING.names_in_mask(RING.mask(("c", "a"))) == ("a", "c")


def test_a_refused_destination_lists_the_allowed_ones() -> None:
    RING.check_destinations("a", ("a", "b"))
    with pytest.raises(DestinationNotAllowed, match="may not send to c; the topology lets it send to a, b"):
        RING.check_destinations("a", ("b", "c"))
    with pytest.raises(DestinationNotAllowed, match="needs at least one destination group"):
        RING.check_destinations("a", ())


@pytest.mark.parametrize(
    ("groups", "sends", "problem"),
    [
        ({}, {}, "1 to 64 groups"),
        ({"a": ()}, {}, "expected a name and at least one member, got 'a'"),
        ({"a": (1,), "b": (1,)}, {}, "each member belongs to one group"),
        ({"a": (1,)}, {"a": ("z",)}, "expected one of the groups a, got 'z'"),
        ({"a": (1,)}, {"z": ("a",)}, "expected one of the groups a, got 'z'"),
        ({"a": (1,), "b": (2,)}, {"a": "b"}, r"such as \('b',\), got the string 'b'"),
    ],
)
def test_an_invalid_topology_is_refused(
    groups: dict[str, tuple[int, ...]], sends: dict[str, Sequence[str]], problem: str
) -> None:
    with pytest.raises(InvalidOption, match=problem):
        Topology(groups, sends)


def test_optimistic_delivery_needs_a_window() -> None:
    with pytest.raises(InvalidOption, match="needs a window above zero"):
        Multigroup(RING, optimistic=True)
    assert Multigroup(RING, window=None, optimistic=True).optimistic


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"topology": {"a": (1,)}}, "expected a Topology or a Multigroup, got dict"),
        ({}, "^topology: the order quasi_genuine needs a topology"),
    ],
)
def test_join_explains_a_wrong_topology_option(options: dict[str, Any], problem: str) -> None:
    peers = {member: ("127.0.0.1", 9000 + member) for member in RING.members}
    with pytest.raises(InvalidOption, match=problem):
        join_group("g", member=1, peers=peers, **{"order": "quasi_genuine", **options})
