"""One leader after the other: the ordered stream of a led group, and who may extend it (beyond paper 000 §8).

A leader numbers entries and multicasts them; everybody takes them in sequence. The time of one leader is a reign.
Reigns are numbered, and reign r belongs to member r mod n of the group's list, so that no two members can lead in
one reign. When the leader has been silent for Θ+Δ+3Γ, or has left, the lowest member that lives asks for votes. A
vote is given only by who has not heard the leader for that long either, it promises to take nothing more of an
earlier reign, and it says how far its sender has come. With votes of a majority of the group, and after all that
live can have voted, the candidate fetches what any voter has more of, and begins its reign with a roll of members.

What is assumed: crashes, and a network that delivers within Δ. Then survivors deliver one sequence, without a gap.
What holds without Δ: entries carry the reign of the entry before them, so two sequences that differ are never
joined; a leader that has overslept orders nothing before a majority has confirmed it; one that hears less than a
majority orders nothing; a member that has delivered what the majority has not is fenced out and told so.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from unisono.model.events import StackEvent, Violation, ViolationKind
from unisono.model.ids import EVERYONE
from unisono.model.policy import Policy
from unisono.model.timing import Timing
from unisono.orders.leader import messages as wire
from unisono.orders.leader.messages import (
    ALL_REQUESTS,
    EntryHeader,
    EntryType,
    LastFrames,
    MemberList,
    MissingKind,
    RetransmitRequest,
    StreamHeartbeat,
    Vote,
)
from unisono.orders.leader.stream import WINDOW, FrameSender, OrderedStream, StreamEntry, read_copy, read_entry
from unisono.wire.frame import Frame, Kind

MAX_UNANSWERED_REQUESTS = 8
"""After how many requests in vain a member knows that nobody has what it lacks."""


def heartbeat_timeout_ns(timing: Timing) -> int:
    """After how long without a sign of it a member counts as dead: Θ+Δ+3Γ.

    The leader beats each Θ and trusts itself Γ longer, for timers that are late; what it then sends takes Δ; and two
    clocks may each misjudge a span by Γ. Only then can no entry of its be on the way any more.
    """
    return timing.theta_ns + timing.delta_ns + 3 * timing.gamma_ns


def vote_wait_ns(timing: Timing) -> int:
    """How long after its own suspicion a candidate has the votes of all that live: 2Δ+2Γ."""
    return 2 * timing.delta_ns + 2 * timing.gamma_ns


def leader_change_bound_ns(timing: Timing) -> int:
    """From the last sign of a leader that dies to the new roll, anywhere: Θ+5Δ+7Γ.

    Silence, and Γ for the clock that measures it; the poll, and Γ; Δ for the roll to arrive; and Δ by which members
    differ in when they last heard the leader. Each further member that dies with it may add one poll.
    """
    return heartbeat_timeout_ns(timing) + vote_wait_ns(timing) + 2 * timing.gamma_ns + 2 * timing.delta_ns


def outage_ns(timing: Timing, processing_ns: int) -> int:
    """How much longer than the bound a message takes at most because the leader dies: Δ+p more than nothing is ordered.

    What had been on its way to the leader, or waited there, is lost with it, and takes the whole way once more.
    """
    return timing.delta_ns + processing_ns + leader_change_bound_ns(timing)


class MissingFrames(NamedTuple):
    """Frames of one member's request that have a place in the stream and have not come, from `number` on."""

    request: int
    origin: int
    number: int


class StreamMembership:
    """The members as the ordered stream has them: everybody's roster is the same at the same position."""

    def __init__(self, members: Sequence[int]) -> None:
        self.members = tuple(members)
        self.current_members = self.members
        self.admitted_at = dict.fromkeys(members, 0)
        """The position at which each was last admitted, or removed."""
        self.leaving: set[int] = set()
        """Who has said its last word, and is to leave."""
        self.departed: set[int] = set()
        self.last_departure_position = 0

    def leader_of(self, term: int) -> int:
        """Whose a reign is."""
        return self.members[term % len(self.members)]

    def next_term_of(self, term: int, member: int) -> int:
        """The first reign of a member after another reign."""
        return term + 1 + (self.members.index(member) - term - 1) % len(self.members)

    def is_current_member(self, member: int) -> bool:
        """Whether a member is on the roll."""
        return member in self.current_members

    def may_readmit(self, member: int, position: int) -> bool:
        """Whether a member that was removed, and has come as far as `position`, may be admitted again."""
        gone_for_good = member in self.departed or member in self.leaving
        return not self.is_current_member(member) and not gone_for_good and position >= self.admitted_at[member]

    def majority(self) -> int:
        """How many of the group, without those that left in order, are more than half of it."""
        return (len(self.members) - len(self.departed)) // 2 + 1

    def apply_member_list(self, entry: StreamEntry) -> None:
        """A roll has been taken."""
        roll = entry.member_list()
        for cut in roll.last_frames:
            if cut.request == ALL_REQUESTS:
                self.departed.add(cut.member)
                self.last_departure_position = entry.position
        for member in sorted({*roll.members} ^ {*self.current_members}):
            self.admitted_at[member] = entry.position
        self.current_members = roll.members


class ElectionState:
    """One member's own candidacy, and whom it believes to be dead."""

    def __init__(self) -> None:
        self.is_candidate = False
        self.deferred_vote_request: tuple[int, int] | None = None
        """Somebody else's candidacy that cannot be answered yet: (member, reign)."""
        self.suspected: set[int] = set()
        self.votes: dict[int, Vote] = {}
        self.poll_ends_at = 0
        self.fetching_from = 0
        """The voter from whom entries are being fetched."""
        self.fetching_frames = False
        """Whether it is frames of those entries that are being fetched now."""

    def start_poll(self, candidate: int, vote: Vote, ends_at: int) -> None:
        """Ask for votes; one's own is the first."""
        self.is_candidate, self.fetching_from, self.fetching_frames, self.deferred_vote_request = True, 0, False, None
        self.votes, self.poll_ends_at = {candidate: vote}, ends_at

    def end_poll(self) -> None:
        """It is decided, or given up."""
        self.is_candidate, self.fetching_from, self.deferred_vote_request = False, 0, None

    def most_advanced_voter(self, candidate: int) -> int:
        """The voter that has come furthest; oneself if nobody has come further."""
        return max(self.votes, key=lambda m: (self.votes[m].last_term, self.votes[m].position, m == candidate))


class FollowerHeartbeats:
    """What a leader has heard of each member."""

    def __init__(self, member: int, members: Sequence[int], timing: Timing) -> None:
        self._member = member
        self._timeout_ns = heartbeat_timeout_ns(timing)
        self._last_received = dict.fromkeys(members, 0)
        self._echoes = dict.fromkeys(members, 0)
        self.acked = dict.fromkeys(members, 0)
        """How far each has delivered."""
        self.trusted_from = 0
        """Members count as supporters when they have answered a beat that was sent from then on."""

    def assume_alive_until(self, until: int) -> None:
        """Nobody is silent before: there was no hearing them, or they may not have begun."""
        for member, heard in self._last_received.items():
            self._last_received[member] = max(until, heard)

    def on_heartbeat(self, member: int, now: int, heartbeat: StreamHeartbeat) -> None:
        """A beat has come."""
        self._last_received[member] = max(now, self._last_received[member])
        self._echoes[member] = max(self._echoes[member], heartbeat.echo_ns)
        self.acked[member] = max(self.acked[member], heartbeat.position)

    def supporters(self, members: Sequence[int], now: int) -> int:
        """How many on the roll are known to follow, this member included."""
        since, trusted = now - self._timeout_ns, self.trusted_from
        heard, echoes = self._last_received, self._echoes
        return 1 + sum(1 for m in members if m != self._member and heard[m] >= since and echoes[m] >= trusted)

    def unresponsive(self, members: Sequence[int], now: int) -> list[int]:
        """Who on the roll has not been heard for too long."""
        return [m for m in members if m != self._member and self._last_received[m] < now - self._timeout_ns]


class LeaderElection:
    """One member's part in it. The order on top takes `accepted` entries and appends new ones while it may."""

    def __init__(
        self,
        policy: Policy,
        down: list[Frame],
        events: list[StackEvent],
        ignored: Counter[str],
        *,
        last_frames_of: Callable[[int], LastFrames | None],
        missing_frames_of: Callable[[Sequence[int]], list[MissingFrames]],
    ) -> None:
        self.frame_sender = FrameSender(policy, down)
        self.events = events
        self.ignored = ignored
        self.member = policy.member
        self.timing = policy.timing
        self._last_frames_of = last_frames_of
        """How far the frames of a member that is being removed count; the order knows."""
        self._missing_frames_of = missing_frames_of
        """Frames of these members that have a place in the stream and have not come: (request, member, number)."""
        self.received_copies: deque[Frame] = deque()
        self.frame_requests: deque[tuple[int, RetransmitRequest]] = deque()
        """Members that need other members' frames, for the order to serve."""
        # Reigns.
        self.term = self.promised_term = 0
        self.fenced = False
        self.membership = StreamMembership(policy.view.members)
        # The stream.
        self.stream = OrderedStream()
        self._leader_position = self._missing_at_last_heartbeat = self._unanswered_requests = 0
        # Signs of life.
        self.started = False
        self._next_heartbeat = self._leader_alive_at = 0
        self._leader_last_received_ns = 0
        """When the leader was really last heard: what the gap counts from."""
        self._leader_lost_at = self._leader_heartbeat_sent_ns = 0
        self._follower_heartbeats = FollowerHeartbeats(self.member, policy.view.members, self.timing)
        # The election.
        self._election_state = ElectionState()
        self._no_majority_reported = False

    # -- questions -------------------------------------------------------------------------------------------

    @property
    def leader(self) -> int | None:
        """Whom this member follows now."""
        return (
            self.membership.leader_of(self.term)
            if self.promised_term == self.term and not self._has_leader_departed()
            else None
        )

    @property
    def leading(self) -> bool:
        """Whether that is this member itself."""
        return self.leader == self.member and not self.fenced

    def _has_leader_departed(self) -> bool:
        return self.membership.leader_of(self.term) in self.membership.departed

    def may_order(self, now: int) -> bool:
        """Whether this member leads, and can be sure of it."""
        if not self.leading or not self.started or self.stream.position - self.stream.stable >= WINDOW:
            return False
        return self._follower_heartbeats.supporters(self.membership.current_members, now) >= self.membership.majority()

    # -- inputs ----------------------------------------------------------------------------------------------

    def start(self, now: int, first_slot: int) -> None:
        """The group begins, everybody in it; others may know that up to Δ later, and their first beat takes Δ."""
        self.started = True
        self.stream.last_slot = max(self.stream.last_slot, first_slot)
        self._leader_alive_at, self._leader_last_received_ns = now + 2 * self.timing.delta_ns, now
        self._follower_heartbeats.assume_alive_until(now + 2 * self.timing.delta_ns)
        self._send_heartbeat(now)

    def detect_own_pause(self, now: int) -> None:
        """Before anything else: has this member slept? Then what it knows of others is old."""
        if not self.started or now <= self._next_heartbeat + self.timing.gamma_ns:
            return
        self._leader_alive_at = max(self._leader_alive_at, now)
        self._follower_heartbeats.assume_alive_until(now)
        if self.leading:
            self._follower_heartbeats.trusted_from = now
            self._send_heartbeat(now, wants_answer=True)
        else:
            self._next_heartbeat = now

    def from_below(self, now: int, frame: Frame) -> None:
        """A frame that is not the order's own."""
        self.detect_own_pause(now)
        body = bytes(frame.body) if frame.kind is not Kind.ORDERED else b""
        if frame.kind is Kind.ORDERED and (place := wire.decode_entry_header(frame.body)) is not None:
            self._on_ordered(now, frame, place)
        elif frame.kind is Kind.STREAM_HEARTBEAT and (beat := wire.decode_stream_heartbeat(body)) is not None:
            self._on_heartbeat(now, frame, beat)
        elif frame.kind is Kind.VOTE_REQUEST and (reign := wire.decode_vote_request(body)) is not None:
            self._on_vote_request(now, frame.sender, reign)
        elif frame.kind is Kind.VOTE and (vote := wire.decode_vote(body)) is not None:
            if self._election_state.is_candidate and vote.term == self.promised_term:
                self._election_state.votes[frame.sender] = vote
                self._count_votes(now)
        elif frame.kind is Kind.RETRANSMIT_REQUEST and (need := wire.decode_retransmit_request(body)) is not None:
            self._on_retransmit_request(now, frame.sender, need)

    def wake(self, now: int) -> None:
        """Time has passed."""
        if not self.started:
            return
        self.detect_own_pause(now)
        if now >= self._next_heartbeat:
            self._send_heartbeat(now)
            self._request_missing_entries(now)
        self._check_leader_timeout(now)
        if self._election_state.is_candidate:
            self._count_votes(now)
        elif self.leading and now > self._follower_heartbeats.trusted_from + heartbeat_timeout_ns(self.timing):
            self._report_no_majority(self._follower_heartbeats.supporters(self.membership.current_members, now))

    def wake_at(self) -> int | None:
        """The next beat, or the moment at which silence has lasted too long."""
        if not self.started:
            return None
        times, ballot = [self._next_heartbeat], self._election_state
        if not self.leading and not ballot.is_candidate:
            times += [self._become_candidate_at() + 1] + [self._leader_timeout_at() + 1] * (
                ballot.deferred_vote_request is not None
            )
        elif ballot.is_candidate and not ballot.fetching_from and len(ballot.votes) >= self.membership.majority():
            times.append(ballot.poll_ends_at + 1)
        return min(times)

    # -- signs of life ---------------------------------------------------------------------------------------

    def _send_heartbeat(self, now: int, *, wants_answer: bool = False) -> None:
        self._next_heartbeat = self.timing.end_of(self.timing.slot_of(now))
        if self._election_state.is_candidate:
            self.frame_sender.send(now, Kind.VOTE_REQUEST, wire.encode_vote_request(self.promised_term))
            self._request_missing_frames(now)
        elif self.leading:
            self._follower_heartbeats.acked[self.member] = self.stream.delivered_position
            self.stream.stable = max(
                self.stream.stable, min(self._follower_heartbeats.acked[m] for m in self.membership.current_members)
            )
            self.stream.prune()
            beat = StreamHeartbeat(self.term, self.stream.position, self.stream.stable, 0, wants_answer)
            self.frame_sender.send(now, Kind.STREAM_HEARTBEAT, wire.encode_stream_heartbeat(beat))
        elif self.leader is not None:
            beat = StreamHeartbeat(self.term, self.stream.delivered_position, 0, self._leader_heartbeat_sent_ns, False)
            self.frame_sender.send(now, Kind.STREAM_HEARTBEAT, wire.encode_stream_heartbeat(beat), to=self.leader)

    def _on_heartbeat(self, now: int, frame: Frame, heartbeat: StreamHeartbeat) -> None:
        sender = frame.sender
        if heartbeat.term < self.term:
            self.ignored["an old reign"] += 1
            if sender == self.membership.leader_of(heartbeat.term) and not self._election_state.is_candidate:
                # Only a leader that does not know better beats to everyone: it hears that there is another reign.
                answer = StreamHeartbeat(self.term, self.stream.delivered_position, 0, 0, False)
                self.frame_sender.send(now, Kind.STREAM_HEARTBEAT, wire.encode_stream_heartbeat(answer), to=sender)
            return
        begun = heartbeat.term == self.promised_term != self.term and sender == self.membership.leader_of(
            heartbeat.term
        )
        if heartbeat.term > self.promised_term or begun:
            self._adopt_term(now, heartbeat.term)
        if heartbeat.term != self.term or self.promised_term != self.term:
            return
        if sender == self.leader:
            self._record_leader_alive(now)
            self._leader_position = max(self._leader_position, heartbeat.position)
            self.stream.stable = max(self.stream.stable, heartbeat.stable)
            self._leader_heartbeat_sent_ns = frame.sent_ns
            self.stream.prune()
            if heartbeat.wants_answer:
                self._send_heartbeat(now)
        elif self.leading:
            self._follower_heartbeats.on_heartbeat(sender, now, heartbeat)
            if self.membership.may_readmit(sender, heartbeat.position) and self.may_order(now):
                self.append_member_list(now, (*self.membership.current_members, sender))

    def _record_leader_alive(self, now: int) -> None:
        self._leader_alive_at = max(self._leader_alive_at, now)
        self._leader_last_received_ns = max(self._leader_last_received_ns, now)

    def update_member_list(self, now: int) -> None:
        """The leader keeps the roll: it removes who is silent, and who has said its last word."""
        if not self.may_order(now):
            return
        silent = self._follower_heartbeats.unresponsive(self.membership.current_members, now)
        if silent:
            self.append_member_list(now, tuple(m for m in self.membership.current_members if m not in silent))
        # One departure at a time, so that the majorities before and after it have a member in common.
        for member in (
            sorted(self.membership.leaving & set(self.membership.current_members))
            if len(self.membership.current_members) > 1
            else ()
        ):
            self._follower_heartbeats.acked[self.member] = self.stream.delivered_position
            known = sum(
                1
                for m in self.membership.current_members
                if self._follower_heartbeats.acked[m] >= self.membership.last_departure_position
            )
            if known >= self.membership.majority() and self.leading:
                self.append_member_list(now, tuple(m for m in self.membership.current_members if m != member))

    # -- the stream ------------------------------------------------------------------------------------------

    def append(self, now: int, entry_type: EntryType, frame: Frame, payload: bytes = b"") -> None:
        """The next entry; only while `may_order`."""
        entry = self.stream.next_entry(self.term, self.timing.slot_of(now), entry_type, frame, payload)
        self.frame_sender.send_entry(now, entry, self.promised_term)
        self._accept(now, entry)

    def append_member_list(self, now: int, members: tuple[int, ...]) -> None:
        """Members come or go."""
        gone = [m for m in self.membership.current_members if m not in members]
        cuts = [
            LastFrames(m, ALL_REQUESTS, 0) if m in self.membership.leaving else self._last_frames_of(m) for m in gone
        ]
        roll = MemberList(tuple(sorted(members)), tuple(cut for cut in cuts if cut is not None))
        self.append(
            now, EntryType.MEMBER_LIST, self.frame_sender.make_frame(now, Kind.ORDERED), wire.encode_member_list(roll)
        )

    def _on_ordered(self, now: int, frame: Frame, header: EntryHeader) -> None:
        sender = frame.sender
        if header.term < self.promised_term:
            self.ignored["an old reign"] += 1
            return
        if header.term > self.promised_term or (
            header.term != self.term and sender == self.membership.leader_of(header.term)
        ):
            self._adopt_term(now, header.term)
        if sender == self.leader:
            self._record_leader_alive(now)
        if header.entry_type is EntryType.COPY:
            self.received_copies.append(read_copy(frame, header))
            return
        entry = read_entry(frame, header)
        if self.stream.contradicts(entry):
            self.fence(entry.position)
        elif entry.position <= self.stream.position:
            self.ignored["duplicate"] += 1
        elif not self.stream.store_ahead(entry):
            self.ignored["too far ahead"] += 1
        else:
            self._leader_position = max(self._leader_position, entry.position)
            self._drain(now)

    def _drain(self, now: int) -> None:
        while (entry := self.stream.pop_ahead()) is not None:
            if self.stream.contradicts(entry):
                self.fence(entry.position)
                return
            self._accept(now, entry)
        if self._election_state.is_candidate and self._election_state.fetching_from:
            self._count_votes(now)

    def _accept(self, now: int, entry: StreamEntry) -> None:
        before = self.stream.last_term
        self._unanswered_requests = 0
        self.stream.accept(entry)
        if entry.entry_type is EntryType.MEMBER_LIST:
            self._adopt_member_list(now, entry, before)

    def _adopt_member_list(self, now: int, entry: StreamEntry, previous_term: int) -> None:
        self.membership.apply_member_list(entry)
        if entry.term == previous_term:
            return
        old, new = self.membership.leader_of(previous_term), self.membership.leader_of(entry.term)
        self._election_state.suspected.clear()
        self._no_majority_reported = False
        if old == self.member != new and old not in self.membership.departed:
            self.events.append(_stepped_down_violation(new, entry.slot))
        elif old != new and old not in self.membership.departed:
            self.events.append(_leader_lost_violation(old, new, now - self._leader_lost_at, entry.slot))

    def _request_missing_entries(self, now: int) -> None:
        """Ask again for what was missing at the last beat already; a datagram may have been lost."""
        stream, source = (
            self.stream,
            self._election_state.fetching_from if self._election_state.is_candidate else self.leader,
        )
        lacking = stream.position + 1 if self._leader_position > stream.position or stream.has_holes() else 0
        if lacking and lacking == self._missing_at_last_heartbeat and source and source != self.member:
            self._unanswered_requests += 1
            if self._unanswered_requests > MAX_UNANSWERED_REQUESTS and stream.has_holes():
                self.fence(stream.position)
                return
            self.frame_sender.request_retransmit(
                now, RetransmitRequest(self.promised_term, MissingKind.ENTRIES, lacking, 0, 0), source
            )
        self._missing_at_last_heartbeat = lacking

    def request_frames(self, now: int, origin: int, request: int, number: int) -> None:
        """Ask for a member's frames: the leader, or, as the leader, that member."""
        source = origin if self.leader in {self.member, None} else self.leader
        if source is not None and source != self.member:
            self.frame_sender.request_retransmit(
                now, RetransmitRequest(self.promised_term, MissingKind.FRAMES, request, origin, number), source
            )

    def _on_retransmit_request(self, now: int, sender: int, request: RetransmitRequest) -> None:
        if request.missing is MissingKind.FRAMES:
            self.frame_requests.append((sender, request))
        elif request.term == self.promised_term:
            for entry in self.stream.entries_from(request.first):
                self.frame_sender.send_entry(now, entry, self.promised_term, to=sender)

    def fence(self, position: int) -> None:
        """Another order was agreed on than the one delivered here: this member must not go on."""
        if not self.fenced:
            self.fenced = True
            self.events.append(_fenced_violation(self.member, position))

    # -- the election ----------------------------------------------------------------------------------------

    def _leader_timeout_at(self) -> int:
        return 0 if self._has_leader_departed() else self._leader_alive_at + heartbeat_timeout_ns(self.timing)

    def _become_candidate_at(self) -> int:
        """When this member asks for votes, if it has not been asked by then."""
        left = [m for m in self._live_members() if m != self.membership.leader_of(self.promised_term)]
        if self.member not in left:
            return 1 << 62
        # Who left in order is not waited for. Who was then promised a reign is: it asks each Θ, and two must not order.
        vacant = self._has_leader_departed() and self.promised_term == self.term
        since = self._leader_alive_at + (0 if vacant else heartbeat_timeout_ns(self.timing))
        return since + left.index(self.member) * vote_wait_ns(self.timing)

    def _live_members(self) -> list[int]:
        return [
            m
            for m in self.membership.current_members
            if m not in self._election_state.suspected and m not in self.membership.departed
        ]

    def _check_leader_timeout(self, now: int) -> None:
        if self.leading or self._election_state.is_candidate or self.fenced:
            return
        if self._election_state.deferred_vote_request is not None and now > self._leader_timeout_at():
            asked_by, self._election_state.deferred_vote_request = self._election_state.deferred_vote_request, None
            self._on_vote_request(now, *asked_by)
        elif now > self._become_candidate_at():
            self._become_candidate(now)

    def _become_candidate(self, now: int) -> None:
        """Ask everyone for the next reign that is this member's own."""
        self._election_state.suspected.add(self.membership.leader_of(self.promised_term))
        self._election_state.suspected.discard(self.member)
        self._record_leader_lost(now)
        self.promised_term = self.membership.next_term_of(self.promised_term, self.member)
        self._election_state.start_poll(self.member, self._own_vote(), now + vote_wait_ns(self.timing))
        self._send_heartbeat(now)
        self._count_votes(now)

    def _record_leader_lost(self, now: int) -> None:
        """The leader is followed no longer: from when on is what the gap counts from."""
        if self.promised_term == self.term:
            self._leader_lost_at = min(self._leader_last_received_ns, now)

    def _on_vote_request(self, now: int, sender: int, term: int) -> None:
        alone = (
            self.leading
            and self._follower_heartbeats.supporters(self.membership.current_members, now) < self.membership.majority()
        )
        if alone and term > self.promised_term and sender == self.membership.leader_of(term):
            # This leader is of no use to anybody: whoever asks may find the majority that it lacks.
            self._vote_for(now, sender, term)
            return
        if self.leading or (self._election_state.is_candidate and self.membership.leader_of(self.term) == self.member):
            # Somebody could not hear this leader for a while and promised itself away: a new reign takes it back.
            if term > self.promised_term and (self._election_state.is_candidate or self.may_order(now)):
                self._election_state.is_candidate = False
                self.promised_term = term
                self._become_candidate(now)
            return
        if (
            term == self.promised_term
            and sender == self.membership.leader_of(term) != self.member
            and not self._election_state.is_candidate
        ):
            self._vote_for(now, sender, term)
        elif term <= self.promised_term or sender != self.membership.leader_of(term):
            self.ignored["an old reign"] += 1
        elif (
            sender == self.membership.leader_of(self.term)
            or now > self._leader_timeout_at()
            or self.promised_term != self.term
        ):
            self._vote_for(now, sender, term)
        else:
            self._election_state.deferred_vote_request = (sender, term)

    def _vote_for(self, now: int, candidate: int, term: int) -> None:
        if term == self.term:
            return
        self._record_leader_lost(now)
        self._election_state.suspected.update(
            {self.membership.leader_of(self.promised_term)} - {candidate, self.member}
        )
        self.promised_term = term
        self._election_state.end_poll()
        # The candidate has the time of its poll before it is taken for dead in turn.
        self._leader_alive_at = max(self._leader_alive_at, now + vote_wait_ns(self.timing))
        self.frame_sender.send(now, Kind.VOTE, wire.encode_vote(self._own_vote()), to=candidate)

    def _own_vote(self) -> Vote:
        return Vote(self.promised_term, self.stream.position, self.stream.last_term)

    def _count_votes(self, now: int) -> None:
        """Is it decided?"""
        ballot = self._election_state
        if len(ballot.votes) < self.membership.majority():
            if now > ballot.poll_ends_at:
                self._report_no_majority(len(ballot.votes))
            return
        if now <= ballot.poll_ends_at and any(m not in ballot.votes for m in self._live_members()):
            return
        best = ballot.most_advanced_voter(self.member)
        if best == self.member or ballot.votes[best].position <= self.stream.position:
            # Of entries that were fetched frames may be missing; otherwise they have been asked for with the votes.
            if (
                not ballot.fetching_from
                or (ballot.fetching_frames and now > ballot.poll_ends_at)
                or not self._request_missing_frames(now)
            ):
                self._begin_term(now)
            elif not ballot.fetching_frames:
                ballot.fetching_frames, ballot.poll_ends_at = True, now + vote_wait_ns(self.timing)
        elif ballot.fetching_from != best:
            ballot.fetching_from, ballot.poll_ends_at = best, now + vote_wait_ns(self.timing)
            self.frame_sender.request_retransmit(
                now, RetransmitRequest(self.promised_term, MissingKind.ENTRIES, self.stream.position + 1, 0, 0), best
            )
        elif now > ballot.poll_ends_at:
            # Who has more has died since: what only the dead have is nobody's.
            del ballot.votes[best]
            self._count_votes(now)

    def _request_missing_frames(self, now: int) -> bool:
        """Ask for frames of those that are gone: what a voter has delivered of them has to count. Whether any lack."""
        needs = self._missing_frames_of(
            [m for m in self.membership.current_members if m not in self._election_state.votes]
        )
        for request, origin, number in needs:
            self.frame_sender.request_retransmit(
                now, RetransmitRequest(self.promised_term, MissingKind.FRAMES, request, origin, number), EVERYONE
            )
        return bool(needs)

    def _report_no_majority(self, reachable_count: int) -> None:
        if reachable_count >= self.membership.majority():
            self._no_majority_reported = False
        elif not self._no_majority_reported:
            self._no_majority_reported = True
            self.events.append(_no_majority_violation(reachable_count, len(self.membership.members)))

    def _begin_term(self, now: int) -> None:
        voters = tuple(sorted(m for m in self._election_state.votes if m not in self.membership.departed))
        self._election_state.end_poll()
        self.term = self.promised_term
        self.stream.forget_ahead()
        self._follower_heartbeats.assume_alive_until(now + 2 * self.timing.delta_ns)
        for member in self.membership.members:
            self._follower_heartbeats.acked[member] = self.stream.stable if member in self._election_state.votes else 0
        self._follower_heartbeats.trusted_from = 0
        self.append_member_list(now, voters)
        self._send_heartbeat(now)

    def _adopt_term(self, now: int, term: int) -> None:
        """Somebody else's reign has begun."""
        self._record_leader_lost(now)
        self.term = self.promised_term = term
        self._election_state.end_poll()
        self.stream.forget_ahead()
        self._leader_position = 0
        self._leader_alive_at = max(self._leader_alive_at, now)
        # What was ordered before this reign and is missing here is asked for at once.
        self._missing_at_last_heartbeat = self.stream.position + 1


def _stepped_down_violation(new_leader: int, slot: int) -> Violation:
    """To one that slept, or was cut off."""
    return Violation(
        ViolationKind.DEPOSED,
        f"this member was not heard and leads no longer; member {new_leader} does",
        new_leader,
        slot,
    )


def _leader_lost_violation(old_leader: int, new_leader: int, gap_ns: int, slot: int) -> Violation:
    """To all others, with what it has cost."""
    gap_ms = max(0, gap_ns) / 1e6
    text = f"member {old_leader} is gone; member {new_leader} leads. Nothing was ordered for {gap_ms:.3f} ms"
    return Violation(ViolationKind.LEADER_LOST, text, old_leader, slot)


def _fenced_violation(member: int, position: int) -> Violation:
    """To one that must not go on."""
    text = f"this member was cut off: the group's order from position {position} on is not the one known here"
    return Violation(ViolationKind.FENCED_OUT, text, member)


def _no_majority_violation(reachable_count: int, member_count: int) -> Violation:
    """To one that can do nothing for now."""
    text = f"{reachable_count} of {member_count} members can be reached: nothing is ordered until more can"
    return Violation(ViolationKind.NO_MAJORITY, text)
