"""(f) Reliable multicast over real sockets that lose datagrams: the reliability measured against the one negotiated.

Five member processes on this machine. A first run without loss measures what one datagram takes and how late timers
fire; with that and the loss to come, negotiation answers whether a share of all multicasts can reach all members within
a deadline, with which ρ, η and ω, and how much sooner than required. A second run loses 5 % of all datagrams
on purpose, and counts the multicasts that every other member had within the deadline, within what was offered, and at
all.

r_D assumes that copy i leaves at iη. On a host, a copy leaves when its timer fires, so how late that is counts as part
of the delay. And a host stalls: all copies and all members wait at once. So delays are negotiated about as dependent,
which is a bound however they depend on each other; for independent ones r_D promises a D that a stall breaks.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.progress import Say, silence
from unisono.check.columns import message_codes
from unisono.cluster.report import ClusterReport, check_cluster_run
from unisono.cluster.supervisor import LocalCluster, ProcessReport, free_addresses
from unisono.model.delays import EmpiricalDelay, Histogram, bucket_middle
from unisono.model.policy import Redundancy
from unisono.model.text.scenario import parse_scenario
from unisono.qos.plan.negotiation import Agreement, Environment, Requirement, Target, negotiate
from unisono.qos.plan.rmcast_model import NetworkModel
from unisono.trace.schema import EventKind
from unisono.trace.table import Trace

MEMBERS = 5
LOSS = 0.05
SHARE = 0.999
DEADLINE_NS = 250_000_000
RATE = 200.0
MULTICASTS = 100_000
COPIES_LIKELY = 2
START_ALLOWANCE_S = 60.0
CALIBRATION_S = 30.0
SOURCE = "benchmarks/rmcast.py"


def _scenario(redundancy: Redundancy, delta_ns: int, loss: float, seconds: float) -> str:
    fault = f'[[fault]]\nkind = "loss"\nprobability = {loss}\n' if loss else ""
    return f"""
[group]
name = "rmcast"
order = "reliable"
members = {MEMBERS}
slot = "5ms"
delta = "{delta_ns}ns"
gamma = "5ms"

[reliable]
rho = {redundancy.rho}
eta = "{redundancy.eta_ns}ns"
omega = "{redundancy.omega_ns}ns"
adaptive = "{redundancy.adaptive}"

[rate]
avg = {1.5 * RATE}
burst = 16

[workload]
kind = "poisson"
rate = {RATE}
size = 100

[network]
delay = "constant:1ms"

[run]
seconds = {seconds}

{fault}"""


def measure(
    redundancy: Redundancy, delta_ns: int, loss: float, seconds: float
) -> tuple[ClusterReport, dict[int, ProcessReport]]:
    """One run, with its checked report."""
    text = _scenario(redundancy, delta_ns, loss, seconds)
    scenario = parse_scenario(text, SOURCE)
    with tempfile.TemporaryDirectory(prefix="unisono-bench-") as folder:
        peers = free_addresses(scenario.members)
        setup = {
            "scenario": text,
            "source": SOURCE,
            "trace": folder,
            "run": "rmcast",
            "peers": peers,
            "multicast": None,
        }
        cluster = LocalCluster({m: {**setup, "member": m} for m in scenario.members}, lambda _member, _report: None)
        nodes = asyncio.run(cluster.run(seconds + START_ALLOWANCE_S))
        finals: dict[int, ProcessReport] = {}
        for member, node in nodes.items():
            final = node.final_report()
            if final is None:
                raise RuntimeError(f"member {member} did not finish: {node.stderr_text.strip()[-300:]}")
            finals[member] = final
        return check_cluster_run(scenario, "rmcast", Path(folder), finals), finals


@dataclass(frozen=True, slots=True)
class Reached:
    """Of all multicasts, how many reached all other members within a time, and how many at all."""

    total: int
    in_time: int
    whenever: int
    time_ns: int | None
    """The time within which the required share arrived; None if fewer arrived at all."""


def reached(trace: Trace, within_ns: int) -> Reached:
    """Count.

    Only multicasts with at least twice the time before the first member left count: a departed member receives nothing.
    """
    sends, deliveries = trace.sends(), trace.deliveries()
    ends = trace.of_kind(EventKind.LEAVE).real_ns
    sends = sends.select(sends.real_ns + 2 * within_ns <= int(ends.min(initial=2**62)))
    sent, delivered = message_codes(sends, deliveries)
    order = np.argsort(sent, kind="stable")
    elsewhere = deliveries.member != deliveries.sender
    elsewhere &= np.isin(delivered, sent)
    at = order[np.searchsorted(sent[order], delivered[elsewhere])]
    taken = deliveries.real_ns[elsewhere] - sends.real_ns[at]
    receivers = np.bincount(at, minlength=len(sends))
    in_time = np.bincount(at[taken <= within_ns], minlength=len(sends))
    slowest = np.zeros(len(sends), dtype=np.int64)
    np.maximum.at(slowest, at, taken)
    everyone = MEMBERS - 1
    whole = np.sort(slowest[receivers == everyone])
    rank = int(np.ceil(SHARE * len(sends))) - 1
    time_ns = int(whole[rank]) if 0 <= rank < len(whole) else None
    return Reached(len(sends), int((in_time == everyone).sum()), len(whole), time_ns)


def delay_now(seconds: float) -> EmpiricalDelay:
    """What a copy takes on this machine with as many datagrams under way as later, none lost on purpose.

    From when it is due: the datagram's delay and the timer's lateness, taken for independent.
    """
    _, finals = measure(Redundancy.of_ns(COPIES_LIKELY, 50_000_000, 50_000_000), 500_000_000, 0.0, seconds)
    delays, lateness, both = Histogram(), Histogram(), Histogram()
    for final in finals.values():
        delays.merge(Histogram.of_pairs([(b, n) for b, n in final["delays"]], final["delay_max_ns"]))
        lateness.merge(Histogram.of_pairs([(b, n) for b, n in final["lateness"]], final["lateness_max_ns"]))
    for late, times in lateness.to_pairs() or [(0, 1)]:
        for delay, count in delays.to_pairs():
            both.add(bucket_middle(late) + bucket_middle(delay), times * count)
    return EmpiricalDelay.of_histogram(both)


def share_between(good: int, total: int) -> tuple[float, float]:
    """Wilson's interval for a share, with a probability of 95 %."""
    z, share = 1.96, good / total
    centre, scale = share + z * z / (2 * total), 1 + z * z / total
    reach = z * (share * (1 - share) / total + z * z / (4 * total * total)) ** 0.5
    return (centre - reach) / scale, (centre + reach) / scale


def rows(*, quick: bool = False, say: Say = silence) -> list[dict[str, Any]]:
    """One row."""
    multicasts = MULTICASTS // 20 if quick else MULTICASTS
    load = os.getloadavg()[0]
    say("rmcast: what one datagram takes")
    below = Environment(MEMBERS, NetworkModel(delay_now(3.0 if quick else CALIBRATION_S), LOSS, delays_dependent=True))
    say(f"rmcast: {below.network.text()}")
    agreed = negotiate(Requirement(Target(SHARE, DEADLINE_NS)), below)
    if not isinstance(agreed, Agreement) or agreed.rmcast_guarantee.latency is None:
        raise RuntimeError(f"nothing was agreed: {agreed}")
    redundancy, offered_ns = agreed.redundancy, agreed.rmcast_guarantee.latency.within_ns
    if offered_ns is None:
        raise RuntimeError("no time was offered")
    seconds = multicasts / (MEMBERS * RATE)
    say(f"rmcast: {redundancy.text()}, {multicasts:,} multicasts, {seconds:g} s")
    report, finals = measure(redundancy, DEADLINE_NS, LOSS, seconds)
    found = reached(report.trace, DEADLINE_NS)
    sooner = reached(report.trace, offered_ns)
    total, in_time, whenever = found.total, found.in_time, found.whenever
    if not total:
        raise RuntimeError("nothing was sent")
    lost, came = (sum(final["injected"][name] for final in finals.values()) for name in ("lost", "datagrams"))
    return [
        {
            "system": "unisono",
            "work": f"reliable multicast, {MEMBERS} processes, {RATE:g} multicasts/s each",
            "rho": redundancy.rho,
            "eta_ms": round(redundancy.eta_ns / 1e6, 3),
            "omega_ms": round(redundancy.omega_ns / 1e6, 3),
            "adaptive": redundancy.adaptive,
            "loss": round(lost / came, 4) if came else 0.0,
            "multicasts": total,
            "within_ms": round(DEADLINE_NS / 1e6, 3),
            "negotiated": SHARE,
            "measured": round(in_time / total, 6),
            "offered_ms": round(offered_ns / 1e6, 3),
            "measured_offered": round(sooner.in_time / sooner.total, 6),
            "measured_ever": round(whenever / total, 6),
            "measured_ever_low": round(share_between(whenever, total)[0], 6),
            "measured_ever_high": round(share_between(whenever, total)[1], 6),
            "reached_ms": None if found.time_ns is None else round(found.time_ns / 1e6, 3),
            "missed": total - whenever,
            "once": report.verdicts["integrity"].status.value,
            "load_before": round(load, 2),
        }
    ]
