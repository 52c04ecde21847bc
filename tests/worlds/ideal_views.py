"""Virtual synchrony as the paper assumes it (paper 004 §3.2), with every choice that the paper leaves open.

An ideal group has no network and no time. `enabled` lists what may happen next, and `perform` lets one thing happen.
A test can try all choices one by one, or choose at random. Bodies arrive in FIFO order per sender and in any order
otherwise, so an acknowledgment may arrive before the message that it acknowledges. When a member crashes, the others
count a prefix of what it sent; which prefix is a choice. Members block one by one, receive all that was multicast in
the old view, and install the new view one by one. A newcomer takes the state of one member that stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from unisono.model.message_set import MessageOrigin, MessageRef
from unisono.orders.priority.consumable_queue import PriorityMessage
from unisono.orders.priority.insertion import DecisionMode, Insertion, Received
from unisono.orders.priority.messages import Ack, PriorityBody, PriorityState, decode_state, encode_state

Action: TypeAlias = tuple[str | int, ...]
"""An action and its subject: ("receive", member, sender), ("crash", member, how much of it counts), …"""


@dataclass(slots=True)
class RecordedStep:
    """What happened at one member, in its order: "send", "receive", "queue" or "deliver", and at which step of the run.

    `index` is how many messages the member had consumed, `position` its place in the agreed order.
    """

    kind: str
    step: int
    message: PriorityMessage
    index: int
    position: int
    detail: str = ""
    view: int | None = None
    """In which view a message was received."""


@dataclass(slots=True)
class Peer:
    """A member of the ideal group."""

    member: int
    incarnation: int
    core: Insertion
    script: list[int]
    """The priorities of the messages that it will send, in order."""
    view: int = 0
    received_counts: dict[MessageOrigin, int] = field(default_factory=dict)
    unicasts: dict[int, list[tuple[int, Ack]]] = field(default_factory=dict)
    """By teller: what it said to this member alone, and in which view."""
    blocked: bool = False
    backlog: list[PriorityBody] = field(default_factory=list)
    sent: int = 0
    leaving: bool = False
    consumed: list[MessageRef] = field(default_factory=list)
    first_position: int = 0
    recorded_steps: list[RecordedStep] = field(default_factory=list)
    views: list[tuple[int, int, tuple[MessageOrigin, ...]]] = field(default_factory=list)
    """(step, view, members) of each installed view."""
    outcome: str = ""
    """Empty, "crashed" or "left"; and at which step of the run."""
    ended_at_step: int = 0
    started_at_step: int = 0

    @property
    def origin(self) -> MessageOrigin:
        return self.member, self.incarnation

    @property
    def up(self) -> bool:
        return not self.outcome


@dataclass(slots=True)
class IdealViewChange:
    """A view change under way: who goes on, who comes, and how much of each leaver's messages counts."""

    staying: list[int]
    newcomers: list[int]
    leavers: list[int]
    installed: list[int] = field(default_factory=list)
    states: dict[int, PriorityState] = field(default_factory=dict)


class IdealGroup:
    """Members over ideal views.

    `scripts` gives the priorities that each first member sends, `can_join` those of members that may join, or come back
    after a crash. `crashes` and `leaves` limit how many of each may happen; `can_crash` lists
    the members that may crash.
    """

    def __init__(
        self,
        scripts: Mapping[int, Sequence[int]],
        *,
        form: DecisionMode = DecisionMode.ALL,
        report_every: int = 1 << 30,
        crashes: int = 0,
        leaves: int = 0,
        join_scripts: Mapping[int, Sequence[int]] | None = None,
        crash_candidates: Iterable[int] | None = None,
    ) -> None:
        self.form = form
        self.report_every = report_every
        self.remaining_crashes = crashes
        self.remaining_leaves = leaves
        self.join_scripts = {member: list(script) for member, script in (join_scripts or {}).items()}
        self.crash_candidates = None if crash_candidates is None else frozenset(crash_candidates)
        self.peers: dict[int, Peer] = {}
        self.past_incarnations: list[Peer] = []
        """Earlier incarnations of members that have come back."""
        self.view = 1
        self.members: tuple[int, ...] = tuple(sorted(scripts))
        self.bodies: dict[tuple[int, MessageOrigin], list[PriorityBody]] = {}
        """What was multicast, by view and sender."""
        self.surviving_counts: dict[tuple[int, MessageOrigin], int] = {}
        """How much of what a crashed member multicast in its last view counts."""
        self.view_change: IdealViewChange | None = None
        self.next_members = self.members
        self.steps = 0
        for member in self.members:
            self.peers[member] = Peer(member, 1, self._new_core(member, 1), list(scripts[member]))
        for member in self.members:
            self._enter_view(self.peers[member], joining=False)

    def _new_core(self, member: int, incarnation: int) -> Insertion:
        return Insertion(member, incarnation, self.form, report_every=self.report_every)

    # -- what may happen -------------------------------------------------------------------------------------

    def enabled(self) -> list[Action]:
        """Everything that may happen next, in a fixed order."""
        found: list[Action] = []
        for member in sorted(self.peers):
            peer = self.peers[member]
            if not peer.up or not peer.view:
                continue
            senders = self.senders(peer.view)
            found += [
                ("receive", member, *s)
                for s in senders
                if peer.received_counts.get(s, 0) < self.receivable_count(peer.view, s)
            ]
            found += [
                ("told", member, t) for t, acks in sorted(peer.unicasts.items()) if acks and acks[0][0] == peer.view
            ]
            first = peer.core.queue.first
            if first is not None and not first.locks and not peer.leaving:
                found.append(("consume", member))
            if peer.sent < len(peer.script) and not peer.leaving:
                found.append(("send", member))
        return found + self._view_actions()

    def _view_actions(self) -> list[Action]:
        found: list[Action] = []
        change = self.view_change
        if change is not None:
            waiting = [m for m in (*change.staying, *change.leavers) if self.peers[m].up and not self.peers[m].blocked]
            found += [("block", member) for member in waiting if member not in change.installed]
            if not any(member not in change.installed for member in waiting):
                found += [("install", member) for member in change.staying if self._can_install(member)]
                donors = sorted(change.states)
                for member in change.newcomers:
                    if member not in change.installed:
                        found += [("join", member, donor) for donor in donors]
        going = [m for m in self.members if self.peers[m].up and not self.peers[m].leaving]
        for member in self.members:
            peer = self.peers[member]
            if not peer.up or going in ([], [member]):
                continue
            if self.remaining_crashes and (self.crash_candidates is None or member in self.crash_candidates):
                found += [("crash", member, cut) for cut in self._possible_surviving_counts(peer)]
            if self.remaining_leaves and not peer.leaving:
                found.append(("leave", member))
            if change is None and peer.core.may_depart():
                found.append(("depart", member))
        if change is None:
            found += [("admit", member) for member in sorted(self.join_scripts) if not self._is_up(member)]
        return found

    def _is_up(self, member: int) -> bool:
        return member in self.peers and self.peers[member].up

    def senders(self, view: int) -> list[MessageOrigin]:
        """The members that have multicast in a view."""
        return sorted(origin for of, origin in self.bodies if of == view)

    def receivable_count(self, view: int, sender: MessageOrigin) -> int:
        """How many of a sender's multicasts of a view there are to be received."""
        sent = len(self.bodies[view, sender])
        return min(sent, self.surviving_counts.get((view, sender), sent))

    def _possible_surviving_counts(self, peer: Peer) -> list[int]:
        """How much of what a crashing member sent may count: at least what some other member has received."""
        sent = len(self.bodies.get((peer.view, peer.origin), ()))
        if self.view_change is not None and self.view_change.installed and peer.view == self.view:
            return [sent]  # somebody has gone on already, and had all of it
        others = [p for p in self.peers.values() if p.up and p is not peer and p.view == peer.view]
        return list(range(max((p.received_counts.get(peer.origin, 0) for p in others), default=0), sent + 1))

    def _can_install(self, member: int) -> bool:
        change, peer = self.view_change, self.peers[member]
        if change is None or member in change.installed or not peer.up:
            return False
        return all(
            peer.received_counts.get(s, 0) >= self.receivable_count(self.view, s) for s in self.senders(self.view)
        )

    # -- letting it happen -----------------------------------------------------------------------------------

    def perform(self, action: Action) -> None:
        """Let one thing happen."""
        self.steps += 1
        kind, member = str(action[0]), int(action[1])
        peer = self.peers.get(member)
        if kind == "admit":
            self._start_view_change(newcomers=[member])
            return
        if kind == "join":
            self._join(member, int(action[2]))
            return
        if peer is None:
            raise ValueError(f"there is no member {member}")
        match kind:
            case "send":
                priority = peer.script[peer.sent]
                payload = b"%d/%d" % (member, peer.sent)
                self._record(peer, "send", peer.core.send(peer.sent, priority, payload))
                peer.sent += 1
            case "receive":
                self._receive(peer, (int(action[2]), int(action[3])))
            case "told":
                teller = int(action[2])
                peer.core.receive_ack(self.peers[teller].origin, peer.unicasts[teller].pop(0)[1])
            case "consume":
                self._consume(peer)
            case "block":
                peer.blocked = True
            case "install":
                self._install(peer)
            case "crash":
                self._crash(peer, int(action[2]))
            case "leave":
                self.remaining_leaves -= 1
                peer.leaving = True
                peer.core.leave()
            case "depart":
                self._start_view_change(leavers=[member])
            case _:
                raise ValueError(f"nothing is called {kind}")
        self._collect_output(peer)

    def _receive(self, peer: Peer, sender: MessageOrigin) -> None:
        number = peer.received_counts.get(sender, 0)
        peer.received_counts[sender] = number + 1
        peer.core.receive(sender, self.bodies[peer.view, sender][number])

    def _consume(self, peer: Peer) -> None:
        message = peer.core.consume()
        if message is not None:
            self._record(peer, "deliver", message)
            peer.consumed.append(message.ref)

    def _record(
        self, peer: Peer, kind: str, message: PriorityMessage, detail: str = "", view: int | None = None
    ) -> None:
        index = len(peer.consumed)
        peer.recorded_steps.append(
            RecordedStep(kind, self.steps, message, index, peer.first_position + index, detail, view)
        )

    def _collect_output(self, peer: Peer) -> None:
        """Carry away what a member has to say."""
        core = peer.core
        for step in core.steps:
            if isinstance(step, Received):
                view = None if step.inherited else peer.view
                self._record(peer, "receive", step.message, str(step.target_tail), view)
            else:
                self._record(peer, "queue", step.message, str(step.insertion_point))
        core.steps.clear()
        if not peer.up:
            core.to_multicast.clear()
            core.to_unicast.clear()
            return
        for body in core.to_multicast:
            self._multicast(peer, body)
        core.to_multicast.clear()
        for to, ack in core.to_unicast:
            other = self.peers[to]
            if not peer.blocked and other.up:
                other.unicasts.setdefault(peer.member, []).append((peer.view, ack))
        core.to_unicast.clear()

    def _multicast(self, peer: Peer, body: PriorityBody) -> None:
        if peer.blocked:
            peer.backlog.append(body)
        else:
            self.bodies.setdefault((peer.view, peer.origin), []).append(body)

    # -- views -----------------------------------------------------------------------------------------------

    def _start_view_change(self, *, newcomers: Iterable[int] = (), leavers: Iterable[int] = ()) -> IdealViewChange:
        leaving = list(leavers)
        stay = [m for m in self.members if self.peers[m].up and m not in leaving]
        self.view_change = IdealViewChange(stay, list(newcomers), leaving)
        return self.view_change

    def _crash(self, peer: Peer, surviving_count: int) -> None:
        self.remaining_crashes -= 1
        peer.outcome, peer.ended_at_step = "crashed", self.steps
        for other in self.peers.values():
            other.unicasts.pop(peer.member, None)
        self.surviving_counts[peer.view, peer.origin] = surviving_count
        change = self.view_change or self._start_view_change()
        change.staying = [m for m in change.staying if m != peer.member]
        change.leavers = [m for m in change.leavers if m != peer.member]
        self._finish_view_change_if_done()

    def _install(self, peer: Peer) -> None:
        change = self.view_change
        if change is None:
            raise ValueError("no view change is under way")
        if change.newcomers:
            change.states[peer.member] = decode_state(encode_state(peer.core.state()))
        change.installed.append(peer.member)
        if len(change.installed) == 1:
            for member in change.leavers:
                if self.peers[member].up:
                    self.peers[member].outcome, self.peers[member].ended_at_step = "left", self.steps
            self.next_members = tuple(sorted((*change.staying, *change.newcomers)))
            for member in change.newcomers:
                self._create_joiner(member)
        self._enter_view(peer, joining=False)
        self._finish_view_change_if_done()

    def _create_joiner(self, member: int) -> None:
        old = self.peers.get(member)
        incarnation = 1 if old is None else old.incarnation + 1
        if old is not None:
            self.past_incarnations.append(old)
        script = self.join_scripts.pop(member)
        self.peers[member] = Peer(member, incarnation, self._new_core(member, incarnation), script)

    def _join(self, member: int, donor: int) -> None:
        change, peer = self.view_change, self.peers[member]
        if change is None:
            raise ValueError("no view change is under way")
        peer.core.restore(change.states[donor])
        peer.first_position, peer.started_at_step = peer.core.position, self.steps
        change.installed.append(member)
        self._enter_view(peer, joining=True)
        self._collect_output(peer)
        self._finish_view_change_if_done()

    def _enter_view(self, peer: Peer, *, joining: bool) -> None:
        peer.view = peer.view + 1 if peer.view else (self.view + 1 if self.view_change else self.view)
        peer.received_counts, peer.blocked = {}, False
        for teller, acks in peer.unicasts.items():
            peer.unicasts[teller] = [(view, ack) for view, ack in acks if view >= peer.view]
        members = self.next_members if self.view_change is not None else self.members
        backlog, peer.backlog = peer.backlog, []
        for body in backlog:
            self._multicast(peer, body)
        origins = tuple(self.peers[m].origin for m in members)
        peer.views.append((self.steps, peer.view, origins))
        peer.core.new_view(peer.view, origins, joining=joining)
        self._collect_output(peer)

    def _finish_view_change_if_done(self) -> None:
        change = self.view_change
        if change is None or not change.installed:
            return
        remaining = [m for m in (*change.staying, *change.newcomers) if m not in change.installed]
        if remaining:
            return
        self.view_change = None
        self.view += 1
        self.members = self.next_members
        if not all(self.peers[member].up for member in self.members):
            self._start_view_change()

    # -- looking ---------------------------------------------------------------------------------------------

    def only_optional(self, actions: Iterable[Action]) -> bool:
        """Whether of these actions none need happen: they are crashes, joins and leaves."""
        return all(action[0] in {"crash", "leave", "admit"} for action in actions)

    def survivors(self) -> list[Peer]:
        """Members that neither crashed nor left."""
        return [self.peers[member] for member in sorted(self.peers) if self.peers[member].up]
