"""Timestamp leader (paper 000 §8.2): messages go to everybody at once, and a leader only says in which order.

The first message of a burst opens a request: its sender asks the leader for k stamps, k being what its rate allows
for a slot, and multicasts. The leader grants requests in the order in which they come, each a range of stamps, and
multicasts the grants. Members deliver grant by grant: order is decided per request. A request is open for Θ at
most; then one release gives back all stamps that were not used (erratum 000-31), by an empty last frame, unless the
burst was used up: then the last frame of the burst says so.

AppLatency is 2Δ+max(p, Θ): a request that takes Δ can be overtaken by one that was made Δ later and takes no time,
and whose last frame comes Θ and Δ after that (erratum 000-30). If every delay is Δ, only the leader's own requests
overtake; without those it is the paper's Δ+max(Δ+p, Θ). The request is closed Γ before Θ is over, for a clock that
strays by Γ meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from unisono.model.durations import NS_PER_S, duration_text
from unisono.model.offers import Ask, Offer
from unisono.model.policy import Policy
from unisono.model.rates import Rate, Reservation, Reserver
from unisono.model.timing import Timing
from unisono.orders.base.modes import Mode
from unisono.orders.base.packing import Load, reservation
from unisono.orders.base.receive_queue import Rqueue, SlotFrames
from unisono.orders.leader.base import Led, fitting
from unisono.orders.leader.broadcast import led_offer
from unisono.orders.leader.election import PATIENCE
from unisono.orders.leader.messages import ALL, ORDERED_BYTES, Cut, Need, Request, What, decode_request, encode_request
from unisono.orders.leader.stream import RETAINED, Entry
from unisono.wire.frame import FINAL, HEADER_BYTES, LAST, UDP_IP_BYTES, Frame, Kind

REQUESTS_MAX = 1 << 10
"""How many requests of one member may wait for their stamps."""
NEEDED_AT_ONCE = 64


def latency_bound_ns(timing: Timing, processing_ns: int) -> int:
    """§8.2 as erratum 000-30 corrects it: 2Δ+max(p, Θ)."""
    return 2 * timing.delta_ns + max(processing_ns, timing.theta_ns)


def constant_delay_bound_ns(timing: Timing, processing_ns: int) -> int:
    """§8.2 as published, true if every delay is exactly Δ: Δ+max(Δ+p, Θ)."""
    return timing.delta_ns + max(timing.delta_ns + processing_ns, timing.theta_ns)


def carries(frame: Frame) -> bool:
    """Whether a frame is more than the release of stamps."""
    return frame.run is not None or bool(frame.body) or bool(frame.flags & FINAL)


@dataclass(slots=True)
class Asked:
    """A request of this member's own that has not been granted, or not been delivered, yet."""

    request: int
    previous: int
    since: int
    count: int
    granted: bool = False


@dataclass(slots=True)
class Granted:
    """A grant whose turn has not come, and how many of its frames count if its sender is gone."""

    entry: Entry
    limit: int | None = None
    used: int = 0


class Timestamp(Led):
    """The automaton of one member."""

    waits_for_all = True  # a dead member may hold stamps

    def __init__(self, policy: Policy, reserver: Reserver) -> None:
        super().__init__(policy, reserver)
        self.succession.cut_of = self._cut_of
        self.succession.lacking_of = self._lacking_of
        members = policy.view.members
        # Sending.
        self._request = self._previous = 0
        self._number = 0
        self._closes_at: int | None = None
        self._opens_at = 0
        self._asked: deque[Asked] = deque()
        self._asked_at = 0
        self._again: list[Frame] = []
        """Frames of requests that were cut short while this member was taken for dead."""
        # Delivering.
        self._rqueues = {member: Rqueue() for member in members}
        self._done = dict.fromkeys(members, 0)
        self._grants: deque[Granted] = deque()
        self._kept: deque[tuple[int, int, int, list[Frame]]] = deque()
        """(position, sender, request, frames) of what was delivered here, while somebody may lack it."""
        self._stuck_at = self._fruitless = 0
        self._stuck_on: tuple[int, int] | None = None
        # As the leader.
        self._last_granted = dict.fromkeys(members, 0)
        self._taken = dict.fromkeys(members, 0)
        self._early: dict[int, dict[int, Frame]] = {member: {} for member in members}
        self._ready: deque[tuple[int, Frame]] = deque()

    def _reservation(self, rate: Rate) -> Reservation:
        return stamping_reservation(self._policy, rate, leads=self.succession.leading)

    def bound_ns(self) -> int:
        """§8.2, corrected."""
        return latency_bound_ns(self._timing, self._policy.processing_ns)

    # -- sending ---------------------------------------------------------------------------------------------

    def _take(self, now: int, messages: Sequence[bytes], sizes: list[int]) -> int:
        self._close_if_due(now)
        if self._closes_at is None and not self._open(now):
            return 0
        count = fitting(self._pacer, sizes)
        if count == 0:
            return 0
        loads = self._loads(messages[:count], sizes[:count])
        full = self._pacer.full() or self._closes_at == now
        for load in loads[:-1]:
            self._send(now, load, 0)
        self._send(now, loads[-1], LAST if full else 0)
        return count

    def _open(self, now: int) -> bool:
        """Ask for as many stamps as the rate allows, if the last request was made Θ ago."""
        slot = self._timing.slot_of(now)
        if now < self._opens_at or slot <= self._request or len(self._asked) >= REQUESTS_MAX or self._again:
            return False
        self._adopt_rate(slot)
        stamps = self._pacer.messages_left()
        if stamps == 0:
            return False
        self._ask(now, slot, stamps)
        self._closes_at = now + max(0, self._timing.theta_ns - self._timing.gamma_ns)
        return True

    def _ask(self, now: int, request: int, stamps: int) -> None:
        previous, self._previous = self._previous, request
        self._request, self._number = request, 0
        self._opens_at = now + self._timing.theta_ns
        asked = Asked(request, previous, self.succession.roster.admitted_at[self._policy.member], stamps)
        if all(known.granted for known in self._asked):
            self._asked_at = now
        self._asked.append(asked)
        self._post(now, asked)

    def _post(self, now: int, asked: Asked) -> None:
        policy, leader = self._policy, self.succession.leader
        if leader is None:
            return
        body = encode_request(Request(asked.previous, asked.since, asked.count))
        frame = Frame(
            Kind.REQUEST, policy.member, policy.incarnation, policy.epoch, asked.request, 0, sent_ns=now, body=body
        )
        if leader == policy.member:
            self._requested(now, frame)
        else:
            self.down.append(replace(frame, to=leader))

    def _send(self, now: int, load: Load | None, flags: int) -> None:
        self._multicast(self._frame(now, load, slot=self._request, number=self._number, flags=flags))

    def _multicast(self, frame: Frame) -> None:
        self._number = frame.number + 1
        frame.multicast = self.succession.voice.multicast
        self.down.append(frame)
        self._rqueues[frame.sender].add(frame)
        if frame.flags & LAST:
            self._closes_at = None

    def _close_if_due(self, now: int) -> None:
        """Θ is over: the release. In time for a message that is handed in at this very instant to open the next."""
        if self._closes_at is not None and now >= self._closes_at:
            self._send(now, None, LAST)

    def _say_last(self, now: int) -> None:
        if self._closes_at is None:
            self._ask(now, max(self._request + 1, self._timing.slot_of(now)), 1)
        self._send(now, None, LAST | FINAL)

    def _oldest(self) -> int | None:
        return self._asked[0].request if self._asked else None

    # -- leading ---------------------------------------------------------------------------------------------

    def _arrived(self, now: int, frame: Frame) -> None:
        if frame.kind is Kind.REQUEST:
            self._requested(now, frame)
        elif frame.kind is Kind.DATA:
            self._keep(frame)

    def _requested(self, now: int, frame: Frame) -> None:
        sender, request = frame.sender, decode_request(bytes(frame.body))
        early = self._early[sender]
        if request is None or self.succession.leader != self._policy.member:
            self.ignored["not the leader"] += 1
        elif not self.succession.roster.inside(sender) or request.since != self.succession.roster.admitted_at[sender]:
            self.ignored["not on the roll"] += 1
        elif frame.slot <= self._taken[sender] or request.previous in early or len(early) >= REQUESTS_MAX:
            self.ignored["duplicate"] += 1
        else:
            early[request.previous] = frame
            while (following := early.pop(self._taken[sender], None)) is not None:
                wanted = decode_request(bytes(following.body))
                self._ready.append((now + self._hold_ns, replace(following, burst=wanted.count if wanted else 0)))
                self._taken[sender] = following.slot

    def _work(self, now: int) -> None:
        while self._ready and self._ready[0][0] <= now and self.succession.may_order(now):
            _, frame = self._ready.popleft()
            if self.succession.roster.inside(frame.sender):
                self.succession.append(now, What.GRANT, frame)
        while self.succession.copies:
            copy = self.succession.copies.popleft()
            if copy.sender != self._policy.member:
                self._keep(copy)
                self._advance(now)
        while self.succession.wants:
            self._hand_out(now, *self.succession.wants.popleft())
        self._close_if_due(now)
        self._send_again(now)
        self._nag(now)

    def _nag(self, now: int) -> None:
        """Whatever was sent may be lost: ask again when it is late."""
        wait = self.bound_ns() + self._timing.gamma_ns
        waiting = [asked for asked in self._asked if not asked.granted]
        if waiting and now > self._asked_at + wait:
            self._asked_at = now
            for asked in waiting:
                self._post(now, asked)
        if self._grants:
            entry = self._grants[0].entry
            on = (entry.position, self._frames_of(entry).next_number)
            if on != self._stuck_on:
                self._stuck_on, self._stuck_at, self._fruitless = on, now, 0
            elif now > self._stuck_at + wait:
                self._stuck_at, self._fruitless = now, self._fruitless + 1
                if self._fruitless > PATIENCE and self.succession.leader not in {None, self._policy.member}:
                    self.succession.diverged(entry.position)
                self._need_frames(now)

    def _need_frames(self, now: int) -> None:
        """Of all grants that wait, not of the first only: who was cut off lacks many."""
        for request, origin, number in self._lacking([grant.entry for grant in islice(self._grants, NEEDED_AT_ONCE)]):
            self.succession.need_frames(now, origin, request, number)

    def _lacking(self, entries: Sequence[Entry]) -> list[tuple[int, int, int]]:
        granted = [(entry, self._frames_of(entry)) for entry in entries if entry.what is What.GRANT]
        return [(e.request, e.origin, f.next_number) for e, f in granted if f.last_number is None or f.missing()]

    def _hand_out(self, now: int, to: int, need: Need) -> None:
        origin, request = need.origin, need.first
        queue = self._rqueues.get(origin)
        frames = [] if queue is None else list(queue.slots.get(request, SlotFrames()).waiting.values())
        for _, sender, of, kept in self._kept:
            if (sender, of) == (origin, request):
                frames = [*kept, *frames]
        for frame in frames:
            self.succession.voice.copy(now, frame, self.succession.promised, to)

    def _due(self) -> int | None:
        times = [self._ready[0][0]] if self._ready and self._hold_ns and self.succession.leading else []
        if self._closes_at is not None:
            times.append(self._closes_at)
        return min(times, default=None)

    # -- delivering ------------------------------------------------------------------------------------------

    def _keep(self, frame: Frame) -> None:
        queue = self._rqueues[frame.sender]
        if frame.slot <= self._done[frame.sender]:
            self.ignored["request already delivered"] += 1
        elif len(queue.slots) >= REQUESTS_MAX or not queue.add(frame):
            self.ignored["duplicate"] += 1

    def _frames_of(self, entry: Entry) -> SlotFrames:
        return self._rqueues[entry.origin].slots.setdefault(entry.request, SlotFrames())

    def _advance(self, now: int) -> None:
        """Grant by grant, as far as frames have come; rolls in between have their turn."""
        accepted = self.succession.stream.accepted
        while accepted:
            entry = accepted.popleft()
            if entry.what is What.GRANT:
                self._last_granted[entry.origin] = entry.request
                if entry.origin == self._policy.member:
                    self._note_granted(now, entry.request)
            elif entry.what is What.ROLL:
                for cut in entry.roll().cuts:
                    self._cut_short(cut, entry.position)
                self._begin_anew(now, entry)
            self._grants.append(Granted(entry))
        while self._grants and self.mode is Mode.DELIVER_MESSAGES:
            grant = self._grants[0]
            if grant.entry.what is What.ROLL:
                self._turn_roll(grant.entry)
            elif not self._deliver_grant(grant):
                return
            self._grants.popleft()
            self.succession.stream.consumed = grant.entry.position

    def _note_granted(self, now: int, request: int) -> None:
        for asked in self._asked:
            if asked.request == request:
                asked.granted = True
        self._asked_at = now

    def _deliver_grant(self, grant: Granted) -> bool:
        """What has come of it; True if that was all."""
        entry, limit = grant.entry, grant.limit
        sender, frames = entry.origin, self._frames_of(entry)
        if not self._kept or self._kept[-1][0] != entry.position:
            self._kept.append((entry.position, sender, entry.request, []))
        ended = limit is not None and frames.next_number >= limit
        while not ended and (frame := frames.waiting.pop(frames.next_number, None)) is not None:
            frames.next_number += 1
            self._kept[-1][3].append(frame)
            run = self._pieces.run_of(sender, frame.flags, frame.run, frame.body)
            if run is not None:
                self._deliver(entry, entry.ordinal + grant.used, frame.first_sequence, run)
                grant.used += run.count
            if frame.flags & FINAL:
                self.succession.roster.finals.add(sender)
            ended = bool(frame.flags & LAST) or frames.next_number == limit
        if not ended:
            return False
        if sender == self._policy.member:
            if limit is not None:
                self._again += [frames.waiting[number] for number in sorted(frames.waiting)]
            if self._asked and self._asked[0].request == entry.request:
                self._asked.popleft()
        self._done[sender] = entry.request
        self._rqueues[sender].forget_before(entry.request + 1)
        end = min(self.succession.stream.stable, self.succession.stream.position - RETAINED)
        while self._kept and self._kept[0][0] <= end:
            self._kept.popleft()
        return True

    # -- members that go and come back -----------------------------------------------------------------------

    def _lacking_of(self, members: Sequence[int]) -> list[tuple[int, int, int]]:
        entries = [*(grant.entry for grant in self._grants), *self.succession.stream.accepted]
        return self._lacking([entry for entry in entries if entry.origin in members])[:NEEDED_AT_ONCE]

    def _cut_of(self, member: int) -> Cut:
        """How far the frames of a member go that have come here: the others are to deliver as many."""
        for grant in self._grants:
            entry = grant.entry
            if entry.what is What.GRANT and entry.origin == member:
                frames = self._frames_of(entry)
                number = frames.next_number
                while number in frames.waiting:
                    number += 1
                if frames.last_number is None or number <= frames.last_number:
                    return Cut(member, entry.request, number)
        return Cut(member, self._last_granted[member] + 1, 0)

    def _cut_short(self, cut: Cut, position: int) -> None:
        if cut.request == ALL:
            return
        for _, sender, request, frames in self._kept:
            most = cut.number if request == cut.request else 0
            if sender == cut.member and request >= cut.request and any(map(carries, frames[most:])):
                # More was delivered here than counts: only a network that loses frames can bring that about.
                self.succession.diverged(position)
        for grant in self._grants:
            if grant.entry.what is What.GRANT and grant.entry.origin == cut.member and grant.limit is None:
                if grant.entry.request == cut.request:
                    grant.limit = cut.number
                elif grant.entry.request > cut.request:
                    grant.limit = 0
        if cut.member == self._policy.member:
            self._void()

    def _void(self) -> None:
        """This member was taken for dead. What it has asked for since is void, and is asked for anew, in order."""
        own = self._rqueues[self._policy.member]
        self._closes_at, self._previous = None, self._last_granted[self._policy.member]
        for asked in [asked for asked in self._asked if not asked.granted]:
            self._asked.remove(asked)
            frames = own.slots.pop(asked.request, SlotFrames())
            self._again += [frames.waiting[number] for number in sorted(frames.waiting)]

    def _send_again(self, now: int) -> None:
        """Back on the roll, with all grants of the earlier life delivered: the rest gets stamps of its own."""
        me = self._policy.member
        if not self._again or not self.succession.roster.inside(me) or self._asked or self.succession.leader is None:
            return
        frames = sorted(self._again, key=lambda frame: (frame.first_sequence, frame.slot, frame.number))
        frames = [frame for frame in frames if carries(frame)]
        self._again = []
        if not frames:
            return
        stamps = sum(1 if frame.run is None else frame.run.count for frame in frames)
        self._ask(now, max(self._request + 1, self._timing.slot_of(now)), stamps)
        for number, frame in enumerate(frames):
            flags = frame.flags & ~LAST | (LAST if number == len(frames) - 1 else 0)
            self._multicast(replace(frame, slot=self._request, number=number, flags=flags, sent_ns=now))

    def _begin_anew(self, now: int, entry: Entry) -> None:
        """What a leader had collected of earlier reigns, or of members that come or go, is void; it is asked again."""
        changed = {member for member, at in self.succession.roster.admitted_at.items() if at == entry.position}
        if entry.reign != self._begun:
            self._begun, changed = entry.reign, set(self._taken)
        for member in changed:
            self._taken[member] = self._last_granted[member]
            self._early[member].clear()
        self._ready = deque(waiting for waiting in self._ready if waiting[1].sender not in changed)
        self._reserve_as_leader()
        if self._policy.member in changed:
            for asked in self._asked:
                if not asked.granted:
                    self._post(now, asked)


def stamping_reservation(policy: Policy, rate: Rate, *, leads: bool) -> Reservation:
    """A member's frames, a request, a release and a beat per slot; the leader's: a grant for each member besides."""
    own = reservation(policy, rate)
    small = HEADER_BYTES + ORDERED_BYTES + UDP_IP_BYTES
    extra = small * (2 + (len(policy.view.members) if leads else 0))
    return Reservation(
        own.avg_bytes_per_s + extra * NS_PER_S // policy.timing.theta_ns, own.burst_bytes_per_slot + extra, own.theta_ns
    )


def offer(ask: Ask) -> Offer:
    """What the timestamp leader gives."""
    timing, rate = ask.timing, ask.rate
    slots = NS_PER_S / timing.theta_ns
    bound, published = latency_bound_ns(timing, ask.processing_ns), constant_delay_bound_ns(timing, ask.processing_ns)
    delta, theta, p = (duration_text(ns) for ns in (timing.delta_ns, timing.theta_ns, ask.processing_ns))
    why = (
        f"latency 2Δ+max(p, Θ) = 2·{delta} + max({p}, {theta}) = {duration_text(bound)}, for any number of members",
        f"(if every delay were exactly Δ: Δ+max(Δ+p, Θ) = {duration_text(published)})",
        f"average {rate.avg:g}/s; per slot a request, a grant, one release of what was not used: 3·{slots:g}/s",
        f"and a beat per slot, {slots:g}/s: {rate.avg + 4 * slots:g}/s; the leader sends {ask.members} grants per slot",
        f"burst {rate.burst} + 2: a request and a grant, since a full burst needs no release; and a beat",
    )
    return led_offer("timestamp", ask, bound, why, average=rate.avg + 4 * slots, burst=rate.burst + 3)
