"""Long runs by tiles and ranges, at their edges: what one number, one range or one tile more or less would not show."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from tests.property.test_check_ranges import changed
from tests.property.test_check_tiles import MEMBERS, SLOT_NS, agree, by_parts, in_memory, run, trace_of

from unisono.check.suite import check_all
from unisono.check.verdict import Status
from unisono.model.capabilities import CAPABILITIES, SERVICES
from unisono.pipeline.verify import RunReport, verify
from unisono.trace.files import RangeFiles
from unisono.trace.schema import OBSERVER, EventKind, TraceDamaged
from unisono.trace.table import Mask, Rows, concatenated


def clean(order: str, slots: int = 12) -> Rows:
    return run(np.random.default_rng(2), order, slots)


def sends(rows: Rows, sender: int) -> Mask:
    mask: Mask = (rows.kind == EventKind.SEND.code) & (rows.sender == sender)
    return mask


def finals(rows: Rows, member: int) -> Mask:
    mask: Mask = (rows.kind == EventKind.DELIVER.code) & (rows.grade == 1) & (rows.member == member)
    return mask


def equal(rows: Rows, order: str, range_slots: int) -> RunReport:
    """The report by parts, which must say what the checkers say of the whole."""
    trace = trace_of(rows, order, 0, cut=False)
    report = by_parts(trace, range_slots)
    agree(report, check_all(trace), order)
    return report


@pytest.mark.parametrize("slot", [3, 4, 8])
def test_a_jump_of_the_final_sequence_at_the_edge_of_a_range(slot: int) -> None:
    rows = clean("vbr")
    report = equal(replace(rows, place=rows.place + (finals(rows, 2) & (rows.slot >= slot))), "vbr", 4)
    assert report.verdicts["final_order"].count == 1
    assert "right after" in str(report.verdicts["final_order"].witness)


def test_the_end_of_the_final_sequence_that_a_member_lacks_begins_with_a_range() -> None:
    rows = clean("vbr", 30)
    slots, counts = np.unique(rows.slot[finals(rows, 1)], return_counts=True)
    alone = slots[counts == 1]
    assert len(alone), "a range with one message"
    for slot in alone[-3:].tolist():
        report = equal(rows.select(~finals(rows, 2) | (rows.slot < slot)), "vbr", 1)
        (position,) = report.verdicts["final_agreement"].witness.positions  # type: ignore[union-attr]
        assert position.index == int(rows.index[finals(rows, 1) & (rows.slot == slot)][0])


@pytest.mark.parametrize("order", ["causal", "quasi_genuine", "graded", "vbr"])
def test_a_clean_run_is_proven_by_its_edges(order: str) -> None:
    rows = clean(order, 40)
    trace = trace_of(rows, order, 0, cut=False)
    longest = int(np.bincount(trace.slot // 2).max())
    assert by_parts(trace, 2, looked_at_rows=2 * longest).status is Status.VALID


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_is_checked_by_its_own_promises(service: str) -> None:
    assert equal(clean("causal", 6), service, 2).verdicts.keys() == {
        "integrity",
        "latency",
        *CAPABILITIES[service].checks,
    }


@pytest.mark.parametrize("which", [0, 1, -2, -1])
@pytest.mark.parametrize("range_slots", [1, 4])
def test_a_send_that_is_lost_at_either_end(which: int, range_slots: int) -> None:
    rows = clean("uniform")
    lost = np.flatnonzero(sends(rows, 2))[which]
    report = equal(rows.select(np.arange(len(rows)) != lost), "uniform", range_slots)
    assert report.verdicts["integrity"].status is Status.VIOLATED
    assert report.verdicts["integrity"].count == len(MEMBERS)


def test_unchecked_parts_do_not_count_as_valid() -> None:
    """In the first suspect part a sender did not log in time; another part has a message that was never sent."""
    rows = clean("uniform", 20)
    gone = (rows.member == 1) & (rows.slot >= 4)
    crash = rows.select(np.flatnonzero(rows.kind == EventKind.START.code)[:1])
    at = {"kind": EventKind.CRASH.code, "member": OBSERVER, "slot": 9, "real_ns": 9 * SLOT_NS}
    rows = concatenated([rows.select(~gone), changed(crash, 0, **at)])
    rows = rows.select((rows.sender != 1) | (rows.kind != EventKind.DELIVER.code) | (rows.slot < 9))
    trace = trace_of(rows, "uniform", 0, cut=False)
    assert "did not log in time" in check_all(trace)["integrity"].reason
    assert by_parts(trace, 1).verdicts["integrity"].status is Status.VALID
    last = np.flatnonzero((rows.kind == EventKind.DELIVER.code) & (rows.member == 2) & (rows.sender == 3))[-1]
    foreign = trace_of(changed(rows, last, sequence=10_000), "uniform", 0, cut=False)
    assert by_parts(foreign, 1).verdicts["integrity"].status is Status.VIOLATED
    cut_short = by_parts(foreign, 1, looked_at_rows=1).verdicts["integrity"]
    assert cut_short.status is Status.UNKNOWN
    counted = re.fullmatch(
        r"the suspect message shards have ([\d,]+) rows, but at most 1 can be checked", cut_short.reason
    )
    assert counted is not None, cut_short.reason
    assert 1 < int(counted[1].replace(",", "")) <= len(foreign)


def renumbered(rows: Rows, sender: int, to: dict[int, int]) -> Rows:
    """Other numbers for a sender's messages, everywhere."""
    its = (rows.sender == sender) & (rows.sequence >= 0)
    changed_to = np.array([to.get(number, number) for number in rows.sequence.tolist()])
    return replace(rows, sequence=np.where(its, changed_to, rows.sequence))


def test_messages_whose_rows_lie_all_over_the_run_are_unknown() -> None:
    rows = clean("uniform", 30)
    for sender in MEMBERS:
        # In every slot a number from the beginning and one from the end.
        sent = int(sends(rows, sender).sum())
        rows = renumbered(rows, sender, {number: number + (number % 2) * 1000 for number in range(sent)})
    report = by_parts(trace_of(rows, "uniform", 0, cut=False), 1)
    assert report.status is Status.UNKNOWN
    assert "scattered over ranges of slots: " in report.verdicts["messages"].reason
    assert "integrity" not in report.verdicts


def test_a_shard_that_would_hold_much_of_the_run_is_unknown() -> None:
    rows = clean("uniform", 60)
    again = rows.select(sends(rows, 2))
    again = replace(again, sequence=np.zeros(len(again), dtype=np.int64))
    one_stream = rows.select((rows.sender == 2) | (rows.kind == EventKind.START.code))
    report = by_parts(trace_of(concatenated([one_stream, again]), "uniform", 0, cut=False), 1)
    assert report.status is Status.UNKNOWN
    assert "a part of the run has over" in report.verdicts["messages"].reason


def test_one_number_out_of_order_does_not_change_the_shards() -> None:
    rows = clean("uniform", 60)
    first = np.flatnonzero(sends(rows, 2))[0]
    report = equal(changed(rows, int(first), sequence=5000), "uniform", 1)
    assert report.verdicts["integrity"].status is Status.VIOLATED


def test_deliveries_after_the_end_of_a_log_are_divided_too() -> None:
    """A member whose recording stopped goes on sending: its messages are in tiles as if it had logged them."""
    rows = clean("uniform", 60)
    rows = rows.select((rows.sender == 2) & ((rows.member != 2) | (rows.slot < 3)))
    trace = trace_of(rows, "uniform", 0, cut=True)
    report = by_parts(trace, 1)
    agree(report, check_all(trace), "cut")
    assert "is incomplete" in report.verdicts["integrity"].reason


def exchanged(rows: Rows, members: tuple[int, ...], one: int, other: int) -> Rows:
    """Two numbers of the final sequence are of each other's slots, at these members."""
    slot = rows.slot.copy()
    for member in members:
        (a,), (b,) = (np.flatnonzero(finals(rows, member) & (rows.place == place)) for place in (one, other))
        slot[[a, b]] = slot[[b, a]]
    return replace(rows, slot=slot)


def first_place(rows: Rows, slot: int) -> int:
    return int(rows.place[finals(rows, 1) & (rows.slot >= slot)].min())


def test_a_final_sequence_with_slots_out_of_order_is_checked_by_its_numbers() -> None:
    rows = clean("vbr", 20)
    scrambled = exchanged(rows, MEMBERS, first_place(rows, 5), first_place(rows, 9))
    assert equal(scrambled, "vbr", 4).verdicts["final_order"].status is Status.VALID
    # One log's slots are out of turn in two ranges, another's in two others: together they are judged.
    both = exchanged(exchanged(rows, (1,), first_place(rows, 1), first_place(rows, 5)), (3,), 20, first_place(rows, 13))
    assert equal(both, "vbr", 4).verdicts["final_order"].status is Status.VALID
    for slot in (2, 6, 8, 12, 17):
        late = finals(scrambled, 2) & (scrambled.place >= first_place(rows, slot))
        report = equal(replace(scrambled, place=scrambled.place + late), "vbr", 4)
        assert report.verdicts["final_order"].status is Status.VIOLATED


def test_a_missing_message_counts_after_any_silence() -> None:
    rows = clean("causal", 14)
    early = np.flatnonzero((rows.kind == EventKind.SEND.code) & (rows.sender == 3))[0]
    lacking = (rows.kind == EventKind.DELIVER.code) & (rows.member == 2) & (rows.sender == 3)
    lacking &= rows.sequence == rows.sequence[early]
    key = np.where(rows.kind == EventKind.SEND.code, rows.real_ns // SLOT_NS, rows.slot)
    silent = np.isin(rows.sender, (1, 3)) & (rows.sequence >= 0) & (key > 1) & (key < 9)
    report = equal(rows.select(~(lacking | silent)), "causal", 1)
    assert report.verdicts["causal"].status is Status.VIOLATED


def test_a_missing_message_counts_at_a_member_that_never_sends() -> None:
    rows = clean("causal", 6)
    rows = rows.select((rows.sender != 2) | (rows.sequence < 0))
    first = np.flatnonzero((rows.kind == EventKind.DELIVER.code) & (rows.member == 2))[0]
    report = equal(rows.select(np.arange(len(rows)) != first), "causal", 1)
    assert report.verdicts["causal"].status is Status.VIOLATED


def test_a_late_delivery_counts_although_messages_between_are_missing() -> None:
    rows = clean("causal", 4)
    delivered = (rows.kind == EventKind.DELIVER.code) & (rows.member == 2)
    last = np.flatnonzero(delivered & (rows.slot == 0) & (rows.sender == 1))
    assert len(last), "a message of the first slot"
    late = changed(rows, int(last[0]), index=1000)
    report = equal(late.select(~(delivered & (rows.slot == 2))), "causal", 1)
    assert report.verdicts["causal"].status is Status.VIOLATED


@pytest.mark.parametrize("silent", [False, True])
def test_a_message_sent_after_its_sender_delivered_a_much_later_one(silent: bool) -> None:
    """All deliver it before a message of distant slots that its sender had delivered, and after all near ones.

    Where the sender is `silent`, it has delivered nothing of the slot between.
    """
    far = 4 if silent else 3
    for seed in count():
        rows = run(np.random.default_rng(seed), "causal", far + 1)
        rows = replace(rows, slot=np.where(rows.kind == EventKind.SEND.code, rows.real_ns // SLOT_NS, rows.slot))
        sent = np.flatnonzero(sends(rows, 1) & (rows.real_ns // SLOT_NS == 1))
        then = rows.real_ns[(rows.kind == EventKind.DELIVER.code) & (rows.member == 1) & (rows.slot == far)]
        if len(sent) == 2 and len(then) > 1 and (rows.real_ns[sends(rows, 1)] // SLOT_NS == 2).any():
            break
    number = rows.sequence[sent[-1]]
    index = rows.index.copy()
    for member in MEMBERS:
        mine = (rows.kind == EventKind.DELIVER.code) & (rows.member == member)
        its = mine & (rows.sender == 1) & (rows.sequence == number)
        between = mine & (rows.slot < 3) & (rows.index > rows.index[its])
        index[its] += int(between.sum())
        index[between] -= 1
    rows = replace(changed(rows, int(sent[-1]), real_ns=int(then.min()) + 1), index=index)
    if silent:
        rows = rows.select((rows.kind != EventKind.DELIVER.code) | (rows.member != 1) | (rows.slot != 3))
    report = equal(rows, "causal", 1)
    assert report.verdicts["causal"].status is Status.VIOLATED
    unread = by_parts(trace_of(rows, "causal", 0, cut=False), 1, looked_at_rows=len(rows) // 2).verdicts["causal"]
    assert unread.status is Status.UNKNOWN
    assert "sent a message after it had delivered one of much later slots" in unread.reason


def test_deliveries_of_two_grades_without_an_order_are_unknown() -> None:
    report = by_parts(trace_of(clean("vbr"), "uniform", 0, cut=False), 4)
    assert report.status is Status.UNKNOWN
    assert "has deliveries of one grade, not early and final" in report.verdicts["messages"].reason


def test_a_number_of_the_final_sequence_with_two_messages() -> None:
    rows = clean("vbr")
    at = np.flatnonzero(finals(rows, 2) & (rows.slot < 4))
    # In one range: a member has two messages the other way round.
    one, other = at[:2].tolist()
    names = ("sender", "sequence")
    turned = changed(rows, one, **{name: int(getattr(rows, name)[other]) for name in names})
    turned = changed(turned, other, **{name: int(getattr(rows, name)[one]) for name in names})
    # In two ranges: what one member has under the last number of a range is elsewhere of another slot.
    moved = changed(rows, int(at[-1]), slot=9, sender=1, sequence=10_000)
    for damaged in (turned, moved):
        report = equal(damaged, "vbr", 4)
        assert "of the final order is" in str(report.verdicts["final_order"].witness)
        unread = by_parts(trace_of(damaged, "vbr", 0, cut=False), 4, looked_at_rows=1).verdicts["final_order"]
        assert unread.status is Status.UNKNOWN
        assert "but at most 1 can be checked" in unread.reason


def test_a_member_that_never_delivered_finally() -> None:
    rows = clean("vbr")
    rows = replace(rows, real_ns=rows.real_ns * 500).select(~finals(rows, 2))
    report = equal(rows, "vbr", 4)
    assert report.verdicts["final_agreement"].status is Status.VIOLATED


@pytest.mark.parametrize("order", ["causal", "vbr"])
def test_damage_is_unknown_whenever_it_is_found(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = in_memory(trace_of(clean(order), order, 0, cut=False), 5, monkeypatch)
    reads = [0]

    def failing(of: RangeFiles, *, all_columns: bool = False, checked: bool = False) -> list[Rows]:
        del checked
        reads[0] -= 1
        if reads[0] == 0:
            raise TraceDamaged("part", "is damaged")
        return read(of, all_columns=all_columns)

    monkeypatch.setattr("unisono.pipeline.spark_tasks.read_range", failing)
    for after in count(1):
        reads[0] = after
        (report,) = verify("memory", max_whole_rows=0)
        if reads[0] > 0:  # the check ended before this read
            assert report.status is Status.VALID
            break
        assert {name: verdict.reason for name, verdict in report.verdicts.items()} == {"trace": "part: is damaged"}
    assert after > 2 * len(MEMBERS), "surveys and tiles"


def test_a_run_ends_with_its_last_relevant_row() -> None:
    """The last early delivery: of final deliveries over slots it ends the run, between groups it does not."""
    for order in ("vbr", "graded"):
        rows = clean(order)
        rows = replace(rows, real_ns=rows.real_ns * 500).select(rows.kind != EventKind.NOTICE.code)
        early = (rows.kind == EventKind.DELIVER.code) & (rows.grade == 0)
        rows = changed(rows, int(np.flatnonzero(early & (rows.member == 1))[-1]), real_ns=20 * 10**9)
        lacking = np.unique(rows.slot[finals(rows, 2)])[-2]
        report = equal(rows.select(~finals(rows, 2) | (rows.slot < lacking)), order, 4)
        name = "final_agreement" if order == "vbr" else "uniform_agreement"
        assert report.verdicts[name].status is Status.VIOLATED
        last = int(rows.sequence[finals(rows, 1) & (rows.slot == rows.slot[finals(rows, 1)].max())][-1])
        lost = (rows.kind == EventKind.DELIVER.code) & (rows.grade == 1) & (rows.sequence >= last)
        equal(rows.select(~(lost & (rows.member == 2))), order, 4)
        equal(rows.select(~lost), order, 4)
