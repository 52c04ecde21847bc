"""`unisono simulate`: a scenario in the deterministic simulator, once or over many seeds."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from unisono.check.multigroup import genuineness, genuineness_over_time
from unisono.check.suite import check_all, latency_of
from unisono.check.verdict import Status, Verdict, overall
from unisono.cli.options import add_json, print_json, read_text
from unisono.errors import InvalidOption
from unisono.model.durations import ns_to_ms
from unisono.model.faults import Pause
from unisono.model.scenario import Scenario
from unisono.model.text.scenario import parse_scenario
from unisono.model.topology import Topology
from unisono.sim.result import Result
from unisono.sim.run import run as simulate
from unisono.trace.files import write_trace

PROGRESS_EVERY_S = 10.0


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The verb's command line."""
    verb = verbs.add_parser(
        "simulate",
        allow_abbrev=False,
        help="a scenario in the deterministic simulator",
        description="Run a scenario file in the simulator and check what happened. The same seed gives the same run, "
        "byte for byte; over many seeds, the first that violates anything is named with the command that replays it.",
    )
    verb.add_argument("scenario", type=Path, help="a scenario file (TOML); docs/scenarios.md explains it")
    verb.add_argument("--seed", type=int, help="the seed, in place of the scenario's own")
    verb.add_argument("--seeds", metavar="A..B", help="every seed from A to B")
    verb.add_argument("--trace", type=Path, metavar="DIR", help="keep the trace as Parquet files in this folder")
    add_json(verb)
    verb.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Simulate, check, print."""
    scenario = parse_scenario(read_text(options.scenario), str(options.scenario))
    seeds = _seeds(options, scenario)
    rows: list[dict[str, Any]] = []
    worst: dict[str, Any] | None = None
    progress = _Progress(len(seeds)) if len(seeds) > 1 else None
    for number, seed in enumerate(seeds, 1):
        row, verdicts = _run_seed(scenario, seed, options.trace)
        rows.append(row)
        if worst is None or _severity(row) > _severity(worst):
            worst, worst_verdicts = row, verdicts
        if progress is not None:
            progress.update(number, rows)
    if worst is None:
        raise InvalidOption("--seeds", "there is no seed in this range")
    replay = f"unisono simulate {options.scenario} --seed {worst['seed']}"
    if options.json:
        print_json({**worst, "replay": replay, **({"runs": rows} if len(rows) > 1 else {})})
    else:
        _print_result(worst, worst_verdicts, rows, replay)
    return 0 if worst["verdict"] == "valid" else 1


def _seeds(options: argparse.Namespace, scenario: Scenario) -> range:
    if options.seeds is None:
        seed = scenario.seed if options.seed is None else options.seed
        return range(seed, seed + 1)
    first, dots, last = options.seeds.partition("..")
    if not dots or not first.isdigit() or not last.isdigit() or int(first) > int(last):
        raise InvalidOption("--seeds", f"a range such as 1..50 is needed, not {options.seeds!r}")
    return range(int(first), int(last) + 1)


def _genuineness(topology: Topology, result: Result) -> Verdict:
    if not result.send_times:
        return genuineness(topology, result.datagrams_by_pair)
    pauses = [fault.to_ns - fault.from_ns for fault in result.scenario.faults if isinstance(fault, Pause)]
    return genuineness_over_time(topology, result.trace, result.send_times, max(pauses, default=0))


def _run_seed(scenario: Scenario, seed: int, trace_folder: Path | None) -> tuple[dict[str, Any], dict[str, Verdict]]:
    result: Result = simulate(scenario, seed)
    trace = result.trace
    if trace_folder is not None:
        write_trace(trace_folder, trace)
    verdicts = check_all(trace, until_ns=result.until_ns)
    if scenario.multigroup is not None:
        verdicts["genuineness"] = _genuineness(scenario.multigroup.topology, result)
    status = overall(verdicts)
    first = next((v for v in verdicts.values() if v.status is status and v.status is not Status.VALID), None)
    figures = latency_of(verdicts).figures
    row = {
        "verdict": status.value,
        "witness": first.witness.to_json() if first is not None and first.witness is not None else None,
        "seed": seed,
        "expected": status.value == scenario.expect.verdict,
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
        "digest": trace.digest(),
        "violations": {str(member): [v.text for v in found] for member, found in result.violations.items() if found},
    }
    return row, verdicts


def _severity(row: dict[str, Any]) -> tuple[int, float]:
    """By verdict, then by latency."""
    return ("valid", "unknown", "violated").index(row["verdict"]), row["latency_max_ms"]


class _Progress:
    """How far many seeds are, on standard error: a line that changes on a terminal, one now and then elsewhere."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._terminal = sys.stderr.isatty()
        self._next_report_s = time.monotonic() + PROGRESS_EVERY_S

    def update(self, done: int, rows: list[dict[str, Any]]) -> None:
        """One more seed is done."""
        bad = sum(row["verdict"] != "valid" for row in rows)
        text = f"{done} of {self._total} seeds, {bad} not valid"
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
    wanted = "as the scenario expects" if worst["expected"] else "not what the scenario expects"
    expected = "" if worst["expected"] and worst["verdict"] == "valid" else f" ({wanted})"
    out.write(f"verdict: {worst['verdict']}{expected}\n")
    if worst["verdict"] != "valid":
        out.write(f"replay:  {replay}\n")
