"""Long runs without one sequence of keys, or with final deliveries, are judged by tiles and ranges as the checkers
judge the whole run: clean, with every kind of damage, and with several at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.property.test_check_ranges import (
    Chance,
    alike,
    as_read,
    changed,
    crashed,
    doubled,
    dropped,
    foreign,
    hole,
    late,
    level,
    picked,
    repeated,
    swapped,
    undelivered,
    unindexed,
    unsent,
)

from unisono.check.suite import check_all
from unisono.check.verdict import Reason, Status, Verdict
from unisono.pipeline.verify import RunReport, verify
from unisono.trace.files import Layout, PartFile, RangeFiles, read_trace, write_trace
from unisono.trace.schema import CODED, NUMBER_COLUMNS, EventKind, RunMeta
from unisono.trace.table import EMPTY, MemberLog, Rows, Trace, concatenated

SLOT_NS = 1_000_000
BOUND_NS = 5 * SLOT_NS
RANGE = 5
MEMBERS = (1, 2, 3)
SETS = ((1, 2), (1, 2, 3), (2, 3))
ORDERS = ("causal", "uniform", "quasi_genuine", "graded", "vbr")
"""With `graded` for multicast to several groups whose deliveries are early first."""
COUNTED = {"integrity", "agreement", "validity", "destined", "latency", "early_in_final", "final_order", "causal"}
CANNOT = (Reason.TOO_MUCH_SUSPECT, Reason.SCATTERED)


def rows_of(rows: list[dict[str, int]], sets: tuple[tuple[int, ...], ...]) -> Rows:
    columns: dict[str, Any] = {
        name: np.array([row.get(name, -1) for row in rows], dtype=dtype) for name, dtype in NUMBER_COLUMNS.items()
    }
    columns["kind"] = np.array([row["kind"] for row in rows], dtype=np.int8)
    for name in CODED:
        columns[name] = np.array([row.get(name, -1) for row in rows], dtype=np.int32)
    return replace(EMPTY, **columns, grades=("early", "final"), destination_sets=sets)


def run(chance: Chance, order: str, slots: int) -> Rows:
    """A clean run; its last messages have time to become final, or to be delivered by everybody."""
    rows: list[dict[str, int]] = [
        {"kind": EventKind.START.code, "member": m, "sender": m, "slot": 0, "real_ns": 0} for m in MEMBERS
    ]
    messages = []
    sequence = dict.fromkeys(MEMBERS, 0)
    for slot in range(slots):
        for sender in MEMBERS:
            for place in range(int(chance.integers(0, 3))):
                # A send is noted by the sender's clock: at a slot's edge that may be another slot than the key's.
                noted = max(0, slot + int(chance.integers(-1, 2)) * int(chance.integers(0, 5) == 0))
                whom = int(chance.integers(len(SETS))) if order in {"quasi_genuine", "graded"} else -1
                common = {"sender": sender, "sequence": sequence[sender], "place": (sender << 32) + place}
                messages.append((common, slot, slot * SLOT_NS + sender * 1000 + place, whom))
                send = {"kind": EventKind.SEND.code, "member": sender, "slot": noted, "destinations": whom}
                rows.append(common | send | {"real_ns": messages[-1][2]})
                sequence[sender] += 1
    for member in MEMBERS:
        meant = [message for message in messages if message[3] < 0 or member in SETS[message[3]]]
        for index, (common, slot, sent_ns, _) in enumerate(meant):
            one = common | {"kind": EventKind.DELIVER.code, "member": member, "slot": slot, "index": index}
            one["real_ns"] = sent_ns + 2 * SLOT_NS + member * 10
            if order not in {"vbr", "graded"}:
                rows.append(one)
                continue
            rows.append(one | {"grade": 0})
            number = {"place": index} if order == "vbr" else {}
            rows.append(one | number | {"grade": 1, "real_ns": one["real_ns"] + SLOT_NS})
    rows.append({"kind": EventKind.NOTICE.code, "member": 1, "sender": 1, "slot": slots, "real_ns": 5 * 10**9})
    everything = rows_of(rows, SETS if order in {"quasi_genuine", "graded"} else ())
    zeros = np.zeros(len(everything), dtype=np.int64)
    return replace(everything, recorder_incarnation=zeros, sender_incarnation=zeros)


def strayed(rows: Rows, chance: Chance) -> Rows:
    """A delivery at another member than it was at."""
    row = picked(rows, chance, EventKind.DELIVER)
    return changed(rows, row, member=int(rows.member[row]) % 3 + 1)


def numbered(rows: Rows, chance: Chance) -> Rows:
    """A delivery under another place."""
    row = picked(rows, chance, EventKind.DELIVER)
    return changed(rows, row, place=int(rows.place[row]) + int(chance.integers(1, 4)))


def ended(rows: Rows, chance: Chance) -> Rows:
    """A member delivers nothing more from some slot on."""
    member, slot = int(chance.integers(1, 4)), int(chance.integers(1, 12))
    return rows.select((rows.kind != EventKind.DELIVER.code) | (rows.member != member) | (rows.slot < slot))


def excused(rows: Rows, chance: Chance) -> Rows:
    """A member leaves, and its part ends."""
    gone = crashed(rows, chance)
    return replace(gone, kind=np.where(gone.kind == EventKind.CRASH.code, EventKind.LEAVE.code, gone.kind))


def unlogged(rows: Rows, chance: Chance) -> Rows:
    """A member crashes, and of what it logged before that the last send of a slot is lost."""
    gone = crashed(rows, chance)
    member = gone.sender[gone.kind == EventKind.CRASH.code].tolist()[-1]
    sent = np.flatnonzero((gone.kind == EventKind.SEND.code) & (gone.sender == member))
    before = sent[gone.slot[sent] < gone.slot[sent].max(initial=0)]
    if len(before) == 0:
        return gone
    last = before[gone.slot[before] == chance.choice(gone.slot[before])][-1]
    return gone.select(np.arange(len(gone)) != last)


def returned(rows: Rows, chance: Chance) -> Rows:
    """A member crashes and restarts at once: the new incarnation numbers its messages and deliveries from zero."""
    gone = crashed(rows, chance)
    at = np.flatnonzero(gone.kind == EventKind.CRASH.code)[-1:]
    member, slot = int(gone.sender[at[0]]), int(gone.slot[at[0]])
    again = (
        (rows.member == member)
        & (rows.slot >= slot)
        & (rows.recorder_incarnation == 0)
        & (rows.kind != EventKind.START.code)
    )
    sent = rows.sequence[again & (rows.kind == EventKind.SEND.code)]
    first = int(sent.min()) if len(sent) else int(rows.sequence.max()) + 1
    its = (rows.sender == member) & (rows.sequence >= first) & (rows.sender_incarnation == 0)
    delivered = again & (rows.kind == EventKind.DELIVER.code)
    had = int(rows.index[delivered].min()) if delivered.any() else 0
    restarted = replace(
        rows,
        recorder_incarnation=np.where(again, 1, rows.recorder_incarnation),
        sender_incarnation=np.where(its, 1, rows.sender_incarnation),
        sequence=np.where(its, rows.sequence - first, rows.sequence),
        index=np.where(delivered, rows.index - had, rows.index),
    )
    start = changed(
        gone.select(at), 0, kind=EventKind.START.code, member=member, recorder_incarnation=1, sender_incarnation=1
    )
    return concatenated([restarted, gone.select(at), start])


def curtailed(rows: Rows, chance: Chance) -> Rows:
    """A member lacks the end of what all others delivered."""
    mine = np.flatnonzero(alike(rows, picked(rows, chance, EventKind.DELIVER)))
    most = np.sort(rows.index[mine])[-int(chance.integers(1, 3))]
    return rows.select(~np.isin(np.arange(len(rows)), mine[rows.index[mine] >= most]))


def passed_over(rows: Rows, chance: Chance) -> Rows:
    """From some delivery on, a member's are numbered one too high."""
    row = picked(rows, chance, EventKind.DELIVER)
    later = alike(rows, row) & (rows.index >= rows.index[row])
    return replace(rows, place=rows.place + later)


def stray(rows: Rows, chance: Chance) -> Rows:
    """A send under a number that is out of turn."""
    row = picked(rows, chance, EventKind.SEND)
    return changed(rows, row, sequence=int(chance.integers(0, 2000)))


def sent_late(rows: Rows, chance: Chance) -> Rows:
    """A message that its sender sent after much that others delivered later than it."""
    row = picked(rows, chance, EventKind.SEND)
    return changed(rows, row, real_ns=int(rows.real_ns[row]) + int(chance.integers(1, 12)) * SLOT_NS)


def early_only(rows: Rows, chance: Chance) -> Rows:
    """Nothing becomes final."""
    del chance
    return rows.select((rows.kind != EventKind.DELIVER.code) | (rows.grade != 1))


def unheralded(rows: Rows, chance: Chance) -> Rows:
    """The log has no events about members."""
    del chance
    return rows.of_kind(EventKind.SEND, EventKind.DELIVER)


Damage = Callable[[Rows, Chance], Rows]
DAMAGES: tuple[Damage, ...] = (
    *(swapped, dropped, hole, level, unindexed, doubled, foreign, late, unsent, undelivered, crashed),
    *(strayed, numbered, ended, excused, unlogged, returned, stray, early_only, unheralded),
    *(curtailed, passed_over, repeated, sent_late),
)


def trace_of(rows: Rows, order: str, lost: int, cut: bool) -> Trace:
    gone = set(rows.sender[rows.kind == EventKind.CRASH.code].tolist())
    order = "quasi_genuine" if order == "graded" else order
    meta = RunMeta("r", "g", order, MEMBERS, 2 * SLOT_NS, SLOT_NS, SLOT_NS, BOUND_NS, True, "simulator")
    known = {(m, 0) for m in MEMBERS} | set(zip(rows.member.tolist(), rows.recorder_incarnation.tolist(), strict=True))
    logs = [
        MemberLog(m, life, closed=not (m in gone and life == 0) and not (cut and m == 2), dropped=lost if m == 1 else 0)
        for m, life in sorted(known)
    ]
    return Trace.from_rows(rows, meta, logs)


def in_memory(trace: Trace, range_slots: int, patch: pytest.MonkeyPatch) -> Callable[..., list[Rows]]:
    """Have a trace's files read from memory, one of each member and range; gives how they are read."""
    files: dict[str, Rows] = {}
    ranges = []
    for number in np.unique(trace.slot // range_slots).tolist():
        here, parts = trace.slot // range_slots == number, []
        for log in trace.logs:
            rows = trace.select(here & (trace.member == log.member) & (trace.recorder_incarnation == log.incarnation))
            if len(rows):
                path = f"{number}.{log.member}.{log.incarnation}"
                files[path] = as_read(rows, number)
                parts.append(PartFile(path, log.member, log.incarnation, len(rows), None))
        ranges.append(RangeFiles(number * range_slots, (number + 1) * range_slots - 1, tuple(parts), "r", "g"))

    def read_range(of: RangeFiles, *, all_columns: bool = False, checked: bool = False) -> list[Rows]:
        del all_columns, checked
        return [files[part.path] for part in of.parts]

    for module in ("spark_tasks", "verify"):
        patch.setattr(f"unisono.pipeline.{module}.read_range", read_range)
    plan = Layout("memory", trace.meta, trace.logs, tuple(ranges))
    patch.setattr("unisono.pipeline.verify.find_groups", lambda path: [Path(path)])
    patch.setattr("unisono.pipeline.verify.read_meta", lambda path: trace.meta)
    patch.setattr("unisono.pipeline.verify.layout", lambda folder: plan)
    return read_range


def by_parts(trace: Trace, range_slots: int, looked_at_rows: int = 10**9) -> RunReport:
    """The report of a run that is too long to be read as a whole, however short it is."""
    with pytest.MonkeyPatch.context() as patch:
        in_memory(trace, range_slots, patch)
        (report,) = verify("memory", max_whole_rows=0, max_suspect_rows=looked_at_rows)
        return report


def agree(report: RunReport, whole: dict[str, Verdict], what: object) -> int:
    """That nothing else is said than of the whole; how much was unknown though the whole tells it."""
    assert report.verdicts.keys() == whole.keys(), what
    untold = 0
    for name, verdict in report.verdicts.items():
        if verdict.status is Status.UNKNOWN and verdict.token in CANNOT:
            untold += whole[name].status is not Status.UNKNOWN
            continue
        here, there = ((v.name, v.status, v.witness) for v in (verdict, whole[name]))
        assert here == there, (what, name)
        if not name.startswith("total_order"):  # a part of the run cannot tell which index is missing first
            assert verdict.reason == whole[name].reason, (what, name)
        if name.partition("[")[0] in {
            "integrity",
            "agreement",
            "validity",
            "destined",
            "latency",
            "early_in_final",
            "final_order",
        }:
            assert verdict.count == whole[name].count, (what, name)
        for figure in ("deliveries", "late", "min_ns", "max_ns"):
            assert verdict.figures.get(figure) == whole[name].figures.get(figure), (what, name)
    return untold


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("damage", [None, *DAMAGES], ids=lambda damage: getattr(damage, "__name__", "clean"))
def test_one_damage(order: str, damage: Damage | None) -> None:
    untold = 0
    for seed in range(2):
        chance = np.random.default_rng(seed)
        rows = run(chance, order, 12)
        if damage is not None:
            rows = damage(rows, chance)
        trace = trace_of(rows, order, lost=0, cut=False)
        whole = check_all(trace)
        report = by_parts(trace, 1 + 3 * seed)
        untold += agree(report, whole, (order, damage, seed))
        if damage is None:
            assert report.status is Status.VALID, report.verdicts
    assert untold <= 1


OTHER_WITNESS = {("vbr", 66)}
"""Four damages at once: the first one in the whole run is in a range that is clean by itself; another is reported."""


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", [*range(9), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(9, 140))])
def test_several_damages(order: str, seed: int) -> None:
    chance = np.random.default_rng(5000 + seed)
    rows = run(chance, order, int(chance.integers(6, 40)))
    for _ in range(int(chance.integers(1, 5))):
        rows = DAMAGES[int(chance.integers(len(DAMAGES)))](rows, chance)
    lost, cut = int(chance.integers(6) == 0), bool(chance.integers(6) == 0)
    trace = trace_of(rows, order, lost, cut)
    range_slots, whole = int(chance.integers(1, 9)), check_all(trace)
    report = by_parts(trace, range_slots)
    if (order, seed) in OTHER_WITNESS:
        assert {name: v.status for name, v in report.verdicts.items()} == {name: v.status for name, v in whole.items()}
    else:
        agree(report, whole, (order, seed))
    for name, verdict in by_parts(trace, range_slots, looked_at_rows=1).verdicts.items():
        assert verdict.status is Status.UNKNOWN or verdict.status is whole[name].status, (order, seed, name)


@pytest.mark.parametrize("order", ORDERS)
def test_from_files_as_from_memory(order: str, tmp_path: Path) -> None:
    trace = trace_of(strayed(run(np.random.default_rng(1), order, 14), np.random.default_rng(1)), order, 0, cut=False)
    folder = write_trace(tmp_path, trace, range_slots=RANGE)
    (report,) = verify(folder, max_whole_rows=0)
    assert report.verdicts == by_parts(trace, RANGE).verdicts
    agree(report, check_all(read_trace(folder)), order)


def test_suspect_rows_beyond_the_limit_are_never_valid() -> None:
    chance = np.random.default_rng(3)
    rows = run(chance, "uniform", 30)
    for _ in range(9):
        rows = dropped(rows, chance)
    report = by_parts(trace_of(rows, "uniform", 0, cut=False), 2, looked_at_rows=1)
    assert report.verdicts["uniform_agreement"].status is Status.VIOLATED, "one part is enough to see it"
    assert report.verdicts["integrity"].status is Status.VALID
