"""Several groups in the simulator: latency counted in message delays, and mistakes of early delivery.

Delays are constant for the first, so a latency is a number of message delays δ. A mistake (paper 003 §3.2) is a final
delivery whose message is not the first of those that were delivered early and are not final yet.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.progress import Say, silence
from unisono.check.latency import latencies
from unisono.experiments.mistakes import count_mistakes
from unisono.model.delays import ConstantDelay, DelayModel, UniformDelay
from unisono.model.scenario import Clocks, Network, Scenario, Send, Workload
from unisono.model.timing import Timing
from unisono.model.topology import Liveness, Multigroup, Topology
from unisono.model.units import NS_PER_MS, Rate
from unisono.sim.result import Result
from unisono.sim.run import run

PAIR = Topology({"a": (1, 2, 3), "b": (4, 5, 6)}, {"a": ("a", "b"), "b": ("a", "b")})
DELTA_NS = 5 * NS_PER_MS
WARM_NS = 300 * NS_PER_MS
PUBLISHED = {"FastCast": (4, 8), "White-Box": (3, 5), "PrimCast": (3, None)}
"""Message delays as published, without and with contention."""
WAYS: dict[str, tuple[Liveness, int]] = {
    "on demand": ("on_demand", 0),
    "on demand, w = δ": ("on_demand", DELTA_NS + 1),
    "periodic, threshold δ": ("periodic", 0),
}
THETA_NS = 5 * NS_PER_MS
WINDOWS_MS = (1, 2, 3, 4, 5, 6, 7, 8)
MESSAGES = 1_200


@dataclass(frozen=True, slots=True)
class Mistakes:
    """Of early delivery with one window: how many final deliveries, and how many of them were mistakes."""

    window_ms: float
    deliveries: int
    mistakes: int
    lost: int
    """Of the mistakes, those that were never delivered early."""

    @property
    def rate(self) -> float:
        """The share of final deliveries that were mistakes."""
        return self.mistakes / self.deliveries if self.deliveries else 0.0


def _run(
    rules: Multigroup,
    workloads: dict[int, Workload],
    delay: DelayModel,
    run_ns: int,
    *,
    gamma_ns: int = 0,
    routes: tuple[tuple[str, ...], ...] = (("a", "b"),),
) -> Result:
    members = rules.topology.members
    return run(
        Scenario(
            source="benchmarks/groups.py",
            group="groups",
            order="quasi_genuine",
            members=members,
            timing=Timing(DELTA_NS, gamma_ns, THETA_NS),
            rates=dict.fromkeys(members, Rate(100_000, 1000)),
            workloads={member: workloads.get(member, Workload()) for member in members},
            network=Network(delay),
            run_ns=run_ns,
            clocks=Clocks("perfect" if gamma_ns == 0 else "fixed"),
            multigroup=rules,
            routes=dict.fromkeys(members, routes),
        ),
        1,
    )


def _script(times: list[int]) -> Workload:
    return Workload("script", sends=tuple(Send(at, (100,)) for at in times))


def delays_of(way: str, *, contended: bool) -> tuple[float, float]:
    """The median and the largest latency in message delays, over all members.

    Without contention, one multicast to both groups at a time; with it, messages to either or both at any time.
    """
    liveness, window_ns = WAYS[way]
    rules = Multigroup.of_ns(PAIR, liveness, DELTA_NS, window_ns)
    if contended:
        sends = dict.fromkeys(PAIR.members, Workload("poisson", rate=80.0))
        routes: tuple[tuple[str, ...], ...] = (("a", "b"), ("a",), ("b",))
    else:
        sends = {m: _script([WARM_NS + (m + 6 * n) * 60 * NS_PER_MS + 777 * m for n in range(3)]) for m in PAIR.members}
        routes = (("a", "b"),)
    trace = _run(rules, sends, ConstantDelay(DELTA_NS), 2_000 * NS_PER_MS, routes=routes).trace
    _, taken = latencies(trace, trace.deliveries())
    return round(float(np.median(taken)) / DELTA_NS, 2), round(float(taken.max()) / DELTA_NS, 2)


def mistakes(window_ns: int, *, messages: int, burst: int = 1, gamma_ns: int = 2 * NS_PER_MS) -> Mistakes:
    """Delays between 0 and Δ, clocks that differ by up to Γ."""
    rules = Multigroup(PAIR, window=f"{window_ns}ns", optimistic=True)
    per_member = messages // len(PAIR.members) // burst
    every = 20 * NS_PER_MS
    workload = Workload("bursts", 50, 50, burst=burst, every_ns=every)
    workloads, run_ns = dict.fromkeys(PAIR.members, workload), WARM_NS + per_member * every
    result = _run(rules, workloads, UniformDelay(0, DELTA_NS), run_ns, gamma_ns=gamma_ns)
    found = count_mistakes(result.trace)
    return Mistakes(window_ns / NS_PER_MS, found.deliveries, found.out_of_order + found.lost, found.lost)


def rows(*, quick: bool = False, say: Say = silence) -> list[dict[str, Any]]:
    """Our figures for each variant, then the published ones."""
    found: list[dict[str, Any]] = []
    for way in list(WAYS)[:1] if quick else WAYS:
        say(f"message delays, {way}")
        alone, busy = delays_of(way, contended=False), delays_of(way, contended=True)
        found.append(
            {
                "system": f"unisono, {way}",
                "uncontended_p50": alone[0],
                "uncontended_max": alone[1],
                "contended_p50": busy[0],
                "contended_max": busy[1],
            }
        )
    for system, (alone_max, busy_max) in PUBLISHED.items():
        found.append({"system": f"{system} (published)", "uncontended_max": alone_max, "contended_max": busy_max})
    return found


def draw_mistakes(points: list[Mistakes], path: Path) -> None:
    """The share of mistakes over w(p); the figure carries its points."""
    import matplotlib as mpl  # noqa: PLC0415 - only drawing needs it
    from matplotlib.figure import Figure  # noqa: PLC0415

    mpl.rcParams.update(
        {"svg.hashsalt": "unisono", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    )
    figure = Figure(figsize=(5.2, 3.1), layout="constrained")
    axes = figure.subplots()
    windows = [point.window_ms for point in points]
    axes.plot(windows, [100 * point.rate for point in points], "o-", color="C0", markersize=4, label="mistakes")
    late = [100 * point.lost / point.deliveries for point in points]
    axes.plot(windows, late, ".:", color="C7", markersize=4, label="of these, never delivered early")
    axes.axvline((DELTA_NS + 2 * NS_PER_MS) / NS_PER_MS, color="C3", linestyle="--", label="largest delay and skew")
    axes.set_xlabel("w(p), ms; delays 0 to 5 ms, clocks within 2 ms")
    axes.set_ylabel("% of final deliveries")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    carried = json.dumps([asdict(each) for each in points])
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None, "Description": carried})
