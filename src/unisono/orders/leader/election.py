"""Election of a leader and the stream of entries that it orders (beyond paper 000 §8, which assumes a leader).

The leader numbers entries and multicasts them; every member accepts them in sequence (`stream`). The time of one leader
is a term. Terms are numbered, and term t belongs to member t mod n of the group's list, so no two members can lead in
the same term.

Electing: when the leader has been unresponsive for Θ+Δ+3Γ, or has left, the lowest live member asks for votes. A member
votes only if it has not received anything from the leader for that long either. Its vote promises to accept nothing
more of an earlier term, and states the end of its stream. The candidate waits for votes of a majority of the group, and
until every live member can have voted. Then it fetches the entries that any voter has beyond its own, and starts its
term with a member list of those that voted.

Guarantees: if members only crash and the network delivers within Δ, the survivors deliver one sequence without gaps.
Without the bound Δ, the following still holds:
- Entries carry the term of the entry before them, so two different sequences are never joined.
- A leader that was paused orders nothing until a majority has confirmed it.
- A leader that does not hear from a majority orders nothing.
- A member that has delivered entries that the majority does not have is fenced: it reports this and leaves.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from unisono.errors import InvariantViolated
from unisono.model.events import StackEvent, Violation, ViolationKind
from unisono.model.policy import Policy
from unisono.model.status import Standing
from unisono.model.timing import Timing
from unisono.model.units import EVERYONE
from unisono.orders.leader.messages import (
    ALL_FRAMES,
    ALL_REQUESTS,
    EntryType,
    LastFrames,
    MemberList,
    MissingKind,
    Ordered,
    RetransmitRequest,
    StreamHeartbeat,
    Vote,
    VoteRequest,
)
from unisono.orders.leader.stream import (
    FrameSender,
    OrderedStream,
    RetransmitTimer,
    StreamEntry,
    read_copy,
    read_entry,
)
from unisono.wire.frame import Frame

NEVER_NS = 1 << 62


# -- time-outs -------------------------------------------------------------------------------------------------------


def heartbeat_timeout_ns(timing: Timing) -> int:
    """How long a member may be unresponsive before it counts as crashed: Θ+Δ+3Γ.

    The leader sends a heartbeat each Θ and keeps ordering for Γ longer, because timers may be late. Its last frame
    takes Δ. Two clocks may each be wrong by Γ over such a span. After that, no entry of a crashed leader can arrive.
    """
    return timing.theta_ns + timing.delta_ns + 3 * timing.gamma_ns


def vote_wait_ns(timing: Timing) -> int:
    """How long after it suspected the leader a candidate has received the votes of all live members: 2Δ+2Γ."""
    return 2 * timing.delta_ns + 2 * timing.gamma_ns


def leader_change_bound_ns(timing: Timing) -> int:
    """The longest time from the last frame of a crashed leader until all survivors follow a new one: Θ+5Δ+7Γ.

    A survivor follows the new leader when it has its member list.

    This is the sum of:
    - the heartbeat time-out, and Γ for the clock that measures it;
    - the wait for votes, and Γ for the clock that measures it;
    - Δ for the member list to arrive;
    - Δ because the leader's last frame may reach some members that much later than others.

    Each further member that crashes with the leader may add one wait for votes.
    """
    return heartbeat_timeout_ns(timing) + vote_wait_ns(timing) + 2 * timing.gamma_ns + 2 * timing.delta_ns


def outage_ns(timing: Timing, processing_ns: int) -> int:
    """How much longer than the bound a message may take if the leader crashes: the change of leader plus Δ+p.

    A message on its way to the leader, or waiting there for p, is lost with the leader and starts again.
    """
    return timing.delta_ns + processing_ns + leader_change_bound_ns(timing)


def alive_after_pause(alive_at: int, now: int, late_ns: int, *, is_first: bool) -> int:
    """When a peer last counted as alive, after this member was paused until `now` and its timer was late by `late_ns`.

    After the first pause since a frame of the peer, the whole time-out starts again: the pause began up to Θ before the
    timer was due, and frames of the peer may still wait in the socket. Later pauses only do not count as silence. So a
    member whose timers are always late finds out that a peer has crashed.
    """
    return max(alive_at, now if is_first else min(now, alive_at + late_ns))


# -- one member's knowledge of the others ----------------------------------------------------------------------------


class MissingFrames(NamedTuple):
    """Frames of member `origin` that have not arrived here: `frame_count` frames from frame `number` on.

    With the timestamp leader, `request` is the stamp request that they belong to, and the stream has ordered them.
    """

    request: int
    origin: int
    number: int
    frame_count: int = ALL_FRAMES


class StreamMembership:
    """The members according to the ordered stream: the same at every member at the same position."""

    def __init__(self, members: Sequence[int]) -> None:
        self.members = tuple(members)
        """The members with which the group started."""
        self.current_members = self.members
        self.admitted_at = dict.fromkeys(members, 0)
        """By member, the position in the stream at which it was last admitted or removed."""
        self.leaving: set[int] = set()
        """Members whose last frame was delivered; the leader removes them next."""
        self.departed: set[int] = set()
        """Members that left in an orderly way."""
        self.last_departure_position = 0

    def leader_of(self, term: int) -> int:
        """The member that leads if the term starts; no other member can lead in it."""
        return self.members[term % len(self.members)]

    def next_term_of(self, term: int, member: int) -> int:
        """The first term after `term` that belongs to `member`."""
        return term + 1 + (self.members.index(member) - term - 1) % len(self.members)

    def is_current_member(self, member: int) -> bool:
        """Whether the last member list in the stream contains this member."""
        return member in self.current_members

    def may_readmit(self, member: int, position: int) -> bool:
        """Whether the leader may readmit a removed member that has delivered the stream up to `position`."""
        has_left = member in self.departed or member in self.leaving
        return not self.is_current_member(member) and not has_left and position >= self.admitted_at[member]

    def majority(self) -> int:
        """The size of a majority of the members that the group started with, not counting those that left normally."""
        return (len(self.members) - len(self.departed)) // 2 + 1

    def apply_member_list(self, entry: StreamEntry) -> None:
        """Adopt a MEMBER_LIST entry that the stream has accepted."""
        member_list = entry.member_list()
        for last_frames in member_list.last_frames:
            if last_frames.request == ALL_REQUESTS:
                self.departed.add(last_frames.member)
                self.last_departure_position = entry.position
        for member in sorted({*member_list.members} ^ {*self.current_members}):
            self.admitted_at[member] = entry.position
        self.current_members = member_list.members


class ElectionState:
    """This member's own candidacy, and the members that it suspects to have crashed."""

    def __init__(self) -> None:
        self.is_candidate = False
        self.deferred_vote_request: tuple[int, int] | None = None
        """(candidate, term) of a vote request to answer when the leader has timed out here too."""
        self.suspected: set[int] = set()
        self.votes: dict[int, Vote] = {}
        self.poll_ends_at = 0
        self.was_paused = False
        """Whether this candidate was paused when its poll ended. Then it waits for the end of another poll."""
        self.fetching_from = 0
        """The voter from which this candidate fetches entries; 0 if none."""
        self.fetching_until = 0
        """The last position of the stream that this candidate fetches."""
        self.fetching_frames = False
        """Whether the entries are complete and the candidate now fetches frames that they order."""

    def start_poll(self, candidate: int, vote: Vote, ends_at: int) -> None:
        """Become a candidate until `ends_at`; this member's own vote is the first one."""
        self.is_candidate, self.fetching_from, self.fetching_until = True, 0, 0
        self.fetching_frames, self.deferred_vote_request, self.was_paused = False, None, False
        self.votes, self.poll_ends_at = {candidate: vote}, ends_at

    def end_poll(self) -> None:
        """Stop being a candidate: this member has won, or follows another one."""
        self.is_candidate, self.fetching_from, self.deferred_vote_request = False, 0, None

    def most_advanced_voter(self, candidate: int) -> int:
        """The voter whose stream ends last; the candidate itself if no other voter has more."""
        return max(self.votes, key=lambda m: (self.votes[m].last_term, self.votes[m].position, m == candidate))


class FollowerHeartbeats:
    """The leader's record of the heartbeats that it received from its followers."""

    def __init__(self, member: int, members: Sequence[int], timing: Timing) -> None:
        self._member = member
        self._timeout_ns = heartbeat_timeout_ns(timing)
        self._last_received = dict.fromkeys(members, 0)
        self._paused_since_frame: set[int] = set()
        """The members that have sent nothing since this member was last paused."""
        self._echoes = dict.fromkeys(members, 0)
        self.acked = dict.fromkeys(members, 0)
        """By member, the position up to which it has delivered the stream, according to its last heartbeat."""
        self.trusted_from = 0
        """A follower counts as a supporter if it has answered a heartbeat that was sent at this time or later."""
        self._confirmed_at = 0
        """When a majority last supported this leader before a pause, without the time of later pauses."""

    def assume_alive_until(self, until: int) -> None:
        """Count no member as unresponsive before `until`: it may not have started, or its frames could not arrive."""
        for member, last_received in self._last_received.items():
            self._last_received[member] = max(until, last_received)

    def on_pause(self, now: int, late_ns: int) -> None:
        """Do not count a pause of this member as silence of the others."""
        for member, last_received in self._last_received.items():
            is_first = member not in self._paused_since_frame
            self._last_received[member] = alive_after_pause(last_received, now, late_ns, is_first=is_first)
            self._paused_since_frame.add(member)

    def distrust_until_answered(self, now: int, late_ns: int, *, had_majority: bool) -> None:
        """As a leader that was paused, count only followers that answer a heartbeat that is sent from now on."""
        self.trusted_from = now
        self._confirmed_at = alive_after_pause(self._confirmed_at, now, late_ns, is_first=had_majority)

    def trust_all(self) -> None:
        """As a new leader, count all followers: their votes are as good as answers."""
        self.trusted_from = self._confirmed_at = 0

    def may_await_answers(self, now: int) -> bool:
        """Whether this leader was paused and answers of a majority may still be on their way."""
        return now <= self._confirmed_at + self._timeout_ns

    def on_frame(self, member: int, now: int) -> None:
        """Record that a follower has sent something to its leader."""
        self._last_received[member] = max(now, self._last_received[member])
        self._paused_since_frame.discard(member)

    def on_heartbeat(self, member: int, now: int, heartbeat: StreamHeartbeat) -> None:
        """Record a follower's heartbeat."""
        self.on_frame(member, now)
        self._echoes[member] = max(self._echoes[member], heartbeat.echo_ns)
        self.acked[member] = max(self.acked[member], heartbeat.position)

    def supporters(self, members: Sequence[int], now: int) -> int:
        """How many of `members` certainly follow this leader; the leader itself counts too."""
        since, trusted = now - self._timeout_ns, self.trusted_from
        received, echoes = self._last_received, self._echoes
        return 1 + sum(1 for m in members if m != self._member and received[m] >= since and echoes[m] >= trusted)

    def unresponsive(self, members: Sequence[int], now: int) -> list[int]:
        """The members whose heartbeats have timed out."""
        return [m for m in members if m != self._member and self._last_received[m] < now - self._timeout_ns]


# -- the automaton ---------------------------------------------------------------------------------------------------


class LeaderElection:
    """One member's part in the election of a leader and in the ordered stream.

    The order reads entries from `stream.accepted`, and appends new ones while `may_order`. It also answers
    `frame_requests` and reads `received_copies`; only the timestamp leader has any.
    """

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
        """Frames are appended to `down`, events to `events`; `ignored` counts frames that had no effect.

        `last_frames_of` returns the last frames of a member that are still ordered when the leader removes it.
        `missing_frames_of` returns frames of some members that the leader has ordered but that have not arrived.
        """
        self.frame_sender = FrameSender(policy, down)
        self.events = events
        self.ignored = ignored
        self.member = policy.member
        self.timing = policy.timing
        self._last_frames_of = last_frames_of
        self._missing_frames_of = missing_frames_of
        self.received_copies: deque[Frame] = deque()
        """Frames that this member lacked and that a member other than their sender has retransmitted to it."""
        self.frame_requests: deque[tuple[int, RetransmitRequest]] = deque()
        """(member, request) of members that lack other members' frames."""
        # Terms.
        self.term = self.promised_term = 0
        self.fenced = False
        self.membership = StreamMembership(policy.view.members)
        # The stream.
        self.stream = OrderedStream()
        self._leader_position = 0
        self._leader_retains_from = 0
        """The first position of the stream that the leader can retransmit, according to its last heartbeat."""
        self._entries_timer = RetransmitTimer(self.timing)
        self._requested_until = 0
        """The last position of the stream that this member has requested; 0 if it awaits no answer."""
        # Heartbeats.
        self.started = False
        self._next_heartbeat = self._leader_alive_at = 0
        self._paused_since_leader_frame = False
        """Whether this member was paused since `_leader_alive_at` was set."""
        self._leader_last_received_ns = 0
        """When this member last received anything from the leader; a reported interruption counts from this time."""
        self._leader_lost_at = self._leader_heartbeat_sent_ns = 0
        self._follower_heartbeats = FollowerHeartbeats(self.member, policy.view.members, self.timing)
        # The election.
        self._election_state = ElectionState()
        self._no_majority_reported = False

    # -- questions -------------------------------------------------------------------------------------------

    @property
    def leader(self) -> int | None:
        """The leader that this member follows; None during an election."""
        return (
            self.membership.leader_of(self.term)
            if self.promised_term == self.term and not self._has_leader_departed()
            else None
        )

    @property
    def leading(self) -> bool:
        """Whether this member is the leader."""
        return self.leader == self.member and not self.fenced

    def _has_leader_departed(self) -> bool:
        return self.membership.leader_of(self.term) in self.membership.departed

    def may_order(self, now: int) -> bool:
        """Whether this member leads, a majority supports it, and the slowest member is not too far behind."""
        if not self.leading or not self.started or self.stream.window_is_full():
            return False
        return self._supporters(now) >= self.membership.majority()

    def standing(self, now: int) -> Standing:
        """The leader, whether it has a majority, and the members that do not respond, as far as this member knows.

        Only the leader hears all members. A follower has a majority while its leader says that it has one, or while an
        election may succeed.
        """
        if not self.started:
            return Standing(led=True)
        if not self.leading:
            suspected = tuple(sorted(self._election_state.suspected))
            return Standing(True, self.leader, not self._no_majority_reported, suspected)
        heartbeats, members = self._follower_heartbeats, self.membership.current_members
        behind = {m: max(0, self.stream.position - heartbeats.acked[m]) for m in members if m != self.member}
        unresponsive = tuple(heartbeats.unresponsive(members, now))
        return Standing(True, self.member, self._may_have_majority(now), unresponsive, behind)

    def _may_have_majority(self, now: int) -> bool:
        """As the leader: whether a majority follows it, or may answer it soon after a pause."""
        awaits_answers = self._follower_heartbeats.may_await_answers(now)
        return awaits_answers or self._supporters(now) >= self.membership.majority()

    def _supporters(self, now: int) -> int:
        """How many members certainly follow this leader: current members, and removed ones that may be readmitted.

        A member that was cut off and has caught up counts before the list that readmits it is in the stream. Otherwise
        a leader could not append that list if it needs this member for its majority. Any two majorities of the group
        share a member, whether or not that member was removed for a while.
        """
        heartbeats, membership = self._follower_heartbeats, self.membership
        following = membership.current_members
        if len(following) < len(membership.members):
            following += tuple(m for m in membership.members if membership.may_readmit(m, heartbeats.acked[m]))
        return heartbeats.supporters(following, now)

    # -- inputs ----------------------------------------------------------------------------------------------

    def start(self, now: int, first_slot: int) -> None:
        """Start the first term, with all members. Others may start up to Δ later, and their first heartbeat takes Δ."""
        self.started = True
        self.stream.last_slot = max(self.stream.last_slot, first_slot)
        self._leader_alive_at, self._leader_last_received_ns = now + 2 * self.timing.delta_ns, now
        self._follower_heartbeats.assume_alive_until(now + 2 * self.timing.delta_ns)
        self._send_heartbeat(now)

    def detect_own_pause(self, now: int) -> None:
        """Check whether this member was paused: then its last heartbeat is overdue, and its knowledge is outdated.

        Call this before any other processing. A leader then orders nothing until a majority has answered it. The voters
        of a candidate may follow another leader by now. Those that do not will vote again, and a heartbeat of another
        leader will arrive within the heartbeat time-out.
        """
        late_ns = now - self._next_heartbeat
        if not self.started or late_ns <= self.timing.gamma_ns:
            return
        is_first, self._paused_since_leader_frame = not self._paused_since_leader_frame, True
        self._leader_alive_at = alive_after_pause(self._leader_alive_at, now, late_ns, is_first=is_first)
        had_majority = self._supporters(now - late_ns) >= self.membership.majority()
        self._follower_heartbeats.on_pause(now, late_ns)
        if self.leading:
            self._follower_heartbeats.distrust_until_answered(now, late_ns, had_majority=had_majority)
            self._send_heartbeat(now, wants_answer=True)
            return
        self._next_heartbeat, election = now, self._election_state
        if election.is_candidate and now > election.poll_ends_at:
            wait_ns = max(vote_wait_ns(self.timing), heartbeat_timeout_ns(self.timing))
            election.start_poll(self.member, self._own_vote(), now + wait_ns)
            election.was_paused = True

    def from_below(self, now: int, frame: Frame) -> None:
        """Receive a frame of the election or of the stream."""
        self.detect_own_pause(now)
        match frame.message:
            case Ordered() as ordered:
                self._on_ordered(now, frame, ordered)
            case StreamHeartbeat() as heartbeat:
                self._on_heartbeat(now, frame, heartbeat)
            case VoteRequest() as request:
                self._on_vote_request(now, frame.sender, request.term)
            case Vote() as vote:
                if self._election_state.is_candidate and vote.term == self.promised_term:
                    self._election_state.votes[frame.sender] = vote
                    self._count_votes(now)
            case RetransmitRequest() as request:
                self._on_retransmit_request(now, frame.sender, request)

    def wake(self, now: int) -> None:
        """Handle the timers that are due: heartbeat, leader time-out, and the end of a candidate's wait for votes."""
        if not self.started:
            return
        self.detect_own_pause(now)
        if now >= self._next_heartbeat:
            self._send_heartbeat(now)
            self._request_missing_entries(now)
        self._check_leader_timeout(now)
        if self._election_state.is_candidate:
            self._count_votes(now)
        elif self.leading and not self._follower_heartbeats.may_await_answers(now):
            self._report_no_majority(self._supporters(now), "answer this leader")

    def wake_at(self) -> int | None:
        """The earliest time of the next heartbeat, the leader time-out and the end of a candidate's wait for votes."""
        if not self.started:
            return None
        times, election = [self._next_heartbeat], self._election_state
        if not self.leading and not election.is_candidate:
            times.append(self._become_candidate_at() + 1)
            if election.deferred_vote_request is not None:
                times.append(self._leader_timeout_at() + 1)
        elif election.is_candidate and not election.fetching_from and len(election.votes) >= self.membership.majority():
            times.append(election.poll_ends_at + 1)
        return min(times)

    # -- heartbeats and members ------------------------------------------------------------------------------

    def _send_heartbeat(self, now: int, *, wants_answer: bool = False) -> None:
        """Send the message of this slot: a vote request as a candidate, otherwise a heartbeat."""
        self._next_heartbeat = self.timing.end_of(self.timing.slot_of(now))
        if self._election_state.is_candidate:
            self.frame_sender.send(now, VoteRequest(self.promised_term))
            self._request_missing_frames(now)
        elif self.leading:
            self._follower_heartbeats.acked[self.member] = self.stream.delivered_position
            self.stream.stable = max(
                self.stream.stable, min(self._follower_heartbeats.acked[m] for m in self.membership.current_members)
            )
            self.stream.prune()
            heartbeat = StreamHeartbeat(
                self.term,
                self.stream.position,
                self.stream.stable,
                self.stream.retained_from(),
                0,
                wants_answer,
                self._may_have_majority(now),
            )
            self.frame_sender.send(now, heartbeat)
        elif self.leader is not None:
            heartbeat = StreamHeartbeat(
                self.term, self.stream.delivered_position, 0, 0, self._leader_heartbeat_sent_ns, False, False
            )
            self.frame_sender.send(now, heartbeat, to=self.leader)

    def _on_heartbeat(self, now: int, frame: Frame, heartbeat: StreamHeartbeat) -> None:
        sender = frame.sender
        if heartbeat.term < self.term:
            self.ignored["an old term"] += 1
            if sender == self.membership.leader_of(heartbeat.term) and not self._election_state.is_candidate:
                # The sender still believes that it leads: the answer shows it that there is a later term.
                has_majority = self.leading and self._may_have_majority(now)
                answer = StreamHeartbeat(self.term, self.stream.delivered_position, 0, 0, 0, False, has_majority)
                self.frame_sender.send(now, answer, to=sender)
            return
        promised_has_begun = heartbeat.term == self.promised_term != self.term and sender == self.membership.leader_of(
            heartbeat.term
        )
        if heartbeat.term > self.promised_term or promised_has_begun:
            self._adopt_term(now, heartbeat.term)
        if heartbeat.term != self.term or self.promised_term != self.term:
            return
        if sender == self.leader:
            self._record_leader_alive(now)
            self._leader_position = max(self._leader_position, heartbeat.position)
            self.stream.stable = max(self.stream.stable, heartbeat.stable)
            self._leader_retains_from = max(self._leader_retains_from, heartbeat.retained_from)
            self._leader_heartbeat_sent_ns = frame.sent_ns
            self.stream.prune()
            self._on_leader_majority(sender, has_majority=heartbeat.has_majority)
            if heartbeat.wants_answer:
                self._send_heartbeat(now)
        elif self.leading:
            self._follower_heartbeats.on_heartbeat(sender, now, heartbeat)
            if self.membership.may_readmit(sender, heartbeat.position) and self.may_order(now):
                self.append_member_list(now, (*self.membership.current_members, sender))

    def record_follower_alive(self, now: int, member: int) -> None:
        """As the leader, record that a member has sent a frame that it sends only to the leader that it follows.

        A member under load is heard by these frames, although its heartbeats wait behind them.
        """
        if self.leading:
            self._follower_heartbeats.on_frame(member, now)

    def _record_leader_alive(self, now: int) -> None:
        self._assume_leader_alive_until(now)
        self._leader_last_received_ns = max(self._leader_last_received_ns, now)

    def _assume_leader_alive_until(self, until: int) -> None:
        self._leader_alive_at = max(self._leader_alive_at, until)
        self._paused_since_leader_frame = False

    def update_member_list(self, now: int) -> None:
        """As the leader, remove unresponsive members, and leaving members whose last frame was delivered."""
        if not self.may_order(now):
            return
        unresponsive = self._follower_heartbeats.unresponsive(self.membership.current_members, now)
        if unresponsive:
            self.append_member_list(now, tuple(m for m in self.membership.current_members if m not in unresponsive))
        if len(self.membership.current_members) == 1:
            return
        # Departures take effect one at a time, so that the majorities before and after each share a member.
        for member in sorted(self.membership.leaving & set(self.membership.current_members)):
            self._follower_heartbeats.acked[self.member] = self.stream.delivered_position
            know_last_departure = sum(
                1
                for m in self.membership.current_members
                if self._follower_heartbeats.acked[m] >= self.membership.last_departure_position
            )
            if know_last_departure >= self.membership.majority() and self.leading:
                self.append_member_list(now, tuple(m for m in self.membership.current_members if m != member))

    # -- the stream ------------------------------------------------------------------------------------------

    def append(self, now: int, entry_type: EntryType, frame: Frame, member_list: MemberList | None = None) -> None:
        """As the leader, append an entry and multicast it. Allowed only while `may_order`."""
        entry = self.stream.next_entry(self.term, self.timing.slot_of(now), entry_type, frame, member_list)
        self.frame_sender.send_entry(now, entry, self.promised_term)
        self._accept(now, entry)

    def append_member_list(self, now: int, members: tuple[int, ...]) -> None:
        """As the leader, admit or remove members at the next position of the stream."""
        removed = [m for m in self.membership.current_members if m not in members]
        last_frames = [
            LastFrames(m, ALL_REQUESTS, 0) if m in self.membership.leaving else self._last_frames_of(m) for m in removed
        ]
        member_list = MemberList(tuple(sorted(members)), tuple(f for f in last_frames if f is not None))
        self.append(now, EntryType.MEMBER_LIST, self.frame_sender.ordered_frame(now), member_list)

    def _on_ordered(self, now: int, frame: Frame, ordered: Ordered) -> None:
        sender, header = frame.sender, ordered.header
        if header.term < self.promised_term:
            self.ignored["an old term"] += 1
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
        entry = read_entry(frame, ordered)
        if self.stream.contradicts(entry):
            self.fence(entry.position)
        elif entry.position <= self.stream.position:
            self.ignored["duplicate"] += 1
        elif not self.stream.store_ahead(entry):
            self.ignored["too far ahead"] += 1
        else:
            self._leader_position = max(self._leader_position, entry.position)
            self._accept_in_sequence(now)

    def _accept_in_sequence(self, now: int) -> None:
        """Accept the stored entries that follow the last accepted one without a hole."""
        while (entry := self.stream.pop_ahead()) is not None:
            if self.stream.contradicts(entry):
                self.fence(entry.position)
                return
            self._accept(now, entry)
        if self._requested_until and self.stream.position >= self._requested_until:
            # The answer is complete. If more entries are missing, this member requests them at once.
            self._requested_until = 0
            self._entries_timer.record_progress(now, self._first_missing_entry())
            self._request_entries(now)
            if self._requested_until and self._election_state.fetching_from:
                self._election_state.poll_ends_at = now + vote_wait_ns(self.timing)
        if self._election_state.is_candidate and self._election_state.fetching_from:
            self._count_votes(now)

    def _accept(self, now: int, entry: StreamEntry) -> None:
        self.check_position(entry.position)
        previous_term = self.stream.last_term
        self.stream.accept(entry)
        if entry.entry_type is EntryType.MEMBER_LIST:
            self._adopt_member_list(now, entry, previous_term)

    def _adopt_member_list(self, now: int, entry: StreamEntry, previous_term: int) -> None:
        """Apply a member list. If it starts a new term, report how long there was no leader."""
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

    def _first_missing_entry(self) -> int | None:
        is_behind = self._last_known_position() > self.stream.position or self.stream.has_holes()
        return self.stream.position + 1 if is_behind else None

    def _last_known_position(self) -> int:
        """The end of the stream at the leader, or at the voter from which this candidate fetches entries."""
        election = self._election_state
        if election.is_candidate:
            return election.fetching_until
        return self._leader_position

    def _request_missing_entries(self, now: int) -> None:
        """At the end of a slot: request missing entries, or leave if the leader no longer retains them."""
        missing = self._first_missing_entry()
        if missing is not None and self.leader is not None and missing < self._leader_retains_from:
            self.fence(self.stream.position)
        elif self._entries_timer.is_due(now, missing):
            self._request_entries(now)

    def _request_entries(self, now: int) -> None:
        """Request missing entries from the leader, or from the voter from which this candidate fetches them."""
        election = self._election_state
        source = election.fetching_from if election.is_candidate else self.leader
        if not source or source == self.member:
            return
        for first, count in self.stream.holes(self._last_known_position()):
            request = RetransmitRequest(self.promised_term, MissingKind.ENTRIES, first, 0, 0, count)
            self.frame_sender.send(now, request, source)
            self._requested_until = first + count - 1
        if self._requested_until:
            self._entries_timer.record_asked(now)

    def request_frames(self, now: int, missing: MissingFrames) -> None:
        """Request missing frames from the leader; a leader requests them from the member that sent them."""
        source = missing.origin if self.leader in {self.member, None} else self.leader
        if source is not None and source != self.member:
            self._request_frames_from(now, missing, source)

    def _request_frames_from(self, now: int, missing: MissingFrames, source: int) -> None:
        request = RetransmitRequest(
            self.promised_term, MissingKind.FRAMES, missing.request, missing.origin, missing.number, missing.frame_count
        )
        self.frame_sender.send(now, request, source)

    def _on_retransmit_request(self, now: int, sender: int, request: RetransmitRequest) -> None:
        if request.missing is MissingKind.FRAMES:
            self.frame_requests.append((sender, request))
        elif request.term == self.promised_term:
            for entry in self.stream.retained_entries(request.first, request.count):
                self.frame_sender.send_entry(now, entry, self.promised_term, to=sender)

    def fence(self, position: int) -> None:
        """Report that this member must leave, because the majority agreed on another order than it delivered."""
        if not self.fenced:
            self.fenced = True
            self.events.append(_fenced_violation(self.member, position))

    # -- the election ----------------------------------------------------------------------------------------

    def _leader_timeout_at(self) -> int:
        return 0 if self._has_leader_departed() else self._leader_alive_at + heartbeat_timeout_ns(self.timing)

    def _become_candidate_at(self) -> int:
        """When this member asks for votes itself, unless it has voted for another candidate by then.

        The lowest live member is first. Each further member waits longer than the one before it, by one wait for votes.
        """
        candidates = [m for m in self._live_members() if m != self.membership.leader_of(self.promised_term)]
        if self.member not in candidates:
            return NEVER_NS
        # A leader that left in an orderly way has no time-out. But once a term is promised, its candidate has one: it
        # repeats its vote request each Θ, and two members must never order.
        vacant = self._has_leader_departed() and self.promised_term == self.term
        since = self._leader_alive_at + (0 if vacant else heartbeat_timeout_ns(self.timing))
        return since + candidates.index(self.member) * vote_wait_ns(self.timing)

    def _live_members(self) -> list[int]:
        return [
            m
            for m in self.membership.current_members
            if m not in self._election_state.suspected and m not in self.membership.departed
        ]

    def _check_leader_timeout(self, now: int) -> None:
        """If the leader has timed out, answer a deferred vote request or become a candidate."""
        if self.leading or self._election_state.is_candidate or self.fenced:
            return
        if self._election_state.deferred_vote_request is not None and now > self._leader_timeout_at():
            deferred, self._election_state.deferred_vote_request = self._election_state.deferred_vote_request, None
            self._on_vote_request(now, *deferred)
        elif now > self._become_candidate_at():
            self._become_candidate(now)

    def _become_candidate(self, now: int) -> None:
        """Ask all members for their vote for the next term that belongs to this member."""
        self._election_state.suspected.add(self.membership.leader_of(self.promised_term))
        self._election_state.suspected.discard(self.member)
        self._record_leader_lost(now)
        self._promise(self.membership.next_term_of(self.promised_term, self.member))
        self._election_state.start_poll(self.member, self._own_vote(), now + vote_wait_ns(self.timing))
        self._send_heartbeat(now)
        self._count_votes(now)

    def _record_leader_lost(self, now: int) -> None:
        """Record the start of the interruption, when this member stops following its leader."""
        if self.promised_term == self.term:
            self._leader_lost_at = min(self._leader_last_received_ns, now)

    def _on_vote_request(self, now: int, sender: int, term: int) -> None:
        election, is_newer = self._election_state, term > self.promised_term
        is_owner = sender == self.membership.leader_of(term)
        without_majority = self.leading and self._supporters(now) < self.membership.majority()
        if without_majority and is_newer and is_owner:
            # This leader cannot order anything; the candidate may find the majority that it lacks.
            self._vote_for(now, sender, term)
            return
        was_leader = election.is_candidate and self.membership.leader_of(self.term) == self.member
        if self.leading or (was_leader and self.member < sender):
            # The sender did not receive this leader for a while and promised another term. A new term of this leader
            # brings it back. Of two former leaders, only the lower one insists.
            if is_newer and (election.is_candidate or self.may_order(now)):
                election.is_candidate = False
                self._promise(term)
                self._become_candidate(now)
            return
        if term == self.promised_term and is_owner and sender != self.member and not election.is_candidate:
            self._vote_for(now, sender, term)  # again: the first vote may be lost
        elif not is_newer or not is_owner:
            self.ignored["an old term"] += 1
        elif (
            sender == self.membership.leader_of(self.term)
            or now > self._leader_timeout_at()
            or self.promised_term != self.term
        ):
            self._vote_for(now, sender, term)
        else:
            election.deferred_vote_request = (sender, term)

    def _promise(self, term: int) -> None:
        """Promise to vote in no term before `term` from now on."""
        self.check_promise(term)
        self.promised_term = term

    def check_promise(self, term: int) -> None:
        """Raise InvariantViolated if this member would act in an earlier term than it has promised."""
        if term < self.promised_term:
            text = "this member votes for or follows the leader of an earlier term than it has promised"
            raise InvariantViolated("promise", self.member, text, f"term {self.promised_term} or more", str(term))

    def check_position(self, position: int) -> None:
        """Raise InvariantViolated unless `position` follows the last accepted entry: no hole, no replaced entry."""
        if position != self.stream.position + 1:
            text = "this member accepts an entry of the ordered stream that does not follow its last one"
            raise InvariantViolated("stream", self.member, text, f"position {self.stream.position + 1}", str(position))

    def _vote_for(self, now: int, candidate: int, term: int) -> None:
        if term == self.term:
            return
        self._record_leader_lost(now)
        self._election_state.suspected.update(
            {self.membership.leader_of(self.promised_term)} - {candidate, self.member}
        )
        self._promise(term)
        self._election_state.end_poll()
        # The candidate has the time of its poll before it can time out itself.
        self._assume_leader_alive_until(now + vote_wait_ns(self.timing))
        self.frame_sender.send(now, self._own_vote(), to=candidate)

    def _own_vote(self) -> Vote:
        return Vote(self.promised_term, self.stream.position, self.stream.last_term)

    def _count_votes(self, now: int) -> None:
        """Start the term of this candidate if it has won.

        It has won if a majority has voted, all votes that can come are here, and no voter has more entries.
        """
        election = self._election_state
        if len(election.votes) < self.membership.majority():
            if now > election.poll_ends_at:
                self._report_no_majority(len(election.votes), "vote for this member")
            return
        all_have_voted = not election.was_paused and all(m in election.votes for m in self._live_members())
        if now <= election.poll_ends_at and not all_have_voted:
            return
        best = election.most_advanced_voter(self.member)
        if best == self.member or election.votes[best].position <= self.stream.position:
            # Fetched entries may order frames that are missing here. Otherwise the vote requests asked for them.
            if (
                not election.fetching_from
                or (election.fetching_frames and now > election.poll_ends_at)
                or not self._request_missing_frames(now)
            ):
                self._begin_term(now)
            elif not election.fetching_frames:
                election.fetching_frames, election.poll_ends_at = True, now + vote_wait_ns(self.timing)
        elif election.fetching_from != best:
            election.fetching_from, election.fetching_until = best, election.votes[best].position
            election.poll_ends_at = now + vote_wait_ns(self.timing)
            self._entries_timer.expect(self._first_missing_entry())
            self._request_entries(now)
        elif now > election.poll_ends_at:
            # The voter with more entries has crashed since. Entries that only crashed members have are void.
            del election.votes[best]
            self._count_votes(now)

    def _request_missing_frames(self, now: int) -> bool:
        """Ask all members for missing frames of members that did not vote. Returns whether any are missing.

        A frame that a voter has delivered must be delivered by all, although its sender may have crashed.
        """
        not_voted = [m for m in self.membership.current_members if m not in self._election_state.votes]
        missing = self._missing_frames_of(not_voted)
        for frames in missing:
            self._request_frames_from(now, frames, EVERYONE)
        return bool(missing)

    def _report_no_majority(self, count: int, deed: str) -> None:
        """Report once that too few members do `deed`: vote, or answer."""
        majority = self.membership.majority()
        if count >= majority:
            self._no_majority_reported = False
        elif not self._no_majority_reported:
            self._no_majority_reported = True
            members = len(self.membership.members) - len(self.membership.departed)
            self.events.append(_no_majority_violation(count, members, deed, majority))

    def _on_leader_majority(self, leader: int, *, has_majority: bool) -> None:
        """As a follower, report once that the leader has no majority."""
        if has_majority:
            self._no_majority_reported = False
        elif not self._no_majority_reported:
            self._no_majority_reported = True
            self.events.append(_leader_without_majority_violation(leader, self.membership.majority()))

    def _begin_term(self, now: int) -> None:
        """As the elected leader, start the promised term with a member list of those that voted."""
        voters = tuple(sorted(m for m in self._election_state.votes if m not in self.membership.departed))
        self._election_state.end_poll()
        self.term = self.promised_term
        self.stream.forget_ahead()
        self._follower_heartbeats.assume_alive_until(now + 2 * self.timing.delta_ns)
        acked = self._follower_heartbeats.acked
        for member in self.membership.members:
            vote = self._election_state.votes.get(member)
            acked[member] = 0 if vote is None else min(vote.position, self.stream.stable)
        self._follower_heartbeats.trust_all()
        self.append_member_list(now, voters)
        self._send_heartbeat(now)

    def _adopt_term(self, now: int, term: int) -> None:
        """Follow another member whose term has started."""
        self._record_leader_lost(now)
        self._promise(term)
        self.term = term
        self._election_state.end_poll()
        self.stream.forget_ahead()
        self._leader_position = self._leader_retains_from = self._requested_until = 0
        self._assume_leader_alive_until(now)
        # At the end of this slot, request entries that were ordered before this term and are missing here.
        self._entries_timer.expect(self.stream.position + 1)


# -- violations ------------------------------------------------------------------------------------------------------


def _stepped_down_violation(new_leader: int, slot: int) -> Violation:
    """The violation that a former leader reports when it was paused or cut off and another member leads."""
    text = f"this member was unreachable and no longer leads; member {new_leader} leads now"
    return Violation(ViolationKind.DEPOSED, text, new_leader, slot)


def _leader_lost_violation(old_leader: int, new_leader: int, gap_ns: int, slot: int) -> Violation:
    """The violation that each follower reports when a leader has failed, with the time in which nothing was ordered."""
    gap_ms = max(0, gap_ns) / 1e6
    text = f"leader {old_leader} failed and member {new_leader} leads now; nothing was ordered for {gap_ms:.3f} ms"
    return Violation(ViolationKind.LEADER_LOST, text, old_leader, slot)


def _fenced_violation(member: int, position: int) -> Violation:
    """The violation that a member reports when it leaves because its order differs from the majority's."""
    text = f"this member was cut off: its order differs from the group's from position {position} on, so it leaves"
    return Violation(ViolationKind.FENCED_OUT, text, member)


def _leader_without_majority_violation(leader: int, majority: int) -> Violation:
    """The violation that a follower reports when its leader has no majority."""
    text = f"too few members answer leader {leader}: it orders nothing until {majority} members, itself included, do"
    return Violation(ViolationKind.NO_MAJORITY, text)


def _no_majority_violation(count: int, members: int, deed: str, majority: int) -> Violation:
    """The violation that a leader or candidate reports when it has no majority."""
    text = f"only {count} of {members} members, this one included, {deed}: it orders nothing until {majority} do"
    return Violation(ViolationKind.NO_MAJORITY, text)
