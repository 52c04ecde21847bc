"""Paper 004 §3 and Figure 4: equation (1), view-atomic multicast, and each clause of the algorithm."""

import pytest
from tests.worlds.ideal_trace import ideal_trace
from tests.worlds.ideal_views import IdealGroup

from unisono.check.priority import priority_accounting, view_atomicity
from unisono.check.verdict import Status
from unisono.model.message_set import NO_MESSAGES, MessageRef, MessageSet
from unisono.orders.priority.insertion import DecisionMode, Insertion
from unisono.orders.priority.messages import Ack, MessageBody, PriorityBody

LOW, HIGH = 0, 1
L, H = MessageRef(1, 1, 0), MessageRef(2, 1, 0)


def run_all(group: IdealGroup, *kinds: str) -> None:
    """Perform all actions of these kinds."""
    while actions := [action for action in group.enabled() if action[0] in kinds]:
        group.perform(actions[0])


# -- §3.1, equation (1) --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", DecisionMode)
def test_equation_1_an_urgent_message_overtakes_a_message_queued_at_all_members(form: DecisionMode) -> None:
    group = IdealGroup({1: [LOW], 2: [HIGH], 3: []}, form=form)
    group.perform(("send", 1))
    run_all(group, "receive", "told")
    assert all([item.ref for item in peer.core.queue] == [L] for peer in group.survivors()), "l is in every queue"
    group.perform(("send", 2))
    run_all(group, "receive", "told", "consume")
    assert [peer.consumed for peer in group.survivors()] == [[H, L]] * 3
    verdict = priority_accounting(ideal_trace(group))
    assert verdict.status is Status.VALID
    assert verdict.figures["overtakings"] == 3


@pytest.mark.parametrize("form", DecisionMode)
def test_equation_1_does_not_apply_once_one_process_has_delivered(form: DecisionMode) -> None:
    group = IdealGroup({1: [LOW], 2: [HIGH], 3: []}, form=form)
    group.perform(("send", 1))
    run_all(group, "receive", "told")
    group.perform(("consume", 3))
    group.perform(("send", 2))
    run_all(group, "receive", "told", "consume")
    assert [peer.consumed for peer in group.survivors()] == [[L, H]] * 3, "P1: all use the order of the first consumer"
    assert priority_accounting(ideal_trace(group)).status is Status.VALID


# -- §3.2 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("surviving", [0, 1])
def test_view_atomic_multicast_all_survivors_receive_a_message_before_the_next_view_or_none(surviving: int) -> None:
    """Member 1 crashes while its message is in flight: all survivors receive it, or none of them."""
    group = IdealGroup({1: [LOW], 2: [], 3: []}, crashes=1, crash_candidates=[1])
    group.perform(("send", 1))
    group.perform(("crash", 1, surviving))
    run_all(group, "receive", "block", "install", "consume")
    assert [peer.consumed for peer in group.survivors()] == [[L][:surviving]] * 2
    assert {peer.view for peer in group.survivors()} == {2}
    assert view_atomicity(ideal_trace(group)).status is Status.VALID


# -- Figure 4 --------------------------------------------------------------------------------------------------------


def member(number: int) -> Insertion:
    core = Insertion(number, 1, DecisionMode.ALL, report_every=1 << 30)
    core.new_view(1, [(1, 1), (2, 1)], joining=False)
    return core


def multicasts(core: Insertion) -> list[PriorityBody]:
    bodies, core.to_multicast[:] = core.to_multicast[:], []
    return bodies


def test_figure_4_a_message_is_multicast_unchanged() -> None:
    core = member(1)
    core.send(0, LOW, b"l")
    (body,) = multicasts(core)
    assert isinstance(body, MessageBody)
    assert (body.priority, body.payload) == (LOW, b"l")
    assert not core.waiting, "the sender receives it like any other message"


def test_figure_4_a_received_message_waits_and_is_acknowledged_to_all() -> None:
    core = member(2)
    core.receive((1, 1), MessageBody(0, LOW, 1, 0, b"l"))
    assert list(core.waiting) == [L]
    assert multicasts(core) == [Ack(L, NO_MESSAGES, NO_MESSAGES)]


def test_figure_4_a_message_is_inserted_when_every_member_of_the_view_has_acknowledged() -> None:
    core = member(2)
    core.receive((1, 1), MessageBody(0, LOW, 1, 0, b"l"))
    (own,) = multicasts(core)
    core.receive((2, 1), own)
    assert list(core.waiting) == [L], "one acknowledgment is missing"
    core.receive((1, 1), Ack(L, NO_MESSAGES, NO_MESSAGES))
    assert not core.waiting
    assert [item.ref for item in core.queue] == [L]


def test_figure_4_an_acknowledgment_carries_the_target_tail_and_the_history() -> None:
    core = member(2)
    for sequence in (0, 1):
        core.receive((1, 1), MessageBody(sequence, LOW, 1 + sequence, 0, b""))
        (own,) = multicasts(core)
        core.receive((2, 1), own)
        core.receive((1, 1), Ack(MessageRef(1, 1, sequence), NO_MESSAGES, NO_MESSAGES))
    assert core.consume() is not None
    core.receive((2, 1), MessageBody(0, HIGH, 5, 0, b"h"))
    (ack,) = multicasts(core)
    assert ack == Ack(H, MessageSet.of([MessageRef(1, 1, 1)]), MessageSet.of([L]))


def test_figure_4_only_members_of_the_new_view_must_acknowledge() -> None:
    core = member(2)
    core.receive((1, 1), MessageBody(0, LOW, 1, 0, b"l"))
    (own,) = multicasts(core)
    core.receive((2, 1), own)
    core.new_view(2, [(2, 1)], joining=False)
    assert [item.ref for item in core.queue] == [L], "no other member is left to acknowledge"
