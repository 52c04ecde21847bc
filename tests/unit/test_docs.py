"""Examples in the documentation are run or parsed, and its tables are compared with the code."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from benchmarks import figures

import unisono
from unisono.check.suite import check_all
from unisono.check.verdict import overall
from unisono.cli.main import build_parser, main
from unisono.cli.member import configuration
from unisono.model.events import View
from unisono.model.policy import Policy
from unisono.model.sla import METRICS
from unisono.model.text.scenario import parse_scenario
from unisono.model.text.sla import parse_slas
from unisono.model.timing import Timing
from unisono.model.units import NS_PER_S, Rate
from unisono.net.fec.layer import datagrams_per_slot, residual_loss
from unisono.orders.contract import ACCEPTED_INPUTS, Input, Mode
from unisono.orders.packing import reservation
from unisono.orders.vbr.order import latency_bound_ns
from unisono.sim.run import run

PROJECT = Path(__file__).parents[2]
PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md"))]
MS = 1_000_000

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SECTION = re.compile(r"^(?=\[)", re.MULTILINE)


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return [body for word, body in _FENCE.findall(page.read_text(encoding="utf-8")) if word == language]


def table_after(page: Path, mark: str) -> list[str]:
    """The table after a given comment in the page."""
    after = page.read_text(encoding="utf-8").split(f"<!-- {mark} -->\n", 1)[1]
    return after.split("\n\n", 1)[0].splitlines()


SCENARIOS_PAGE = PROJECT / "docs" / "scenarios.md"
SMALLEST = blocks(SCENARIOS_PAGE, "toml")[0]
OPTIONS_PAGE = PROJECT / "docs" / "options.md"
SLA_PAGES = (PROJECT / "docs" / "sla.md", PROJECT / "docs" / "adaptation.md")
EXAMPLES = [
    pytest.param(text, id=f"{page.name}-{number}")
    for page in PAGES
    if page not in (*SLA_PAGES, OPTIONS_PAGE)
    for number, text in enumerate(blocks(page, "toml"), 1)
]


def completed(example: str) -> str:
    """An example, completed with the tables and fields of the smallest scenario that it leaves out."""
    given = tomllib.loads(example)
    for part in filter(None, _SECTION.split(SMALLEST)):
        header, *lines = part.strip().splitlines()
        name = header.strip("[]")
        if name not in given:
            example = f"{part}\n{example}"
        elif f"{header}\n" in example:
            missing = [line for line in lines if line.split(" = ")[0] not in given[name]]
            example = example.replace(f"{header}\n", "\n".join([header, *missing, ""]), 1)
    return example


def commands() -> list[list[str]]:
    """Every `unisono …` line of the shell examples, as arguments."""
    found = []
    for page in PAGES:
        for block in blocks(page, "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words and Path(words[0]).name == "unisono":
                    found.append(words[1:])
    return found


def test_the_pages_contain_examples_and_commands() -> None:
    assert len(EXAMPLES) >= 10
    assert {words[0] for words in commands()} >= {"simulate", "demo", "member"}


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_toml_example_is_a_scenario_and_has_the_expected_verdict(example: str) -> None:
    scenario = parse_scenario(completed(example), "the example")
    result = run(scenario)
    assert overall(check_all(result.trace, until_ns=result.until_ns)).value == scenario.expect.verdict


@pytest.mark.parametrize("example", [text for page in SLA_PAGES for text in blocks(page, "toml")])
def test_an_sla_example_can_be_parsed(example: str) -> None:
    assert parse_slas(example, "the example").slas


def test_the_table_of_metrics_matches_the_code() -> None:
    wanted = ["| metric | unit | shape | side | meaning |", "|---" * 5 + "|"]
    for name, kind in METRICS.items():
        wanted.append(f"| `{name}` | {kind.unit.value} | {kind.shape.value} | {kind.side.value} | {kind.meaning} |")
    assert table_after(PROJECT / "docs" / "monitoring.md", "metrics") == wanted


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_a_command_in_the_documentation_can_be_parsed(words: list[str]) -> None:
    options = build_parser().parse_args(words)
    scenario = getattr(options, "scenario", None)
    assert scenario is None or (PROJECT / scenario).is_file()


@pytest.mark.parametrize("words", [words for words in commands() if words[0] == "member"], ids=" ".join)
def test_join_accepts_the_options_of_a_member_in_the_documentation(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(PROJECT)
    config = configuration(build_parser().parse_args(words))
    assert unisono.join(config=config).plan.bound_ns > 0


@pytest.mark.parametrize("words", [words for words in commands() if words[0] == "simulate"], ids=" ".join)
def test_a_simulation_in_the_documentation_has_the_verdict_that_its_scenario_expects(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(PROJECT)
    expected = "valid"  # of a swarm
    if "--swarm" not in words:
        expected = parse_scenario(Path(words[1]).read_text(encoding="utf-8"), words[1]).expect.verdict
    # Two seeds of each range are enough for this test.
    shortened = [re.sub(r"^(\d+)\.\.\d+$", lambda found: f"{found[1]}..{int(found[1]) + 1}", word) for word in words]
    assert main(shortened) == (0 if expected == "valid" else 1)
    said = capsys.readouterr().out
    assert expected in said
    assert "not what the scenario expects" not in said


@pytest.mark.parametrize("path", sorted((PROJECT / "scenarios").glob("*.toml")), ids=lambda path: path.stem)
def test_commands_in_the_comments_of_scenarios_can_be_parsed(path: Path) -> None:
    for line in path.read_text(encoding="utf-8").splitlines():
        shown = re.match(r"#\s+(unisono .*)", line)
        if shown:
            options = build_parser().parse_args(shlex.split(shown[1])[1:])
            assert options.verb == "plan" or (PROJECT / options.scenario).is_file()


def fields_read() -> set[str]:
    """The names of the fields that the scenario parser reads."""
    tree = ast.parse((PROJECT / "src/unisono/model/text/scenario.py").read_text(encoding="utf-8"))
    readers = {"text", "flag", "whole", "wholes", "number", "duration", "choice", "member", "taken", "table", "tables"}
    return {
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in readers
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
    }


def test_every_field_of_a_scenario_is_documented() -> None:
    page = SCENARIOS_PAGE.read_text(encoding="utf-8")
    assert len(fields_read()) > 30
    missing = [field for field in sorted(fields_read()) if not re.search(rf"`(\[+[a-z.]*)?{field}\]*`", page)]
    assert not missing, f"docs/scenarios.md does not explain {', '.join(missing)}"


def test_the_modes_table_matches_the_automaton() -> None:
    wanted = [f"| mode | {' | '.join(each.value for each in Input)} |", "|---" * (len(Input) + 1) + "|"]
    for mode in Mode:
        accepted = " | ".join("takes" if each in ACCEPTED_INPUTS[mode] else "" for each in Input)
        wanted.append(f"| {mode.value} | {accepted} |")
    assert table_after(PROJECT / "docs" / "vbr.md", "modes") == wanted


def test_the_trade_off_table_matches_the_code() -> None:
    wanted = ["| Θ | bound | marks per second | overhead | reserved |", "|---" * 5 + "|"]
    for theta in (1, 2, 5, 10, 20, 50):
        timing = Timing(20 * MS, 2 * MS, theta * MS)
        policy = Policy("table", 1, View((1, 2)), timing, Rate(50, 8), max_message=1000)
        silent = reservation(policy, Rate(1e-6, 1)).avg_bytes_per_s
        reserved = reservation(policy, policy.rate).avg_bytes_per_s
        marks = NS_PER_S // timing.theta_ns
        bound = latency_bound_ns(timing) // MS
        wanted.append(f"| {theta} ms | {bound} ms | {marks} | {silent / 1e3:.1f} kB/s | {reserved / 1e3:.1f} kB/s |")
    assert table_after(PROJECT / "docs" / "vbr.md", "trade-off") == wanted


def test_the_table_of_forward_error_correction_matches_the_code() -> None:
    head = (
        "a/b",
        "datagrams of a silent slot",
        "of a slot with 8 frames",
        "redundancy when busy",
        "stays lost of 1 %",
        "of 5 %",
    )
    wanted = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for a, b in ((1, 2), (1, 5), (1, 10), (2, 10), (2, 12), (3, 10)):
        lost = f"{residual_loss(0.01, a, b):.2g} | {residual_loss(0.05, a, b):.2g}"
        wanted.append(
            f"| {a}/{b} | {datagrams_per_slot(1, a, b)} | {datagrams_per_slot(8, a, b)} | {a / (b - a):.0%} | {lost} |"
        )
    assert table_after(PROJECT / "docs" / "fec.md", "fec") == wanted


@pytest.mark.parametrize("name", ["cbr", "vbr", "vbr_failures", "leader", "timestamp", "fec"])
def test_a_page_explains_the_promise_the_choice_and_the_trade_off(name: str) -> None:
    page = (PROJECT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for heading in ("What it promises", "When to choose it", "The trade-off"):
        assert f"\n## {heading}\n" in page


# -- figures -------------------------------------------------------------------------------------------------------


def test_the_figure_of_the_slot_length_is_up_to_date() -> None:
    """`make figures` redraws it. Only that command simulates the shortest slots, which take longest."""
    drawn = figures.drawn_points()
    assert [point.theta_ms for point in drawn] == list(figures.THETAS_MS)
    for point in drawn:
        timing = Timing(figures.DELTA_MS * MS, figures.GAMMA_MS * MS, point.theta_ms * MS)
        assert point.bound_ms == latency_bound_ns(timing) / MS
        assert point.latency_max_ms <= point.bound_ms
        if point.theta_ms >= 20:
            assert figures.point(point.theta_ms) == point


def test_a_drawn_figure_contains_its_points(tmp_path: Path) -> None:
    points = figures.drawn_points()
    for name in ("one.svg", "two.svg"):
        figures.draw(points, tmp_path / name)
    assert figures.drawn_points(tmp_path / "one.svg") == points
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
