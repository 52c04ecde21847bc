"""Long runs of the priority order are judged by windows of ranges as the checkers judge the whole run: clean, with each
kind of damage, at the edges of ranges too, and with several at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest
from tests.property import test_check_ranges as plain
from tests.property.test_check_ranges import Chance, changed, picked
from tests.unit.test_check_priority import told
from tests.unit.test_check_view_atomicity import PLANTED, Event, viewed
from tests.worlds.ideal_swarm import finish_required, random_group, run_randomly
from tests.worlds.ideal_trace import ideal_trace

from unisono.check.priority import priority_accounting, view_atomicity
from unisono.check.priority_accounts import PriorityWindow, check_priority
from unisono.check.priority_ranges import PriorityRun
from unisono.check.priority_summary import PriorityRangeSummary, in_message_set, summarize_priority_range
from unisono.check.priority_windows import LogFacts, WindowFinding, check_window
from unisono.check.suite import NO_BOUND, check_all
from unisono.check.verdict import Reason, Status, Verdict
from unisono.model.events import ViolationKind
from unisono.model.message_set import MessageSet
from unisono.sim.random_streams import RandomStreams
from unisono.trace.schema import ABSENT, MESSAGE_KINDS, OBSERVER, EventKind
from unisono.trace.table import Rows, Trace, concatenated

BY_TIME = 10**9
"""From here on slots number sends, as in a recorded run."""
UNTOLD = (Reason.TOO_MUCH_SUSPECT,)
Sizes = tuple[int, int]
"""Of a range in slots, of a window in rows."""
Damage = Callable[[Rows, Chance], Rows]


@cache
def simulated(seed: int) -> Trace:
    """A run of an ideal group in which members crash, leave, join and come back."""
    chance = RandomStreams(seed).stream("priority ranges")
    group = random_group(chance)
    run_randomly(group, chance)
    if seed % 3:  # else it ends with messages in the queues
        finish_required(group)
    trace = ideal_trace(group)
    return replace(trace, slot=np.where(trace.kind == EventKind.SEND.code, trace.slot + BY_TIME, trace.slot))


def _among_received(rows: Rows, chance: Chance) -> tuple[int, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """A reception, and all receptions of its message."""
    row = picked(rows, chance, EventKind.RECEIVE)
    same = (rows.kind == EventKind.RECEIVE.code) & (rows.sender == rows.sender[row])
    return row, np.flatnonzero(
        same & (rows.sender_incarnation == rows.sender_incarnation[row]) & (rows.sequence == rows.sequence[row])
    )


def exchanged(rows: Rows, chance: Chance) -> Rows:
    """Everybody consumes two neighbours the other way round."""
    slot = int(rows.slot[picked(rows, chance, EventKind.DELIVER)])
    columns = {name: getattr(rows, name).copy() for name in ("sender", "sender_incarnation", "sequence", "priority")}
    delivered = rows.kind == EventKind.DELIVER.code
    one, other = (np.flatnonzero(delivered & (rows.slot == at)) for at in (slot, slot + 1))
    if len(one) and len(other):
        for column in columns.values():
            column[one], column[other] = column[other[0]], column[one[0]]
    return replace(rows, **columns)


def known_before(rows: Rows, chance: Chance) -> Rows:
    """Everybody had consumed less when a message came: it should have overtaken more."""
    _, all_of_it = _among_received(rows, chance)
    index = rows.index.copy()
    index[all_of_it] = np.maximum(0, index[all_of_it] - int(chance.integers(1, 12)))
    return replace(rows, index=index)


def long_on_its_way(rows: Rows, chance: Chance) -> Rows:
    """A message was received by everybody long before it was delivered."""
    rows = known_before(rows, chance)
    _, all_of_it = _among_received(rows, chance)
    slot, index = rows.slot.copy(), rows.index.copy()
    index[all_of_it] = np.minimum(index[all_of_it], 1)
    for row in all_of_it.tolist():
        own = (rows.member == rows.member[row]) & (rows.recorder_incarnation == rows.recorder_incarnation[row])
        slot[row] = int(rows.slot[own & (rows.kind == EventKind.START.code)].max(initial=0)) + index[row]
    return replace(rows, slot=slot, index=index)


def recounted(rows: Rows, chance: Chance) -> Rows:
    """One member had consumed more or less when a message came."""
    row, _ = _among_received(rows, chance)
    return changed(rows, row, index=max(0, int(rows.index[row]) + int(chance.integers(-6, 7))))


def unreceived(rows: Rows, chance: Chance) -> Rows:
    """A reception that is not in the log."""
    return rows.select(np.arange(len(rows)) != picked(rows, chance, EventKind.RECEIVE))


def received_again(rows: Rows, chance: Chance) -> Rows:
    """A message is received once more, in the same view or another."""
    row = picked(rows, chance, EventKind.RECEIVE)
    again = rows.select(np.array([row]))
    place = (
        int(
            rows.place[
                (rows.member == rows.member[row]) & (rows.recorder_incarnation == rows.recorder_incarnation[row])
            ].max()
        )
        + 1
    )
    view = int(rows.view[row]) + int(chance.integers(2))
    slot = int(rows.slot[row]) + int(chance.integers(3))
    return concatenated([rows, changed(again, 0, place=place, view=view, slot=slot)])


def in_another_view(rows: Rows, chance: Chance) -> Rows:
    """A reception is noted in another view."""
    row = picked(rows, chance, EventKind.RECEIVE)
    return changed(rows, row, view=int(rows.view[row]) + int(chance.choice([-1, 1, 5])))


def at_another_time(rows: Rows, chance: Chance) -> Rows:
    """A reception happened before its view, or at some other time."""
    row = picked(rows, chance, EventKind.RECEIVE)
    earlier = int(rows.real_ns[row]) - int(chance.choice([1000, 10**6]))
    return changed(rows, row, real_ns=max(0, earlier + int(chance.integers(3)) * 10_000))


def viewless(rows: Rows, chance: Chance) -> Rows:
    """That a view was installed is not in the log."""
    return rows.select(np.arange(len(rows)) != picked(rows, chance, EventKind.VIEW))


def of_another_priority(rows: Rows, chance: Chance) -> Rows:
    """A row has another priority than the message."""
    kind = (EventKind.DELIVER, EventKind.RECEIVE, EventKind.SEND)[int(chance.integers(3))]
    row = picked(rows, chance, kind)
    return changed(rows, row, priority=int(rows.priority[row]) + int(chance.choice([-1, 1, 2])))


def more_urgent(rows: Rows, chance: Chance) -> Rows:
    """A message is more urgent than it was, everywhere."""
    row = picked(rows, chance, EventKind.RECEIVE)
    same = (rows.sender == rows.sender[row]) & (rows.sender_incarnation == rows.sender_incarnation[row])
    same &= (rows.sequence == rows.sequence[row]) & (rows.priority >= 0)
    return replace(rows, priority=np.where(same, rows.priority + 3, rows.priority))


def moved_on(rows: Rows, chance: Chance) -> Rows:
    """From some slot on a member's places are some further."""
    row = picked(rows, chance, EventKind.DELIVER)
    own = (
        (rows.member == rows.member[row])
        & (rows.recorder_incarnation == rows.recorder_incarnation[row])
        & (rows.kind == EventKind.DELIVER.code)
    )
    return replace(rows, slot=np.where(own & (rows.slot >= rows.slot[row]), rows.slot + 3, rows.slot))


def killed(rows: Rows, chance: Chance) -> Rows:
    """A member crashes at the end of its log, or somewhere in it."""
    row = picked(rows, chance, EventKind.RECEIVE)
    own = (rows.member == rows.member[row]) & (rows.recorder_incarnation == rows.recorder_incarnation[row])
    at_ns = int(rows.real_ns[row]) if chance.integers(2) else int(rows.real_ns.max())
    slot = int(rows.slot[own & (rows.slot < BY_TIME) & (rows.real_ns <= at_ns)].max()) + 1
    crash = changed(rows.select(np.array([row])), 0, kind=EventKind.CRASH.code, member=OBSERVER, recorder_incarnation=0)
    crash = changed(
        crash,
        0,
        sender=int(rows.member[row]),
        sender_incarnation=int(rows.recorder_incarnation[row]),
        sequence=-1,
        priority=-1,
    )
    crash = changed(crash, 0, slot=slot, place=-1, index=-1, real_ns=at_ns, view=-1, messages=-1)
    return concatenated([rows.select(~own | (rows.real_ns <= at_ns)), crash])


def excluded(rows: Rows, chance: Chance) -> Rows:
    """A member says that the others went on without it."""
    row = picked(rows, chance, EventKind.START)
    told = changed(rows.select(np.array([row])), 0, kind=EventKind.VIOLATION.code, token=0)
    return concatenated([rows, replace(told, tokens=(ViolationKind.EXCLUDED.value,))])


def lacking(name: str, *kinds: EventKind) -> Damage:
    """A row of one of these kinds lacks what a column should say."""

    def damage(rows: Rows, chance: Chance) -> Rows:
        row = picked(rows, chance, kinds[int(chance.integers(len(kinds)))])
        return changed(rows, row, **{name: ABSENT})

    damage.__name__ = "_".join(["without", name, *(kind.value for kind in kinds)])
    return damage


def graded(rows: Rows, chance: Chance) -> Rows:
    """One delivery has a grade, or all of one member."""
    row = picked(rows, chance, EventKind.DELIVER)
    chosen = np.arange(len(rows)) == row
    if chance.integers(2):
        chosen = (rows.member == rows.member[row]) & (rows.kind == EventKind.DELIVER.code)
    return replace(rows, grade=np.where(chosen, 0, ABSENT).astype(np.int32), grades=("final",))


LACKING = (
    *(lacking("sequence", kind) for kind in (EventKind.SEND, EventKind.DELIVER, EventKind.RECEIVE)),
    *(lacking("index", kind) for kind in (EventKind.DELIVER, EventKind.RECEIVE)),
)
LACKING_LITTLE = (
    *(lacking(name, EventKind.QUEUE) for name in ("sequence", "index")),
    *(lacking(name, *MESSAGE_KINDS) for name in ("priority", "view", "place")),
)
"""Of what a trace need not be wrong without."""
DAMAGES: tuple[Damage, ...] = (
    *(plain.swapped, plain.dropped, plain.hole, plain.doubled, plain.foreign, plain.late, plain.unsent),
    *(plain.undelivered, plain.rekeyed, exchanged, known_before, long_on_its_way, recounted, unreceived),
    *(received_again, in_another_view, at_another_time, viewless, of_another_priority, more_urgent, moved_on),
    *(killed, excluded, graded, *LACKING, *LACKING_LITTLE),
)


def damaged(trace: Trace, rows: Rows, *, lost: bool, cut: bool) -> Trace:
    """A damaged run; members that crashed have not closed their logs if `cut`, one has dropped a row if `lost`."""
    crashes = rows.select(rows.kind == EventKind.CRASH.code)
    gone = set(zip(crashes.sender.tolist(), crashes.sender_incarnation.tolist(), strict=True))
    logs = {log.member: log for log in trace.logs if (log.member, log.incarnation) not in gone}
    dropper = max(logs, default=-1) if lost else -1
    return Trace.from_rows(
        rows,
        trace.meta,
        [
            replace(log, closed=not (cut and (log.member, log.incarnation) in gone), dropped=int(log.member == dropper))
            for log in trace.logs
        ],
    )


def by_windows(
    trace: Trace,
    sizes: Sizes,
    limits: Sequence[int],
    bound_ns: int | None,
    read_again: int = 10**6,
    loaded: list[int] | None = None,
) -> list[dict[str, Verdict]]:
    """What is said of a trace that is cut into ranges of slots, and these into windows, by how much is looked at.

    The ranges that are read where the verdicts are made are added to `loaded`.
    """
    range_slots, window_rows = sizes
    number = trace.slot // range_slots
    ranges = np.unique(number).tolist()
    parts = [plain_rows(trace.select(number == n)) for n in ranges]

    def load(numbers: Collection[int], kind: EventKind | None = None) -> Rows:
        rows = concatenated([parts[n] for n in numbers])
        return rows if kind is None else rows.of_kind(kind)

    def load_here(numbers: Collection[int]) -> Rows:
        if loaded is not None:
            loaded.extend(numbers)
        return load(numbers)

    def gather(wanted: MessageSet, kinds: Collection[EventKind], numbers: Collection[int]) -> Rows:
        rows = load(numbers).of_kind(*kinds)
        return rows.select(in_message_set(rows, wanted))

    def judge(cut: Sequence[PriorityWindow], logs: tuple[LogFacts, ...] | None) -> list[WindowFinding]:
        limit_ns, found = NO_BOUND if bound_ns is None else bound_ns, []
        for one in cut:
            of = (
                (one.delivery_ranges, EventKind.DELIVER),
                (one.reception_ranges, EventKind.RECEIVE),
                (one.send_ranges, EventKind.SEND),
            )
            delivered, received, sent = (load(numbers, kind) for numbers, kind in of)
            rows = delivered, received, sent.select(in_message_set(sent, one.messages))
            found.append(check_window(logs, one.last_slots_by_priority, rows, trace.meta, limit_ns))
        return found

    def survey(
        numbers: Collection[int], without: frozenset[tuple[int, int]] = frozenset()
    ) -> list[PriorityRangeSummary]:
        slots = [(ranges[n] * range_slots, (ranges[n] + 1) * range_slots - 1) for n in numbers]
        return [summarize_priority_range([parts[n]], *of, without) for n, of in zip(numbers, slots, strict=True)]

    surveys = tuple(survey(range(len(ranges))))
    runs = [
        PriorityRun(trace.meta, trace.logs, surveys, load_here, gather, survey, bound_ns, limit) for limit in limits
    ]
    return [check_priority(run, judge, window_rows=window_rows, max_reread_factor=read_again) for run in runs]


def plain_rows(trace: Rows) -> Rows:
    return Rows(**{field.name: getattr(trace, field.name) for field in fields(Rows)})


def agree(trace: Trace, what: object, sizes: Sizes, bound_ns: int | None = None) -> tuple[dict[str, Verdict], int]:
    """By windows nothing else is said than of the whole; what that is, and how much of it windows cannot tell."""
    whole, untold = check_all(trace, bound_ns=bound_ns), 0
    limits = (10**9, 300)
    for looked_at_rows, found in zip(limits, by_windows(trace, sizes, limits, bound_ns), strict=True):
        assert found.keys() == whole.keys(), what
        for name, verdict in found.items():
            if verdict.status is Status.UNKNOWN and verdict.token in UNTOLD:
                assert looked_at_rows < 10**9, (what, name, verdict)
                untold += whole[name].status is not Status.UNKNOWN
                continue
            assert verdict.status is whole[name].status, (what, name)
            if name == "fifo" and looked_at_rows < 10**9:
                continue  # of what is looked at it tells the first
            assert verdict.witness == whole[name].witness, (what, name)
            if name not in {"total_order", "fifo"}:  # a part cannot tell which index is missing first, nor how often
                assert (verdict.reason, verdict.count) == (whole[name].reason, whole[name].count), (what, name)
            if name != "latency":  # whose quantiles are rounded
                assert verdict.figures == whole[name].figures, (what, name)
    return whole, untold


def sizes_of(chance: Chance) -> Sizes:
    """Few slots in a range, few rows in a window."""
    return int(chance.integers(1, 12)), int(chance.integers(1, 90))


LOW, HIGH = 0, 1
SMALL: dict[str, tuple[tuple[int, ...], dict[int, tuple[int, str]], tuple[Status, int]]] = {
    # The messages' priorities; by member, in which slot it starts and what it does; the verdict, and what it counts.
    "the less urgent one is in another range": (
        (LOW, HIGH),
        {1: (0, "R0 Q0 R1 Q1 D0 D1"), 2: (0, "R0 Q0 R1 Q1 D0 D1")},
        (Status.VIOLATED, 2),
    ),
    "the last less urgent one counts, not the first": (
        (LOW, LOW, HIGH),
        {1: (0, "R0 Q0 D0 R1 R2 D1 D2"), 2: (0, "R0 R1 Q0 D0 R2 D1 D2")},
        (Status.VIOLATED, 2),
    ),
    "what was consumed before need not be overtaken": (
        (LOW, LOW, HIGH),
        {1: (0, "R0 R1 D0 D1 R2 D2"), 2: (0, "R0 R1 R2 D0 D1 D2")},
        (Status.VALID, 0),
    ),
    "who came later does not count": (
        (LOW, HIGH, LOW),
        {1: (0, "R0 R2 R1 D0 D1 D2"), 2: (0, "R0 R2 R1 D0 D1 D2"), 3: (2, "R2 D2")},
        (Status.VIOLATED, 2),
    ),
    "who came had consumed nothing": (
        (LOW, HIGH),
        {1: (0, "R0 R1 D0 D1"), 2: (0, "R0 R1 D0 D1"), 3: (1, "R1 D1")},
        (Status.VIOLATED, 2),
    ),
    "who consumed nothing of what another did tells nothing of it": (
        (LOW, HIGH, LOW),
        {1: (0, "R0 R1 D0 D1 R2 D2"), 2: (0, "R0 R1 D0"), 3: (2, "R2 D2")},
        (Status.VIOLATED, 2),
    ),
    "one that never received it excuses all that it consumed": (
        (LOW, HIGH),
        {1: (0, "R0 R1 D0 D1"), 2: (0, "R0 R1 D0 D1"), 3: (0, "R0 D0")},
        (Status.VALID, 0),
    ),
    "received twice: the last counts": (
        (LOW, HIGH),
        {1: (0, "R0 R1 D0 R1 D1"), 2: (0, "R0 R1 D0 D1")},
        (Status.VALID, 0),
    ),
    "received and never delivered": (
        (LOW, HIGH),
        {1: (0, "R0 R1 D0"), 2: (0, "R0 R1 D0")},
        (Status.VIOLATED, 2),
    ),
    "never delivered, and everything urgent before": (
        (LOW, HIGH, HIGH),
        {1: (0, "R0 D0 R1 R2 D1"), 2: (0, "R0 D0 R1 R2 D1")},
        (Status.VALID, 0),
    ),
    "the smallest message that should have overtaken": (
        (LOW, HIGH, LOW, HIGH),
        {1: (0, "R0 R1 R2 R3 D2 D3 D0 D1"), 2: (0, "R0 R1 R2 R3 D2 D3 D0 D1")},
        (Status.VIOLATED, 4),
    ),
    "the smallest index is that of who came later": (
        (LOW, LOW, LOW, HIGH),
        {1: (0, "R0 D0 R1 D1 R2 R3 D2 D3"), 3: (2, "R2 R3 D2 D3")},
        (Status.VIOLATED, 2),
    ),
    "two members disagree": (
        (LOW, LOW),
        {1: (0, "R0 R1 D0 D1"), 2: (0, "R0 R1 D1 D0")},
        (Status.VALID, 0),
    ),
    "passed over by everybody": (
        (LOW, LOW, LOW, HIGH),
        {1: (0, "R0 R2 D0 D2 R3 D3"), 2: (0, "R0 R2 D0 D2 R3 D3")},
        (Status.VALID, 0),
    ),
    "delivered again in another range": (
        (LOW, HIGH),
        {1: (0, "R0 R1 D0 D1 D1"), 2: (0, "R0 R1 D0 D1 D1")},
        (Status.VIOLATED, 2),
    ),
    "overtaken across an edge, once where a member ends there": (
        (LOW, HIGH, HIGH),
        {1: (0, "R0 R1 D1 R2 D2 D0"), 2: (0, "R0 R1 D1 R2 D2")},
        (Status.VALID, 0),
    ),
}


@pytest.mark.parametrize("what", SMALL)
def test_small_runs_in_ranges_of_few_slots(what: str) -> None:
    levels, members, expected = SMALL[what]
    run = told(*levels)
    for member, (start, steps) in members.items():
        run.member(member, *steps.split(), start=start)
    trace = run.trace()
    for sizes in ((1, 1), (2, 10), (3, 100)):
        whole, _ = agree(trace, (what, sizes), sizes)
        assert (whole["priority_accounting"].status, whole["priority_accounting"].count) == expected
    run.crash(3, 1)
    broken_off = tuple(replace(log, closed=log.member != 3) for log in trace.logs)
    agree(replace(run.trace(), logs=broken_off), (what, "crashed"), (1, 1))


@pytest.mark.parametrize("what", SMALL)
def test_a_reception_without_a_count_makes_the_verdict_unknown(what: str) -> None:
    levels, members, _ = SMALL[what]
    run = told(*levels)
    for member, (start, steps) in members.items():
        run.member(member, *steps.split(), start=start)
    trace = run.trace()
    for row in np.flatnonzero(trace.kind == EventKind.RECEIVE.code).tolist():
        uncounted = Trace.from_rows(changed(trace, row, index=ABSENT), trace.meta, trace.logs)
        (found,) = by_windows(uncounted, (1, 1), [10**9], None)
        verdict = check_all(uncounted)["priority_accounting"]
        assert verdict.status is Status.UNKNOWN
        assert f"a reception of member {trace.member[row]} does not say" in verdict.reason
        assert found["priority_accounting"] == verdict


@pytest.mark.parametrize(("logs", "text"), PLANTED)
def test_views_that_are_not_atomic_are_found_across_ranges(logs: dict[int, list[Event]], text: str) -> None:
    trace = viewed(logs, "priority")
    for sizes in ((1, 1), (2, 1), (100, 1)):
        (found,) = by_windows(trace, sizes, [10**9], None)
        assert found["view_atomicity"] == view_atomicity(trace), text


def test_a_crashed_member_that_consumed_otherwise_does_not_make_the_rest_unknown() -> None:
    run = told(LOW, LOW, HIGH, LOW)
    for member in (1, 2):
        run.member(member, *("R0", "R1", "D0", "D1", "R2", "D2", "R3", "D3"))
    run.member(3, "R0", "R1", "D1")
    run.crash(3, 1)
    for sizes in ((1, 1), (3, 100)):
        (found,) = by_windows(run.trace(), sizes, [0], None)
        assert found["priority_accounting"] == check_all(run.trace())["priority_accounting"]
        assert found["priority_accounting"].status is Status.VALID


@pytest.mark.parametrize("crashed", [1, 3])
def test_deliveries_of_a_crashed_member_before_an_urgent_message_do_not_count_against_others(crashed: int) -> None:
    run = told(HIGH, LOW, HIGH)
    for member in {1, 2, 3} - {crashed}:
        run.member(member, *("R0", "R1", "R2", "D0", "D2", "D1"))
    run.member(crashed, "R0", "R1", "R2", "D1")
    run.crash(crashed, 1)
    for sizes in ((1, 1), (3, 100)):
        (found,) = by_windows(run.trace(), sizes, [0], None)
        assert found["priority_accounting"] == check_all(run.trace())["priority_accounting"]
        assert found["priority_accounting"].status is Status.VALID


def test_consumption_at_a_crashed_member_only_excuses_nothing() -> None:
    run = told(LOW, LOW, HIGH, LOW)
    for member in (1, 2):
        run.member(member, *("R0", "R3", "D0", "R2", "D3", "D2"))
    run.member(3, "R0", "R3", "R1", "D0", "D1", "R2")
    run.crash(3, 2)
    whole = check_all(run.trace())["priority_accounting"]
    assert whole.status is Status.VIOLATED
    enough, little = by_windows(run.trace(), (1, 1), [10**9, 0], None)
    assert enough["priority_accounting"] == whole
    assert little["priority_accounting"].status is Status.UNKNOWN


def test_verdicts_that_depend_on_a_diverging_log_need_the_whole_run() -> None:
    """Member 3 had consumed 0 when it received 2, which so need not overtake it: that is seen as a whole only."""
    run = told(LOW, LOW, HIGH)
    for member in (1, 2):
        run.member(member, *("R0", "R1", "R2", "D0", "D1", "D2"))
    run.member(3, "R0", "R1", "D1", "D0", "R2")
    run.crash(3, 2)
    whole = check_all(run.trace())["priority_accounting"]
    assert whole.status is Status.VALID
    enough, little = by_windows(run.trace(), (1, 1), [10**9, 0], None)
    assert enough["priority_accounting"] == whole
    assert little["priority_accounting"].status is Status.UNKNOWN


def test_deliveries_after_a_member_left_are_not_suspect() -> None:
    run = told(*[LOW] * 20)
    both = [f"{step}{message}" for message in range(20) for step in "RQD"]
    for member in (1, 2):
        run.member(member, *both)
    run.member(3, *both[:3])
    run.memory.recorder(3, incarnation=1).event(EventKind.LEAVE, slot=1, real_ns=9, local_ns=9)
    trace = run.trace()
    (found,) = by_windows(trace, (1, 1), [30], 1000)
    assert found["gap_freedom"] == check_all(trace, bound_ns=1000)["gap_freedom"]
    assert found["gap_freedom"].status is Status.VALID


def test_undelivered_messages_are_checked_from_summaries_and_few_rows() -> None:
    """Each urgent message comes in the middle of a range, and the less urgent ones behind it overtake it."""
    run = told(*[LOW] * 18, *[HIGH] * 6)
    steps = [f"R{message}" for message in range(18)]
    for message in range(18):
        steps += [f"D{message}"] if message % 3 else [f"D{message}", f"R{18 + message // 3}"]
    for member in (1, 2, 3):
        run.member(member, *steps)
    loaded: list[int] = []
    (found,) = by_windows(run.trace(), (3, 1), [10**9], None, loaded=loaded)
    assert found["priority_accounting"] == priority_accounting(run.trace())
    assert found["priority_accounting"].count == 18
    assert len(loaded) == 1  # for the witness


def test_a_range_with_only_queue_steps_is_read_in_a_whole_run_check() -> None:
    run = told(LOW, HIGH)
    for member in (1, 2):
        run.member(member, "R0", "Q0", "R1", "Q1", "D0", "D1")
    trace = run.trace()
    slot = np.where(trace.kind == EventKind.QUEUE.code, 50, trace.slot)
    slot += 3 * ((trace.member == 2) & (trace.kind == EventKind.DELIVER.code) & (trace.index == 1))
    whole, _ = agree(replace(trace, slot=slot), "queued elsewhere", (1, 1))
    assert (
        whole["priority_accounting"].reason
        == "breaks priority accounting (paper 004, P2) as stated in words and in equation (1)"
    )


def test_messages_that_lie_in_many_ranges_are_not_read_again_and_again() -> None:
    run = told(LOW, HIGH)
    for member in (1, 2):
        run.member(member, "R0", "Q0", "R1", "Q1", "D0", "D1")
    (found,) = by_windows(run.trace(), (1, 1), [10**9], None, read_again=0)
    unknown = {name for name, verdict in found.items() if "scattered" in verdict.reason}
    assert unknown == {"priority_accounting", "latency"}
    assert {found[name].status for name in unknown} == {Status.UNKNOWN}
    assert found["total_order"].status is Status.VALID


def test_windows_cannot_check_explained_gaps_or_several_grades() -> None:
    run = told(LOW)
    run.member(1, "R0", "Q0", "D0")
    trace = run.trace()
    (found,) = by_windows(replace(trace, meta=replace(trace.meta, reliable=False)), (1, 1), [10**9], None)
    assert "gap_freedom" not in found
    assert found["gaps_explained"].status is Status.UNKNOWN
    delivered = np.flatnonzero(trace.kind == EventKind.DELIVER.code)
    twice = concatenated([plain_rows(trace), plain_rows(trace.select(delivered))])
    grade = np.where(twice.kind == EventKind.DELIVER.code, 0, -1)
    grade[-1] = 1
    graded = replace(twice, grade=grade.astype(np.int32), grades=("early", "final"))
    (found,) = by_windows(Trace.from_rows(graded, trace.meta, trace.logs), (1, 1), [10**9], None)
    assert {verdict.status for verdict in found.values()} == {Status.UNKNOWN}


def test_clean_runs_are_decided_by_windows() -> None:
    for seed in range(8):
        whole, _ = agree(simulated(seed), seed, sizes_of(np.random.default_rng(seed)))
        assert {verdict.status for verdict in whole.values()} == {Status.VALID}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_one_damage(damage: Damage) -> None:
    statuses = set()
    for seed in range(2):
        trace, chance = simulated(seed), np.random.default_rng(100 + seed)
        harmed = damaged(trace, damage(trace, chance), lost=False, cut=bool(seed % 2))
        whole, _ = agree(harmed, (damage.__name__, seed), sizes_of(chance))
        statuses |= {verdict.status for verdict in whole.values()}
    harmless = {plain.late, excluded, killed, of_another_priority, recounted, at_another_time, *LACKING_LITTLE}
    assert (statuses == {Status.VALID}) <= (damage in harmless)


def several(seed: int) -> None:
    """A run with up to four damages, at times with a bound."""
    trace, chance = simulated(seed), np.random.default_rng(seed)
    rows: Rows = trace
    done = []
    for _ in range(int(chance.integers(0, 5))):
        damage = DAMAGES[int(chance.integers(len(DAMAGES)))]
        if {k.code for k in (EventKind.DELIVER, EventKind.RECEIVE, EventKind.SEND, EventKind.VIEW)} <= set(rows.kind):
            rows = damage(rows, chance)
            done.append(damage.__name__)
    harmed = damaged(trace, rows, lost=chance.integers(9) == 0, cut=bool(chance.integers(2)))
    bound_ns = int(chance.integers(1, 100_000)) if chance.integers(4) == 0 else None
    agree(harmed, (seed, done), sizes_of(chance), bound_ns)


def test_several_damages() -> None:
    for seed in range(12):
        several(seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(1000, 11_000, 500))
def test_several_damages_in_10_000_runs(first: int) -> None:
    for seed in range(first, first + 500):
        several(seed)
