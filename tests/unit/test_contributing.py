"""CONTRIBUTING.md, the decision records and the commit hooks: links are valid, and hooks run the commands of make."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
DECISIONS = PROJECT / "docs" / "decisions"
RECORDS = sorted(DECISIONS.glob("[0-9]*.md"))
PAGES = [PROJECT / "CONTRIBUTING.md", DECISIONS / "README.md", *RECORDS]
LONGEST_RECORD_LINES = 40

_LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def recipe(target: str) -> list[str]:
    """The commands of a target in the Makefile, with $(BIN) replaced."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", text_of(PROJECT / "Makefile"), flags=re.MULTILINE)
    assert found, f"the Makefile has no target {target}"
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in found[1].splitlines()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_points_to_an_existing_file(page: Path) -> None:
    links = [link for link in _LINK.findall(text_of(page)) if not link.startswith("https://")]
    broken = [link for link in links if not (page.parent / link).exists()]
    assert not broken, f"{page.name} links to {', '.join(broken)}"


def test_the_hooks_run_the_commands_of_make() -> None:
    config = text_of(PROJECT / ".pre-commit-config.yaml")
    assert re.findall(r"^ *entry: (.*)$", config, flags=re.MULTILINE) == recipe("lint") + recipe("types")


def test_the_hooks_are_local() -> None:
    config = text_of(PROJECT / ".pre-commit-config.yaml")
    assert re.findall(r"^ *-? *repo: (.*)$", config, flags=re.MULTILINE) == ["local"]
    assert set(re.findall(r"^ *language: (.*)$", config, flags=re.MULTILINE)) == {"system"}


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_decision_record_is_short_and_complete(record: Path) -> None:
    text = text_of(record)
    assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE) == ["Context", "Decision", "Consequences"]
    assert len(text.splitlines()) <= LONGEST_RECORD_LINES


def test_the_list_of_decisions_has_every_record_in_order() -> None:
    listed = re.findall(r"^\| \[(\d+)\]\((\d+[\w-]*\.md)\) \| (.*) \|$", text_of(DECISIONS / "README.md"), re.MULTILINE)
    there = [(record.name[:4], record.name, text_of(record).splitlines()[0]) for record in RECORDS]
    assert there
    assert [(number, name, f"# {number} {title}") for number, name, title in listed] == there
    assert [number for number, _, _ in there] == [f"{number:04}" for number in range(1, len(there) + 1)]
