"""What the quasi-genuine order offers: its bound in both ways of liveness."""

from __future__ import annotations

from unisono.model.timing import Timing
from unisono.model.topology import Multigroup


def latency_bound_ns(timing: Timing, multigroup: Multigroup) -> int:
    """While nobody fails and nothing is lost.

    To the leader, two ways of votes and on to the other groups are 4Δ. A message that was decided behind one with a
    larger time stamp needs barriers that nobody has asked for: on demand another 4Δ, to ask, agree and answer;
    periodically the threshold, and what clocks differ, and 3Δ. A window comes on top, and what clocks differ.
    """
    window_ns = timing.delta_ns if multigroup.window_ns is None else multigroup.window_ns
    held_ns = window_ns + timing.gamma_ns if window_ns or multigroup.optimistic else 0
    if multigroup.liveness == "on_demand":
        return held_ns + 8 * timing.delta_ns
    return held_ns + 8 * timing.delta_ns + multigroup.barrier_threshold_ns + 2 * timing.gamma_ns
