"""Verdicts over long runs of the orders that no sequence of keys cuts into ranges: of services without a total order,
of multicast to several groups, and of final deliveries over a slot order.

What is promised of single messages is judged by tiles (`check.message_shards`), what is promised of their order by ranges of
slots. In neither case is more held in one place than one tile, or what is suspect.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from unisono.check.causal_shards import causal_in_tiles
from unisono.check.final import AGREEMENT, EARLY, FINAL, ORDER
from unisono.check.final_shards import final_agreement_in_ranges, final_order_in_ranges
from unisono.check.member_runs import OF_LIVES, hidden_rows
from unisono.check.message_shards import Frame, Tile, TileFinding, judge_tiles, most_held, tiles, timed, too_scattered
from unisono.check.ranges import Findings, check_ranges, latency_verdict
from unisono.check.shard_summary import Survey, reached
from unisono.check.suite import NO_BOUND, SLOT_ORDERS, unpromised
from unisono.check.verdict import Reason, Verdict, graded_name, kept, unknown
from unisono.model.services import PROMISES
from unisono.pipeline.spark_tasks import Runner, TileTask, surveyed, tile_rows
from unisono.trace.kinds import EventKind
from unisono.trace.layout import Layout
from unisono.trace.meta import TraceDamaged
from unisono.trace.table import Rows, Trace, concatenated


@dataclass(frozen=True, slots=True)
class Recorded:
    """A run on disk that was surveyed."""

    plan: Layout
    surveys: tuple[Survey, ...]
    """Of the deliveries of all grades."""
    grades: tuple[str, ...]
    bound_ns: int | None
    load: Callable[[Sequence[int]], Rows]
    runner: Runner
    looked_at_rows: int

    @property
    def finals(self) -> bool:
        """Whether deliveries are made final over a slot order."""
        return self.plan.meta.order in SLOT_ORDERS

    @property
    def events(self) -> Rows:
        """What happened to members."""
        return concatenated([survey.events for survey in self.surveys])

    def fine(self, name: str) -> Verdict:
        """What is said of a promise that nothing speaks against."""
        return kept(name, hidden_rows(Trace.from_rows(concatenated([]), self.plan.meta, self.plan.logs)))


def by_tiles(run: Recorded) -> dict[str, Verdict]:
    """One verdict per promise, as `check.suite.check_all` gives over the whole run."""
    if run.plan.meta.order in PROMISES and len(run.grades) > 1:
        reason = f"a service without a total order has deliveries of one grade, not {' and '.join(run.grades)}"
        return {"messages": unknown("messages", Reason.GRADES_MIXED, reason)}
    # What is early binds nobody, also where nothing became final.
    binding = FINAL if run.finals or EARLY in run.grades else None
    graded = run.surveys if binding is None else surveyed(run.plan, run.runner, binding, run.bound_ns)
    verdicts = _in_order(run, graded, binding)
    cut = tiles(run.surveys)
    scattered = too_scattered(cut, run.surveys)
    if scattered:
        return verdicts | {"messages": unknown("messages", Reason.SCATTERED, scattered)}
    frame = Frame(
        meta=run.plan.meta,
        logs=run.plan.logs,
        events=run.events.of_kind(*OF_LIVES),
        grades=run.grades,
        timed=binding,
        until_ns=max(survey.last_ns for survey in (run.surveys if run.finals else graded)),
        reached=reached(run.surveys),
        bound_ns=run.bound_ns,
        limit_ns=None if run.finals else run.bound_ns,
        causal="causal" in PROMISES.get(run.plan.meta.order, ()),
    )
    most_rows = most_held(run.surveys)
    found = _found(run, frame, cut, most_rows)
    if any(finding.too_long for finding in found):
        reason = f"the rows of messages are scattered over ranges of slots: a part of the run has over {most_rows:,}"
        return verdicts | {"messages": unknown("messages", Reason.SCATTERED, reason)}

    def rows(numbers: Collection[int]) -> Rows:
        return concatenated([tile_rows(cut[n], [run.plan.ranges[at] for at in cut[n].ranges]) for n in numbers])

    def looked_at(numbers: Collection[int]) -> Trace | None:
        if sum(found[number].rows for number in numbers) > run.looked_at_rows:
            return None
        return frame.trace(rows(numbers))

    verdicts |= judge_tiles(frame, found, rows, run.looked_at_rows)
    if frame.causal:
        edges = [finding.causal for finding in found if finding.causal is not None]
        verdicts["causal"] = causal_in_tiles(edges, looked_at, run.fine("causal"))
    seen, doubt = timed(frame, found)
    if run.finals:
        verdicts[graded_name("latency", FINAL)] = unpromised(latency_verdict(seen, NO_BOUND, doubt))
    elif run.bound_ns is not None:
        verdicts["latency"] = latency_verdict(seen, run.bound_ns, doubt)
    return verdicts


def _found(run: Recorded, frame: Frame, cut: Sequence[Tile], most_rows: int) -> list[TileFinding]:
    plain, ranges = frame.plain(), run.plan.ranges
    tasks = []
    for number, tile in enumerate(cut):
        before = cut[number - 1] if frame.causal and number else None
        files = tuple(ranges[at] for at in tile.ranges)
        files_before = tuple(ranges[at] for at in before.ranges) if before else ()
        tasks.append(TileTask(frame, plain, tile, files, before, files_before, most_rows))
    found: list[TileFinding] = []
    for outcome in run.runner(tasks):
        if isinstance(outcome, TraceDamaged):
            raise outcome
        assert isinstance(outcome, TileFinding)
        found.append(outcome)
    return found


def _in_order(run: Recorded, graded: tuple[Survey, ...], binding: str | None) -> dict[str, Verdict]:
    """What is promised of the order of deliveries."""
    plan = run.plan

    def in_ranges(surveys: tuple[Survey, ...], grade: str | None, only: Collection[str]) -> dict[str, Verdict]:
        found = Findings(plan.meta, plan.logs, surveys, run.load, grade, run.bound_ns, run.looked_at_rows, 0)
        return check_ranges(found, only)

    if plan.meta.order in PROMISES:
        return in_ranges(graded, binding, ["fifo"]) if "fifo" in PROMISES[plan.meta.order] else {}
    if not run.finals:
        return in_ranges(graded, binding, ["total_order", "fifo"])
    verdicts: dict[str, Verdict] = {}
    if EARLY in run.grades:
        early = in_ranges(surveyed(plan, run.runner, EARLY, run.bound_ns), EARLY, ())
        verdicts = {graded_name(name, EARLY): verdict for name, verdict in early.items()}
    verdicts |= {graded_name("total_order", FINAL): in_ranges(graded, FINAL, ["total_order"])["total_order"]}
    skeleton = Trace.from_rows(run.events, plan.meta, plan.logs)
    until_ns = max(survey.last_ns for survey in run.surveys)
    verdicts[ORDER] = _looked_at(run, ORDER, lambda part: final_order_in_ranges(graded, part, run.fine(ORDER)))
    fine = run.fine(AGREEMENT)
    verdicts[AGREEMENT] = _looked_at(
        run, AGREEMENT, lambda part: final_agreement_in_ranges(graded, skeleton, part, fine, until_ns=until_ns)
    )
    return verdicts


def _looked_at(run: Recorded, name: str, judge: Callable[[Callable[[Iterable[int]], Trace]], Verdict]) -> Verdict:
    """The verdict of a judge that reads some ranges; unknown if they are too long."""

    def part(numbers: Iterable[int]) -> Trace:
        chosen = sorted(numbers)
        rows = sum(run.surveys[number].rows for number in chosen)
        if rows > run.looked_at_rows:
            raise _TooLong(f"{rows:,} rows are suspect, more than the {run.looked_at_rows:,} looked at")
        loaded = run.load(chosen).of_kind(EventKind.SEND, EventKind.DELIVER)
        return Trace.from_rows(concatenated([loaded, run.events]), run.plan.meta, run.plan.logs)

    try:
        return judge(part)
    except _TooLong as why:
        return unknown(name, Reason.TOO_MUCH_SUSPECT, str(why))


class _TooLong(Exception):
    """More rows are suspect than are looked at."""
