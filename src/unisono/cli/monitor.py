"""`unisono monitor`: the measurement service, live, on Spark."""

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
from unisono.cli.options import add_json, add_spark, duration, make_folder, print_json, read_text, spark_choice
from unisono.cli.progress import told
from unisono.cli.reporter_process import Messenger
from unisono.errors import InvalidPolicy
from unisono.model.durations import NS_PER_S, duration_text, ms
from unisono.model.events import SlaViolation
from unisono.model.metrics import METRICS, Unit
from unisono.model.text.scenario import parse_scenario
from unisono.model.text.sla import parse_slas
from unisono.trace.metric_tails import ended, latest, metric_streams

if TYPE_CHECKING:
    from rich.table import Table

    from unisono.pipeline.measurement import Job, Measured, Running
    from unisono.pipeline.measurement_store import Verdict
    from unisono.qos.watch.group_sla import LinkEstimate

QUIET_S = 5.0
"""With --until-end: a member that died never says that it has ended; the run is over after so long without a row."""
INTERRUPTED = 130


def add_parser(verbs: Any) -> None:
    """The verb and its options."""
    verb = verbs.add_parser(
        "monitor",
        allow_abbrev=False,
        help="the measurement service: QoS estimates and SLA violations of running groups, on Spark",
        description="Follow the metric streams of running groups: estimates for each link, window by window, and "
        "every agreement of the SLA file judged over the whole group. DIR is where the members write their traces. "
        "With --join, violations are multicast to the group in its total order, and all members adapt at one slot.",
        epilog="Exit status: 0 no violation, 1 violations, 130 interrupted (what was found so far is printed).",
    )
    verb.add_argument("directory", metavar="DIR", type=Path, help="folder of traces, or of one run or group")
    verb.add_argument("--sla", type=Path, required=True, metavar="FILE", help="the agreements to judge")
    verb.add_argument("--trigger", type=duration, default="1s", metavar="T", help="so often is looked (default 1s)")
    verb.add_argument("--window", type=duration, metavar="W", help="of estimates (default: the SLAs' shortest)")
    verb.add_argument(
        "--patience",
        type=duration,
        default="2s",
        metavar="P",
        help="how long a silent member is waited for (default 2s)",
    )
    verb.add_argument(
        "--keep", type=Path, metavar="DIR", help="folder for the service's state: a restart goes on where it stopped"
    )
    until = verb.add_mutually_exclusive_group()
    until.add_argument("--once", action="store_true", help="judge what is there now, then stop")
    until.add_argument("--until-end", action="store_true", help="stop when the members have closed their streams")
    until.add_argument("--seconds", type=float, metavar="N", help="stop after so long")
    verb.add_argument("--join", type=Path, metavar="SCENARIO", help="tell the group that this scenario file describes")
    verb.add_argument("--peers", help="with --join: every member's address, 1=HOST:PORT,2=HOST:PORT,…")
    verb.add_argument("--id", type=int, help="with --join: the service's number among the members")
    add_spark(verb)
    add_json(verb)
    verb.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure until told to stop; the exit status."""
    from unisono.pipeline.measurement import Job  # noqa: PLC0415 - only the verbs that use Spark pay for it

    if not options.directory.is_dir():
        raise InvalidPolicy(str(options.directory), "is no folder; the members' --out is needed")
    text, source = read_text(options.sla), str(options.sla)
    slas = parse_slas(text, source)
    if options.window is not None and (options.window <= 0 or options.window % slas.collect_ns):
        raise InvalidPolicy("--window", f"a whole multiple of collect, {duration_text(slas.collect_ns)}, is needed")
    if options.seconds is not None and options.seconds <= 0:
        raise InvalidPolicy("--seconds", f"more than 0 is needed, not {options.seconds:g}")
    if options.once and not metric_streams(options.directory):
        what = "has no metric streams to judge; `unisono demo --out` and `unisono member --metrics` write them"
        raise InvalidPolicy(str(options.directory), what)
    if options.keep is not None:
        make_folder("--keep", options.keep)
    with ExitStack() as stack:
        keep = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="unisono-monitor-")))
        job = Job(options.directory, slas, keep, options.trigger, options.window, options.patience)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        return _measure(options, job, _messenger(options, (text, source)))


def _messenger(options: argparse.Namespace, slas: tuple[str, str]) -> Messenger | None:
    given = {"--join": options.join, "--peers": options.peers, "--id": options.id}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        return None
    if missing:
        raise InvalidPolicy(", ".join(missing), "--join, --peers and --id go together")
    peers = parse_peers(options.peers)
    text, source = read_text(options.join), str(options.join)
    scenario = parse_scenario(text, source)
    if not isinstance(peers, dict) or set(peers) != set(scenario.members):
        raise InvalidPolicy("--peers", f"the addresses of the members {list(scenario.members)} of {source} are needed")
    if options.id not in peers:
        raise InvalidPolicy("--id", f"one of {sorted(peers)} is needed, not {options.id}")
    say = None if options.json else lambda said: print(f"unisono monitor: {said}", file=sys.stderr)
    return Messenger(scenario.group, (text, source), slas, options.id, peers, say=say)


def _measure(options: argparse.Namespace, job: Job, messenger: Messenger | None) -> int:
    view = _view(options)
    running: Running | None = None
    status = 0
    try:
        with ExitStack() as stack:
            with told(f"starting Spark at {options.master}", quiet=options.json or options.master == "none"):
                running = stack.enter_context(_running(options, job, lambda found: _pass_on(found, messenger)))
            stack.callback(view.update, running)  # interrupted or not, what was found last is told
            with messenger or nullcontext():
                if messenger is not None:
                    messenger.begin(running.store)
                with view:
                    _follow(options, job, running, view)
    except KeyboardInterrupt:
        status = INTERRUPTED
        if running is None:
            return status
    found = view.verdicts
    if options.json:
        print_json(_result(running, found))
    else:
        _print(running, found)
    return status or int(any(verdict.violated for verdict in found))


def _running(
    options: argparse.Namespace, job: Job, take: Callable[[Measured], None]
) -> AbstractContextManager[Running]:
    from unisono.pipeline.measurement import in_process, on_spark  # noqa: PLC0415

    return in_process(job, take) if options.master == "none" else on_spark(job, spark_choice(options), take)


def _pass_on(measured: Measured, messenger: Messenger | None) -> None:
    if messenger is not None:
        messenger.take(measured)


def _follow(options: argparse.Namespace, job: Job, running: Running, view: _View) -> None:
    began = time.monotonic()
    there = latest(options.directory, {}, sys.maxsize)
    last, grown = running.service.rows, began
    while True:
        running.wait(min(0.25, job.trigger_ns / NS_PER_S))
        view.update(running)
        now = time.monotonic()
        if running.service.rows != last:
            last, grown = running.service.rows, now
        if options.once and running.read(there):
            return
        if options.seconds is not None and now - began >= options.seconds:
            return
        if options.until_end and running.read(latest(options.directory, {}, sys.maxsize)):
            over = [ended(path) for path in metric_streams(options.directory)]
            if over and (all(over) or (any(over) and now - grown > QUIET_S)):
                return


# -- what is shown -------------------------------------------------------------------------------------------


class _View:
    """Says little: for logs, pipes and --json."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.verdicts: list[Verdict] = []

    def update(self, running: Running) -> None:
        """Something may have changed."""
        found = running.store.verdicts()
        for verdict in found[len(self.verdicts) :]:
            self.say(_line(verdict))
        self.verdicts = found

    def say(self, text: str) -> None:
        """One line."""
        if self._stream is not None:
            self._stream.write(text + "\n")
            self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is to be ended."""


class _LiveView(_View):
    """A table on the terminal, with the verdicts above it."""

    def __init__(self) -> None:
        from rich.live import Live  # noqa: PLC0415

        super().__init__(None)
        self._live = Live(refresh_per_second=4, transient=True)

    def update(self, running: Running) -> None:
        super().update(running)
        self._live.update(_table(running))

    def say(self, text: str) -> None:
        self._live.console.print(text, markup=False, highlight=False)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.__exit__(None, None, None)


def _view(options: argparse.Namespace) -> _View:
    if options.json:
        return _View(None)
    return _LiveView() if sys.stdout.isatty() else _View(sys.stdout)


def _table(running: Running) -> Table:
    from rich.table import Table  # noqa: PLC0415

    service = running.service
    broken = ", ".join(name for _, name in service.broken) or "none"
    table = Table(title=f"{service.rows:,} rows · {service.late:,} late · broken: {broken}")
    for column in ("group", "member", "layer", "from", "loss", "burst", "p50 ms", "p99 ms", "jitter ms", "Γ ms"):
        table.add_column(column, justify="right")
    for (place, *_), estimate in sorted(service.latest.items()):
        table.add_row(place[1], *_cells(estimate))
    return table


def _cells(estimate: LinkEstimate) -> list[str]:
    times = (estimate.delay_p50_ns, estimate.delay_p99_ns, estimate.jitter_ns, estimate.gamma_ns)
    loss = "" if estimate.loss is None else f"{estimate.loss:.2%}"
    shown = ["" if value is None else f"{value / 1e6:.2f}" for value in times]
    return [str(estimate.member), estimate.layer, str(estimate.link), loss, str(estimate.loss_burst), *shown]


def _line(verdict: Verdict) -> str:
    event = verdict.event
    at = "" if event.member is None else f" at member {event.member}"
    mark = "✗" if verdict.violated else "✓"
    return f"{mark} {verdict.group}{at}: {event.text}"


def _print(running: Running, verdicts: list[Verdict]) -> None:
    from rich.console import Console  # noqa: PLC0415

    service = running.service
    Console().print(_table(running))
    broken = sum(verdict.violated for verdict in verdicts)
    sys.stdout.write(f"violations: {broken}; agreements that are broken now: {len(service.broken)}\n")
    for (_, group), name in service.unjudged:
        said = "too little was seen in each window, or a party to it is not there"
        sys.stdout.write(f"never judged in {group}: {name!r}: {said}\n")
    if service.damaged:
        sys.stdout.write(f"{service.damaged:,} lines are no rows; the first: {service.problem}\n")


def _result(running: Running, verdicts: list[Verdict]) -> dict[str, Any]:
    service = running.service
    return {
        "estimates": [_estimate(place, estimate) for (place, *_), estimate in sorted(service.latest.items())],
        "violations": [_verdict(verdict) for verdict in verdicts if verdict.violated],
        "cleared": [_verdict(verdict) for verdict in verdicts if not verdict.violated],
        "broken": [{"run": run, "group": group, "sla": name} for (run, group), name in service.broken],
        "unjudged": [{"run": run, "group": group, "sla": name} for (run, group), name in service.unjudged],
        "events": service.rows,
        "late": service.late,
        "damaged": service.damaged,
        "problem": service.problem,
    }


def _estimate(place: tuple[str, str], estimate: LinkEstimate) -> dict[str, Any]:
    def in_ms(value: float | None) -> float | None:
        return None if value is None else value / 1e6

    return {
        "run": place[0],
        "group": place[1],
        "member": estimate.member,
        "link": estimate.link,
        "layer": estimate.layer,
        "window_start_ms": ms(estimate.window_start_ns),
        "window_ms": ms(estimate.window_ns),
        "loss": estimate.loss,
        "datagrams": estimate.datagrams,
        "loss_burst": estimate.loss_burst,
        "delay_p50_ms": in_ms(estimate.delay_p50_ns),
        "delay_p99_ms": in_ms(estimate.delay_p99_ns),
        "delay_p999_ms": in_ms(estimate.delay_p999_ns),
        "jitter_ms": in_ms(estimate.jitter_ns),
        "gamma_ms": in_ms(estimate.gamma_ns),
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    event = verdict.event
    shown: dict[str, Any] = {
        "id": verdict.id,
        "run": verdict.run,
        "group": verdict.group,
        "sla": event.sla,
        "member": event.member,
        "window_start_ms": ms(event.window_start_ns),
        "window_ms": ms(event.window_ns),
        "text": event.text,
        "told": verdict.told,
    }
    if isinstance(event, SlaViolation):
        in_ns = METRICS[event.metric].unit is Unit.NS
        bound = {"bound_ms": event.bound / 1e6} if in_ns else {"bound": event.bound}
        shown |= {"metric": event.metric, **bound, "measured": event.measured, "link": event.link}
        shown["probability"] = event.probability
    return shown
