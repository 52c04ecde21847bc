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
    changed,
    crashed,
    doubled,
    dropped,
    foreign,
    hole,
    late,
    picked,
    swapped,
    undelivered,
    unsent,
)

from unisono.check.suite import check_all
from unisono.check.verdict import Status, Verdict
from unisono.pipeline.verify import RunReport, verify
from unisono.trace.files import read_trace, write_trace
from unisono.trace.kinds import NUMBERS, OBSERVER, EventKind
from unisono.trace.meta import RunMeta
from unisono.trace.table import EMPTY, Log, Rows, Trace, concatenated

SLOT_NS = 1_000_000
BOUND_NS = 5 * SLOT_NS
RANGE = 5
MEMBERS = (1, 2, 3)
SETS = ((1, 2), (1, 2, 3), (2, 3))
ORDERS = ("causal", "uniform", "quasi_genuine", "vbr")
CANNOT = ("suspect", "scattered", "by turns", "distant slots", "much later slots", "never delivered what")


def rows_of(rows: list[dict[str, int]]) -> Rows:
    columns: dict[str, Any] = {
        name: np.array([row.get(name, -1) for row in rows], dtype=dtype) for name, dtype in NUMBERS.items()
    }
    columns["kind"] = np.array([row["kind"] for row in rows], dtype=np.int8)
    for name in ("grade", "destinations", "note"):
        columns[name] = np.array([row.get(name, -1) for row in rows], dtype=np.int32)
    return replace(EMPTY, **columns, grades=("early", "final"), destination_sets=SETS)


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
                whom = int(chance.integers(len(SETS))) if order == "quasi_genuine" else -1
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
            if order != "vbr":
                rows.append(one)
                continue
            rows.append(one | {"grade": 0})
            rows.append(one | {"grade": 1, "place": index, "real_ns": one["real_ns"] + SLOT_NS})
    rows.append({"kind": EventKind.NOTICE.code, "member": 1, "sender": 1, "slot": slots, "real_ns": 5 * 10**9})
    everything = rows_of(rows)
    zeros = np.zeros(len(everything), dtype=np.int64)
    return replace(everything, life=zeros, incarnation=zeros)


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
    """A member crashes, and of what it logged before that the last send of the first range is lost."""
    gone = crashed(rows, chance)
    member = gone.sender[gone.kind == EventKind.CRASH.code].tolist()[-1]
    sent = np.flatnonzero((gone.kind == EventKind.SEND.code) & (gone.sender == member) & (gone.slot < RANGE))
    return gone.select(np.arange(len(gone)) != sent[-1]) if len(sent) else gone


Damage = Callable[[Rows, Chance], Rows]
DAMAGES: tuple[Damage, ...] = (
    *(swapped, dropped, hole, doubled, foreign, late, unsent, undelivered, crashed),
    *(strayed, numbered, ended, excused, unlogged),
)


def trace_of(rows: Rows, order: str, lost: int, cut: bool) -> Trace:
    gone = set(rows.sender[rows.kind == EventKind.CRASH.code].tolist())
    meta = RunMeta("r", "g", order, MEMBERS, 2 * SLOT_NS, SLOT_NS, SLOT_NS, BOUND_NS, True, "simulator")
    logs = [Log(m, 0, closed=m not in gone and not (cut and m == 2), dropped=lost if m == 1 else 0) for m in MEMBERS]
    return Trace.from_rows(rows, meta, [Log(OBSERVER, 0), *logs] if OBSERVER in rows.member else logs)


def judged(folder: Path, trace: Trace, range_slots: int) -> tuple[RunReport, dict[str, Verdict]]:
    """By tiles, and as a whole."""
    written = write_trace(folder, trace, range_slots=range_slots)
    (report,) = verify(folder, whole_rows=0)
    return report, check_all(read_trace(written))


def agree(report: RunReport, whole: dict[str, Verdict], what: object) -> int:
    """That nothing else is said than of the whole; how much was unknown though the whole tells it."""
    assert report.verdicts.keys() == whole.keys(), what
    untold = 0
    for name, verdict in report.verdicts.items():
        if verdict.status is Status.UNKNOWN and any(words in verdict.reason for words in CANNOT):
            untold += whole[name].status is not Status.UNKNOWN
            continue
        here, there = ((v.name, v.status, v.witness) for v in (verdict, whole[name]))
        assert here == there, (what, name)
        if not name.startswith("total_order"):  # a part of the run cannot tell which index is missing first
            assert verdict.reason == whole[name].reason, (what, name)
        if name.partition("[")[0] in {"integrity", "agreement", "validity", "destined", "latency", "early_in_final"}:
            assert verdict.count == whole[name].count, (what, name)
    return untold


@pytest.mark.parametrize("order", ORDERS)
def test_tiles_say_what_the_whole_says(order: str, tmp_path: Path) -> None:
    told, untold = 0, 0
    for number, damage in enumerate([None, *DAMAGES]):
        chance = np.random.default_rng(number)
        rows = run(chance, order, 14)
        if damage is not None:
            rows = damage(rows, chance)
        trace = trace_of(rows, order, lost=0, cut=False)
        report, whole = judged(tmp_path / str(number), trace, range_slots=RANGE)
        untold += agree(report, whole, (order, damage))
        told += len(whole)
        if damage is None:
            assert report.status is Status.VALID, report.verdicts
    assert untold <= told // 20


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", range(40))
def test_several_damages(order: str, seed: int, tmp_path: Path) -> None:
    chance = np.random.default_rng(5000 + seed)
    rows = run(chance, order, int(chance.integers(6, 40)))
    for _ in range(int(chance.integers(1, 5))):
        rows = DAMAGES[int(chance.integers(len(DAMAGES)))](rows, chance)
    lost, cut = int(chance.integers(6) == 0), bool(chance.integers(6) == 0)
    report, whole = judged(tmp_path, trace_of(rows, order, lost, cut), int(chance.integers(1, 9)))
    agree(report, whole, (order, seed))


def test_what_is_suspect_beyond_what_is_looked_at_is_never_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unisono.pipeline.verify.LOOKED_AT_ROWS", 1)
    chance = np.random.default_rng(3)
    rows = concatenated([run(chance, "uniform", 30)])
    for _ in range(9):
        rows = dropped(rows, chance)
    write_trace(tmp_path, trace_of(rows, "uniform", 0, cut=False), range_slots=2)
    (report,) = verify(tmp_path, whole_rows=0)
    assert report.verdicts["uniform_agreement"].status is Status.VIOLATED, "one part is enough to see it"
    assert report.verdicts["integrity"].status is Status.VALID
