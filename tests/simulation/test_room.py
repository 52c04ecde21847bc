"""The promise of `Order.room` holds in every state that simulated runs with faults reach."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import pytest

from unisono.model.text.scenario import parse_scenario
from unisono.sim.run import run
from unisono.stack import Stack

SCENARIOS = Path(__file__).parents[2] / "scenarios"
NAMES = (
    "vbr_quickstart",
    "vbr_failures_churn",
    "vbr_failures_pause",
    "vbr_slot_change",
    "vbr_grades",
    "leader_dies",
    "timestamp_overtaken",
    "consensus_dies",
    "rmcast_causal",
)


@pytest.mark.parametrize("name", NAMES)
def test_submit_accepts_what_room_promises(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    submit, seen = Stack.submit, Counter[str]()

    def checked(stack: Stack, now: int, messages: Sequence[bytes], priority: int = 0) -> int:
        messages_left, bytes_left = stack.room(now)
        accepted = submit(stack, now, messages, priority)
        sizes = list(accumulate(map(len, messages)))
        promised = sum(number < messages_left and size <= bytes_left for number, size in enumerate(sizes))
        assert accepted >= promised
        seen["refused" if accepted < len(messages) else "accepted"] += 1
        seen["promised"] += promised
        return accepted

    monkeypatch.setattr(Stack, "submit", checked)
    scenario = parse_scenario((SCENARIOS / f"{name}.toml").read_text("utf-8"), name)
    for seed in (1, 2):
        run(scenario, seed)
    assert seen["accepted"] > 0
    assert seen["promised"] > 0
