"""The parts of final deliveries: stored messages, the leader's proposals, the agreed log, recovery."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.worlds.joining import join_group

from unisono.agreement.paxos.acceptor import RestoredState
from unisono.errors import InvalidOption
from unisono.model.events import RemainingMessages, View
from unisono.model.message_set import MessageRange, SenderSlot, SequenceRange
from unisono.model.policy import Policy
from unisono.model.timing import Timing
from unisono.model.units import Rate
from unisono.orders.final.agreement import (
    INCARNATIONS_KEPT,
    FinalLog,
    FinalProposer,
    MemberReport,
    MemberReports,
    MessageStore,
    segments,
)
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
from unisono.stack import build
from unisono.wire.codec import Unreadable

SENDER_SLOT = (7, 1, 1)
HOLE_TIMEOUT_NS = 100


def packed(*messages: bytes) -> RemainingMessages:
    return RemainingMessages(list(messages))


def test_the_store_keeps_each_message_once_and_returns_only_complete_ranges() -> None:
    store = MessageStore()
    assert store.put(SENDER_SLOT, 3, packed(b"d", b"e"))
    assert store.put(SENDER_SLOT, 0, packed(b"a", b"b"))
    assert store.ranges(SENDER_SLOT) == ((0, 1), (3, 4))
    assert store.packed_messages(MessageRange(*SENDER_SLOT, 0, 5)) is None
    assert store.put(SENDER_SLOT, 1, packed(b"B", b"c", b"D"))
    assert not store.put(SENDER_SLOT, 0, packed(b"a", b"b", b"c"))
    stored = store.packed_messages(MessageRange(*SENDER_SLOT, 1, 3))
    assert stored is not None
    assert [message for part in stored for message in part.messages()] == [b"b", b"c", b"d"]
    assert store.payload_bytes == 5
    store.drop(MessageRange(*SENDER_SLOT, 1, 2))
    assert store.ranges(SENDER_SLOT) == ((0, 0), (3, 4))
    assert store.payload_bytes == 3
    store.drop(MessageRange(*SENDER_SLOT, 0, 9))
    assert (store.ranges(SENDER_SLOT), store.payload_bytes) == ((), 0)


def test_the_first_occurrence_in_the_log_counts_and_late_messages_follow() -> None:
    log = FinalLog()
    agreed = log.apply(
        1, encode_value(FinalLogValue({1: 4}, (MessageRange(7, 1, 1, 0, 3), MessageRange(9, 2, 1, 0, 1))))
    )
    assert agreed is not None
    assert [(range_.slot, range_.position) for range_ in agreed] == [(7, 0), (9, 3)]
    again = log.apply(2, encode_value(FinalLogValue({}, (MessageRange(7, 1, 1, 1, 4), MessageRange(8, 3, 1, 0, 2)))))
    assert again is not None
    assert [(range_.slot, range_.position, range_.message_range) for range_ in again] == [
        (9, 4, MessageRange(7, 1, 1, 3, 2)),
        (9, 6, MessageRange(8, 3, 1, 0, 2)),
    ]
    assert log.participants == {1: 4}
    copy = FinalLog()
    copy.restore(RestoredState(2, log.state()))
    assert (copy.k, copy.message_count, copy.slot, copy.final, copy.participants) == (2, 8, 9, log.final, {1: 4})
    with pytest.raises(Unreadable):
        log.apply(3, b"\x00")


def test_messages_of_very_old_incarnations_do_not_become_final() -> None:
    log = FinalLog()
    for incarnation in range(INCARNATIONS_KEPT + 1):
        log.apply(incarnation + 1, encode_value(FinalLogValue({}, (MessageRange(7, 1, incarnation, 0, 1),))))
    assert log.not_yet_final(MessageRange(8, 1, 0, 5, 1)) == []
    assert log.not_yet_final(MessageRange(8, 1, 1, 5, 1)) == [MessageRange(8, 1, 1, 5, 1)]


def test_all_messages_of_a_segment_have_the_same_holders() -> None:
    assert segments(SENDER_SLOT, {1: ((0, 4),), 2: ((0, 4),)}) == [(MessageRange(*SENDER_SLOT, 0, 5), 2)]
    assert segments(SENDER_SLOT, {1: ((0, 4),), 2: ((0, 1), (3, 6))}) == [
        (MessageRange(*SENDER_SLOT, 0, 2), 2),
        (MessageRange(*SENDER_SLOT, 2, 1), 1),
        (MessageRange(*SENDER_SLOT, 3, 2), 2),
        (MessageRange(*SENDER_SLOT, 5, 2), 1),
    ]


Held = dict[SenderSlot, tuple[SequenceRange, ...]]


def proposer_with(**reported: tuple[int, Held]) -> FinalProposer:
    """A proposer with these reports: by member, its done slot and the ranges that it holds."""
    reports = MemberReports()
    for member, (done_slot, held) in reported.items():
        reports.by_member[int(member[1:])] = MemberReport(1, done_slot, 0, held)
    return FinalProposer(reports, FinalLog(), 2, HOLE_TIMEOUT_NS)


def test_a_leader_waits_until_all_trusted_members_are_done_with_a_slot() -> None:
    whole: Held = {SENDER_SLOT: ((0, 1),)}
    proposer = proposer_with(m1=(7, whole), m2=(6, {}), m3=(9, whole))
    assert proposer.next_ranges(0, (1, 2, 3), 9) == []
    assert proposer.next_ranges(0, (1, 3), 9) == [MessageRange(*SENDER_SLOT, 0, 2)]
    assert proposer.next_ranges(0, (1, 3), 9) == [], "once"
    assert proposer_with(m1=(7, whole)).next_ranges(0, (1, 2), 9) == [], (
        "a trusted member without a report counts as not done"
    )


def test_a_leader_proposes_only_what_a_majority_holds() -> None:
    later = (8, 2, 1)
    proposer = proposer_with(m1=(9, {SENDER_SLOT: ((0, 1),)}), m2=(9, {later: ((0, 0),)}), m3=(9, {later: ((0, 0),)}))
    assert proposer.next_ranges(0, (1, 2, 3), 9) == [], "later messages wait while the only holder can send the first"
    assert proposer.next_ranges(0, (2, 3), 9) == [MessageRange(*later, 0, 1)]


def test_messages_behind_a_hole_of_an_unresponsive_sender_wait_for_a_while() -> None:
    after_hole: Held = {(9, 3, 1): ((4, 5),)}
    proposer = proposer_with(m1=(9, after_hole), m2=(9, after_hole))
    assert proposer.next_ranges(1000, (1, 2), 9) == []
    assert proposer.retry_at == 1000 + HOLE_TIMEOUT_NS
    assert proposer.next_ranges(1000 + HOLE_TIMEOUT_NS, (1, 2), 9) == [MessageRange(9, 3, 1, 4, 2)]


def test_a_reporting_member_is_admitted_once_and_a_leaving_one_is_not() -> None:
    proposer = proposer_with(m1=(9, {}), m2=(ALL_SLOTS_DONE, {}))
    assert proposer.new_participants((1, 2, 3), ALL_SLOTS_DONE) == {1: 1}
    assert proposer.new_participants((1, 2, 3), ALL_SLOTS_DONE) == {}


def policy(**changed: object) -> Policy:
    settings = {"order": "vbr", "grades": "both", **changed}
    return Policy("g", 1, View((1, 2, 3)), Timing(10, 2, 5_000_000), Rate(50, 8), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"order": "leader"}, "the order leader does not support this option; orders that do: cbr, vbr"),
        ({"grades": "late"}, "expected one of early, final, both, got 'late'"),
    ],
)
def test_unsupported_options_are_refused(changed: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidOption, match=problem):
        build(policy(**changed))


def test_final_deliveries_accept_storage_and_early_ones_alone_refuse_it(tmp_path: Path) -> None:
    peers = {1: "127.0.0.1:9001", 2: "127.0.0.1:9002"}
    for grades in ("both", "final"):
        join_group("table", member=1, peers=peers, failures=True, grades=grades, storage=tmp_path / "storage")
    with pytest.raises(InvalidOption, match="only consensus, quasi_genuine and final deliveries do"):
        join_group("table", member=1, peers=peers, failures=True, storage=tmp_path / "storage")


def member_1_recovery() -> tuple[Recovery, list[tuple[int, FinalsMessage]], MemberReports]:
    """Member 1's recovery, the (receiver, message) pairs that it sends, and reports of 2 and 3 that hold messages."""
    policy = Policy("g", 1, View((1, 2, 3)), Timing(1_000_000, 0, 1_000_000), Rate(100, 10))
    sent: list[tuple[int, FinalsMessage]] = []
    reports = MemberReports()
    for member in (2, 3):
        reports.by_member[member] = MemberReport(1, done_slot=9, held_ranges={(5, 4, 1): ((0, 2),)})
    return (
        Recovery(policy, MessageStore(), FinalLog(), lambda _now, message, to: sent.append((to, message))),
        sent,
        reports,
    )


def test_an_unanswered_request_goes_to_the_next_holder() -> None:
    recovery, sent, reports = member_1_recovery()
    request = RecoveryRequest((MessageRange(5, 4, 1, 0, 3),))
    recovery.request_missing(0, (), reports, (2, 3), 9)
    recovery.request_missing(1, (), reports, (2, 3), 9)
    assert sent == [(2, request)], "member 2 has time to answer"
    due = recovery.retry_at()
    assert due is not None
    assert recovery.overdue(due)
    recovery.request_missing(due, (), reports, (2, 3), 9)
    assert sent == [(2, request), (3, request)]


def test_messages_are_unrecoverable_only_if_a_majority_dropped_them() -> None:
    recovery, _, _ = member_1_recovery()
    missing = MessageRange(5, 4, 1, 0, 3)
    assert recovery.receive(2, RecoveryReply(missing, 0, 0, b"")) == []
    assert not recovery.is_unrecoverable(missing, 2)
    recovery.receive(2, RecoveryReply(missing, 0, 0, b""))
    assert not recovery.is_unrecoverable(missing, 2), "the same member replied twice"
    recovery.receive(3, RecoveryReply(missing, 0, 0, b""))
    assert recovery.is_unrecoverable(missing, 2)
    data = encode_messages([b"a", b"b", b"c"])
    ((sender_slot, first, messages),) = recovery.receive(3, RecoveryReply(missing, len(data), 0, data))
    assert (sender_slot, first, messages.messages()) == ((5, 4, 1), 0, [b"a", b"b", b"c"])
    assert not recovery.is_unrecoverable(missing, 2), "member 3 still has the messages"
