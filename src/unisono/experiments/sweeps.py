"""Sweeps: each simulates one scenario over a table of parameters, with many seeds per point.

A sweep is defined in code or in a TOML file.


The parameters of a point are paths into the scenario ("group.slot", "fault.0.probability"); a name without a dot is a
label and changes nothing. Every sweep measures the same: latency and its bound, the share of messages delivered, frames
and bytes per message, and whether the checkers find the run valid.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from hashlib import sha256
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from unisono.check.latency import latencies
from unisono.check.suite import check_all
from unisono.check.verdict import Status, overall
from unisono.errors import InvalidOption
from unisono.experiments.experiment import Experiment, Point, Row, Tally, Value
from unisono.experiments.intervals import mean_interval
from unisono.experiments.mistakes import EARLY, FINAL, count_mistakes
from unisono.model.text.scenario import parse_scenario
from unisono.model.text.toml import TomlTables, to_toml
from unisono.sim.random_streams import generator
from unisono.sim.result import Result
from unisono.sim.run import run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLOCK_RUNS = 5
RUN_S = 1.0
RUNS = 20
SEED_LIMIT = 1 << 31
NS_PER_MS = 1_000_000

DrawFigure = Callable[["Figure", Sequence[Row]], None]


def sweep(
    name: str,
    title: str,
    description: str,
    scenario: str,
    points: Sequence[Point],
    *,
    draw: DrawFigure | None = None,
    runs: int = RUNS,
    source: str = "",
    published_value: Callable[[Point], float | None] = lambda _: None,
) -> Experiment:
    """Make an experiment that simulates a scenario with the parameters of each point.

    `published_value` returns the value that a paper published for a point, or None.
    """
    base = tomllib.loads(scenario)
    return Experiment(
        name,
        title,
        description,
        tuple(points),
        partial(_run_point, base),
        partial(_rows, published_value),
        draw,
        runs,
        BLOCK_RUNS,
        RUN_S,
        source,
        sha256(json.dumps(base, sort_keys=True, default=str).encode()).hexdigest()[:16],
    )


def cross_product(axes: Mapping[str, Sequence[Value]]) -> list[Point]:
    """All combinations of the parameters' values, as points; the last parameter varies fastest."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def read_sweep(text: str, where: str = "the sweep") -> Experiment:
    """Read a sweep from a TOML text: a table [sweep] with `name` and `over`, and a scenario."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidOption(where, f"is not TOML: {error}") from None
    about = tables.pop("sweep", None)
    if not isinstance(about, dict) or not isinstance(about.get("over"), dict) or not about["over"]:
        raise InvalidOption(where, "expected a table [sweep], and [sweep.over] with a list of values for each path")
    unknown = about.keys() - {"name", "title", "shows", "over", "runs"}
    if unknown:
        raise InvalidOption(
            where, f"[sweep] has no field {', '.join(sorted(unknown))}; its fields are name, title, shows, over, runs"
        )
    name, runs = str(about.get("name", "sweep")), about.get("runs", RUNS)
    if not name.replace("-", "").replace("_", "").isalnum():
        raise InvalidOption(where, f"sweep.name: expected letters, digits, - and _, not {name!r}")
    if not isinstance(runs, int) or runs < 1:
        raise InvalidOption(where, f"sweep.runs: expected at least 1, not {runs!r}")
    for path, values in about["over"].items():
        if not isinstance(values, list) or not values:
            raise InvalidOption(where, f"sweep.over: expected a list of values for {path!r}, not {values!r}")
        if "." not in path:
            raise InvalidOption(
                where, f'sweep.over: expected a path into the scenario such as "group.slot", not {path!r}'
            )
    shows = str(about.get("shows", f"{name} over {', '.join(about['over'])}."))
    points = cross_product(about["over"])
    for point in points:
        try:
            scenario = to_toml(with_parameters(tables, point))
        except (LookupError, ValueError, TypeError, AttributeError):
            raise InvalidOption(
                where, f"sweep.over: one of the paths {', '.join(point)} does not exist in the scenario"
            ) from None
        parse_scenario(scenario, where)
    return sweep(name, str(about.get("title", name)), shows, to_toml(tables), points, runs=runs, source=text)


def with_parameters(base: TomlTables, point: Point) -> dict[str, Any]:
    """The scenario's tables, changed to the parameters of a point; the value None removes an entry."""
    tables: dict[str, Any] = deepcopy(dict(base))
    for path, value in point.items():
        *folders, last = path.split(".")
        if not folders:
            continue
        place: Any = tables
        for folder in folders:
            place = place[int(folder)] if isinstance(place, list) else place.setdefault(folder, {})
        if value is not None:
            place[last] = value
        else:
            place.pop(last, None)
    return tables


# -- a block of runs -----------------------------------------------------------------------------------------


def _run_point(base: TomlTables, point: Point, seed_path: tuple[int, str, str, int], runs: int) -> Tally:
    scenario = parse_scenario(to_toml(with_parameters(base, point)), seed_path[1])
    tally = Tally()
    for seed in generator(*seed_path).integers(SEED_LIMIT, size=runs).tolist():
        values, hits = measure(run(scenario, seed))
        tally.add(Tally(1, values, {name: value * value for name, value in values.items()}, hits))
    return tally


def measure(result: Result) -> tuple[dict[str, float], dict[str, list[int]]]:
    """The measured values of one run, and its counts: deliveries, late ones, and 1 if the run is valid.

    In a run with two grades, most of them are about the final deliveries.
    """
    whole, graded = result.trace, {EARLY, FINAL} <= set(result.trace.delivered_grades())
    trace = whole.with_grade(FINAL) if graded else whole
    deliveries, sends = trace.deliveries(), len(trace.sends())
    _, taken_ns = latencies(trace, deliveries)
    bound_ns = trace.meta.bound_ns
    meant = sends * len(trace.meta.members)
    frames = sum(sum(load.frames_by_slot.values()) + load.control_frames for load in result.traffic.values())
    size = sum(sum(load.bytes_by_slot.values()) + load.control_bytes for load in result.traffic.values())
    p99, longest = np.quantile(taken_ns, (0.99, 1.0)).tolist() if len(taken_ns) else (0.0, 0.0)
    values = {
        "latency_ms": float(taken_ns.mean()) / NS_PER_MS if len(taken_ns) else 0.0,
        "latency_p99_ms": p99 / NS_PER_MS,
        "latency_max_ms": longest / NS_PER_MS,
        "delivered_share": len(deliveries) / meant if meant else 0.0,
        "frames_per_message": frames / sends if sends else 0.0,
        "bytes_per_message": size / sends if sends else 0.0,
    }
    if bound_ns is not None:
        values["bound_ms"] = bound_ns / NS_PER_MS
    urgent = deliveries.priority > 0
    if urgent.any():
        matched, taken_ns = latencies(trace, deliveries)
        for name, chosen in (("urgent_ms", urgent[matched]), ("plain_ms", ~urgent[matched])):
            values[name] = float(taken_ns[chosen].mean()) / NS_PER_MS if chosen.any() else 0.0
    if graded:
        found, early = count_mistakes(whole), whole.with_grade(EARLY)
        values |= {"mistakes_share": found.share, "lost_share": found.lost_share}
        values["early_ms"] = float(latencies(early, early.deliveries())[1].mean()) / NS_PER_MS
        values["final_ms"] = values.pop("latency_ms")
    late = 0 if bound_ns is None else int((taken_ns > bound_ns).sum())
    valid = overall(check_all(whole, until_ns=result.until_ns)) is Status.VALID
    return values, {"deliveries": [len(deliveries)], "late": [late], "valid": [int(valid)]}


def _rows(published_value: Callable[[Point], float | None], points: Sequence[tuple[Point, Tally]]) -> list[Row]:
    rows: list[Row] = []
    for point, tally in points:
        row: Row = {path.rpartition(".")[2]: value for path, value in point.items()}
        for name in tally.sums:
            mean, low, high = mean_interval(tally.runs, tally.sums[name], tally.squares[name])
            row[name] = mean
            if name != "bound_ms":
                row |= {f"{name}_low": low, f"{name}_high": high}
        row["late"] = tally.hits["late"][0]
        row["valid_runs"] = tally.hits["valid"][0]
        row["runs"] = tally.runs
        row["paper"] = published_value(point)
        rows.append(row)
    return rows
