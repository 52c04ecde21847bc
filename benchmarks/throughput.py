"""(a) Delivered messages per second and member, against plain UDP with the same packed datagrams, in one run.

Four processes, all sending. Both sides count only messages from the other three, each sliced out.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

from unisono.cluster.local import free_addresses

MEMBERS = (1, 2, 3, 4)
SECONDS = 4
FRAME_BYTES = 60_000


def _processes(module: str, setups: list[dict[str, Any]]) -> list[subprocess.Popen[str]]:
    processes = []
    for setup in setups:
        process = subprocess.Popen(
            [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(setup) + "\n")
        process.stdin.flush()
        processes.append(process)
    return processes


def _setups(size: int, seconds: float, **more: Any) -> list[dict[str, Any]]:
    peers = free_addresses(MEMBERS)
    return [
        {"member": m, "peers": peers, "size": size, "seconds": seconds, "max_frame": FRAME_BYTES, **more}
        for m in MEMBERS
    ]


def _results(processes: list[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    results = [json.loads(process.communicate(timeout=120)[0].splitlines()[-1]) for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError("a benchmark process failed")
    return results


def raw(size: int, seconds: float) -> float:
    """Messages received per second and process, without ordering."""
    processes = _processes("benchmarks.raw", _setups(size, seconds))
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    start = time.time() + 0.2
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(f"{start}\n")
        process.stdin.flush()
    results = _results(processes)
    return _per_process(results)


def _per_process(results: list[dict[str, Any]]) -> float:
    return sum(float(r["received"]) / float(r["seconds"]) for r in results) / len(results)


def ordered(size: int, seconds: float, slot_ns: int, burst: int, delta_ns: int = 10_000_000) -> tuple[float, list[dict[str, Any]]]:
    """Messages of others delivered per second and member, in one order."""
    results = _results(_processes("benchmarks.ordered", _setups(size, seconds, slot_ns=slot_ns, burst=burst, delta_ns=delta_ns)))
    return _per_process(results), results


def rows(seconds: float = SECONDS, rounds: int = 3) -> list[dict[str, Any]]:
    """One row per message size; raw and ordered alternate, and the ratio is of their sums."""
    found = []
    for size, burst in ((100, 10_000), (1000, 1_000)):
        pairs = [(raw(size, seconds), ordered(size, seconds, 10_000_000, burst)[0]) for _ in range(rounds)]
        plain, ours = sum(p for p, _ in pairs) / rounds, sum(o for _, o in pairs) / rounds
        found.append(
            {
                "work": f"throughput {size} B",
                "raw_per_s": round(plain),
                "unisono_per_s": round(ours),
                "ratio": round(ours / plain, 2),
                "ratios": [round(o / p, 2) for p, o in pairs],
            }
        )
    return found


if __name__ == "__main__":
    for row in rows():
        sys.stdout.write(json.dumps(row) + "\n")
