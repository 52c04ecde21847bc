"""Draws the documentation's figures: python -m benchmarks.figures (make figures).

The slot's trade-off of the VBR order: its bound is the order's own formula, the rest is measured in the simulator
with delays of 0 or Δ and clocks that jump between their extremes, which is the worst case. The same seed gives
the same points, and an SVG carries its points with it, so that a test can tell whether it is up to date. And the
mistakes of early delivery between groups over their window.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict, dataclass
from html import unescape
from pathlib import Path

import numpy as np

from benchmarks import groups
from unisono.check.latency import latency
from unisono.model.offers import Ask
from unisono.model.scenario import Scenario
from unisono.model.text.scenario import parse_scenario
from unisono.model.timing import Timing
from unisono.model.units import NS_PER_S, Rate, ns_to_ms
from unisono.orders.vbr.bounds import offer
from unisono.sim.run import run

FOLDER = Path(__file__).parent.parent / "docs" / "figures"
SLOT = FOLDER / "slot.svg"
MISTAKES = FOLDER / "mistakes.svg"
THETAS_MS = (1, 2, 5, 10, 20, 50)
DELTA_MS, GAMMA_MS, MEMBERS, PER_S = 20, 2, 3, 100


@dataclass(frozen=True, slots=True)
class Point:
    """The figures for one slot length."""

    theta_ms: int
    bound_ms: float
    latency_max_ms: float
    latency_p50_ms: float
    datagrams_offered_per_s: float
    """Of one member, at most."""
    datagrams_per_s: float
    """Of one member, as measured."""
    batch_mean: float
    """Messages of one slot, of all members; slots without any are left out."""
    batch_max: int


def _scenario(theta_ms: int) -> Scenario:
    text = f"""
[group]
name = "slot-{theta_ms}ms"
members = {MEMBERS}
slot = "{theta_ms}ms"
delta = "{DELTA_MS}ms"
gamma = "{GAMMA_MS}ms"

[rate]
avg = {2 * PER_S}
burst = 40

[workload]
kind = "poisson"
rate = {PER_S}

[network]
adversary = "corners"

[clocks]
kind = "adversarial"

[run]
seconds = 2
seed = 1
"""
    return parse_scenario(text, "benchmarks/figures.py")


def point(theta_ms: int) -> Point:
    """One slot length: the order's offer, and the simulated figures."""
    timing = Timing(DELTA_MS * 1_000_000, GAMMA_MS * 1_000_000, theta_ms * 1_000_000)
    offered = offer(Ask(MEMBERS, Rate(PER_S, 40), timing))
    result = run(_scenario(theta_ms))
    figures = latency(result.trace, bound_ns=offered.latency_bound_ns).figures
    rows = result.trace.deliveries()
    first = rows.slot[rows.member == 1]
    batches = np.unique(first, return_counts=True)[1]
    return Point(
        theta_ms,
        ns_to_ms(offered.latency_bound_ns),
        round(ns_to_ms(figures["max_ns"]), 3),
        round(ns_to_ms(figures["p50_ns"]), 3),
        offered.avg_rate,
        round(result.overhead.avg_rate * NS_PER_S / timing.theta_ns, 1),
        round(float(batches.mean()), 2),
        int(batches.max()),
    )


def drawn_points(path: Path = SLOT) -> list[Point]:
    """The points that a drawn figure carries with it."""
    found = re.search(r"<dc:description>(.*?)</dc:description>", path.read_text(encoding="utf-8"), re.DOTALL)
    if found is None:
        raise ValueError(f"{path} carries no points; draw it again with python -m benchmarks.figures")
    return [Point(**each) for each in json.loads(unescape(found[1]))]


def draw(points: list[Point], path: Path = SLOT) -> None:
    """Three panels over Θ; the same points give the same bytes, with the same matplotlib."""
    import matplotlib as mpl  # noqa: PLC0415 - only drawing needs it
    from matplotlib.figure import Figure  # noqa: PLC0415

    mpl.rcParams.update(
        {"svg.hashsalt": "unisono", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    )
    thetas = [p.theta_ms for p in points]
    panels: tuple[tuple[str, tuple[tuple[str, list[float], str, str], ...]], ...] = (
        (
            "latency, ms",
            (
                ("bound Δ+Γ+Θ", [p.bound_ms for p in points], "C3", "--"),
                ("largest measured", [p.latency_max_ms for p in points], "C0", "o-"),
                ("median measured", [p.latency_p50_ms for p in points], "C7", ".:"),
            ),
        ),
        (
            "datagrams/s of a member",
            (
                ("offered, at most", [p.datagrams_offered_per_s for p in points], "C3", "--"),
                ("measured", [p.datagrams_per_s for p in points], "C0", "o-"),
            ),
        ),
        (
            "messages delivered together",
            (
                ("largest slot", [float(p.batch_max) for p in points], "C0", "o-"),
                ("mean slot", [p.batch_mean for p in points], "C7", ".:"),
            ),
        ),
    )
    figure = Figure(figsize=(9.5, 3.1), layout="constrained")
    for axes, (label, lines) in zip(figure.subplots(1, 3), panels, strict=True):
        for name, values, colour, style in lines:
            axes.plot(thetas, values, style, color=colour, label=name, markersize=4, linewidth=1.4)
        axes.set_xscale("log")
        axes.set_xticks(thetas, [str(theta) for theta in thetas])
        axes.minorticks_off()
        axes.set_xlabel("Θ, ms")
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    carried = json.dumps([asdict(each) for each in points])
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None, "Description": carried})


def main() -> None:
    """Measure and draw."""
    points = []
    for theta_ms in THETAS_MS:
        sys.stderr.write(f"figures: a slot of {theta_ms} ms\n")
        points.append(point(theta_ms))
    draw(points)
    sys.stderr.write(f"figures: wrote {SLOT}\n")
    windows = []
    for window_ms in groups.WINDOWS_MS:
        sys.stderr.write(f"figures: mistakes with a window of {window_ms} ms\n")
        windows.append(groups.mistakes(window_ms * 1_000_000, messages=groups.MESSAGES))
    groups.draw_mistakes(windows, MISTAKES)
    sys.stderr.write(f"figures: wrote {MISTAKES}\n")


if __name__ == "__main__":
    main()
