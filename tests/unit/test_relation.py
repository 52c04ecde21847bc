"""A relation that changes (paper 003, assumption A1): when each side goes by it, and what is delivered around it."""

from __future__ import annotations

from collections.abc import Sequence

from unisono.orders.multigroup.barriers import BarrierQueue
from unisono.orders.multigroup.group_log import GroupLog
from unisono.orders.multigroup.messages import (
    Cast,
    ConfirmTopology,
    GroupState,
    Item,
    Null,
    ReceivedByAll,
    SetReceivers,
    TopologyControl,
    TopologyMessage,
    TopologyStep,
    checked_bundle,
    encode_control,
    encode_value,
    stamp_of,
    time_of,
)
from unisono.orders.multigroup.topology_change import LinkState
from unisono.wire.bundles import Bundle, encode_bundle
from unisono.wire.packed_messages import OutgoingMessages, read_packed_messages

A, B = 0, 1
MATES = {A: (1, 2), B: (3, 4)}


class Side:
    """A group whose members agree: the log and the gate that each of them has."""

    def __init__(self, me: int, receivers: tuple[int, ...], senders: tuple[int, ...]) -> None:
        self.me = me
        self.log = GroupLog(me, receivers, senders, MATES[me])
        self.relation = self.log.topology
        self.gate = BarrierQueue(me, senders)
        self.delivered: list[str] = []
        self._serials: dict[int, int] = {}

    def decide(self, *items: Item) -> None:
        own = self.log.apply(encode_value(items))
        assert own is not None
        for entry in own:
            self.gate.add_own(entry)
        self.gate.update_sources(self.relation.incoming)
        self.deliver()

    def parcel(self, sender: int, body: bytes, life: int = 1) -> bytes:
        serial = self._serials.get(sender, 0)
        self._serials[sender] = serial + 1
        return encode_bundle(Bundle(sender, life, serial, serial, 0, body))

    def send(self, ts: int, sender: int, name: str, to: Sequence[int]) -> None:
        body = b"".join(OutgoingMessages([name.encode()], same_size=True).parts())
        self.decide(Cast(ts, sum(1 << group for group in to), self.parcel(sender, body)))

    def say(self, ts: int, sender: int, control: TopologyControl) -> None:
        self.decide(Cast(ts, 0, self.parcel(sender, encode_control(control))))

    def null(self, ts: int) -> None:
        self.decide(Null(self.log.null_count, stamp_of(ts, 0)))

    def hear(self, other: Side) -> None:
        stream = other.log.streams[self.me]
        self.gate.receive(other.me, stream.first, tuple(stream.entries))
        self.gate.promise(other.me, stream.head, other.log.last_stamp)
        self.deliver()

    def deliver(self) -> None:
        for _, entry in self.gate.pop_deliverable(self.log.last_stamp):
            parcel = checked_bundle(entry.bundle)
            run = read_packed_messages(parcel.body, 0, len(parcel.body))
            assert run is not None
            self.delivered += [message.decode() for message in run.messages()]

    def tie(self, group: int) -> LinkState:
        return self.relation.outgoing[group].state

    def ask(self, other: Side) -> None:
        """Everything that this group asks of the other one is agreed on there, and here what that answers."""
        for group, bond in self.relation.requests():
            assert group == other.me
            other.decide(bond)
            self.decide(answer(other, self.me))


def answer(side: Side, group: int) -> TopologyMessage:
    found = side.relation.answer(group)
    assert found is not None
    return found


def strangers() -> tuple[Side, Side]:
    """Each group sends to itself alone."""
    return Side(A, (A,), (A,)), Side(B, (B,), (B,))


def friends() -> tuple[Side, Side]:
    """A sends to B."""
    return Side(A, (A, B), (A,)), Side(B, (B,), (A, B))


def test_a_receiver_that_has_admitted_a_sender_waits_for_its_barrier() -> None:
    a, b = strangers()
    b.send(10, 3, "before", (B,))
    assert b.delivered == ["before"]
    a.say(20, 1, SetReceivers(0b11))
    ((_, admit),) = a.relation.requests()
    assert admit == TopologyMessage(TopologyStep.ADMIT, A, 1)
    b.decide(admit)
    b.send(30, 3, "after", (B,))
    assert b.delivered == ["before"]
    a.decide(answer(b, A))
    a.send(31, 1, "new", (A, B))
    assert b.delivered == ["before"]
    b.hear(a)
    assert b.delivered == ["before", "after"]
    b.null(40)
    assert b.delivered == ["before", "after", "new"]


def test_a_new_sender_s_stamps_are_larger_than_all_that_the_receiver_has_used_up() -> None:
    """The sender's clock is slow, and its group has stamped little: it must not fall behind what was delivered."""
    a, b = strangers()
    b.send(1000, 3, "delivered", (B,))
    a.say(20, 1, SetReceivers(0b11))
    a.ask(b)
    assert a.tie(B) is LinkState.OPEN
    assert time_of(a.log.last_stamp) >= 1000
    a.send(21, 1, "slow", (B,))
    b.hear(a)
    b.null(2000)
    assert b.delivered == ["delivered", "slow"]


def test_nobody_may_send_before_the_receiver_has_admitted() -> None:
    a, b = strangers()
    a.say(20, 1, SetReceivers(0b11))
    assert a.relation.allowed_mask() == 0b01
    assert not a.relation.is_settled()
    a.ask(b)
    assert a.relation.allowed_mask() == 0b11
    assert a.relation.is_settled()


def test_a_stream_ends_when_all_members_have_confirmed_behind_their_last_messages() -> None:
    a, b = friends()
    a.send(10, 1, "one", (B,))
    a.say(11, 1, SetReceivers(0b01))
    assert a.relation.allowed_mask() == 0b01
    assert a.relation.awaits_confirmation_of(1)
    a.say(12, 1, ConfirmTopology(1))
    a.send(13, 2, "accepted before the change was known", (B,))
    assert a.tie(B) is LinkState.CLOSING
    a.say(14, 2, ConfirmTopology(1))
    assert a.tie(B) is LinkState.CLOSED
    a.send(15, 2, "refused", (A, B))
    assert [(sender, mask) for sender, _, _, mask in a.log.refused] == [(2, 0b10)]
    assert a.delivered == [], "what cannot go to all its destinations goes to none"
    b.send(16, 3, "own", (B,))
    a.ask(b)
    assert a.tie(B) is LinkState.UNLINKED
    assert b.delivered == [], "the last messages of a sender come first"
    b.hear(a)
    assert b.delivered == ["one", "accepted before the change was known", "own"]
    b.send(99, 3, "waits for nobody", (B,))
    assert b.delivered[-1] == "waits for nobody"


def test_a_member_that_is_gone_is_not_waited_for() -> None:
    a, b = friends()
    a.say(11, 1, SetReceivers(0b01))
    a.say(12, 1, ConfirmTopology(1))
    (gone,) = a.relation.skip_member_proposals()
    assert gone == TopologyMessage(TopologyStep.SKIP_MEMBER, A, 1, 2)
    a.decide(TopologyMessage(TopologyStep.SKIP_MEMBER, A, 0, 2), TopologyMessage(TopologyStep.SKIP_MEMBER, B, 1, 2))
    assert a.tie(B) is LinkState.CLOSING
    a.decide(gone)
    assert a.tie(B) is LinkState.CLOSED
    a.send(13, 2, "it was there after all", (A, B))
    assert len(a.log.refused) == 1
    a.ask(b)
    assert a.relation.is_settled()


def test_a_stream_is_kept_until_everybody_has_all_of_it() -> None:
    a, b = friends()
    a.send(10, 1, "one", (B,))
    for sender, control in ((1, SetReceivers(0b01)), (1, ConfirmTopology(1)), (2, ConfirmTopology(1))):
        a.say(20, sender, control)
    a.ask(b)
    assert B in a.log.streams
    a.decide(ReceivedByAll(B, 1))
    assert B not in a.log.streams


def test_a_group_that_sends_again_goes_on_in_its_numbering() -> None:
    a, b = friends()
    a.send(10, 1, "one", (B,))
    b.hear(a)
    for sender, control in ((1, SetReceivers(0b01)), (1, ConfirmTopology(1)), (2, ConfirmTopology(1))):
        a.say(20, sender, control)
    a.ask(b)
    a.decide(ReceivedByAll(B, 1))
    b.send(50, 3, "alone", (B,))
    assert b.delivered == ["one", "alone"]
    a.say(60, 2, SetReceivers(0b11))
    a.ask(b)
    assert a.relation.outgoing[B].epoch == 2
    b.send(70, 3, "third", (B,))
    assert b.delivered == ["one", "alone"]
    a.send(65, 1, "second", (B,))
    assert a.log.streams[B].first == 2
    a.null(80)
    b.hear(a)
    assert b.delivered == ["one", "alone", "second", "third"]


def test_who_is_wanted_again_before_all_have_confirmed_stays() -> None:
    a, _ = friends()
    a.say(10, 1, SetReceivers(0b01))
    a.say(11, 1, ConfirmTopology(1))
    a.say(12, 2, SetReceivers(0b11))
    assert a.tie(B) is LinkState.OPEN
    a.say(13, 2, ConfirmTopology(1))
    assert a.tie(B) is LinkState.OPEN


def test_who_is_not_wanted_any_more_when_admitted_ends_at_once() -> None:
    a, b = strangers()
    a.say(10, 1, SetReceivers(0b11))
    a.say(11, 1, SetReceivers(0b01))
    assert a.tie(B) is LinkState.OPENING
    a.ask(b)
    assert a.tie(B) is LinkState.CLOSED
    b.send(20, 3, "own", (B,))
    assert b.delivered == []
    a.ask(b)
    b.deliver()
    assert a.tie(B) is LinkState.UNLINKED
    assert b.delivered == ["own"]


def test_what_is_wanted_again_while_it_closes_opens_behind_that() -> None:
    a, b = friends()
    for sender, control in (
        (1, SetReceivers(0b01)),
        (1, ConfirmTopology(1)),
        (2, ConfirmTopology(1)),
        (2, SetReceivers(0b11)),
    ):
        a.say(10, sender, control)
    assert a.tie(B) is LinkState.CLOSED
    a.ask(b)
    assert a.tie(B) is LinkState.OPENING
    a.ask(b)
    assert (a.tie(B), a.relation.outgoing[B].epoch) == (LinkState.OPEN, 2)


def test_what_was_agreed_on_before_changes_nothing() -> None:
    a, b = friends()
    before = (a.relation.save(), b.relation.save())
    a.decide(TopologyMessage(TopologyStep.ADMITTED, B, 1, stamp=1 << 60), TopologyMessage(TopologyStep.RELEASED, B, 1))
    b.decide(TopologyMessage(TopologyStep.ADMIT, A, 1), TopologyMessage(TopologyStep.RELEASE, A, 0))
    assert (a.relation.save(), b.relation.save()) == before
    assert a.log.last_stamp == 0


def test_a_state_stands_for_the_relation() -> None:
    a, b = friends()
    a.send(10, 1, "one", (B,))
    a.say(11, 1, SetReceivers(0b01))
    a.say(12, 1, ConfirmTopology(1))
    state = GroupState()
    a.log.save(state)
    other = Side(A, (A, B), (A,))
    other.log.restore(state)
    assert other.relation.save() == a.relation.save()
    assert other.relation.awaits_confirmation_of(2)
    assert not other.relation.awaits_confirmation_of(1)
    for side in (a, other):
        side._serials = dict(a._serials)
    other.say(13, 2, ConfirmTopology(1))
    assert other.tie(B) is LinkState.CLOSED
    other.ask(b)
    b.hear(other)
    b.null(99)
    assert b.delivered == ["one"]


def test_entries_of_an_earlier_life_wait_until_their_group_is_admitted_in_this_one() -> None:
    a, b = strangers()
    a.say(10, 1, SetReceivers(0b11))
    ((_, admit),) = a.relation.requests()
    b.decide(admit)
    a.decide(answer(b, A))
    a.send(20, 1, "kept", (B,))
    again = Side(B, (B,), (B,))
    again.gate.restore_entry(A, 1, a.log.streams[B].entry(1))
    assert again.gate.awaiting_admission
    again.decide(admit)
    assert not again.gate.awaiting_admission
    assert again.gate.sources[A].applied == 1
    again.null(99)
    again.gate.promise(A, 1, stamp_of(99, 0))
    again.deliver()
    assert again.delivered == ["kept"]
