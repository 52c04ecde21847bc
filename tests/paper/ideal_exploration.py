"""Visits every reachable state of a small ideal group once.

Most orders of events are equivalent. An acknowledgment that does not complete a message's bag has no visible effect.
Therefore a receiver takes several bodies in one stride: up to a sender's next message or final progress report, or up
to the acknowledgments or the decision that a waiting message lacks. These strides reach every outcome that single
receptions can reach.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from tests.worlds.ideal_views import Action, IdealGroup, IdealViewChange, Peer

from unisono.model.message_set import MessageOrigin, MessageRef
from unisono.orders.priority.consumable_queue import ConsumableQueue, QueuedMessage
from unisono.orders.priority.insertion import DecisionMode, Insertion
from unisono.orders.priority.messages import Ack, FinalProgress, InsertionDecision, MessageBody

OPTIONAL = frozenset({"crash", "leave", "admit"})


@dataclass
class Exploration:
    """The number of states visited, the number of end states among them, and the problems found there."""

    states: int = 0
    ends: int = 0
    problems: list[str] = field(default_factory=list)


def explore(
    group: IdealGroup,
    problem_at_end: Callable[[IdealGroup], str],
    *,
    max_states: int = 1_000_000,
    max_problems: int = 3,
) -> Exploration:
    """Visit every reachable state. `problem_at_end` describes the problem of an end state, if it has one."""
    found = Exploration()
    seen = {_key(group)}
    todo = [group]
    while todo:
        at = todo.pop()
        strides = list(_strides(at))
        if all(stride[0][0] in OPTIONAL for stride in strides):
            found.ends += 1
            problem = problem_at_end(at)
            if problem:
                found.problems.append(problem)
                if len(found.problems) >= max_problems:
                    break
        for stride in strides:
            following = fork(at)
            for action in stride:
                following.perform(action)
            _receive_unicasts_at_once(following)
            key = _key(following)
            if key not in seen:
                seen.add(key)
                todo.append(following)
        if len(seen) > max_states:
            raise AssertionError(f"more than {max_states} states: this case is too large to explore")
    found.states = len(seen)
    return found


def _receive_unicasts_at_once(group: IdealGroup) -> None:
    """Deliver unicasts to coordinators as soon as they are sent: the time of their arrival makes no difference."""
    while unicasts := [action for action in group.enabled() if action[0] == "told"]:
        group.perform(unicasts[0])


def _strides(group: IdealGroup) -> Iterator[list[Action]]:
    installing = group.view_change is not None
    for action in group.enabled():
        if action[0] == "receive":
            continue
        yield [action]
    for member in sorted(group.peers):
        peer = group.peers[member]
        if not peer.up or not peer.view:
            continue
        senders = group.senders(peer.view)
        for sender in senders:
            steps = _up_to(group, peer, sender, None)
            if steps:
                yield [("receive", member, *sender)] * steps
        for ref in list(peer.core.waiting):
            if ref not in peer.core.decisions:
                yield from _completing(group, peer, ref, senders)
        if installing and peer.blocked and not any(_up_to(group, peer, sender, None) for sender in senders):
            rest: list[Action] = [
                ("receive", member, *sender)
                for sender in senders
                for _ in range(group.receivable_count(peer.view, sender) - peer.received_counts.get(sender, 0))
            ]
            if rest:
                yield rest


def _up_to(group: IdealGroup, peer: Peer, sender: MessageOrigin, ref: MessageRef | None) -> int:
    """The number of bodies to receive up to the sender's next message or final progress report.

    With `ref`, up to the acknowledgment or decision of that message; 0 if another message comes first.
    """
    received, bodies = peer.received_counts.get(sender, 0), group.bodies[peer.view, sender]
    for number in range(received, group.receivable_count(peer.view, sender)):
        body = bodies[number]
        if isinstance(body, MessageBody | FinalProgress):
            return number + 1 - received if ref is None else 0
        if ref is not None and isinstance(body, Ack | InsertionDecision) and body.ref == ref:
            return number + 1 - received
    return 0


def _completing(group: IdealGroup, peer: Peer, ref: MessageRef, senders: list[MessageOrigin]) -> Iterator[list[Action]]:
    if group.form is DecisionMode.COORDINATOR:
        for sender in senders:
            steps = _up_to(group, peer, sender, ref)
            if steps:
                yield [("receive", peer.member, *sender)] * steps
        return
    stride: list[Action] = []
    for member in peer.core.members:
        if member in peer.core.bags[ref]:
            continue
        steps = _up_to(group, peer, member, ref) if (peer.view, member) in group.bodies else 0
        if not steps:
            return
        stride += [("receive", peer.member, *member)] * steps
    if stride:
        yield stride


# -- copies and keys of states ---------------------------------------------------------------------------------


def fork(group: IdealGroup) -> IdealGroup:
    """An independent copy of the group."""
    new = object.__new__(IdealGroup)
    for name, value in vars(group).items():
        setattr(new, name, _copied(value))
    return new


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_copied(inner) if isinstance(inner, Peer) else inner for inner in value]
    if isinstance(value, set):
        return set(value)
    if isinstance(value, ConsumableQueue):
        queue = ConsumableQueue()
        queue.restore([QueuedMessage(item.message, item.urgency, dict(item.locks)) for item in value], value.tail_locks)
        return queue
    if isinstance(value, Insertion):
        core = object.__new__(type(value))
        for name, inner in vars(value).items():
            setattr(core, name, _copied(inner))
        return core
    if isinstance(value, Peer | IdealViewChange):
        return type(value)(**{f.name: _copied(getattr(value, f.name)) for f in fields(value)})
    return value


def _key(group: IdealGroup) -> int:
    """A hash of everything that the future of the run or a verdict depends on."""
    parts: list[object] = [
        group.view,
        group.members,
        group.remaining_crashes,
        group.remaining_leaves,
        tuple(group.join_scripts),
    ]
    parts.append(tuple(sorted(group.surviving_counts.items())))
    parts += [(of, tuple(bodies)) for of, bodies in sorted(group.bodies.items())]
    change = group.view_change
    if change is not None:
        parts += [tuple(change.staying), tuple(change.newcomers), tuple(change.leavers), tuple(change.installed)]
        parts += [(member, state) for member, state in sorted(change.states.items())]
    parts += [_peer_key(peer) for peer in (*group.past_incarnations, *(group.peers[m] for m in sorted(group.peers)))]
    return hash(tuple(parts))


def _peer_key(peer: Peer) -> tuple[object, ...]:
    core = peer.core
    return (
        peer.member,
        peer.view,
        tuple(sorted(peer.received_counts.items())),
        tuple((sender, tuple(acks)) for sender, acks in sorted(peer.unicasts.items()) if acks),
        (peer.blocked, peer.outcome, peer.leaving, peer.sent),
        tuple(peer.backlog),
        tuple(peer.consumed),
        tuple((step.message.ref, step.index) for step in peer.recorded_steps if step.kind == "receive"),
        tuple((item.ref, tuple(sorted(item.locks))) for item in core.queue),
        tuple(sorted(core.queue.tail_locks)),
        tuple((ref, tuple(sorted(core.bags[ref].items()))) for ref in sorted(core.waiting)),
        tuple(core.decisions[ref] for ref in sorted(core.decisions)),
        core.clock,
        core.history,
    )


# -- verdicts ----------------------------------------------------------------------------------------------------


def p1_and_p2(group: IdealGroup) -> str:
    """The first violation of P1, of progress (no stuck messages) or of P2; empty if all hold."""
    return p1(group) or stuck_messages(group) or p2(group)


def all_incarnations(group: IdealGroup) -> list[Peer]:
    """Every member in every incarnation."""
    return [*group.past_incarnations, *(group.peers[member] for member in sorted(group.peers))]


def p1(group: IdealGroup) -> str:
    """All members that did not crash consume one sequence."""
    agreed: dict[int, MessageRef] = {}
    for peer in all_incarnations(group):
        if peer.outcome == "crashed":
            continue
        for number, ref in enumerate(peer.consumed):
            other = agreed.setdefault(peer.first_position + number, ref)
            if other != ref:
                orders = {
                    p.member: [str(r) for r in p.consumed] for p in all_incarnations(group) if p.outcome != "crashed"
                }
                return f"P1: {other} and {ref} at position {peer.first_position + number}: {orders}"
    return ""


def stuck_messages(group: IdealGroup) -> str:
    """At the end of a run, no message may wait or be queued."""
    for peer in group.survivors():
        if peer.core.waiting or len(peer.core.queue):
            left = [str(ref) for ref in peer.core.waiting] + [str(item.ref) for item in peer.core.queue]
            return f"member {peer.member} is stuck with {', '.join(left)}"
    return ""


def p2(group: IdealGroup) -> str:
    """If no member had delivered l when it received the more urgent h, then h is delivered before l."""
    peers = all_incarnations(group)
    levels = {step.message.ref: step.message.priority for peer in peers for step in peer.recorded_steps}
    consumed_at_receipt = [
        {step.message.ref: step.index for step in peer.recorded_steps if step.kind == "receive"} for peer in peers
    ]
    positions = [{ref: position for position, ref in enumerate(peer.consumed)} for peer in peers]
    for peer, own in zip(peers, positions, strict=True):
        if peer.outcome == "crashed":
            continue
        for low, at in own.items():
            for high, level in levels.items():
                if level <= levels[low] or own.get(high, 1 << 30) < at:
                    continue
                if high not in own and not any(high in received for received in consumed_at_receipt):
                    continue
                if all(
                    theirs.get(low, 1 << 30) >= received.get(high, 1 << 29)
                    for received, theirs in zip(consumed_at_receipt, positions, strict=True)
                ):
                    return f"P2: member {peer.member} delivered {low} before {high}"
    return ""
