"""Paper 000 §9: updates arrive on time even if inconsistent, and later converge to a consistent state."""

from __future__ import annotations

from pathlib import Path

from unisono.check.suite import check_all
from unisono.check.verdict import Status, overall
from unisono.model.text.scenario import parse_scenario
from unisono.sim.run import run
from unisono.trace.table import Trace

SCENARIO = Path(__file__).parents[2] / "scenarios" / "vbr_grades.toml"


def sequence(trace: Trace, grade: str, member: int) -> list[tuple[int, int]]:
    rows = trace.with_grade(grade).deliveries()
    mine = rows.select(rows.member == member)
    return list(zip(mine.sender.tolist(), mine.sequence.tolist(), strict=True))


def test_early_deliveries_are_on_time_with_gaps_and_final_ones_are_the_same_at_all_members() -> None:
    result = run(parse_scenario(SCENARIO.read_text("utf-8"), str(SCENARIO)), compare_payloads=True)
    trace = result.trace
    verdicts = check_all(trace, until_ns=result.until_ns)
    assert overall(verdicts) is Status.VALID, verdicts
    assert verdicts["latency[early]"].figures["late"] == 0
    early, final = ({m: sequence(trace, grade, m) for m in (1, 3)} for grade in ("early", "final"))
    assert set(early[1]) != set(early[3]), "the last frames of the crashed member reached only one of them"
    assert {sender for sender, _ in set(early[1]) ^ set(early[3])} == {2}
    newest = max(number for sender, number in early[3] if sender == 2)
    assert all(number > newest for _, number in set(early[1]) - set(early[3])), "only its last frames differ"
    longest, shorter = sorted((final[1], final[3]), key=len, reverse=True)
    assert longest[-len(shorter) :] == shorter, "one sequence; a member that starts later has all of it from there on"
    assert set(early[1]) | set(early[3]) <= set(longest)
