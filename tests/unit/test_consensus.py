"""Consensus, by hand: what is proposed is decided, what is promised is written first, what may not be lost is kept."""

from __future__ import annotations

import pytest
from tests.simulation.consensus_world import HEARTBEAT_NS, MS, RETRY_NS, ConsensusWorld

from unisono.agreement.paxos.consensus import CandidateState, Consensus, Role
from unisono.agreement.paxos.log import RECORD_DECIDED_EVERY, Acceptor, Decision, ForwardedValue, RestoredState
from unisono.agreement.paxos.messages import (
    CHOSEN,
    Accept,
    Accepted,
    ConsensusMessage,
    Learn,
    Prepare,
    Promise,
    Proposal,
    StorageMismatch,
    ballot_after,
    decode_storage_mismatch,
    encode,
    owner_of,
)
from unisono.check.verdict import Status
from unisono.errors import InvalidOption, StorageError
from unisono.model.stored_records import StoredRecords
from unisono.wire.frame import Frame, Kind


def alone(members: tuple[int, ...] = (1, 2, 3), **options: object) -> Consensus:
    made = Consensus(1, members, every_ns=HEARTBEAT_NS, retry_ns=RETRY_NS, **options)  # type: ignore[arg-type]
    made.wake(0)
    made.down.clear()
    return made


def said(sender: int, message: ConsensusMessage, *, number: int = 0, incarnation: int = 1, memory: int = 7) -> Frame:
    kind, body = encode(message)
    return Frame(kind, sender, incarnation, 0, 0, number, 0, memory, body=body)


def elected(**options: object) -> Consensus:
    """Member 1, leading with the promise of member 2."""
    made = alone(**options)  # type: ignore[arg-type]
    made.from_below(MS, said(2, Promise(ballot_after(0, 1), True, 0, 1, 0, 0, ())))
    made.from_below(MS, said(2, Promise(ballot_after(0, 1), False, 0, 1, 0, 1, ())))
    assert made.role is Role.LEADER
    made.down.clear()
    made.writes.clear()
    return made


def group(members: int = 3) -> ConsensusWorld:
    world = ConsensusWorld(1, members)
    for number in world.numbers:
        world.start(number)
    world.run(200 * MS)
    return world


def test_ballots_belong_to_one_member_each_and_ascend() -> None:
    ballot = 0
    for member in (3, 1, 65535, 2, 2):
        after = ballot_after(ballot, member)
        assert after > ballot
        assert owner_of(after) == member
        ballot = after
    assert ballot < CHOSEN


@pytest.mark.parametrize("members", [1, 2, 3, 5])
def test_what_is_proposed_is_decided_everywhere_in_order(members: int) -> None:
    world = group(members)
    for _ in range(10):
        for number in world.numbers:
            world.propose(number, 2)
        world.run(world.now + 40 * MS)
    assert world.verdict().status is Status.VALID
    assert not world.lagging()
    assert max(told.instance for told in world.reported) >= 20


def test_of_several_values_for_an_instance_one_is_decided() -> None:
    world = group()
    for number in world.numbers:
        world.propose(number, 0)
    world.run(world.now + 100 * MS)
    assert [told.instance for told in world.reported] == [1, 1, 1]
    assert len({told.value for told in world.reported}) == 1


def test_a_decision_takes_one_round_trip_of_the_leader_and_pipelines() -> None:
    leader = elected()
    for k in (1, 2, 3):
        assert leader.propose(MS, k, b"v%d" % k)
    leader.from_below(2 * MS, said(2, Accepted(ballot_after(0, 1), 3, 0)))
    assert leader.decisions == [Decision(1, b"v1"), Decision(2, b"v2"), Decision(3, b"v3")]


def test_values_that_wait_together_travel_in_one_frame() -> None:
    leader = elected(window=4)
    for k in (2, 3, 4):
        leader.propose(MS, k, b"v%d" % k)
    assert not leader.down
    leader.propose(MS, 1, b"v1")
    (frame,) = leader.down
    assert bytes(frame.body).count(b"v") == 4


def test_the_window_pushes_back() -> None:
    leader = elected(window=2)
    assert leader.propose(MS, 1, b"a")
    assert leader.propose(MS, 2, b"b")
    assert not leader.propose(MS, 3, b"c")
    leader.from_below(2 * MS, said(2, Accepted(ballot_after(0, 1), 1, 0)))
    assert leader.propose(MS, 3, b"c")


def test_a_leader_writes_its_value_before_it_sends_it() -> None:
    leader = elected()
    leader.propose(MS, 1, b"precious")
    assert any(b"precious" in record for write in leader.writes for record in write.records if not write.may_be_lost)
    assert leader.down


def test_a_follower_writes_promise_and_value_before_it_answers() -> None:
    follower = alone()
    follower.from_below(MS, said(2, Prepare(ballot_after(0, 2), 1, False)))
    assert len(follower.writes) == 2, "whose memory is whose, and the promise"
    follower.from_below(MS, said(2, Accept(ballot_after(0, 2), 1, 0, 1, (b"precious",))))
    assert len(follower.writes) == 3
    again = alone(
        stored_records=StoredRecords(1, tuple(record for write in follower.writes for record in write.records))
    )
    again.from_below(MS, said(3, Prepare(ballot_after(0, 1), 1, False)))
    assert len(again.writes) == 1, "a lower ballot was promised after a restart"
    again.from_below(MS, said(3, Prepare(ballot_after(ballot_after(0, 2), 3), 1, False)))
    assert b"precious" in bytes(again.down[-1].body), "an accepted value was forgotten"


def test_a_trial_promises_nothing_and_does_not_depose_a_leader_that_is_heard() -> None:
    follower = alone()
    follower.from_below(MS, said(2, Accept(ballot_after(0, 2), 1, 0, 0, ())))
    follower.from_below(MS, said(3, Accepted(0, 0, 0)))
    follower.writes.clear()
    follower.down.clear()
    follower.from_below(2 * MS, said(3, Prepare(ballot_after(ballot_after(0, 2), 3), 1, True)))
    assert not follower.writes
    (answer,) = follower.down
    assert answer.kind.name == "ACCEPTED"


def test_a_new_leader_proposes_what_may_have_been_decided() -> None:
    """The value of the highest ballot, instance by instance, whoever reports it."""
    member = alone()
    ballot = ballot_after(0, 1)
    member.from_below(MS, said(2, Promise(ballot, True, 0, 1, 0, 0, ())))
    entries = ((3, b"old"), (7, b"newer"))
    member.from_below(MS, said(2, Promise(ballot, False, 0, 1, 2, 1, entries)))
    assert member.is_leader
    body = bytes(member.down[-1].body)
    assert b"old" in body
    assert b"newer" in body
    member.propose(MS, 1, b"mine")
    member.from_below(MS, said(3, Accepted(ballot, 2, 0)))
    assert member.decisions == [Decision(1, b"old"), Decision(2, b"newer")]


def test_a_promise_in_parts_counts_when_it_is_whole() -> None:
    member, ballot = alone(), ballot_after(0, 1)
    member.from_below(MS, said(2, Promise(ballot, True, 0, 1, 0, 0, ())))
    member.from_below(MS, said(2, Promise(ballot, False, 0, 1, 2, 2, ((7, b"b"),))))
    assert not member.is_leader
    member.from_below(MS, said(2, Promise(ballot, False, 0, 1, 2, 1, ((7, b"a"),))))
    assert member.is_leader


def test_a_value_below_the_leaders_base_is_fetched_and_never_guessed() -> None:
    """What a follower accepted from an earlier leader need not be what was decided."""
    follower = alone(members=(1, 2, 3, 4, 5))
    follower.from_below(MS, said(3, Accept(ballot_after(0, 3), 1, 0, 1, (b"lost",))))
    follower.from_below(MS, said(2, Accept(ballot_after(ballot_after(0, 3), 2), 2, 1, 2, (b"second",))))
    assert follower.decisions == []
    assert follower.down[-2].kind.name == "FETCH"
    follower.from_below(MS, said(2, Learn(1, 1, (b"first",))))
    assert follower.decisions == [Decision(1, b"first")]


@pytest.mark.parametrize(("members", "decides"), [((1, 2), True), ((1, 2, 3), True), ((1, 2, 3, 4), False)])
def test_where_two_are_a_majority_a_follower_decides_what_it_accepts(members: tuple[int, ...], decides: bool) -> None:
    """The leader has accepted what it sends, and the follower accepts it: with the leader's word it would wait 2δ."""
    follower = alone(members)
    follower.from_below(MS, said(2, Accept(ballot_after(0, 2), 1, 0, 1, (b"v", b"w"))))
    assert follower.decisions == ([Decision(1, b"v"), Decision(2, b"w")] if decides else [])
    assert [write.may_be_lost for write in follower.writes][-2:] == [False, False]


def test_what_is_before_a_decided_value_is_decided() -> None:
    """Half of a promise comes from a life that knew what was decided, half from the next one, which does not."""
    candidacy = CandidateState(ballot_after(0, 1), 1, 0)
    candidacy.add_promise_part(2, Promise(candidacy.ballot, False, 2, 1, 2, 2, ((CHOSEN, b"second"),)))
    candidacy.add_promise_part(2, Promise(candidacy.ballot, False, 0, 1, 3, 1, ((7, b"first"),)))
    candidacy.add_promise_part(2, Promise(candidacy.ballot, False, 0, 1, 3, 3, ((7, b"third"),)))
    assert candidacy.values_to_propose() == [(CHOSEN, b"first"), (CHOSEN, b"second"), (7, b"third")]


def test_a_leader_does_not_learn_while_it_leads() -> None:
    leader = elected()
    leader.propose(MS, 1, b"mine")
    leader.from_below(MS, said(3, Learn(1, 1, (b"another leader's",))))
    assert leader.decisions == []


def test_a_leader_without_a_majority_steps_down() -> None:
    leader = elected()
    while leader.is_leader and (leader.wake_at() or 0) < 2000 * MS:
        leader.wake(leader.wake_at() or 0)
    assert not leader.is_leader
    assert not leader.decisions


def test_offers_reach_the_leaders_caller() -> None:
    leader = elected()
    leader.from_below(MS, said(2, Proposal(0, b"please"), incarnation=9))
    leader.forward(MS, b"my own")
    assert leader.forwarded == [ForwardedValue(2, 9, b"please"), ForwardedValue(1, 1, b"my own")]


def test_a_member_that_has_lost_its_memory_is_not_listened_to() -> None:
    leader = elected()
    leader.propose(MS, 1, b"v")
    leader.from_below(MS, said(2, Accepted(ballot_after(0, 1), 1, 0), memory=8))
    assert leader.decisions == []
    assert leader.storage_identity.lost_storage == {2}
    leader.from_below(MS + 1, said(2, Accepted(ballot_after(0, 1), 1, 0), memory=8))
    told = [frame for frame in leader.down if frame.kind is Kind.STORAGE_MISMATCH]
    assert [(frame.to, decode_storage_mismatch(bytes(frame.body))) for frame in told] == [(2, StorageMismatch(7))], (
        "told, once"
    )
    leader.from_below(MS, said(2, Accepted(ballot_after(0, 1), 1, 0)))
    assert leader.decisions == [Decision(1, b"v")]


def test_a_member_that_has_lost_its_memory_learns_by_whom_it_is_not_listened_to() -> None:
    follower = alone()
    follower.from_below(MS, said(2, StorageMismatch(5)))
    follower.from_below(MS, said(3, StorageMismatch(1)))
    assert follower.storage_identity.refused_by == {2}, "member 3 means the memory that this one has"


def test_others_memories_are_remembered_after_a_restart_and_a_compaction() -> None:
    acceptor = Acceptor(retained_values=0)
    assert acceptor.storage_id_matches(2, 7)
    acceptor.accept(1, 5, b"v")
    acceptor.decide(1)
    appended = [record for write in acceptor.writes for record in write.records]
    acceptor.compact(1, b"state")
    for records in (appended, acceptor.writes[-1].records):
        again = Acceptor(retained_values=0)
        again.recover(records)
        assert not again.storage_id_matches(2, 8)
        assert again.storage_id_matches(2, 7)


def test_who_lags_past_what_is_kept_is_given_a_snapshot() -> None:
    world = ConsensusWorld(3, 3)
    world.compact_every = 5
    for number in (1, 2):
        world.start(number)
    world.run(200 * MS)
    for _ in range(40):
        world.propose(1, 0)
        world.run(world.now + 20 * MS)
    world.start(3)
    world.run(world.now + 500 * MS)
    assert not world.lagging()
    assert any(told.member == 3 and told.value is None for told in world.reported)
    assert world.verdict().status is Status.VALID
    assert all(
        m.automaton is not None and len(m.automaton._acceptor.log) <= 5 + 4 + world.window
        for m in world.members.values()
    )


def test_storage_stays_small_when_states_are_compacted() -> None:
    world = group()
    world.compact_every = 5
    for _ in range(60):
        world.propose(1, 1)
        world.run(world.now + 20 * MS)
    decided = max(told.instance for told in world.reported)
    assert decided > 60
    assert all(len(member.disk.records()) < 40 for member in world.members.values())


def test_a_restart_goes_on_from_its_snapshot() -> None:
    acceptor = Acceptor(retained_values=2)
    acceptor.promise(7)
    for k in range(1, 11):
        acceptor.accept(k, 7, b"v%d" % k)
    acceptor.decide(8)
    acceptor.compact(6, b"six")
    records = list(acceptor.writes[-1].records)
    assert acceptor.writes[-1].replaces_all
    again = Consensus(
        1, (1, 2, 3), every_ns=HEARTBEAT_NS, retry_ns=RETRY_NS, stored_records=StoredRecords(1, tuple(records))
    )
    assert again.decisions == [RestoredState(6, b"six"), Decision(7, b"v7"), Decision(8, b"v8")]
    assert again.next_free == 11


def test_marks_of_decisions_are_lazy() -> None:
    acceptor = Acceptor(retained_values=10)
    for k in range(1, RECORD_DECIDED_EVERY + 1):
        acceptor.accept(k, 7, b"")
        acceptor.decide(k)
    assert [write.may_be_lost for write in acceptor.writes].count(True) == 1


@pytest.mark.parametrize(
    "records",
    [[b""], [b"\x09junk"], [b"\x02" + (5).to_bytes(8) + (7).to_bytes(8) + b"v"], [b"\x03" + (5).to_bytes(8)]],
    ids=["empty", "unknown", "a hole", "decided without values"],
)
def test_records_that_contradict_themselves_are_refused(records: list[bytes]) -> None:
    with pytest.raises(StorageError, match="record 0"):
        Consensus(
            1, (1, 2, 3), every_ns=HEARTBEAT_NS, retry_ns=RETRY_NS, stored_records=StoredRecords(1, tuple(records))
        )


def test_senseless_uses_are_refused() -> None:
    leader = elected()
    with pytest.raises(InvalidOption, match="numbered from 1"):
        leader.propose(MS, 0, b"")
    with pytest.raises(InvalidOption, match="split it"):
        leader.propose(MS, 1, bytes(leader.max_value_bytes + 1))
    assert leader.propose(MS, 1, bytes(leader.max_value_bytes))
    assert len(leader.down[-1].body) + 48 <= 1400
    with pytest.raises(InvalidOption, match="member 4"):
        Consensus(4, (1, 2, 3), every_ns=HEARTBEAT_NS, retry_ns=RETRY_NS)
