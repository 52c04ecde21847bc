"""The priority order on top of a virtual synchrony whose events the test injects."""

from collections.abc import Iterable

import pytest

from unisono.agreement.membership.multicast import Receive, ReceiveUnicast
from unisono.agreement.membership.views import NewView, NoLongerMember, StateReceived, StateRequested, ViewEvent
from unisono.model.events import Batch, LeaveComplete, QueueStep, Rejoining, View, ViewChange, Violation, ViolationKind
from unisono.model.policy import Policy
from unisono.model.timing import Timing
from unisono.model.units import Rate, UnlimitedNetwork
from unisono.orders.priority.insertion import DecisionMode
from unisono.orders.priority.messages import decode_handover
from unisono.orders.priority.order import REJOIN_DELAY_NS, PriorityOrder
from unisono.wire.frame import Frame, Kind

MS = 1_000_000
LOW, HIGH = 0, 1


class ScriptedViews:
    """One member's virtual synchrony, connected to the others through `World`."""

    def __init__(self, world: "World", member: int, incarnation: int = 1) -> None:
        self.down: list[Frame] = []
        self.stream: list[ViewEvent] = []
        self.violations: list[Violation] = []
        self.provided_states: dict[int, bytes] = {}
        self.asked_to_leave = self.changing = False
        self._world, self._member, self._incarnation = world, member, incarnation

    def multicast(self, now: int, body: bytes) -> None:
        for other in self._world.members:
            self._world.under_way.append((other, Receive(self._member, self._incarnation, self._world.view_id, body)))

    def unicast(self, now: int, to: int, body: bytes) -> None:
        self._world.under_way.append((to, ReceiveUnicast(self._member, self._incarnation, self._world.view_id, body)))

    def blocked(self) -> bool:
        return self.changing

    def not_heard(self) -> tuple[int, ...]:
        return ()

    def reachable(self) -> tuple[int, ...]:
        return ()

    def provide_state(self, now: int, view_id: int, state: bytes) -> None:
        self.provided_states[view_id] = state

    def from_below(self, now: int, frame: Frame) -> None:
        raise AssertionError("no frames here")

    def leave(self, now: int) -> None:
        self.asked_to_leave = True

    def wake(self, now: int) -> None:
        pass

    def wake_at(self) -> int | None:
        return None


class World:
    """Delivers every multicast to all members, in one order, when `run` is called."""

    def __init__(
        self,
        members: Iterable[int],
        *,
        mode: DecisionMode = DecisionMode.ALL,
        window: int = 64,
        burst: int = 100,
        rejoin: bool = False,
    ) -> None:
        self.members = tuple(members)
        self._views_for_rejoin = self._new_incarnation if rejoin else None
        self.view_id = 1
        self.now = 0
        self.under_way: list[tuple[int, ViewEvent]] = []
        self.views: dict[int, ScriptedViews] = {}
        self.orders: dict[int, PriorityOrder] = {}
        self._options = (mode, window, burst)
        for member in self.members:
            self.add(member)
            self.inject(member, NewView(1, self.members, (1,) * len(self.members), self.members))

    def add(self, member: int) -> PriorityOrder:
        mode, window, burst = self._options
        policy = Policy(
            "g", member, View((1, 2, 3)), Timing(MS, 0, 10 * MS), Rate(avg=burst * 100, burst=burst), order="priority"
        )
        self.views[member] = ScriptedViews(self, member)
        order = self.orders[member] = PriorityOrder(
            policy,
            UnlimitedNetwork(),
            self.views[member],
            decision_mode=mode,
            window=window,
            views_for_rejoin=self._views_for_rejoin,
        )
        return order

    def _new_incarnation(self, policy: Policy) -> ScriptedViews:
        views = self.views[policy.member] = ScriptedViews(self, policy.member, policy.incarnation)
        return views

    def inject(self, member: int, view_event: ViewEvent) -> None:
        self.views[member].stream.append(view_event)
        self.orders[member].wake(self.now)

    def run(self) -> None:
        while self.under_way:
            self.inject(*self.under_way.pop(0))

    def change(self, members: tuple[int, ...], provider: int = 0) -> None:
        """Install the next view at all members; newcomers receive the provider's state."""
        self.run()
        old, self.members = self.members, members
        self.view_id += 1
        joined = tuple(m for m in members if m not in old)
        view = NewView(self.view_id, members, (1,) * len(members), joined, tuple(m for m in old if m not in members))
        for member in members:
            if member in old and joined:
                self.inject(member, StateRequested(self.view_id))
        for member in members:
            if member in joined:
                self.add(member)
                self.inject(member, StateReceived(self.view_id, self.views[provider].provided_states[self.view_id]))
            self.inject(member, view)

    def consumed(self, member: int) -> list[bytes]:
        found = []
        while (batch := self.orders[member].consume(self.now)) is not None:
            found += batch.messages
        return found


@pytest.mark.parametrize("mode", DecisionMode)
def test_an_urgent_message_overtakes_at_every_member_alike(mode: DecisionMode) -> None:
    world = World((1, 2, 3), mode=mode)
    assert world.orders[1].submit(0, [b"a", b"b", b"c"]) == 3
    world.run()
    first = world.orders[2].consume(0)
    assert first is not None
    assert (first.messages, first.priority, first.slot, first.first_index) == ([b"a"], LOW, 0, 0)
    assert world.orders[3].submit_with_priority(0, [b"!"], HIGH) == 1
    world.run()
    assert world.consumed(2) == [b"!", b"b", b"c"]
    assert world.consumed(1) == world.consumed(3) == [b"a", b"!", b"b", b"c"]


def test_events_report_received_and_queued_messages() -> None:
    world = World((1, 2))
    world.orders[1].submit_with_priority(0, [b"a"], 3)
    world.run()
    view, received, queued = world.orders[2].events
    assert isinstance(view, ViewChange)
    assert view.view.members == (1, 2)
    assert view.joined == (1, 2)
    assert received == QueueStep(False, 1, 1, 0, priority=3, number=0, consumed=0, position=0, detail="", view=1)
    assert queued == QueueStep(True, 1, 1, 0, priority=3, number=1, consumed=0, position=0, detail="(0,0)")


def test_each_priority_has_a_window_that_stays_full_until_all_members_consume() -> None:
    world = World((1, 2), window=4)
    sender = world.orders[1]
    assert sender.submit(0, [b"x"] * 10) == 4
    world.run()
    assert sender.submit(0, [b"x"]) == 0
    assert sender.submit_with_priority(0, [b"!"] * 10, HIGH) == 4, "urgent messages do not wait for less urgent ones"
    world.run()
    assert len(world.consumed(1)) == 8
    world.run()
    assert sender.submit(0, [b"x"]) == 0, "member 2 has consumed nothing"
    assert sender.wake_at() is None
    assert len(world.consumed(2)) == 8
    world.run()
    assert sender.submit(0, [b"x"] * 10) == 4


def test_the_declared_rate_is_kept() -> None:
    world = World((1, 2), burst=2)
    assert world.orders[1].submit(0, [b"x"] * 5) == 2
    assert world.orders[1].wake_at() == 10 * MS
    world.run()
    assert world.orders[1].submit(10 * MS, [b"x"] * 5) == 2


@pytest.mark.parametrize("mode", DecisionMode)
def test_a_newcomer_continues_from_the_state_it_received(mode: DecisionMode) -> None:
    world = World((1, 2), mode=mode)
    world.orders[1].submit(0, [b"a", b"b"])
    world.run()
    world.orders[1].consume(0)
    world.change((1, 2, 3), provider=1)
    world.run()
    assert decode_handover(world.views[1].provided_states[2])[0].position == 1
    world.orders[3].submit_with_priority(0, [b"!"], HIGH)
    world.run()
    assert world.consumed(1) == world.consumed(3) == [b"!", b"b"]
    assert world.consumed(2) == [b"a", b"!", b"b"]
    change = next(event for event in world.orders[3].events if isinstance(event, ViewChange))
    assert (change.view.first_slot, change.joined) == (1, (3,))


def test_a_member_leaves_once_all_members_know_its_final_history() -> None:
    world = World((1, 2))
    world.orders[1].submit(0, [b"a", b"b"])
    world.run()
    assert world.orders[2].consume(0) is not None
    world.orders[2].leave(0)
    assert world.orders[2].consume(0) is None
    asked = [world.views[2].asked_to_leave]
    world.run()
    asked.append(world.views[2].asked_to_leave)
    assert asked == [False, True]
    world.change((1,))
    world.inject(2, NoLongerMember("left"))
    assert world.orders[2].events[-1] == LeaveComplete(0)
    assert not any(isinstance(event, Violation) for event in world.orders[2].events)
    assert not world.orders[2].running()
    world.orders[1].submit_with_priority(0, [b"!"], HIGH)
    world.run()
    assert world.consumed(1) == [b"a", b"!", b"b"], "the message that the leaving member consumed stays first"


def test_an_excluded_member_reports_it_and_consumes_nothing_more() -> None:
    world = World((1, 2))
    world.orders[1].submit(0, [b"a"])
    world.run()
    world.inject(2, NoLongerMember("member 2 was unresponsive"))
    violation, left = world.orders[2].events[-2:]
    assert violation == Violation(ViolationKind.EXCLUDED, "member 2 was unresponsive", 2)
    assert left == LeaveComplete(-1)
    assert world.orders[2].consume(0) is None
    assert world.orders[2].submit(0, [b"x"]) == 0


def test_an_excluded_member_rejoins_as_a_new_incarnation() -> None:
    world = World((1, 2), rejoin=True)
    order = world.orders[2]
    order.submit(0, [b"a", b"b"])
    world.run()
    assert world.consumed(2) == [b"a", b"b"]
    world.inject(2, NoLongerMember("a view without member 2 was installed"))
    (rejoining,) = [event for event in order.events if isinstance(event, Rejoining)]
    assert (rejoining.incarnation, rejoining.final_slot) == (2, 1)
    assert [event.kind for event in order.events if isinstance(event, Violation)] == ["excluded"]
    assert not [event for event in order.events if isinstance(event, LeaveComplete)]
    assert not order.running()
    assert order.submit(0, [b"c"]) == 0
    old = world.views[2]
    assert order.wake_at() == REJOIN_DELAY_NS
    order.wake(REJOIN_DELAY_NS)
    assert world.views[2] is not old, "the new incarnation has its own virtual synchrony"
    frame = Frame(Kind.HEARTBEAT, 2, 2, 0, 0, 0)
    world.views[2].down.append(frame)
    order.wake(REJOIN_DELAY_NS)
    assert order.down == [frame], "its frames leave through the order"
    world.inject(2, StateReceived(2, world.orders[1].snapshot()))
    for member in (1, 2):
        world.inject(member, NewView(2, (1, 2), (1, 2), joined=(2,), left=(2,)))
    assert order.running()
    assert world.consumed(2) == [b"a", b"b"], "the provider of its state had consumed nothing"
    assert order.submit(REJOIN_DELAY_NS, [b"c"]) == 1
    world.run()
    batch = order.consume(REJOIN_DELAY_NS)
    assert batch is not None
    assert (batch.incarnation, batch.first_sequence, batch.messages) == (2, 0, [b"c"])


@pytest.mark.parametrize("before_rejoin", [True, False])
def test_an_excluded_member_can_leave(before_rejoin: bool) -> None:
    world = World((1, 2), rejoin=True)
    world.inject(2, NoLongerMember("a view without member 2 was installed"))
    order = world.orders[2]
    if not before_rejoin:
        order.wake(REJOIN_DELAY_NS)
    order.leave(REJOIN_DELAY_NS)
    if not before_rejoin:
        assert world.views[2].asked_to_leave, "membership is asked to end"
        world.inject(2, NoLongerMember("it left before its first view"))
    assert [event for event in order.events if isinstance(event, LeaveComplete)]
    assert order.wake_at() is None


def test_unreadable_bodies_are_counted_and_ignored() -> None:
    world = World((1, 2))
    world.inject(1, Receive(2, 1, 1, b"\xff"))
    world.inject(1, ReceiveUnicast(2, 1, 1, b""))
    assert world.orders[1].ignored["unreadable"] == 2


def test_a_batch_is_one_message_with_its_position_in_the_agreed_order() -> None:
    world = World((1, 2))
    world.orders[1].submit(0, [b"a"])
    world.orders[2].submit_with_priority(0, [b"b"], HIGH)
    world.run()
    batches = [world.orders[1].consume(0) for _ in range(2)]
    assert [batch.slot for batch in batches if isinstance(batch, Batch)] == [0, 1]
    delivery = batches[0].deliveries()[0] if batches[0] else None
    assert delivery is not None
    assert (delivery.payload, delivery.priority, delivery.id) == (b"b", HIGH, (2, 1, 0))


def test_nothing_is_consumed_during_a_view_change() -> None:
    """A partitioned member must not consume messages that the others may still put elsewhere."""
    world = World((1, 2, 3))
    world.orders[1].submit(0, [b"a"])
    world.run()
    world.views[3].changing = True
    assert not world.orders[3].consumable()
    assert world.consumed(3) == []
    world.views[3].changing = False
    assert world.consumed(3) == [b"a"]


class Ledger:
    """An application whose state is the concatenation of all consumed messages."""

    def __init__(self) -> None:
        self.text = b""

    def snapshot(self) -> bytes:
        return self.text

    def restore(self, state: bytes) -> None:
        self.text = state


def test_a_newcomer_receives_the_application_state_of_the_view_change() -> None:
    """Each message counts once: it was consumed before the view and is in the state, or it is consumed afterwards."""
    world = World((1, 2))
    ledgers = {member: Ledger() for member in (1, 2, 3)}

    def consume_and_apply(member: int, count: int) -> None:
        for _ in range(count):
            batch = world.orders[member].consume(0)
            if batch is not None:
                ledgers[member].text += b"".join(batch.messages)

    for member in (1, 2):
        world.orders[member].application = ledgers[member]
    add = world.add

    def add_with_application(member: int) -> PriorityOrder:
        order = add(member)
        order.application = ledgers[member]
        return order

    world.add = add_with_application  # type: ignore[method-assign]
    world.orders[1].submit(0, [b"a", b"b", b"c"])
    world.run()
    consume_and_apply(1, 2)
    consume_and_apply(2, 1)
    world.change((1, 2, 3), provider=1)
    assert ledgers[3].text == b"ab", "the messages that its provider had consumed"
    world.orders[3].submit(0, [b"d"])
    world.run()
    for member in (1, 2, 3):
        consume_and_apply(member, 9)
    assert {ledger.text for ledger in ledgers.values()} == {b"abcd"}
