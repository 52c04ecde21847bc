"""The trace of an ideal group: the rows that a real group records, with step numbers instead of times."""

from __future__ import annotations

from tests.worlds.ideal_views import IdealGroup, Peer

from unisono.model.events import QueueStep
from unisono.trace.recorder import MemoryTrace, view_extras
from unisono.trace.schema import OBSERVER, EventKind, RunMeta
from unisono.trace.table import Trace

STEP_NS = 1_000


def ideal_trace(group: IdealGroup) -> Trace:
    """Everything that the members of the group did so far."""
    memory = MemoryTrace("ideal", "ideal")
    observer = memory.recorder(OBSERVER)
    peers = [*group.past_incarnations, *(group.peers[member] for member in sorted(group.peers))]
    for peer in peers:
        if peer.view:
            _record(memory, peer)
        if peer.outcome == "crashed":
            slot, at = peer.first_position + len(peer.consumed), peer.ended_at_step * STEP_NS
            observer.event(
                EventKind.CRASH,
                slot=slot,
                real_ns=at,
                local_ns=at,
                subject=peer.member,
                subject_incarnation=peer.incarnation,
            )
    meta = RunMeta(
        run="ideal",
        group="ideal",
        order="priority",
        members=tuple(sorted({peer.member for peer in peers})),
        delta_ns=0,
        gamma_ns=0,
        theta_ns=STEP_NS,
        bound_ns=None,
        reliable=True,
        source="ideal",
    )
    return memory.trace(meta)


def _record(memory: MemoryTrace, peer: Peer) -> None:
    recorder = memory.recorder(peer.member, incarnation=peer.incarnation)
    began, first = peer.started_at_step * STEP_NS, peer.first_position
    recorder.event(EventKind.START, slot=first, real_ns=began, local_ns=began)
    for at_step, view, origins in peer.views:
        at, extras = at_step * STEP_NS, view_extras(view, [m for m, _ in origins], [life for _, life in origins])
        recorder.event(EventKind.VIEW, slot=first, real_ns=at, local_ns=at, extras=extras)
    for number, note in enumerate(peer.recorded_steps):
        message, at = note.message, note.step * STEP_NS
        ref, size = message.ref, len(message.payload)
        if note.kind == "send":
            recorder.sent(
                first_sequence=ref.sequence,
                count=1,
                sizes=size,
                slot=note.step,
                first_place=0,
                real_ns=at,
                local_ns=at,
                priority=message.priority,
            )
        elif note.kind == "deliver":
            recorder.delivered(
                sender=ref.sender,
                sender_incarnation=ref.incarnation,
                first_sequence=ref.sequence,
                count=1,
                sizes=size,
                slot=note.position,
                first_place=0,
                first_index=note.index,
                real_ns=at,
                local_ns=at,
                priority=message.priority,
            )
        else:
            recorder.step(
                QueueStep(
                    note.kind == "queue",
                    *ref,
                    priority=message.priority,
                    number=number,
                    consumed=note.index,
                    position=note.position,
                    detail=note.detail,
                    view=note.view,
                ),
                real_ns=at,
                local_ns=at,
            )
    if peer.outcome == "left":
        at = peer.ended_at_step * STEP_NS
        recorder.event(EventKind.LEAVE, slot=first + len(peer.consumed), real_ns=at, local_ns=at)
