"""The parts of final deliveries: what is kept, what a leader may propose, what the log makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from unisono.agreement.paxos.decisions import RestoredState
from unisono.errors import InvalidOption
from unisono.group import join
from unisono.model.message_range import MessageRange, SenderSlot
from unisono.model.message_set import SequenceRange
from unisono.model.policy import Policy
from unisono.model.rates import Rate
from unisono.model.remaining import RemainingMessages
from unisono.model.timing import Timing
from unisono.model.views import View
from unisono.orders.final.log import INCARNATIONS_KEPT, FinalLog
from unisono.orders.final.messages import (
    ALL_SLOTS_DONE,
    FinalLogValue,
    FinalsMessage,
    RecoveryReply,
    RecoveryRequest,
    encode_messages,
    encode_value,
)
from unisono.orders.final.recovery import Recovery
from unisono.orders.final.reports import FinalProposer, MemberReport, MemberReports, segments
from unisono.orders.final.store import MessageStore
from unisono.stack import build

CELL = (7, 1, 1)
PATIENCE_NS = 100


def rest(*messages: bytes) -> RemainingMessages:
    return RemainingMessages(list(messages))


def test_the_store_keeps_each_message_once_and_gives_what_is_whole() -> None:
    store = MessageStore()
    assert store.put(CELL, 3, rest(b"d", b"e"))
    assert store.put(CELL, 0, rest(b"a", b"b"))
    assert store.ranges(CELL) == ((0, 1), (3, 4))
    assert store.packed_messages(MessageRange(*CELL, 0, 5)) is None
    assert store.put(CELL, 1, rest(b"B", b"c", b"D"))
    assert not store.put(CELL, 0, rest(b"a", b"b", b"c"))
    runs = store.packed_messages(MessageRange(*CELL, 1, 3))
    assert runs is not None
    assert [message for run in runs for message in run.messages()] == [b"b", b"c", b"d"]
    assert store.payload_bytes == 5
    store.drop(MessageRange(*CELL, 1, 2))
    assert store.ranges(CELL) == ((0, 0), (3, 4))
    assert store.payload_bytes == 3
    store.drop(MessageRange(*CELL, 0, 9))
    assert (store.ranges(CELL), store.payload_bytes) == ((), 0)


def test_what_is_in_the_log_first_counts_and_late_messages_come_behind() -> None:
    log = FinalLog()
    agreed = log.apply(
        1, encode_value(FinalLogValue({1: 4}, (MessageRange(7, 1, 1, 0, 3), MessageRange(9, 2, 1, 0, 1))))
    )
    assert agreed is not None
    assert [(one.slot, one.position) for one in agreed] == [(7, 0), (9, 3)]
    again = log.apply(2, encode_value(FinalLogValue({}, (MessageRange(7, 1, 1, 1, 4), MessageRange(8, 3, 1, 0, 2)))))
    assert again is not None
    assert [(one.slot, one.position, one.message_range) for one in again] == [
        (9, 4, MessageRange(7, 1, 1, 3, 2)),
        (9, 6, MessageRange(8, 3, 1, 0, 2)),
    ]
    assert log.participants == {1: 4}
    copy = FinalLog()
    copy.restore(RestoredState(2, log.state()))
    assert (copy.k, copy.message_count, copy.slot, copy.final, copy.participants) == (2, 8, 9, log.final, {1: 4})
    assert log.apply(3, b"\x00") is None


def test_of_very_old_lives_nothing_becomes_final() -> None:
    log = FinalLog()
    for life in range(INCARNATIONS_KEPT + 1):
        log.apply(life + 1, encode_value(FinalLogValue({}, (MessageRange(7, 1, life, 0, 1),))))
    assert log.not_yet_final(MessageRange(8, 1, 0, 5, 1)) == []
    assert log.not_yet_final(MessageRange(8, 1, 1, 5, 1)) == [MessageRange(8, 1, 1, 5, 1)]


def test_segments_have_the_same_holders_everywhere() -> None:
    assert segments(CELL, {1: ((0, 4),), 2: ((0, 4),)}) == [(MessageRange(*CELL, 0, 5), 2)]
    assert segments(CELL, {1: ((0, 4),), 2: ((0, 1), (3, 6))}) == [
        (MessageRange(*CELL, 0, 2), 2),
        (MessageRange(*CELL, 2, 1), 1),
        (MessageRange(*CELL, 3, 2), 2),
        (MessageRange(*CELL, 5, 2), 1),
    ]


Held = dict[SenderSlot, tuple[SequenceRange, ...]]


def chooser(**held: tuple[int, Held]) -> FinalProposer:
    """By member, up to which slot it is done and what it holds there."""
    reports = MemberReports()
    for member, (upto, cells) in held.items():
        reports.by_member[int(member[1:])] = MemberReport(1, upto, 0, cells)
    return FinalProposer(reports, FinalLog(), 2, PATIENCE_NS)


def test_a_leader_waits_until_all_that_are_not_suspected_are_done_with_a_slot() -> None:
    whole: Held = {CELL: ((0, 1),)}
    choosing = chooser(m1=(7, whole), m2=(6, {}), m3=(9, whole))
    assert choosing.next_ranges(0, (1, 2, 3), 9) == []
    assert choosing.next_ranges(0, (1, 3), 9) == [MessageRange(*CELL, 0, 2)]
    assert choosing.next_ranges(0, (1, 3), 9) == [], "once"
    assert chooser(m1=(7, whole)).next_ranges(0, (1, 2), 9) == [], "nor goes on without one that has not said anything"


def test_a_leader_proposes_only_what_a_majority_holds() -> None:
    later = (8, 2, 1)
    one = chooser(m1=(9, {CELL: ((0, 1),)}), m2=(9, {later: ((0, 0),)}), m3=(9, {later: ((0, 0),)}))
    assert one.next_ranges(0, (1, 2, 3), 9) == [], "and what is behind it waits, while its holder is there to give it"
    assert one.next_ranges(0, (2, 3), 9) == [MessageRange(*later, 0, 1)]


def test_what_follows_a_hole_of_a_silent_sender_waits_for_a_while() -> None:
    behind: Held = {(9, 3, 1): ((4, 5),)}
    choosing = chooser(m1=(9, behind), m2=(9, behind))
    assert choosing.next_ranges(1000, (1, 2), 9) == []
    assert choosing.retry_at == 1000 + PATIENCE_NS
    assert choosing.next_ranges(1000 + PATIENCE_NS, (1, 2), 9) == [MessageRange(9, 3, 1, 4, 2)]


def test_who_has_reported_enters_once_and_who_leaves_does_not() -> None:
    choosing = chooser(m1=(9, {}), m2=(ALL_SLOTS_DONE, {}))
    assert choosing.new_participants((1, 2, 3), ALL_SLOTS_DONE) == {1: 1}
    assert choosing.new_participants((1, 2, 3), ALL_SLOTS_DONE) == {}


def policy(**changed: object) -> Policy:
    settings = {"order": "vbr", "grades": "both", **changed}
    return Policy("g", 1, View((1, 2, 3)), Timing(10, 2, 5_000_000), Rate(50, 8), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"order": "leader"}, "leader does not do that; possible with cbr, vbr"),
        ({"grades": "late"}, "expected one of early, final, both, got 'late'"),
    ],
)
def test_what_cannot_be_had_is_refused(changed: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidOption, match=problem):
        build(policy(**changed))


def test_final_deliveries_may_have_storage_and_early_ones_alone_have_no_use_for_it(tmp_path: Path) -> None:
    peers = {1: "127.0.0.1:9001", 2: "127.0.0.1:9002"}
    for grades in ("both", "final"):
        join("table", member=1, peers=peers, failures=True, grades=grades, storage=tmp_path / "memory")
    with pytest.raises(InvalidOption, match="so do final deliveries"):
        join("table", member=1, peers=peers, failures=True, storage=tmp_path / "memory")


def recovering() -> tuple[Recovery, list[tuple[int, FinalsMessage]], MemberReports]:
    """Member 1's, what it says to whom, and reports of 2 and 3, who hold what it lacks."""
    policy = Policy("g", 1, View((1, 2, 3)), Timing(1_000_000, 0, 1_000_000), Rate(100, 10))
    said: list[tuple[int, FinalsMessage]] = []
    reports = MemberReports()
    for member in (2, 3):
        reports.by_member[member] = MemberReport(1, done_slot=9, held_ranges={(5, 4, 1): ((0, 2),)})
    return (
        Recovery(policy, MessageStore(), FinalLog(), lambda _now, message, to: said.append((to, message))),
        said,
        reports,
    )


def test_who_does_not_answer_is_not_asked_again_before_the_others() -> None:
    recovery, said, reports = recovering()
    lacked = RecoveryRequest((MessageRange(5, 4, 1, 0, 3),))
    recovery.request_missing(0, (), reports, (2, 3), 9)
    recovery.request_missing(1, (), reports, (2, 3), 9)
    assert said == [(2, lacked)], "it has time to answer"
    due = recovery.retry_at()
    assert due is not None
    assert recovery.overdue(due)
    recovery.request_missing(due, (), reports, (2, 3), 9)
    assert said == [(2, lacked), (3, lacked)]


def test_nothing_is_given_up_before_a_majority_keeps_it_no_longer() -> None:
    recovery, _, _ = recovering()
    extent = MessageRange(5, 4, 1, 0, 3)
    assert recovery.receive(2, RecoveryReply(extent, 0, 0, b"")) == []
    assert not recovery.is_unrecoverable(extent, 2)
    recovery.receive(2, RecoveryReply(extent, 0, 0, b""))
    assert not recovery.is_unrecoverable(extent, 2), "one member says it twice"
    recovery.receive(3, RecoveryReply(extent, 0, 0, b""))
    assert recovery.is_unrecoverable(extent, 2)
    data = encode_messages([b"a", b"b", b"c"])
    ((cell, first, run),) = recovery.receive(3, RecoveryReply(extent, len(data), 0, data))
    assert (cell, first, run.messages()) == ((5, 4, 1), 0, [b"a", b"b", b"c"])
    assert not recovery.is_unrecoverable(extent, 2), "somebody has it after all"
