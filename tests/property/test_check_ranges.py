"""The verdicts from surveys of ranges are those of the checkers over the whole run: on clean runs, on every kind of
damage alone, and on several at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from unisono.check.ranges import SummarizedRun, check_ranges, overlapping
from unisono.check.shard_summary import LatencySummary, summarize_range
from unisono.check.suite import check_all
from unisono.check.verdict import Reason, Status, Verdict
from unisono.trace.schema import CODED, NUMBER_COLUMNS, OBSERVER, EventKind, RunMeta
from unisono.trace.table import EMPTY, Mask, MemberLog, Rows, Trace, concatenated

SLOT_NS = 1_000_000
BOUND_NS = 5 * SLOT_NS
PLACE = 1 << 32
Chance = np.random.Generator
Damage = Callable[[Rows, Chance], Rows]


def by_ranges(trace: Trace, range_slots: int, looked_at_rows: int = 10**9, clean: bool = False) -> dict[str, Verdict]:
    """What `check_ranges` says of a trace cut into ranges; of a clean one it reads next to nothing again."""
    number = trace.slot // range_slots
    ranges = np.unique(number).tolist()
    parts = [as_read(trace.select(number == n), n) for n in ranges]
    read: list[int] = []

    def load(wanted: Sequence[int]) -> Rows:
        read.extend(wanted)
        return concatenated([parts[n] for n in wanted])

    surveys = tuple(
        summarize_range([part], n * range_slots, (n + 1) * range_slots - 1, grade=None, bound_ns=trace.meta.bound_ns)
        for n, part in zip(ranges, parts, strict=True)
    )
    verdicts = check_ranges(
        SummarizedRun(
            trace.meta, trace.logs, surveys, load, max_suspect_rows=looked_at_rows, max_whole_rows=looked_at_rows
        )
    )
    if all(verdict.status is Status.VALID and not verdict.reason for verdict in verdicts.values()):
        assert not read or not clean
    return verdicts


def as_read(rows: Rows, number: int) -> Rows:
    """The rows of a range as files may have them: in the order of recording, mostly."""
    if number % 3 == 2:
        rows = rows.select(np.random.default_rng(number).permutation(len(rows)))
    return Rows(**{column.name: getattr(rows, column.name) for column in fields(Rows)})


def run(chance: Chance, members: int, slots: int) -> Rows:
    """A clean run: each member sends up to three messages per slot, and delivers everything within the bound."""
    rows: list[dict[str, int]] = []
    sequence = [0] * (members + 1)
    index = 0
    for slot in range(slots):
        for sender in range(1, members + 1):
            for place in range(int(chance.integers(0, 4))):
                sent_ns = slot * SLOT_NS + place
                # A send is noted by the sender's clock: at a slot's edge that may be another slot than the key's.
                noted = max(0, slot - int(chance.integers(0, 30) == 0))
                common = {
                    "sender": sender,
                    "sender_incarnation": 0,
                    "sequence": sequence[sender],
                    "place": sender * PLACE + place,
                }
                rows.append(
                    common
                    | {"kind": EventKind.SEND.code, "member": sender, "slot": noted, "real_ns": sent_ns, "index": -1}
                )
                for member in range(1, members + 1):
                    took = int(chance.integers(1, BOUND_NS))
                    kind = EventKind.DELIVER.code
                    rows.append(
                        common
                        | {"kind": kind, "member": member, "slot": slot, "real_ns": sent_ns + took, "index": index}
                    )
                sequence[sender] += 1
                index += 1
    columns: dict[str, Any] = {
        name: np.array([row.get(name, 0) for row in rows], dtype=dtype) for name, dtype in NUMBER_COLUMNS.items()
    }
    columns["kind"] = np.array([row["kind"] for row in rows], dtype=np.int8)
    for name in CODED:
        columns[name] = np.full(len(rows), -1, dtype=np.int32)
    return replace(EMPTY, **columns)


def picked(rows: Rows, chance: Chance, kind: EventKind) -> int:
    """One row, in half of all cases the first or the last of a slot: there ranges have their edges."""
    of = np.flatnonzero(rows.kind == kind.code)
    if chance.integers(2):
        columns = (rows.sequence, rows.index, rows.grade, rows.recorder_incarnation, rows.member)
        of = of[np.lexsort([column[of] for column in columns])]
        change = np.diff(rows.slot[of]) != 0
        of = of[np.append(True, change) | np.append(change, True)]
    return int(chance.choice(of))


def changed(rows: Rows, row: int, **values: int) -> Rows:
    columns: dict[str, Any] = {name: getattr(rows, name).copy() for name in values}
    for name, value in values.items():
        columns[name][row] = value
    return replace(rows, **columns)


def alike(rows: Rows, row: int) -> Mask:
    """The deliveries of the same log and grade."""
    mask: Mask = np.ones(len(rows), dtype=bool)
    for column in (rows.kind, rows.grade, rows.member, rows.recorder_incarnation):
        mask &= column == column[row]
    return mask


def swapped(rows: Rows, chance: Chance) -> Rows:
    """Two deliveries of one member change places."""
    one = picked(rows, chance, EventKind.DELIVER)
    same = np.flatnonzero(alike(rows, one))
    other = int(chance.choice(same))
    if chance.integers(2):  # neighbours, mostly
        other = int(same[np.argmin(np.abs(rows.index[same] - rows.index[one] - 1))])
    first = int(rows.index[one])
    return changed(changed(rows, one, index=int(rows.index[other])), other, index=first)


def turned(rows: Rows, chance: Chance) -> Rows:
    """Everybody delivers two messages the other way round."""
    one = int(rows.index[picked(rows, chance, EventKind.DELIVER)])
    index = rows.index.copy()
    index[rows.index == one], index[rows.index == one + 1] = one + 1, one
    return replace(rows, index=index)


def dropped(rows: Rows, chance: Chance) -> Rows:
    """A delivery is not there; the member's index goes on without it."""
    gone = picked(rows, chance, EventKind.DELIVER)
    later = alike(rows, gone) & (rows.index > rows.index[gone])
    return replace(rows, index=rows.index - later).select(np.arange(len(rows)) != gone)


def level(rows: Rows, chance: Chance) -> Rows:
    """A delivery has the index of another one, and its own index is unused."""
    row = picked(rows, chance, EventKind.DELIVER)
    return changed(rows, row, index=max(int(rows.index[row]) - int(chance.integers(1, 3)), 0))


def unindexed(rows: Rows, chance: Chance) -> Rows:
    """A delivery that does not say when in its log it was."""
    return changed(rows, picked(rows, chance, EventKind.DELIVER), index=-1)


def hole(rows: Rows, chance: Chance) -> Rows:
    """A row of the log is lost."""
    return rows.select(np.arange(len(rows)) != picked(rows, chance, EventKind.DELIVER))


def doubled(rows: Rows, chance: Chance) -> Rows:
    """A member delivers a message once more at its end, under the same or a later key."""
    row = picked(rows, chance, EventKind.DELIVER)
    mine = (rows.kind == rows.kind[row]) & (rows.member == rows.member[row])
    again = rows.select(np.array([row]))
    slot = int(rows.slot.max()) if chance.integers(2) else int(rows.slot[row])
    again = changed(again, 0, index=int(rows.index[mine].max()) + 1, slot=slot, place=9 * PLACE)
    return concatenated([rows, again])


def foreign(rows: Rows, chance: Chance) -> Rows:
    """A delivery of a message that no member sent."""
    return changed(rows, picked(rows, chance, EventKind.DELIVER), sequence=100_000 + int(chance.integers(9)))


def reborn(rows: Rows, chance: Chance) -> Rows:
    """A delivery of the same number from another life of its sender."""
    return changed(rows, picked(rows, chance, EventKind.DELIVER), sender_incarnation=1)


def late(rows: Rows, chance: Chance) -> Rows:
    """A delivery past the bound."""
    row = picked(rows, chance, EventKind.DELIVER)
    return changed(rows, row, real_ns=int(rows.real_ns[row]) + BOUND_NS * int(chance.integers(1, 50)))


def unsent(rows: Rows, chance: Chance) -> Rows:
    """A send that is not in the log."""
    return rows.select(np.arange(len(rows)) != picked(rows, chance, EventKind.SEND))


def undelivered(rows: Rows, chance: Chance) -> Rows:
    """A message that no member delivered."""
    row = picked(rows, chance, EventKind.SEND)
    it = (rows.kind == EventKind.DELIVER.code) & (rows.sender == rows.sender[row])
    it &= rows.sequence == rows.sequence[row]
    index = rows.index.copy()
    for gone in np.flatnonzero(it).tolist():
        index[
            (rows.kind == rows.kind[gone]) & (rows.member == rows.member[gone]) & (rows.index > rows.index[gone])
        ] -= 1
    return replace(rows, index=index).select(~it)


def repeated(rows: Rows, chance: Chance) -> Rows:
    """Every member delivers one message twice and another one not at all."""
    one, other = (picked(rows, chance, EventKind.DELIVER) for _ in range(2))
    its = (rows.kind == EventKind.DELIVER.code) & (rows.sender == rows.sender[other])
    its &= (rows.sequence == rows.sequence[other]) & (rows.sender_incarnation == rows.sender_incarnation[other])
    columns = {name: getattr(rows, name) for name in ("sender", "sender_incarnation", "sequence")}
    return replace(rows, **{name: np.where(its, column[one], column) for name, column in columns.items()})


def rekeyed(rows: Rows, chance: Chance) -> Rows:
    """A delivery under another key."""
    row = picked(rows, chance, EventKind.DELIVER)
    return changed(rows, row, slot=int(rows.slot[row]) + int(chance.integers(1, 6)))


def crashed(rows: Rows, chance: Chance) -> Rows:
    """A member crashes; its log ends there, and the others deliver no more of it."""
    member = int(rows.member[picked(rows, chance, EventKind.SEND)])
    slot = int(chance.integers(1, int(rows.slot.max()) + 1))
    gone = (rows.member == member) & (rows.slot >= slot)
    at = rows.select(np.array([0]))
    at = changed(
        at,
        0,
        kind=EventKind.CRASH.code,
        member=OBSERVER,
        sender=member,
        sender_incarnation=0,
        slot=slot,
        place=-1,
        index=-1,
        sequence=-1,
        real_ns=slot * SLOT_NS,
    )
    return concatenated([rows.select(~gone), at])


DAMAGES: tuple[Damage, ...] = (
    *(swapped, turned, dropped, hole, level, unindexed, doubled),
    *(foreign, reborn, late, unsent, undelivered, repeated, rekeyed, crashed),
)


def trace_of(rows: Rows, members: int, reliable: bool, lost: int) -> Trace:
    gone = set(rows.sender[rows.kind == EventKind.CRASH.code].tolist())
    everyone = tuple(range(1, members + 1))
    meta = RunMeta("r", "g", "vbr", everyone, 2 * SLOT_NS, SLOT_NS, SLOT_NS, BOUND_NS, reliable, "simulator")
    logs = [MemberLog(m, 0, closed=m not in gone, dropped=lost if m == 1 else 0) for m in range(1, members + 1)]
    return Trace.from_rows(rows, meta, [MemberLog(OBSERVER, 0), *logs] if gone else logs)


def told(verdicts: dict[str, Verdict]) -> dict[str, object]:
    """What two ways of checking have to agree on; a count is of what was looked at, and quantiles are rounded."""
    return {
        name: (v.status, v.reason, v.witness, v.count if name in {"latency", "gap_freedom", "integrity"} else None)
        for name, v in sorted(verdicts.items())
    }


@pytest.mark.parametrize("damage", [None, *DAMAGES], ids=lambda damage: getattr(damage, "__name__", "clean"))
def test_one_damage(damage: Damage | None) -> None:
    statuses = set()
    for seed in range(12):
        chance = np.random.default_rng(seed)
        members, slots = int(chance.integers(2, 6)), int(chance.integers(8, 60))
        rows = run(chance, members, slots)
        if damage is not None:
            rows = damage(rows, chance)
        trace = trace_of(rows, members, reliable=True, lost=0)
        whole, range_slots = check_all(trace), int(chance.integers(1, 17))
        found = by_ranges(trace, range_slots, clean=damage is None)
        assert told(found) == told(whole), (seed, damage)
        if seed % 2:
            trace = trace_of(rows, members, reliable=False, lost=0)
            whole = check_all(trace)
        for name, verdict in by_ranges(trace, range_slots, looked_at_rows=len(trace) - 1).items():
            too_much = verdict.token is Reason.TOO_MUCH_SUSPECT
            assert too_much or verdict.status is whole[name].status, (seed, damage, name)
        statuses |= {verdict.status for verdict in found.values()}
    if damage is not crashed:
        assert (statuses == {Status.VALID}) == (damage is None)


@pytest.mark.parametrize("seed", range(60))
def test_several_damages(seed: int) -> None:
    chance = np.random.default_rng(1000 + seed)
    members, slots = int(chance.integers(2, 6)), int(chance.integers(8, 60))
    rows = run(chance, members, slots)
    for _ in range(int(chance.integers(2, 6))):
        rows = DAMAGES[int(chance.integers(len(DAMAGES)))](rows, chance)
    trace = trace_of(rows, members, reliable=bool(chance.integers(2)), lost=int(chance.integers(5) == 0))
    found, whole = by_ranges(trace, int(chance.integers(1, 17))), check_all(trace)
    assert {n: v.status for n, v in found.items()} == {n: v.status for n, v in whole.items()}
    assert {n: v.witness for n, v in found.items()} == {n: v.witness for n, v in whole.items()}


@pytest.mark.parametrize(("damage", "check"), [(swapped, "total_order"), (swapped, "fifo"), (late, "latency")])
def test_one_part_shows_violations_that_no_other_part_can_excuse(damage: Damage, check: str) -> None:
    chance = np.random.default_rng(4)
    rows = run(chance, 3, 60)
    for _ in range(12):
        rows = damage(rows, chance)
    trace = trace_of(rows, 3, reliable=True, lost=0)
    assert by_ranges(trace, 4, looked_at_rows=1)[check].status is Status.VIOLATED


def test_gaps_of_a_crashed_member_show_from_its_deliveries_in_other_ranges() -> None:
    rows = run(np.random.default_rng(1), 3, 12)
    at = {"kind": EventKind.CRASH.code, "member": OBSERVER, "sender": 2, "slot": 12, "real_ns": 20 * SLOT_NS}
    rows = concatenated([rows, changed(rows.select(np.array([0])), 0, **at)])
    last = np.flatnonzero((rows.kind == EventKind.DELIVER.code) & (rows.member == 2) & (rows.slot < 4))[-1]
    later = alike(rows, int(last)) & (rows.index > rows.index[last])
    rows = replace(rows, index=rows.index - later).select(np.arange(len(rows)) != last)
    trace = trace_of(rows, 3, reliable=True, lost=0)
    found = by_ranges(trace, 4, looked_at_rows=len(trace) - 1)["gap_freedom"]
    assert found.status is Status.VIOLATED
    assert found.witness == check_all(trace)["gap_freedom"].witness


def test_a_message_that_everybody_delivers_again_in_another_range_is_there_twice() -> None:
    """Its send lies in a range of its own, and where it comes again it is neither the first nor the last."""
    rows = run(np.random.default_rng(1), 3, 12)
    mine = np.flatnonzero((rows.kind == EventKind.DELIVER.code) & (rows.sender == 2) & (rows.slot >= 4))
    first = int(rows.sequence[mine[0]])
    sent = (rows.kind == EventKind.SEND.code) & (rows.sender == 2) & (rows.sequence == first)
    later = np.unique(rows.sequence[mine[rows.slot[mine] >= 8]])
    assert len(later) > 2
    its = (rows.kind == EventKind.DELIVER.code) & (rows.sender == 2) & (rows.sequence == later[1])
    rows = replace(rows, sequence=np.where(its, first, rows.sequence), slot=np.where(sent, 3, rows.slot))
    trace = trace_of(rows, 3, reliable=True, lost=0)
    found = by_ranges(trace, 4, looked_at_rows=len(trace) - 1)["integrity"]
    assert (found.status, found.witness) == (Status.VIOLATED, check_all(trace)["integrity"].witness)


def test_a_delivery_just_at_the_bound_is_not_late() -> None:
    rows = run(np.random.default_rng(1), 3, 12)
    for slot, more in ((3, 0), (5, 0), (5, 1)):
        mine = (rows.kind == EventKind.DELIVER.code) & (rows.member == 2) & (rows.slot >= slot)
        row = int(np.flatnonzero(mine)[more])
        sent = (rows.kind == EventKind.SEND.code) & (rows.sender == rows.sender[row])
        sent_ns = int(rows.real_ns[sent & (rows.sequence == rows.sequence[row])][0])
        rows = changed(rows, row, real_ns=sent_ns + BOUND_NS + more)
    assert by_ranges(trace_of(rows, 3, reliable=True, lost=0), 4)["latency"].count == 1


@pytest.mark.parametrize("edge", [0, 4, 8])
def test_an_index_that_is_there_twice_at_an_edge_hides_none_that_is_missing(edge: int) -> None:
    rows = run(np.random.default_rng(1), 3, 12)
    mine = np.flatnonzero((rows.kind == EventKind.DELIVER.code) & (rows.member == 2) & (rows.slot >= edge))
    trace = trace_of(changed(rows, int(mine[0]), index=int(rows.index[mine[0]]) - 1), 3, reliable=True, lost=0)
    found, whole = by_ranges(trace, 4, looked_at_rows=len(trace) - 1), check_all(trace)
    assert found["total_order"].status is whole["total_order"].status is Status.UNKNOWN


def test_more_suspect_ranges_than_are_looked_at_is_unknown_and_never_valid() -> None:
    chance = np.random.default_rng(7)
    rows = run(chance, 3, 60)
    for _ in range(12):
        rows = dropped(rows, chance)
    trace = trace_of(rows, 3, reliable=True, lost=0)
    assert check_all(trace)["gap_freedom"].status is Status.VIOLATED
    found = by_ranges(trace, 4, looked_at_rows=1)["gap_freedom"]
    assert found.status is Status.UNKNOWN
    counted = re.fullmatch(
        r"the suspect ranges of slots have ([\d,]+) rows, but at most 1 can be checked", found.reason
    )
    assert counted is not None, found.reason
    assert 1 < int(counted[1].replace(",", "")) <= len(trace)


@pytest.mark.parametrize("largest", [1, 3_000_000, 10**12])
def test_quantiles_of_latencies_are_at_most_a_32nd_and_a_microsecond_above_the_true_ones(largest: int) -> None:
    taken = np.random.default_rng(largest).integers(-5, largest, 2000)
    seen = LatencySummary()
    for part in np.split(taken, [10, 700]):
        seen.add(part, None, EMPTY)
    assert (seen.deliveries, seen.min_ns, seen.max_ns) == (2000, taken.min(), taken.max())
    assert seen.histogram.total == 2000
    for share in (0.5, 0.99, 0.999):
        true = max(int(np.sort(taken)[int(share * 2000) - 1]), 0)
        assert true <= seen.histogram.quantile(share) <= (true + 1024) * 33 // 32


@pytest.mark.parametrize("seed", range(40))
def test_overlapping_matches_a_comparison_of_all_pairs(seed: int) -> None:
    chance = np.random.default_rng(seed)
    firsts = np.arange(seed % 9) * 3 + chance.integers(-4, 5, seed % 9)
    spans = [(n, int(first), int(first + chance.integers(0, 4))) for n, first in enumerate(firsts)]
    pairs = [(a, b) for n, a in enumerate(spans) for b in spans[n + 1 :] if b[1] <= a[2]]
    assert overlapping(spans) == {span[0] for pair in pairs for span in pair}
