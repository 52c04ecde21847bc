"""Priority accounting and latency of a long run, from its windows (`check.priority_windows`).

Where everything was consumed in one sequence of slots the windows tell all but two things: what was received and never
delivered, and what a member received and did not live to deliver. Of these it is known between which slots of that
member nothing less urgent may be, and the surveys tell the first slot with such a message, or which range has it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from unisono.check.member_runs import lives
from unisono.check.priority_accounting import (
    NAME,
    NO_RECEPTIONS,
    Overtaken,
    broken_verdict,
    member_log,
    messages_of,
    not_all_recorded,
    not_counted,
    priorities,
    priority_accounting,
)
from unisono.check.priority_ranges import (
    SEVERAL_GRADES,
    PriorityRun,
    TooMuch,
    check_order,
    latency_in_windows,
    looked_at,
)
from unisono.check.priority_summary import NOTHING_CAME, Came, Who, by_log, of_logs, united
from unisono.check.priority_windows import ALWAYS, Broken, LogFacts, Pair, WindowFinding
from unisono.check.shard_summary import Latencies
from unisono.check.suite import SOME_UNGRADED
from unisono.check.verdict import Doubt, MessageId, Reason, Status, Verdict, kept, unknown
from unisono.model.message_set import MessageSet, Ref
from unisono.trace.kinds import EventKind
from unisono.trace.table import Rows

WINDOW_ROWS = 500_000
"""So many rows a window has, or it has one range."""
READ_AGAIN = 8
"""How many times as many rows as a run has may be read for its windows."""


@dataclass(frozen=True, slots=True)
class Window:
    """Neighbouring ranges, those with the receptions and with the sends of what was delivered there; and the last slot
    before it in which messages of a priority were delivered."""

    ranges: tuple[int, ...]
    receptions: tuple[int, ...]
    sends: tuple[int, ...]
    messages: MessageSet
    lower: Mapping[int, int]


def windows(run: PriorityRun, even: PriorityRun, window_rows: int, read_again: int) -> list[Window]:
    """Every delivery of a run in one window; TooMuch if the rows of messages lie far apart.

    `even` is the run as far as it is one sequence.
    """
    cut: list[list[int]] = []
    rows = window_rows
    for number, survey in enumerate(run.surveys):
        if not survey.lines:
            continue
        rows += survey.plain.rows
        if rows > window_rows:
            cut.append([])
            rows = survey.plain.rows
        cut[-1].append(number)
    received = [survey.all_received() for survey in run.surveys]
    sent = [survey.all_sent() for survey in run.surveys]
    found: list[Window] = []
    lower: dict[int, int] = {}
    for ranges in cut:
        messages = united(run.delivered_in[number] for number in ranges)
        came = tuple(number for number, of in enumerate(received) if of & messages)
        handed_in = tuple(number for number, of in enumerate(sent) if of & messages)
        found.append(Window(tuple(ranges), came, handed_in, messages, dict(lower)))
        for number in ranges:
            for level, (_, last) in even.surveys[number].levels.items():
                lower[level] = max(last, lower.get(level, last))
    read = sum(run.surveys[n].plain.rows for one in found for n in {*one.ranges, *one.receptions, *one.sends})
    rows = sum(survey.plain.rows for survey in run.surveys)
    if read > read_again * rows:
        raise TooMuch(f"the rows of messages are scattered over ranges: {read:,} would have to be read for {rows:,}")
    return found


def log_facts(run: PriorityRun) -> tuple[LogFacts, ...] | Doubt:
    """What windows have to know of the logs; or why they cannot tell anything."""
    known = lives(run.skeleton)
    came: dict[Who, Came] = {}
    for survey in run.surveys:
        for who, of in survey.came.items():
            came[who] = of.joined(came.get(who, NOTHING_CAME))
    counts = {who: sum(line.count for _, line in lines) for who, lines in run.lines.items()}
    if any(who not in came for who in run.lines):
        return NO_RECEPTIONS
    for who in known:
        lacking = who in run.lines and who not in run.whole_logs
        if lacking or came.get(who, NOTHING_CAME).most_consumed > counts.get(who, 0):
            return not_all_recorded(who[0])
        if not came.get(who, NOTHING_CAME).counted:
            return not_counted(who[0])
    unread = [who for who, life in known.items() if life.crashed and life.cut]
    views = dict(by_log(run.skeleton.of_kind(EventKind.VIEW)))
    facts = []
    for who, life in known.items():
        begin = run.lines[who][0][1].first_slot if who in run.lines else 0
        gone = {other: _gone_ns(views.get(who), other[0], came.get(other, NOTHING_CAME).last_ns) for other in unread}
        end = begin + counts.get(who, 0)
        regular = run.straying.get(who, end - begin)
        facts.append(LogFacts(who, life.first_slot, begin, end, who not in run.unbound, regular, gone))
    return tuple(facts)


def _gone_ns(views: Rows | None, member: int, last_ns: int) -> int:
    """When somebody first installed a view without a member that had received its last at a time."""
    if views is None:
        return ALWAYS
    noted = [(at, views.listed(row)) for row, at in enumerate(views.real_ns.tolist())]
    return min((at for at, listed in noted if listed and at >= last_ns and member not in listed), default=ALWAYS)


def _as_a_whole(run: PriorityRun) -> Verdict:
    """By the checker of a whole run, where the logs are not one sequence; unknown if that is too long."""

    def judge() -> Verdict:
        numbers = [number for number, survey in enumerate(run.surveys) if survey.has_steps()]
        kinds = (EventKind.DELIVER, EventKind.RECEIVE, EventKind.QUEUE)
        try:
            return priority_accounting(run.part(numbers, *kinds))
        except TooMuch as why:
            raise TooMuch(f"the members' logs are not one sequence, and as a whole {why}") from why

    return looked_at(NAME, judge)


def _in_windows(run: PriorityRun, facts: Sequence[LogFacts], found: Sequence[WindowFinding]) -> Verdict:
    """As `priority_accounting`, from what the windows found."""

    def judge() -> Verdict:
        accounts = _Accounts(run, facts)
        for finding in found:
            for broken in finding.broken.values():
                accounts.add(broken)
            for pair in finding.open:
                accounts.try_pair(pair)
        accounts.undelivered()
        return accounts.verdict(_overtakings(found))

    return looked_at(NAME, judge)


def _overtakings(found: Sequence[WindowFinding]) -> int:
    total = sum(finding.overtakings for finding in found)
    edges = [finding for finding in found if finding.first and finding.last]
    for before, after in pairwise(edges):
        if before.last and after.first and after.first.came_ns < before.last.came_ns:
            total += len(before.last.who)
    return total


class _Accounts:
    """The pairs that are broken, over all windows."""

    def __init__(self, run: PriorityRun, facts: Sequence[LogFacts]) -> None:
        self._run = run
        self._facts = {log.who: log for log in facts}
        self._broken: dict[Who, Broken] = {}
        self._loaded: tuple[int, Rows] | None = None
        self._levels: dict[int, tuple[list[int], list[tuple[int, int]]]] = {}
        """By priority, the ranges in which such messages were delivered, and between which slots."""
        for number, survey in enumerate(run.surveys):
            for level, span in survey.levels.items():
                numbers, spans = self._levels.setdefault(level, ([], []))
                numbers.append(number)
                spans.append(span)

    def add(self, broken: Broken) -> None:
        """Some more of one member."""
        known = self._broken.get(broken.first.who)
        if known is not None:
            first = min(known.first, broken.first, key=lambda pair: pair.late)
            broken = Broken(known.count + broken.count, first)
        self._broken[broken.first.who] = broken

    def try_pair(self, pair: Pair) -> None:
        """Take a pair if it is broken."""
        if self._has_lower(pair):
            self.add(Broken(1, pair))

    def undelivered(self) -> None:
        """The messages that were received, and that nobody delivered."""
        wanted = united(survey.all_received() for survey in self._run.surveys) - self._run.delivered
        trace = self._run.trace(self._run.messages(wanted, EventKind.RECEIVE))
        priority, _ = priorities(trace)
        logs = {who: member_log(trace, life) for who, life in lives(trace).items()}
        others = sorted(self._facts.values(), key=lambda other: other.begin)
        begins = [other.begin for other in others]
        behind: dict[MessageId, list[int]] = {}
        for message in priority:
            had = [logs[other.who].had_consumed.get(message, other.end - other.begin) for other in others]
            slots = (other.slot_behind(consumed) for other, consumed in zip(others, had, strict=True))
            behind[message] = list(accumulate(slots, max))
        for who, log in self._facts.items():
            if not log.bound or log.begin == log.end:
                continue
            for message in sorted(logs[who].received):
                if all(
                    message in logs[other].received or logs[who].came_ns[message] >= since
                    for other, since in log.unread.items()
                ):
                    # Who consumed nothing that this one did tells nothing of it.
                    since = max(log.begin, behind[message][bisect_left(begins, log.end) - 1])
                    self.try_pair(Pair(who, message, priority[message], since, log.end))

    def _lower_from(self, since: int, priority: int) -> tuple[int, list[tuple[int, int]]]:
        """The first range with less urgent messages from `since` on; by priority, between which slots they lie."""
        ahead = [
            (numbers[at], spans[at])
            for level, (numbers, spans) in self._levels.items()
            if level < priority and (at := bisect_left(spans, since, key=lambda span: span[1])) < len(spans)
        ]
        nearest = min((number for number, _ in ahead), default=-1)
        return nearest, [span for number, span in ahead if number == nearest]

    def _has_lower(self, pair: Pair) -> bool:
        """Whether there is a less urgent message where none may be; rows are read only if surveys do not tell."""
        _, spans = self._lower_from(pair.since, pair.priority)
        if any(pair.since <= slot < pair.end for span in spans for slot in span):
            return True
        unclear = any(first < pair.since for first, _ in spans)
        return unclear and self._first_lower(pair.since, pair.priority) < pair.end

    def _first_lower(self, since: int, priority: int) -> int:
        """The first slot from `since` on with a less urgent message."""
        number, spans = self._lower_from(since, priority)
        if any(first < since for first, _ in spans):
            rows = self._deliveries(number)
            return int(rows.slot[(rows.slot >= since) & (rows.priority < priority)].min())
        return min((first for first, _ in spans), default=ALWAYS)

    def _deliveries(self, number: int) -> Rows:
        if self._loaded is None or self._loaded[0] != number:
            rows = self._run.load([number]).of_kind(EventKind.DELIVER)
            for who, log in self._facts.items():
                rows = rows.select(~(of_logs(rows, [who]) & (rows.index >= log.regular)))
            self._loaded = number, rows
        return self._loaded[1]

    def _at(self, slot: int) -> MessageId:
        """The message of a slot."""
        for number, survey in enumerate(self._run.surveys):
            if survey.lines and survey.plain.first_slot <= slot <= survey.plain.last_slot:
                rows = self._deliveries(number)
                return messages_of(rows.select(rows.slot == slot))[0]
        raise ValueError(f"nothing was delivered in slot {slot}")

    def verdict(self, overtakings: int) -> Verdict:
        """What there is to say."""
        if not self._broken:
            return kept(NAME, self._run.hidden, {"overtakings": overtakings})
        firsts = []
        for who in sorted(self._broken):
            pair, log = self._broken[who].first, self._facts[who]
            slot = self._first_lower(pair.since, pair.priority)
            firsts.append((slot - log.begin, who[0], slot, pair))
        at, _, slot, pair = min(firsts, key=lambda first: first[:2])
        early = self._at(slot)
        wanted = MessageSet.of(Ref(m.sender, m.incarnation, m.sequence) for m in (early, pair.late))
        kinds = (EventKind.DELIVER, EventKind.RECEIVE, EventKind.QUEUE)
        trace = self._run.trace(self._run.messages(wanted, *kinds))
        logs = {who: member_log(trace, life) for who, life in lives(trace).items()}
        first = Overtaken(logs[pair.who], pair.late, early, at)
        count = sum(broken.count for broken in self._broken.values())
        return broken_verdict(first, list(logs.values()), priorities(trace)[0], count, overtakings)


def _accounting(
    run: PriorityRun,
    even: PriorityRun,
    facts: tuple[LogFacts, ...] | Doubt,
    found: Sequence[WindowFinding],
    unread: str,
) -> Verdict:
    """The verdict, by windows of an `even` run where they can tell; `unread` says why there are none."""
    if isinstance(facts, Doubt):
        return kept(NAME, facts)
    if even.uneven or any(finding.odd for finding in found):
        return _as_a_whole(run)
    if unread:
        return unknown(NAME, Reason.TOO_MUCH_SUSPECT, unread)
    verdict = _in_windows(even, facts, found)
    # What a straying log had consumed is taken for less than it was: that shows that P2 was kept, not that it was not.
    return _as_a_whole(run) if verdict.status is Status.VIOLATED and run.straying else verdict


Judge = Callable[[Sequence[Window], tuple[LogFacts, ...] | None], Sequence[WindowFinding]]
"""Judges windows (`judge_window`); without facts about the logs only their latencies are wanted."""


def check_priority(
    run: PriorityRun, judge: Judge, *, window_rows: int = WINDOW_ROWS, read_again: int = READ_AGAIN
) -> dict[str, Verdict]:
    """One verdict per promise, as `check.suite.check_all` gives over the whole run."""
    grades = {grade for survey in run.surveys for grade in survey.plain.grades}
    if grades and any(survey.ungraded for survey in run.surveys):
        return {"grades": SOME_UNGRADED}
    if len(grades) > 1:
        return {"grades": unknown("grades", Reason.GRADES_MIXED, SEVERAL_GRADES)}
    verdicts = check_order(run)
    facts = log_facts(run)
    even = run.without_straying() if run.straying else run
    found: Sequence[WindowFinding] = ()
    unread = ""
    try:
        cut = windows(run, even, window_rows, read_again)
        found = judge(cut, None if isinstance(facts, Doubt) or even.uneven else facts)
    except TooMuch as why:
        unread = str(why)
    seen = Latencies()
    for finding in found:
        seen.merge(finding.latencies)
    verdicts[NAME] = _accounting(run, even, facts, found, unread)
    verdicts["latency"] = latency_in_windows(run, seen, unread)
    return verdicts
