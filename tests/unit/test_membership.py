"""Membership with virtual synchrony: how a group begins, who comes and goes, what a view change keeps together."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.simulation.membership_world import HEARTBEAT_NS, MS, RETRY_NS, MembershipWorld

from unisono.agreement.failure_detector import FailureDetector
from unisono.agreement.membership.messages import Acks, MembershipMessage, MembershipRequest, Multicast, encode
from unisono.agreement.membership.multicast import WAITING_MAX, WINDOW, Receive, ViewMulticast
from unisono.agreement.membership.views import (
    DECISIONS_KEPT,
    Membership,
    MembershipRequests,
    NewView,
    NoLongerMember,
    ViewSynchrony,
)
from unisono.errors import UnisonoError
from unisono.wire.frame import Frame


def formed(members: int = 3, **options: int) -> MembershipWorld:
    world = MembershipWorld(7, members, **options)
    for number in world.founders:
        world.start(number)
    world.run(400 * MS)
    assert world.all_in_one_view()
    return world


def lives(world: MembershipWorld, number: int) -> dict[int, int]:
    automaton = world.members[number].automaton
    assert automaton is not None
    return automaton.incarnations


def until_together(world: MembershipWorld) -> int:
    """How long it takes until all who are up are in one view."""
    start = world.now
    while not world.all_in_one_view():
        world.run(world.now + MS)
        assert world.now < start + 5000 * MS, "no view was agreed on"
    return world.now - start


def test_it_is_what_an_order_over_virtual_synchrony_needs() -> None:
    synchrony: ViewSynchrony = Membership(1, (1,), incarnation=1, every_ns=HEARTBEAT_NS, retry_ns=RETRY_NS)
    assert synchrony.blocked()


@pytest.mark.parametrize("members", [1, 2, 5])
def test_founders_begin_with_one_view_and_no_state(members: int) -> None:
    world = formed(members)
    for member in world.members.values():
        (view,) = member.views
        assert view == NewView(1, world.numbers, (1,) * members, joined=world.numbers)
    assert not world.problems()


def test_a_majority_of_founders_begins_when_its_patience_is_over() -> None:
    world = MembershipWorld(7, 3)
    world.start(1)
    world.start(2)
    world.run(3000 * MS)
    assert lives(world, 1) == {1: 1, 2: 1}
    world.start(3)
    until_together(world)
    assert lives(world, 1) == {1: 1, 2: 1, 3: 1}


def test_a_minority_of_founders_does_not_begin() -> None:
    world = MembershipWorld(7, 3)
    world.start(1)
    world.run(5000 * MS)
    assert not world.members[1].views


def test_messages_are_received_by_all_in_their_senders_order_in_parts_too() -> None:
    world = formed()
    world.loss = 0.2
    for _ in range(20):
        for number in world.numbers:
            world.multicast(number)
        world.run(world.now + 5 * MS)
    world.loss = 0.0
    world.run(world.now + 500 * MS)
    assert {len(member.received) for member in world.members.values()} == {60}
    assert not world.problems()


def test_what_everybody_has_is_kept_no_longer() -> None:
    world = formed()
    for number in world.numbers:
        world.multicast(number, 30)
    world.run(world.now + 500 * MS)
    for member in world.members.values():
        assert member.automaton is not None
        assert member.automaton._view_multicast is not None
        assert not member.automaton._view_multicast.has_unstable()


def test_a_newcomer_is_given_the_state_at_the_cut() -> None:
    world = formed(4, founders=3)
    for number in world.founders:
        world.multicast(number, 40)
    world.start(4)
    until_together(world)
    assert lives(world, 1) == {1: 1, 2: 1, 3: 1, 4: 1}
    assert world.members[4].received == world.members[1].received
    assert world.members[4].views[0].joined == (4,)
    world.multicast(4)
    world.run(world.now + 100 * MS)
    assert (4, 1, 0) in world.members[1].received
    assert not world.problems()


def test_a_member_that_leaves_takes_nothing_with_it() -> None:
    world = formed()
    world.multicast(3, 10)
    world.leave(3)
    world.run(world.now + 1000 * MS)
    assert lives(world, 1) == {1: 1, 2: 1}
    assert world.members[3].exclusion_reasons == ["it left"]
    assert all((3, 1, n) in world.members[1].received for n in range(10))
    assert world.members[1].views[-1].left == (3,)


def test_all_may_leave_one_after_another() -> None:
    world = formed()
    for number in world.numbers:
        world.leave(number)
        world.run(world.now + 1500 * MS)
    assert all(member.automaton is None and len(member.exclusion_reasons) == 1 for member in world.members.values())


@pytest.mark.parametrize("dead", [1, 2, 5])
def test_survivors_are_in_the_new_view_within_three_detection_times(dead: int) -> None:
    world = formed(5)
    for number in world.numbers:
        world.multicast(number, 3)
    world.run(world.now + 1500 * MS)
    survivor = world.members[1 if dead != 1 else 2].automaton
    assert survivor is not None
    detection = survivor.detector.timeout_ns(dead) + HEARTBEAT_NS
    world.multicast(dead, 5)
    world.crash(dead)
    assert until_together(world) <= 3 * detection
    assert dead not in survivor.incarnations
    assert 0 < survivor.blocked_time.last_ns <= detection
    assert not world.problems()


def test_several_changes_at_once() -> None:
    world = formed(6, founders=5)
    world.crash(2)
    world.start(6)
    world.leave(4)
    world.multicast(1, 5)
    until_together(world)
    assert set(lives(world, 1)) == {1, 3, 5, 6}
    assert not world.problems()


def test_a_restarted_member_is_another_incarnation() -> None:
    world = formed()
    world.multicast(2, 3)
    world.crash(2)
    world.start(2)
    until_together(world)
    assert lives(world, 1) == {1: 1, 2: 2, 3: 1}
    view = world.members[1].views[-1]
    assert 2 in view.joined
    assert any(2 in v.left for v in world.members[1].views)
    assert not world.problems()


def test_a_minority_stops_says_so_and_comes_back_as_another_incarnation() -> None:
    world = formed(5)
    world.partition.update({4: 1, 5: 1})
    world.multicast(4)
    world.run(world.now + 1500 * MS)
    cut_off = world.members[4].automaton
    assert cut_off is not None
    assert cut_off.blocked()
    assert cut_off.view_id == 1
    assert [v.kind for v in cut_off.violations] == ["blocked"]
    assert "a majority is needed" in cut_off.violations[0].text
    received = len(world.members[4].received)
    world.multicast(4)
    world.run(world.now + 200 * MS)
    assert len(world.members[4].received) == received, "a minority goes on delivering"
    assert set(lives(world, 1)) == {1, 2, 3}
    world.partition.clear()
    world.run(world.now + 1000 * MS)
    assert lives(world, 1) == {1: 1, 2: 1, 3: 1, 4: 2, 5: 2}
    assert world.members[4].exclusion_reasons == ["the others went on without this member"]
    assert not world.problems()


def test_without_any_majority_everybody_waits_and_goes_on_together() -> None:
    world = formed(4)
    world.partition.update({3: 1, 4: 1})
    world.run(world.now + 2000 * MS)
    assert all(m.automaton is not None and m.automaton.blocked() for m in world.members.values())
    world.multicast(1)
    world.partition.clear()
    until_together(world)
    assert lives(world, 1) == dict.fromkeys((1, 2, 3, 4), 1)
    world.run(world.now + 200 * MS)
    assert (1, 1, 0) in world.members[4].received, "what was multicast while blocked goes out in the next view"
    assert not world.problems()


def test_a_paused_member_is_left_out_and_comes_back() -> None:
    world = formed(3)
    world.pause(3, world.now + 2000 * MS)
    world.run(world.now + 1000 * MS)
    assert set(lives(world, 1)) == {1, 2}
    world.run(world.now + 1500 * MS)
    until_together(world)
    assert lives(world, 1) == {1: 1, 2: 1, 3: 2}


def test_what_one_member_tells_another_comes_in_order() -> None:
    world = formed()
    world.loss = 0.1
    for number in range(30):
        world.unicast(1, 3, b"%d" % number + b"." * 300)
    world.run(world.now + 3000 * MS)
    assert len(world.members[1].views) == 1
    assert [int(told.body.rstrip(b".")) for told in world.members[3].unicasts] == list(range(30))
    assert not world.members[2].unicasts


def test_an_end_before_the_first_view() -> None:
    world = MembershipWorld(7, 3)
    world.start(1)
    world.leave(1)
    assert world.members[1].exclusion_reasons == ["it left before its first view"]


def test_what_may_wait_is_bounded() -> None:
    membership = Membership(1, (1, 2), incarnation=1, every_ns=HEARTBEAT_NS, retry_ns=RETRY_NS)
    for _ in range(WAITING_MAX):
        membership.multicast(0, b"")
    assert membership.free_capacity() == 0
    with pytest.raises(UnisonoError, match="free_capacity"):
        membership.multicast(0, b"")


def channel() -> tuple[ViewMulticast, list[MembershipMessage]]:
    said: list[MembershipMessage] = []
    return ViewMulticast(1, {1: 1, 2: 1, 3: 1}, 5, lambda _now, message, _to: said.append(message), 100), said


def test_a_senders_window_is_bounded_and_opens_when_everybody_has_it() -> None:
    messages, said = channel()
    for _ in range(WINDOW + 10):
        messages.multicast(0, b"x")
    assert len([m for m in said if isinstance(m, Multicast)]) == WINDOW
    messages.on_acks(0, 2, Acks({1: 20}, {}))
    assert len(messages.waiting) == 10, "member 3 has nothing yet"
    messages.on_acks(0, 3, Acks({1: 5}, {}))
    assert len(messages.waiting) == 5


def test_a_frozen_view_hands_out_the_cut_and_nothing_else() -> None:
    messages, _ = channel()
    messages.on_multicast(0, 2, Multicast(1, 0, b"a"))
    messages.frozen = True
    messages.on_multicast(0, 2, Multicast(2, 0, b"b"))
    messages.on_multicast(0, 2, Multicast(3, 0, b"c"))
    assert [out.body for out in messages.received_events] == [b"a"]
    messages.close_view({2: 2})
    assert [out.body for out in messages.received_events] == [b"a", b"b"]
    assert all(isinstance(out, Receive) and out.view_id == 5 for out in messages.received_events)


def test_who_leaves_waits_until_everybody_has_what_it_had_received() -> None:
    messages, _ = channel()
    messages.on_multicast(0, 2, Multicast(1, 0, b"a"))
    assert not messages.all_acknowledged()
    messages.on_multicast(0, 2, Multicast(2, 0, b"b"))
    messages.on_acks(0, 2, Acks({2: 2}, {}))
    assert not messages.all_acknowledged(), "member 3 may never hear of the first, if 2 crashes"
    messages.on_acks(0, 3, Acks({2: 1}, {}))
    assert messages.all_acknowledged(), "what came since was not acted upon"


def test_out_is_the_last_that_happens() -> None:
    membership = Membership(1, (1,), incarnation=1, every_ns=HEARTBEAT_NS, retry_ns=RETRY_NS)
    now = 0
    while not membership.stream:
        now = max(now + 1, membership.wake_at() or 0)
        membership.wake(now)
    membership.leave(now)
    while not membership.ended:
        now = max(now + 1, membership.wake_at() or 0)
        membership.wake(now)
    assert isinstance(membership.stream[-1], NoLongerMember)
    membership.wake(now + 1)
    assert membership.wake_at() is None


def until(world: MembershipWorld, what: Callable[[], bool]) -> None:
    start = world.now
    while not what():
        world.run(world.now + MS)
        assert world.now < start + 5000 * MS, "it does not happen"


def test_one_that_missed_more_views_than_are_remembered_learns_that_it_is_out() -> None:
    world = formed(4)
    away = world.members[4]
    world.partition.update({4: 1})
    until(world, lambda: 4 not in lives(world, 1))
    for life in range(2, DECISIONS_KEPT + 4):
        world.crash(3)
        world.start(3)
        until(world, lambda life=life: lives(world, 1).get(3) == life)  # type: ignore[misc]
    assert away.views[-1].view_id + DECISIONS_KEPT < world.members[1].views[-1].view_id
    assert not away.exclusion_reasons
    world.partition.clear()
    until(world, lambda: bool(away.exclusion_reasons))
    until(world, lambda: lives(world, 1).get(4) == 2)
    assert not world.problems()


@pytest.mark.parametrize("founding", [True, False])
def test_who_knows_of_a_group_never_begins_another(founding: bool) -> None:
    """A majority of the founders that comes back, with the others out of reach, could otherwise begin a second one."""
    world = MembershipWorld(7, 3)
    for number in (1, 2):
        member = world.members[number]
        member.incarnation = 2
        member.automaton = Membership(
            number, (1, 2, 3), incarnation=2, every_ns=HEARTBEAT_NS, retry_ns=RETRY_NS, max_frame=256, founding=founding
        )
        world.wake(member)
    world.run(3000 * MS)
    assert [bool(world.members[number].views) for number in (1, 2)] == [founding, founding]


def test_a_wish_to_go_that_is_heard_in_a_later_view_counts_no_more() -> None:
    """There who wants to go may not have left behind yet what it has received: it says so when it has."""
    world = formed()
    world.crash(3)
    until_together(world)
    assert lives(world, 1) == {1: 1, 2: 1}
    kind, body = encode(MembershipRequest(True, 0, 1, 0, 0))
    world.arrive(1, Frame(kind, 2, 1, 1, 0, 0, sent_ns=world.now, body=body, to=1))
    world.run(world.now + 500 * MS)
    assert lives(world, 1) == {1: 1, 2: 1}
    assert not world.members[2].exclusion_reasons


def test_wishes_to_go_are_those_of_one_view() -> None:
    wishes = MembershipRequests(FailureDetector(1, (1, 2), every_ns=HEARTBEAT_NS, incarnation=1))
    wishes.leaving.add(2)
    assert wishes.next_members({1: 1, 2: 1}) == {1: 1}
    wishes.start_view(0, {1: 1, 2: 1})
    assert wishes.next_members({1: 1, 2: 1}) == {1: 1, 2: 1}
