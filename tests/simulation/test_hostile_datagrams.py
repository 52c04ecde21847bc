"""Mutated datagrams reach members of a running group of each order: none of them makes a member break an invariant.

A member checks only what it decides itself, so a hostile datagram may delay or confuse the group, but must not stop it.
"""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from unisono.model.text.scenario import parse_scenario
from unisono.sim.run import run
from unisono.stack import Stack
from unisono.wire.frame import HEADER_BYTES

SCENARIOS = Path(__file__).parents[2] / "scenarios"
NAMES = (
    "cbr_grades",
    "cbr_quickstart",
    "consensus_dies",
    "leader_dies",
    "priority_churn",
    "timestamp_overtaken",
    "vbr_failures_churn",
    "vbr_grades",
    "vbr_quickstart",
)
SHARE = 0.1
MOST = 300
KEPT_BYTES = 2
"""The version and the kind stay: the door would refuse the datagram otherwise."""


def mutated(chance: random.Random, datagram: bytes, other: bytes) -> bytes:
    """A datagram with one to three changes: in a bit, a byte or a number, or with the end of another datagram."""
    changed = bytearray(datagram)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(KEPT_BYTES, len(changed))
        match chance.randrange(5):
            case 0:
                changed[at] ^= 1 << chance.randrange(8)
            case 1:
                changed[at] = chance.choice([0, 1, 2, 3, 127, 128, 255])
            case 2 if len(changed) > HEADER_BYTES + 8:
                at = chance.randrange(HEADER_BYTES, len(changed) - 7)
                number: int = chance.choice([0, 1, 5, 1 << 20, 1 << 40, 1 << 62])
                changed[at : at + 8] = number.to_bytes(8, "big")
            case 3:
                changed[at:] = other[at:]
            case _:
                start = max(KEPT_BYTES, at - 3)
                size = at + 1 - start
                number = int.from_bytes(changed[start : at + 1], "big") + chance.choice([-2, -1, 1, 2])
                changed[start : at + 1] = (number % (1 << 8 * size)).to_bytes(size, "big")
        if len(changed) <= KEPT_BYTES:
            break
    return bytes(changed)


@pytest.mark.parametrize("name", NAMES)
def test_mutated_datagrams_break_no_invariant(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(name)
    recent: deque[bytes] = deque(maxlen=50)
    injected: list[bytes] = []
    receive = Stack.receive

    def receive_and_inject(stack: Stack, now: int, data: bytes, *given: Any, **named: Any) -> None:
        receive(stack, now, data, *given, **named)
        recent.append(bytes(data))
        if chance.random() < SHARE and len(injected) < MOST:
            injected.append(mutated(chance, chance.choice(recent), chance.choice(recent)))
            receive(stack, now, injected[-1])

    monkeypatch.setattr(Stack, "receive", receive_and_inject)
    run(parse_scenario((SCENARIOS / f"{name}.toml").read_text(encoding="utf-8"), name), 1)
    assert len(injected) > 30
