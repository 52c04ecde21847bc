"""A run of the priority order of any length, judged from surveys of its ranges and from few rows.

What each promise needs from the other ranges:
- P1, total order: that a log's indices go on from range to range, and that no message is delivered in two of them.
- Integrity: which messages were sent anywhere; what was delivered and is not among them is looked at by itself.
- FIFO: of each log, sender and priority, between which numbers its deliveries lie.
- P2, priority accounting: what each member had consumed when it received a message. While all logs are one sequence of
  slots, that is a slot, and a window of some ranges (`check.priority_windows`) needs of the others the receptions of
  its messages, and the last slot of each priority. Few messages wait across an edge, since senders have windows. Where
  the logs are not one sequence P2 is judged as a whole, and unknown if the run is too long for that. If only members
  that crashed or were left out stray, the others' sequence is judged, and of a stray log what it consumed before that
  counts: so no less is found broken than is.
- View atomicity: which messages each member received in which view, over all ranges, as ranges of numbers.
- Gap freedom: what was sent and nobody delivered, what lies where a log leaves the sequence, and how far each got.
- Latency: the sends of a window's messages.

Suspect messages are gathered with all their rows, and the checkers of a whole run judge those: witnesses are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from unisono.check.fifo import NAME as FIFO
from unisono.check.gap_freedom import gap_freedom
from unisono.check.integrity import integrity
from unisono.check.latency import sends_not_recorded
from unisono.check.member_runs import NOTHING, Origin, hidden_rows, lives, origins, unbound, without_crashed
from unisono.check.priority_summary import Line, PrioritySurvey, Who, united
from unisono.check.ranges import Findings, check_ranges, latency_verdict, overlapping
from unisono.check.shard_summary import Latencies
from unisono.check.suite import NO_BOUND, unpromised
from unisono.check.total_order import total_order
from unisono.check.verdict import Doubt, MessageId, Reason, Status, Verdict, Witness, kept, unknown
from unisono.check.view_atomicity import in_their_views, same_when_going_on, verdict_of, views_installed
from unisono.model.message_set import MessageSet, Ref
from unisono.model.message_set import Origin as Origins
from unisono.trace.kinds import ABSENT, EventKind
from unisono.trace.meta import RunMeta
from unisono.trace.table import Log, Rows, Trace, concatenated

SEVERAL_GRADES = "deliveries of several grades are judged only in a run that is read as a whole"
MAY_HAVE_GAPS = "gaps are looked into only in a run that is read as a whole"


class TooMuch(Exception):
    """More is suspect than is looked at."""


@dataclass(frozen=True)
class PriorityRun:
    """The surveys of all ranges of one run, in the order of slots, and how to read rows."""

    meta: RunMeta
    logs: tuple[Log, ...]
    surveys: tuple[PrioritySurvey, ...]
    load: Callable[[Sequence[int]], Rows]
    """The rows of the ranges with these numbers."""
    gather: Callable[[MessageSet, Collection[EventKind], Sequence[int]], Rows]
    """The rows of these kinds and messages in the ranges with these numbers."""
    survey_again: Callable[[Sequence[int], frozenset[Who]], Sequence[PrioritySurvey]]
    """The surveys of the ranges with these numbers, without what some logs delivered."""
    bound_ns: int | None
    looked_at_rows: int

    @cached_property
    def skeleton(self) -> Trace:
        """What happened to members."""
        return self.trace(concatenated([]))

    def trace(self, rows: Rows) -> Trace:
        """Some rows, with all that happened to members."""
        events = [survey.plain.events for survey in self.surveys]
        return Trace.from_rows(concatenated([rows, *events]), self.meta, self.logs)

    @cached_property
    def hidden(self) -> Doubt | None:
        """Why nothing can be said to be kept; None if it can."""
        return hidden_rows(self.skeleton) or (None if any(survey.plain.rows for survey in self.surveys) else NOTHING)

    def kept(self, name: str) -> Verdict:
        """Nothing speaks against the promise."""
        return kept(name, self.hidden)

    @cached_property
    def unbound(self) -> set[Who]:
        """Whose deliveries bind nobody."""
        return unbound(self.skeleton)

    @cached_property
    def delivered_in(self) -> tuple[MessageSet, ...]:
        """By range, what anybody delivered."""
        return tuple(survey.all_delivered() for survey in self.surveys)

    @cached_property
    def delivered(self) -> MessageSet:
        """What anybody delivered."""
        return united(self.delivered_in)

    @cached_property
    def sent(self) -> MessageSet:
        """What anybody sent."""
        return united(survey.all_sent() for survey in self.surveys)

    @cached_property
    def lines(self) -> dict[Who, list[tuple[int, Line]]]:
        """Each log's deliveries, by range."""
        found: dict[Who, list[tuple[int, Line]]] = {}
        for number, survey in enumerate(self.surveys):
            for line in survey.lines:
                found.setdefault(line.who, []).append((number, line))
        return found

    @cached_property
    def displaced(self) -> set[int]:
        """The ranges between which a message, or the order of a log, goes back and forth."""
        found: set[int] = set()
        for lines in self.lines.values():
            across = overlapping([(number, line.first_index, line.last_index) for number, line in lines])
            if across:
                found |= set(range(min(across), max(across) + 1))
        seen = MessageSet()
        for number, here in enumerate(self.delivered_in):
            both = here & seen
            if both:
                first = next(at for at, other in enumerate(self.delivered_in) if other & both)
                found |= set(range(first, number + 1))
            seen = seen | here
        return found

    @cached_property
    def whole_logs(self) -> set[Who]:
        """The logs that have all deliveries, as far as they go."""
        return {who for who, lines in self.lines.items() if not _lacking(who, lines)}

    @cached_property
    def uneven(self) -> set[int]:
        """The ranges in which or between which the logs are not one sequence of slots."""
        found = {number for number, survey in enumerate(self.surveys) if not survey.even} | self.displaced
        for lines in self.lines.values():
            for (before, earlier), (number, later) in pairwise(lines):
                if earlier.last_slot + 1 != later.first_slot:
                    found |= set(range(before, number + 1))
        return found

    @cached_property
    def straying(self) -> dict[Who, int]:
        """The logs that bind nobody and are in uneven ranges; and from which index on."""
        return {
            who: min(line.first_index for number, line in lines if number in self.uneven)
            for who, lines in self.lines.items()
            if who in self.unbound and any(number in self.uneven for number, _ in lines)
        }

    def without_straying(self) -> PriorityRun:
        """This run without what these logs delivered from there on."""
        first = min(self.uneven, default=0)
        numbers = sorted({n for who in self.straying for n, _ in self.lines[who] if n >= first})
        surveys = dict(zip(numbers, self.survey_again(numbers, frozenset(self.straying)), strict=True))
        return replace(self, surveys=tuple(surveys.get(n, survey) for n, survey in enumerate(self.surveys)))

    def messages(self, wanted: MessageSet, *kinds: EventKind) -> Rows:
        """All rows of these kinds and messages; TooMuch if there are many."""
        rows = len(wanted) * len(kinds) * len(self.logs)
        if rows > self.looked_at_rows:
            raise TooMuch(f"{len(wanted):,} messages are suspect, more than the {self.looked_at_rows:,} rows looked at")
        if not wanted:
            return concatenated([])
        where: dict[EventKind, Callable[[PrioritySurvey], MessageSet]] = {
            EventKind.SEND: PrioritySurvey.all_sent,
            EventKind.DELIVER: PrioritySurvey.all_delivered,
            EventKind.RECEIVE: PrioritySurvey.all_received,
            EventKind.QUEUE: lambda survey: survey.queued,
        }
        ranges = [
            number for number, survey in enumerate(self.surveys) if any(where[kind](survey) & wanted for kind in kinds)
        ]
        return self.gather(wanted, kinds, ranges)

    def part(self, numbers: Iterable[int], *kinds: EventKind) -> Trace:
        """The run as far as these ranges show it; TooMuch if they are long."""
        chosen = sorted(numbers)
        rows = sum(self.surveys[number].plain.rows for number in chosen)
        if rows > self.looked_at_rows:
            raise TooMuch(f"{rows:,} rows are suspect, more than the {self.looked_at_rows:,} looked at")
        return self.trace(self.load(chosen).of_kind(*kinds))


def looked_at(name: str, judge: Callable[[], Verdict]) -> Verdict:
    """The verdict, unknown if too much is suspect."""
    try:
        return judge()
    except TooMuch as why:
        return unknown(name, Reason.TOO_MUCH_SUSPECT, str(why))


def check_order(run: PriorityRun) -> dict[str, Verdict]:
    """One verdict per promise but priority accounting and latency, as `check.suite.check_all` gives."""
    found = Findings(run.meta, run.logs, tuple(survey.plain for survey in run.surveys), run.load)
    found = replace(found, looked_at_rows=run.looked_at_rows, whole_rows=0)
    verdicts = {
        "total_order": looked_at("total_order", lambda: _total_order(run)),
        "integrity": looked_at("integrity", lambda: _integrity(run)),
        FIFO: check_ranges(found, [FIFO])[FIFO],
        "view_atomicity": looked_at("view_atomicity", lambda: _view_atomicity(run)),
    }
    if run.meta.reliable:
        verdicts["gap_freedom"] = looked_at("gap_freedom", lambda: _gap_freedom(run))
    else:
        verdicts["gaps_explained"] = unknown("gaps_explained", Reason.NEEDS_WHOLE_RUN, MAY_HAVE_GAPS)
    return verdicts


def latency_in_windows(run: PriorityRun, seen: Latencies, unread: str) -> Verdict:
    """As `latency`, from what the windows have measured; `unread` says why they have not."""

    def judge() -> Verdict:
        if unread:
            raise TooMuch(unread)
        doubt = run.hidden
        if doubt is None and run.delivered - run.sent:
            trace = run.trace(run.messages(run.delivered - run.sent, EventKind.SEND, EventKind.DELIVER))
            untold = int((origins(trace, trace.deliveries(), _reached(run)) == Origin.UNTOLD).sum())
            doubt = sends_not_recorded(untold)
        if run.bound_ns is not None:
            return latency_verdict(seen, run.bound_ns, doubt)
        return unpromised(latency_verdict(seen, NO_BOUND, doubt))

    return looked_at("latency", judge)


def _total_order(run: PriorityRun) -> Verdict:
    suspect = {number for number, survey in enumerate(run.surveys) if not survey.ordered} | run.displaced
    suspect |= {number for lines in run.lines.values() for number, line in lines if not line.distinct}
    lacking = {who: run.lines[who] for who in sorted(run.lines.keys() - run.whole_logs - run.unbound)}
    if suspect:
        # A message that is out of place is so among those of the ranges between its places, all of which are suspect.
        verdict = total_order(without_crashed(run.part(suspect, EventKind.DELIVER)))
        if verdict.status is Status.VIOLATED or verdict.token is Reason.INDEX_TWICE:
            return verdict
    if not lacking:
        return run.kept("total_order")
    who, lines = next(iter(lacking.items()))
    expected, follows = _lacking(who, lines) or (0, 0)
    reason = f"the deliveries of member {who[0]} are not all recorded: index {expected} is missing, {follows} follows"
    return unknown("total_order", Reason.INDEX_MISSING, reason)


def _lacking(who: Who, lines: Sequence[tuple[int, Line]]) -> tuple[int, int] | None:
    """The first index that a log lacks or has twice, and the one that is there; None if it has all up to its last."""
    ranges = united(line.indices for _, line in lines).ranges[who]
    if ranges[0][0] != 0:
        return 0, ranges[0][0]
    if len(ranges) > 1:
        return ranges[0][1] + 1, ranges[1][0]
    if ranges[0][1] + 1 != sum(line.count for _, line in lines):
        return ranges[0][1] + 1, ranges[0][1]
    return None


def _reached(run: PriorityRun) -> dict[Who, int]:
    return {origin: ranges[-1][1] for origin, ranges in run.sent.ranges.items()}


def _integrity(run: PriorityRun) -> Verdict:
    suspect = (run.delivered - run.sent) | united(survey.again for survey in run.surveys)
    for who in sorted(run.lines):
        suspect = suspect | _in_several(survey.delivered.get(who, MessageSet()) for survey in run.surveys)
    if not suspect:
        return run.kept("integrity")
    return integrity(run.trace(run.messages(suspect, EventKind.SEND, EventKind.DELIVER)), _reached(run))


def _in_several(sets: Iterable[MessageSet]) -> MessageSet:
    """What is in more than one of the sets."""
    seen = several = MessageSet()
    for one in sets:
        several, seen = several | (one & seen), seen | one
    return several


def _gap_freedom(run: PriorityRun) -> Verdict:
    known = {who: life for who, life in lives(run.skeleton).items() if life.log is not None and who not in run.unbound}
    binding = united(of for survey in run.surveys for who, of in survey.delivered.items() if who not in run.unbound)
    doubtful = set(run.uneven)
    lines_of = {who: [line for _, line in run.lines.get(who, ())] for who in known}
    for who, life in known.items():
        lines = lines_of[who]
        begin = min((line.first_slot for line in lines), default=None)
        end = max((line.last_slot for line in lines), default=-1)
        for number, survey in enumerate(run.surveys):
            first, last = survey.plain.order.first_slot, survey.plain.order.last_slot
            before = begin is not None and life.first_slot <= last and first < begin
            after = run.bound_ns is not None and last > end
            if survey.lines and first < life.end_slot and (before or after):
                doubtful.add(number)
    suspect = (run.sent - binding) | united(run.delivered_in[number] for number in sorted(doubtful))
    if not suspect:
        trace = run.skeleton
    else:
        # How far a member got, in the order and of each sender and priority, decides what it passed over.
        tops: dict[tuple[Who, int, Origins], int] = {}
        for survey in run.surveys:
            for (who, level), of in survey.tops.items():
                for origin in of.ranges.keys() & suspect.ranges.keys():
                    sequence = of.ranges[origin][0][1]
                    tops[who, level, origin] = max(sequence, tops.get((who, level, origin), sequence))
        lasts = [max(lines, key=lambda line: line.last_slot).last for lines in lines_of.values() if lines]
        context = suspect | MessageSet.of([*lasts, *(Ref(*origin, number) for (_, _, origin), number in tops.items())])
        trace = run.trace(run.messages(context, EventKind.SEND, EventKind.DELIVER))
    times = [survey.other_ns for survey in run.surveys]
    times += [line.last_ns for who, lines in run.lines.items() if who not in run.unbound for _, line in lines]
    verdict = gap_freedom(
        without_crashed(trace),
        until_ns=max(times, default=0),
        bound_ns=run.bound_ns,
        whole=run.whole_logs,
        excused=run.unbound,
    )
    if len(trace) == 0 and verdict.token is Reason.NOTHING_RECORDED:
        return run.kept(verdict.name)  # no row had to be read
    return verdict


def _view_atomicity(run: PriorityRun) -> Verdict:
    faults: list[Witness] = []

    def complain(members: tuple[int, ...], text: str, messages: tuple[MessageId, ...] = ()) -> None:
        faults.append(Witness(messages, members, (), f"member {members[0]} {text}"))

    views, installed = views_installed(run.skeleton, complain)
    received: dict[tuple[Who, int], MessageSet] = {}
    by_view: dict[int, MessageSet] = {}
    suspect = united(survey.twice for survey in run.surveys)
    for survey in run.surveys:
        for (who, view), came in survey.received.items():
            if view == ABSENT:
                continue
            mine = installed.get(who, {})
            first_ns, last_ns = survey.times[who, view]
            if view not in mine or first_ns < mine[view] or last_ns > mine.get(view + 1, last_ns):
                suspect = suspect | came
            others = came.ranges.keys() - set(views.get(view, ()))
            suspect = suspect | MessageSet({origin: came.ranges[origin] for origin in sorted(others)})
            suspect = suspect | (came & received.get((who, view), MessageSet()))
            received[who, view] = received.get((who, view), MessageSet()) | came
            by_view[view] = by_view.get(view, MessageSet()) | came
    suspect = suspect | _in_several(by_view[view] for view in sorted(by_view))
    if suspect:
        in_their_views(run.trace(run.messages(suspect, EventKind.RECEIVE)), views, installed, complain)
    same_when_going_on(installed, received, complain)
    return verdict_of(faults, len(views), run.hidden)
