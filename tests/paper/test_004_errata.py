"""Counterexamples to paper 004's published algorithm (errata 004-1 to 004-5, 004-7, 004-9, 004-10).

The published algorithm fails, the corrected one holds. A test restores a published step by patching the one method that
corrects it.
"""

from collections.abc import Callable

import pytest
from tests.paper.ideal_exploration import all_incarnations, p1, p2, stuck_messages
from tests.paper.ideal_plays import consumed_orders, finish_without, perform_all, receive_from, same_for_all
from tests.worlds.ideal_swarm import finish_required, random_group, run_randomly
from tests.worlds.ideal_trace import ideal_trace
from tests.worlds.ideal_views import IdealGroup

from unisono.check.suite import check_all
from unisono.check.verdict import Status
from unisono.model.message_set import MessageRef
from unisono.orders.priority import consumable_queue, insertion
from unisono.orders.priority.consumable_queue import ConsumableQueue, InsertionPointMissing, PriorityMessage, Urgency
from unisono.orders.priority.insertion import DecisionMode, Insertion
from unisono.sim.random_streams import RandomStreams

LOW, HIGH = 0, 1


def insert_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """004-1 as published: insertion does not wait for the history set."""
    monkeypatch.setattr(Insertion, "may_insert", lambda self, decision: True)


def drop_early_acks(monkeypatch: pytest.MonkeyPatch) -> None:
    """004-2 as published: the arrival of the message empties its bag."""
    monkeypatch.setattr(Insertion, "_open_bag", lambda self, ref: self.bags.__setitem__(ref, {}))


def compare_priorities_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """004-3 as published: messages of equal priority are not ordered."""

    def by_priority(message: PriorityMessage) -> Urgency:
        return (message.priority,)

    monkeypatch.setattr(consumable_queue, "urgency", by_priority)
    monkeypatch.setattr(insertion, "urgency", by_priority)


def count_acks(monkeypatch: pytest.MonkeyPatch) -> None:
    """004-4 as published: as many acknowledgments as members are enough, also from departed members."""
    monkeypatch.setattr(Insertion, "_discard_decisions", lambda self: None)
    monkeypatch.setattr(Insertion, "all_acknowledged", lambda self, bag: len(bag) >= len(self.members))


# -- 004-1 -------------------------------------------------------------------------------------------------------


def ack_overtakes() -> IdealGroup:
    """Member 2 consumes l and then receives h. Member 1 has all acknowledgments of h, but not its own of l."""
    group = IdealGroup({1: [], 2: [LOW], 3: [HIGH]})
    perform_all(group, ("send", 2), *receive_from(2, receiver=3), ("send", 3))
    perform_all(group, *receive_from(3, receiver=1, count=2), *receive_from(2, receiver=1))
    perform_all(
        group,
        *receive_from(2, receiver=2, count=2),
        *receive_from(1, receiver=2, count=2),
        *receive_from(3, receiver=2),
        ("consume", 2),
    )
    perform_all(group, *receive_from(3, receiver=2), *receive_from(3, receiver=3, count=2))
    perform_all(
        group, *receive_from(1, receiver=1), *receive_from(2, receiver=1, count=2), *receive_from(3, receiver=1)
    )
    return group


def test_004_1_published_an_acknowledgment_that_overtakes_breaks_p1(monkeypatch: pytest.MonkeyPatch) -> None:
    insert_at_once(monkeypatch)
    group = ack_overtakes()
    perform_all(group, ("consume", 1))
    finish_required(group)
    assert consumed_orders(group)[1] == ["(3,0)", "(2,0)"]
    assert consumed_orders(group)[2] == ["(2,0)", "(3,0)"]
    assert check_all(ideal_trace(group))["total_order"].status is Status.VIOLATED


def test_004_1_corrected_insertion_waits_for_the_history_set() -> None:
    group = ack_overtakes()
    core = group.peers[1].core
    assert list(core.decisions) == [MessageRef(3, 1, 0)], "decided, and waiting for l"
    assert ("consume", 1) not in group.enabled()
    finish_required(group)
    assert consumed_orders(group) == same_for_all((1, 2, 3), ["(2,0)", "(3,0)"])


# -- 004-2 -------------------------------------------------------------------------------------------------------


def ack_before_message() -> IdealGroup:
    group = IdealGroup({1: [], 2: [LOW], 3: []})
    perform_all(
        group,
        ("send", 2),
        *receive_from(2, receiver=2),
        *receive_from(2, receiver=1),
        *receive_from(1, receiver=3),
        *receive_from(2, receiver=3),
    )
    return group


def test_004_2_published_an_early_acknowledgment_is_dropped_and_the_message_is_stuck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drop_early_acks(monkeypatch)
    group = ack_before_message()
    finish_required(group)
    assert "member 3 is stuck" in stuck_messages(group)


def test_004_2_corrected_the_message_or_its_first_acknowledgment_opens_the_bag() -> None:
    group = ack_before_message()
    finish_required(group)
    assert not stuck_messages(group)
    assert consumed_orders(group) == same_for_all((1, 2, 3), ["(2,0)"])


# -- 004-3 -------------------------------------------------------------------------------------------------------


def crossing_equal_priorities() -> IdealGroup:
    """Each member receives its own message first, and both acknowledge an empty queue."""
    group = IdealGroup({1: [LOW], 2: [LOW]})
    perform_all(
        group,
        ("send", 1),
        ("send", 2),
        *receive_from(1, receiver=1),
        *receive_from(2, receiver=2),
        *receive_from(2, receiver=1),
        *receive_from(1, receiver=2),
    )
    perform_all(group, *receive_from(1, receiver=1), *receive_from(2, receiver=1, count=2))
    perform_all(group, *receive_from(1, receiver=2, count=2), *receive_from(2, receiver=2))
    return group


def test_004_3_published_equal_priorities_received_in_two_orders_break_p1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compare_priorities_only(monkeypatch)
    broken = 0
    for seed in range(40):
        chance = RandomStreams(seed).stream("equals")
        group = IdealGroup({1: [LOW], 2: [LOW], 3: []})
        run_randomly(group, chance)
        if p1(group):
            broken += 1
            assert check_all(ideal_trace(group))["total_order"].status is Status.VIOLATED
    assert broken >= 5


def test_004_3_corrected_the_logical_clock_decides_among_equals() -> None:
    group = crossing_equal_priorities()
    finish_required(group)
    assert consumed_orders(group) == same_for_all((1, 2), ["(1,0)", "(2,0)"])


# -- 004-4 -------------------------------------------------------------------------------------------------------


def ack_of_a_crashed_member() -> IdealGroup:
    """Member 3 acknowledges h and crashes. Member 2 has consumed l before it receives h."""
    group = IdealGroup({1: [LOW, HIGH], 2: [], 3: []}, crashes=1)
    perform_all(
        group, ("send", 1), *receive_from(1, receiver=1), *receive_from(1, receiver=2), *receive_from(1, receiver=3)
    )
    for at in (1, 2, 3):
        perform_all(group, *receive_from(1, receiver=at), *receive_from(2, receiver=at), *receive_from(3, receiver=at))
    perform_all(group, ("send", 1), *receive_from(1, receiver=3), *receive_from(1, receiver=1), ("consume", 2))
    perform_all(group, ("crash", 3, 2), ("block", 1), ("block", 2))
    perform_all(
        group,
        *receive_from(3, receiver=1),
        *receive_from(1, receiver=1),
        *receive_from(3, receiver=2),
        *receive_from(1, receiver=2, count=2),
    )
    perform_all(group, ("install", 1), ("install", 2))
    return group


def test_004_4_published_a_crashed_members_acknowledgment_replaces_a_live_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count_acks(monkeypatch)
    group = ack_of_a_crashed_member()
    finish_required(group)
    assert consumed_orders(group) == {1: ["(1,1)", "(1,0)"], 2: ["(1,0)", "(1,1)"]}
    assert check_all(ideal_trace(group))["total_order"].status is Status.VIOLATED


def test_004_4_corrected_every_member_of_the_view_must_acknowledge() -> None:
    group = ack_of_a_crashed_member()
    finish_required(group)
    assert consumed_orders(group) == {1: ["(1,0)", "(1,1)"], 2: ["(1,0)", "(1,1)"]}


def test_004_4_a_crashed_members_acknowledgment_before_the_view_change_still_counts() -> None:
    """Member 3 consumes l, acknowledges h and crashes: l stays before h at the other members."""
    group = IdealGroup({1: [LOW, HIGH], 2: [], 3: []}, crashes=1)
    perform_all(
        group, ("send", 1), *receive_from(1, receiver=1), *receive_from(1, receiver=2), *receive_from(1, receiver=3)
    )
    perform_all(
        group, *receive_from(1, receiver=3), *receive_from(2, receiver=3), *receive_from(3, receiver=3), ("consume", 3)
    )
    perform_all(group, ("send", 1), *receive_from(1, receiver=3), *receive_from(1, receiver=1, count=2))
    perform_all(group, ("crash", 3, 2))
    finish_required(group)
    assert consumed_orders(group) == {1: ["(1,0)", "(1,1)"], 2: ["(1,0)", "(1,1)"]}


# -- 004-5 -------------------------------------------------------------------------------------------------------


def not_uniform() -> IdealGroup:
    """Member 3 consumes c, and crashes before it acknowledges b, which the others put before c."""
    group = IdealGroup({1: [LOW, HIGH], 2: [], 3: []}, crashes=1)
    perform_all(
        group, ("send", 1), *receive_from(1, receiver=1), *receive_from(1, receiver=2), *receive_from(1, receiver=3)
    )
    perform_all(
        group,
        *receive_from(1, receiver=3),
        *receive_from(2, receiver=3),
        *receive_from(3, receiver=3),
        ("consume", 3),
        ("send", 1),
        ("crash", 3, 1),
    )
    finish_required(group)
    return group


def test_004_5_only_a_member_that_crashed_may_differ() -> None:
    group = not_uniform()
    assert consumed_orders(group) == same_for_all((1, 2), ["(1,1)", "(1,0)"])
    assert group.peers[3].consumed == [MessageRef(1, 1, 0)]
    verdicts = check_all(ideal_trace(group))
    assert {verdict.status for verdict in verdicts.values()} == {Status.VALID}


def test_004_5_a_member_that_leaves_in_order_does_not_differ() -> None:
    group = IdealGroup({1: [LOW, HIGH], 2: [], 3: []}, leaves=1)
    perform_all(
        group, ("send", 1), *receive_from(1, receiver=1), *receive_from(1, receiver=2), *receive_from(1, receiver=3)
    )
    perform_all(
        group,
        *receive_from(1, receiver=3),
        *receive_from(2, receiver=3),
        *receive_from(3, receiver=3),
        ("consume", 3),
        ("send", 1),
    )
    perform_all(group, ("leave", 3), *receive_from(3, receiver=3), ("depart", 3), ("block", 3))
    finish_required(group)
    assert group.peers[3].consumed == [MessageRef(1, 1, 0)]
    assert consumed_orders(group) == same_for_all((1, 2), ["(1,0)", "(1,1)"]), "the departed member's message is first"


# -- 004-7 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", DecisionMode)
def test_004_7_without_step_3_nothing_breaks(form: DecisionMode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConsumableQueue, "drop_lesser_locks", lambda self, items, level: None)
    for seed in range(15):
        chance = RandomStreams(seed).stream("step 3")
        group = random_group(chance, form=form)
        run_randomly(group, chance)
        finish_required(group)
        assert p1(group) + p2(group) + stuck_messages(group) == "", seed


# -- 004-9 -------------------------------------------------------------------------------------------------------


def after_sending(messages: int, report_every: int = 1 << 30) -> IdealGroup:
    group = IdealGroup({1: [LOW] * messages, 2: []}, report_every=report_every)
    for _ in range(messages):
        perform_all(group, ("send", 1))
        finish_but_send(group)
    return group


def finish_but_send(group: IdealGroup) -> None:
    while actions := [action for action in group.enabled() if action[0] != "send"]:
        group.perform(actions[0])


def test_004_9_messages_consumed_by_all_leave_the_histories_without_extra_traffic() -> None:
    group = after_sending(10)
    for peer in group.survivors():
        assert peer.consumed == [MessageRef(1, 1, n) for n in range(10)]
        assert list(peer.core.history) == [MessageRef(1, 1, 9)], (
            "the acknowledgments of message 9 report all earlier ones"
        )
    assert {type(body).__name__ for bodies in group.bodies.values() for body in bodies} == {"MessageBody", "Ack"}


def test_004_9_a_member_that_only_consumes_reports_its_progress() -> None:
    group = after_sending(10, report_every=1)
    assert [list(peer.core.history) for peer in group.survivors()] == [[], []]


def test_004_9_a_slow_consumer_keeps_the_histories() -> None:
    group = IdealGroup({1: [LOW] * 5, 2: []})
    while actions := [action for action in group.enabled() if action != ("consume", 2)]:
        group.perform(actions[0])
    assert len(group.peers[1].core.history) == 5
    finish_required(group)


def test_004_9_a_message_consumed_by_all_counts_as_inserted() -> None:
    """A slow member's acknowledgments still name messages that the others have dropped from their histories."""
    chance = RandomStreams(9).stream("collected")
    for _ in range(20):
        group = random_group(chance)
        run_randomly(group, chance)
        finish_required(group)
        assert not stuck_messages(group)


# -- 004-10 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", DecisionMode)
def test_004_10_a_newcomer_takes_over_queue_locks_history_and_pending_acknowledgments(form: DecisionMode) -> None:
    group = IdealGroup({1: [LOW, LOW, HIGH], 2: []}, form=form, join_scripts={3: []})
    perform_all(group, ("send", 1), ("send", 1))
    finish_without(group, {"send", "consume", "admit"})
    perform_all(group, ("consume", 1), ("send", 1), *receive_from(1, receiver=1))
    perform_all(group, ("admit", 3), ("block", 1), ("block", 2))
    finish_without(group, {"consume", "install", "admit"})
    perform_all(group, ("install", 1), ("join", 3, 1))
    provider, newcomer = group.peers[1].core, group.peers[3].core
    assert newcomer.position == 1
    assert [item.ref for item in newcomer.queue] == [MessageRef(1, 1, 1)]
    assert [list(item.locks) for item in newcomer.queue] == [[MessageRef(1, 1, 2)]]
    assert list(newcomer.waiting) == list(provider.waiting) == [MessageRef(1, 1, 2)]
    assert newcomer.history == provider.history
    finish_required(group)
    assert consumed_orders(group)[1] == ["(1,0)", "(1,2)", "(1,1)"]
    assert consumed_orders(group)[3] == ["(1,2)", "(1,1)"]
    assert not stuck_messages(group)


def test_004_10_the_first_member_decides_again_when_the_coordinator_crashes_with_its_decision() -> None:
    group = IdealGroup({1: [], 2: [], 3: [HIGH]}, form=DecisionMode.COORDINATOR, crashes=1, crash_candidates=[3])
    perform_all(
        group,
        ("send", 3),
        *receive_from(3, receiver=1),
        *receive_from(3, receiver=2),
        *receive_from(3, receiver=3),
        ("told", 3, 1),
        ("told", 3, 2),
    )
    assert len(group.bodies[1, (3, 1)]) == 2, "the message and the decision"
    perform_all(group, ("crash", 3, 1))
    finish_required(group)
    assert consumed_orders(group) == same_for_all((1, 2), ["(3,0)"])


def test_004_10_a_coordinators_decision_waits_for_the_history_set_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the wait, decisions of two coordinators that arrive in two orders break P1."""
    insert_at_once(monkeypatch)
    broken = 0
    for seed in range(400):
        chance = RandomStreams(seed).stream("decisions")
        group = IdealGroup({1: [LOW, LOW], 2: [HIGH, HIGH], 3: [LOW, HIGH]}, form=DecisionMode.COORDINATOR)
        try:
            run_randomly(group, chance)
        except InsertionPointMissing:
            broken += 1
            continue
        broken += bool(p1(group))
    assert broken >= 3


# -- the checkers find every published error ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("published", "scripts", "crashes"),
    [
        (insert_at_once, {1: [], 2: [LOW, LOW], 3: [HIGH, HIGH]}, 0),
        (drop_early_acks, {1: [LOW], 2: [LOW, HIGH], 3: [HIGH]}, 0),
        (compare_priorities_only, {1: [LOW], 2: [LOW, HIGH], 3: [HIGH]}, 0),
        (count_acks, {1: [LOW], 2: [LOW, HIGH], 3: [HIGH]}, 1),
    ],
)
def test_the_checkers_find_each_published_error_in_random_runs(
    published: Callable[[pytest.MonkeyPatch], None],
    scripts: dict[int, list[int]],
    crashes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    published(monkeypatch)
    for seed in range(1000):
        chance = RandomStreams(seed).stream("planted")
        group = IdealGroup(scripts, crashes=crashes)
        try:
            run_randomly(group, chance)
        except InsertionPointMissing:
            return
        if stuck_messages(group):
            return
        if p1(group):
            assert check_all(ideal_trace(group))["total_order"].status is Status.VIOLATED
            return
    pytest.fail("no run showed the error")


def test_all_incarnations_lists_every_member() -> None:
    group = not_uniform()
    assert {(peer.member, peer.incarnation) for peer in all_incarnations(group)} == {(1, 1), (2, 1), (3, 1)}
