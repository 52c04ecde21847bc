"""The path of one message in docs/architecture.md: a real group of two calls every function that the page names."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from benchmarks.walk import walk

PAGE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
SECTION = PAGE.split("## The path of one message")[1].split("\n## ")[0]
VBR, CONSENSUS = SECTION.split("**VBR.**")[1].split("How this was measured")[0].split("**Consensus.**")


@pytest.mark.parametrize(("order", "text"), [("vbr", VBR), ("consensus", CONSENSUS)])
def test_every_function_on_the_page_runs(order: str, text: str) -> None:
    taken = asyncio.run(walk(order, messages=2))
    named = set(re.findall(r"`([A-Z]\w+\.\w+)`", text))
    assert len(named) > 10
    assert not sorted(named - {step.function for step in taken.steps})
    assert taken.files()[0] == "group.py"
    files = set(re.findall(r"`([\w/]+\.py)`", text))
    assert not sorted(files - set(taken.files()))
    assert {step.member for step in taken.steps} >= {1, 2}
