"""(c) Simulated events per second, against SimPy running the same events.

The same trivial machine on both sides: at each slot's end it sends one datagram to everyone; it counts what arrives.
Delays come from the same streams and links are FIFO on both sides, so that the same events happen at the same times;
the members' checksums are compared to show it. Events are slot timers and arrivals, counted alike.

SimPy is used in three ways. `callbacks` is the leanest that SimPy can do: an arrival is a Timeout whose callback is the
machine's `receive`, with no member around it. `members` does after each arrival what the simulator's member does: read
a clock, ask the machine for datagrams, events and its next alarm. `processes` is the way of SimPy's own manual ("Event
latency"): a process per datagram in flight, a Store per member, a process that gets from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from functools import partial
from statistics import median
from typing import Any

import simpy

from benchmarks.progress import Say, silence
from unisono.model.delays import UniformDelay
from unisono.model.effects import Datagram, Effects
from unisono.model.events import View
from unisono.model.policy import Policy
from unisono.model.timing import Timing
from unisono.model.units import NS_PER_S, Rate
from unisono.sim.clocks import FixedClock
from unisono.sim.network import SimulatedLink, SimulatedNetwork, network_with_model
from unisono.sim.random_streams import RandomStreams
from unisono.sim.world import World
from unisono.stack import build

MEMBERS = tuple(range(1, 9))
TIMING = Timing(delta_ns=4_000_000, gamma_ns=0, theta_ns=5_000_000)
DELAY = UniformDelay(100_000, 4_000_000)
PAYLOAD = bytes(100)


class Beacon:
    """A machine that sends one datagram per slot and folds what arrives into a checksum."""

    __slots__ = ("_at", "_out", "_theta_ns", "checksum", "received")

    def __init__(self, theta_ns: int) -> None:
        self.received = 0
        self.checksum = 0
        self._theta_ns = theta_ns
        self._at = theta_ns
        self._out: list[Datagram] = []

    def receive(self, now: int, data: bytes) -> None:
        self.received += 1
        self.checksum = (self.checksum * 31 + now) & 0xFFFFFFFF

    def wake(self, now: int) -> None:
        if now >= self._at:
            self._at += self._theta_ns
            self._out.append(Datagram(MEMBERS, PAYLOAD, to_group=True))

    def step(self) -> Effects:
        out, self._out = self._out, []
        return Effects((), out, (), self._at)

    def submit(self, now: int, messages: Sequence[bytes]) -> int:
        return 0

    def change_rate(self, now: int, rate: Rate) -> None:
        return None

    def leave(self, now: int) -> None:
        return None


Run = tuple[float, int, list[int]]
"""CPU seconds, events, and the machines' checksums."""


def _network() -> SimulatedNetwork:
    streams = RandomStreams(1)
    return network_with_model(MEMBERS, DELAY, TIMING.delta_ns, lambda a, b: streams.stream("network", a, b))


def by_world(slots: int) -> Run:
    """unisono's simulator."""
    world = World(_network())
    beacons = [Beacon(TIMING.theta_ns) for _ in MEMBERS]
    for member, beacon in zip(MEMBERS, beacons, strict=True):
        world.add(member, beacon, FixedClock(), TIMING)
    until = slots * TIMING.theta_ns + TIMING.delta_ns
    begin = time.process_time()
    world.run(until)
    return time.process_time() - begin, world.steps - len(MEMBERS), [b.checksum for b in beacons]


Fly = Callable[[Any, SimulatedLink, bytes], None]
"""Lets a datagram fly, in SimPy's environment (which types its time as int or float; here it is int)."""


def _timers(env: Any, beacon: Beacon, links: Sequence[SimulatedLink], fly: Fly) -> Generator[Any, Any, None]:
    theta = TIMING.theta_ns
    while True:
        yield env.timeout(theta)
        beacon.wake(env.now)
        for datagram in beacon.step().datagrams:
            for link in links:
                fly(env, link, datagram.data)


def _simpy(slots: int, flier: Callable[[Any, dict[int, Beacon]], Fly]) -> Run:
    env: Any = simpy.Environment()
    network = _network()
    beacons = {member: Beacon(TIMING.theta_ns) for member in MEMBERS}
    fly = flier(env, beacons)
    for member, beacon in beacons.items():
        env.process(_timers(env, beacon, network.links_from(member), fly))
    until = slots * TIMING.theta_ns + TIMING.delta_ns
    begin = time.process_time()
    env.run(until=until)
    seconds = time.process_time() - begin
    events = sum(b.received for b in beacons.values()) + slots * len(MEMBERS)
    return seconds, events, [b.checksum for b in beacons.values()]


def by_callbacks(slots: int) -> Run:
    """SimPy at its leanest."""

    def flier(_: Any, beacons: dict[int, Beacon]) -> Fly:
        receivers = {
            member: (lambda event, receive=beacon.receive: receive(event.env.now, event.value))
            for member, beacon in beacons.items()
        }

        def fly(env: Any, link: SimulatedLink, data: bytes) -> None:
            env.timeout(link.arrival(env.now) - env.now, data).callbacks.append(receivers[link.receiver])

        return fly

    return _simpy(slots, flier)


def by_members(slots: int) -> Run:
    """SimPy with the work of the simulator's member around each arrival."""

    def arrive(beacon: Beacon, clock: FixedClock, event: Any) -> None:
        beacon.receive(clock.local(event.env.now), event.value)
        beacon.step()

    def flier(_: Any, beacons: dict[int, Beacon]) -> Fly:
        receivers = {member: partial(arrive, beacon, FixedClock()) for member, beacon in beacons.items()}

        def fly(env: Any, link: SimulatedLink, data: bytes) -> None:
            env.timeout(link.arrival(env.now) - env.now, data).callbacks.append(receivers[link.receiver])

        return fly

    return _simpy(slots, flier)


def by_processes(slots: int) -> Run:
    """SimPy as its manual shows it."""

    def flier(env: Any, beacons: dict[int, Beacon]) -> Fly:
        stores = {member: simpy.Store(env) for member in beacons}

        def consume(store: simpy.Store, beacon: Beacon) -> Generator[Any, Any, None]:
            while True:
                data = yield store.get()
                beacon.receive(env.now, data)

        for member, beacon in beacons.items():
            env.process(consume(stores[member], beacon))

        def flight(delay: int, data: bytes, store: simpy.Store) -> Generator[Any, Any, None]:
            yield env.timeout(delay)
            store.put(data)

        def fly(env: Any, link: SimulatedLink, data: bytes) -> None:
            env.process(flight(link.arrival(env.now) - env.now, data, stores[link.receiver]))

        return fly

    return _simpy(slots, flier)


def full_stack(slots: int) -> Run:
    """unisono's simulator with the real stack: each member hands in one message per slot."""
    world = World(_network(), start_ns=NS_PER_S)
    rate = Rate(avg=1000, burst=4)
    period = TIMING.theta_ns
    for member in MEMBERS:
        policy = Policy("bench", member, View(MEMBERS), TIMING, rate)
        offers = ((number * period, (100,)) for number in range(slots))
        world.add(member, build(policy), FixedClock(), TIMING, workload=offers)
    begin = time.process_time()
    world.run(NS_PER_S + slots * period)
    seconds = time.process_time() - begin
    delivered = [node.delivered for node in world.members.values()]
    if min(delivered) < (slots - 20) * len(MEMBERS):
        raise RuntimeError(f"the simulated group has delivered only {delivered}")
    return seconds, world.steps, delivered


WAYS: dict[str, Callable[[int], Run]] = {
    "unisono, bare loop": by_world,
    "SimPy, callbacks": by_callbacks,
    "SimPy, members": by_members,
    "SimPy, processes": by_processes,
    "unisono, full VBR stack": full_stack,
}


def rows(*, quick: bool = False, say: Say = silence) -> list[dict[str, Any]]:
    """All ways in turn, several rounds; medians, and the ratio of the bare loop to each way of SimPy."""
    slots, rounds = (300, 3) if quick else (1500, 7)
    rates: dict[str, list[float]] = {name: [] for name in WAYS}
    events: dict[str, int] = {}
    for number in range(rounds):
        checksums = []
        for name, way in WAYS.items():
            say(f"simulator: round {number + 1} of {rounds}, {name}")
            seconds, events[name], sums = way(slots)
            rates[name].append(events[name] / seconds)
            if way is not full_stack:
                checksums.append((events[name], sums))
        if any(other != checksums[0] for other in checksums):
            raise RuntimeError(f"the ways did not run the same events: {checksums}")
    ours = rates["unisono, bare loop"]
    found = []
    for name, each in rates.items():
        row: dict[str, Any] = {"system": name, "work": f"simulator, {len(MEMBERS)} members"}
        row |= {"events": events[name], "events_per_s": round(median(each))}
        if name.startswith("SimPy"):
            ratios = [a / b for a, b in zip(ours, each, strict=True)]
            row |= {"ratio": round(median(ratios), 2), "ratio_low": round(min(ratios), 2)}
            row["ratio_high"] = round(max(ratios), 2)
        found.append(row)
    return found
