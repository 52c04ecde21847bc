"""The loop: one heap of what happens when, in true time.

At equal times datagrams arrive first (erratum 000-22: an arrival at the time-out counts), then timers, application
inputs and faults take their turns in the order in which they were planned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import Any, TypeAlias

from unisono.errors import InvalidPolicy
from unisono.model.ids import EVERYONE
from unisono.model.rates import Rate
from unisono.model.timing import Timing
from unisono.model.workloads import Offers
from unisono.sim.clocks import Clock
from unisono.sim.member import Machine, Node
from unisono.sim.network import Link, Network
from unisono.sim.pulling_member import PullingNode
from unisono.sim.routed_member import RoutedNode
from unisono.sim.traffic import Ledger
from unisono.stack import Datagram, Stack
from unisono.trace.kinds import OBSERVER
from unisono.trace.recorder import MemoryTrace

Entry: TypeAlias = tuple[int, int, Callable[[int, Any], None], Any]
"""(true time, rank, what to do, with what). Ranks are unique, so nothing behind them is ever compared."""

_Way: TypeAlias = tuple[Link, Callable[[int, bytes], None]]
"""A link, and what its datagrams arrive at."""
_AFTER_ARRIVALS = 1 << 61
_LAST = 1 << 62

Check: TypeAlias = "Callable[[World], None]"


class _Ended(Exception):
    """The time until which the world was to run is over."""


def _end(now: int, _: object) -> None:
    raise _Ended(now)


class World:
    """Members, the network between them, and time.

    Times are true times in nanoseconds. `check` is called after every step. With `payloads` every delivery is
    compared with what was sent, byte for byte. Nobody sends from `send_until` on; `run` may go on.
    """

    def __init__(
        self,
        network: Network,
        *,
        start_ns: int = 0,
        send_until: int = 2**63,
        memory: MemoryTrace | None = None,
        ledger: Ledger | None = None,
        check: Check | None = None,
        payloads: bool = False,
    ) -> None:
        self.network = network
        self.start_ns = start_ns
        self.now = start_ns
        self.send_until = send_until
        self.memory = memory
        self.ledger = ledger
        self.check = check
        self.payloads: dict[tuple[int, int], list[bytes]] | None = {} if payloads else None
        self.nodes: dict[int, Node] = {}
        self.steps = 0
        """How many events have happened."""
        self.datagrams = 0
        """How many datagrams were put on links; one to everyone counts once per link."""
        self._heap: list[Entry] = []
        self._planned = 0
        self._routes: dict[int, dict[int, tuple[_Way, ...]]] = {}
        """By sender: the ways to each member, and under EVERYONE all of them."""

    # -- building --------------------------------------------------------------------------------------------

    def add(
        self,
        member: int,
        stack: Machine,
        clock: Clock,
        timing: Timing,
        *,
        starts_ns: int | None = None,
        offers: Offers | None = None,
        life: int = 1,
        consume_ns: int = 0,
        levels: Sequence[int] = (0,),
        routes: Sequence[tuple[str, ...]] = (),
        bound_ns: int | None = None,
    ) -> Node:
        """Put a member into the world; it comes up at `starts_ns`, or when its clock first shows 0 if that is later.

        Where the order is pulled, its application takes `consume_ns` over a message, and its messages have the
        priorities of `levels` in turn; where there are `routes`, these are the destinations of its messages, in turn.
        `bound_ns` is the latency bound that its order declares.
        """
        if member in self.nodes:
            raise InvalidPolicy("members", f"member {member} is in the world already")
        recorder = None if self.memory is None else self.memory.recorder(member, life=life)
        if isinstance(stack, Stack) and stack.pulls:
            make: Callable[..., Node] = partial(PullingNode, consume_ns=consume_ns, levels=levels)
        elif routes:
            make = partial(RoutedNode, routes=routes)
        else:
            make = Node
        node = make(self, member, stack, clock, timing=timing, offers=offers, recorder=recorder, life=life)
        node.bound_ns = bound_ns
        self.nodes[member] = node
        self._routes.clear()
        starts = max(self.start_ns if starts_ns is None else starts_ns, clock.true_at(0))
        self.later(starts, node.start, None)
        return node

    def send(self, at: int, member: int, sizes: Sequence[int]) -> None:
        """A member's application hands in messages of these sizes."""
        self.later(at, self.nodes[member].offer, tuple(sizes))

    def new_rate(self, at: int, member: int, rate: Rate) -> None:
        """A member renegotiates its rate."""
        self.later(at, self.nodes[member].new_rate, rate)

    def new_slot(self, at: int, member: int, theta_ns: int) -> None:
        """A member, in whatever life it is then, asks for slots of another length."""
        self.later(at, lambda now, _: self.nodes[member].new_slot(now, theta_ns), None)

    def change_topology(self, at: int, member: int, sends: tuple[str, ...]) -> None:
        """A member, in whatever life it is then, asks its group to send to these groups."""

        def change(now: int, _: object) -> None:
            node = self.nodes[member]
            if not isinstance(node, RoutedNode):
                raise InvalidPolicy("topology", f"member {member} knows no groups to send to")
            node.change_topology(now, sends)

        self.later(at, change, None)

    def leave(self, at: int, member: int) -> None:
        """A member leaves in order."""
        self.later(at, self.nodes[member].leave, None)

    def crash(self, at: int, member: int) -> None:
        """A member stops for good."""
        observer = None if self.memory is None else self.memory.recorder(OBSERVER)
        self.later(at, self.nodes[member].crash, observer)

    def restart(self, at: int, member: int, build: Callable[[int], Machine]) -> None:
        """A member that has crashed comes back with the stack that `build` makes for its new incarnation."""
        self.later(at, self._restart, (member, build))

    def _restart(self, now: int, what: tuple[int, Callable[[int], Machine]]) -> None:
        member, build = what
        old = self.nodes[member]
        if old.up:
            return
        life = old.life + 1
        recorder = None if self.memory is None else self.memory.recorder(member, life=life)
        node = self.nodes[member] = old.reborn(build(life), recorder)
        node.bound_ns = old.bound_ns
        self._routes.clear()
        node.start(now, None)

    def pause(self, from_ns: int, to_ns: int, member: int) -> None:
        """A member stands still; what happens to it meanwhile is handled at the end."""
        self.later(from_ns, self.nodes[member].pause, to_ns)

    def later(self, at: int, act: Callable[[int, Any], None], what: object) -> None:
        """Plan anything but an arrival."""
        self._planned += 1
        heappush(self._heap, (at, _AFTER_ARRIVALS + self._planned, act, what))

    def arrive_later(self, at: int, act: Callable[[int, bytes], None], data: bytes) -> None:
        """Plan an arrival."""
        self._planned += 1
        heappush(self._heap, (at, self._planned, act, data))

    # -- running ---------------------------------------------------------------------------------------------

    def run(self, until: int) -> None:
        """Let everything happen up to and including `until`."""
        heap, check, pop = self._heap, self.check, heappop
        # An entry that comes after everything else of its time ends the loop, which need not look ahead.
        heappush(heap, (until, _LAST, _end, None))
        steps = -1
        try:
            while True:
                now, _, act, what = pop(heap)
                self.now = now
                steps += 1
                act(now, what)
                if check is not None:
                    check(self)
        except _Ended:
            pass
        finally:
            self.steps += steps

    def transmit(self, now: int, node: Node, datagrams: Sequence[Datagram]) -> None:
        """Put a member's datagrams on its links."""
        routes = self._routes.get(node.member)
        if routes is None:
            links = self.network.links_from(node.member)
            ways = tuple((link, self.nodes[link.receiver].arrive) for link in links if link.receiver in self.nodes)
            routes = self._routes[node.member] = {EVERYONE: ways, **{way[0].receiver: (way,) for way in ways}}
        if self.ledger is not None:
            self.ledger.note(node.member, datagrams)
            if self.ledger.timed:
                self.ledger.meet(now, node.member, datagrams)
        heap, planned, faulty = self._heap, self._planned, bool(self.network.faults)
        for datagram in datagrams:
            data = datagram.data
            for link, arrive in routes.get(datagram.to, ()):
                self.datagrams += 1
                if faulty:
                    for at in self.network.arrivals(link, now):
                        planned += 1
                        heappush(heap, (at, planned, arrive, data))
                    continue
                # This is Link.arrival, written out: it runs once per datagram and receiver.
                at = now + link.draw(now)
                if link.fifo:
                    if at < link.last_arrival:
                        at = link.last_arrival
                    else:
                        link.last_arrival = at
                planned += 1
                heappush(heap, (at, planned, arrive, data))
        self._planned = planned
