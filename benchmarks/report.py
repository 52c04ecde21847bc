"""The figures as text: tables for the terminal, and docs/benchmarks.md."""

from __future__ import annotations

import datetime
import os
import platform
from pathlib import Path
from typing import Any

import simpy

from benchmarks import group_size, latency, simulator, throughput

DOCUMENT = Path(__file__).parent.parent / "docs" / "benchmarks.md"

Row = dict[str, Any]

COLUMNS: dict[str, dict[str, str]] = {
    "throughput": {
        "system": "system",
        "work": "work",
        "messages_per_s": "messages/s per member",
        "ratio": "ratio to raw",
        "ratio_low": "lowest",
        "ratio_high": "highest",
        "cpu_us_per_message": "CPU µs per message",
        "cpu_ratio": "ratio by CPU",
        "cores_busy": "cores busy",
        "page_faults_per_s": "page faults/s",
        "dropped": "datagrams dropped",
        "declared_per_s": "declared",
        "burst": "burst",
        "slot_ms": "slot ms",
        "stalled": "rounds stalled",
        "why": "why",
    },
    "latency": {
        "slot_ms": "slot ms",
        "deliveries": "deliveries",
        "p50_ms": "p50 ms",
        "p99_ms": "p99 ms",
        "p999_ms": "p99.9 ms",
        "max_ms": "max ms",
        "bound_ms": "bound ms",
        "late": "late",
        "delta_measured_ms": "network 99.99 % ms",
        "timer_lateness_ms": "timer lateness ms",
        "gamma_measured_ms": "Γ ms",
        "verdict": "order",
        "load_before": "load before",
    },
    "simulator": {
        "system": "system",
        "events": "events",
        "events_per_s": "events/s",
        "ratio": "unisono's bare loop is faster by",
        "ratio_low": "lowest",
        "ratio_high": "highest",
    },
    "group_size": {
        "members": "members",
        "messages_per_slot": "messages per slot",
        "max_frame": "largest frame B",
        "frames_per_slot_sender": "frames per slot",
        "order_calls_per_slot_sender": "ordering calls per slot and sender",
        "order_us_per_slot_sender": "ordering µs per slot and sender",
        "order_ns_per_delivery": "ordering ns per message",
        "pack_ns_per_message": "packing ns per message sent",
        "slice_ns_per_delivery": "slicing ns per message",
        "cpu_us_per_delivery": "all CPU µs per delivery",
    },
    "hot_spots": {
        "work": "work",
        "where": "where",
        "calls": "calls",
        "own_ms": "own ms",
        "with_callees_ms": "with callees ms",
        "share": "share of own time",
    },
}

TITLES = {
    "throughput": "(a) Throughput",
    "latency": "(b) Latency against the bound",
    "simulator": "(c) The simulator's event rate",
    "group_size": "(d) Cost against group size and messages per slot",
    "hot_spots": "Where a member of (a) spends its time",
}

METHODS = {
    "throughput": f"""\
{len(throughput.MEMBERS)} processes on this machine over loopback UDP, all sending as fast as they may, with the \
batch API; datagrams of {throughput.FRAME_BYTES:,} bytes. A message counts when it has been sliced out at a \
receiver; a member's own messages do not count. *raw UDP* is a loop around `recv` and `sendto` with the same packed \
datagrams through the same encoder and door, without order, flow control or event loop; what it loses is not \
counted. Raw and ordered alternate; the ratio is the median of the rounds' ratios. *Ratio by CPU* compares \
processor time per message and is the steadier of the two on a machine that others use. For the order nothing may \
be lost, so what can be under way (window × peers × burst) is kept within the receive buffer; of a few such \
declarations the one that delivers most in a short trial is measured. *Declared* is what its bursts would allow.""",
    "latency": f"""\
{latency.MEMBERS} processes, each sending {latency.RATE:g} messages/s (Poisson, 100 B). From handing in to \
delivery, out of the recorded trace. The bound is Δ+Γ+Θ: Δ is the measured 99.99 % quantile of the network's delay \
(of end-of-slot marks, the frames that deliveries wait for; at this rate every frame is one) \
plus the latest that any timer of any member fired, Γ is as measured in-band, Θ is the slot. The target is that \
nothing is late on a machine that does nothing else.""",
    "simulator": f"""\
{len(simulator.MEMBERS)} members; each sends a datagram to all others at each slot's end, which arrives after a \
random delay. SimPy {simpy.__version__} runs the very same events (times and counts are compared by checksum) in \
three ways: *callbacks*, the leanest that SimPy can do, without a member around the handler; *members*, where each \
arrival does what the simulator's member does (read a clock, ask for datagrams, events, the next alarm); \
*processes*, the way of SimPy's manual (a process per datagram in flight, a Store per member). Events are timers \
and arrivals; processor time; the ways alternate, medians. The full VBR stack is there for scale: it does far more \
per event.""",
    "group_size": f"""\
In the simulator, messages of {group_size.MESSAGE_BYTES} B, one batch per slot and member. *Ordering* is all that \
the stack does for arrivals and timers, without packing (submit, encode) and slicing. *Ordering calls* counts calls \
of Python and C functions in the order, layers, door and stack: it is exact and the same on every machine. Where a \
slot fits one frame ({group_size.ONE_FRAME:,} B) it does not change with the number of messages per slot, so per \
message it falls; with frames of {group_size.ETHERNET:,} B it grows with the frames, not with the messages. Times \
are the lowest of three runs.""",
    "hot_spots": """\
cProfile within one member of (a). Profiling itself slows Python functions down, so shares are a guide, not a \
measurement.""",
}


def machine_facts() -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cores": os.cpu_count(),
        "processor": _processor(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "kernel": f"{platform.system()} {platform.release()}",
        "load_before": round(os.getloadavg()[0], 2),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _grid(name: str, rows: list[Row]) -> list[list[str]]:
    columns = {key: title for key, title in COLUMNS[name].items() if any(key in row for row in rows)}
    return [list(columns.values()), *([_text(row.get(key)) for key in columns] for row in rows)]


def tables(results: dict[str, list[Row]]) -> str:
    """Aligned columns for a terminal."""
    parts = []
    for name, rows in results.items():
        grid = _grid(name, rows)
        widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
        parts.append(TITLES[name] + "\n")
        parts.extend(
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n"
            for line in grid
        )
        parts.append("\n")
    return "".join(parts)


def document(facts: dict[str, Any], results: dict[str, list[Row]]) -> str:
    """docs/benchmarks.md."""
    parts = [
        "# Benchmarks\n\n",
        "Figures are ratios measured in one run, the reference beside unisono. Made by\n\n",
        "```sh\nmake bench                                  # prints them\n",
        ".venv/bin/python -m benchmarks --write      # writes this page\n```\n\n",
        f"on {facts['date']}: {facts['cores']} cores ({facts['processor']}), {facts['kernel']}, {facts['python']}; ",
        f"load average before the run {facts['load_before']}.\n\n",
        _noise(facts),
    ]
    for name, rows in results.items():
        grid = _grid(name, rows)
        parts.append(f"## {TITLES[name]}\n\n{METHODS[name]}\n\n")
        parts.append("| " + " | ".join(grid[0]) + " |\n|" + "---|" * len(grid[0]) + "\n")
        parts.extend("| " + " | ".join(line) + " |\n" for line in grid[1:])
        parts.append("\n")
    return "".join(parts).rstrip() + "\n"


def _noise(facts: dict[str, Any]) -> str:
    note = (
        "More member processes than cores share this machine, and a group waits for its slowest member: throughput and "
        "latency suffer from anything else that runs. Absolute figures change from machine to machine and from run to "
        "run; the lowest and highest ratio of the rounds show by how much.\n\n"
    )
    if facts["load_before"] > 0.5:
        note += "**The machine was not idle when this run began: read (a) and (b) as lower limits.**\n\n"
    return note
