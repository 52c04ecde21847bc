"""Simulated scenarios: every scenario file of the project ends with the verdict that it expects."""

from dataclasses import replace
from pathlib import Path

import pytest

from unisono.check.suite import check_all
from unisono.check.verdict import Verdict, overall
from unisono.errors import ScenarioError
from unisono.model.scenario import Scenario
from unisono.model.text.scenario import parse_scenario
from unisono.sim import Result, run

FOLDER = Path(__file__).parents[2] / "scenarios"
MS = 1_000_000


def scenario(name: str) -> Scenario:
    return parse_scenario((FOLDER / f"{name}.toml").read_text("utf-8"), f"scenarios/{name}.toml")


def played(name: str, seed: int | None = None) -> tuple[Result, dict[str, Verdict]]:
    result = run(scenario(name), seed, compare_payloads=True)
    return result, check_all(result.trace, until_ns=result.until_ns)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_files_run_to_the_verdict_they_expect(path: Path) -> None:
    result, verdicts = played(path.stem)
    assert overall(verdicts).value == result.scenario.expect.verdict, verdicts


def test_figure_8_attains_the_bound_to_the_nanosecond() -> None:
    result, verdicts = played("theorem_2_figure_8")
    assert verdicts["latency"].figures["max_ns"] == result.scenario.bound_ns == 17 * MS


def test_theorem_3_one_frame_per_slot_is_added_and_the_burst_is_not_exceeded() -> None:
    result, _ = played("theorem_3_overhead")
    burst = result.scenario.rates[1].burst
    silent, full = result.traffic[1], result.traffic[2]
    assert (silent.avg_rate, silent.max_burst) == (1.0, 1)
    assert full.max_burst == burst
    assert result.overhead.max_burst == burst
    assert result.overhead.added_rate <= 1.0
    # A member that fills its slots adds a frame only to slots before its first burst and after its last.
    assert sum(full.frames_by_slot.values()) - result.sent[2] <= 4


def test_a_stalled_member_names_the_member_it_waits_for_and_keeps_the_order() -> None:
    result, verdicts = played("faults_stall")
    violated = [name for name, verdict in verdicts.items() if verdict.status.value == "violated"]
    assert violated == ["gap_freedom"]
    assert [violation.kind for violation in result.violations[3]] == ["late"]
    assert result.unsent[3] > 0
    assert result.fault_hits[0] > 0


def test_the_seed_of_the_file_is_the_default() -> None:
    quick = replace(scenario("vbr_quickstart"), run_ns=200 * MS)
    assert run(quick).trace.digest() == run(quick, quick.seed).trace.digest()
    assert run(quick, 2).meta.run == "quickstart-seed-2"


def test_an_unknown_order_is_an_error_of_the_file() -> None:
    with pytest.raises(ScenarioError, match=r"scenarios/vbr_quickstart.toml: order: .*vbr.*'vbx'"):
        run(replace(scenario("vbr_quickstart"), order="vbx"))
