"""(d) Cost against the group's size and the messages per slot, in the simulator.

Each member submits one batch of messages per slot; every message that a member delivers is sliced out. The stack's
work is timed in three parts. `pack` is submit and the encoding of datagrams: it must touch every message. `slice` takes
delivered messages apart: it must, too. `order` is all the rest (receiving datagrams, timers): it must not depend on the
number of messages, only on slots, senders and frames. That part is also counted in calls of Python and C functions
within the order, the layers, the door and the stack, which no load of the machine disturbs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import unisono
from benchmarks.progress import Say, silence
from unisono.model.delays import UniformDelay
from unisono.model.effects import Effects
from unisono.model.events import Batch, View
from unisono.model.policy import Policy
from unisono.model.timing import Timing
from unisono.model.units import NS_PER_S, Rate
from unisono.sim.clocks import FixedClock
from unisono.sim.network import network_with_model
from unisono.sim.random_streams import RandomStreams
from unisono.sim.world import World
from unisono.stack import Stack, build

SIZES = (2, 4, 8, 16, 32)
MESSAGES_PER_SLOT = (1, 10, 100, 1000)
MESSAGE_BYTES = 32
TIMING = Timing(delta_ns=2_000_000, gamma_ns=500_000, theta_ns=5_000_000)
DELAY = UniformDelay(50_000, 2_000_000)
ONE_FRAME, ETHERNET = 60_000, 1_400
START_SLOTS = 4
"""Left out at the start: the rate exchange and the first slots."""

_ROOT = Path(unisono.__file__).parent
_ORDERING = (
    *(str(_ROOT / room) + "/" for room in ("orders", "layers")),
    str(_ROOT / "stack.py"),
    str(_ROOT / "wire" / "door.py"),
    str(_ROOT / "model" / "timing.py"),
)
_PACKING = str(_ROOT / "orders" / "packing.py")


class BusyMember:
    """A stack and its application: one batch per slot in, every delivered message sliced out, and the time of each."""

    def __init__(self, stack: Stack, batch: list[bytes]) -> None:
        self.delivered = self.frames = 0
        self.order_ns = self.pack_ns = self.slice_ns = 0
        self._stack = stack
        self._batch = batch
        self._slot = -1

    def receive(self, now: int, data: bytes) -> None:
        begin = time.perf_counter_ns()
        self._stack.receive(now, data)
        self.order_ns += time.perf_counter_ns() - begin

    def wake(self, now: int) -> None:
        begin = time.perf_counter_ns()
        self._stack.wake(now)
        done = time.perf_counter_ns()
        self.order_ns += done - begin
        slot = TIMING.slot_of(now)
        if slot > self._slot and self._stack.running():
            if self._stack.submit(now, self._batch):
                self._slot = slot
            self.pack_ns += time.perf_counter_ns() - done

    def step(self) -> Effects:
        begin = time.perf_counter_ns()
        effects = self._stack.step()
        spent = time.perf_counter_ns() - begin
        if effects.datagrams:
            self.pack_ns += spent
            self.frames += len(effects.datagrams)
        else:
            self.order_ns += spent
        begin = time.perf_counter_ns()
        for event in effects.events:
            if isinstance(event, Batch):
                self.delivered += len(event.messages)
        self.slice_ns += time.perf_counter_ns() - begin
        return effects

    def submit(self, now: int, messages: Sequence[bytes]) -> int:
        return 0

    def change_rate(self, now: int, rate: Rate) -> None:
        self._stack.change_rate(now, rate)

    def leave(self, now: int) -> None:
        self._stack.leave(now)


def _world(size: int, per_slot: int, max_frame: int) -> tuple[World, list[BusyMember]]:
    members = tuple(range(1, size + 1))
    streams = RandomStreams(1)
    network = network_with_model(members, DELAY, TIMING.delta_ns, lambda a, b: streams.stream("network", a, b))
    world = World(network, start_ns=NS_PER_S)
    # Room for one message more than is sent: the slot ends with its timer, as it does when a member sends less than
    # it declared, and the end-of-slot mark is ordering work whatever the number of messages.
    rate = Rate(avg=(per_slot + 1) * NS_PER_S / TIMING.theta_ns, burst=per_slot + 1)
    busy = []
    for member in members:
        policy = Policy("bench", member, View(members), TIMING, rate, max_message=MESSAGE_BYTES, max_frame=max_frame)
        busy.append(BusyMember(build(policy), [bytes(MESSAGE_BYTES)] * per_slot))
        world.add(member, busy[-1], FixedClock(), TIMING)
    world.run(NS_PER_S + START_SLOTS * TIMING.theta_ns)
    for each in busy:
        each.delivered = each.frames = each.order_ns = each.pack_ns = each.slice_ns = 0
    return world, busy


def timed(size: int, per_slot: int, max_frame: int, slots: int) -> dict[str, float]:
    """The cost of one run, over all members."""
    world, busy = _world(size, per_slot, max_frame)
    begin = time.process_time()
    world.run(world.now + slots * TIMING.theta_ns)
    cpu_s = time.process_time() - begin
    delivered = sum(b.delivered for b in busy)
    expected = size * size * slots * per_slot
    if not 0.8 * expected <= delivered <= expected + size * size * per_slot:
        raise RuntimeError(f"{size} members delivered {delivered} messages, {expected} were expected")
    slot_senders = size * size * slots
    return {
        "cpu_us_per_delivery": cpu_s * 1e6 / delivered,
        "order_us_per_slot_sender": sum(b.order_ns for b in busy) / 1e3 / slot_senders,
        "order_ns_per_delivery": sum(b.order_ns for b in busy) / delivered,
        "pack_ns_per_message": sum(b.pack_ns for b in busy) / (delivered / size),
        "slice_ns_per_delivery": sum(b.slice_ns for b in busy) / delivered,
        "frames_per_slot_sender": sum(b.frames for b in busy) / (size * slots),
    }


def counted(size: int, per_slot: int, max_frame: int, slots: int) -> float:
    """Calls of functions in the ordering code per slot and sender, at one member."""
    world, _ = _world(size, per_slot, max_frame)
    calls = 0
    ordering: dict[str, bool] = {}

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        if event in {"call", "c_call"}:
            name = frame.f_code.co_filename
            known = ordering.get(name)
            if known is None:
                known = ordering[name] = name.startswith(_ORDERING) and name != _PACKING
            calls += known

    sys.setprofile(count)
    try:
        world.run(world.now + slots * TIMING.theta_ns)
    finally:
        sys.setprofile(None)
    return calls / (size * size * slots)


def _cells(quick: bool) -> Iterator[tuple[int, int, int]]:
    sizes, loads = ((2, 8), (1, 100)) if quick else (SIZES, MESSAGES_PER_SLOT)
    for size in sizes:
        for per_slot in loads:
            yield size, per_slot, ONE_FRAME
    # What a network with small datagrams adds: work per frame.
    for per_slot in loads:
        yield 8, per_slot, ETHERNET


def rows(*, quick: bool = False, say: Say = silence) -> list[dict[str, Any]]:
    """One row per group size, messages per slot and frame size; the lowest of a few runs, since load only adds."""
    found = []
    for size, per_slot, max_frame in _cells(quick):
        say(f"group size: {size} members, {per_slot} messages per slot, frames of {max_frame} bytes")
        slots = max(5, min(100, 1_000_000 // (size * size * max(per_slot, 10))))
        runs = [timed(size, per_slot, max_frame, slots) for _ in range(1 if quick else 3)]
        figures = {name: round(min(run[name] for run in runs), 3) for name in runs[0]}
        found.append(
            {
                "system": "unisono simulator",
                "work": f"{size} members, {per_slot} per slot, frames of {max_frame} B",
                "members": size,
                "messages_per_slot": per_slot,
                "max_frame": max_frame,
                "order_calls_per_slot_sender": round(counted(size, per_slot, max_frame, min(slots, 10)), 1),
                **figures,
            }
        )
    return found
