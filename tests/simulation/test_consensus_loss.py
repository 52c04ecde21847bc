"""The order `consensus` under loss and after an outage, where true delays are far below the declared Δ."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from unisono.model.delays import UniformDelay
from unisono.model.faults import Fault, Loss, Partition, Span
from unisono.model.scenario import EPOCH_NS, Network, Scenario, Workload
from unisono.model.timing import Timing
from unisono.model.units import NS_PER_MS, NS_PER_S, Rate
from unisono.sim.run import run
from unisono.trace.table import Ints, Trace

MEMBERS = (1, 2, 3, 4, 5)
RATE = 50


def traced(*faults: Fault, run_ns: int) -> Trace:
    """A run in which each member sends at the declared rate; delays are at most 2 ms and Δ is 50 ms."""
    scenario = Scenario(
        source="test_consensus_loss",
        group="lossy",
        order="consensus",
        members=MEMBERS,
        timing=Timing(50 * NS_PER_MS, 2 * NS_PER_MS, 10 * NS_PER_MS),
        rates=dict.fromkeys(MEMBERS, Rate(RATE, 8)),
        workloads=dict.fromkeys(MEMBERS, Workload("cbr", 100, 100, rate=RATE)),
        network=Network(UniformDelay(0, 2 * NS_PER_MS)),
        run_ns=run_ns,
        faults=faults,
    )
    return run(scenario, 1).trace


def latencies(trace: Trace) -> Ints:
    """The latency of each delivery; fails if a member has not delivered all messages."""
    sends, deliveries = trace.sends(), trace.deliveries()
    sent_at = {
        (sender, sequence): at
        for sender, sequence, at in zip(
            sends.member.tolist(), sends.sequence.tolist(), sends.real_ns.tolist(), strict=True
        )
    }
    assert len(deliveries) == len(MEMBERS) * len(sent_at), "not all messages are delivered"
    messages = zip(deliveries.sender.tolist(), deliveries.sequence.tolist(), strict=True)
    latency: Ints = deliveries.real_ns - np.array([sent_at[message] for message in messages])
    return latency


@cache
def p99_ns(loss: float) -> float:
    faults = (Loss(Span(), loss),) if loss else ()
    return float(np.percentile(latencies(traced(*faults, run_ns=4 * NS_PER_S)), 99))


@pytest.mark.parametrize(("loss", "factor"), [(0.01, 4), (0.05, 10)])
def test_losses_are_repaired_after_about_a_round_trip(loss: float, factor: int) -> None:
    assert p99_ns(loss) <= factor * p99_ns(0)


def test_the_backlog_of_an_outage_is_gone_within_two_seconds() -> None:
    """Member 5 lacks 2,400 messages and has 600 to send. One datagram in 100 is lost."""
    outage = Span(NS_PER_S, 13 * NS_PER_S)
    trace = traced(Partition(outage, ((5,),)), Loss(Span(), 0.01), run_ns=16 * NS_PER_S)
    late = trace.deliveries().real_ns[latencies(trace) > 100 * NS_PER_MS]
    healed_at = EPOCH_NS + 13 * NS_PER_S
    assert int(late.max()) - healed_at < 2 * NS_PER_S
