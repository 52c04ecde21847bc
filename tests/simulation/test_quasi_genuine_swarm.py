"""Quasi-genuine groups in any topology, through skewed clocks, loss, reordering, partitions, crashes with recovery.

A failure names the seed; a range of seeds runs by
    .venv/bin/python tests/simulation/test_quasi_genuine_swarm.py 0..2000
"""

from __future__ import annotations

import sys
import time

import pytest

from unisono.check.multigroup import genuineness
from unisono.check.suite import check_all
from unisono.check.verdict import Status, Verdict
from unisono.orders import quasi_genuine
from unisono.sim.result import Result
from unisono.sim.run import run
from unisono.sim.swarm_groups import groups_scenario

CHUNK, SLOW_CHUNK = 6, 500


def outcome(seed: int) -> tuple[Result, dict[str, Verdict]]:
    """One run, and what the checkers say of it."""
    scenario = groups_scenario(seed)
    result = run(scenario, payloads=True)
    assert scenario.multigroup is not None
    if len(result.trace) == 0:
        return result, {}
    found = check_all(result.trace, until_ns=result.until_ns)
    return result, found | {"genuineness": genuineness(scenario.multigroup.topology, result.pairs)}


def problems(seed: int) -> list[str]:
    """What is wrong with one run."""
    return [
        f"{name}: {verdict.status.value}: {verdict.witness.text if verdict.witness else verdict.reason}"
        for name, verdict in outcome(seed)[1].items()
        if verdict.status is not Status.VALID
    ]


def judge(seed: int) -> None:
    assert not problems(seed), f"test_quasi_genuine_swarm.py {seed}: {problems(seed)}"


@pytest.mark.parametrize("first", range(0, 12, CHUNK))
def test_safe_always_and_live_in_the_end(first: int) -> None:
    for seed in range(first, first + CHUNK):
        judge(seed)


def test_past_failures() -> None:
    """104: what had to be sent again lengthened the measured window, which held it up until it had to be sent again."""
    judge(104)


@pytest.mark.parametrize("seed", [1, 3])
def test_logs_that_are_cut_all_the_time(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Members come back from states in place of logs, and who lags is given another member's state."""
    monkeypatch.setattr(quasi_genuine, "COMPACT_EVERY", 4)
    result, verdicts = outcome(seed)
    for name, verdict in verdicts.items():
        if name == "uniform_agreement" and verdict.witness is not None:
            said = [violation.kind for violation in result.violations[verdict.witness.members[0]]]
            assert "too far behind" in said, f"seed {seed}: {verdict.witness.text}"
        else:
            assert verdict.status is Status.VALID, f"seed {seed}: {name}: {verdict}"


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("first", range(1000, 21_000, SLOW_CHUNK))
def test_in_20000_runs_there_is_no_violation(first: int) -> None:
    for seed in range(first, first + SLOW_CHUNK):
        judge(seed)


def main(words: list[str]) -> int:
    """Run ranges of seeds A..B, both included; say what is wrong with each that is wrong."""
    wrong = 0
    for word in words:
        first, _, last = word.partition("..")
        seeds, begun = range(int(first), int(last or first) + 1), time.monotonic()
        for done, seed in enumerate(seeds, 1):
            found = problems(seed)
            wrong += bool(found)
            if found or len(seeds) == 1:
                sys.stdout.write(f"seed {seed}: {found or 'valid'}\n")
            if done % 100 == 0 or done == len(seeds):
                sys.stdout.write(f"{done} of {len(seeds)} runs, {wrong} wrong, {time.monotonic() - begun:.0f} s\n")
                sys.stdout.flush()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
