"""(b) Delivery latency of real processes at 100 messages per second and member, against the bound.

Five member processes as `unisono demo` starts them; the recorded trace is checked. The bound is Δ+Γ+Θ with Δ as the
network's measured 99.99 % quantile plus the latest timer of any member, and Γ as measured in-band.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.progress import Say, silence
from unisono.cluster.report import ClusterReport, check_cluster_run
from unisono.cluster.supervisor import LocalCluster, ProcessReport, free_addresses
from unisono.model.text.scenario import parse_scenario
from unisono.model.units import NS_PER_S

MEMBERS = 5
RATE = 100.0
START_ALLOWANCE_S = 30.0
SOURCE = "benchmarks/latency.py"


def _scenario(slot_ms: int, seconds: float) -> str:
    # Poisson, so that messages fall on every part of a slot; declared above the average, so that few have to wait.
    return f"""
[group]
name = "latency"
members = {MEMBERS}
slot = "{slot_ms}ms"
delta = "50ms"
gamma = "5ms"

[rate]
avg = {1.25 * RATE}
burst = 16

[workload]
kind = "poisson"
rate = {RATE}
size = 100

[network]
delay = "constant:1ms"

[run]
seconds = {seconds}
"""


def measure(slot_ms: int, seconds: float) -> ClusterReport:
    """One run, with its checked report."""
    text = _scenario(slot_ms, seconds)
    scenario = parse_scenario(text, SOURCE)
    with tempfile.TemporaryDirectory(prefix="unisono-bench-") as folder:
        run = f"latency-{slot_ms}ms"
        peers = free_addresses(scenario.members)
        setup = {"scenario": text, "source": SOURCE, "trace": folder, "run": run, "peers": peers, "multicast": None}
        cluster = LocalCluster({m: {**setup, "member": m} for m in scenario.members}, lambda _member, _report: None)
        nodes = asyncio.run(cluster.run(scenario.run_ns / NS_PER_S + START_ALLOWANCE_S))
        finals: dict[int, ProcessReport] = {}
        for member, node in nodes.items():
            final = node.final_report()
            if final is None:
                raise RuntimeError(f"member {member} did not finish: {node.stderr_text.strip()[-300:]}")
            finals[member] = final
        return check_cluster_run(scenario, run, Path(folder), finals)


def rows(*, quick: bool = False, say: Say = silence) -> list[dict[str, Any]]:
    """One row per slot length and round."""
    seconds, rounds, slots = (3.0, 1, (5,)) if quick else (10.0, 3, (5, 20))
    found = []
    for slot_ms in slots:
        for number in range(rounds):
            say(f"latency: slot of {slot_ms} ms, round {number + 1} of {rounds}, {seconds:g} s")
            load = os.getloadavg()[0]
            report = measure(slot_ms, seconds)
            figures = report.to_json()
            found.append(
                {
                    "system": "unisono",
                    "work": f"latency, {MEMBERS} processes, {RATE:g} messages/s each, slot {slot_ms} ms",
                    "slot_ms": slot_ms,
                    "verdict": figures["verdict"],
                    "same_sequence": figures["same_sequence"],
                    "deliveries": sum(figures["delivered"].values()),
                    "late": figures["late_measured"],
                    **{f"{name}_ms": round(value, 3) for name, value in figures["latency_ms"].items()},
                    "bound_ms": round(figures["measured_bound_ms"], 3),
                    "delta_measured_ms": round(figures["delta_measured_ms"], 3),
                    "timer_lateness_ms": round(figures["timer_lateness_ms"], 3),
                    "gamma_measured_ms": round(figures["gamma_measured_ms"], 3),
                    "ratio": round(figures["latency_ms"]["max"] / figures["measured_bound_ms"], 3),
                    "load_before": round(load, 2),
                }
            )
    return found
