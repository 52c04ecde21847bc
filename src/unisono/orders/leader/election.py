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

from unisono.model.events import StackEvent
from unisono.model.ids import EVERYONE
from unisono.model.policy import Policy
from unisono.orders.leader import messages as wire
from unisono.orders.leader.messages import ALL, Beat, Cut, Lack, Need, Place, Roll, Vote, What
from unisono.orders.leader.roster import Ballot, Roster, deposed, fenced_out, leader_lost, no_majority
from unisono.orders.leader.stream import WINDOW, Entry, Stream, Voice, read_copy, read_entry
from unisono.orders.leader.timeouts import Signs, poll_ns, silence_ns
from unisono.wire.frame import Frame, Kind

PATIENCE = 8
"""After how many requests in vain a member knows that nobody has what it lacks."""


class Succession:
    """One member's part in it. The order on top takes `accepted` entries and appends new ones while it may."""

    def __init__(self, policy: Policy, down: list[Frame], events: list[StackEvent], ignored: Counter[str]) -> None:
        self.voice = Voice(policy, down)
        self.events = events
        self.ignored = ignored
        self.me = policy.member
        self.timing = policy.timing
        self.cut_of: Callable[[int], Cut | None] = lambda _member: None
        """How far the frames of a member that is being removed count; the order knows."""
        self.lacking_of: Callable[[Sequence[int]], list[tuple[int, int, int]]] = lambda _members: []
        """Frames of these members that have a place in the stream and have not come: (request, member, number)."""
        self.copies: deque[Frame] = deque()
        self.wants: deque[tuple[int, Need]] = deque()
        """Members that need other members' frames, for the order to serve."""
        # Reigns.
        self.reign = self.promised = 0
        self.fenced = False
        self.roster = Roster(policy.view.members)
        # The stream.
        self.stream = Stream()
        self._leader_position = self._lacking_since = self._fruitless = 0
        # Signs of life.
        self.started = False
        self._next_beat = self._heard_leader = 0
        self._sign_ns = 0
        """When the leader was really last heard: what the gap counts from."""
        self._lost_at = self._echo = 0
        self._signs = Signs(self.me, policy.view.members, self.timing)
        # The election.
        self._ballot = Ballot()
        self._no_majority_told = False

    # -- questions -------------------------------------------------------------------------------------------

    @property
    def leader(self) -> int | None:
        """Whom this member follows now."""
        return self.roster.owner(self.reign) if self.promised == self.reign and not self._abdicated() else None

    @property
    def leading(self) -> bool:
        """Whether that is this member itself."""
        return self.leader == self.me and not self.fenced

    def _abdicated(self) -> bool:
        return self.roster.owner(self.reign) in self.roster.departed

    def may_order(self, now: int) -> bool:
        """Whether this member leads, and can be sure of it."""
        if not self.leading or not self.started or self.stream.position - self.stream.stable >= WINDOW:
            return False
        return self._signs.supporters(self.roster.roll, now) >= self.roster.majority()

    # -- inputs ----------------------------------------------------------------------------------------------

    def start(self, now: int, first_slot: int) -> None:
        """The group begins, everybody in it; others may know that up to Δ later, and their first beat takes Δ."""
        self.started = True
        self.stream.slot = max(self.stream.slot, first_slot)
        self._heard_leader, self._sign_ns = now + 2 * self.timing.delta_ns, now
        self._signs.excuse(now + 2 * self.timing.delta_ns)
        self._beat(now)

    def notice(self, now: int) -> None:
        """Before anything else: has this member slept? Then what it knows of others is old."""
        if not self.started or now <= self._next_beat + self.timing.gamma_ns:
            return
        self._heard_leader = max(self._heard_leader, now)
        self._signs.excuse(now)
        if self.leading:
            self._signs.trusted_from = now
            self._beat(now, answer=True)
        else:
            self._next_beat = now

    def from_below(self, now: int, frame: Frame) -> None:
        """A frame that is not the order's own."""
        self.notice(now)
        body = bytes(frame.body) if frame.kind is not Kind.ORDERED else b""
        if frame.kind is Kind.ORDERED and (place := wire.decode_place(frame.body)) is not None:
            self._ordered(now, frame, place)
        elif frame.kind is Kind.BEAT and (beat := wire.decode_beat(body)) is not None:
            self._beaten(now, frame, beat)
        elif frame.kind is Kind.ASK and (reign := wire.decode_ask(body)) is not None:
            self._asked(now, frame.sender, reign)
        elif frame.kind is Kind.VOTE and (vote := wire.decode_vote(body)) is not None:
            if self._ballot.asking and vote.reign == self.promised:
                self._ballot.votes[frame.sender] = vote
                self._count(now)
        elif frame.kind is Kind.NEED and (need := wire.decode_need(body)) is not None:
            self._serve(now, frame.sender, need)

    def wake(self, now: int) -> None:
        """Time has passed."""
        if not self.started:
            return
        self.notice(now)
        if now >= self._next_beat:
            self._beat(now)
            self._ask_for_lacking(now)
        self._suspect(now)
        if self._ballot.asking:
            self._count(now)
        elif self.leading and now > self._signs.trusted_from + silence_ns(self.timing):
            self._miss_majority(self._signs.supporters(self.roster.roll, now))

    def wake_at(self) -> int | None:
        """The next beat, or the moment at which silence has lasted too long."""
        if not self.started:
            return None
        times, ballot = [self._next_beat], self._ballot
        if not self.leading and not ballot.asking:
            times += [self._stand_at() + 1] + [self._silent_at() + 1] * (ballot.asked_by is not None)
        elif ballot.asking and not ballot.fetching and len(ballot.votes) >= self.roster.majority():
            times.append(ballot.ends_at + 1)
        return min(times)

    # -- signs of life ---------------------------------------------------------------------------------------

    def _beat(self, now: int, *, answer: bool = False) -> None:
        self._next_beat = self.timing.end_of(self.timing.slot_of(now))
        if self._ballot.asking:
            self.voice.say(now, Kind.ASK, wire.encode_ask(self.promised))
            self._ask_for_frames(now)
        elif self.leading:
            self._signs.acked[self.me] = self.stream.consumed
            self.stream.stable = max(self.stream.stable, min(self._signs.acked[m] for m in self.roster.roll))
            self.stream.prune()
            beat = Beat(self.reign, self.stream.position, self.stream.stable, 0, answer)
            self.voice.say(now, Kind.BEAT, wire.encode_beat(beat))
        elif self.leader is not None:
            beat = Beat(self.reign, self.stream.consumed, 0, self._echo, False)
            self.voice.say(now, Kind.BEAT, wire.encode_beat(beat), to=self.leader)

    def _beaten(self, now: int, frame: Frame, beat: Beat) -> None:
        sender = frame.sender
        if beat.reign < self.reign:
            self.ignored["an old reign"] += 1
            if sender == self.roster.owner(beat.reign) and not self._ballot.asking:
                # Only a leader that does not know better beats to everyone: it hears that there is another reign.
                answer = Beat(self.reign, self.stream.consumed, 0, 0, False)
                self.voice.say(now, Kind.BEAT, wire.encode_beat(answer), to=sender)
            return
        begun = beat.reign == self.promised != self.reign and sender == self.roster.owner(beat.reign)
        if beat.reign > self.promised or begun:
            self._adopt(now, beat.reign)
        if beat.reign != self.reign or self.promised != self.reign:
            return
        if sender == self.leader:
            self._hear_leader(now)
            self._leader_position = max(self._leader_position, beat.position)
            self.stream.stable = max(self.stream.stable, beat.stable)
            self._echo = frame.sent_ns
            self.stream.prune()
            if beat.answer:
                self._beat(now)
        elif self.leading:
            self._signs.hear(sender, now, beat)
            if self.roster.may_return(sender, beat.position) and self.may_order(now):
                self.append_roll(now, (*self.roster.roll, sender))

    def _hear_leader(self, now: int) -> None:
        self._heard_leader = max(self._heard_leader, now)
        self._sign_ns = max(self._sign_ns, now)

    def tend(self, now: int) -> None:
        """The leader keeps the roll: it removes who is silent, and who has said its last word."""
        if not self.may_order(now):
            return
        silent = self._signs.silent(self.roster.roll, now)
        if silent:
            self.append_roll(now, tuple(m for m in self.roster.roll if m not in silent))
        # One departure at a time, so that the majorities before and after it have a member in common.
        for member in sorted(self.roster.finals & set(self.roster.roll)) if len(self.roster.roll) > 1 else ():
            self._signs.acked[self.me] = self.stream.consumed
            known = sum(1 for m in self.roster.roll if self._signs.acked[m] >= self.roster.departure_at)
            if known >= self.roster.majority() and self.leading:
                self.append_roll(now, tuple(m for m in self.roster.roll if m != member))

    # -- the stream ------------------------------------------------------------------------------------------

    def append(self, now: int, what: What, frame: Frame, payload: bytes = b"") -> None:
        """The next entry; only while `may_order`."""
        entry = self.stream.next_entry(self.reign, self.timing.slot_of(now), what, frame, payload)
        self.voice.entry(now, entry, self.promised)
        self._accept(now, entry)

    def append_roll(self, now: int, members: tuple[int, ...]) -> None:
        """Members come or go."""
        gone = [m for m in self.roster.roll if m not in members]
        cuts = [Cut(m, ALL, 0) if m in self.roster.finals else self.cut_of(m) for m in gone]
        roll = Roll(tuple(sorted(members)), tuple(cut for cut in cuts if cut is not None))
        self.append(now, What.ROLL, self.voice.frame(now, Kind.ORDERED), wire.encode_roll(roll))

    def _ordered(self, now: int, frame: Frame, place: Place) -> None:
        sender = frame.sender
        if place.reign < self.promised:
            self.ignored["an old reign"] += 1
            return
        if place.reign > self.promised or (place.reign != self.reign and sender == self.roster.owner(place.reign)):
            self._adopt(now, place.reign)
        if sender == self.leader:
            self._hear_leader(now)
        if place.what is What.COPY:
            self.copies.append(read_copy(frame, place))
            return
        entry = read_entry(frame, place)
        if self.stream.contradicts(entry):
            self.diverged(entry.position)
        elif entry.position <= self.stream.position:
            self.ignored["duplicate"] += 1
        elif not self.stream.keep_ahead(entry):
            self.ignored["too far ahead"] += 1
        else:
            self._leader_position = max(self._leader_position, entry.position)
            self._drain(now)

    def _drain(self, now: int) -> None:
        while (entry := self.stream.pop_ahead()) is not None:
            if self.stream.contradicts(entry):
                self.diverged(entry.position)
                return
            self._accept(now, entry)
        if self._ballot.asking and self._ballot.fetching:
            self._count(now)

    def _accept(self, now: int, entry: Entry) -> None:
        before = self.stream.last_reign
        self._fruitless = 0
        self.stream.accept(entry)
        if entry.what is What.ROLL:
            self._adopt_roll(now, entry, before)

    def _adopt_roll(self, now: int, entry: Entry, before: int) -> None:
        self.roster.turn(entry)
        if entry.reign == before:
            return
        old, new = self.roster.owner(before), self.roster.owner(entry.reign)
        self._ballot.dead.clear()
        self._no_majority_told = False
        if old == self.me != new and old not in self.roster.departed:
            self.events.append(deposed(new, entry.slot))
        elif old != new and old not in self.roster.departed:
            self.events.append(leader_lost(old, new, now - self._lost_at, entry.slot))

    def _ask_for_lacking(self, now: int) -> None:
        """Ask again for what was missing at the last beat already; a datagram may have been lost."""
        stream, source = self.stream, self._ballot.fetching if self._ballot.asking else self.leader
        lacking = stream.position + 1 if self._leader_position > stream.position or stream.holes() else 0
        if lacking and lacking == self._lacking_since and source and source != self.me:
            self._fruitless += 1
            if self._fruitless > PATIENCE and stream.holes():
                self.diverged(stream.position)
                return
            self.voice.need(now, Need(self.promised, Lack.ENTRIES, lacking, 0, 0), source)
        self._lacking_since = lacking

    def need_frames(self, now: int, origin: int, request: int, number: int) -> None:
        """Ask for a member's frames: the leader, or, as the leader, that member."""
        source = origin if self.leader in {self.me, None} else self.leader
        if source is not None and source != self.me:
            self.voice.need(now, Need(self.promised, Lack.FRAMES, request, origin, number), source)

    def _serve(self, now: int, sender: int, need: Need) -> None:
        if need.lack is Lack.FRAMES:
            self.wants.append((sender, need))
        elif need.reign == self.promised:
            for entry in self.stream.since(need.first):
                self.voice.entry(now, entry, self.promised, to=sender)

    def diverged(self, position: int) -> None:
        """Another order was agreed on than the one delivered here: this member must not go on."""
        if not self.fenced:
            self.fenced = True
            self.events.append(fenced_out(self.me, position))

    # -- the election ----------------------------------------------------------------------------------------

    def _silent_at(self) -> int:
        return 0 if self._abdicated() else self._heard_leader + silence_ns(self.timing)

    def _stand_at(self) -> int:
        """When this member asks for votes, if it has not been asked by then."""
        left = [m for m in self._living() if m != self.roster.owner(self.promised)]
        if self.me not in left:
            return 1 << 62
        # Who left in order is not waited for. Who was then promised a reign is: it asks each Θ, and two must not order.
        vacant = self._abdicated() and self.promised == self.reign
        since = self._heard_leader + (0 if vacant else silence_ns(self.timing))
        return since + left.index(self.me) * poll_ns(self.timing)

    def _living(self) -> list[int]:
        return [m for m in self.roster.roll if m not in self._ballot.dead and m not in self.roster.departed]

    def _suspect(self, now: int) -> None:
        if self.leading or self._ballot.asking or self.fenced:
            return
        if self._ballot.asked_by is not None and now > self._silent_at():
            asked_by, self._ballot.asked_by = self._ballot.asked_by, None
            self._asked(now, *asked_by)
        elif now > self._stand_at():
            self._stand(now)

    def _stand(self, now: int) -> None:
        """Ask everyone for the next reign that is this member's own."""
        self._ballot.dead.add(self.roster.owner(self.promised))
        self._ballot.dead.discard(self.me)
        self._lose(now)
        self.promised = self.roster.reign_after(self.promised, self.me)
        self._ballot.open(self.me, self._vote(), now + poll_ns(self.timing))
        self._beat(now)
        self._count(now)

    def _lose(self, now: int) -> None:
        """The leader is followed no longer: from when on is what the gap counts from."""
        if self.promised == self.reign:
            self._lost_at = min(self._sign_ns, now)

    def _asked(self, now: int, sender: int, reign: int) -> None:
        alone = self.leading and self._signs.supporters(self.roster.roll, now) < self.roster.majority()
        if alone and reign > self.promised and sender == self.roster.owner(reign):
            # This leader is of no use to anybody: whoever asks may find the majority that it lacks.
            self._promise(now, sender, reign)
            return
        if self.leading or (self._ballot.asking and self.roster.owner(self.reign) == self.me):
            # Somebody could not hear this leader for a while and promised itself away: a new reign takes it back.
            if reign > self.promised and (self._ballot.asking or self.may_order(now)):
                self._ballot.asking = False
                self.promised = reign
                self._stand(now)
            return
        if reign == self.promised and sender == self.roster.owner(reign) != self.me and not self._ballot.asking:
            self._promise(now, sender, reign)
        elif reign <= self.promised or sender != self.roster.owner(reign):
            self.ignored["an old reign"] += 1
        elif sender == self.roster.owner(self.reign) or now > self._silent_at() or self.promised != self.reign:
            self._promise(now, sender, reign)
        else:
            self._ballot.asked_by = (sender, reign)

    def _promise(self, now: int, sender: int, reign: int) -> None:
        if reign == self.reign:
            return
        self._lose(now)
        self._ballot.dead.update({self.roster.owner(self.promised)} - {sender, self.me})
        self.promised = reign
        self._ballot.close()
        # The candidate has the time of its poll before it is taken for dead in turn.
        self._heard_leader = max(self._heard_leader, now + poll_ns(self.timing))
        self.voice.say(now, Kind.VOTE, wire.encode_vote(self._vote()), to=sender)

    def _vote(self) -> Vote:
        return Vote(self.promised, self.stream.position, self.stream.last_reign)

    def _count(self, now: int) -> None:
        """Is it decided?"""
        ballot = self._ballot
        if len(ballot.votes) < self.roster.majority():
            if now > ballot.ends_at:
                self._miss_majority(len(ballot.votes))
            return
        if now <= ballot.ends_at and any(m not in ballot.votes for m in self._living()):
            return
        best = ballot.best(self.me)
        if best == self.me or ballot.votes[best].position <= self.stream.position:
            # Of entries that were fetched frames may be missing; otherwise they have been asked for with the votes.
            if not ballot.fetching or (ballot.completing and now > ballot.ends_at) or not self._ask_for_frames(now):
                self._begin(now)
            elif not ballot.completing:
                ballot.completing, ballot.ends_at = True, now + poll_ns(self.timing)
        elif ballot.fetching != best:
            ballot.fetching, ballot.ends_at = best, now + poll_ns(self.timing)
            self.voice.need(now, Need(self.promised, Lack.ENTRIES, self.stream.position + 1, 0, 0), best)
        elif now > ballot.ends_at:
            # Who has more has died since: what only the dead have is nobody's.
            del ballot.votes[best]
            self._count(now)

    def _ask_for_frames(self, now: int) -> bool:
        """Ask for frames of those that are gone: what a voter has delivered of them has to count. Whether any lack."""
        needs = self.lacking_of([m for m in self.roster.roll if m not in self._ballot.votes])
        for request, origin, number in needs:
            self.voice.need(now, Need(self.promised, Lack.FRAMES, request, origin, number), EVERYONE)
        return bool(needs)

    def _miss_majority(self, reached: int) -> None:
        if reached >= self.roster.majority():
            self._no_majority_told = False
        elif not self._no_majority_told:
            self._no_majority_told = True
            self.events.append(no_majority(reached, len(self.roster.members)))

    def _begin(self, now: int) -> None:
        voters = tuple(sorted(m for m in self._ballot.votes if m not in self.roster.departed))
        self._ballot.close()
        self.reign = self.promised
        self.stream.forget_ahead()
        self._signs.excuse(now + 2 * self.timing.delta_ns)
        for member in self.roster.members:
            self._signs.acked[member] = self.stream.stable if member in self._ballot.votes else 0
        self._signs.trusted_from = 0
        self.append_roll(now, voters)
        self._beat(now)

    def _adopt(self, now: int, reign: int) -> None:
        """Somebody else's reign has begun."""
        self._lose(now)
        self.reign = self.promised = reign
        self._ballot.close()
        self.stream.forget_ahead()
        self._leader_position = 0
        self._heard_leader = max(self._heard_leader, now)
        # What was ordered before this reign and is missing here is asked for at once.
        self._lacking_since = self.stream.position + 1
