"""`unisono demo`: run real member processes on this machine over UDP, watch them live, then check the trace."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from unisono.check.suite import latency_of
from unisono.check.verdict import Status
from unisono.cli.demo_negotiation import (
    NEGOTIATED_OPTION,
    NEGOTIATED_TIMING_DEFAULTS,
    NEGOTIATION_OPTIONS,
    DemoNegotiation,
    add_negotiation_options,
    negotiate_demo,
    reliable_toml,
)
from unisono.cli.options import (
    add_command,
    add_json,
    add_option,
    add_rate,
    add_timing,
    add_tolerance,
    parse_fec,
    read_text,
)
from unisono.cli.output import print_json
from unisono.cli.spark_verdict import verify_on_spark
from unisono.cluster.member_process import join_as_member
from unisono.cluster.report import ClusterReport, check_cluster_run, record_crashes
from unisono.cluster.scenario_limits import loss_warning, member_schedules, refuse_unsupported
from unisono.cluster.supervisor import LocalCluster, MemberProcess, ProcessReport, free_addresses
from unisono.config import GAPS
from unisono.errors import InvalidOption
from unisono.model.capabilities import capabilities_of, recorded_capabilities
from unisono.model.events import GRADES
from unisono.model.options import Vbr
from unisono.model.policy import Gaps
from unisono.model.scenario import Scenario, Start
from unisono.model.text.scenario import parse_scenario
from unisono.model.text.sla import parse_slas
from unisono.model.units import NS_PER_S, Rate, duration_ns, duration_text, ns_to_ms
from unisono.qos.plan.choice import AUTO
from unisono.trace.schema import group_folder

if TYPE_CHECKING:
    from rich.table import Table


START_ALLOWANCE_S = 60.0
MULTICAST_GROUP = "239.255.77.77"
OPTIONS_ALLOWED_WITH_FILE = frozenset({"scenario", "out", "json", "multicast", "sla", "verify"})
"""The options that may be given together with a scenario file."""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `unisono demo` and its options to the command line."""
    verb = add_command(
        verbs,
        "demo",
        summary="run a group of real processes on this machine, then check it",
        description="Start member processes on this machine and let them multicast over UDP for some seconds. Show how "
        "many messages each member delivers and with which latency. Then check the recorded trace: one order, nothing "
        "lost, nothing delivered twice. Options kill members, add members and drop datagrams while the group runs.",
        examples=(
            "unisono demo",
            "unisono demo --members 3 --failures --kill 3@2s --join 4@4s",
            "unisono demo --loss 0.05 --fec 2/10",
            "unisono demo --reliable rmcast --loss 0.05",
            "unisono demo scenarios/vbr_quickstart.toml --json",
        ),
        notes="exit status: 0 valid, 1 violated or unknown.",
    )
    verb.add_argument(
        "scenario",
        nargs="?",
        type=Path,
        help="a scenario file (TOML); only --out, --json, --multicast, --sla and --verify may be given with it",
    )
    verb.add_argument("--members", type=int, default=5, help="how many member processes (default 5)")
    verb.add_argument(
        "--order",
        default="vbr",
        help="auto (by --gaps, as `join` chooses), vbr, cbr, leader, timestamp, consensus, priority, or a service "
        "without total order: reliable, fifo, causal, uniform (default vbr)",
    )
    add_option(verb, GAPS)
    verb.add_argument(
        "--grades",
        choices=GRADES,
        default="early",
        help="early: on time; final: later, after agreement, without gaps; both: each message in both grades; "
        "final and both need vbr or cbr (default early)",
    )
    verb.add_argument("--seconds", type=float, default=10, help="how many seconds to send (default 10)")
    verb.add_argument("--size", type=int, default=100, help="bytes per message (default 100)")
    _add_faults(verb)
    verb.add_argument("--multicast", action="store_true", help="use IP multicast on loopback instead of unicast")
    verb.add_argument(
        "--sla", type=Path, metavar="FILE", help="service level agreements to evaluate while the group runs"
    )
    verb.add_argument("--seed", type=int, default=1, help="seed of the workload (default 1)")
    verb.add_argument("--out", type=Path, help="folder for the trace and the scenario (default: a new folder)")
    verb.add_argument(
        "--verify",
        choices=("in-process", "spark"),
        default="in-process",
        help="where to check the trace: in this process, or in this process and then on Spark (default in-process)",
    )
    add_tolerance(verb)
    add_negotiation_options(verb)
    add_timing(verb)
    add_rate(verb)
    add_json(verb)
    # A scenario file replaces these options, so run() has to see whether one of them was given.
    defaults = {
        name: value for name, value in vars(verb.parse_args([])).items() if name not in OPTIONS_ALLOWED_WITH_FILE
    }
    verb.set_defaults(**dict.fromkeys(defaults), run=run, defaults=defaults)


def _add_faults(verb: argparse.ArgumentParser) -> None:
    """Add the options that kill and add members and drop datagrams."""
    verb.add_argument(
        "--kill", action="append", default=[], metavar="M@T", help="kill member M at time T, such as 3@2s"
    )
    verb.add_argument(
        "--join", action="append", default=[], metavar="M@T", help="member M joins at time T, such as 6@4s"
    )
    verb.add_argument(
        "--loss",
        type=float,
        default=0.0,
        metavar="p",
        help="drop this share of the datagrams, but no more than --fec or --loss-burst tolerates; "
        "with --reliable, drop without such a limit",
    )
    verb.add_argument("--degrade", metavar="p@T", help="from time T on, drop the share p, such as 0.2@4s")


def run(options: argparse.Namespace) -> int:
    """Run `unisono demo`: run the member processes, show them, check the trace; return the exit status."""
    _fill_in_defaults(options)
    _choose_order(options)
    negotiation = negotiate_demo(options) if options.reliable == NEGOTIATED_OPTION else None
    text, source = _scenario_text(options)
    scenario = parse_scenario(text, source)
    refuse_unsupported(scenario)
    peers = free_addresses(scenario.members)
    multicast = (MULTICAST_GROUP, next(iter(free_addresses((1,)).values()))[1]) if options.multicast else None
    slas = None if negotiation is None else (negotiation.sla_text, "the demo's own SLAs")
    if options.sla is not None:
        slas = read_text(options.sla), str(options.sla)
    parsed_slas = None if slas is None else parse_slas(*slas)
    for member in scenario.members:
        join_as_member(scenario, member, peers, multicast=multicast, slas=parsed_slas)
    directory = options.out or Path(tempfile.mkdtemp(prefix="unisono-demo-"))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "scenario.toml").write_text(text, encoding="utf-8")
    show = sys.stdout.isatty() and not options.json
    view = _LiveDemoView(scenario) if show else _DemoView(scenario, sys.stderr if not options.json else None)
    run_name = f"demo-{time.time_ns() // 1_000_000}"
    if warning := loss_warning(scenario):
        sys.stderr.write(f"unisono demo: {warning}\n")
    if negotiation is not None:
        view.show_negotiation(negotiation, options.degrade)
    with view:
        common = {"scenario": text, "source": source, "trace": str(directory), "run": run_name}
        setup = {**common, "peers": peers, "multicast": multicast, "slas": slas}
        finals, killed = asyncio.run(_run_cluster(scenario, setup, view))
    if killed:
        record_crashes(scenario, run_name, directory, killed)
    report = check_cluster_run(scenario, run_name, directory, finals, killed)
    result = {"order": scenario.order, "members": len(scenario.members), **report.to_json(), "trace": str(directory)}
    result["expected"] = report.verdict.value == scenario.expect.verdict
    if negotiation is not None:
        result["negotiation"] = negotiation.to_json()
    if not options.json:
        _print_report(scenario, report, result)
        sys.stdout.flush()
    verdicts = {report.verdict}
    if options.verify == "spark":
        spark = verify_on_spark(group_folder(directory, run_name, scenario.group), quiet=options.json)
        result["spark"] = spark.to_json(report.verdicts)
        verdicts.add(spark.verdict or report.verdict)
        if not options.json:
            sys.stdout.writelines(f"{line}\n" for line in spark.lines(report.verdicts))
    if options.json:
        print_json(result)
    return 0 if verdicts == {Status.VALID} else 1


def _choose_order(options: argparse.Namespace) -> None:
    """With `--gaps`, or `--order auto`, set the order and its options as `join` would choose them."""
    gaps: Gaps | None = options.gaps or ("never" if options.order == "auto" else None)
    if gaps is None:
        return
    chosen = AUTO[gaps]
    options.order = chosen.name
    if isinstance(chosen, Vbr):
        options.failures, options.grades = chosen.failures, chosen.grades
        options.loss_burst = options.loss_burst or chosen.loss_burst


def _fill_in_defaults(options: argparse.Namespace) -> None:
    """Fill in the defaults of missing options. With a scenario file, refuse options that the file sets."""
    given = [name for name in options.defaults if getattr(options, name) is not None]
    if options.reliable == NEGOTIATED_OPTION:
        options.defaults = {**options.defaults, **NEGOTIATED_TIMING_DEFAULTS}
    elif unused := [f"--{name}" for name in NEGOTIATION_OPTIONS if name in given and options.scenario is None]:
        raise InvalidOption(
            ", ".join(unused), f"only --reliable {NEGOTIATED_OPTION} uses it; add that, or leave it out"
        )
    if options.scenario is not None:
        if given:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise InvalidOption(names, f"{options.scenario} sets this option; change it there, or leave the file out")
        return
    if "gaps" in given and {"grades", "failures"} & {*given}:
        raise InvalidOption("--gaps", "chooses the grades and whether failures are tolerated; leave out those options")
    if {"gaps", "order"} <= {*given} and options.order != "auto":
        raise InvalidOption("--gaps", f"chooses the order, but --order {options.order} names one; leave out one")
    for name, value in options.defaults.items():
        if name not in given:
            setattr(options, name, value)


def _scenario_text(options: argparse.Namespace) -> tuple[str, str]:
    if options.scenario is not None:
        return read_text(options.scenario), str(options.scenario)
    if not 1 <= options.members <= 64:
        raise InvalidOption("--members", f"expected 1 to 64 members on one machine, not {options.members}")
    if not 0 < options.seconds <= 3600:
        raise InvalidOption("--seconds", f"expected more than 0 and at most 3600, not {options.seconds:g}")
    excess = Rate(options.rate, options.burst).average_excess(options.slot)
    if excess and recorded_capabilities(options.order).paced_by_slot:
        raise InvalidOption("--rate", f"{excess}; lower --rate, raise --burst or give a shorter --slot")
    kills, joins = _parse_member_times("--kill", options.kill), _parse_member_times("--join", options.join)
    members = sorted({*range(1, options.members + 1), *joins})
    for option, moments in (("--kill", kills), ("--join", joins)):
        for member, at_ns in moments.items():
            if member not in members:
                raise InvalidOption(option, f"there is no member {member}; the members are {members}")
            if at_ns >= options.seconds * NS_PER_S:
                raise InvalidOption(
                    option, f"expected a time within the {options.seconds:g} s of the run, not {duration_text(at_ns)}"
                )
    failures = bool(options.failures or kills or joins or options.loss_burst)
    events = "".join(f'\n[[fault]]\nkind = "crash"\nmember = {m}\nat = "{at}ns"\n' for m, at in kills.items())
    events += "".join(f'\n[[step]]\nkind = "start"\nmember = {m}\nat = "{at}ns"\n' for m, at in joins.items())
    events += _loss_toml(options)
    # Four fifths of the declared rate: at the full average, a Poisson stream would wait half of the time.
    return (
        f"""# What `unisono demo` ran; `unisono simulate` takes it too.
[group]
name = "demo"
order = "{options.order}"
members = {members}
failures = {str(failures).lower()}
grades = "{options.grades}"
loss_burst = {options.loss_burst}
{f'fec = "{options.fec}"' if options.fec else ""}
processing = "{options.processing}ns"
slot = "{options.slot}ns"
delta = "{options.delta}ns"
gamma = "{options.gamma}ns"
max_message = {options.max_message}
{reliable_toml(options.reliable)}
[rate]
avg = {float(options.rate)}
burst = {options.burst}

[workload]
kind = "poisson"
rate = {0.8 * options.rate}
size = {options.size}
{_consumer_toml(options, len(members))}
[run]
seconds = {float(options.seconds)}
seed = {options.seed}
{events}""",
        "demo",
    )


def _consumer_toml(options: argparse.Namespace, members: int) -> str:
    """The scenario text for a priority order; empty for other orders.

    Consumers have a load of 40 %, one of them 70 %; one message in five is urgent.
    """
    if not capabilities_of(options.order).pulled:
        return ""
    each_ns = NS_PER_S / (0.8 * options.rate * members)
    usual, slow = (f'consume = "{int(share * each_ns)}ns"' for share in (0.4, 0.7))
    return f"\n[priority]\nlevels = [0, 0, 0, 0, 1]\n{usual}\n\n[priority.2]\n{slow}\n" if members > 1 else ""


def _loss_toml(options: argparse.Namespace) -> str:
    """The scenario text for the faults of `--loss` and `--degrade`, limited to the losses that the group tolerates."""
    shares = [(0, options.loss)]
    if options.degrade is not None:
        share, at, when = options.degrade.partition("@")
        try:
            shares.append((duration_ns(when, "--degrade"), float(share)))
        except ValueError:
            raise InvalidOption("--degrade", f"expected LOSS@TIME such as 0.2@4s, not {options.degrade!r}") from None
        if not at or not 0 < shares[1][0] < options.seconds * NS_PER_S:
            raise InvalidOption("--degrade", f"expected LOSS@TIME with a TIME during the run, not {options.degrade!r}")
    for option, (_, share) in zip(("--loss", "--degrade"), shares, strict=False):
        if not 0 <= share <= 1:
            raise InvalidOption(option, f"expected the share of lost datagrams, a number from 0 to 1, not {share}")
    bound, fec = "", parse_fec(options.fec)
    if fec is not None:
        bound = f"at_most = {min(fec[0], options.loss_burst or fec[0])}\nof = {fec[1]}\n"
    elif options.loss_burst:
        bound = f"burst = {options.loss_burst}\n"
    ends = [f'to = "{at}ns"\n' for at, _ in shares[1:]] + [""]
    return "".join(
        f'\n[[fault]]\nkind = "loss"\nprobability = {share}\nfrom = "{at}ns"\n{end}{bound}'
        for (at, share), end in zip(shares, ends, strict=True)
        if share
    )


def _parse_member_times(option: str, texts: list[str]) -> dict[int, int]:
    """Parse texts such as `3@2s` into times in nanoseconds by member."""
    found: dict[int, int] = {}
    for text in texts:
        member, at, when = text.partition("@")
        if not at or not member.isdigit():
            raise InvalidOption(option, f"expected a member and a time such as 3@2s, not {text!r}")
        found[int(member)] = duration_ns(when, option)
    return found


async def _run_cluster(
    scenario: Scenario, setup: dict[str, Any], view: _DemoView
) -> tuple[dict[int, ProcessReport], list[MemberProcess]]:
    """Run the cluster; returns the members' final reports and the killed processes."""
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    late = {step.member for step in scenario.steps if isinstance(step, Start)}
    first = [member for member in scenario.members if member not in late]
    configurations = {member: {**setup, "member": member, "expected": first} for member in scenario.members}
    cluster = LocalCluster(configurations, view.report, schedules=member_schedules(scenario))
    processes = await cluster.run(scenario.run_ns / NS_PER_S + START_ALLOWANCE_S)
    return {
        member: final for member, process in processes.items() if (final := process.final_report()) is not None
    }, cluster.killed


class _DemoView:
    """Shows a running demo as a few lines of text, for logs and pipes; prints nothing with --json."""

    def __init__(self, scenario: Scenario, stream: Any) -> None:
        self.scenario = scenario
        self.latest_reports: dict[int, ProcessReport] = {}
        self.started_at_s: float | None = None
        self._stream = stream

    def report(self, member: int, report: ProcessReport) -> None:
        """Show a report of a member process, if it is worth a line."""
        if report["kind"] == "begun" and self.started_at_s is None:
            self.started_at_s = time.monotonic()
            self._print_line(
                f"{len(self.scenario.members)} members run; sending for {duration_text(self.scenario.run_ns)} …"
            )
        if report["kind"] == "qos":
            self.show_qos_report(member, report)
        else:
            self.latest_reports[member] = report

    def show_qos_report(self, member: int, report: ProcessReport) -> None:
        """Show an SLA event of a member."""
        self._print_line(f"{self._elapsed_text()}member {member}: {report['what']}: {report['text']}")

    def show_negotiation(self, negotiation: DemoNegotiation, degrade: str) -> None:
        """Show the negotiation, and how the network will get worse."""
        for line in [*negotiation.lines(), f"the network promised this loss; the demo will drop more: {degrade}"]:
            self._print_line(line)

    def _elapsed_text(self) -> str:
        """The time since the start of the run, as the beginning of a line."""
        return "" if self.started_at_s is None else f"{time.monotonic() - self.started_at_s:5.2f} s  "

    def _print_line(self, text: str) -> None:
        if self._stream is not None:
            self._stream.write(f"unisono demo: {text}\n")
            self._stream.flush()

    def __enter__(self) -> Self:
        self._print_line(f"starting {len(self.scenario.members)} member processes …")
        return self

    def __exit__(self, *_: object) -> None:
        return None


class _LiveDemoView(_DemoView):
    """Shows a running demo on a terminal, as a live table of the members."""

    def __init__(self, scenario: Scenario) -> None:
        from rich.live import Live  # noqa: PLC0415 - only a terminal needs rich

        super().__init__(scenario, None)
        self._live = Live(self._table(), refresh_per_second=10, transient=True)

    def report(self, member: int, report: ProcessReport) -> None:
        super().report(member, report)
        self._live.update(self._table())

    def show_qos_report(self, member: int, report: ProcessReport) -> None:
        text = f"{self._elapsed_text()}member {member}: {report['what']}: {report['text']}"
        self._live.console.print(text, markup=False, highlight=False)

    def show_negotiation(self, negotiation: DemoNegotiation, degrade: str) -> None:
        for line in [*negotiation.lines(), f"the network promised this loss; the demo will drop more: {degrade}"]:
            self._live.console.print(line, markup=False, highlight=False)

    def _table(self) -> Table:
        from rich.table import Table  # noqa: PLC0415

        elapsed = (
            0.0
            if self.started_at_s is None
            else min(time.monotonic() - self.started_at_s, self.scenario.run_ns / NS_PER_S)
        )
        state = "starting" if self.started_at_s is None else f"{elapsed:.1f} of {self.scenario.run_ns / NS_PER_S:g} s"
        table = Table(title=f"{self.scenario.order} · Θ {duration_text(self.scenario.timing.theta_ns)} · {state}")
        for column in ("member", "sent", "delivered", "p50 ms", "p99 ms", "max ms"):
            table.add_column(column, justify="right")
        for member in self.scenario.members:
            row = self.latest_reports.get(member, {})
            if row.get("kind") != "progress":
                table.add_row(str(member), *([str(row.get("sent", "")), str(row.get("delivered", ""))] + [""] * 3))
                continue
            times = (f"{row[name]:.2f}" for name in ("p50_ms", "p99_ms", "max_ms"))
            table.add_row(str(member), f"{row['sent']:,}", f"{row['delivered']:,}", *times)
        return table

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.__exit__(None, None, None)


def _print_report(scenario: Scenario, report: ClusterReport, result: dict[str, Any]) -> None:
    latency, out = result["latency_ms"], sys.stdout
    senders = " by members that were not killed" if len(report.final_reports) < result["members"] else ""
    out.write(
        f"\n{result['members']} members, order {scenario.order}: {result['sent']:,} messages sent{senders}; delivered "
    )
    out.write(", ".join(f"{m}: {n:,}" for m, n in result["delivered"].items()) + "\n\n")
    width = max(16, *(len(name) + 1 for name in report.verdicts))
    for name, check in report.verdicts.items():
        mark = {"valid": "✓", "violated": "✗", "unknown": "?"}[check.status.value]
        detail = check.witness.text if check.witness else check.reason
        out.write(f"  {mark} {name.replace('_', ' '):<{width}}{check.status.value}{': ' + detail if detail else ''}\n")
    out.write(f"\n  latency ms     p50 {latency['p50']:.2f}   p99 {latency['p99']:.2f}   p99.9 {latency['p999']:.2f}")
    out.write(f"   max {latency['max']:.2f}\n")
    if result["grades"] is not None:
        out.write(format_grades(result["grades"], latency))
    if capabilities_of(scenario.order).pulled:
        overtakings = report.verdicts["priority_accounting"].figures["overtakings"]
        out.write(f"  overtakings    {overtakings:,}: messages consumed directly before an earlier one\n")
        out.write("  bound          none: the consumers set the pace\n")
    else:
        out.write(_format_bounds(scenario, report, result))
        out.write(_format_faults(scenario, result))
    late = f"; {result['late']:,} deliveries were late" if result["late"] else ""
    expected = "" if result["expected"] else f"; the scenario expects {scenario.expect.verdict}"
    out.write(f"\nverdict: {report.verdict.value}{late}{expected}\ntrace:   {result['trace']}\n")


def _format_bounds(scenario: Scenario, report: ClusterReport, result: dict[str, Any]) -> str:
    """The lines of text about the declared and the measured bound, and the late deliveries."""
    declared, measured = scenario.timing, report.measured
    formula = "Δ+Γ+Θ" if scenario.order == "vbr" and not scenario.failures else f"the bound of {scenario.order}"
    if scenario.expect.bound_ns is not None:
        formula = "as the scenario states"
    delta, gamma, theta = map(duration_text, (declared.delta_ns, declared.gamma_ns, declared.theta_ns))
    total = latency_of(report.verdicts).figures["deliveries"]
    lines = [f"bound ms       {result['bound_ms']:.2f} = {formula}, declared with Δ {delta}, Γ {gamma}, Θ {theta}"]
    lines.append(f"late           {result['late']:,} of {total:,} deliveries")
    if result["late"]:
        held = "; ".join(report.doubtful_assumptions) or "all held, so the order broke its promise"
        lines.append(f"assumptions    {held}")
    delay_ms, lateness_ms, gamma_ms = map(ns_to_ms, (measured.delay_ns, measured.lateness_ns, measured.gamma_ns))
    lines.append(
        f"measured ms    bound {result['measured_bound_ms']:.2f} with Δ {delay_ms + lateness_ms:.2f} (network 99.99 % "
        f"{delay_ms:.2f} + timer lateness {lateness_ms:.2f}), Γ {gamma_ms:.2f}; later deliveries: "
        f"{result['late_measured']:,}"
    )
    if report.outage_ns:
        outage = f"{ns_to_ms(report.outage_ns):.2f}"
        lines.append(f"               of which {outage} to wait for crashed or unreachable members")
    return "".join(f"  {line}\n" for line in lines)


def _format_faults(scenario: Scenario, result: dict[str, Any]) -> str:
    """The lines of text about silences, losses, gaps, members that were away, and reported violations."""
    lines = [f"longest gap ms {result['longest_gap_ms']:.1f} between deliveries at any member"]
    injected = result["injected"]
    if injected["lost"]:
        share = injected["lost"] / injected["datagrams"]
        lines.append(f"dropped        {injected['lost']:,} of {injected['datagrams']:,} datagrams, {share:.1%}")
    if result["missing"]:
        lines.append(f"gaps           {result['missing']:,} deliveries missing in slots in which the member took part")
    most = max(result["delivered"].values(), default=0)
    fewer = sum(most - count for count in result["delivered"].values()) - (result["missing"] or 0)
    if scenario.failures and fewer > 0:
        lines.append(f"left out       {fewer:,} deliveries of messages sent while a member was not in the group")
    lines += [f"! {text}" for text in result["violations"][:5]]
    return "".join(f"  {line}\n" for line in lines)


def format_grades(grades: dict[str, Any], early_latency_ms: dict[str, float]) -> str:
    """The lines of text about both grades of delivery.

    They show latency, how early deliveries differ between the members that stayed, and corrected mistakes.
    """
    final, mistakes = grades["final_latency_ms"], grades["mistakes"].values()
    after = final["p50"] - early_latency_ms["p50"]
    senders = ", ".join(map(str, grades["early_differ_senders"]))
    whose = f", sent by {senders}" if senders else ""
    same = "the same sequence at every survivor" if grades["final_same"] else "NOT the same at every survivor"
    short = [f"member {member} {missing:,}" for member, missing in grades["final_left_before"].items()]
    same += f", except that members that left early lack some: {', '.join(short)}" if short else ""
    equal = (
        "equal at every survivor that stayed to the end" if grades["final_left_before"] else "equal at every survivor"
    )
    equal = equal if grades["replicas_equal"] else "NOT equal"
    lost, swapped, rolled = (sum(each[kind] for each in mistakes) for kind in ("lost", "out_of_order", "rollbacks"))
    return (
        f"  final ms       p50 {final['p50']:.2f}   p99 {final['p99']:.2f}   p99.9 {final['p999']:.2f}"
        f"   max {final['max']:.2f}; median {after:.2f} after early\n"
        f"  early          {grades['early_differ']:,} messages did not reach every survivor{whose}\n"
        f"  final          {same}; {grades['final_open']:,} messages were delivered early and are not final\n"
        f"  replicas       {equal}; mistakes repaired: {lost:,} lost, {swapped:,} out of order; {rolled:,} rollbacks\n"
    )
