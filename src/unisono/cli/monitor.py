"""`unisono monitor`: the measurement service. It shows live QoS estimates and SLA verdicts, on Spark."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from unisono.cli.member import parse_peers
from unisono.cli.options import (
    add_command,
    add_json,
    add_spark,
    duration,
    make_writable_folder,
    read_text,
    spark_choice,
)
from unisono.cli.output import print_json, progress_reports
from unisono.cli.reporter_process import ReporterProcess
from unisono.errors import InvalidOption
from unisono.model.events import SlaViolation
from unisono.model.sla import METRICS, Unit
from unisono.model.text.scenario import parse_scenario
from unisono.model.text.sla import parse_slas
from unisono.model.units import NS_PER_S, duration_text, ns_to_ms
from unisono.trace.metrics import is_closed, metric_streams, readable_offsets

if TYPE_CHECKING:
    from rich.table import Table

    from unisono.pipeline.measurement import MeasuredBatch, MeasurementJob, RunningMeasurement
    from unisono.pipeline.measurement_store import StoredSlaVerdict
    from unisono.qos.watch.sla_evaluation import LinkEstimate

STREAM_QUIET_S = 5.0
"""With --until-end, a run counts as ended when its members have written no row for this many seconds.

A crashed member never closes its stream of metric rows.
"""
INTERRUPTED = 130


def add_parser(verbs: Any) -> None:
    """Add the command `unisono monitor` and its options to the command line."""
    verb = add_command(
        verbs,
        "monitor",
        summary="watch running groups: QoS estimates and SLA violations, on Spark",
        description="Follow the metric streams of running groups. Show estimates for each link, window by window, and "
        "evaluate every SLA of the file over the whole group. DIR is the folder to which the members write their "
        "metrics. With --join, violations are multicast to the group in its total order, and all members adapt at the "
        "same slot.",
        examples=(
            "unisono monitor traces --sla slas/system.toml",
            "unisono monitor traces --sla slas/system.toml --once --json",
            "unisono monitor traces --sla slas/system.toml --join group.toml --id 6 --peers 1=HOST:PORT,…,6=HOST:PORT",
        ),
        notes="exit status: 0 no violation, 1 violations, 130 interrupted (prints the results so far).",
    )
    verb.add_argument(
        "directory", metavar="DIR", type=Path, help="folder with metrics: of all runs, one run, or one group"
    )
    verb.add_argument(
        "--sla", type=Path, required=True, metavar="FILE", help="the service level agreements to evaluate"
    )
    verb.add_argument(
        "--trigger", type=duration, default="1s", metavar="T", help="how often to read new metrics (default 1s)"
    )
    verb.add_argument(
        "--window", type=duration, metavar="W", help="window of the estimates (default: the shortest window of an SLA)"
    )
    verb.add_argument(
        "--patience",
        type=duration,
        default="2s",
        metavar="P",
        help="how long to wait for the metrics of a member that is behind the others (default 2s)",
    )
    verb.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="folder for the state of the service, so that a restart continues where it stopped",
    )
    until = verb.add_mutually_exclusive_group()
    until.add_argument("--once", action="store_true", help="evaluate the metrics that exist now, then stop")
    until.add_argument("--until-end", action="store_true", help="stop when the members have closed their streams")
    until.add_argument("--seconds", type=float, metavar="N", help="stop after N seconds")
    verb.add_argument(
        "--join", type=Path, metavar="SCENARIO", help="join the group of this scenario file and report verdicts to it"
    )
    verb.add_argument("--peers", help="with --join: the address of every member, 1=HOST:PORT,2=HOST:PORT,…")
    verb.add_argument("--id", type=int, help="with --join: the member number of the service")
    add_spark(verb)
    add_json(verb)
    verb.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run `unisono monitor`: measure until the time is up or the run ends; return the exit status."""
    from unisono.pipeline.measurement import MeasurementJob  # noqa: PLC0415 - only commands that use Spark load it

    if not options.directory.is_dir():
        raise InvalidOption(
            str(options.directory),
            "is not a folder; give the folder to which the members write (their --out or --metrics)",
        )
    text, source = read_text(options.sla), str(options.sla)
    slas = parse_slas(text, source)
    if options.window is not None and (options.window <= 0 or options.window % slas.collect_interval_ns):
        raise InvalidOption(
            "--window",
            f"expected a multiple of `collect`, {duration_text(slas.collect_interval_ns)} in {source}, not "
            f"{duration_text(options.window)}",
        )
    if options.seconds is not None and options.seconds <= 0:
        raise InvalidOption("--seconds", f"expected more than 0, not {options.seconds:g}")
    if options.once and not metric_streams(options.directory):
        problem = "has no metric streams; `unisono demo --out` and `unisono member --metrics` write them"
        raise InvalidOption(str(options.directory), problem)
    if options.keep is not None:
        make_writable_folder("--keep", options.keep)
    with ExitStack() as stack:
        keep = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="unisono-monitor-")))
        job = MeasurementJob(options.directory, slas, keep, options.trigger, options.window, options.patience)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        return _measure(options, job, _reporter_process(options, (text, source)))


def _reporter_process(options: argparse.Namespace, slas: tuple[str, str]) -> ReporterProcess | None:
    given = {"--join": options.join, "--peers": options.peers, "--id": options.id}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        return None
    if missing:
        raise InvalidOption(", ".join(missing), "give --join, --peers and --id together")
    peers = parse_peers(options.peers)
    text, source = read_text(options.join), str(options.join)
    scenario = parse_scenario(text, source)
    if not isinstance(peers, dict) or set(peers) != set(scenario.members):
        problem = f"expected the addresses of the members {list(scenario.members)} of {source}, not {options.peers!r}"
        raise InvalidOption("--peers", problem)
    if options.id not in peers:
        raise InvalidOption("--id", f"expected one of the members {sorted(peers)} in --peers, not {options.id}")
    on_status = None if options.json else lambda text: print(f"unisono monitor: {text}", file=sys.stderr)
    return ReporterProcess(scenario.group, (text, source), slas, options.id, peers, on_status=on_status)


def _measure(options: argparse.Namespace, job: MeasurementJob, reporter: ReporterProcess | None) -> int:
    view = _choose_view(options)
    running: RunningMeasurement | None = None
    status = 0
    try:
        with ExitStack() as stack:
            with progress_reports(
                f"starting Spark at {options.master}", quiet=options.json or options.master == "none"
            ):
                running = stack.enter_context(_start_job(options, job, lambda found: _send_to_group(found, reporter)))
            stack.callback(view.update, running)  # shows the last results even after an interruption
            with reporter or nullcontext():
                if reporter is not None:
                    reporter.send_unreported_verdicts(running.store)
                with view:
                    _update_until_done(options, job, running, view)
    except KeyboardInterrupt:
        status = INTERRUPTED
        if running is None:
            return status
    found = view.verdicts
    if options.json:
        print_json(_result_json(running, found))
    else:
        _print_summary(running, found)
    return status or int(any(verdict.violated for verdict in found))


def _start_job(
    options: argparse.Namespace, job: MeasurementJob, on_measured: Callable[[MeasuredBatch], None]
) -> AbstractContextManager[RunningMeasurement]:
    from unisono.pipeline.measurement import measure_in_process, measure_on_spark  # noqa: PLC0415

    return (
        measure_in_process(job, on_measured)
        if options.master == "none"
        else measure_on_spark(job, spark_choice(options), on_measured)
    )


def _send_to_group(measured: MeasuredBatch, reporter: ReporterProcess | None) -> None:
    if reporter is not None:
        reporter.send_measured(measured)


def _update_until_done(
    options: argparse.Namespace, job: MeasurementJob, running: RunningMeasurement, view: _MonitorView
) -> None:
    began = time.monotonic()
    initial_offsets = readable_offsets(options.directory, {}, sys.maxsize)
    last_rows, last_change_s = running.service.rows, began
    while True:
        running.wait(min(0.25, job.trigger_ns / NS_PER_S))
        view.update(running)
        now = time.monotonic()
        if running.service.rows != last_rows:
            last_rows, last_change_s = running.service.rows, now
        if options.once and running.has_processed(initial_offsets):
            return
        if options.seconds is not None and now - began >= options.seconds:
            return
        if options.until_end and running.has_processed(readable_offsets(options.directory, {}, sys.maxsize)):
            closed = [is_closed(path) for path in metric_streams(options.directory)]
            if closed and (all(closed) or (any(closed) and now - last_change_s > STREAM_QUIET_S)):
                return


# -- output --------------------------------------------------------------------------------------------------


class _MonitorView:
    """Prints one line per SLA verdict, for logs and pipes; prints nothing with --json."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.verdicts: list[StoredSlaVerdict] = []

    def update(self, running: RunningMeasurement) -> None:
        """Show the SLA verdicts found since the last call, if there are any."""
        found = running.store.verdicts()
        for verdict in found[len(self.verdicts) :]:
            self.print_line(_verdict_line(verdict))
        self.verdicts = found

    def print_line(self, text: str) -> None:
        """Print one line."""
        if self._stream is not None:
            self._stream.write(text + "\n")
            self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: printing lines leaves nothing to close."""


class _LiveMonitorView(_MonitorView):
    """Shows the latest estimates as a table on the terminal, with the SLA verdicts above it."""

    def __init__(self) -> None:
        from rich.live import Live  # noqa: PLC0415

        super().__init__(None)
        self._live = Live(refresh_per_second=4, transient=True)

    def update(self, running: RunningMeasurement) -> None:
        super().update(running)
        self._live.update(_table(running))

    def print_line(self, text: str) -> None:
        self._live.console.print(text, markup=False, highlight=False)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.__exit__(None, None, None)


def _choose_view(options: argparse.Namespace) -> _MonitorView:
    if options.json:
        return _MonitorView(None)
    return _LiveMonitorView() if sys.stdout.isatty() else _MonitorView(sys.stdout)


def _table(running: RunningMeasurement) -> Table:
    from rich.table import Table  # noqa: PLC0415

    service = running.service
    broken = ", ".join(name for _, name in service.violated_slas) or "none"
    table = Table(title=f"{service.rows:,} rows · {service.late_rows:,} late · violated: {broken}")
    for column in ("group", "member", "layer", "from", "loss", "burst", "p50 ms", "p99 ms", "jitter ms", "Γ ms"):
        table.add_column(column, justify="right")
    for (place, *_), estimate in sorted(service.latest_estimates.items()):
        table.add_row(place[1], *_cells(estimate))
    return table


def _cells(estimate: LinkEstimate) -> list[str]:
    times = (estimate.delay_p50_ns, estimate.delay_p99_ns, estimate.jitter_ns, estimate.gamma_ns)
    loss = "" if estimate.loss is None else f"{estimate.loss:.2%}"
    shown = ["" if value is None else f"{value / 1e6:.2f}" for value in times]
    return [str(estimate.member), estimate.layer, str(estimate.link), loss, str(estimate.loss_burst), *shown]


def _verdict_line(verdict: StoredSlaVerdict) -> str:
    event = verdict.event
    at = "" if event.member is None else f" at member {event.member}"
    mark = "✗" if verdict.violated else "✓"
    return f"{mark} {verdict.group}{at}: {event.text}"


def _print_summary(running: RunningMeasurement, verdicts: list[StoredSlaVerdict]) -> None:
    from rich.console import Console  # noqa: PLC0415

    service = running.service
    Console().print(_table(running))
    violations = sum(verdict.violated for verdict in verdicts)
    sys.stdout.write(f"violations: {violations}; SLAs violated now: {len(service.violated_slas)}\n")
    for (_, group), name in service.unevaluated_slas:
        reason = "too few observations in each window, or one of its layers is missing"
        sys.stdout.write(f"never evaluated in {group}: {name!r}: {reason}\n")
    if service.damaged_lines:
        sys.stdout.write(f"{service.damaged_lines:,} damaged lines; the first: {service.first_problem}\n")


def _result_json(running: RunningMeasurement, verdicts: list[StoredSlaVerdict]) -> dict[str, Any]:
    service = running.service
    return {
        "estimates": [
            _estimate_json(place, estimate) for (place, *_), estimate in sorted(service.latest_estimates.items())
        ],
        "violations": [_verdict_json(verdict) for verdict in verdicts if verdict.violated],
        "cleared": [_verdict_json(verdict) for verdict in verdicts if not verdict.violated],
        "broken": [{"run": run, "group": group, "sla": name} for (run, group), name in service.violated_slas],
        "unjudged": [{"run": run, "group": group, "sla": name} for (run, group), name in service.unevaluated_slas],
        "events": service.rows,
        "late": service.late_rows,
        "damaged": service.damaged_lines,
        "problem": service.first_problem,
    }


def _estimate_json(run_and_group: tuple[str, str], estimate: LinkEstimate) -> dict[str, Any]:
    def in_ms(value: float | None) -> float | None:
        return None if value is None else value / 1e6

    return {
        "run": run_and_group[0],
        "group": run_and_group[1],
        "member": estimate.member,
        "link": estimate.link,
        "layer": estimate.layer,
        "window_start_ms": ns_to_ms(estimate.window_start_ns),
        "window_ms": ns_to_ms(estimate.window_ns),
        "loss": estimate.loss,
        "datagrams": estimate.datagrams,
        "loss_burst": estimate.loss_burst,
        "delay_p50_ms": in_ms(estimate.delay_p50_ns),
        "delay_p99_ms": in_ms(estimate.delay_p99_ns),
        "delay_p999_ms": in_ms(estimate.delay_p999_ns),
        "jitter_ms": in_ms(estimate.jitter_ns),
        "gamma_ms": in_ms(estimate.gamma_ns),
    }


def _verdict_json(verdict: StoredSlaVerdict) -> dict[str, Any]:
    event = verdict.event
    shown: dict[str, Any] = {
        "id": verdict.id,
        "run": verdict.run,
        "group": verdict.group,
        "sla": event.sla,
        "member": event.member,
        "window_start_ms": ns_to_ms(event.window_start_ns),
        "window_ms": ns_to_ms(event.window_ns),
        "text": event.text,
        "told": verdict.reported,
    }
    if isinstance(event, SlaViolation):
        in_ns = METRICS[event.metric].unit is Unit.NS
        bound = {"bound_ms": event.bound / 1e6} if in_ns else {"bound": event.bound}
        shown |= {"metric": event.metric, **bound, "measured": event.measured, "link": event.link}
        shown["probability"] = event.probability
    return shown
