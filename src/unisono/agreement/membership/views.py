"""Membership with virtual synchrony (paper 004 §3.2; paper 002 §2.2): agreed views, and messages that keep to them.

The members of a view agree on the next one, and on the cut that ends this one, by one instance of consensus among
themselves. So there is one sequence of views: a partition that has the majority of the last view goes on, a minority
stops handing out messages and says so.

A view changes when a member is suspected, wants to come or wants to go. Whoever coordinates (the first that is not
suspected) asks those who go on to stop and to say what they have received; then that everybody who goes on fetches
what one of them has; then it proposes. Whoever has stopped hands nothing out until the decision, and then exactly the
cut: all who install the next view have received the same messages in this one. A newcomer is given the state of a
member at that cut. A member that the others went on without learns it from anybody, and is out; it may come back in
another incarnation.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from functools import partial

from unisono.agreement.failure_detector import MISTAKES_PER_S, Detector
from unisono.agreement.membership import messages as wire
from unisono.agreement.membership.blocked_time import Standstill
from unisono.agreement.membership.contract import Happening, NewView, Out, StateGiven, StateWanted
from unisono.agreement.membership.flush import Attempt
from unisono.agreement.membership.messages import (
    Acks,
    Cut,
    Enter,
    Flush,
    Flushed,
    Need,
    NextView,
    Passed,
    Said,
    Sent,
    State,
    Went,
)
from unisono.agreement.membership.multicast import WAITING_MAX, ViewMulticast
from unisono.agreement.membership.past_views import PastViews
from unisono.agreement.membership.requests import Wishes
from unisono.agreement.membership.state_transfer import Entering, Giving, described
from unisono.agreement.paxos.consensus import Consensus
from unisono.agreement.paxos.decisions import Decision
from unisono.errors import UnisonoError
from unisono.model.durations import earliest
from unisono.model.events import Violation
from unisono.model.ids import EVERYONE
from unisono.wire.frame import HEADER_BYTES, Frame


class Membership:
    """The automaton of one member in one incarnation; keeps `view_contract.ViewSynchrony`."""

    kinds = frozenset({*wire.DECODERS, *Consensus.kinds, *Detector.kinds})

    def __init__(
        self,
        me: int,
        founders: Sequence[int],
        *,
        incarnation: int,
        every_ns: int,
        retry_ns: int,
        max_frame: int = 1400,
        mistakes_per_s: float = MISTAKES_PER_S,
        founding: bool = True,
    ) -> None:
        """A majority of the `founders` may begin the group, if this member is `founding`; all others join."""
        self.down: list[Frame] = []
        self.stream: list[Happening] = []
        self.violations: list[Violation] = []
        self.ignored = Counter[str]()
        self.standstill = Standstill()
        """How long view changes kept messages from being handed out here."""
        self.me, self.incarnation = me, incarnation
        self.view_id = 0
        self.lives: dict[int, int] = dict.fromkeys(founders, 0)
        """The members of the view, each with its incarnation; before the first view, the founders."""
        self.out = False
        self._every_ns, self._retry_ns, self._max_frame = every_ns, retry_ns, max_frame
        self._room = max_frame - HEADER_BYTES - wire.OVERHEAD_BYTES
        self.detector = Detector(
            me, founders, every_ns=every_ns, mistakes_per_s=mistakes_per_s, incarnation=incarnation
        )
        self._consensus: Consensus | None = self._agreement(founders) if founding and me in founders else None
        self._messages: ViewMulticast | None = None
        self._early: deque[bytes] = deque()
        self._entering: Entering | None = Entering()
        self._giving, self._past = Giving(0, b""), PastViews()
        self._wishes = Wishes(self.detector)
        self._leaving = False
        self._attempt: Attempt | None = None
        self._attempts = self._retry_at = self._ack_at = 0
        self._started_ns: int | None = None

    def _agreement(self, members: Sequence[int]) -> Consensus:
        agree = partial(Consensus, self.me, members, every_ns=self._every_ns, retry_ns=self._retry_ns, window=1)
        life, frame, epoch = self.incarnation, self._max_frame, self.view_id
        return agree(max_frame=frame, incarnation=life, epoch=epoch, detector=self.detector)

    # -- what the owner does ---------------------------------------------------------------------------------

    def room(self) -> int:
        """How many more messages may wait here; whoever multicasts more than that is refused."""
        return WAITING_MAX - len(self._waiting())

    def multicast(self, now: int, body: bytes) -> None:
        """To every member of the view, this one included; while a view changes it waits for the next."""
        if self.room() <= 0:
            raise UnisonoError(f"{WAITING_MAX:,} messages wait already; ask room() before multicasting")
        if self._messages is None:
            self._early.append(body)
        else:
            self._messages.multicast(now, body)
            self._settle(now)

    def tell(self, now: int, to: int, body: bytes) -> None:
        """To one other member of the view."""
        if self._messages is not None and not self.blocked():
            self._messages.tell(now, to, body)

    def blocked(self) -> bool:
        """Whether a view change is under way, or there is no view."""
        return self._messages is None or self._messages.frozen

    def give_state(self, now: int, view_id: int, state: bytes) -> None:
        """The answer to StateWanted."""
        self._giving.set(view_id, state)

    def leave(self, now: int) -> None:
        """Go when everybody has what this member multicast, and what it had; before the first view, at once."""
        self._leaving = True
        if self._messages is None:
            self._end("it left before its first view")

    # -- what happens ----------------------------------------------------------------------------------------

    def from_below(self, now: int, frame: Frame) -> None:
        """A frame has arrived."""
        if self.out:
            return
        if frame.kind in Detector.kinds:
            self.detector.from_below(now, frame)
        elif frame.kind in Consensus.kinds:
            self._on_agreement(now, frame)
        else:
            message = wire.DECODERS[frame.kind](bytes(frame.body))
            if isinstance(message, Enter):
                self._on_enter(now, frame, message)
            elif isinstance(message, Went):
                self._on_went(now, message)
            elif isinstance(message, State):
                self._on_state(now, message)
            elif message is not None and self._of_this_view(now, frame):
                self._on_message(now, frame.sender, message)
        self._settle(now)

    def _of_this_view(self, now: int, frame: Frame) -> bool:
        """Whether a frame counts; whoever is in an earlier view is told what its members agreed on."""
        if frame.epoch < self.view_id:
            self._say(now, self._past.answer(frame.epoch, self.view_id, self.lives), frame.sender)
            self.ignored["of an earlier view"] += 1
            return False
        if frame.epoch > self.view_id:
            self._say(now, None if self._messages is None else self._messages.acks(), frame.sender)
            self.ignored["of a later view"] += 1
            return False
        if self._messages is None or self.lives.get(frame.sender) != frame.incarnation:
            self.ignored["not in the view"] += 1
            return False
        return True

    def _on_agreement(self, now: int, frame: Frame) -> None:
        forming = self._messages is None and frame.epoch == 0
        if (forming or self._of_this_view(now, frame)) and self._consensus is not None:
            self._consensus.from_below(now, frame)

    def _on_message(self, now: int, sender: int, message: wire.Message) -> None:
        messages = self._messages
        assert messages is not None
        match message:
            case Sent():
                messages.on_sent(now, sender, message)
            case Passed() if message.member in self.lives:
                messages.on_sent(now, message.member, Sent(message.number, message.flags, message.body))
            case Said():
                messages.on_said(now, sender, message)
            case Acks():
                messages.on_acks(now, sender, message)
            case Need():
                messages.answer(now, sender, message)
            case Flush():
                self._stop(now)
                self._say(now, Flushed(message.attempt, False, messages.received), sender)
            case Cut():
                self._stop(now)
                if messages.lacks(message.received):
                    messages.fetch(now, message.received, message.holders)
                else:
                    self._say(now, Flushed(message.attempt, True, {}), sender)
            case Flushed():
                # Without an attempt of ours it was somebody else's, who is gone: those who stopped wait for us.
                self._stop(now)
                if self._attempt is not None:
                    self._attempt.hear(sender, message)
            case _:
                self.ignored["out of place"] += 1

    def _on_enter(self, now: int, frame: Frame, enter: Enter) -> None:
        sender, life = frame.sender, frame.incarnation
        if enter.leaving:
            if self.lives.get(sender) == life and enter.view_id == self.view_id:
                self._wishes.going.add(sender)
            return
        if self._messages is not None and self.lives.get(sender) == life:
            self._give(now, sender, enter)
        elif self._messages is None or life > self.lives.get(sender, -1):
            self._wishes.come(now, self.lives, sender, life)
            self._say(now, self._past.latest(), sender)

    def wake(self, now: int) -> None:
        """Time has passed."""
        if self.out:
            return
        if self._started_ns is None:
            self._started_ns = now
        self.detector.wake(now)
        if self._consensus is not None:
            self._consensus.wake(now)
        messages = self._messages
        if now >= self._retry_at:
            self._retry_at = now + max(self._retry_ns, self.detector.pace_ns())
            self._ask_again(now)
        if messages is not None and now >= self._ack_at and (messages.news or messages.unstable()):
            self._ack_at = now + (self._retry_ns // 4 if messages.news else self._every_ns)
            messages.news = False
            self._say(now, messages.acks())
        self._settle(now)

    def wake_at(self) -> int | None:
        """The next heartbeat, acknowledgment or retry."""
        if self.out:
            return None
        times: list[int | None] = [self.detector.wake_at(), self._retry_at]
        if self._consensus is not None:
            times.append(self._consensus.wake_at())
        if self._messages is not None and (self._messages.news or self._messages.unstable()):
            times.append(self._ack_at)
        return earliest(times)

    def _ask_again(self, now: int) -> None:
        messages = self._messages
        if self._entering is not None:
            self._say(now, self._entering.ask())
        if messages is None:
            return
        messages.again(now, self.detector.trusted(messages.peers))
        if self._leaving and (self.me in self._wishes.going or messages.settled()):
            self._say(now, Enter(True, 0, self.view_id, 0, 0))
            self._wishes.going.add(self.me)
        if self._attempt is not None:
            self._ask(now, self._attempt)
        elif messages.frozen:
            self._say(now, Flushed(0, False, messages.received), min(self.detector.trusted(messages.members)))
        self._wishes.forget(now, self._retry_ns)

    # -- the change of views ---------------------------------------------------------------------------------

    def _change_if_wanted(self, now: int) -> None:
        messages = self._messages
        if messages is None or (not messages.frozen and self._wishes.none()):
            return
        wanted = self._wishes.wanted(self.lives)
        if wanted == self.lives and not messages.frozen:
            return
        if not wanted:
            self._end("it left, the last of all")
            return
        survivors = tuple(m for m, life in self.lives.items() if wanted.get(m) == life)
        if self._attempt is not None and self._attempt.proposed:
            return
        if min(survivors, default=0) != self.me:
            self._attempt = None
            return
        if self._attempt is None or self._attempt.members != wanted:
            self._attempts += 1
            self._attempt = Attempt(self._attempts, wanted, survivors)
            self._stop(now)
            self._ask(now, self._attempt)
        self._go_on(now, self._attempt)

    def _ask(self, now: int, attempt: Attempt) -> None:
        question, missing = attempt.question()
        for member in missing:
            if member != self.me:
                self._say(now, question, member)
            elif isinstance(question, Cut) and self._messages is not None:
                self._messages.fetch(now, question.received, question.holders)

    def _go_on(self, now: int, attempt: Attempt) -> None:
        """Answer oneself, and propose when everybody is ready."""
        messages = self._messages
        assert messages is not None
        question, missing = attempt.question()
        if self.me in missing and isinstance(question, Flush):
            attempt.hear(self.me, Flushed(attempt.number, False, dict(messages.received)))
            question, missing = attempt.question()
        if isinstance(question, Cut) and not attempt.cut_asked:
            attempt.cut_asked = True
            self._ask(now, attempt)
        if self.me in missing and isinstance(question, Cut) and not messages.lacks(question.received):
            attempt.hear(self.me, Flushed(attempt.number, True, {}))
        following = attempt.result()
        # Those who go of their own will have a say in who stays; those who are cut off do not.
        voices = {*attempt.survivors, *self._wishes.going}
        enough = self._consensus is not None and len(voices) >= self._consensus.majority
        if following is not None and enough and self._consensus is not None:
            attempt.proposed = True
            self._consensus.propose(now, 1, wire.encode_next_view(following))

    def _stop(self, now: int) -> None:
        if self._messages is not None and not self._messages.frozen:
            self._messages.frozen = True
            self.standstill.begin(now)

    def _on_went(self, now: int, went: Went) -> None:
        if went.view_id == self.view_id:
            self._decided(now, went.value)
        elif self._messages is None:
            self._consensus = None  # there is a group: it is not for us to begin one
        elif went.view_id > self.view_id:
            following = wire.decode_next_view(went.value)
            if following is not None and following.members.get(self.me) != self.incarnation:
                self._end()

    def _decided(self, now: int, value: bytes) -> None:
        following = wire.decode_next_view(value)
        if following is None:
            self.ignored["malformed"] += 1
            return
        inside = following.members.get(self.me) == self.incarnation
        if self._messages is None:
            self._consensus = None
            if inside:
                self._install(now, 1, following, value)
        elif inside:
            self._messages.close(following.cut)
            self._take_out()
            self._install(now, self.view_id + 1, following, value)
        else:
            self._say(now, Went(self.view_id, value))
            self._end()

    def _install(self, now: int, view_id: int, following: NextView, decided: bytes) -> None:
        """The next view begins, for somebody who was in the last one or founded the group."""
        self._past.note(view_id - 1, decided)
        before, waiting = (self.lives if self._messages is not None else {}), self._waiting()
        joined = tuple(m for m, life in sorted(following.members.items()) if before.get(m) != life)
        left = tuple(m for m, life in sorted(before.items()) if following.members.get(m) != life)
        self._begin(now, view_id, following.members)
        if before and joined:
            self._giving = Giving(view_id, described(following.members, joined, left, decided))
            self.stream.append(StateWanted(view_id))
        self._announce(now, joined, left, waiting)

    def _begin(self, now: int, view_id: int, members: wire.Vector) -> None:
        self.view_id, self.lives = view_id, dict(sorted(members.items()))
        self._messages = ViewMulticast(self.me, self.lives, view_id, self._say, self._room)
        self._consensus = self._agreement(tuple(self.lives))
        self._entering = self._attempt = None
        self._wishes.begin(now, self.lives)
        self._retry_at = now

    def _announce(self, now: int, joined: tuple[int, ...], left: tuple[int, ...], waiting: Sequence[bytes]) -> None:
        gap_ns = self.standstill.end(now)
        self.stream.append(NewView(self.view_id, tuple(self.lives), tuple(self.lives.values()), joined, left, gap_ns))
        self._early.clear()
        for body in waiting:
            self.multicast(now, body)

    def _waiting(self) -> Sequence[bytes]:
        return tuple(self._early if self._messages is None else self._messages.waiting)

    def _end(self, reason: str = "") -> None:
        if not self.out:
            self.out, unless_told = True, "it left" if self._leaving else "the others went on without this member"
            self.stream.append(Out(reason or unless_told))

    # -- newcomers -------------------------------------------------------------------------------------------

    def _give(self, now: int, to: int, enter: Enter) -> None:
        """A newcomer asks for its state, another giver each turn; in the first view it needs only to be told."""
        if self.view_id == 1:
            self._say(now, self._past.of(0), to)
        givers = [m for m in self.lives if m != to and not self.detector.suspected(m)]
        if enter.giver == self.me or (givers and givers[enter.turn % len(givers)] == self.me):
            for state in self._giving.answer(self.me, self.view_id, enter, self._room):
                self._say(now, state, to)

    def _on_state(self, now: int, state: State) -> None:
        if self._entering is None:
            return
        entry = self._entering.take(state)
        if entry is not None and entry.members.get(self.me) == self.incarnation:
            waiting = self._waiting()
            self._begin(now, entry.view_id, entry.members)
            self._past.note(entry.view_id - 1, entry.decided)
            self._giving = Giving(entry.view_id, entry.description, entry.state)
            self.stream.append(StateGiven(entry.view_id, entry.state))
            self._announce(now, entry.joined, entry.left, waiting)
        elif self._entering.hungry():
            self._say(now, self._entering.ask(), state.giver)

    # -- settling --------------------------------------------------------------------------------------------

    def _settle(self, now: int) -> None:
        if self.out:
            return
        self._found_if_possible(now)
        self._change_if_wanted(now)
        consensus = self._consensus
        if consensus is not None:
            self.down += consensus.down
            consensus.down.clear()
            consensus.writes.clear()
            decisions = consensus.decisions[:]
            consensus.decisions.clear()
            for decision in decisions:
                if isinstance(decision, Decision) and decision.k == 1 and self._consensus is consensus:
                    self._decided(now, decision.value)
        if self.detector.down:
            self.down += self.detector.down
            self.detector.down.clear()
        self._take_out()
        complaint = self.standstill.complaint(now, self.me, self.view_id, self.lives, self.detector)
        if complaint is not None:
            self.violations.append(complaint)

    def _found_if_possible(self, now: int) -> None:
        """The founders agree on the first view when all have come, or a majority and the patience is over."""
        consensus = self._consensus
        if self._messages is not None or consensus is None or not consensus.leading or self._started_ns is None:
            return
        come = {self.me: self.incarnation}
        come |= {m: life for m in self.lives if (life := self._wishes.coming(m)) is not None}
        patient = now < self._started_ns + 4 * self.detector.timeout_ns(self.me)
        # Whoever comes back to a running group hears of it meanwhile, and does not begin another.
        listened = now >= self._started_ns + 2 * self._every_ns
        if (listened and len(come) == len(self.lives)) or (not patient and len(come) >= consensus.majority):
            consensus.propose(now, 1, wire.encode_next_view(NextView(come, {})))

    def _take_out(self) -> None:
        if self._messages is not None:
            self.stream += self._messages.out
            self._messages.out.clear()

    def _say(self, now: int, message: wire.Message | None, to: int = EVERYONE) -> None:
        if message is None:
            return
        kind, body = wire.encode(message)
        self.down.append(Frame(kind, self.me, self.incarnation, self.view_id, 0, 0, sent_ns=now, body=body, to=to))
