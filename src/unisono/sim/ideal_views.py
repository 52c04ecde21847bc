"""Virtual synchrony as the paper assumes it (paper 004 §3.2), with every choice that it leaves open in the open.

An ideal group has no network and no time: `enabled` lists what may happen next and `do` lets one thing happen. What a
real group could do in any order is here one choice among the others, so that all of them can be tried one by one, or
drawn by lot. Bodies come in FIFO order per sender and in no order otherwise: an acknowledgment may come before the
message that it acknowledges. A member that crashes has, for those that go on, sent a prefix of what it sent; which
one is a choice. Members block one by one, get all that was multicast in the old view, and install the new one one by
one; a newcomer takes the state of one of those that stay, at its cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from unisono.model.message_set import Origin, Ref
from unisono.orders.priority.insertion import Form, Insertion, Received
from unisono.orders.priority.messages import Ack, Body
from unisono.orders.priority.queue import Joining
from unisono.orders.priority.state_messages import State, decode_state, encode_state

Action: TypeAlias = tuple[str | int, ...]
"""What may happen, and to whom: ("receive", member, sender), ("crash", member, how much of it counts), …"""


@dataclass(slots=True)
class Noted:
    """What happened at one member, in its order: "send", "receive", "queue" or "deliver", and at which step of the run.

    `index` is how many messages the member had consumed, `position` its place in the agreed order.
    """

    kind: str
    at: int
    message: Joining
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
    got: dict[Origin, int] = field(default_factory=dict)
    told: dict[int, list[tuple[int, Ack]]] = field(default_factory=dict)
    """By teller: what it said to this member alone, and in which view."""
    blocked: bool = False
    backlog: list[Body] = field(default_factory=list)
    sent: int = 0
    leaving: bool = False
    consumed: list[Ref] = field(default_factory=list)
    first_position: int = 0
    notes: list[Noted] = field(default_factory=list)
    views: list[tuple[int, int, tuple[Origin, ...]]] = field(default_factory=list)
    """At which step it installed which view, and who is in that."""
    fate: str = ""
    """Empty, "crashed" or "left"; and at which step of the run."""
    ended_at: int = 0
    began_at: int = 0

    @property
    def origin(self) -> Origin:
        return self.member, self.incarnation

    @property
    def up(self) -> bool:
        return not self.fate


@dataclass(slots=True)
class Change:
    """A view change under way: who goes on, who comes, and how much of each leaver's messages counts."""

    stay: list[int]
    newcomers: list[int]
    leavers: list[int]
    installed: list[int] = field(default_factory=list)
    states: dict[int, State] = field(default_factory=dict)


class IdealGroup:
    """Members over ideal views.

    `scripts` gives the priorities that each first member sends, `can_join` those of members that may join, or come back
    after a crash. `crashes` and `leaves` say how many of each may happen; `can_crash`, to whom.
    """

    def __init__(
        self,
        scripts: Mapping[int, Sequence[int]],
        *,
        form: Form = Form.ALL,
        report_every: int = 1 << 30,
        crashes: int = 0,
        leaves: int = 0,
        can_join: Mapping[int, Sequence[int]] | None = None,
        can_crash: Iterable[int] | None = None,
    ) -> None:
        self.form = form
        self.report_every = report_every
        self.crashes = crashes
        self.leaves = leaves
        self.can_join = {member: list(script) for member, script in (can_join or {}).items()}
        self.can_crash = None if can_crash is None else frozenset(can_crash)
        self.peers: dict[int, Peer] = {}
        self.past: list[Peer] = []
        """Earlier incarnations of members that have come back."""
        self.view = 1
        self.members: tuple[int, ...] = tuple(sorted(scripts))
        self.bodies: dict[tuple[int, Origin], list[Body]] = {}
        """What was multicast, by view and sender."""
        self.cuts: dict[tuple[int, Origin], int] = {}
        """How much of what a crashed member multicast in its last view counts."""
        self.change: Change | None = None
        self.next_members = self.members
        self.steps = 0
        for member in self.members:
            self.peers[member] = Peer(member, 1, self._core(member, 1), list(scripts[member]))
        for member in self.members:
            self._enter(self.peers[member], joining=False)

    def _core(self, member: int, incarnation: int) -> Insertion:
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
            found += [("receive", member, *s) for s in senders if peer.got.get(s, 0) < self.limit(peer.view, s)]
            found += [("told", member, t) for t, acks in sorted(peer.told.items()) if acks and acks[0][0] == peer.view]
            first = peer.core.queue.first
            if first is not None and not first.locks and not peer.leaving:
                found.append(("consume", member))
            if peer.sent < len(peer.script) and not peer.leaving:
                found.append(("send", member))
        return found + self._changes()

    def _changes(self) -> list[Action]:
        found: list[Action] = []
        change = self.change
        if change is not None:
            waiting = [m for m in (*change.stay, *change.leavers) if self.peers[m].up and not self.peers[m].blocked]
            found += [("block", member) for member in waiting if member not in change.installed]
            if not any(member not in change.installed for member in waiting):
                found += [("install", member) for member in change.stay if self._can_install(member)]
                donors = sorted(change.states)
                for member in change.newcomers:
                    if member not in change.installed:
                        found += [("join", member, donor) for donor in donors]
        going = [m for m in self.members if self.peers[m].up and not self.peers[m].leaving]
        for member in self.members:
            peer = self.peers[member]
            if not peer.up or going in ([], [member]):
                continue
            if self.crashes and (self.can_crash is None or member in self.can_crash):
                found += [("crash", member, cut) for cut in self._cuts(peer)]
            if self.leaves and not peer.leaving:
                found.append(("leave", member))
            if change is None and peer.core.may_depart():
                found.append(("depart", member))
        if change is None:
            found += [("admit", member) for member in sorted(self.can_join) if not self._present(member)]
        return found

    def _present(self, member: int) -> bool:
        return member in self.peers and self.peers[member].up

    def senders(self, view: int) -> list[Origin]:
        """Who has multicast in a view."""
        return sorted(origin for of, origin in self.bodies if of == view)

    def limit(self, view: int, sender: Origin) -> int:
        """How many of a sender's multicasts of a view there are to be received."""
        sent = len(self.bodies[view, sender])
        return min(sent, self.cuts.get((view, sender), sent))

    def _cuts(self, peer: Peer) -> list[int]:
        """How much of what a crashing member sent may count: at least what some other member has received."""
        sent = len(self.bodies.get((peer.view, peer.origin), ()))
        if self.change is not None and self.change.installed and peer.view == self.view:
            return [sent]  # somebody has gone on already, and had all of it
        others = [p for p in self.peers.values() if p.up and p is not peer and p.view == peer.view]
        return list(range(max((p.got.get(peer.origin, 0) for p in others), default=0), sent + 1))

    def _can_install(self, member: int) -> bool:
        change, peer = self.change, self.peers[member]
        if change is None or member in change.installed or not peer.up:
            return False
        return all(peer.got.get(s, 0) >= self.limit(self.view, s) for s in self.senders(self.view))

    # -- letting it happen -----------------------------------------------------------------------------------

    def do(self, action: Action) -> None:
        """Let one thing happen."""
        self.steps += 1
        kind, member = str(action[0]), int(action[1])
        peer = self.peers.get(member)
        if kind == "admit":
            self._begin_change(newcomers=[member])
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
                self._note(peer, "send", peer.core.send(peer.sent, priority, payload))
                peer.sent += 1
            case "receive":
                self._receive(peer, (int(action[2]), int(action[3])))
            case "told":
                teller = int(action[2])
                peer.core.told(self.peers[teller].origin, peer.told[teller].pop(0)[1])
            case "consume":
                self._consume(peer)
            case "block":
                peer.blocked = True
            case "install":
                self._install(peer)
            case "crash":
                self._crash(peer, int(action[2]))
            case "leave":
                self.leaves -= 1
                peer.leaving = True
                peer.core.leave()
            case "depart":
                self._begin_change(leavers=[member])
            case _:
                raise ValueError(f"nothing is called {kind}")
        self._after(peer)

    def _receive(self, peer: Peer, sender: Origin) -> None:
        number = peer.got.get(sender, 0)
        peer.got[sender] = number + 1
        peer.core.receive(sender, self.bodies[peer.view, sender][number])

    def _consume(self, peer: Peer) -> None:
        message = peer.core.consume()
        if message is not None:
            self._note(peer, "deliver", message)
            peer.consumed.append(message.ref)

    def _note(self, peer: Peer, kind: str, message: Joining, detail: str = "", view: int | None = None) -> None:
        index = len(peer.consumed)
        peer.notes.append(Noted(kind, self.steps, message, index, peer.first_position + index, detail, view))

    def _after(self, peer: Peer) -> None:
        """Carry away what a member has to say."""
        core = peer.core
        for step in core.steps:
            if isinstance(step, Received):
                view = None if step.inherited else peer.view
                self._note(peer, "receive", step.message, str(step.target_tail), view)
            else:
                self._note(peer, "queue", step.message, str(step.point))
        core.steps.clear()
        if not peer.up:
            core.says.clear()
            core.tells.clear()
            return
        for body in core.says:
            self._say(peer, body)
        core.says.clear()
        for to, ack in core.tells:
            other = self.peers[to]
            if not peer.blocked and other.up:
                other.told.setdefault(peer.member, []).append((peer.view, ack))
        core.tells.clear()

    def _say(self, peer: Peer, body: Body) -> None:
        if peer.blocked:
            peer.backlog.append(body)
        else:
            self.bodies.setdefault((peer.view, peer.origin), []).append(body)

    # -- views -----------------------------------------------------------------------------------------------

    def _begin_change(self, *, newcomers: Iterable[int] = (), leavers: Iterable[int] = ()) -> Change:
        leaving = list(leavers)
        stay = [m for m in self.members if self.peers[m].up and m not in leaving]
        self.change = Change(stay, list(newcomers), leaving)
        return self.change

    def _crash(self, peer: Peer, cut: int) -> None:
        self.crashes -= 1
        peer.fate, peer.ended_at = "crashed", self.steps
        for other in self.peers.values():
            other.told.pop(peer.member, None)
        self.cuts[peer.view, peer.origin] = cut
        change = self.change or self._begin_change()
        change.stay = [m for m in change.stay if m != peer.member]
        change.leavers = [m for m in change.leavers if m != peer.member]
        self._finish_if_done()

    def _install(self, peer: Peer) -> None:
        change = self.change
        if change is None:
            raise ValueError("no view change is under way")
        if change.newcomers:
            change.states[peer.member] = decode_state(encode_state(peer.core.state()))
        change.installed.append(peer.member)
        if len(change.installed) == 1:
            for member in change.leavers:
                if self.peers[member].up:
                    self.peers[member].fate, self.peers[member].ended_at = "left", self.steps
            self.next_members = tuple(sorted((*change.stay, *change.newcomers)))
            for member in change.newcomers:
                self._prepare(member)
        self._enter(peer, joining=False)
        self._finish_if_done()

    def _prepare(self, member: int) -> None:
        old = self.peers.get(member)
        incarnation = 1 if old is None else old.incarnation + 1
        if old is not None:
            self.past.append(old)
        script = self.can_join.pop(member)
        self.peers[member] = Peer(member, incarnation, self._core(member, incarnation), script)

    def _join(self, member: int, donor: int) -> None:
        change, peer = self.change, self.peers[member]
        if change is None:
            raise ValueError("no view change is under way")
        peer.core.take(change.states[donor])
        peer.first_position, peer.began_at = peer.core.position, self.steps
        change.installed.append(member)
        self._enter(peer, joining=True)
        self._after(peer)
        self._finish_if_done()

    def _enter(self, peer: Peer, *, joining: bool) -> None:
        peer.view = peer.view + 1 if peer.view else (self.view + 1 if self.change else self.view)
        peer.got, peer.blocked = {}, False
        for teller, acks in peer.told.items():
            peer.told[teller] = [(view, ack) for view, ack in acks if view >= peer.view]
        members = self.next_members if self.change is not None else self.members
        backlog, peer.backlog = peer.backlog, []
        for body in backlog:
            self._say(peer, body)
        origins = tuple(self.peers[m].origin for m in members)
        peer.views.append((self.steps, peer.view, origins))
        peer.core.new_view(peer.view, origins, joining=joining)
        self._after(peer)

    def _finish_if_done(self) -> None:
        change = self.change
        if change is None or not change.installed:
            return
        remaining = [m for m in (*change.stay, *change.newcomers) if m not in change.installed]
        if remaining:
            return
        self.change = None
        self.view += 1
        self.members = self.next_members
        if not all(self.peers[member].up for member in self.members):
            self._begin_change()

    # -- looking ---------------------------------------------------------------------------------------------

    def quiet(self, actions: Iterable[Action]) -> bool:
        """Whether of these actions none need happen: they are crashes, joins and leaves."""
        return all(action[0] in {"crash", "leave", "admit"} for action in actions)

    def survivors(self) -> list[Peer]:
        """Members that neither crashed nor left."""
        return [self.peers[member] for member in sorted(self.peers) if self.peers[member].up]
