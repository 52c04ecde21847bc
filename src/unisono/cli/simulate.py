"""`unisono simulate`: run a scenario file or a swarm of random scenarios in the deterministic simulator."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unisono.check.multigroup import genuineness, genuineness_over_time
from unisono.check.suite import check_all, latency_of
from unisono.check.verdict import Status, Verdict, overall
from unisono.cli.options import add_command, add_json, read_text
from unisono.cli.output import print_json
from unisono.cli.swarm import DEFAULT_SEEDS, SWARMS, Swarm
from unisono.errors import InvalidOption
from unisono.model.faults import Pause
from unisono.model.scenario import Scenario
from unisono.model.text.scenario import parse_scenario
from unisono.model.topology import Topology
from unisono.model.units import ns_to_ms
from unisono.sim.result import Result
from unisono.sim.run import run as simulate
from unisono.trace.files import write_trace

PROGRESS_EVERY_S = 10.0

CheckedRun = tuple[dict[str, Any], dict[str, Verdict]]
"""The JSON row of one run, and the verdict of every checker."""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `unisono simulate` and its options to the command line."""
    kinds = "\n".join(f"  {name:<14}{swarm.description}" for name, swarm in SWARMS.items())
    verb = add_command(
        verbs,
        "simulate",
        summary="run a scenario, or a swarm of random ones, in the simulator",
        description="Run a scenario file in the deterministic simulator and check what happened: one order, nothing "
        "lost, nothing delivered twice, nothing late. The same seed gives the same run, byte for byte. --seeds runs "
        "every seed of a range and shows the worst run, with the command that replays it. With --swarm, each seed is "
        "another random scenario with random faults.",
        examples=(
            "unisono simulate scenarios/vbr_quickstart.toml",
            "unisono simulate scenarios/vbr_quickstart.toml --seeds 1..50",
            "unisono simulate --swarm churning --seeds 0..999",
            "unisono simulate --swarm churning --seed 17 --trace traces",
        ),
        notes=f"kinds of swarms:\n{kinds}\n\nexit status: 0 valid; 1 violated, or another verdict than the scenario "
        "expects (without --swarm also unknown).",
    )
    verb.add_argument("scenario", nargs="?", type=Path, help="a scenario file (TOML); docs/scenarios.md explains it")
    verb.add_argument(
        "--swarm",
        choices=SWARMS,
        metavar="KIND",
        help=f"random scenarios of this kind instead of a file: {', '.join(SWARMS)}; "
        f"runs seeds {DEFAULT_SEEDS[0]}..{DEFAULT_SEEDS[-1]} without --seed and --seeds",
    )
    verb.add_argument("--seed", type=int, help="run this seed (default: the seed in the scenario file)")
    verb.add_argument("--seeds", metavar="A..B", help="run every seed from A to B")
    verb.add_argument("--trace", type=Path, metavar="DIR", help="write the traces as Parquet files to this folder")
    add_json(verb)
    verb.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run `unisono simulate`: simulate each seed, check the runs, print; return the exit status."""
    if (options.scenario is None) == (options.swarm is None):
        raise InvalidOption("SCENARIO, --swarm", "give a scenario file or --swarm KIND, and not both")
    return _run_scenario(options) if options.swarm is None else _run_swarm(options)


def _run_scenario(options: argparse.Namespace) -> int:
    scenario = parse_scenario(read_text(options.scenario), str(options.scenario))
    seeds = _seeds(options, range(scenario.seed, scenario.seed + 1))
    rows, worst, worst_verdicts = _run_seeds(seeds, lambda seed: _run_scenario_seed(scenario, seed, options.trace))
    replay = f"unisono simulate {options.scenario} --seed {worst['seed']}"
    if options.json:
        print_json({**worst, "replay": replay, **({"runs": rows} if len(rows) > 1 else {})})
    else:
        _print_result(worst, worst_verdicts, rows, replay)
    return 0 if worst["verdict"] == "valid" and all(row["expected"] for row in rows) else 1


def _run_swarm(options: argparse.Namespace) -> int:
    swarm = SWARMS[options.swarm]

    def run_one(seed: int) -> CheckedRun:
        row, verdicts = _run_swarm_seed(swarm, seed, options.trace)
        if row["verdict"] == "violated" and not options.json:
            text = row["witness"]["text"] if row["witness"] else "no witness"
            sys.stdout.write(f"seed {seed}: {row['violated_check']}: {text}; replay: {_replay(options.swarm, seed)}\n")
            sys.stdout.flush()
        return row, verdicts

    rows, worst, worst_verdicts = _run_seeds(_seeds(options, DEFAULT_SEEDS), run_one)
    replay = _replay(options.swarm, worst["seed"])
    counts = {status: sum(row["verdict"] == status for row in rows) for status in ("valid", "unknown", "violated")}
    if options.json:
        print_json({**worst, "swarm": options.swarm, "replay": replay, "counts": counts, "runs": rows})
    elif len(rows) == 1:
        _print_result(worst, worst_verdicts, rows, replay)
    else:
        highest = max(row["latency_max_ms"] for row in rows)
        found = ", ".join(f"{count} {status}" for status, count in counts.items())
        sys.stdout.write(f"{len(rows)} seeds of {options.swarm}: {found}; largest latency {highest:g} ms\n")
    return 1 if counts["violated"] else 0


def _replay(kind: str, seed: int) -> str:
    return f"unisono simulate --swarm {kind} --seed {seed}"


def _seeds(options: argparse.Namespace, default: range) -> range:
    if options.seeds is None:
        return default if options.seed is None else range(options.seed, options.seed + 1)
    first, dots, last = options.seeds.partition("..")
    if not dots or not first.isdigit() or not last.isdigit() or int(first) > int(last):
        raise InvalidOption("--seeds", f"expected a range such as 1..50, not {options.seeds!r}")
    return range(int(first), int(last) + 1)


def _run_seeds(
    seeds: range, run_one: Callable[[int], CheckedRun]
) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Verdict]]:
    """Run all seeds and show progress. Returns the JSON rows of all runs, and the worst row with its verdicts."""
    progress = _Progress(len(seeds)) if len(seeds) > 1 else None
    rows: list[dict[str, Any]] = []
    worst: dict[str, Any] = {}
    worst_verdicts: dict[str, Verdict] = {}
    for seed in seeds:
        row, verdicts = run_one(seed)
        rows.append(row)
        if not worst or _severity(row) > _severity(worst):
            worst, worst_verdicts = row, verdicts
        if progress is not None:
            progress.update(rows)
    return rows, worst, worst_verdicts


def _genuineness(topology: Topology, result: Result) -> Verdict:
    if not result.send_times:
        return genuineness(topology, result.datagrams_by_pair)
    pauses = [fault.to_ns - fault.from_ns for fault in result.scenario.faults if isinstance(fault, Pause)]
    return genuineness_over_time(topology, result.trace, result.send_times, max(pauses, default=0))


def _run_scenario_seed(scenario: Scenario, seed: int, trace_folder: Path | None) -> CheckedRun:
    result = simulate(scenario, seed)
    verdicts = check_all(result.trace, until_ns=result.until_ns)
    if scenario.multigroup is not None:
        verdicts["genuineness"] = _genuineness(scenario.multigroup.topology, result)
    if trace_folder is not None:
        write_trace(trace_folder, result.trace)
    row, failed = _row(result, verdicts, verdicts), None
    if row["verdict"] != scenario.expect.verdict:
        failed = f'[expect] verdict = "{scenario.expect.verdict}", but the run of seed {seed} is {row["verdict"]}'
    return {**row, "expected": failed is None, "failed_expectation": failed}, verdicts


def _run_swarm_seed(swarm: Swarm, seed: int, trace_folder: Path | None) -> CheckedRun:
    result, verdicts = swarm.run(seed)
    if result.scenario.multigroup is not None:
        verdicts["genuineness"] = _genuineness(result.scenario.multigroup.topology, result)
    if trace_folder is not None:
        write_trace(trace_folder, result.trace)
    promised = swarm.promised_verdicts(result, verdicts)
    violated = next((name for name, verdict in promised.items() if verdict.status is Status.VIOLATED), None)
    row = _row(result, verdicts, promised)
    return {**row, "expected": row["verdict"] == "valid", "violated_check": violated}, verdicts


def _row(result: Result, verdicts: dict[str, Verdict], promised: dict[str, Verdict]) -> dict[str, Any]:
    """The JSON row of one run. Its verdict is the worst of the `promised` verdicts."""
    status = overall(promised)
    first = next((v for v in promised.values() if v.status is status and v.status is not Status.VALID), None)
    figures = latency_of(verdicts).figures
    return {
        "verdict": status.value,
        "witness": first.witness.to_json() if first is not None and first.witness is not None else None,
        "seed": result.seed,
        "checks": {name: verdict.to_json() for name, verdict in verdicts.items()},
        "sent": sum(result.sent.values()),
        "deliveries": sum(result.delivered.values()),
        "latency_max_ms": ns_to_ms(figures["max_ns"]),
        "latency_p50_ms": ns_to_ms(figures["p50_ns"]),
        "bound_ms": None if result.meta.bound_ns is None else ns_to_ms(result.meta.bound_ns),
        "late": figures["late"],
        "overhead": {
            "avg_rate": result.overhead.avg_rate,
            "max_burst": result.overhead.max_burst,
            "added_rate": result.overhead.added_rate,
        },
        "datagrams": result.datagrams,
        "events": result.events,
        "digest": result.trace.digest(),
        "violations": {str(member): [v.text for v in found] for member, found in result.violations.items() if found},
    }


def _severity(row: dict[str, Any]) -> tuple[int, float]:
    """The sort key that finds the worst run: by verdict, then by latency."""
    return ("valid", "unknown", "violated").index(row["verdict"]), row["latency_max_ms"]


class _Progress:
    """Shows progress over many seeds on standard error.

    On a terminal it is one changing line, otherwise a new line every few seconds.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._terminal = sys.stderr.isatty()
        self._next_report_s = time.monotonic() + PROGRESS_EVERY_S

    def update(self, rows: list[dict[str, Any]]) -> None:
        """Show progress after one more seed; `rows` has one row per finished seed."""
        done, not_valid = len(rows), sum(row["verdict"] != "valid" for row in rows)
        text = f"{done} of {self._total} seeds, {not_valid} not valid"
        if self._terminal:
            sys.stderr.write(f"\r{text}" + ("\n" if done == self._total else ""))
        elif time.monotonic() >= self._next_report_s and done < self._total:
            self._next_report_s = time.monotonic() + PROGRESS_EVERY_S
            sys.stderr.write(f"unisono simulate: {text}\n")
        sys.stderr.flush()


def _print_result(worst: dict[str, Any], verdicts: dict[str, Verdict], rows: list[dict[str, Any]], replay: str) -> None:
    out = sys.stdout
    if len(rows) > 1:
        valid = sum(row["verdict"] == "valid" for row in rows)
        highest = max(row["latency_max_ms"] for row in rows)
        out.write(
            f"{len(rows)} seeds: {valid} valid; largest latency {highest:g} ms; the worst is seed {worst['seed']}:\n"
        )
    width = max(16, *(len(name) + 2 for name in verdicts))
    for name, check in verdicts.items():
        detail = check.witness.text if check.witness else check.reason
        out.write(f"  {name.replace('_', ' '):<{width}}{check.status.value}{': ' + detail if detail else ''}\n")
    overhead = worst["overhead"]
    cost = f"frames per slot: {overhead['avg_rate']:.3g} on average, {overhead['max_burst']} at most"
    if not overhead["max_burst"]:  # an order without slots
        cost = f"{worst['datagrams']:,} datagrams"
    bound = "no bound" if worst["bound_ms"] is None else f"bound {worst['bound_ms']:g} ms"
    out.write(
        f"  {worst['sent']:,} messages sent, {worst['deliveries']:,} deliveries; latency median "
        f"{worst['latency_p50_ms']:g} ms, largest {worst['latency_max_ms']:g} ms, {bound}\n"
        f"  {cost}; {worst['events']:,} events\n"
    )
    for member, texts in list(worst["violations"].items())[:5]:
        out.write(f"  ! member {member}: {texts[0]}{f' (and {len(texts) - 1} more)' if len(texts) > 1 else ''}\n")
    comparison = "as the scenario expects" if worst["expected"] else "not what the scenario expects"
    expected = "" if worst["expected"] and worst["verdict"] == "valid" else f" ({comparison})"
    out.write(f"verdict: {worst['verdict']}{expected}\n")
    failed = [row["failed_expectation"] for row in rows if row.get("failed_expectation")]
    if failed:
        out.write(f"failed:  {failed[0]}{f' (and {len(failed) - 1} more seeds)' if len(failed) > 1 else ''}\n")
    if worst["verdict"] != "valid":
        out.write(f"replay:  {replay}\n")
