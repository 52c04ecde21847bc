"""A topology that changes (paper 003, assumption A1): when each group applies it, and the deliveries around it."""

from __future__ import annotations

from collections.abc import Sequence

from unisono.orders.packing import Bundle
from unisono.orders.quasi_genuine.barriers import BarrierQueue
from unisono.orders.quasi_genuine.group_log import GroupLog
from unisono.orders.quasi_genuine.messages import (
    Cast,
    ConfirmTopology,
    GroupState,
    LogItem,
    Null,
    ReceivedByAll,
    SetReceivers,
    TopologyControl,
    TopologyMessage,
    TopologyStep,
    encode_control,
    encode_value,
    stamp_of,
    time_of,
)
from unisono.orders.quasi_genuine.topology_change import LinkState
from unisono.wire.frame import OutgoingMessages, read_packed_messages

A, B = 0, 1
MEMBERS = {A: (1, 2), B: (3, 4)}


class Group:
    """The log and the barrier queue of a group, which are the same at every member."""

    def __init__(self, number: int, receivers: tuple[int, ...], senders: tuple[int, ...]) -> None:
        self.number = number
        self.log = GroupLog(number, receivers, senders, MEMBERS[number])
        self.topology = self.log.topology
        self.barrier_queue = BarrierQueue(number, senders)
        self.delivered: list[str] = []
        self._serials: dict[int, int] = {}

    def decide(self, *items: LogItem) -> None:
        for entry in self.log.apply(encode_value(items)):
            self.barrier_queue.add_own(entry)
        self.barrier_queue.update_sources(self.topology.incoming)
        self.deliver()

    def bundle(self, sender: int, body: bytes) -> Bundle:
        serial = self._serials.get(sender, 0)
        self._serials[sender] = serial + 1
        return Bundle(sender, 1, serial, serial, 0, body)

    def send(self, ts: int, sender: int, name: str, to: Sequence[int]) -> None:
        body = b"".join(OutgoingMessages([name.encode()], same_size=True).parts())
        self.decide(Cast(ts, sum(1 << group for group in to), self.bundle(sender, body)))

    def control(self, ts: int, sender: int, control: TopologyControl) -> None:
        self.decide(Cast(ts, 0, self.bundle(sender, encode_control(control))))

    def null(self, ts: int) -> None:
        self.decide(Null(self.log.null_count, stamp_of(ts, 0)))

    def receive_from(self, other: Group) -> None:
        stream = other.log.streams[self.number]
        self.barrier_queue.receive(other.number, stream.first, tuple(stream.entries))
        self.barrier_queue.promise(other.number, stream.head, other.log.last_stamp)
        self.deliver()

    def deliver(self) -> None:
        for _, entry in self.barrier_queue.pop_deliverable(self.log.last_stamp):
            packed = read_packed_messages(entry.bundle.body, 0, len(entry.bundle.body))
            assert packed is not None
            self.delivered += [message.decode() for message in packed.messages()]

    def link_state(self, group: int) -> LinkState:
        return self.topology.outgoing[group].state

    def send_requests(self, other: Group) -> None:
        """The other group decides every open request of this one; this group decides the answers."""
        for group, request in self.topology.requests():
            assert group == other.number
            other.decide(request)
            self.decide(answer(other, self.number))


def answer(answering: Group, group: int) -> TopologyMessage:
    found = answering.topology.answer(group)
    assert found is not None
    return found


def unlinked_groups() -> tuple[Group, Group]:
    """Each group sends only to itself."""
    return Group(A, (A,), (A,)), Group(B, (B,), (B,))


def linked_groups() -> tuple[Group, Group]:
    """A sends to B."""
    return Group(A, (A, B), (A,)), Group(B, (B,), (A, B))


def test_a_receiver_waits_for_the_barrier_of_an_admitted_sender() -> None:
    a, b = unlinked_groups()
    b.send(10, 3, "before", (B,))
    assert b.delivered == ["before"]
    a.control(20, 1, SetReceivers(0b11))
    ((_, admit),) = a.topology.requests()
    assert admit == TopologyMessage(TopologyStep.ADMIT, A, 1)
    b.decide(admit)
    b.send(30, 3, "after", (B,))
    assert b.delivered == ["before"]
    a.decide(answer(b, A))
    a.send(31, 1, "new", (A, B))
    assert b.delivered == ["before"]
    b.receive_from(a)
    assert b.delivered == ["before", "after"]
    b.null(40)
    assert b.delivered == ["before", "after", "new"]


def test_a_new_sender_uses_larger_stamps_than_the_receiver_has_delivered() -> None:
    """The sender's clock is slow and its group has small stamps: its messages must not come before delivered ones."""
    a, b = unlinked_groups()
    b.send(1000, 3, "delivered", (B,))
    a.control(20, 1, SetReceivers(0b11))
    a.send_requests(b)
    assert a.link_state(B) is LinkState.OPEN
    assert time_of(a.log.last_stamp) >= 1000
    a.send(21, 1, "slow", (B,))
    b.receive_from(a)
    b.null(2000)
    assert b.delivered == ["delivered", "slow"]


def test_members_may_not_send_before_the_receiver_has_admitted_their_group() -> None:
    a, b = unlinked_groups()
    a.control(20, 1, SetReceivers(0b11))
    assert a.topology.allowed_mask() == 0b01
    assert not a.topology.is_settled()
    a.send_requests(b)
    assert a.topology.allowed_mask() == 0b11
    assert a.topology.is_settled()


def test_a_stream_ends_when_all_members_have_confirmed_after_their_last_messages() -> None:
    a, b = linked_groups()
    a.send(10, 1, "one", (B,))
    a.control(11, 1, SetReceivers(0b01))
    assert a.topology.allowed_mask() == 0b01
    assert a.topology.awaits_confirmation_of(1)
    a.control(12, 1, ConfirmTopology(1))
    a.send(13, 2, "accepted before the change was known", (B,))
    assert a.link_state(B) is LinkState.CLOSING
    a.control(14, 2, ConfirmTopology(1))
    assert a.link_state(B) is LinkState.CLOSED
    a.send(15, 2, "refused", (A, B))
    assert [(sender, mask) for sender, _, _, mask in a.log.refused] == [(2, 0b10)]
    assert a.delivered == [], "a message goes to all its destinations or to none"
    b.send(16, 3, "own", (B,))
    a.send_requests(b)
    assert a.link_state(B) is LinkState.UNLINKED
    assert b.delivered == [], "the last messages of the closed stream come first"
    b.receive_from(a)
    assert b.delivered == ["one", "accepted before the change was known", "own"]
    b.send(99, 3, "no longer waits", (B,))
    assert b.delivered[-1] == "no longer waits"


def test_a_dead_member_does_not_block_closing_a_link() -> None:
    a, b = linked_groups()
    a.control(11, 1, SetReceivers(0b01))
    a.control(12, 1, ConfirmTopology(1))
    (skip,) = a.topology.skip_member_proposals()
    assert skip == TopologyMessage(TopologyStep.SKIP_MEMBER, A, 1, 2)
    a.decide(TopologyMessage(TopologyStep.SKIP_MEMBER, A, 0, 2), TopologyMessage(TopologyStep.SKIP_MEMBER, B, 1, 2))
    assert a.link_state(B) is LinkState.CLOSING
    a.decide(skip)
    assert a.link_state(B) is LinkState.CLOSED
    a.send(13, 2, "alive after all", (A, B))
    assert len(a.log.refused) == 1
    a.send_requests(b)
    assert a.topology.is_settled()


def test_a_closed_stream_is_kept_until_all_receivers_have_all_of_it() -> None:
    a, b = linked_groups()
    a.send(10, 1, "one", (B,))
    for sender, control in ((1, SetReceivers(0b01)), (1, ConfirmTopology(1)), (2, ConfirmTopology(1))):
        a.control(20, sender, control)
    a.send_requests(b)
    assert B in a.log.streams
    a.decide(ReceivedByAll(B, 1))
    assert B not in a.log.streams


def test_a_reopened_stream_continues_its_numbering() -> None:
    a, b = linked_groups()
    a.send(10, 1, "one", (B,))
    b.receive_from(a)
    for sender, control in ((1, SetReceivers(0b01)), (1, ConfirmTopology(1)), (2, ConfirmTopology(1))):
        a.control(20, sender, control)
    a.send_requests(b)
    a.decide(ReceivedByAll(B, 1))
    b.send(50, 3, "alone", (B,))
    assert b.delivered == ["one", "alone"]
    a.control(60, 2, SetReceivers(0b11))
    a.send_requests(b)
    assert a.topology.outgoing[B].epoch == 2
    b.send(70, 3, "third", (B,))
    assert b.delivered == ["one", "alone"]
    a.send(65, 1, "second", (B,))
    assert a.log.streams[B].first == 2
    a.null(80)
    b.receive_from(a)
    assert b.delivered == ["one", "alone", "second", "third"]


def test_a_receiver_set_again_before_all_have_confirmed_stays_open() -> None:
    a, _ = linked_groups()
    a.control(10, 1, SetReceivers(0b01))
    a.control(11, 1, ConfirmTopology(1))
    a.control(12, 2, SetReceivers(0b11))
    assert a.link_state(B) is LinkState.OPEN
    a.control(13, 2, ConfirmTopology(1))
    assert a.link_state(B) is LinkState.OPEN


def test_a_link_that_is_no_longer_wanted_when_admitted_closes_at_once() -> None:
    a, b = unlinked_groups()
    a.control(10, 1, SetReceivers(0b11))
    a.control(11, 1, SetReceivers(0b01))
    assert a.link_state(B) is LinkState.OPENING
    a.send_requests(b)
    assert a.link_state(B) is LinkState.CLOSED
    b.send(20, 3, "own", (B,))
    assert b.delivered == []
    a.send_requests(b)
    b.deliver()
    assert a.link_state(B) is LinkState.UNLINKED
    assert b.delivered == ["own"]


def test_a_link_wanted_again_while_it_closes_opens_afterwards() -> None:
    a, b = linked_groups()
    for sender, control in (
        (1, SetReceivers(0b01)),
        (1, ConfirmTopology(1)),
        (2, ConfirmTopology(1)),
        (2, SetReceivers(0b11)),
    ):
        a.control(10, sender, control)
    assert a.link_state(B) is LinkState.CLOSED
    a.send_requests(b)
    assert a.link_state(B) is LinkState.OPENING
    a.send_requests(b)
    assert (a.link_state(B), a.topology.outgoing[B].epoch) == (LinkState.OPEN, 2)


def test_a_message_that_was_decided_before_changes_nothing() -> None:
    a, b = linked_groups()
    before = (a.topology.save(), b.topology.save())
    a.decide(TopologyMessage(TopologyStep.ADMITTED, B, 1, stamp=1 << 60), TopologyMessage(TopologyStep.RELEASED, B, 1))
    b.decide(TopologyMessage(TopologyStep.ADMIT, A, 1), TopologyMessage(TopologyStep.RELEASE, A, 0))
    assert (a.topology.save(), b.topology.save()) == before
    assert a.log.last_stamp == 0


def test_a_snapshot_holds_the_topology() -> None:
    a, b = linked_groups()
    a.send(10, 1, "one", (B,))
    a.control(11, 1, SetReceivers(0b01))
    a.control(12, 1, ConfirmTopology(1))
    state = GroupState()
    a.log.save(state)
    other = Group(A, (A, B), (A,))
    other.log.restore(state)
    assert other.topology.save() == a.topology.save()
    assert other.topology.awaits_confirmation_of(2)
    assert not other.topology.awaits_confirmation_of(1)
    for group in (a, other):
        group._serials = dict(a._serials)
    other.control(13, 2, ConfirmTopology(1))
    assert other.link_state(B) is LinkState.CLOSED
    other.send_requests(b)
    b.receive_from(other)
    b.null(99)
    assert b.delivered == ["one"]


def test_stored_entries_wait_until_their_group_is_admitted_again() -> None:
    a, b = unlinked_groups()
    a.control(10, 1, SetReceivers(0b11))
    ((_, admit),) = a.topology.requests()
    b.decide(admit)
    a.decide(answer(b, A))
    a.send(20, 1, "kept", (B,))
    again = Group(B, (B,), (B,))
    again.barrier_queue.restore_entry(A, 1, a.log.streams[B].entry(1))
    assert again.barrier_queue.awaiting_admission
    again.decide(admit)
    assert not again.barrier_queue.awaiting_admission
    assert again.barrier_queue.sources[A].applied == 1
    again.null(99)
    again.barrier_queue.promise(A, 1, stamp_of(99, 0))
    again.deliver()
    assert again.delivered == ["kept"]
