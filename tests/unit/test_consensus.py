"""Paxos, frame by frame: proposed values get decided, promises are written first, accepted values are never lost."""

from __future__ import annotations

import pytest
from tests.simulation.consensus_world import HEARTBEAT_NS, MS, RETRY_NS, ConsensusWorld

from unisono.agreement.paxos.acceptor import (
    ANSWER_BYTES,
    RECORD_DECIDED_EVERY,
    Acceptor,
    Decision,
    ForwardedValue,
    RestoredState,
)
from unisono.agreement.paxos.consensus import MAX_LAG_BYTES, CandidateState, Consensus, Role, ballot_after, owner_of
from unisono.agreement.paxos.messages import (
    CHOSEN,
    Accept,
    Accepted,
    ConsensusMessage,
    Fetch,
    Learn,
    Prepare,
    Promise,
    Proposal,
    StorageMismatch,
)
from unisono.agreement.round_trip import WAIT_MIN_NS
from unisono.check.verdict import Status
from unisono.errors import InvalidOption, StorageError
from unisono.model.effects import StoredRecords
from unisono.model.units import EVERYONE
from unisono.wire.codec import control_frame
from unisono.wire.frame import Frame, Kind


def started(members: tuple[int, ...] = (1, 2, 3), **options: object) -> Consensus:
    consensus = Consensus(1, members, every_ns=HEARTBEAT_NS, retry_ns=RETRY_NS, **options)  # type: ignore[arg-type]
    consensus.wake(0)
    consensus.down.clear()
    return consensus


def frame_of(
    sender: int, message: ConsensusMessage, *, number: int = 0, incarnation: int = 1, storage_id: int = 7
) -> Frame:
    return control_frame(message, sender, incarnation, 0, number=number, burst=storage_id)


def elected(**options: object) -> Consensus:
    """Member 1 as the leader, with the promise of member 2."""
    consensus = started(**options)  # type: ignore[arg-type]
    consensus.from_below(MS, frame_of(2, Promise(ballot_after(0, 1), True, 0, 1, 0, 0, ())))
    consensus.from_below(MS, frame_of(2, Promise(ballot_after(0, 1), False, 0, 1, 0, 1, ())))
    assert consensus.role is Role.LEADER
    consensus.down.clear()
    consensus.writes.clear()
    return consensus


def group(members: int = 3) -> ConsensusWorld:
    world = ConsensusWorld(1, members)
    for number in world.numbers:
        world.start(number)
    world.run(200 * MS)
    return world


def test_each_ballot_belongs_to_one_member_and_ballots_ascend() -> None:
    ballot = 0
    for member in (3, 1, 65535, 2, 2):
        after = ballot_after(ballot, member)
        assert after > ballot
        assert owner_of(after) == member
        ballot = after
    assert ballot < CHOSEN


@pytest.mark.parametrize("members", [1, 2, 3, 5])
def test_proposed_values_are_decided_everywhere_in_order(members: int) -> None:
    world = group(members)
    for _ in range(10):
        for number in world.numbers:
            world.propose(number, 2)
        world.run(world.now + 40 * MS)
    assert world.verdict().status is Status.VALID
    assert not world.lagging()
    assert max(report.instance for report in world.reported) >= 20


def test_one_of_several_values_for_an_instance_is_decided() -> None:
    world = group()
    for number in world.numbers:
        world.propose(number, 0)
    world.run(world.now + 100 * MS)
    assert [report.instance for report in world.reported] == [1, 1, 1]
    assert len({report.value for report in world.reported}) == 1


def test_pipelined_instances_are_decided_after_one_round_trip() -> None:
    leader = elected()
    for k in (1, 2, 3):
        assert leader.propose(MS, k, b"v%d" % k)
    leader.from_below(2 * MS, frame_of(2, Accepted(ballot_after(0, 1), 3, 0)))
    assert leader.decisions == [Decision(1, b"v1"), Decision(2, b"v2"), Decision(3, b"v3")]


def test_values_that_become_ready_together_travel_in_one_frame() -> None:
    leader = elected(window=4)
    for k in (2, 3, 4):
        leader.propose(MS, k, b"v%d" % k)
    assert not leader.down
    leader.propose(MS, 1, b"v1")
    (frame,) = leader.down
    assert bytes(frame.body).count(b"v") == 4


def test_a_full_window_refuses_proposals() -> None:
    leader = elected(window=2)
    assert leader.propose(MS, 1, b"a")
    assert leader.propose(MS, 2, b"b")
    assert not leader.propose(MS, 3, b"c")
    leader.from_below(2 * MS, frame_of(2, Accepted(ballot_after(0, 1), 1, 0)))
    assert leader.propose(MS, 3, b"c")


def test_a_leader_writes_its_value_before_it_sends_it() -> None:
    leader = elected()
    leader.propose(MS, 1, b"precious")
    assert any(b"precious" in record for write in leader.writes for record in write.records if not write.may_be_lost)
    assert leader.down


def test_a_follower_writes_promise_and_value_before_it_answers() -> None:
    follower = started()
    follower.from_below(MS, frame_of(2, Prepare(ballot_after(0, 2), 1, False)))
    assert len(follower.writes) == 2, "the storage id of member 2, and the promise"
    follower.from_below(MS, frame_of(2, Accept(ballot_after(0, 2), 1, 0, 1, (b"precious",))))
    assert len(follower.writes) == 3
    again = started(
        stored_records=StoredRecords(1, tuple(record for write in follower.writes for record in write.records))
    )
    again.from_below(MS, frame_of(3, Prepare(ballot_after(0, 1), 1, False)))
    assert len(again.writes) == 1, "a lower ballot was promised after a restart"
    again.from_below(MS, frame_of(3, Prepare(ballot_after(ballot_after(0, 2), 3), 1, False)))
    assert b"precious" in bytes(again.down[-1].body), "an accepted value was forgotten"


def test_a_trial_promises_nothing_and_does_not_replace_a_working_leader() -> None:
    follower = started()
    follower.from_below(MS, frame_of(2, Accept(ballot_after(0, 2), 1, 0, 0, ())))
    follower.from_below(MS, frame_of(3, Accepted(0, 0, 0)))
    follower.writes.clear()
    follower.down.clear()
    follower.from_below(2 * MS, frame_of(3, Prepare(ballot_after(ballot_after(0, 2), 3), 1, True)))
    assert not follower.writes
    (answer,) = follower.down
    assert answer.kind.name == "ACCEPTED"


def test_a_new_leader_proposes_values_that_may_have_been_decided() -> None:
    """For each instance, the value accepted under the highest reported ballot."""
    member = started()
    ballot = ballot_after(0, 1)
    member.from_below(MS, frame_of(2, Promise(ballot, True, 0, 1, 0, 0, ())))
    entries = ((3, b"old"), (7, b"newer"))
    member.from_below(MS, frame_of(2, Promise(ballot, False, 0, 1, 2, 1, entries)))
    assert member.is_leader
    body = bytes(member.down[-1].body)
    assert b"old" in body
    assert b"newer" in body
    member.propose(MS, 1, b"mine")
    member.from_below(MS, frame_of(3, Accepted(ballot, 2, 0)))
    assert member.decisions == [Decision(1, b"old"), Decision(2, b"newer")]


def test_a_promise_in_parts_counts_when_it_is_complete() -> None:
    member, ballot = started(), ballot_after(0, 1)
    member.from_below(MS, frame_of(2, Promise(ballot, True, 0, 1, 0, 0, ())))
    member.from_below(MS, frame_of(2, Promise(ballot, False, 0, 1, 2, 2, ((7, b"b"),))))
    assert not member.is_leader
    member.from_below(MS, frame_of(2, Promise(ballot, False, 0, 1, 2, 1, ((7, b"a"),))))
    assert member.is_leader


def test_a_value_below_the_leaders_base_is_fetched_and_never_guessed() -> None:
    """A value that a follower accepted from an earlier leader may differ from the decided one."""
    follower = started(members=(1, 2, 3, 4, 5))
    follower.from_below(MS, frame_of(3, Accept(ballot_after(0, 3), 1, 0, 1, (b"lost",))))
    follower.from_below(MS, frame_of(2, Accept(ballot_after(ballot_after(0, 3), 2), 2, 1, 2, (b"second",))))
    assert follower.decisions == []
    assert follower.down[-2].kind.name == "FETCH"
    follower.from_below(MS, frame_of(2, Learn(1, 1, (b"first",))))
    assert follower.decisions == [Decision(1, b"first")]


@pytest.mark.parametrize(("members", "decides"), [((1, 2), True), ((1, 2, 3), True), ((1, 2, 3, 4), False)])
def test_a_follower_decides_alone_where_two_members_are_a_majority(members: tuple[int, ...], decides: bool) -> None:
    """The leader has accepted the value before it sends it, so the follower completes the majority.

    Waiting for the leader's announcement would take two more message delays.
    """
    follower = started(members)
    follower.from_below(MS, frame_of(2, Accept(ballot_after(0, 2), 1, 0, 1, (b"v", b"w"))))
    assert follower.decisions == ([Decision(1, b"v"), Decision(2, b"w")] if decides else [])
    assert [write.may_be_lost for write in follower.writes][-2:] == [False, False]


def test_instances_before_a_decided_one_are_decided() -> None:
    """One part of a promise is from an incarnation that knew a decision, the others from the next, which does not."""
    candidate = CandidateState(ballot_after(0, 1), 1, 0)
    candidate.add_promise_part(2, Promise(candidate.ballot, False, 2, 1, 2, 2, ((CHOSEN, b"second"),)))
    candidate.add_promise_part(2, Promise(candidate.ballot, False, 0, 1, 3, 1, ((7, b"first"),)))
    candidate.add_promise_part(2, Promise(candidate.ballot, False, 0, 1, 3, 3, ((7, b"third"),)))
    assert candidate.values_to_propose() == [(CHOSEN, b"first"), (CHOSEN, b"second"), (7, b"third")]


def test_a_leader_ignores_learned_values_while_it_leads() -> None:
    leader = elected()
    leader.propose(MS, 1, b"mine")
    leader.from_below(MS, frame_of(3, Learn(1, 1, (b"another leader's",))))
    assert leader.decisions == []


def test_a_leader_without_a_majority_steps_down() -> None:
    leader = elected()
    while leader.is_leader and (leader.wake_at() or 0) < 2000 * MS:
        leader.wake(leader.wake_at() or 0)
    assert not leader.is_leader
    assert not leader.decisions


def test_the_leaders_own_value_replaces_a_forwarded_one_that_is_not_proposed_yet() -> None:
    """The order takes its value for a free instance as proposed. A late value of a previous leader must not win."""
    leader = elected(batch_replies=True)
    leader.from_below(MS, frame_of(2, Proposal(1, b"late")))
    assert leader.propose(MS, 1, b"own")
    leader.flush(MS)
    leader.from_below(2 * MS, frame_of(2, Accepted(ballot_after(0, 1), 1, 0)))
    leader.flush(2 * MS)
    assert leader.decisions == [Decision(1, b"own")]


def test_the_standing_names_the_leader_the_majority_and_the_suspected_members() -> None:
    leader = elected()
    found = leader.standing()
    assert (found.led, found.leader, found.majority, found.suspected) == (True, 1, True, ())
    assert found.role_of(1) == "leader"
    assert found.role_of(2) == "follower"
    leader.propose(MS, 1, b"v1")
    leader.from_below(2 * MS, frame_of(2, Accepted(ballot_after(0, 1), 1, 0)))
    assert leader.standing().behind == {2: 1, 3: 1}, "neither has acknowledged the decision"
    leader.from_below(3 * MS, frame_of(2, Accepted(ballot_after(0, 1), 1, 1)))
    assert leader.standing().behind == {2: 0, 3: 1}
    for at in range(4 * MS, 20_000 * MS, HEARTBEAT_NS):
        leader.wake(at)
    found = leader.standing()
    assert (found.leader, found.majority, found.suspected) == (None, False, (2, 3))
    assert found.role_of(1) == "blocked"


def retransmitted(leader: Consensus, until: int) -> list[tuple[int, int, Accept]]:
    """The ACCEPT frames that a leader sends to single members up to a time: (when, to, message)."""
    leader.down.clear()
    while (at := leader.wake_at()) is not None and at <= until:
        leader.wake(at)
    return [
        (frame.sent_ns, frame.to, frame.message)
        for frame in leader.down
        if isinstance(frame.message, Accept) and frame.to != EVERYONE
    ]


def test_a_leader_retransmits_after_the_measured_round_trip_and_then_less_often() -> None:
    leader, ballot = elected(), ballot_after(0, 1)
    assert leader.propose(MS, 1, b"v1")
    assert retransmitted(leader, MS + RETRY_NS - 1) == [], "no round trip is measured yet"
    for member in (2, 3):
        leader.from_below(2 * MS, frame_of(member, Accepted(ballot, 1, 0)))
    assert leader.propose(3 * MS, 2, b"v2")
    value = Accept(ballot, 1, 1, 2, (b"v2",))
    times = [3 * MS + WAIT_MIN_NS, 3 * MS + WAIT_MIN_NS + 2 * WAIT_MIN_NS]
    assert retransmitted(leader, times[-1]) == [(at, to, value) for at in times for to in (2, 3)]


def test_a_leader_tells_a_member_about_decided_values_that_it_has_not_accepted() -> None:
    """The member fetches them."""
    leader, ballot = elected(), ballot_after(0, 1)
    for at, k in ((MS, 1), (3 * MS, 2)):
        assert leader.propose(at, k, b"v%d" % k)
        for member in (2, 3)[: 3 - k]:
            leader.from_below(at + MS, frame_of(member, Accepted(ballot, k, 0)))
    assert leader.decided == 2
    overdue = 3 * MS + WAIT_MIN_NS
    assert retransmitted(leader, overdue) == [(overdue, 3, Accept(ballot, 1, 2, 0, ()))]


def fetches(follower: Consensus) -> list[tuple[int, int]]:
    """When the follower sent FETCH frames, and for values from which instance on."""
    return [(frame.sent_ns, frame.message.first) for frame in follower.down if isinstance(frame.message, Fetch)]


def test_a_follower_fetches_a_decision_whose_announcement_is_overdue() -> None:
    follower, ballot = started(members=(1, 2, 3, 4, 5)), ballot_after(0, 2)
    follower.from_below(MS, frame_of(2, Accept(ballot, 1, 0, 1, (b"v1",))))
    follower.from_below(3 * MS, frame_of(2, Accept(ballot, 1, 1, 0, ())))
    follower.from_below(4 * MS, frame_of(2, Accept(ballot, 1, 1, 2, (b"v2",))))
    assert follower.decisions == [Decision(1, b"v1")]
    due = 4 * MS + 6 * MS  # the first measurement was 2 ms: a round trip and four deviations of half of it
    follower.wake(due - 1)
    assert fetches(follower) == []
    follower.wake(due)
    assert fetches(follower) == [(due, 2)]
    follower.from_below(due + 2 * MS, frame_of(2, Learn(2, 2, (b"v2",))))
    assert follower.decisions[-1] == Decision(2, b"v2")
    assert follower.wake_at() != due + 12 * MS, "nothing is expected any more"


def test_a_follower_fetches_at_once_and_again_when_the_answer_is_complete() -> None:
    follower, ballot = started(members=(1, 2, 3, 4, 5)), ballot_after(0, 2)
    follower.from_below(MS, frame_of(2, Accept(ballot, 1, 9, 0, ())))
    follower.from_below(2 * MS, frame_of(2, Accept(ballot, 1, 9, 0, ())))
    assert fetches(follower) == [(MS, 1)], "one answer is outstanding"
    follower.from_below(3 * MS, frame_of(2, Learn(9, 1, (b"v1", b"v2")), number=1))
    assert fetches(follower) == [(MS, 1)], "one more frame of the answer is on its way"
    follower.from_below(4 * MS, frame_of(2, Learn(9, 3, (b"v3",))))
    assert fetches(follower) == [(MS, 1), (4 * MS, 4)]
    follower.wake(4 * MS + 6 * MS)  # the first measurement was 2 ms
    assert fetches(follower)[2:] == [(10 * MS, 4)], "the answer is lost"


def test_an_answer_to_a_fetch_is_bounded_in_bytes() -> None:
    leader, ballot = elected(window=512), ballot_after(0, 1)
    for k in range(1, 301):
        assert leader.propose(MS, k, bytes(1000))
    leader.from_below(2 * MS, frame_of(2, Accepted(ballot, 300, 0)))
    leader.down.clear()
    leader.from_below(3 * MS, frame_of(3, Fetch(1, 0, 0)))
    learns = [frame for frame in leader.down if isinstance(frame.message, Learn)]
    assert [frame.number for frame in learns] == list(range(len(learns) - 1, -1, -1))
    assert ANSWER_BYTES <= sum(len(frame.body) for frame in learns) < ANSWER_BYTES + 10_000


def test_forwarded_values_reach_the_owner_of_the_leader() -> None:
    leader = elected()
    leader.from_below(MS, frame_of(2, Proposal(0, b"please"), incarnation=9))
    leader.forward(MS, b"my own")
    assert leader.forwarded == [ForwardedValue(2, 9, b"please"), ForwardedValue(1, 1, b"my own")]


def test_a_member_that_lost_its_storage_is_ignored_and_informed_once() -> None:
    leader = elected()
    leader.propose(MS, 1, b"v")
    leader.from_below(MS, frame_of(2, Accepted(ballot_after(0, 1), 1, 0), storage_id=8))
    assert leader.decisions == []
    assert leader.storage_identity.lost_storage == {2}
    leader.from_below(MS + 1, frame_of(2, Accepted(ballot_after(0, 1), 1, 0), storage_id=8))
    mismatches = [frame for frame in leader.down if frame.kind is Kind.STORAGE_MISMATCH]
    assert [(frame.to, frame.message) for frame in mismatches] == [(2, StorageMismatch(7))], (
        "the leader informs the member once"
    )
    leader.from_below(MS, frame_of(2, Accepted(ballot_after(0, 1), 1, 0)))
    assert leader.decisions == [Decision(1, b"v")]


def test_a_member_that_lost_its_storage_learns_which_members_ignore_it() -> None:
    follower = started()
    follower.from_below(MS, frame_of(2, StorageMismatch(5)))
    follower.from_below(MS, frame_of(3, StorageMismatch(1)))
    assert follower.storage_identity.refused_by == {2}, "member 3 recorded the storage that this member has"


def test_a_forged_base_decides_no_value_that_is_not_accepted() -> None:
    """No correct leader sends such a base. The member must not stop because of it."""
    follower, ballot = started(), ballot_after(0, 2)
    follower.from_below(MS, frame_of(2, Accept(ballot, 1 << 40, 0, 1, ())))
    follower.from_below(MS, frame_of(2, Accept(ballot, 1, 0, 1, (b"only",))))
    assert follower.decisions == [Decision(1, b"only")]


def test_storage_ids_of_peers_survive_a_restart_and_a_compaction() -> None:
    acceptor = Acceptor(1, retained_values=0)
    assert acceptor.storage_id_matches(2, 7)
    acceptor.accept(1, 5, b"v")
    acceptor.decide(1)
    appended = [record for write in acceptor.writes for record in write.records]
    acceptor.compact(1, b"state")
    for records in (appended, acceptor.writes[-1].records):
        again = Acceptor(1, retained_values=0)
        again.recover(records)
        assert not again.storage_id_matches(2, 8)
        assert again.storage_id_matches(2, 7)


def test_a_member_that_lags_beyond_the_kept_values_gets_a_snapshot() -> None:
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
    assert any(report.member == 3 and report.value is None for report in world.reported)
    assert world.verdict().status is Status.VALID
    assert all(
        m.automaton is not None and len(m.automaton._acceptor.log) <= 5 + 4 + world.window
        for m in world.members.values()
    )


def test_compaction_keeps_the_storage_small() -> None:
    world = group()
    world.compact_every = 5
    for _ in range(60):
        world.propose(1, 1)
        world.run(world.now + 20 * MS)
    decided = max(report.instance for report in world.reported)
    assert decided > 60
    assert all(len(member.disk.records()) < 40 for member in world.members.values())


def test_a_restarted_member_continues_from_its_snapshot() -> None:
    acceptor = Acceptor(1, retained_values=2)
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


def test_decisions_are_recorded_only_now_and_then() -> None:
    acceptor = Acceptor(1, retained_values=10)
    for k in range(1, RECORD_DECIDED_EVERY + 1):
        acceptor.accept(k, 7, b"")
        acceptor.decide(k)
    assert [write.may_be_lost for write in acceptor.writes].count(True) == 1


@pytest.mark.parametrize(
    "records",
    [[b""], [b"\x09junk"], [b"\x02" + (5).to_bytes(8) + (7).to_bytes(8) + b"v"], [b"\x03" + (5).to_bytes(8)]],
    ids=["empty", "unknown", "a gap", "decided without values"],
)
def test_inconsistent_records_are_refused(records: list[bytes]) -> None:
    with pytest.raises(StorageError, match="record 0"):
        Consensus(
            1, (1, 2, 3), every_ns=HEARTBEAT_NS, retry_ns=RETRY_NS, stored_records=StoredRecords(1, tuple(records))
        )


def test_invalid_arguments_are_refused() -> None:
    leader = elected()
    with pytest.raises(InvalidOption, match="expected an instance number of 1 or more, not 0"):
        leader.propose(MS, 0, b"")
    with pytest.raises(InvalidOption, match="split it"):
        leader.propose(MS, 1, bytes(leader.max_value_bytes + 1))
    assert leader.propose(MS, 1, bytes(leader.max_value_bytes))
    assert len(leader.down[-1].body) + 48 <= 1400
    with pytest.raises(InvalidOption, match="member 4"):
        Consensus(4, (1, 2, 3), every_ns=HEARTBEAT_NS, retry_ns=RETRY_NS)


BIG = bytes(60_000)


def test_a_leader_waits_for_a_peer_that_answers_and_lags() -> None:
    """Member 2 follows, member 3 answers and knows no decision: it would find the values discarded."""
    leader, ballot = elected(max_frame=65_000, window=1000), ballot_after(0, 1)
    enough = MAX_LAG_BYTES // len(BIG)
    for k in range(1, enough + 2):
        assert leader.may_propose_next(2 * MS)
        assert leader.propose(2 * MS, k, BIG)
        leader.from_below(2 * MS, frame_of(2, Accepted(ballot, k, k)))
    assert leader.decided == enough + 1
    assert not leader.may_propose_next(2 * MS)
    leader.from_below(3 * MS, frame_of(3, Accepted(ballot, enough, 1)))
    assert leader.may_propose_next(3 * MS), "member 3 has the first value"
    assert leader.propose(3 * MS, enough + 2, BIG)
    assert not leader.may_propose_next(3 * MS)
    silent = leader.detector.timeout_ns(3) + 2 * HEARTBEAT_NS
    assert leader.may_propose_next(3 * MS + silent), "the leader does not wait for a member that does not answer"


def test_a_peer_that_does_not_answer_costs_a_leader_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Member 3 knows no decision and does not answer: the leader does not count the bytes that it lacks."""
    leader, ballot = elected(window=1000), ballot_after(0, 1)
    later = 2 * MS + leader.detector.timeout_ns(3) + 2 * HEARTBEAT_NS
    for k in range(1, 501):
        assert leader.propose(later, k, b"value")
        leader.from_below(later, frame_of(2, Accepted(ballot, k, k)))
    first_within, counted = Acceptor.first_within, list[int]()

    def counting(self: Acceptor, first: int, last: int, max_bytes: int) -> int:
        counted.append(last - first + 1)
        return first_within(self, first, last, max_bytes)

    monkeypatch.setattr(Acceptor, "first_within", counting)
    assert leader.may_propose_next(later)
    assert sum(counted) == 0
    leader.from_below(later, frame_of(3, Accepted(ballot, 500, 400)))
    assert leader.may_propose_next(later)
    assert sum(counted) == 100, "it answers again"


def test_a_leader_does_not_wait_for_a_peer_that_needs_a_snapshot() -> None:
    leader, ballot = elected(max_frame=65_000, window=1000, retain=10), ballot_after(0, 1)
    count = MAX_LAG_BYTES // len(BIG) + 1
    for k in range(1, count + 1):
        leader.propose(2 * MS, k, BIG)
        leader.from_below(2 * MS, frame_of(2, Accepted(ballot, k, k)))
    assert not leader.may_propose_next(2 * MS)
    leader.compact(count, b"state")
    assert leader.may_propose_next(2 * MS)
