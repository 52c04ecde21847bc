"""Rate compliance: bursts and averages, in a whole run and in ranges of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.planted_violations import plant_rate_violation
from tests.recorded_runs import record_run

from unisono.check.rates import DeclaredRates, SlotUsage, edge_usage, merge_usage, rate_compliance, rate_violations
from unisono.check.suite import check_all
from unisono.check.verdict import Status
from unisono.model.text.scenario import parse_scenario
from unisono.model.units import NS_PER_S, Rate
from unisono.pipeline.verify import verify
from unisono.sim.run import run
from unisono.trace.files import read_trace

SCENARIOS = Path(__file__).parents[2] / "scenarios"


def used(slots: list[int], counts: list[int]) -> SlotUsage:
    ones = np.ones(len(slots), dtype=np.int64)
    return SlotUsage(ones, ones, np.array(slots), np.array(counts), np.cumsum(counts) - 1)


def test_more_than_the_burst_in_one_slot() -> None:
    promised = DeclaredRates(NS_PER_S // 10, ((1, 20.0, 3),))
    assert rate_violations(used([4, 5, 9], [3, 3, 3]), promised) == []
    (found,) = rate_violations(used([4, 5, 9], [3, 4, 3]), promised)
    assert (found.slot, found.window_slots, found.sent, found.allowed, found.sequence) == (5, 1, 4, 3, 6)


def test_more_than_the_average_over_its_window() -> None:
    """A tenth of a second per slot: the average is kept over ten slots."""
    rate = Rate(20, 3)
    assert rate.averaging_slots(NS_PER_S // 10) == 10
    promised = DeclaredRates(NS_PER_S // 10, ((1, 20.0, 3),))
    full = [3] * 6 + [2]
    assert rate_violations(used(list(range(7)), full), promised) == []
    assert rate_violations(used([*range(7), 10], [*full, 3]), promised) == [], "slot 0 is out of the window"
    (found,) = rate_violations(used([*range(7), 9], [*full, 1]), promised)
    assert (found.slot, found.window_slots, found.sent, found.allowed) == (9, 10, 21, 20)


def test_a_member_without_a_declared_rate_is_not_checked() -> None:
    assert rate_violations(used([1], [100]), DeclaredRates(NS_PER_S, ((2, 1.0, 1),))) == []


@pytest.mark.parametrize("seed", range(20))
def test_ranges_show_the_same_as_the_whole_run(seed: int) -> None:
    chance = np.random.default_rng(seed)
    length, slots = int(chance.integers(1, 40)), int(chance.integers(20, 200))
    promised = DeclaredRates(NS_PER_S // int(chance.integers(2, 30)), ((1, float(chance.integers(5, 40)), 3),))
    counts = chance.integers(0, 5, slots)
    there = np.flatnonzero(counts)
    whole = used(there.tolist(), counts[there].tolist())
    found, kept = set(), []
    for first in range(0, slots, length):
        part = whole.select((whole.slot >= first) & (whole.slot < first + length))
        found |= set(rate_violations(part, promised))
        kept.append(edge_usage(part, first, first + length - 1, promised))
    found |= set(rate_violations(merge_usage(kept), promised))
    # A part of a window may pass the average before the whole window does: the slots and the worst are the same.
    assert {(e.slot, e.window_slots) for e in found} == {
        (e.slot, e.window_slots) for e in rate_violations(whole, promised)
    }


def test_a_planted_excess_is_found_with_its_message(tmp_path: Path) -> None:
    folder = record_run(tmp_path, members=3, slots=300, burst=2, range_slots=64)
    assert check_all(read_trace(folder))["rate_compliance"].status is Status.VALID
    planted = plant_rate_violation(folder)
    whole = check_all(read_trace(folder))
    planted.assert_found(whole)
    (report,) = verify(tmp_path)
    assert {n: (v.status, v.witness) for n, v in report.verdicts.items()} == {
        n: (v.status, v.witness) for n, v in whole.items()
    }
    assert [name for name, verdict in whole.items() if verdict.status is not Status.VALID] == ["rate_compliance"]


def test_a_simulated_group_keeps_its_rates_and_one_that_declared_less_does_not() -> None:
    trace = run(parse_scenario((SCENARIOS / "vbr_quickstart.toml").read_text("utf-8"), "quickstart")).trace
    assert rate_compliance(trace).status is Status.VALID
    assert trace.meta.rates
    less = tuple((member, avg / 50, 1) for member, avg, _ in trace.meta.rates)
    found = rate_compliance(replace(trace, meta=replace(trace.meta, rates=less)))
    assert found.status is Status.VIOLATED
    assert found.witness is not None
    assert "but declared at most" in found.witness.text


@pytest.mark.parametrize("name", ["cbr_renegotiation", "vbr_slot_change", "leader_dies"])
def test_runs_with_changing_or_without_rates_are_not_checked(name: str) -> None:
    trace = run(parse_scenario((SCENARIOS / f"{name}.toml").read_text("utf-8"), name)).trace
    assert "rate_compliance" not in check_all(trace)
