"""`unisono plan`: its JSON, its text output, and its refusals."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from unisono.cli.main import ExitStatus, main

ASKED = (
    *("plan", "--members", "5", "--rate", "50", "--burst", "8", "--loss", "0.05", "--reliability", "0.999"),
    *("--gamma", "2ms", "--deadline", "60ms", "--delay", "exponential:1ms"),
)


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    status = main([*arguments, "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_the_json_keeps_its_contract(capsys: pytest.CaptureFixture[str]) -> None:
    status, found = planned(capsys, *ASKED)
    assert status == 0
    fields = {"order", "feasible", "latency_bound_ms", "reliability", "avg_rate", "max_burst", "why"}
    assert all(fields <= row.keys() for row in found["candidates"])
    chosen = next(row for row in found["candidates"] if row["order"] == found["chosen"])
    assert {"rho", "eta_ms", "omega_ms", "broadcasts"} <= chosen.keys()
    assert chosen["feasible"]
    assert chosen["reliability"] >= 0.999
    assert chosen["latency_bound_ms"] <= 60


def test_the_text_output_explains_the_choice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ASKED) == 0
    text = capsys.readouterr().out
    for expected in ("ρ = 2", "r_D reaches 0.999", "exponential:1ms, loss 0.05: accepted", "chosen: vbr with failures"):
        assert expected in text


def test_a_relative_latency_shortens_the_wait(capsys: pytest.CaptureFixture[str]) -> None:
    def chosen(*more: str) -> dict[str, Any]:
        _, found = planned(capsys, *ASKED, *more)
        row: dict[str, Any] = next(row for row in found["candidates"] if row["order"] == found["chosen"])
        return row

    assert chosen("--relative", "0.999/30ms")["omega_ms"] < chosen()["omega_ms"]


def test_an_infeasible_plan_is_status_1_and_shows_alternatives(capsys: pytest.CaptureFixture[str]) -> None:
    status, found = planned(capsys, *ASKED, "--deadline", "12ms")
    assert status == ExitStatus.VIOLATED
    assert found["chosen"] is None
    assert all(row["why"] for row in found["candidates"])
    assert any("instead: " in line for row in found["candidates"] for line in row["why"])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--relative", "0.9"], "--relative"),
        (["--relative", "2/5ms"], "--relative"),
        (["--relative", "0.9/5"], "--relative"),
        (["--delay", "gaussian:1ms"], "--delay"),
        (["--reliability", "1"], "--reliability"),
        (["--session", "0ms"], "session"),
        (["--gamma", "20s", "--slot", "5ms"], "gamma: Δ+2Γ spans 8,010 slots of 5ms, but the limit is 4,000"),
        (["--delta", "50s", "--slot", "5ms"], "delta: Δ+2Γ spans 10,002 slots of 5ms"),
        (["--fec", "3/3"], "fec: expected a/b with 0 < a < b"),
        (["--failures", "5"], "failures: expected fewer crashes than the group's 5 members, got 5"),
        (["--deadline", "0ms"], "deadline"),
        (["--mttf", "0s"], "--mttf"),
        (["--mttf", "1s", "--crash-in-send", "2"], "crash_in_broadcast"),
    ],
)
def test_bad_input_is_refused_and_named(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--loss", "0.01", *arguments]) == ExitStatus.BAD_INPUT
    assert named in capsys.readouterr().err


GRADED = ("plan", "--members", "5", "--failures", "1", "--delta", "10ms", "--gamma", "2ms", "--slot", "5ms")


def test_with_two_grades_the_early_one_is_on_time_and_the_final_one_without_gaps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Theorem 4 rules out both at once: 2Δ = 20 ms, and the deadline is 19 ms."""
    asked = (*GRADED, "--deadline", "19ms", "--reliable")
    status, found = planned(capsys, *asked)
    assert (status, found["chosen"]) == (ExitStatus.VIOLATED, None)
    status, found = planned(capsys, *asked, "--grades", "both")
    assert (status, found["chosen"]) == (0, "vbr with failures")
    rows = {row["order"]: row for row in found["candidates"]}
    chosen = rows["vbr with failures"]
    assert (chosen["latency_bound_ms"], chosen["final_ms"], chosen["gap_free"]) == (19, 19 + 10 + 4 * 10, True)
    assert any("about 69ms after sending" in line for line in chosen["why"])
    assert any("400 datagrams/s more" in line for line in chosen["why"])
    assert "final_ms" not in rows["leader"]
    assert "its deliveries do not become final" in rows["leader"]["why"]


def test_the_rate_includes_the_cost_of_two_grades(capsys: pytest.CaptureFixture[str]) -> None:
    def rate(*more: str) -> float:
        _, found = planned(capsys, *GRADED, *more)
        return next(float(row["avg_rate"]) for row in found["candidates"] if row["order"] == "vbr with failures")

    assert rate("--grades", "both") == rate("--grades", "final") == rate() + 3 / 0.01 + 2 / 0.02


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (("--grades", "final", "--deadline", "60ms"), "final deliveries have no latency bound"),
        (("--grades", "both", "--failures", "3"), "need a majority, and 3 of 5 is half or more"),
    ],
)
def test_limits_of_final_deliveries_are_stated(
    more: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = planned(capsys, *GRADED, *more)
    assert (status, found["chosen"]) == (ExitStatus.VIOLATED, None)
    (row,) = [row for row in found["candidates"] if row["order"] == "vbr with failures"]
    assert any(problem in line for line in row["why"])


PAGE = (Path(__file__).parents[2] / "docs" / "negotiation.md").read_text("utf-8")


def test_the_negotiation_in_the_documentation_is_the_real_one(capsys: pytest.CaptureFixture[str]) -> None:
    (command,) = re.findall(r"```sh\nunisono (.*)\n```", PAGE)
    assert main(shlex.split(command)) == 0
    said = capsys.readouterr().out
    shown = re.findall(r"^[↓↑] .*$", PAGE, re.MULTILINE)
    assert len(shown) == 5
    assert "\n".join(f"      {line}" for line in shown) in said


def test_the_python_example_in_the_documentation_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(example, "docs/negotiation.md", "exec"), {})


def test_delays_that_may_depend_on_each_other_cost_a_longer_bound(capsys: pytest.CaptureFixture[str]) -> None:
    bounds = []
    for words in ((), ("--dependent",)):
        status, found = planned(capsys, *ASKED, *words)
        assert status == 0
        chosen = next(row for row in found["candidates"] if row["order"] == found["chosen"])
        bounds.append(chosen["latency_bound_ms"])
    assert bounds[0] < bounds[1] < 60
