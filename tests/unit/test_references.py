"""Group references as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.errors import InvalidOption
from unisono.model.text.references import GroupReference, parse_reference

ADDRESS = st.sampled_from(["10.0.0.7:9001", "host.example:1", "[fe80::1]:65535"])


@given(
    st.text(min_size=1, max_size=30).filter(lambda name: name.isprintable()),
    st.dictionaries(st.integers(1, 99), ADDRESS, min_size=1, max_size=4),
    st.sampled_from(["", "#1f2e3d4c"]),
)
def test_a_reference_with_addresses_survives_a_round_trip(group: str, peers: dict[int, str], table: str) -> None:
    reference = GroupReference(group, peers, table)
    assert parse_reference(reference.text()) == reference


def test_references_by_beacon_and_by_dns() -> None:
    by_beacon = GroupReference("table-7", beacon="239.255.77.76:7776", members=5)
    assert by_beacon.text() == "unisono://table-7?beacon=239.255.77.76:7776&members=5"
    assert parse_reference(by_beacon.text()) == by_beacon
    by_dns = GroupReference("table-7", dns="table.example:9001", members=3)
    assert parse_reference(by_dns.text()) == by_dns


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("unisono://", "unisono://NAME"),
        ("unisono://table-7", "unisono://NAME"),
        ("unisono://table-7?", "one of peers, beacon and dns"),
        ("unisono://table-7?peers=1@h:1&dns=n:1", "one of peers, beacon and dns"),
        ("unisono://table-7?peers=1@h:1&color=red", "unknown field color"),
        ("unisono://table-7?peers=1@h:1&peers=2@h:2", "expected each field once, got peers more than once"),
        ("unisono://table-7?dns=n:1&members=3&members=3", "expected each field once, got members more than once"),
        ("unisono://table-7?peers=h:1", "NUMBER@HOST:PORT"),
        ("unisono://table-7?peers=1@h:1,1@h:2", "each number once"),
        ("unisono://table-7?beacon=1.2.3.4:5&members=many", "expected a number after members="),
        ("http://table-7?peers=1@h:1", "unisono://NAME"),
    ],
)
def test_an_invalid_reference_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        parse_reference(text)
    assert caught.value.field == "reference"
    assert problem in str(caught.value)
