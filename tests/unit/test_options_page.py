"""docs/options.md: equal to what the definitions give, and true of files and of the command line."""

from __future__ import annotations

import re
import tomllib

import pytest
from benchmarks import options_page
from benchmarks.options_page import Row, all_rows, member_actions, order_classes, rows_of

import unisono
from unisono.config import Beacon, Dns, parse_config, read_config
from unisono.model.options import FLAG

PAGE = options_page.PAGE.read_text(encoding="utf-8")
EXAMPLE = options_page.EXAMPLE

VALUES = {
    "TIME": '"7ms"',
    "N": "7",
    "p": "0.25",
    "FILE": '"a-file"',
    "CAPACITY": '"10Mbit/s"',
    "ADDRESS:PORT": '"239.0.0.1:7000"',
    "a/b": '"2/10"',
    "ρ/η[/ω[/RULE]]": '"4/6ms/2ms"',
}
"""A value of a TOML file for each text form, by its placeholder; a choice has its own last word."""
OTHER_VALUES = {
    "group": '"table"',
    "member": "3",
    "peers.beacon.members": "3",
    "peers.beacon.address": '"239.0.0.1:7000"',
    "peers.beacon.interface": '"10.0.0.7"',
    "peers.dns.name": '"table.example"',
    "peers.dns.port": "9001",
    "peers.dns.members": "3",
    "rate.avg": "10",
    "rate.burst": "2",
    "rate.burst_bytes": "2048",
}
"""A value for each key without a text form."""
NEEDED = {
    "": {"storage": '"member.log"'},  # fsync needs it
    "peers.beacon": {"members": "3"},
    "peers.dns": {"name": '"table.example"', "port": "9001", "members": "3"},
    "rate": {"avg": "10", "burst": "2"},
}
"""The keys that a table must have beside the one that is tested."""


def test_the_page_is_what_the_definitions_give() -> None:
    """`make options` writes it."""
    assert options_page.page() == PAGE


def test_the_page_explains_every_option_of_the_command_line() -> None:
    missing = [flag for flag in member_actions() if flag not in ("-h", "--help") and f"`{flag}" not in PAGE]
    assert not missing


def test_the_page_explains_every_field_of_every_class() -> None:
    classes = [unisono.Config, Beacon, Dns, unisono.Rate, unisono.Network, unisono.Observe, *order_classes()]
    for made in classes:
        for row in rows_of(made):
            assert row.meaning, (made, row.name)
    assert {row.name for row in rows_of(unisono.Config)} >= {"gaps", "deadline", "network", "queue_messages"}


def toml_value(row: Row) -> str:
    if row.option is None or row.option.form is None:
        return OTHER_VALUES[row.toml_key]
    if row.option.form is FLAG:
        return "false" if row.option.default else "true"
    placeholder = row.option.form.placeholder
    return f'"{placeholder.split("|")[-1]}"' if "|" in placeholder else VALUES[placeholder]


TABLES = ("peers", "rate", "network", "observe", "order.topology")
GROUP_ROWS = [row for row in all_rows() if row.toml_key not in ("", *TABLES) and not row.toml_key.startswith("order")]
ORDER_ROWS = [
    pytest.param(name, row, id=f"{name}-{row.name}")
    for made, (name, *_) in order_classes().items()
    for row in rows_of(made, "order")
    if row.toml_key not in ("", *TABLES)
]


@pytest.mark.parametrize("row", GROUP_ROWS, ids=lambda row: row.toml_key)
def test_a_file_can_give_every_option_of_a_group(row: Row) -> None:
    table, _, name = row.toml_key.rpartition(".")
    given = NEEDED.get(table, {}) | {name: toml_value(row)}
    lines = [f"[{table}]"] if table else []
    text = "\n".join([*lines, *(f"{key} = {value}" for key, value in given.items())])
    holder: object = parse_config(text, "the test")
    if table:
        holder = getattr(holder, table.split(".")[0])
    value = tomllib.loads(f"value = {given[name]}")["value"]
    assert getattr(holder, name) == (value if row.option is None else row.option.parse(value))


@pytest.mark.parametrize(("order", "row"), ORDER_ROWS)
def test_a_file_can_give_every_option_of_an_order(order: str, row: Row) -> None:
    topology = '[order.topology]\ngroups = {all = [1, 2]}\nsends = {all = ["all"]}\n'
    text = f'[order]\nname = "{order}"\n{row.name} = {toml_value(row)}\n'
    config = parse_config(text + (topology if order == "quasi_genuine" else ""), "the test")
    assert isinstance(config.order, unisono.OrderOptions)
    assert config.order.name == order
    assert row.option is not None
    assert getattr(config.order, row.name) == row.option.parse(tomllib.loads(text)["order"][row.name])


# -- the example file ----------------------------------------------------------------------------------------


def test_the_example_file_is_the_configuration_that_it_describes() -> None:
    assert read_config(EXAMPLE) == unisono.Config(
        group="table-7",
        peers={number: f"127.0.0.1:{9000 + number}" for number in (1, 2, 3)},
        deadline="80ms",
        gaps="repaired",
        max_message=1024,
        timeout="60s",
        rate=unisono.Rate(avg=50, burst=8),
        network=unisono.Network(delta="50ms", gamma="5ms", link="1Gbit/s"),
    )


def test_join_accepts_the_example_file() -> None:
    plan = unisono.join(config=EXAMPLE, member=1).plan
    assert plan.order == unisono.Vbr(failures=True, grades="both", loss_burst=2)
    assert plan.bound_ns == 80_000_000


def test_the_python_example_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(example, "docs/options.md", "exec"), {})
    assert capsys.readouterr().out.startswith("order vbr, slots of 20ms, every delivery within 80ms")
