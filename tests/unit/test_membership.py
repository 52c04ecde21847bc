"""Membership with virtual synchrony: how a group begins, who comes and goes, what a view change keeps together."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.simulation.membership_world import EVERY, MS, RETRY, MembershipWorld

from unisono.agreement.failure_detector import Detector
from unisono.agreement.membership.contract import NewView, Out, Receive, ViewSynchrony
from unisono.agreement.membership.messages import Acks, Enter, Message, Sent, encode
from unisono.agreement.membership.multicast import WAITING_MAX, WINDOW, ViewMulticast
from unisono.agreement.membership.past_views import KEPT
from unisono.agreement.membership.requests import Wishes
from unisono.agreement.membership.views import Membership
from unisono.errors import UnisonoError
from unisono.wire.frame import Frame


def formed(members: int = 3, **options: int) -> MembershipWorld:
    world = MembershipWorld(7, members, **options)
    for number in world.founders:
        world.start(number)
    world.run(400 * MS)
    assert world.together()
    return world


def lives(world: MembershipWorld, number: int) -> dict[int, int]:
    automaton = world.members[number].automaton
    assert automaton is not None
    return automaton.lives


def until_together(world: MembershipWorld) -> int:
    """How long it takes until all who are up are in one view."""
    start = world.now
    while not world.together():
        world.run(world.now + MS)
        assert world.now < start + 5000 * MS, "no view was agreed on"
    return world.now - start


def test_it_is_what_an_order_over_virtual_synchrony_needs() -> None:
    synchrony: ViewSynchrony = Membership(1, (1,), incarnation=1, every_ns=EVERY, retry_ns=RETRY)
    assert synchrony.blocked()


@pytest.mark.parametrize("members", [1, 2, 5])
def test_founders_begin_with_one_view_and_no_state(members: int) -> None:
    world = formed(members)
    for member in world.members.values():
        (view,) = member.views
        assert view == NewView(1, world.numbers, (1,) * members, joined=world.numbers)
    assert not world.faults()


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
    assert {len(member.seen) for member in world.members.values()} == {60}
    assert not world.faults()


def test_what_everybody_has_is_kept_no_longer() -> None:
    world = formed()
    for number in world.numbers:
        world.multicast(number, 30)
    world.run(world.now + 500 * MS)
    for member in world.members.values():
        assert member.automaton is not None
        assert member.automaton._messages is not None
        assert not member.automaton._messages.unstable()


def test_a_newcomer_is_given_the_state_at_the_cut() -> None:
    world = formed(4, founders=3)
    for number in world.founders:
        world.multicast(number, 40)
    world.start(4)
    until_together(world)
    assert lives(world, 1) == {1: 1, 2: 1, 3: 1, 4: 1}
    assert world.members[4].seen == world.members[1].seen
    assert world.members[4].views[0].joined == (4,)
    world.multicast(4)
    world.run(world.now + 100 * MS)
    assert (4, 1, 0) in world.members[1].seen
    assert not world.faults()


def test_a_member_that_leaves_takes_nothing_with_it() -> None:
    world = formed()
    world.multicast(3, 10)
    world.leave(3)
    world.run(world.now + 1000 * MS)
    assert lives(world, 1) == {1: 1, 2: 1}
    assert world.members[3].outs == ["it left"]
    assert all((3, 1, n) in world.members[1].seen for n in range(10))
    assert world.members[1].views[-1].left == (3,)


def test_all_may_leave_one_after_another() -> None:
    world = formed()
    for number in world.numbers:
        world.leave(number)
        world.run(world.now + 1500 * MS)
    assert all(member.automaton is None and len(member.outs) == 1 for member in world.members.values())


@pytest.mark.parametrize("dead", [1, 2, 5])
def test_survivors_are_in_the_new_view_within_three_detection_times(dead: int) -> None:
    world = formed(5)
    for number in world.numbers:
        world.multicast(number, 3)
    world.run(world.now + 1500 * MS)
    survivor = world.members[1 if dead != 1 else 2].automaton
    assert survivor is not None
    detection = survivor.detector.timeout_ns(dead) + EVERY
    world.multicast(dead, 5)
    world.crash(dead)
    assert until_together(world) <= 3 * detection
    assert dead not in survivor.lives
    assert 0 < survivor.standstill.last_ns <= detection
    assert not world.faults()


def test_several_changes_at_once() -> None:
    world = formed(6, founders=5)
    world.crash(2)
    world.start(6)
    world.leave(4)
    world.multicast(1, 5)
    until_together(world)
    assert set(lives(world, 1)) == {1, 3, 5, 6}
    assert not world.faults()


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
    assert not world.faults()


def test_a_minority_stops_says_so_and_comes_back_as_another_incarnation() -> None:
    world = formed(5)
    world.sides.update({4: 1, 5: 1})
    world.multicast(4)
    world.run(world.now + 1500 * MS)
    cut_off = world.members[4].automaton
    assert cut_off is not None
    assert cut_off.blocked()
    assert cut_off.view_id == 1
    assert [v.kind for v in cut_off.violations] == ["blocked"]
    assert "a majority is needed" in cut_off.violations[0].text
    received = len(world.members[4].seen)
    world.multicast(4)
    world.run(world.now + 200 * MS)
    assert len(world.members[4].seen) == received, "a minority goes on delivering"
    assert set(lives(world, 1)) == {1, 2, 3}
    world.sides.clear()
    world.run(world.now + 1000 * MS)
    assert lives(world, 1) == {1: 1, 2: 1, 3: 1, 4: 2, 5: 2}
    assert world.members[4].outs == ["the others went on without this member"]
    assert not world.faults()


def test_without_any_majority_everybody_waits_and_goes_on_together() -> None:
    world = formed(4)
    world.sides.update({3: 1, 4: 1})
    world.run(world.now + 2000 * MS)
    assert all(m.automaton is not None and m.automaton.blocked() for m in world.members.values())
    world.multicast(1)
    world.sides.clear()
    until_together(world)
    assert lives(world, 1) == dict.fromkeys((1, 2, 3, 4), 1)
    world.run(world.now + 200 * MS)
    assert (1, 1, 0) in world.members[4].seen, "what was multicast while blocked goes out in the next view"
    assert not world.faults()


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
        world.tell(1, 3, b"%d" % number + b"." * 300)
    world.run(world.now + 3000 * MS)
    assert len(world.members[1].views) == 1
    assert [int(told.body.rstrip(b".")) for told in world.members[3].told] == list(range(30))
    assert not world.members[2].told


def test_an_end_before_the_first_view() -> None:
    world = MembershipWorld(7, 3)
    world.start(1)
    world.leave(1)
    assert world.members[1].outs == ["it left before its first view"]


def test_what_may_wait_is_bounded() -> None:
    membership = Membership(1, (1, 2), incarnation=1, every_ns=EVERY, retry_ns=RETRY)
    for _ in range(WAITING_MAX):
        membership.multicast(0, b"")
    assert membership.room() == 0
    with pytest.raises(UnisonoError, match="room"):
        membership.multicast(0, b"")


def channel() -> tuple[ViewMulticast, list[Message]]:
    said: list[Message] = []
    return ViewMulticast(1, {1: 1, 2: 1, 3: 1}, 5, lambda _now, message, _to: said.append(message), 100), said


def test_a_senders_window_is_bounded_and_opens_when_everybody_has_it() -> None:
    messages, said = channel()
    for _ in range(WINDOW + 10):
        messages.multicast(0, b"x")
    assert len([m for m in said if isinstance(m, Sent)]) == WINDOW
    messages.on_acks(0, 2, Acks({1: 20}, {}))
    assert len(messages.waiting) == 10, "member 3 has nothing yet"
    messages.on_acks(0, 3, Acks({1: 5}, {}))
    assert len(messages.waiting) == 5


def test_a_frozen_view_hands_out_the_cut_and_nothing_else() -> None:
    messages, _ = channel()
    messages.on_sent(0, 2, Sent(1, 0, b"a"))
    messages.frozen = True
    messages.on_sent(0, 2, Sent(2, 0, b"b"))
    messages.on_sent(0, 2, Sent(3, 0, b"c"))
    assert [out.body for out in messages.out] == [b"a"]
    messages.close({2: 2})
    assert [out.body for out in messages.out] == [b"a", b"b"]
    assert all(isinstance(out, Receive) and out.view_id == 5 for out in messages.out)


def test_who_leaves_waits_until_everybody_has_what_it_had_received() -> None:
    messages, _ = channel()
    messages.on_sent(0, 2, Sent(1, 0, b"a"))
    assert not messages.settled()
    messages.on_sent(0, 2, Sent(2, 0, b"b"))
    messages.on_acks(0, 2, Acks({2: 2}, {}))
    assert not messages.settled(), "member 3 may never hear of the first, if 2 crashes"
    messages.on_acks(0, 3, Acks({2: 1}, {}))
    assert messages.settled(), "what came since was not acted upon"


def test_out_is_the_last_that_happens() -> None:
    membership = Membership(1, (1,), incarnation=1, every_ns=EVERY, retry_ns=RETRY)
    now = 0
    while not membership.stream:
        now = max(now + 1, membership.wake_at() or 0)
        membership.wake(now)
    membership.leave(now)
    while not membership.out:
        now = max(now + 1, membership.wake_at() or 0)
        membership.wake(now)
    assert isinstance(membership.stream[-1], Out)
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
    world.sides.update({4: 1})
    until(world, lambda: 4 not in lives(world, 1))
    for life in range(2, KEPT + 4):
        world.crash(3)
        world.start(3)
        until(world, lambda life=life: lives(world, 1).get(3) == life)  # type: ignore[misc]
    assert away.views[-1].view_id + KEPT < world.members[1].views[-1].view_id
    assert not away.outs
    world.sides.clear()
    until(world, lambda: bool(away.outs))
    until(world, lambda: lives(world, 1).get(4) == 2)
    assert not world.faults()


@pytest.mark.parametrize("founding", [True, False])
def test_who_knows_of_a_group_never_begins_another(founding: bool) -> None:
    """A majority of the founders that comes back, with the others out of reach, could otherwise begin a second one."""
    world = MembershipWorld(7, 3)
    for number in (1, 2):
        member = world.members[number]
        member.life = 2
        member.automaton = Membership(
            number, (1, 2, 3), incarnation=2, every_ns=EVERY, retry_ns=RETRY, max_frame=256, founding=founding
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
    kind, body = encode(Enter(True, 0, 1, 0, 0))
    world.arrive(1, Frame(kind, 2, 1, 1, 0, 0, sent_ns=world.now, body=body, to=1))
    world.run(world.now + 500 * MS)
    assert lives(world, 1) == {1: 1, 2: 1}
    assert not world.members[2].outs


def test_wishes_to_go_are_those_of_one_view() -> None:
    wishes = Wishes(Detector(1, (1, 2), every_ns=EVERY, incarnation=1))
    wishes.going.add(2)
    assert wishes.wanted({1: 1, 2: 1}) == {1: 1}
    wishes.begin(0, {1: 1, 2: 1})
    assert wishes.wanted({1: 1, 2: 1}) == {1: 1, 2: 1}
