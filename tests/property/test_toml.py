"""Tables that are written as TOML are read back equal, whatever text they contain."""

from __future__ import annotations

import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from unisono.experiments.sweeps import read_sweep
from unisono.model.text.scenario import parse_scenario
from unisono.model.text.toml import to_toml

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
"""Every text that a TOML file can contain: all characters but surrogates."""

VALUES = st.recursive(
    st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=12,
)

SCENARIO: dict[str, Any] = {
    "group": {"members": 2, "slot": "5ms", "delta": "10ms", "gamma": "2ms"},
    "rate": {"avg": 50, "burst": 8},
    "run": {"seconds": 0.1},
}


@given(st.dictionaries(TEXT, VALUES, max_size=4))
def test_tables_are_written_and_read_back_equal(tables: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(tables)) == tables


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200))
def test_a_group_name_that_the_reader_accepts_survives_a_sweep(name: str) -> None:
    tables = SCENARIO | {"group": SCENARIO["group"] | {"name": name}}
    assert parse_scenario(to_toml(tables), "written").group == name
    swept = read_sweep(to_toml(tables | {"sweep": {"over": {"group.slot": ["5ms", "10ms"]}}}))
    assert len(swept.points) == 2


def test_a_quote_in_a_group_name_is_escaped() -> None:
    assert to_toml({"group": {"name": 'table "7" \\ \x7f'}}) == '[group]\nname = "table \\"7\\" \\\\ \\u007f"\n'
