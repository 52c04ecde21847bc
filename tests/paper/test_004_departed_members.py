"""The history of a departed member counts for every message decided after its departure, or for none (004-4).

Each test is a counterexample to a weaker rule; see `unisono.orders.priority.insertion`.
"""

from tests.paper.ideal_exploration import p1, p2, stuck_messages
from tests.paper.ideal_plays import consumed_orders, finish_without, perform_all, receive_from, same_for_all
from tests.worlds.ideal_swarm import finish_required
from tests.worlds.ideal_views import IdealGroup

from unisono.model.message_set import MessageRef
from unisono.orders.priority.insertion import DecisionMode
from unisono.orders.priority.messages import InsertionDecision

LOW, HIGH = 0, 1


def crash_between_two_acknowledgments(*, decided_in_time: bool) -> IdealGroup:
    """Member 4 consumes l, acknowledges h to its coordinator, and crashes before it acknowledges m: l < m < h."""
    group = IdealGroup({1: [2], 2: [1], 3: [0], 4: []}, form=DecisionMode.COORDINATOR, crashes=1, join_scripts={5: []})
    perform_all(group, ("send", 3), *(("receive", at, 3, 1) for at in (1, 2, 3, 4)))
    perform_all(group, *(("told", 3, by) for by in (1, 2, 4)), *(("receive", at, 3, 1) for at in (1, 2, 3, 4)))
    perform_all(group, ("consume", 4), ("send", 2), *(("receive", at, 2, 1) for at in (1, 2, 3)))
    perform_all(group, ("send", 1), *(("receive", at, 1, 1) for at in (1, 2, 3, 4)), ("told", 1, 2), ("told", 1, 3))
    if decided_in_time:
        perform_all(group, ("told", 1, 4), *receive_from(1, receiver=1), ("crash", 4, 0))
    else:
        perform_all(group, ("admit", 5), ("block", 1), ("told", 1, 4), ("crash", 4, 0))
    return group


def test_a_crashed_members_history_for_one_message_counts_for_the_others() -> None:
    """l stays before h because of the crashed member. So it stays before m, whichever members consume l by then."""
    group = crash_between_two_acknowledgments(decided_in_time=True)
    perform_all(group, ("consume", 1))
    finish_without(group, {"consume", "admit"})
    finish_required(group)
    assert consumed_orders(group) == same_for_all((1, 2, 3), ["(3,0)", "(1,0)", "(2,0)"])


def test_a_decision_that_arrives_in_the_next_view_is_ignored() -> None:
    """It rests on an acknowledgment that only the coordinator received; the decision about m would not."""
    group = crash_between_two_acknowledgments(decided_in_time=False)
    assert [type(body) for body in group.peers[1].backlog] == [InsertionDecision]
    finish_required(group)
    assert {tuple(order) for order in consumed_orders(group).values()} == {("(1,0)", "(2,0)", "(3,0)")}


def test_no_message_waits_for_itself_because_a_departed_member_consumed_it() -> None:
    """Members 3 and 4 crash. Only 3 received 4's acknowledgment of l; it consumed l and reported that."""
    group = IdealGroup({1: [], 2: [], 3: [LOW], 4: []}, crashes=2, leaves=1)
    perform_all(group, ("send", 3), *(("receive", at, 3, 1) for at in (1, 2, 3, 4)))
    perform_all(group, *(("receive", 3, by, 1) for by in (1, 2, 3, 4)), ("consume", 3), ("leave", 3))
    perform_all(group, ("crash", 3, 3), ("crash", 4, 0))
    finish_required(group)
    assert not stuck_messages(group)
    assert consumed_orders(group) == same_for_all((1, 2), ["(3,0)"])


def test_no_part_of_a_departed_members_history_is_put_first() -> None:
    """As before, but 3 has consumed h and then l, which is in all queues. l must not go before h for that reason."""
    group = IdealGroup({1: [], 2: [], 3: [LOW, HIGH], 4: []}, crashes=2, report_every=1)
    perform_all(group, ("send", 3), *(("receive", at, 3, 1) for at in (1, 2, 3, 4)))
    for at in (1, 2, 3, 4):
        perform_all(group, *(("receive", at, by, 1) for by in (1, 2, 3, 4)))
    perform_all(group, ("send", 3), *(("receive", at, 3, 1) for at in (1, 2, 3, 4)))
    perform_all(group, *(("receive", 3, by, 1) for by in (1, 2, 3, 4)), ("consume", 3), ("consume", 3))
    assert [str(ref) for ref in group.peers[3].consumed] == ["(3,1)", "(3,0)"]
    perform_all(group, ("crash", 3, 6), ("crash", 4, 1))
    finish_required(group)
    assert consumed_orders(group) == same_for_all((1, 2), ["(3,1)", "(3,0)"])
    assert p1(group) + p2(group) + stuck_messages(group) == ""


def test_a_waiting_decision_is_made_again_in_the_next_view() -> None:
    """Members 3 and 4 crash. h was decided behind l, which 3 consumed because only 3 had 4's acknowledgment of l."""
    group = IdealGroup({1: [HIGH], 2: [], 3: [LOW], 4: []}, crashes=2)
    perform_all(group, ("send", 3), *receive_from(3, receiver=1), ("send", 1), *receive_from(1, receiver=4, count=2))
    perform_all(group, *(("receive", at, 3, 1) for at in (2, 3, 4)))
    perform_all(
        group,
        *receive_from(1, receiver=3),
        *receive_from(2, receiver=3),
        *receive_from(3, receiver=3),
        *receive_from(4, receiver=3, count=2),
        ("consume", 3),
    )
    perform_all(
        group,
        *receive_from(1, receiver=3),
        *receive_from(1, receiver=2, count=2),
        *receive_from(1, receiver=1, count=3),
    )
    perform_all(
        group,
        *receive_from(2, receiver=1, count=2),
        *receive_from(3, receiver=1, count=2),
        *receive_from(4, receiver=1),
    )
    assert list(group.peers[1].core.decisions) == [MessageRef(1, 1, 0)], "decided, and waiting for l"
    perform_all(group, ("crash", 3, 3), ("crash", 4, 1))
    finish_required(group)
    assert consumed_orders(group) == same_for_all((1, 2), ["(1,0)", "(3,0)"])
