"""The figures as text: tables for the terminal, and docs/benchmarks.md."""

from __future__ import annotations

import datetime
import os
import platform
import re
from pathlib import Path
from typing import Any

import simpy

from benchmarks import (
    coders,
    consensus,
    group_size,
    kill,
    latency,
    measurement,
    priority,
    quasi_genuine,
    rmcast,
    simulator,
    single,
    sweep,
    throughput,
    verify,
    views,
)

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
    "single": {
        "system": "system",
        "api": "API",
        "messages_per_s": "messages/s per member",
        "ratio": "ratio to raw",
        "target": "target",
        "peer_ratio": "ratio to PySyncObj",
        "peer_target": "target of that",
        "cpu_us_per_message": "CPU µs per message",
        "cpu_ratio": "ratio by CPU",
        "peak_mb": "most memory, MB",
        "peak_target_mb": "at most, MB",
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
    "failures": {
        "system": "system",
        "work": "work",
        "messages_per_s": "messages/s per member",
        "ratio": "ratio to no failures",
        "ratio_low": "lowest",
        "ratio_high": "highest",
        "target": "target",
        "cpu_us_per_message": "CPU µs per message",
        "cpu_ratio": "ratio by CPU",
        "cores_busy": "cores busy",
        "burst": "burst",
        "slot_ms": "slot ms",
        "delta_ms": "Δ ms",
        "given_up": "given up",
        "stalled": "rounds stalled",
        "why": "why",
    },
    "kill": {
        "run": "run",
        "killed": "killed",
        "gap_ms": "longest silence ms",
        "theorem_5_ms": "Δ+2Γ+Θ ms",
        "timer_lateness_ms": "timer lateness ms",
        "bound_ms": "both ms",
        "within": "within",
        "verdict": "order",
        "load_before": "load before",
    },
    "fec": {
        "work": "a/b, frame",
        "code": "code",
        "decode": "decode",
        "send": "send",
        "receive": "receive",
        "lossy": "receive with loss",
        "target": "target of code",
    },
    "coders": {
        "work": "block",
        "zfec_us": "zfec µs",
        "built_in_us": "built-in µs",
        "ratio": "built-in to zfec",
        "ratio_low": "lowest",
        "ratio_high": "highest",
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
    "monitoring": {
        "frame_bytes": "largest frame B",
        "messages_per_s_off": "messages/s without",
        "messages_per_s_on": "messages/s with",
        "throughput_lost": "share lost",
        "throughput_lost_low": "from",
        "throughput_lost_high": "to",
        "cpu_us_off": "CPU µs per message without",
        "cpu_us_on": "with",
        "cpu_added": "CPU added",
        "cpu_added_low": "from ",
        "cpu_added_high": "to ",
        "cpu_us_per_datagram": "CPU µs per datagram without",
        "phases": "phases",
        "stalled": "rounds stalled",
    },
    "measurement": {
        "work": "work",
        "engine": "engine",
        "trigger_ms": "trigger ms",
        "verdicts": "verdicts",
        "p50_ms": "p50 ms",
        "p10_ms": "p10 ms",
        "p90_ms": "p90 ms",
        "max_ms": "max ms",
        "target_ms": "target ms",
        "offered_per_s": "rows/s offered",
        "events_per_s": "rows/s taken",
        "lag_p50_ms": "lag p50 ms",
        "lag_max_ms": "lag max ms",
        "caught_up_ms": "behind at the end ms",
        "driver_cores": "driver cores",
    },
    "rmcast": {
        "rho": "ρ",
        "eta_ms": "η ms",
        "omega_ms": "ω ms",
        "loss": "lost",
        "multicasts": "multicasts",
        "within_ms": "D ms",
        "negotiated": "negotiated within D",
        "measured": "measured within D",
        "offered_ms": "offered D ms",
        "measured_offered": "measured within that",
        "measured_ever": "measured at all",
        "measured_ever_low": "from",
        "measured_ever_high": "to",
        "reached_ms": "that share took ms",
        "missed": "missed by a member",
        "once": "each once",
        "load_before": "load before",
    },
    "hot_spots": {
        "work": "work",
        "where": "where",
        "calls": "calls",
        "own_ms": "own ms",
        "with_callees_ms": "with callees ms",
        "share": "share of own time",
    },
    "consensus": {
        "fsync": "fsync",
        "batches_per_s": "batches decided/s",
        "messages_per_s": "messages/s",
        "batches_per_cpu_s": "batches per CPU second, all members",
        "leader_us": "CPU µs per batch, leader",
        "follower_us": "CPU µs per batch, follower",
        "cpu": "cores busy",
        "syncs_per_s": "fsyncs/s, leader",
        "leaders": "leaders",
    },
    "priority": {
        "order": "form",
        "members": "members",
        "bytes": "bytes",
        "unprioritised_ms": "without priorities, ms",
        "urgent_ms": "urgent, ms",
        "ratio": "ratio",
        "cpu_ratio": "ratio by CPU",
        "consensus_ms": "agreed log, ms",
        "paper_ms": "paper, ms (Figure 5)",
    },
    "views": {
        "run": "run",
        "killed": "killed",
        "detection_ms": "failure detection, ms",
        "in_view_ms": "last survivor in the new view, ms",
        "detection_times": "in detection times",
        "gap_ms": "longest gap, ms",
        "load_before": "load before",
    },
    "verify": {
        "engine": "engine",
        "deliveries": "deliveries",
        "seconds": "seconds",
        "ratio": "ratio to DuckDB",
        "cpu_s": "CPU seconds",
        "cpu_ratio": "ratio by CPU",
        "peak_mb": "most memory, MB",
        "planted": "planted violations found",
    },
    "sweep": {
        "system": "system",
        "points": "points",
        "runs": "runs each",
        "seconds": "seconds",
        "cpu_s": "CPU seconds",
        "cores_busy": "cores busy",
        "speedup": "times as fast",
        "overhead": "CPU added",
        "overhead_range": "least to most",
        "beside_plain": "beside plain processes",
    },
    "groups": {
        "system": "system",
        "uncontended_p50": "uncontended, median",
        "uncontended_max": "uncontended, largest",
        "contended_p50": "contended, median",
        "contended_max": "contended, largest",
    },
    "quasi_genuine": {
        "offered_per_s": "multicasts offered/s",
        "delivered_per_s": "delivered/s by every member",
        "cpu": "cores busy",
    },
}

TITLES = {
    "throughput": "(a) Throughput",
    "single": "The ordinary API, and memory",
    "latency": "(b) Latency against the bound",
    "failures": "Throughput with failures allowed",
    "kill": "A member is killed",
    "fec": "Forward error correction, MB/s of one core",
    "coders": "The built-in erasure coder and zfec",
    "simulator": "(c) The simulator's event rate",
    "group_size": "(d) Cost against group size and messages per slot",
    "monitoring": "(e) What metric collectors cost",
    "measurement": "The measurement stream",
    "rmcast": "(f) Reliable multicast with datagrams lost on purpose",
    "hot_spots": "Where a member of (a) spends its time",
    "consensus": "(g) Consensus",
    "priority": "(h) An urgent message into the queues of all members",
    "views": "(i) The next view after a kill",
    "verify": "(j) Verification of recorded runs",
    "sweep": "(k) Experiments on Spark",
    "groups": "(l) Multicast between groups, in message delays",
    "quasi_genuine": "(m) Multicast between groups, throughput",
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
    "single": f"""\
The processes of (a), messages of {single.SIZE} B. With the *single* API each message is sent by `await group.send(m)` \
and received by `async for event in group`; with the *batch* API by `send_many` and `batches`. *raw UDP* is that of \
(a): it slices each message out in Python. All take turns; ratios are those of the medians. PySyncObj, a replicated \
log by Raft in Python, takes its turn if it is installed. *Most memory* is the largest resident size of any process.""",
    "latency": f"""\
{latency.MEMBERS} processes, each sending {latency.RATE:g} messages/s (Poisson, 100 B). From handing in to \
delivery, out of the recorded trace. The bound is Δ+Γ+Θ: Δ is the measured 99.99 % quantile of the network's delay \
(of end-of-slot marks, the frames that deliveries wait for; at this rate every frame is one) \
plus the latest that any timer of any member fired, Γ is as measured in-band, Θ is the slot. The target is that \
nothing is late on a machine that does nothing else.""",
    "failures": """\
The order of (a) with `failures` against the one without, both declaring the same, by turns; no failures. Δ is longer \
than in (a), so that a member that waits for a processor is not given up for dead (*given up* counts how often one \
was). The ratio is the median of the rounds' ratios.""",
    "kill": f"""\
{kill.MEMBERS} processes, each sending a message per slot; one is killed with SIGKILL. The longest time between two \
deliveries at any survivor, from {kill.BEFORE_NS / 1e6:g} ms before the kill to {kill.AFTER_NS / 1e6:g} ms after it, \
out of the recorded trace, against Δ+2Γ+Θ as declared (Theorem 5) plus the latest that any timer of a survivor \
fired.""",
    "fec": """\
In MB of originals per second of one core's time; each figure is the best of three stretches. *Code* and *decode* are \
the erasure code alone (zfec if it is installed), *send* and *receive* all that a frame meets in the layer: \
encoding, cutting blocks, headers and coding down, the door, bookkeeping and reconstruction up; *with loss*, the first \
a shares of every block are lost, which is the most work.""",
    "coders": f"""\
Microseconds of one core's time per block of k+a shares of {coders.SHARE_BYTES:,} B, k originals and a redundant. \
*Encode* computes the a redundant shares, *decode* restores a lost originals, the most work. Both coders compute the \
same bytes. The built-in coder has met the pattern of lost shares before and kept its factors; zfec computes them each \
time. The coders take turns; times and ratios are medians of the rounds.""",
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
    "monitoring": """\
The group of (a) with messages of 100 B. While it runs, all members turn their collectors on and off together, four \
times a second; each phase with them is compared with the phases before and after it. The shares are medians, each \
with its 95 % interval. *CPU added* compares processor time per message and is the steadier of the two on a machine \
that others use. Frames of an Ethernet's size are the hard case: collecting is work per datagram. The target is 3 %.""",
    "measurement": f"""\
*Latency*: from the write of the rows that end a window until the verdict on it is delivered at a member process, \
through the stream, the service's seat and the group's total order; each window is a verdict. *Throughput*: what a \
group of {measurement.CROWD} members collects, 20,000 rows/s offered; *lag* is how old the newest row was when it was \
evaluated, *driver cores* what the evaluating process used. *No spark* is the same job in one thread.""",
    "rmcast": f"""\
{rmcast.MEMBERS} processes, each multicasting {rmcast.RATE:g} messages/s without a total order; {rmcast.LOSS:.0%} of \
all datagrams that arrive are thrown away on purpose. What one datagram takes and how late timers fire is measured \
first, without loss; from that and the loss negotiation says whether a share of {rmcast.SHARE:g} can be with everyone \
within {rmcast.DEADLINE_NS / 1e6:g} ms (*D*), and chooses ρ, η and ω. Delays are negotiated about as dependent: a \
host that stalls keeps all copies back at once. *Offered D* is the shortest within which that share was promised: it \
holds while the machine stalls no longer than when delays were measured. *At all* is what loss does; its 95 % interval \
is beside it. *That share took* is the D that would have held.""",
    "consensus": f"""\
{len(consensus.MEMBERS)} processes on this machine over loopback UDP, each handing in batches of \
{consensus.BATCH} messages of {consensus.SIZE} B as fast as they are taken; a batch counts when it is decided. \
*fsync* is the storage's policy; \"no storage\" keeps nothing. Of three runs the best.""",
    "priority": f"""\
All members in one process over loopback, medians of {priority.ROUNDS} rounds. From sending until the message is in \
the queues of all members, {priority.QUEUED} messages of low priority being there already. *Without priorities*: it is \
of low priority too, and goes behind them. *Urgent*: it locks them and overtakes them. The target is a ratio below \
1.25. *Agreed log*: \
the same message in the order consensus, until everyone has delivered it. The paper's figure is for six machines on an \
Ethernet of 1995, "less than 6 ms".""",
    "views": f"""\
{len(views.MEMBERS)} processes on this machine over loopback UDP in the priority order; one is killed with SIGKILL, \
comes back under its number, then the next. *Failure detection* is the longest silence after which a survivor would \
have suspected the dead, as its detector had measured it by then. From the kill until the last survivor is in a view \
without the dead; the target is three detection times. *Gap*: how long the change kept a survivor from handing out \
messages.""",
    "sweep": f"""\
`{sweep.EXPERIMENT}`, {sweep.RUNS:,} multicasts for each point: in one process, in as many plain processes as there \
are cores, and on Spark, all started and with their imports done; medians of {sweep.TIMES}, by turns. *Times as fast* \
is beside one process. *CPU added* is what Spark's JVM, its workers and the way there and back use beyond the \
simulator's runs in the same sweep, as a share of those: the target is 5 %. *Beside plain processes* compares the CPU \
seconds of both instead, and scatters with them. The tables are the same.""",
    "verify": f"""\
A recorded run of {verify.MEMBERS} members, {verify.BURST} messages per slot and member, {verify.RANGE_SLOTS:,} \
slots per file; each engine reads the same files in a process of its own, on all cores: order, integrity, FIFO, gap \
freedom and the latency bound. *spark* is `unisono verify`; its session is there and one empty task has run, which \
is not counted. DuckDB and polars answer the same by one aggregation to keys, one join with the sends and windows \
over the keys (benchmarks/verify_engines.py). Each violation is planted in a run of its own first, and has to be \
found by all three. *Ratio by CPU* is the steadier of the two on a machine that others use. Memory is of all \
processes of an engine, shared pages counted once; Spark's is mostly its JVM's.""",
    "groups": """\
Two groups of three in the simulator, all delays the same δ, clocks perfect; from sending to delivery, at every \
member. Uncontended: one multicast to both groups at a time. Contended: every member sends 80 messages a second to \
either group or both. The others' figures are those that their authors publish.""",
    "quasi_genuine": f"""\
Nine processes on this machine over loopback UDP in three groups; one member of each group sends messages of \
{quasi_genuine.SIZE} B to all three groups, {quasi_genuine.BATCH} at a time. The slowest member counts.""",
    "hot_spots": """\
cProfile within one member of (a). Profiling itself slows Python functions down, so shares are a guide, not a \
measurement.""",
}


def machine_facts() -> dict[str, Any]:
    """The machine and versions that the figures depend on."""
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
    parts.extend(_section(name, rows) for name, rows in results.items())
    return "".join(parts).rstrip() + "\n"


def _section(name: str, rows: list[Row], note: str = "") -> str:
    grid = _grid(name, rows)
    lines = ["| " + " | ".join(grid[0]) + " |", "|" + "---|" * len(grid[0])]
    lines += ["| " + " | ".join(line) + " |" for line in grid[1:]]
    return f"## {TITLES[name]}\n\n{METHODS[name]}{note}\n\n" + "\n".join(lines) + "\n\n"


def revised(page: str, facts: dict[str, Any], results: dict[str, list[Row]]) -> str:
    """The page with some sections replaced by new measurements, each with its own date."""
    head, *sections = re.split(r"^(?=## )", page, flags=re.MULTILINE)
    titles = {title: name for name, title in TITLES.items()}
    known = {titles.get(section.splitlines()[0].removeprefix("## "), section): section for section in sections}
    note = f" Measured on {facts['date']}, load average before {facts['load_before']}."
    known |= {name: _section(name, rows, note) for name, rows in results.items()}
    order = [*(name for name in TITLES if name in known), *(name for name in known if name not in TITLES)]
    return head + "".join(known[name].rstrip() + "\n\n" for name in order).rstrip() + "\n"


def _noise(facts: dict[str, Any]) -> str:
    note = (
        "More member processes than cores share this machine, and a group waits for its slowest member: throughput and "
        "latency suffer from anything else that runs. Absolute figures change from machine to machine and from run to "
        "run; the lowest and highest ratio of the rounds show by how much.\n\n"
    )
    if facts["load_before"] > 0.5:
        note += "**The machine was not idle when this run began: read (a) and (b) as lower limits.**\n\n"
    return note
