"""The longest silence that a crash causes: one of five members is killed (kill -9), again and again.

Every member sends a message per slot, so that a survivor that delivers nothing is one that waits. Theorem 5 has Δ+2Γ+Θ
with Δ and Γ as declared, since the others wait that long for a crashed member; the lateness of timers comes on top.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.progress import Say, silence
from unisono.cluster.report import check_cluster_run, record_crashes
from unisono.cluster.scenario_limits import member_schedules
from unisono.cluster.supervisor import LocalCluster, free_addresses
from unisono.model.text.scenario import parse_scenario

MEMBERS = 5
SECONDS = 2.0
KILL_S = 1.0
START_ALLOWANCE_S = 40.0
SOURCE = "benchmarks/kill.py"
BEFORE_NS, AFTER_NS = 200_000_000, 700_000_000
"""The part of the run around the kill that is evaluated."""


def _scenario(killed: int) -> str:
    return f"""
[group]
name = "kill"
members = {MEMBERS}
failures = true
slot = "5ms"
delta = "20ms"
gamma = "2ms"

[rate]
avg = 250
burst = 8

[workload]
kind = "cbr"
rate = 200
size = 100

[[fault]]
kind = "crash"
member = {killed}
at = "{KILL_S}s"

[run]
seconds = {SECONDS}
"""


def measure(killed: int) -> dict[str, Any]:
    """One run: the longest silence around the kill at any survivor, and its bound."""
    text = _scenario(killed)
    scenario = parse_scenario(text, SOURCE)
    with tempfile.TemporaryDirectory(prefix="unisono-bench-") as folder:
        run, peers = f"kill-{killed}", free_addresses(scenario.members)
        setup = {"scenario": text, "source": SOURCE, "trace": folder, "run": run, "peers": peers, "multicast": None}
        configurations = {
            member: {**setup, "member": member, "expected": list(scenario.members)} for member in scenario.members
        }
        cluster = LocalCluster(configurations, lambda _member, _report: None, schedules=member_schedules(scenario))
        nodes = asyncio.run(cluster.run(SECONDS + START_ALLOWANCE_S))
        finals = {member: final for member, node in nodes.items() if (final := node.final_report()) is not None}
        record_crashes(scenario, run, Path(folder), cluster.killed)
        report = check_cluster_run(scenario, run, Path(folder), finals, cluster.killed)
    at_ns = cluster.killed[0].killed_ns or 0
    timing, rows = scenario.timing, report.trace.deliveries()
    gaps = []
    for member in finals:
        times = np.unique(rows.real_ns[rows.member == member])
        times = times[(times > at_ns - BEFORE_NS) & (times < at_ns + AFTER_NS)]
        gaps.append(int(np.diff(times).max()))
    declared = timing.delta_ns + 2 * timing.gamma_ns + timing.theta_ns
    return {
        "killed": killed,
        "gap_ms": max(gaps) / 1e6,
        "theorem_5_ms": declared / 1e6,
        "timer_lateness_ms": report.measured.lateness_ns / 1e6,
        "bound_ms": (declared + report.measured.lateness_ns) / 1e6,
        "verdict": report.verdict.value,
        "survivors": len(finals),
    }


def rows(*, quick: bool = False, say: Say = silence) -> list[dict[str, Any]]:
    """One row per kill, then the median and the largest."""
    found = []
    for number in range(2 if quick else 12):
        say(f"kill: {number + 1} of {2 if quick else 12}")
        load = os.getloadavg()[0]
        row = measure(number % MEMBERS + 1)
        within = row["gap_ms"] <= row["bound_ms"]
        found.append({"run": number + 1, **row, "within": "yes" if within else "no", "load_before": round(load, 2)})
    names = ("gap_ms", "theorem_5_ms", "timer_lateness_ms", "bound_ms")
    summary = [
        {"run": word, **{name: of(row[name] for row in found) for name in names}}
        for word, of in (("median", median), ("largest", max))
    ]
    summary[1]["within"] = f"{sum(row['within'] == 'yes' for row in found)} of {len(found)}"
    summary[1]["verdict"] = "valid" if all(row["verdict"] == "valid" for row in found) else "violated"
    return [{n: round(v, 2) if isinstance(v, float) else v for n, v in row.items()} for row in (*found, *summary)]
