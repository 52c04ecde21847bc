"""(a) Delivered messages per second and member, against plain UDP with the same packed datagrams, in one run.

Four processes, all sending. Both sides count only messages from the other three, each sliced out. What may be under
way to a member, window × peers × burst, is kept within its receive buffer: the order assumes that nothing is lost. So a
slot is short, that the processor and not the window is the limit. A group that loses a datagram stalls; this says so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.progress import Say, silence
from unisono.cluster.supervisor import free_addresses

MEMBERS = (1, 2, 3, 4)
FRAME_BYTES = 60_000
PATIENCE_S = 60.0
"""Beyond the time measured: starting, forming the group, leaving it."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the ordered group declares for one message size."""

    size: int
    burst: int
    slot_ns: int
    delta_ns: int

    @property
    def most_per_s(self) -> int:
        """What the declared bursts let a member deliver from the others: must be well above what is measured."""
        return (len(MEMBERS) - 1) * self.burst * 1_000_000_000 // self.slot_ns


CANDIDATES: dict[int, tuple[Load, ...]] = {
    100: (
        Load(100, 20_000, 10_000_000, 10_000_000),
        Load(100, 10_000, 5_000_000, 5_000_000),
        Load(100, 5_000, 5_000_000, 5_000_000),
    ),
    1000: (
        Load(1000, 1_000, 2_000_000, 2_000_000),
        Load(1000, 1_000, 2_000_000, 10_000_000),
        Load(1000, 2_000, 5_000_000, 5_000_000),
        Load(1000, 500, 5_000_000, 5_000_000),
    ),
}
"""By message size, declarations whose window fits a 32 MiB receive buffer, the last also one of 8 MiB. A long window
rides out the scheduler's pauses, a short one keeps what is under way in the processor's cache: which is best depends on
the machine, so each is tried before the rounds."""


class Stalled(RuntimeError):
    """A group lost something and stopped, or a process did not finish."""


def _start(
    module: str, setups: list[dict[str, Any]], more: dict[str, str] | None = None
) -> list[subprocess.Popen[str]]:
    processes = []
    for setup in setups:
        process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(more or {})},
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(setup) + "\n")
        process.stdin.flush()
        processes.append(process)
    return processes


def _setups(size: int, seconds: float, **more: Any) -> list[dict[str, Any]]:
    peers = free_addresses(MEMBERS)
    return [
        {"max_frame": FRAME_BYTES, **more, "member": m, "peers": peers, "size": size, "seconds": seconds}
        for m in MEMBERS
    ]


def _results(processes: list[subprocess.Popen[str]], seconds: float) -> list[dict[str, Any]]:
    """Every process's figures. None of them is left behind, whatever happens."""
    deadline = time.monotonic() + seconds + PATIENCE_S
    try:
        outputs = [process.communicate(timeout=max(0.1, deadline - time.monotonic()))[0] for process in processes]
    except subprocess.TimeoutExpired as error:
        raise Stalled(f"a process did not finish within {seconds + PATIENCE_S:g} s") from error
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    if any(process.returncode for process in processes):
        raise Stalled(f"a process ended with status {[process.returncode for process in processes]}")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def raw(size: int, seconds: float) -> list[dict[str, Any]]:
    """The processes' figures without ordering."""
    return begun_together("benchmarks.raw", size, seconds)


def begun_together(module: str, size: int, seconds: float) -> list[dict[str, Any]]:
    """The figures of processes that each write a line when they are ready, and then read when to begin."""
    processes = _start(module, _setups(size, seconds))
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    start = time.time() + 0.2
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(f"{start}\n")
        process.stdin.flush()
    return _results(processes, seconds)


def ordered(load: Load, seconds: float, profile_to: str = "", **more: Any) -> list[dict[str, Any]]:
    """The members' figures, in one order; raises Stalled if the group stopped."""
    setups = _setups(load.size, seconds, slot_ns=load.slot_ns, burst=load.burst, delta_ns=load.delta_ns, **more)
    results = _results(_start("benchmarks.ordered", setups, {"UNISONO_PROFILE": profile_to}), seconds)
    if any(r["stalled"] for r in results):
        complaints = sorted({text for r in results for text in r["violations"]})
        counts = {name: [r[name] for r in results] for name in ("dropped", "refused", "ignored", "errors", "state")}
        raise Stalled(f"no delivery for a while: {counts}; {'; '.join(complaints[:3])}")
    return results


def per_process(results: list[dict[str, Any]]) -> float:
    """Messages of others per second and process."""
    return sum(float(r["received"]) / float(r["seconds"]) for r in results) / len(results)


def _cpu_s(result: dict[str, Any]) -> float:
    return float(result["user_s"]) + float(result["system_s"])


def cpu_us(results: list[dict[str, Any]]) -> float:
    """Processor time per message of others, over all processes."""
    return 1e6 * sum(_cpu_s(r) for r in results) / max(1, sum(int(r["received"]) for r in results))


def cores(results: list[dict[str, Any]]) -> float:
    """How many processors the group kept busy."""
    return sum(_cpu_s(r) / float(r["seconds"]) for r in results)


def tune(size: int, seconds: float, say: Say = silence) -> Load:
    """The candidate that delivers most in a short trial, apart from the rounds that are reported."""
    best, most = CANDIDATES[size][0], 0.0
    for load in CANDIDATES[size]:
        say(f"throughput {size} B: trying {load.burst} messages per {load.slot_ns / 1e6:g} ms")
        try:
            rate = per_process(ordered(load, seconds))
        except Stalled:
            continue
        if rate > most:
            best, most = load, rate
    return best


def rows(*, quick: bool = False, say: Say = silence) -> list[dict[str, Any]]:
    """Two rows per message size; raw and ordered alternate, and the ratio is the median of the rounds' ratios."""
    seconds, rounds = (1.5, 1) if quick else (4.0, 5)
    found = []
    for size in CANDIDATES:
        load = CANDIDATES[size][0] if quick else tune(size, seconds / 2, say)
        plain, ours, stalls = [], [], []
        for number in range(rounds):
            say(f"throughput {load.size} B: round {number + 1} of {rounds}, raw")
            before = raw(load.size, seconds)
            say(f"throughput {load.size} B: round {number + 1} of {rounds}, ordered")
            try:
                ours.append(ordered(load, seconds))
                plain.append(before)
            except Stalled as stall:
                stalls.append(str(stall))
        found.extend(_rows(load, plain, ours, stalls))
    return found


def _rows(
    load: Load, plain: list[list[dict[str, Any]]], ours: list[list[dict[str, Any]]], stalls: list[str]
) -> list[dict[str, Any]]:
    work = f"throughput {load.size} B"
    if not ours:
        return [{"system": "unisono", "work": work, "stalled": len(stalls), "why": stalls[0]}]
    ratios = [per_process(o) / per_process(p) for p, o in zip(plain, ours, strict=True)]
    both = []
    for system, runs in (("raw UDP", plain), ("unisono", ours)):
        row: dict[str, Any] = {
            "system": system,
            "work": work,
            "messages_per_s": round(median(map(per_process, runs))),
            "cpu_us_per_message": round(median(map(cpu_us, runs)), 3),
            "cores_busy": round(median(map(cores, runs)), 2),
            "page_faults_per_s": round(median(sum(r["page_faults"] / r["seconds"] for r in run) for run in runs)),
            "dropped": sum(r["dropped"] for run in runs for r in run),
        }
        if system == "unisono":
            cpu_ratios = [cpu_us(p) / cpu_us(o) for p, o in zip(plain, ours, strict=True)]
            row |= {
                "ratio": round(median(ratios), 2),
                "ratio_low": round(min(ratios), 2),
                "ratio_high": round(max(ratios), 2),
                "cpu_ratio": round(median(cpu_ratios), 2),
                "declared_per_s": load.most_per_s,
                "burst": load.burst,
                "slot_ms": load.slot_ns / 1e6,
                "delta_ms": load.delta_ns / 1e6,
                "stalled": len(stalls),
            }
            if stalls:
                row["why"] = stalls[0]
        both.append(row)
    return both
