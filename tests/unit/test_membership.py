"""Membership with virtual synchrony: founding a group, joining and leaving it, and what a view change guarantees."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.simulation.membership_world import HEARTBEAT_NS, MS, RETRY_NS, MembershipWorld

from unisono.agreement.failure_detector import FailureDetector
from unisono.agreement.membership.messages import Acks, MembershipMessage, MembershipRequest, Multicast
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
from unisono.wire.codec import control_frame


def formed(members: int = 3, **options: int) -> MembershipWorld:
    world = MembershipWorld(7, members, **options)
    for number in world.founders:
        world.start(number)
    world.run(400 * MS)
    assert world.all_in_one_view()
    return world


def incarnations(world: MembershipWorld, number: int) -> dict[int, int]:
    automaton = world.members[number].automaton
    assert automaton is not None
    return automaton.incarnations


def run_until_one_view(world: MembershipWorld) -> int:
    """Run until all running members are in one view. Returns how long that took."""
    start = world.now
    while not world.all_in_one_view():
        world.run(world.now + MS)
        assert world.now < start + 5000 * MS, "no common view was decided"
    return world.now - start


def test_membership_implements_virtual_synchrony() -> None:
    synchrony: ViewSynchrony = Membership(1, (1,), incarnation=1, every_ns=HEARTBEAT_NS, retry_ns=RETRY_NS)
    assert synchrony.blocked()


@pytest.mark.parametrize("members", [1, 2, 5])
def test_founders_start_with_one_view_and_no_state(members: int) -> None:
    world = formed(members)
    for member in world.members.values():
        (view,) = member.views
        assert view == NewView(1, world.numbers, (1,) * members, joined=world.numbers)
    assert not world.problems()


def test_a_majority_of_founders_starts_after_waiting_for_the_others() -> None:
    world = MembershipWorld(7, 3)
    world.start(1)
    world.start(2)
    world.run(3000 * MS)
    assert incarnations(world, 1) == {1: 1, 2: 1}
    world.start(3)
    run_until_one_view(world)
    assert incarnations(world, 1) == {1: 1, 2: 1, 3: 1}


def test_a_minority_of_founders_does_not_start() -> None:
    world = MembershipWorld(7, 3)
    world.start(1)
    world.run(5000 * MS)
    assert not world.members[1].views


def test_all_members_receive_all_messages_in_sender_order_even_in_several_frames() -> None:
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


def test_frames_that_all_members_have_are_discarded() -> None:
    world = formed()
    for number in world.numbers:
        world.multicast(number, 30)
    world.run(world.now + 500 * MS)
    for member in world.members.values():
        assert member.automaton is not None
        assert member.automaton._view_multicast is not None
        assert not member.automaton._view_multicast.has_unstable()


def test_a_newcomer_receives_the_state_at_the_beginning_of_its_view() -> None:
    world = formed(4, founders=3)
    for number in world.founders:
        world.multicast(number, 40)
    world.start(4)
    run_until_one_view(world)
    assert incarnations(world, 1) == {1: 1, 2: 1, 3: 1, 4: 1}
    assert world.members[4].received == world.members[1].received
    assert world.members[4].views[0].joined == (4,)
    world.multicast(4)
    world.run(world.now + 100 * MS)
    assert (4, 1, 0) in world.members[1].received
    assert not world.problems()


def test_no_message_is_lost_when_its_sender_leaves() -> None:
    world = formed()
    world.multicast(3, 10)
    world.leave(3)
    world.run(world.now + 1000 * MS)
    assert incarnations(world, 1) == {1: 1, 2: 1}
    assert world.members[3].exclusion_reasons == ["it left"]
    assert all((3, 1, n) in world.members[1].received for n in range(10))
    assert world.members[1].views[-1].left == (3,)


def test_all_members_can_leave_one_after_another() -> None:
    world = formed()
    for number in world.numbers:
        world.leave(number)
        world.run(world.now + 1500 * MS)
    assert all(member.automaton is None and len(member.exclusion_reasons) == 1 for member in world.members.values())


@pytest.mark.parametrize("dead", [1, 2, 5])
def test_survivors_install_the_new_view_within_three_detection_times(dead: int) -> None:
    world = formed(5)
    for number in world.numbers:
        world.multicast(number, 3)
    world.run(world.now + 1500 * MS)
    survivor = world.members[1 if dead != 1 else 2].automaton
    assert survivor is not None
    detection = survivor.detector.timeout_ns(dead) + HEARTBEAT_NS
    world.multicast(dead, 5)
    world.crash(dead)
    assert run_until_one_view(world) <= 3 * detection
    assert dead not in survivor.incarnations
    assert 0 < survivor.blocked_time.last_ns <= detection
    assert not world.problems()


def test_one_crash_one_join_and_one_leave_at_once() -> None:
    world = formed(6, founders=5)
    world.crash(2)
    world.start(6)
    world.leave(4)
    world.multicast(1, 5)
    run_until_one_view(world)
    assert set(incarnations(world, 1)) == {1, 3, 5, 6}
    assert not world.problems()


def test_a_restarted_member_joins_as_another_incarnation() -> None:
    world = formed()
    world.multicast(2, 3)
    world.crash(2)
    world.start(2)
    run_until_one_view(world)
    assert incarnations(world, 1) == {1: 1, 2: 2, 3: 1}
    view = world.members[1].views[-1]
    assert 2 in view.joined
    assert any(2 in v.left for v in world.members[1].views)
    assert not world.problems()


def test_a_minority_stops_reports_it_and_returns_as_other_incarnations() -> None:
    world = formed(5)
    world.partition.update({4: 1, 5: 1})
    world.multicast(4)
    world.run(world.now + 1500 * MS)
    isolated = world.members[4].automaton
    assert isolated is not None
    assert isolated.blocked()
    assert isolated.view_id == 1
    assert [v.kind for v in isolated.violations] == ["blocked"]
    assert "a majority of 3 is needed" in isolated.violations[0].text
    received = len(world.members[4].received)
    world.multicast(4)
    world.run(world.now + 200 * MS)
    assert len(world.members[4].received) == received, "a minority must not deliver"
    assert set(incarnations(world, 1)) == {1, 2, 3}
    world.partition.clear()
    world.run(world.now + 1000 * MS)
    assert incarnations(world, 1) == {1: 1, 2: 1, 3: 1, 4: 2, 5: 2}
    assert world.members[4].exclusion_reasons == ["the others went on without this member"]
    assert not world.problems()


def test_without_a_majority_all_members_wait_and_then_continue_together() -> None:
    world = formed(4)
    world.partition.update({3: 1, 4: 1})
    world.run(world.now + 2000 * MS)
    assert all(m.automaton is not None and m.automaton.blocked() for m in world.members.values())
    world.multicast(1)
    world.partition.clear()
    run_until_one_view(world)
    assert incarnations(world, 1) == dict.fromkeys((1, 2, 3, 4), 1)
    world.run(world.now + 200 * MS)
    assert (1, 1, 0) in world.members[4].received, "a message multicast while blocked is sent in the next view"
    assert not world.problems()


def test_a_paused_member_is_excluded_and_rejoins() -> None:
    world = formed(3)
    world.pause(3, world.now + 2000 * MS)
    world.run(world.now + 1000 * MS)
    assert set(incarnations(world, 1)) == {1, 2}
    world.run(world.now + 1500 * MS)
    run_until_one_view(world)
    assert incarnations(world, 1) == {1: 1, 2: 1, 3: 2}


def test_unicast_messages_arrive_in_order() -> None:
    world = formed()
    world.loss = 0.1
    for number in range(30):
        world.unicast(1, 3, b"%d" % number + b"." * 300)
    world.run(world.now + 3000 * MS)
    assert len(world.members[1].views) == 1
    assert [int(message.body.rstrip(b".")) for message in world.members[3].unicasts] == list(range(30))
    assert not world.members[2].unicasts


def test_a_member_can_leave_before_its_first_view() -> None:
    world = MembershipWorld(7, 3)
    world.start(1)
    world.leave(1)
    assert world.members[1].exclusion_reasons == ["it left before its first view"]


def test_the_number_of_waiting_messages_is_bounded() -> None:
    membership = Membership(1, (1, 2), incarnation=1, every_ns=HEARTBEAT_NS, retry_ns=RETRY_NS)
    for _ in range(WAITING_MAX):
        membership.multicast(0, b"")
    assert membership.free_capacity() == 0
    with pytest.raises(UnisonoError, match="free_capacity"):
        membership.multicast(0, b"")


def view_of_three() -> tuple[ViewMulticast, list[MembershipMessage]]:
    sent: list[MembershipMessage] = []
    return ViewMulticast(1, {1: 1, 2: 1, 3: 1}, 5, lambda _now, message, _to: sent.append(message), 100), sent


def test_the_window_is_bounded_and_opens_when_all_members_have_acknowledged() -> None:
    view, sent = view_of_three()
    for _ in range(WINDOW + 10):
        view.multicast(0, b"x")
    assert len([m for m in sent if isinstance(m, Multicast)]) == WINDOW
    view.on_acks(0, 2, Acks({1: 20}, {}))
    assert len(view.waiting) == 10, "member 3 has acknowledged nothing yet"
    view.on_acks(0, 3, Acks({1: 5}, {}))
    assert len(view.waiting) == 5


def test_a_frozen_view_delivers_exactly_up_to_its_last_messages() -> None:
    view, _ = view_of_three()
    view.on_multicast(0, 2, Multicast(1, 0, b"a"))
    view.frozen = True
    view.on_multicast(0, 2, Multicast(2, 0, b"b"))
    view.on_multicast(0, 2, Multicast(3, 0, b"c"))
    assert [event.body for event in view.received_events] == [b"a"]
    view.close_view({2: 2})
    assert [event.body for event in view.received_events] == [b"a", b"b"]
    assert all(isinstance(event, Receive) and event.view_id == 5 for event in view.received_events)


def test_a_leaving_member_waits_until_all_members_have_what_it_has_delivered() -> None:
    view, _ = view_of_three()
    view.on_multicast(0, 2, Multicast(1, 0, b"a"))
    assert not view.all_acknowledged()
    view.on_multicast(0, 2, Multicast(2, 0, b"b"))
    view.on_acks(0, 2, Acks({2: 2}, {}))
    assert not view.all_acknowledged(), "if member 2 crashes, member 3 may never get the first message"
    view.on_acks(0, 3, Acks({2: 1}, {}))
    assert view.all_acknowledged(), "messages delivered after the request to leave do not count"


def test_no_longer_member_is_the_last_event() -> None:
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


def run_until(world: MembershipWorld, condition: Callable[[], bool]) -> None:
    start = world.now
    while not condition():
        world.run(world.now + MS)
        assert world.now < start + 5000 * MS, "the condition did not become true"


def test_a_member_that_missed_more_views_than_are_kept_learns_that_it_is_excluded() -> None:
    world = formed(4)
    absent = world.members[4]
    world.partition.update({4: 1})
    run_until(world, lambda: 4 not in incarnations(world, 1))
    for incarnation in range(2, DECISIONS_KEPT + 4):
        world.crash(3)
        world.start(3)
        run_until(world, lambda expected=incarnation: incarnations(world, 1).get(3) == expected)  # type: ignore[misc]
    assert absent.views[-1].view_id + DECISIONS_KEPT < world.members[1].views[-1].view_id
    assert not absent.exclusion_reasons
    world.partition.clear()
    run_until(world, lambda: bool(absent.exclusion_reasons))
    run_until(world, lambda: incarnations(world, 1).get(4) == 2)
    assert not world.problems()


@pytest.mark.parametrize("founding", [True, False])
def test_only_founding_members_create_a_group(founding: bool) -> None:
    """Otherwise a majority of founders that returns, cut off from the other members, could create a second group."""
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


def test_a_request_to_leave_an_earlier_view_is_ignored() -> None:
    """In the new view the member asks again, when the others have all that it has received."""
    world = formed()
    world.crash(3)
    run_until_one_view(world)
    assert incarnations(world, 1) == {1: 1, 2: 1}
    world.arrive(1, control_frame(MembershipRequest(True, 0, 1, 0, 0), 2, 1, 1, sent_ns=world.now, to=1))
    world.run(world.now + 500 * MS)
    assert incarnations(world, 1) == {1: 1, 2: 1}
    assert not world.members[2].exclusion_reasons


def test_requests_to_leave_end_with_their_view() -> None:
    requests = MembershipRequests(FailureDetector(1, (1, 2), every_ns=HEARTBEAT_NS, incarnation=1))
    requests.leaving.add(2)
    assert requests.next_members({1: 1, 2: 1}) == {1: 1}
    requests.start_view(0, {1: 1, 2: 1})
    assert requests.next_members({1: 1, 2: 1}) == {1: 1, 2: 1}
