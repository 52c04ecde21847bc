"""A forged SNAPSHOT datagram neither hangs nor ends a member of an order over consensus."""

from __future__ import annotations

import pytest
from tests.stepping import events

from unisono.agreement.paxos.consensus import Consensus
from unisono.agreement.paxos.messages import RECORDS, Snapshot, SnapshotRecord
from unisono.errors import StorageError
from unisono.model.effects import StoredRecords
from unisono.model.events import View
from unisono.model.policy import Policy
from unisono.model.timing import Timing
from unisono.model.topology import Multigroup, Topology
from unisono.model.units import NS_PER_MS, Rate, group_key
from unisono.orders.consensus.order import AgreedLog, ConsensusOrderBase
from unisono.orders.final.order import FinalOrder
from unisono.stack import Stack, build
from unisono.wire.codec import control_frame
from unisono.wire.frame import encode

START = 1_700_000_000_000 * NS_PER_MS
TIMING = Timing(10 * NS_PER_MS, 2 * NS_PER_MS, 5 * NS_PER_MS)
TOPOLOGY = Topology({"a": (1, 2, 3)}, {})


def member(order: str, grades: str = "early") -> Stack:
    multigroup = Multigroup(TOPOLOGY) if order == "quasi_genuine" else None
    policy = Policy("unit", 1, View((1, 2, 3)), TIMING, Rate(50, 4), order=order, grades=grades, multigroup=multigroup)
    stack = build(policy, stored_records=StoredRecords(7))
    stack.wake(START)
    stack.step()
    return stack


def consensus_of(stack: Stack) -> Consensus:
    order = stack.order
    assert isinstance(order, ConsensusOrderBase | FinalOrder)
    return order.consensus


def receive(stack: Stack, snapshot: Snapshot) -> None:
    frame = control_frame(snapshot, 2, 1, 0, burst=9, sent_ns=START)
    stack.receive(START, encode(frame, group_key("unit")))
    events(stack)


@pytest.mark.parametrize(("order", "grades"), [("consensus", "early"), ("vbr", "both"), ("quasi_genuine", "early")])
@pytest.mark.parametrize("snapshot", [Snapshot(2**62, 0, 0, b""), Snapshot(5, 1, 0, b"x")])
@pytest.mark.timeout(20)
def test_a_member_drops_a_snapshot_that_it_cannot_read(order: str, grades: str, snapshot: Snapshot) -> None:
    stack = member(order, grades)
    receive(stack, snapshot)
    assert consensus_of(stack).ignored["unreadable snapshot"] == 1
    stack.wake(START + NS_PER_MS)
    assert not stack.step().records


@pytest.mark.timeout(20)
def test_a_snapshot_of_a_far_instance_is_installed_without_counting_to_it() -> None:
    stack = member("consensus")
    state = AgreedLog().state()
    receive(stack, Snapshot(2**62, len(state), 0, state))
    assert consensus_of(stack).decided == 2**62


def test_a_stored_snapshot_that_cannot_be_read_is_a_storage_error() -> None:
    records = (RECORDS.encode(SnapshotRecord(5, b"x")),)
    policy = Policy("unit", 1, View((1, 2, 3)), TIMING, Rate(50, 4), order="consensus")
    stack = build(policy, stored_records=StoredRecords(7, records))
    stack.wake(START)
    with pytest.raises(StorageError, match="snapshot"):
        stack.step()
