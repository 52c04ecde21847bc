"""docs/papers.md: its files, tests and commands exist, and no numbered item of a paper is missing."""

from __future__ import annotations

import ast
import re
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from unisono.cli.main import build_parser
from unisono.experiments.catalogue import EXPERIMENTS

PROJECT = Path(__file__).parents[2]
PAGE = PROJECT / "docs" / "papers.md"
COLUMNS = ["item", "what it says", "file", "test", "command"]


def numbered(word: str, numbers: range) -> list[str]:
    return [f"{word} {number}" for number in numbers]


# By paper, every numbered definition, lemma, theorem, algorithm, equation, figure and experiment, and the named ones.
ITEMS = {
    "000": [
        *numbered("Definition", range(1, 3)),
        *numbered("Theorem", range(1, 6)),
        *(f"Lemma {number}" for number in ("4.1", "4.2", "5.1", "5.2", "6.1")),
        *numbered("Figure", range(1, 10)),
        *(f"§{section}" for section in ("2.1", "2.2", "3.2", "4.2", "6.2", "6.3", "6.6", "7", "8.1", "8.2", "9")),
    ],
    "001": [*numbered("Definition", range(1, 4)), *numbered("Figure", range(1, 8)), "§5.1", "§5.2", "§5.3"],
    "002": [
        *numbered("Figure", range(1, 28)),
        *numbered("Equation", range(1, 14)),
        *numbered("Group", range(1, 6)),
        *(f"§{section}" for section in ("2.1", "2.2", "3.1", "3.2", "3.3", "3.4", "4.1.3")),
        "B.2",
    ],
    "003": [
        *numbered("Algorithm", range(1, 4)),
        *("Assumption A1", "Uniform Validity", "Uniform Agreement", "Uniform Integrity", "Uniform Total Order"),
        *("FIFO Order", "§2", "§3.2"),
    ],
    "004": [
        *("P1", "P2", "view-atomic multicast", "coordinator variant"),
        *numbered("Equation", range(1, 7)),
        *numbered("Figure", range(1, 6)),
    ],
}


@dataclass(frozen=True)
class Row:
    paper: str
    item: str
    files: tuple[str, ...]
    tests: tuple[str, ...]
    commands: tuple[str, ...]


def code(cell: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`([^`]+)`", cell))


def read_rows() -> list[Row]:
    rows, paper = [], ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if heading := re.match(r"## Paper (\d+)", line):
            paper = heading[1]
        elif line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            assert len(cells) == len(COLUMNS), line
            if cells != COLUMNS and set(cells[0]) != {"-"}:
                rows.append(Row(paper, cells[0], code(cells[2]), code(cells[3]), code(cells[4])))
    return rows


ROWS = read_rows()


@cache
def functions(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("paper", ITEMS)
def test_every_item_of_a_paper_has_a_row(paper: str) -> None:
    listed = " ; ".join(row.item for row in ROWS if row.paper == paper)
    missing = [item for item in ITEMS[paper] if not re.search(rf"(?<![\w.]){re.escape(item)}(?![\w.]*\d)", listed)]
    assert not missing


def test_every_row_has_a_file_and_a_test() -> None:
    assert {row.paper for row in ROWS} == ITEMS.keys()
    assert not [row.item for row in ROWS if not row.files or not row.tests]


def test_every_file_exists() -> None:
    named = {file for row in ROWS for file in row.files}
    assert not sorted(file for file in named if not (PROJECT / "src" / "unisono" / file).is_file())


def test_every_test_exists() -> None:
    missing = []
    for name in sorted({test for row in ROWS for test in row.tests}):
        file, _, function = name.partition("::")
        path = PROJECT / "tests" / file
        if not path.is_file() or (function and function not in functions(path)):
            missing.append(name)
    assert not missing


@pytest.mark.parametrize("command", sorted({command for row in ROWS for command in row.commands}))
def test_every_command_is_understood(command: str) -> None:
    program, *words = shlex.split(command)
    assert program == "unisono"
    options = build_parser().parse_args(words)
    if options.verb == "experiment":
        assert options.name in EXPERIMENTS
    scenario = getattr(options, "scenario", None)
    assert scenario is None or (PROJECT / scenario).is_file()


def test_every_experiment_is_on_the_page() -> None:
    named = " ".join(command for row in ROWS for command in row.commands)
    assert not [name for name in EXPERIMENTS if f"unisono experiment {name}" not in named]
