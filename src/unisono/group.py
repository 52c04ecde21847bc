"""The public face: `join` a group, `send`, iterate over what happens, `leave`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias

from unisono.errors import FormationTimeout, GroupClosed, Infeasible, InvalidPolicy
from unisono.model.durations import NS_PER_S, duration_ns, duration_text
from unisono.model.events import Batch, Delivery, ViewChange, Violation
from unisono.model.policy import Policy
from unisono.model.rates import Rate
from unisono.model.stats import Stats
from unisono.model.timing import Timing
from unisono.model.views import View
from unisono.orders.packing import reservation
from unisono.qos.reservation import Link, LinkShare
from unisono.runtime.clock import WallClock
from unisono.runtime.driver import Driver, Happening
from unisono.runtime.transport import UdpTransport
from unisono.stack import Stack, build

if TYPE_CHECKING:
    from unisono.trace.recorder import Recorder

Event: TypeAlias = Delivery | ViewChange | Violation
"""What iterating over a group gives."""

SLOT_DEFAULT_NS = 5_000_000
SLOT_LARGEST_NS = 50_000_000
SLOT_SMALLEST_NS = 500_000
INCARNATIONS_FROM_NS = 1_735_689_600 * NS_PER_S
START_MARGIN_NS = 100_000_000
PROBE_EVERY_NS = NS_PER_S
LEAVE_PATIENCE_S = 1.0


def join(
    group: str,
    *,
    member: int,
    peers: Mapping[int, str | tuple[str, int]],
    order: str = "auto",
    rate: Rate | None = None,
    deadline: str | int | None = None,
    slot: str | int | None = None,
    delta: str | int = "20ms",
    gamma: str | int = "2ms",
    failures: bool = False,
    loss_burst: int = 0,
    fec: tuple[int, int] | None = None,
    processing: str | int = 0,
    max_message: int = 4096,
    max_frame: int | None = None,
    multicast: str | tuple[str, int] | None = None,
    link: Link | None = None,
    recorder: Recorder | None = None,
    incarnation: int | None = None,
    timeout: str | int = "30s",
    queue_messages: int = 1_000_000,
) -> Joining:
    """Join a group: `async with unisono.join(...) as group`, or `group = await unisono.join(...)`.

    `peers` maps every member's number, this one's included, to its address (`"10.0.0.7:9001"`). `delta` is the
    network's largest delay, `gamma` the largest difference between two members' clocks, `slot` the slot's length;
    all members give the same. With a `deadline` and no `slot`, the longest slot that keeps the deadline is chosen.
    `order` is vbr unless told ("auto" is vbr too), or cbr, leader, timestamp.
    With `failures` members may crash, join and leave while the group runs, and the order may have gaps where they
    crash; `loss_burst` is the most consecutive datagrams of a sender that the network loses; `fec=(a, b)` adds
    redundancy against a lost of any b consecutive ones. `processing` is what a leader takes over one message.
    `rate` is what this member may send: messages per second on average, and per slot at once. `link` is the
    capacity to reserve from, shared between groups; unless told, 1 Gbit/s of its own. `recorder` takes down what
    happens; its `life` must be the `incarnation` given here.

    Raises InvalidPolicy, Infeasible or ReservationRefused at once, and FormationTimeout if the others do not come.
    """
    addresses = {number: _address(f"peers[{number}]", peer) for number, peer in peers.items()}
    if member not in addresses:
        raise InvalidPolicy("peers", f"member {member} itself must be among the peers {sorted(addresses)}")
    owners: dict[tuple[str, int], int] = {}
    for number, address in addresses.items():
        if owners.setdefault(address, number) != number:
            raise InvalidPolicy("peers", f"members {owners[address]} and {number} have the same address")
    if queue_messages < 1:
        raise InvalidPolicy("queue_messages", f"room for at least one message is needed, not {queue_messages}")
    skew = duration_ns(gamma, "gamma")
    timing = _timing(order, deadline, slot, duration_ns(delta, "delta"), (skew, 2 * skew if failures else skew))
    setup = _Setup(
        group=group,
        member=member,
        addresses=addresses,
        order="vbr" if order == "auto" else order,
        rate=rate or Rate(avg=50, burst=8),
        timing=timing,
        max_message=max_message,
        max_frame=max_frame,
        failures=failures,
        loss_burst=loss_burst,
        fec=fec,
        processing_ns=duration_ns(processing, "processing"),
        multicast=None if multicast is None else _address("multicast", multicast),
        link=link or Link(),
        recorder=recorder,
        incarnation=incarnation if incarnation is not None else new_incarnation(),
        timeout_s=duration_ns(timeout, "timeout") / NS_PER_S,
        queue_messages=queue_messages,
    )
    setup.check(None if deadline is None else duration_ns(deadline, "deadline"))
    return Joining(setup)


def new_incarnation() -> int:
    """Eighths of seconds since 2025, which last until 2042: a restarted member is later without anything on disk."""
    return (WallClock().now() - INCARNATIONS_FROM_NS) // 125_000_000 % 2**32


def _address(field: str, value: str | tuple[str, int]) -> tuple[str, int]:
    host, colon, port = value.rpartition(":") if isinstance(value, str) else (value[0], ":", str(value[1]))
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidPolicy(field, f"an address such as '127.0.0.1:9001' is needed, not {value!r}")
    return host.strip("[]"), int(port)


def _timing(
    order: str, deadline: str | int | None, slot: str | int | None, delta_ns: int, skews_ns: tuple[int, int]
) -> Timing:
    """Δ, Γ and, unless it is given, the longest slot that keeps the deadline; `skews_ns`: Γ, and how much counts."""
    gamma_ns, skew_ns = skews_ns
    if slot is not None or deadline is None or order not in {"auto", "vbr"}:
        return Timing(delta_ns, gamma_ns, SLOT_DEFAULT_NS if slot is None else duration_ns(slot, "slot"))
    limit = duration_ns(deadline, "deadline")
    theta_ns = min(limit - delta_ns - skew_ns, SLOT_LARGEST_NS)
    if theta_ns < SLOT_SMALLEST_NS:
        terms, word = (delta_ns, skew_ns, SLOT_SMALLEST_NS), "2Γ" if skew_ns > gamma_ns else "Γ"
        raise Infeasible(limit, sum(terms), f"Δ+{word}+Θ = {' + '.join(map(duration_text, terms))}")
    return Timing(delta_ns, gamma_ns, theta_ns)


@dataclass(frozen=True, slots=True)
class _Setup:
    group: str
    member: int
    addresses: dict[int, tuple[str, int]]
    order: str
    rate: Rate
    timing: Timing
    max_message: int
    max_frame: int | None
    failures: bool
    loss_burst: int
    fec: tuple[int, int] | None
    processing_ns: int
    multicast: tuple[str, int] | None
    link: Link
    recorder: Recorder | None
    incarnation: int
    timeout_s: float
    queue_messages: int

    def check(self, deadline_ns: int | None) -> None:
        """Refuse what can be refused before there is a socket."""
        copies = 1 if self.multicast is not None else max(1, len(self.addresses) - 1)
        share = self.link.share(copies)
        bound_ns = build(self.policy(self.max_frame or 1400), share).order.bound_ns()
        share.release()
        if deadline_ns is not None and bound_ns > deadline_ns:
            raise Infeasible(
                deadline_ns, bound_ns, f"the order {self.order} is bound to {duration_text(bound_ns)} here"
            )

    def policy(self, max_frame: int) -> Policy:
        return Policy(
            group=self.group,
            member=self.member,
            view=View(tuple(sorted(self.addresses))),
            timing=self.timing,
            rate=self.rate,
            order=self.order,
            incarnation=self.incarnation,
            max_message=self.max_message,
            max_frame=max_frame,
            start_margin_ns=START_MARGIN_NS,
            probe_every_ns=PROBE_EVERY_NS,
            multicast=self.multicast is not None,
            failures=self.failures,
            loss_burst=self.loss_burst,
            fec=self.fec,
            processing_ns=self.processing_ns,
        )


class _Rest:
    """What is left of the messages that travelled together."""

    def __init__(self, messages: list[bytes]) -> None:
        self._messages = messages

    @property
    def count(self) -> int:
        return len(self._messages)

    @property
    def payload_bytes(self) -> int:
        return sum(map(len, self._messages))

    def messages(self) -> list[bytes]:
        return self._messages

    def sizes(self) -> list[int]:
        return list(map(len, self._messages))


class Joining:
    """What `join` gives: enter it or await it."""

    def __init__(self, setup: _Setup) -> None:
        self._setup = setup
        self._group: Group | None = None

    def __await__(self) -> Generator[None, None, Group]:
        return self._open().__await__()

    async def __aenter__(self) -> Group:
        self._group = await self._open()
        return self._group

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._group is not None:
            await self._group.leave()

    async def _open(self) -> Group:
        setup = self._setup
        clock = WallClock()
        transport = UdpTransport(setup.member, setup.addresses, multicast=setup.multicast)
        share = None
        try:
            by_multicast = setup.multicast is not None and transport.multicast_error is None
            share = setup.link.share(1 if by_multicast else max(1, len(setup.addresses) - 1))
            max_frame = setup.max_frame or transport.max_frame()
            stack = build(setup.policy(max_frame), share)
            driver = Driver(stack, transport, clock, recorder=setup.recorder, queue_messages=setup.queue_messages)
        except BaseException:
            transport.close()
            if share is not None:
                share.release()
            raise
        group = Group(driver, stack, share)
        await group._form(setup.timeout_s)
        return group


class Group:
    """A group that this process is a member of."""

    def __init__(self, driver: Driver, stack: Stack, share: LinkShare) -> None:
        self._driver = driver
        self._stack = stack
        self._share = share
        self._opened: Batch | None = None
        self._rest: deque[Delivery] = deque()
        """Of the batch that iteration by event has opened, what it has not given yet: it may be broken off."""

    # -- sending ---------------------------------------------------------------------------------------------

    async def send(self, message: bytes) -> None:
        """Multicast one message; waits while the declared rate has no room for it.

        A message that was not taken when the group ends, or when this is cancelled, is not sent.
        """
        await self.send_many((message,))

    async def send_many(self, messages: Sequence[bytes]) -> None:
        """Multicast many messages in this order; far cheaper per message than `send`."""
        messages = tuple(messages)  # ours: the caller may go on to change its list while this waits
        if not set(map(type, messages)) <= {bytes}:
            odd = next(type(message).__name__ for message in messages if type(message) is not bytes)
            raise TypeError(f"messages are bytes, not {odd}; encode what you send")
        if messages:
            await self._driver.submit(messages)

    def renegotiate(self, rate: Rate) -> None:
        """Change this member's rate from its next slot on; ReservationRefused leaves the old one in force."""
        self._driver.new_rate(rate)

    # -- receiving -------------------------------------------------------------------------------------------

    async def batches(self) -> AsyncGenerator[Happening, None]:
        """Deliveries as batches, with view changes and violations between them, in order, until the group is left."""
        driver = self._driver
        while True:
            event = self._rest_of_batch() or driver.pop()
            if event is not None:
                yield event
            elif driver.closed:
                driver.raise_if_failed()
                return
            else:
                await driver.changed()

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        async for happening in self.batches():
            if isinstance(happening, Batch):
                self._opened, self._rest = happening, deque(happening.deliveries())
                while self._rest:
                    yield self._rest.popleft()
            else:
                yield happening

    def _rest_of_batch(self) -> Batch | None:
        """What an iteration by event that was broken off has left of its batch."""
        opened, rest = self._opened, self._rest
        if opened is None or not rest:
            return None
        given, self._rest = opened.count - len(rest), deque()
        return replace(
            opened,
            first_sequence=opened.first_sequence + given,
            first_place=opened.first_place + given,
            first_index=opened.first_index + given,
            count=len(rest),
            runs=[_Rest([delivery.payload for delivery in rest])],
        )

    # -- facts -----------------------------------------------------------------------------------------------

    @property
    def member(self) -> int:
        """This member's number."""
        return self._stack.policy.member

    @property
    def members(self) -> tuple[int, ...]:
        """The members of the view that this member has reached."""
        return self._driver.view.members

    @property
    def bound_ns(self) -> int:
        """The latency that no delivery exceeds while Δ and Γ hold."""
        return self._stack.order.bound_ns()

    def stats(self) -> Stats:
        """What has been measured so far."""
        driver, stack = self._driver, self._stack
        return Stats(
            sent=driver.sent,
            delivered=driver.delivered,
            bound_ns=self.bound_ns,
            delays=stack.delays,
            lateness=driver.alarm.lateness,
            gamma_ns=stack.skew.gamma_ns(),
            refused={reason.value: count for reason, count in stack.door.refused.items()},
            ignored=dict(stack.order.ignored),
            dropped=driver.transport.dropped(),
            errors=dict(driver.transport.errors),
            multicast=stack.order.by_multicast(),
        )

    # -- the beginning and the end ---------------------------------------------------------------------------

    async def _form(self, timeout_s: float) -> None:
        driver, order = self._driver, self._stack.order
        try:
            driver.start()
            async with asyncio.timeout(timeout_s):
                while not order.running() and driver.left is None:
                    await driver.changed()
            driver.raise_if_failed()
            if not order.running():
                raise GroupClosed(f"this member could not join: {driver.reason()}")
            if self._stack.policy.multicast and not order.by_multicast():
                # Some peer cannot be reached by multicast, so each gets a copy: what the link must have room for.
                self._share.leave_in(len(self._stack.policy.view.members) - 1)
        except TimeoutError:
            missing, hints = order.waiting_for(), [order.complaint(), self._refusals()]
            self._close()
            hint = "; ".join(filter(None, hints))
            raise FormationTimeout(self._stack.policy.group, timeout_s, missing, hint) from None
        except BaseException:
            self._close()
            raise
        self._check_buffer()
        problem = driver.transport.multicast_error
        if problem is not None:
            text = f"{problem}; datagrams go to each peer by itself"
            driver.announce(Violation("multicast", text, self._stack.policy.member))

    def _refusals(self) -> str:
        """What came and was not let in: another group, version or slot length at the same address shows here."""
        refused = [f"{count} × {reason.value}" for reason, count in self._stack.door.refused.items()]
        return f"datagrams refused here: {', '.join(refused)}" if refused else ""

    def _check_buffer(self) -> None:
        """Say so if what may be under way to this member does not fit its socket."""
        policy, order = self._stack.policy, self._stack.order
        peers = [m for m in policy.view.members if m != policy.member]
        rates = [rate for peer in peers if (rate := order.peer_rate(peer)) is not None]
        needed = order.window_slots * sum(reservation(policy, rate).burst_bytes_per_slot for rate in rates)
        granted = self._driver.transport.receive_buffer_granted
        if needed > granted:
            self._driver.announce(
                Violation(
                    "receive buffer",
                    f"{needed:,} bytes may be under way to this member, its socket holds {granted:,}; lower the "
                    "peers' bursts or raise the system's limit for receive buffers (net.core.rmem_max)",
                    policy.member,
                )
            )

    async def leave(self) -> bool:
        """Leave in order; what was accepted is sent first. A second call does nothing.

        False if the peers did not let this member finish: they are gone or silent, and what they sent last is not
        delivered here.
        """
        driver = self._driver
        if driver.closed:
            return driver.left is not None
        driver.leave()
        try:
            async with asyncio.timeout(LEAVE_PATIENCE_S + 4 * self.bound_ns / NS_PER_S):
                while driver.left is None and not driver.closed:
                    await driver.changed()
                while not driver.closed and not driver.transport.writable():
                    await driver.changed()
        except TimeoutError:
            return False
        finally:
            self._close()
        return driver.left is not None

    def _close(self) -> None:
        self._driver.close()
        self._share.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.leave()
