"""The priority order as a stack's order, over a virtual synchrony that the test plays by hand."""

from collections.abc import Iterable

import pytest

from unisono.agreement.membership.contract import (
    NewView,
    NoLongerMember,
    Receive,
    ReceiveUnicast,
    StateReceived,
    StateRequested,
    ViewEvent,
)
from unisono.model.events import Batch, LeaveComplete, QueueStep, Rejoining, ViewChange, Violation, ViolationKind
from unisono.model.policy import Policy
from unisono.model.rates import Rate, UnlimitedNetwork
from unisono.model.timing import Timing
from unisono.model.views import View
from unisono.orders.priority.insertion import DecisionMode
from unisono.orders.priority.messages import decode_handover
from unisono.orders.priority.order import REJOIN_DELAY_NS, PriorityOrder
from unisono.wire.frame import Frame

MS = 1_000_000
LOW, HIGH = 0, 1


class Views:
    """One member's end of the ether."""

    def __init__(self, ether: "Ether", member: int, life: int = 1) -> None:
        self.down: list[Frame] = []
        self.stream: list[ViewEvent] = []
        self.violations: list[Violation] = []
        self.given: dict[int, bytes] = {}
        self.asked_to_leave = self.changing = False
        self._ether, self._member, self._life = ether, member, life

    def multicast(self, now: int, body: bytes) -> None:
        for other in self._ether.members:
            self._ether.under_way.append((other, Receive(self._member, self._life, self._ether.view_id, body)))

    def unicast(self, now: int, to: int, body: bytes) -> None:
        self._ether.under_way.append((to, ReceiveUnicast(self._member, self._life, self._ether.view_id, body)))

    def blocked(self) -> bool:
        return self.changing

    def provide_state(self, now: int, view_id: int, state: bytes) -> None:
        self.given[view_id] = state

    def from_below(self, now: int, frame: Frame) -> None:
        raise AssertionError("no frames here")

    def leave(self, now: int) -> None:
        self.asked_to_leave = True

    def wake(self, now: int) -> None:
        pass

    def wake_at(self) -> int | None:
        return None


class Ether:
    """Everything that is multicast comes to everyone, in one order, when `run` is called."""

    def __init__(
        self,
        members: Iterable[int],
        *,
        form: DecisionMode = DecisionMode.ALL,
        window: int = 64,
        burst: int = 100,
        again: bool = False,
    ) -> None:
        self.members = tuple(members)
        self._again = self._anew if again else None
        self.view_id = 1
        self.now = 0
        self.under_way: list[tuple[int, ViewEvent]] = []
        self.views: dict[int, Views] = {}
        self.orders: dict[int, PriorityOrder] = {}
        self._options = (form, window, burst)
        for member in self.members:
            self.add(member)
            self.hand(member, NewView(1, self.members, (1,) * len(self.members), self.members))

    def add(self, member: int) -> PriorityOrder:
        form, window, burst = self._options
        policy = Policy(
            "g", member, View((1, 2, 3)), Timing(MS, 0, 10 * MS), Rate(avg=burst * 100, burst=burst), order="priority"
        )
        self.views[member] = Views(self, member)
        order = self.orders[member] = PriorityOrder(
            policy,
            UnlimitedNetwork(),
            self.views[member],
            decision_mode=form,
            window=window,
            views_for_rejoin=self._again,
        )
        return order

    def _anew(self, policy: Policy) -> Views:
        views = self.views[policy.member] = Views(self, policy.member, policy.incarnation)
        return views

    def hand(self, member: int, happening: ViewEvent) -> None:
        self.views[member].stream.append(happening)
        self.orders[member].wake(self.now)

    def run(self) -> None:
        while self.under_way:
            self.hand(*self.under_way.pop(0))

    def change(self, members: tuple[int, ...], giver: int = 0) -> None:
        """Everybody goes on to the next view; newcomers get the giver's state."""
        self.run()
        old, self.members = self.members, members
        self.view_id += 1
        joined = tuple(m for m in members if m not in old)
        view = NewView(self.view_id, members, (1,) * len(members), joined, tuple(m for m in old if m not in members))
        for member in members:
            if member in old and joined:
                self.hand(member, StateRequested(self.view_id))
        for member in members:
            if member in joined:
                self.add(member)
                self.hand(member, StateReceived(self.view_id, self.views[giver].given[self.view_id]))
            self.hand(member, view)

    def consumed(self, member: int) -> list[bytes]:
        found = []
        while (batch := self.orders[member].consume(self.now)) is not None:
            found += batch.messages
        return found


@pytest.mark.parametrize("form", DecisionMode)
def test_an_urgent_message_overtakes_at_every_member_alike(form: DecisionMode) -> None:
    ether = Ether((1, 2, 3), form=form)
    assert ether.orders[1].submit(0, [b"a", b"b", b"c"]) == 3
    ether.run()
    first = ether.orders[2].consume(0)
    assert first is not None
    assert (first.messages, first.priority, first.slot, first.first_index) == ([b"a"], LOW, 0, 0)
    assert ether.orders[3].submit_with_priority(0, [b"!"], HIGH) == 1
    ether.run()
    assert ether.consumed(2) == [b"!", b"b", b"c"]
    assert ether.consumed(1) == ether.consumed(3) == [b"a", b"!", b"b", b"c"]


def test_the_events_tell_what_was_received_and_queued() -> None:
    ether = Ether((1, 2))
    ether.orders[1].submit_with_priority(0, [b"a"], 3)
    ether.run()
    view, received, queued = ether.orders[2].events
    assert isinstance(view, ViewChange)
    assert view.view.members == (1, 2)
    assert view.joined == (1, 2)
    assert received == QueueStep(False, 1, 1, 0, priority=3, number=0, consumed=0, position=0, detail="", view=1)
    assert queued == QueueStep(True, 1, 1, 0, priority=3, number=1, consumed=0, position=0, detail="(0,0)")


def test_a_window_is_full_until_everybody_has_consumed_and_each_priority_has_its_own() -> None:
    ether = Ether((1, 2), window=4)
    sender = ether.orders[1]
    assert sender.submit(0, [b"x"] * 10) == 4
    ether.run()
    assert sender.submit(0, [b"x"]) == 0
    assert sender.submit_with_priority(0, [b"!"] * 10, HIGH) == 4, "more urgent ones do not wait for less urgent ones"
    ether.run()
    assert len(ether.consumed(1)) == 8
    ether.run()
    assert sender.submit(0, [b"x"]) == 0, "member 2 has consumed nothing"
    assert sender.wake_at() is None
    assert len(ether.consumed(2)) == 8
    ether.run()
    assert sender.submit(0, [b"x"] * 10) == 4


def test_the_declared_rate_is_kept() -> None:
    ether = Ether((1, 2), burst=2)
    assert ether.orders[1].submit(0, [b"x"] * 5) == 2
    assert ether.orders[1].wake_at() == 10 * MS
    ether.run()
    assert ether.orders[1].submit(10 * MS, [b"x"] * 5) == 2


@pytest.mark.parametrize("form", DecisionMode)
def test_a_newcomer_goes_on_from_where_the_giver_was(form: DecisionMode) -> None:
    ether = Ether((1, 2), form=form)
    ether.orders[1].submit(0, [b"a", b"b"])
    ether.run()
    ether.orders[1].consume(0)
    ether.change((1, 2, 3), giver=1)
    ether.run()
    assert decode_handover(ether.views[1].given[2])[0].position == 1
    ether.orders[3].submit_with_priority(0, [b"!"], HIGH)
    ether.run()
    assert ether.consumed(1) == ether.consumed(3) == [b"!", b"b"]
    assert ether.consumed(2) == [b"a", b"!", b"b"]
    change = next(event for event in ether.orders[3].events if isinstance(event, ViewChange))
    assert (change.view.first_slot, change.joined) == (1, (3,))


def test_a_member_leaves_when_everybody_knows_what_it_consumed() -> None:
    ether = Ether((1, 2))
    ether.orders[1].submit(0, [b"a", b"b"])
    ether.run()
    assert ether.orders[2].consume(0) is not None
    ether.orders[2].leave(0)
    assert ether.orders[2].consume(0) is None
    asked = [ether.views[2].asked_to_leave]
    ether.run()
    asked.append(ether.views[2].asked_to_leave)
    assert asked == [False, True]
    ether.change((1,))
    ether.hand(2, NoLongerMember("left"))
    assert ether.orders[2].events[-1] == LeaveComplete(0)
    assert not any(isinstance(event, Violation) for event in ether.orders[2].events)
    assert not ether.orders[2].running()
    ether.orders[1].submit_with_priority(0, [b"!"], HIGH)
    ether.run()
    assert ether.consumed(1) == [b"a", b"!", b"b"], "what the leaver consumed stays in front"


def test_a_member_that_was_put_out_says_so_and_consumes_nothing_more() -> None:
    ether = Ether((1, 2))
    ether.orders[1].submit(0, [b"a"])
    ether.run()
    ether.hand(2, NoLongerMember("it was silent"))
    violation, left = ether.orders[2].events[-2:]
    assert violation == Violation(ViolationKind.EXCLUDED, "it was silent", 2)
    assert left == LeaveComplete(-1)
    assert ether.orders[2].consume(0) is None
    assert ether.orders[2].submit(0, [b"x"]) == 0


def test_a_member_that_was_put_out_comes_back_in_another_life() -> None:
    ether = Ether((1, 2), again=True)
    order = ether.orders[2]
    order.submit(0, [b"a", b"b"])
    ether.run()
    assert ether.consumed(2) == [b"a", b"b"]
    ether.hand(2, NoLongerMember("the others went on"))
    (rejoining,) = [event for event in order.events if isinstance(event, Rejoining)]
    assert (rejoining.incarnation, rejoining.final_slot) == (2, 1)
    assert [event.kind for event in order.events if isinstance(event, Violation)] == ["excluded"]
    assert not [event for event in order.events if isinstance(event, LeaveComplete)]
    assert not order.running()
    assert order.submit(0, [b"c"]) == 0
    old = ether.views[2]
    assert order.wake_at() == REJOIN_DELAY_NS
    order.wake(REJOIN_DELAY_NS)
    assert ether.views[2] is not old, "it has views of its own life"
    assert ether.views[2].down is order.down
    ether.hand(2, StateReceived(2, ether.orders[1].snapshot()))
    for member in (1, 2):
        ether.hand(member, NewView(2, (1, 2), (1, 2), joined=(2,), left=(2,)))
    assert order.running()
    assert ether.consumed(2) == [b"a", b"b"], "it goes on from where the giver was, who had consumed nothing"
    assert order.submit(REJOIN_DELAY_NS, [b"c"]) == 1
    ether.run()
    batch = order.consume(REJOIN_DELAY_NS)
    assert batch is not None
    assert (batch.incarnation, batch.first_sequence, batch.messages) == (2, 0, [b"c"])


@pytest.mark.parametrize("early", [True, False])
def test_who_leaves_while_it_is_out_is_gone(early: bool) -> None:
    ether = Ether((1, 2), again=True)
    ether.hand(2, NoLongerMember("the others went on"))
    order = ether.orders[2]
    if not early:
        order.wake(REJOIN_DELAY_NS)
    order.leave(REJOIN_DELAY_NS)
    if not early:
        assert ether.views[2].asked_to_leave, "membership is asked to end"
        ether.hand(2, NoLongerMember("it left before its first view"))
    assert [event for event in order.events if isinstance(event, LeaveComplete)]
    assert order.wake_at() is None


def test_what_cannot_be_read_is_counted_and_changes_nothing() -> None:
    ether = Ether((1, 2))
    ether.hand(1, Receive(2, 1, 1, b"\xff"))
    ether.hand(1, ReceiveUnicast(2, 1, 1, b""))
    assert ether.orders[1].ignored["unreadable"] == 2


def test_batches_are_one_message_with_its_number_in_the_agreed_order() -> None:
    ether = Ether((1, 2))
    ether.orders[1].submit(0, [b"a"])
    ether.orders[2].submit_with_priority(0, [b"b"], HIGH)
    ether.run()
    batches = [ether.orders[1].consume(0) for _ in range(2)]
    assert [batch.slot for batch in batches if isinstance(batch, Batch)] == [0, 1]
    delivery = batches[0].deliveries()[0] if batches[0] else None
    assert delivery is not None
    assert (delivery.payload, delivery.priority, delivery.id) == (b"b", HIGH, (2, 1, 0))


def test_while_a_view_change_is_under_way_nothing_is_consumed() -> None:
    """Whoever is cut off must not go on alone with what the others may yet put elsewhere."""
    ether = Ether((1, 2, 3))
    ether.orders[1].submit(0, [b"a"])
    ether.run()
    ether.views[3].changing = True
    assert not ether.orders[3].consumable()
    assert ether.consumed(3) == []
    ether.views[3].changing = False
    assert ether.consumed(3) == [b"a"]


class Ledger:
    """An application: what it has consumed, as one text."""

    def __init__(self) -> None:
        self.text = b""

    def snapshot(self) -> bytes:
        return self.text

    def restore(self, state: bytes) -> None:
        self.text = state


def test_a_newcomer_gets_the_applications_state_at_the_cut() -> None:
    """What was consumed before the view is in the state, what was not is still to be consumed, each exactly once."""
    ether = Ether((1, 2))
    ledgers = {member: Ledger() for member in (1, 2, 3)}

    def play(member: int, most: int) -> None:
        for _ in range(most):
            batch = ether.orders[member].consume(0)
            if batch is not None:
                ledgers[member].text += b"".join(batch.messages)

    for member in (1, 2):
        ether.orders[member].application = ledgers[member]
    add = ether.add

    def add_with_application(member: int) -> PriorityOrder:
        order = add(member)
        order.application = ledgers[member]
        return order

    ether.add = add_with_application  # type: ignore[method-assign]
    ether.orders[1].submit(0, [b"a", b"b", b"c"])
    ether.run()
    play(1, 2)
    play(2, 1)
    ether.change((1, 2, 3), giver=1)
    assert ledgers[3].text == b"ab", "what its giver had consumed"
    ether.orders[3].submit(0, [b"d"])
    ether.run()
    for member in (1, 2, 3):
        play(member, 9)
    assert {ledger.text for ledger in ledgers.values()} == {b"abcd"}
