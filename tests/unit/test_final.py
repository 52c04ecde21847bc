"""The parts of final deliveries: what is kept, what a leader may propose, what the log makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from unisono.agreement.paxos.decisions import Restored
from unisono.errors import InvalidPolicy
from unisono.group import join
from unisono.model.message_range import Cell, Extent
from unisono.model.message_set import Range
from unisono.model.policy import Policy
from unisono.model.rates import Rate
from unisono.model.remaining import Rest
from unisono.model.timing import Timing
from unisono.model.views import View
from unisono.orders.final.log import LIVES_KEPT, FinalLog
from unisono.orders.final.messages import GONE, Give, Message, Value, Want, encode_messages, encode_value
from unisono.orders.final.recovery import Recovery
from unisono.orders.final.reports import Chooser, Report, Reports, segments
from unisono.orders.final.store import Store
from unisono.stack import build

CELL = (7, 1, 1)
PATIENCE_NS = 100


def rest(*messages: bytes) -> Rest:
    return Rest(list(messages))


def test_the_store_keeps_each_message_once_and_gives_what_is_whole() -> None:
    store = Store()
    assert store.put(CELL, 3, rest(b"d", b"e"))
    assert store.put(CELL, 0, rest(b"a", b"b"))
    assert store.ranges(CELL) == ((0, 1), (3, 4))
    assert store.runs(Extent(*CELL, 0, 5)) is None
    assert store.put(CELL, 1, rest(b"B", b"c", b"D"))
    assert not store.put(CELL, 0, rest(b"a", b"b", b"c"))
    runs = store.runs(Extent(*CELL, 1, 3))
    assert runs is not None
    assert [message for run in runs for message in run.messages()] == [b"b", b"c", b"d"]
    assert store.bytes == 5
    store.drop(Extent(*CELL, 1, 2))
    assert store.ranges(CELL) == ((0, 0), (3, 4))
    assert store.bytes == 3
    store.drop(Extent(*CELL, 0, 9))
    assert (store.ranges(CELL), store.bytes) == ((), 0)


def test_what_is_in_the_log_first_counts_and_late_messages_come_behind() -> None:
    log = FinalLog()
    agreed = log.take(1, encode_value(Value({1: 4}, (Extent(7, 1, 1, 0, 3), Extent(9, 2, 1, 0, 1)))))
    assert agreed is not None
    assert [(one.slot, one.place) for one in agreed] == [(7, 0), (9, 3)]
    again = log.take(2, encode_value(Value({}, (Extent(7, 1, 1, 1, 4), Extent(8, 3, 1, 0, 2)))))
    assert again is not None
    assert [(one.slot, one.place, one.extent) for one in again] == [
        (9, 4, Extent(7, 1, 1, 3, 2)),
        (9, 6, Extent(8, 3, 1, 0, 2)),
    ]
    assert log.entered == {1: 4}
    copy = FinalLog()
    copy.restore(Restored(2, log.state()))
    assert (copy.k, copy.messages, copy.slot, copy.final, copy.entered) == (2, 8, 9, log.final, {1: 4})
    assert log.take(3, b"\x00") is None


def test_of_very_old_lives_nothing_becomes_final() -> None:
    log = FinalLog()
    for life in range(LIVES_KEPT + 1):
        log.take(life + 1, encode_value(Value({}, (Extent(7, 1, life, 0, 1),))))
    assert log.left(Extent(8, 1, 0, 5, 1)) == []
    assert log.left(Extent(8, 1, 1, 5, 1)) == [Extent(8, 1, 1, 5, 1)]


def test_segments_have_the_same_holders_everywhere() -> None:
    assert segments(CELL, {1: ((0, 4),), 2: ((0, 4),)}) == [(Extent(*CELL, 0, 5), 2)]
    assert segments(CELL, {1: ((0, 4),), 2: ((0, 1), (3, 6))}) == [
        (Extent(*CELL, 0, 2), 2),
        (Extent(*CELL, 2, 1), 1),
        (Extent(*CELL, 3, 2), 2),
        (Extent(*CELL, 5, 2), 1),
    ]


Held = dict[Cell, tuple[Range, ...]]


def chooser(**held: tuple[int, Held]) -> Chooser:
    """By member, up to which slot it is done and what it holds there."""
    reports = Reports()
    for member, (upto, cells) in held.items():
        reports.of[int(member[1:])] = Report(1, upto, 0, cells)
    return Chooser(reports, FinalLog(), 2, PATIENCE_NS)


def test_a_leader_waits_until_all_that_are_not_suspected_are_done_with_a_slot() -> None:
    whole: Held = {CELL: ((0, 1),)}
    choosing = chooser(m1=(7, whole), m2=(6, {}), m3=(9, whole))
    assert choosing.extents(0, (1, 2, 3), 9) == []
    assert choosing.extents(0, (1, 3), 9) == [Extent(*CELL, 0, 2)]
    assert choosing.extents(0, (1, 3), 9) == [], "once"
    assert chooser(m1=(7, whole)).extents(0, (1, 2), 9) == [], "nor goes on without one that has not said anything"


def test_a_leader_proposes_only_what_a_majority_holds() -> None:
    later = (8, 2, 1)
    one = chooser(m1=(9, {CELL: ((0, 1),)}), m2=(9, {later: ((0, 0),)}), m3=(9, {later: ((0, 0),)}))
    assert one.extents(0, (1, 2, 3), 9) == [], "and what is behind it waits, while its holder is there to give it"
    assert one.extents(0, (2, 3), 9) == [Extent(*later, 0, 1)]


def test_what_follows_a_hole_of_a_silent_sender_waits_for_a_while() -> None:
    behind: Held = {(9, 3, 1): ((4, 5),)}
    choosing = chooser(m1=(9, behind), m2=(9, behind))
    assert choosing.extents(1000, (1, 2), 9) == []
    assert choosing.retry_at == 1000 + PATIENCE_NS
    assert choosing.extents(1000 + PATIENCE_NS, (1, 2), 9) == [Extent(9, 3, 1, 4, 2)]


def test_who_has_reported_enters_once_and_who_leaves_does_not() -> None:
    choosing = chooser(m1=(9, {}), m2=(GONE, {}))
    assert choosing.entering((1, 2, 3), GONE) == {1: 1}
    assert choosing.entering((1, 2, 3), GONE) == {}


def policy(**changed: object) -> Policy:
    settings = {"order": "vbr", "grades": "both", **changed}
    return Policy("g", 1, View((1, 2, 3)), Timing(10, 2, 5_000_000), Rate(50, 8), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"order": "leader"}, "leader does not do that; possible with cbr, vbr"),
        ({"grades": "late"}, "early, final, both are possible, not 'late'"),
    ],
)
def test_what_cannot_be_had_is_refused(changed: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidPolicy, match=problem):
        build(policy(**changed))


def test_final_deliveries_may_have_storage_and_early_ones_alone_have_no_use_for_it(tmp_path: Path) -> None:
    peers = {1: "127.0.0.1:9001", 2: "127.0.0.1:9002"}
    for grades in ("both", "final"):
        join("table", member=1, peers=peers, failures=True, grades=grades, storage=tmp_path / "memory")
    with pytest.raises(InvalidPolicy, match="so do final deliveries"):
        join("table", member=1, peers=peers, failures=True, storage=tmp_path / "memory")


def recovering() -> tuple[Recovery, list[tuple[int, Message]], Reports]:
    """Member 1's, what it says to whom, and reports of 2 and 3, who hold what it lacks."""
    policy = Policy("g", 1, View((1, 2, 3)), Timing(1_000_000, 0, 1_000_000), Rate(100, 10))
    said: list[tuple[int, Message]] = []
    reports = Reports()
    for member in (2, 3):
        reports.of[member] = Report(1, upto=9, cells={(5, 4, 1): ((0, 2),)})
    return Recovery(policy, Store(), FinalLog(), lambda _now, message, to: said.append((to, message))), said, reports


def test_who_does_not_answer_is_not_asked_again_before_the_others() -> None:
    recovery, said, reports = recovering()
    lacked = Want((Extent(5, 4, 1, 0, 3),))
    recovery.ask(0, (), reports, (2, 3), 9)
    recovery.ask(1, (), reports, (2, 3), 9)
    assert said == [(2, lacked)], "it has time to answer"
    due = recovery.due()
    assert due is not None
    assert recovery.overdue(due)
    recovery.ask(due, (), reports, (2, 3), 9)
    assert said == [(2, lacked), (3, lacked)]


def test_nothing_is_given_up_before_a_majority_keeps_it_no_longer() -> None:
    recovery, _, _ = recovering()
    extent = Extent(5, 4, 1, 0, 3)
    assert recovery.take(2, Give(extent, 0, 0, b"")) == []
    assert not recovery.hopeless(extent, 2)
    recovery.take(2, Give(extent, 0, 0, b""))
    assert not recovery.hopeless(extent, 2), "one member says it twice"
    recovery.take(3, Give(extent, 0, 0, b""))
    assert recovery.hopeless(extent, 2)
    data = encode_messages([b"a", b"b", b"c"])
    ((cell, first, run),) = recovery.take(3, Give(extent, len(data), 0, data))
    assert (cell, first, run.messages()) == ((5, 4, 1), 0, [b"a", b"b", b"c"])
    assert not recovery.hopeless(extent, 2), "somebody has it after all"
