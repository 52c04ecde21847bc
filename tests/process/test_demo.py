"""`unisono demo` as a user runs it: real member processes, the verdict, and no process left behind."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from unisono.check.suite import check_all
from unisono.check.verdict import Status
from unisono.cli.main import main
from unisono.cluster.report import ORDER_CHECKS
from unisono.trace.files import read_trace

COMMAND = (sys.executable, "-c", "from unisono.cli.main import run; run()")
SCENARIO = Path(__file__).parents[2] / "scenarios" / "vbr_quickstart.toml"
PATIENCE_S = 120
FIELDS = {
    "order",
    "members",
    "sent",
    "delivered",
    "verdict",
    "latency_ms",
    "bound_ms",
    "late",
    "longest_gap_ms",
    "trace",
}
"""The documented fields of the demo's JSON."""
PROMISED = ("total_order", "integrity", "fifo", "gap_freedom")
"""The checks of an order without failures."""


def unisono(*arguments: str) -> tuple[int, str, str]:
    """Run a command to its end: exit status, standard output, standard error."""

    async def run() -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(*COMMAND, *arguments, stdout=PIPE, stderr=PIPE)
        try:
            async with asyncio.timeout(PATIENCE_S):
                out, err = await process.communicate()
        finally:
            await _kill(process)
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    return asyncio.run(run())


async def _kill(process: Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.communicate()


def assert_figures(result: dict[str, Any], members: int) -> None:
    assert result.keys() >= FIELDS
    assert result["members"] == members
    assert result["verdict"] == "valid", result["checks"]
    assert result["same_sequence"] is True
    assert result["left_in_order"] is True
    assert result["sent"] > 0
    assert set(result["delivered"].values()) == {result["sent"]}
    assert len(result["delivered"]) == members
    assert list(result["latency_ms"]) == ["p50", "p99", "p999", "max"]
    assert {"delta_measured_ms", "timer_lateness_ms", "gamma_measured_ms"} <= result.keys()


def test_the_demo_is_valid_and_everyone_has_the_same_sequence(tmp_path: Path) -> None:
    status, out, err = unisono("demo", "--json", "--seconds", "2", "--out", str(tmp_path / "kept"))
    assert (status, err) == (0, "")
    result = json.loads(out)
    assert_figures(result, 5)
    assert result["order"] == "vbr"
    assert result["trace"] == str(tmp_path / "kept")
    trace = read_trace(result["trace"])
    again = check_all(trace)
    assert {name: again[name].status for name in ORDER_CHECKS if name in again} == dict.fromkeys(PROMISED, Status.VALID)
    assert trace.dropped == 0
    assert (tmp_path / "kept" / "scenario.toml").is_file()


def test_one_scenario_in_the_simulator_and_with_real_processes(tmp_path: Path) -> None:
    """The same file, the same checkers, both valid: the evidence that both run one protocol."""
    text = SCENARIO.read_text(encoding="utf-8")
    assert main(["simulate", str(SCENARIO), "--json", "--trace", str(tmp_path / "simulated")]) == 0
    status, out, _ = unisono("demo", str(SCENARIO), "--json", "--out", str(tmp_path / "real"))
    assert status == 0
    assert_figures(json.loads(out), 5)
    assert (tmp_path / "real" / "scenario.toml").read_text(encoding="utf-8") == text
    traces = {name: read_trace(tmp_path / name) for name in ("simulated", "real")}
    for name, trace in traces.items():
        verdicts = check_all(trace)
        assert verdicts.keys() >= set(PROMISED)
        for check in PROMISED:
            assert verdicts[check].status is Status.VALID, (name, verdicts[check])
        assert set(trace.sends().member.tolist()) >= {1, 2, 3, 4}
    assert traces["simulated"].meta.source != traces["real"].meta.source


def test_the_demo_by_multicast_with_text_output(tmp_path: Path) -> None:
    options = ("--multicast", "--members", "3", "--seconds", "0.5", "--out", str(tmp_path))
    status, out, err = unisono("demo", *options)
    assert status == 0, err
    assert "verdict: valid" in out
    for name in ("total order", "integrity", "fifo", "gap freedom"):
        assert f"✓ {name}" in out
    assert "3 members run" in err
    assert "own datagram" not in out


@pytest.mark.parametrize(
    "words",
    [
        "--order cbr",
        "--order leader",
        "--order timestamp",
        "--order vbr --failures",
        "--order vbr --fec 1/5 --loss 0.05",
        "--order vbr --loss-burst 2 --loss 0.05",
    ],
)
def test_every_order_is_valid_with_the_loss_that_it_tolerates(words: str, tmp_path: Path) -> None:
    """Δ is generous: a busy machine must not look like a crash."""
    options = ("--members", "3", "--seconds", "1", "--delta", "200ms", "--out", str(tmp_path))
    status, out, err = unisono("demo", "--json", *words.split(), *options)
    assert status == 0, err or out
    result = json.loads(out)
    assert result["verdict"] == "valid", result["checks"]
    assert result["sent"] > 0
    assert set(result["checks"]) >= {"total_order", "integrity", "fifo"}
    faults = read_trace(tmp_path).meta.faults
    if "--loss " not in words:
        assert result["injected"] == {"datagrams": 0, "lost": 0}
        assert faults == ()
    else:
        assert result["injected"]["lost"] > 0
        assert faults[0]["kind"] == "loss"
    if "--loss-burst" in words:
        assert result["missing"] > 0, "a lost message is a gap"
    elif "--failures" not in words:
        assert result["checks"]["gap_freedom"]["verdict"] == "valid"
        assert set(result["delivered"].values()) == {result["sent"]}


def test_degrade_raises_the_loss(tmp_path: Path) -> None:
    shared = ("--members", "3", "--seconds", "2", "--delta", "200ms", "--loss-burst", "3")
    lost = []
    for name, words in (("calm", ("--loss", "0.02")), ("worse", ("--loss", "0.02", "--degrade", "0.5@300ms"))):
        status, out, err = unisono("demo", "--json", *shared, *words, "--out", str(tmp_path / name))
        assert status == 0, err or out
        injected = json.loads(out)["injected"]
        lost.append(injected["lost"] / injected["datagrams"])
    assert lost[0] < 0.05
    assert lost[1] > 0.2
    assert [fault["to_ns"] for fault in read_trace(tmp_path / "worse").meta.faults] == [300_000_000, None]


def test_a_scenario_with_crashes_restarts_and_a_pause(tmp_path: Path) -> None:
    """Members crash, restart and pause as the file says; the order holds."""
    path = tmp_path / "churn.toml"
    path.write_text(
        """
[group]
name = "churn"
failures = true
members = 4
slot = "10ms"
delta = "200ms"
gamma = "5ms"
[rate]
avg = 200
burst = 8
[workload]
kind = "poisson"
rate = 100
[run]
seconds = 3
[[fault]]
kind = "crash"
member = 2
at = "500ms"
[[step]]
kind = "restart"
member = 2
at = "1s"
[[fault]]
kind = "pause"
member = 3
from = "1s"
to = "1.6s"
[[step]]
kind = "leave"
member = 4
at = "1s"
""",
        encoding="utf-8",
    )
    status, out, err = unisono("demo", str(path), "--json", "--out", str(tmp_path / "kept"))
    assert status == 0, err or out
    result = json.loads(out)
    assert result["verdict"] == "valid"
    assert sorted(result["delivered"]) == ["1", "2", "3", "4"]
    assert result["delivered"]["2"] > 0, "its second incarnation takes part"
    assert any("stood still" in text for text in result["violations"])
    rows = read_trace(tmp_path / "kept").deliveries()
    assert len(set(rows.sender_incarnation[rows.sender == 2].tolist())) == 2, "both of its incarnations were heard"


def test_a_late_delivery_is_late_against_the_declared_bound(tmp_path: Path) -> None:
    """A member stands still for half a second. The bound computed from such a run would call every delivery timely."""
    path = tmp_path / "stall.toml"
    path.write_text(
        """
[group]
name = "stall"
members = 3
slot = "5ms"
delta = "20ms"
gamma = "2ms"
[rate]
avg = 200
burst = 8
[workload]
kind = "poisson"
rate = 100
[run]
seconds = 1.5
[[fault]]
kind = "pause"
member = 2
from = "500ms"
to = "1s"
""",
        encoding="utf-8",
    )
    status, out, err = unisono("demo", str(path), "--json", "--out", str(tmp_path / "kept"))
    assert status == 0, err or out
    result = json.loads(out)
    assert result["verdict"] == "valid", "the order holds"
    assert result["bound_ms"] == 20 + 2 + 5
    assert result["late"] > 0
    assert result["checks"]["latency"]["verdict"] == "violated"
    assert result["measured_bound_ms"] > result["bound_ms"]
    assert "the scenario injects the fault pause" in result["doubtful_assumptions"]
    assert read_trace(tmp_path / "kept").meta.bound_ns == 27_000_000
    assert main(["verify", str(tmp_path / "kept"), "--master", "none"]) == 1


@pytest.mark.parametrize("name", ["consensus_dies", "priority_churn"])
def test_a_scenario_with_restarts_gets_its_verdict(name: str, tmp_path: Path) -> None:
    path = SCENARIO.with_name(f"{name}.toml")
    status, out, err = unisono("demo", str(path), "--json", "--out", str(tmp_path))
    assert status == 0, err or out
    result = json.loads(out)
    assert (result["verdict"], result["expected"]) == ("valid", True), result["checks"]
    assert len(result["delivered"]) == 5, "the restarted members have joined again"


# -- no process is left behind ----------------------------------------------------------------------------------------


def _field(pid: int, name: str) -> str:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return next((line.split()[1] for line in lines if line.startswith(f"{name}:")), "")


def children(parent: int) -> list[int]:
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in numbers if _field(pid, "PPid") == str(parent)]


async def until_gone(pids: Iterable[int]) -> None:
    while any(_field(pid, "State") not in {"", "Z", "X"} for pid in pids):
        await asyncio.sleep(0.02)


async def _running_demo(*arguments: str) -> tuple[Process, list[int]]:
    """A demo in mid-run, and its member processes."""
    command = (*COMMAND, "demo", "--members", "2", "--seconds", "600", *arguments)
    # Started with a shell's `&`, these tests ignore interrupts, and child processes would inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.stderr is not None
    while b"members run" not in (line := await process.stderr.readline()):
        assert line, "the demo ended before its members ran"
    return process, children(process.pid)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("how", ["member killed", "demo interrupted", "demo ended", "demo killed"])
def test_after_any_kill_no_process_is_left(how: str, tmp_path: Path) -> None:
    async def scene() -> None:
        process, members = await _running_demo("--out", str(tmp_path))
        try:
            assert len(members) == 2
            if how == "member killed":
                os.kill(members[1], signal.SIGKILL)
            else:
                number = {"interrupted": signal.SIGINT, "ended": signal.SIGTERM, "killed": signal.SIGKILL}
                process.send_signal(number[how.split()[1]])
            _, err = await process.communicate()
            await until_gone(members)
        finally:
            await _kill(process)
            for pid in members:
                if _field(pid, "State") not in {"", "Z", "X"}:
                    os.kill(pid, signal.SIGKILL)
        text = err.decode()
        assert "Traceback" not in text
        if how == "member killed":
            assert process.returncode == 3
            assert "was killed by SIGKILL" in text
        elif how == "demo killed":
            assert process.returncode == -signal.SIGKILL
        else:
            assert process.returncode == 130

    async def in_time() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await scene()

    asyncio.run(in_time())


def test_nothing_heavy_is_loaded_while_the_group_runs(tmp_path: Path) -> None:
    """A first import holds the interpreter for long, which the group would see as latency."""
    code = f"""
import asyncio, sys
import unisono
from unisono.cluster.supervisor import free_addresses
from unisono.runtime.timers import new_incarnation
from unisono.trace.files import ParquetWriter

async def main():
    incarnation = new_incarnation()
    writer = ParquetWriter({str(tmp_path)!r}, "run", "group", 1, incarnation=incarnation, flush_s=0)
    observe = unisono.Observe(recorder=writer.recorder())
    group = await unisono.join("group", member=1, peers=free_addresses((1,)), order="vbr", observe=observe)
    before = set(sys.modules)
    await group.send(b"x")
    async for event in group:
        if isinstance(event, unisono.Delivery):
            break
    while not writer.written:
        await asyncio.sleep(0.01)
    await group.leave()
    writer.close()
    print(sorted(set(sys.modules) - before))

asyncio.run(main())
"""

    async def run() -> str:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=PIPE)
        try:
            async with asyncio.timeout(PATIENCE_S):
                out, _ = await process.communicate()
        finally:
            await _kill(process)
        return out.decode().strip()

    assert asyncio.run(run()) == "[]"
