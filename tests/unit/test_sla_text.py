"""Files of service level agreements: how they are read, and that each error names its line and field."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from unisono.errors import SlaError
from unisono.model.text.sla import parse_slas
from unisono.model.text.toml import key_lines

MS = 1_000_000
PROJECT = Path(__file__).parents[2]
GOOD = """collect = "100ms"

[[sla]]
name = "on time"
provider = "order"
consumer = "application"
metric = "latency"
bound = "60ms"
probability = 0.999
window = "2s"

[[sla]]
name = "few losses"
provider = "network"
consumer = "vbr"
metric = "loss"
bound = 0.02
probability = 0.95
window = "1s"
links = [2, 3]
together = true
observations = 100
informs = ["rmcast"]

[adaptation]
knobs = ["rho"]
lower_after = 4
"""


def test_a_complete_file_is_read() -> None:
    slas = parse_slas(GOOD, "good.toml")
    first, second = slas.slas
    assert (first.name, first.metric, first.bound, first.probability) == ("on time", "latency", 60 * MS, 0.999)
    assert (first.window_ns, first.links, first.together, first.observations) == (2000 * MS, (), False, 30)
    assert (second.provider, second.consumer, second.bound) == ("network", "vbr", 0.02)
    assert (second.links, second.together, second.observations) == ((2, 3), True, 100)
    assert second.informs == ("rmcast",)
    assert (slas.collect_interval_ns, slas.adaptable_settings, slas.hysteresis.lower_after) == (100 * MS, ("rho",), 4)


# The text to replace, its replacement, and the line and field that the error names.
WRONG = [
    ('collect = "100ms"', 'collect = "100"', 1, "collect"),
    ('collect = "100ms"', 'collect = "10us"', 1, "collect"),
    ('name = "on time"', "name = 7", 4, "sla[1].name"),
    ('name = "few losses"', 'name = "on time"', 13, "sla[2].name"),
    ('provider = "order"', 'provider = "application"', 5, "sla[1].provider"),
    ('consumer = "vbr"', 'consumer = "network"', 15, "sla[2].consumer"),
    ('consumer = "vbr"', 'consumer = "the order"', 15, "sla[2].consumer"),
    ('metric = "latency"', 'metric = "latancy"', 7, "sla[1].metric"),
    ('bound = "60ms"', "bound = 60", 8, "sla[1].bound"),
    ("bound = 0.02", "bound = 1.5", 17, "sla[2].bound"),
    ("bound = 0.02", 'bound = "2%"', 17, "sla[2].bound"),
    ("probability = 0.999", "probability = 99.9", 9, "sla[1].probability"),
    ("probability = 0.95", "probability = 1", 18, "sla[2].probability"),
    ("probability = 0.999\n", "", 3, "sla[1].probability"),
    ('window = "2s"', 'window = "250ms"', 10, "sla[1].window"),
    ('window = "1s"', 'window = "1 second"', 19, "sla[2].window"),
    ("links = [2, 3]", "links = [0]", 20, "sla[2].links"),
    ("links = [2, 3]", "links = [\n  2,\n  -3,\n]", 20, "sla[2].links"),
    ("together = true", "together = 1", 21, "sla[2].together"),
    ("observations = 100", "observations = 0", 22, "sla[2].observations"),
    ('informs = ["rmcast"]', 'informs = "rmcast"', 23, "sla[2].informs"),
    ("lower_after = 4", "lower_after = 0", 27, "adaptation.lower_after"),
    ("lower_after = 4", "lower_afterwards = 4", 27, "adaptation.lower_afterwards"),
    ('knobs = ["rho"]', 'knobs = ["rhu"]', 26, "adaptation.knobs"),
    ("[adaptation]", "[adaption]", 25, "adaption"),
    ('metric = "latency"', 'metric = "latency', 7, "(syntax)"),
]


@pytest.mark.parametrize(("good", "bad", "line", "field"), WRONG, ids=[f"{bad[:24]!r}" for _, bad, _, _ in WRONG])
def test_an_error_names_the_file_the_line_and_the_field(good: str, bad: str, line: int, field: str) -> None:
    assert good in GOOD
    with pytest.raises(SlaError) as caught:
        parse_slas(GOOD.replace(good, bad, 1), "sla.toml")
    assert (caught.value.line, caught.value.field) == (line, field)
    assert str(caught.value).startswith(f"sla.toml:{line}: {field}: ")


def test_a_file_without_agreements_is_refused() -> None:
    with pytest.raises(SlaError, match=r"sla.toml:1: sla: expected at least one agreement"):
        parse_slas('collect = "100ms"\n', "sla.toml")


TRICKY = '''# [[sla]] in a comment
title = """
[[sla]]
bound = 3
"""
other = \'\'\'
[adaptation]\'\'\'
"quoted key" = "a # b = [c"
list = [
  1, # ]
  "]",
  { inner = 2 },
]
a.b.c = 1

[[sla]] # the first
x = 1

  [[ sla ]]
  "x" = 2
  y.z = """ ends here""""

[sla.sub]
q = 1
[[sla.list]]
w = 1
[[sla.list]]
w = 2
'''


def test_line_numbers_are_right_after_comments_quotes_and_multiline_values() -> None:
    tomllib.loads(TRICKY)
    assert key_lines(TRICKY) == {
        "title": 2,
        "other": 6,
        "quoted key": 8,
        "list": 9,
        "a": 14,
        "a.b": 14,
        "a.b.c": 14,
        "sla[1]": 16,
        "sla[1].x": 17,
        "sla[2]": 19,
        "sla[2].x": 20,
        "sla[2].y": 21,
        "sla[2].y.z": 21,
        "sla[2].sub": 23,
        "sla[2].sub.q": 24,
        "sla[2].list[1]": 25,
        "sla[2].list[1].w": 26,
        "sla[2].list[2]": 27,
        "sla[2].list[2].w": 28,
    }


@pytest.mark.parametrize("path", sorted((PROJECT / "slas").glob("*.toml")), ids=lambda path: path.stem)
def test_the_example_files_are_valid(path: Path) -> None:
    assert parse_slas(path.read_text(encoding="utf-8"), path.name).slas
