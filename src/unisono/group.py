"""The public interface: `join` a group, `send` messages, iterate over events, `leave`."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeAlias

from unisono.errors import FormationTimeout, GroupClosed, InvalidOption
from unisono.model.events import (
    Batch,
    Delivery,
    Notice,
    Stats,
    TimingChange,
    ViewChange,
    Violation,
    ViolationKind,
    remaining,
)
from unisono.model.policy import PRIORITY_MAX, Redundancy, StateHolder
from unisono.model.sla import MetricRow, SlaSet
from unisono.model.timing import DELTA_DEFAULT, GAMMA_DEFAULT
from unisono.model.topology import Multigroup, Topology, group_names, multigroup_of
from unisono.model.units import NS_PER_S, Rate, duration_ns
from unisono.qos.plan.admission import Link, LinkShare
from unisono.qos.watch.observer import Listener
from unisono.runtime.discovery import BeaconResponder
from unisono.runtime.driver import Driver, DriverEvent
from unisono.runtime.environment import Environment, TransportOptions, current_environment
from unisono.runtime.fault_injection import FaultInjection
from unisono.runtime.peers import Peers, group_location
from unisono.runtime.setup import MetricSink, Setup, choose_timing, load_slas, parse_address
from unisono.runtime.socket_setup import receive_buffer_violation
from unisono.stack import Stack, build

if TYPE_CHECKING:
    from unisono.trace.recorder import Recorder

Event: TypeAlias = Delivery | ViewChange | TimingChange | Violation | Notice
"""The events that an iteration over a group yields."""

LEAVE_TIMEOUT_S = 1.0
_DEFAULT_PRIORITY = 0
_FIRST_CHUNK, _LARGEST_CHUNK = 16, 256
"""How many deliveries an iteration prepares at once: at first, and at most."""


def join(
    group: str,
    *,
    member: int | None = None,
    peers: Peers = None,
    members: int | None = None,
    beacon: str | None = None,
    interface: str | None = None,
    order: str = "auto",
    rate: Rate | None = None,
    deadline: str | int | None = None,
    slot: str | int | None = None,
    delta: str | int = DELTA_DEFAULT,
    gamma: str | int = GAMMA_DEFAULT,
    failures: bool = False,
    loss_burst: int = 0,
    fec: tuple[int, int] | None = None,
    reliable: Redundancy | None = None,
    grades: str = "early",
    processing: str | int = 0,
    max_message: int = 4096,
    max_frame: int | None = None,
    multicast: str | tuple[str, int] | None = None,
    link: Link | None = None,
    recorder: Recorder | None = None,
    incarnation: int | None = None,
    timeout: str | int = "30s",
    queue_messages: int = 1_000_000,
    injection: FaultInjection | None = None,
    sla: SlaSet | str | os.PathLike[str] | None = None,
    monitor: bool | MetricSink = False,
    storage: str | Path | None = None,
    fsync: str = "always",
    topology: Topology | Multigroup | None = None,
    state: StateHolder | None = None,
    rejoin: bool = True,
) -> PendingJoin:
    """Join a group: `async with unisono.join(...) as group`, or `group = await unisono.join(...)`.

    The members:

    - `group`: the group's name, or a reference (`Group.reference`), which contains the addresses.
    - `peers`: the address of every member, this one included, by number, such as `{1: "10.0.0.7:9001", …}`; or
      `"dns:NAME:PORT"`. `member` is this process's number.
    - `members`: without `peers`, this many processes find each other by an IP multicast `beacon` on `interface`.
      `member` is then the number that this process needs, if any.
    - `timeout`: how long the group may take to form.

    The order and its assumptions:

    - `order`: "vbr" ("auto" is the same), or cbr, leader, timestamp, consensus, priority, and others.
    - `delta`, `gamma`, `slot`: the largest delay of the network, the largest difference between two members' clocks,
      and the length of a slot. All members must give the same values.
    - `deadline`: without `slot`, `join` chooses the longest slot that keeps this latency.
    - `failures`: members may crash, join and leave while the group runs. The order may have gaps where they crash.
    - `loss_burst`: the most consecutive datagrams of a sender that the network loses.
    - `fec=(a, b)`: redundancy against the loss of `a` of any `b` consecutive datagrams of a sender.
    - `reliable=Redundancy(...)`: each datagram is multicast several times. `delta` is then the time within which these
      copies reach all members.
    - `grades`: "early", or in vbr and cbr also "final" (only messages that all members have agreed on) or "both".
    - `processing`: the time that a leader needs for one message.
    - `topology` (quasi_genuine): the members of each group and the groups that each may send to. A `Multigroup` also
      says how barriers are made and whether messages are delivered early.

    This member:

    - `rate`: the most that this member sends: messages per second on average, and messages in one slot.
    - `link`: the capacity to reserve from, shared between groups; by default 1 Gbit/s for this group alone.
    - `recorder`: writes the trace. Its incarnation must be the `incarnation` given here.
    - `sla`: the path of a file of service level agreements, or the result of `parse_slas`. The group checks them while
      it runs, and violations come as events.
    - `monitor`: True collects metrics without agreements. The group calls a function with the rows of each interval.
    - `storage`: the file in which a durable order keeps this member's promises, so that the member can restart after a
      crash. `fsync` says when the file is synced: "always" before anything depends on a write, "batch" soon after it,
      or "never".
    - `state` (the priority orders): the application. It gives its state to members that join later, and receives the
      state when it joins itself.
    - `rejoin`: this member rejoins by itself if the others have excluded it, for example after a long pause.
    - `injection`: faults to inject, for tests.

    Raises SlaError, InvalidOption, Infeasible, ReservationRefused or StorageError; awaiting also FormationTimeout.
    """
    place = group_location(group, member, peers, members, beacon=beacon, interface=interface)
    if queue_messages < 1:
        raise InvalidOption("queue_messages", f"expected room for at least one message, got {queue_messages}")
    environment = current_environment()
    skew = duration_ns(gamma, "gamma")
    timing = choose_timing(order, deadline, slot, duration_ns(delta, "delta"), (skew, 2 * skew if failures else skew))
    setup = Setup(
        group=place.group,
        member=place.member,
        addresses=place.addresses,
        salt=place.salt,
        search=place.search,
        order="vbr" if order == "auto" else order,
        rate=rate or Rate(avg=50, burst=8),
        timing=timing,
        max_message=max_message,
        max_frame=max_frame,
        failures=failures,
        loss_burst=loss_burst,
        fec=fec,
        reliable=reliable,
        grades=grades,
        processing_ns=duration_ns(processing, "processing"),
        multicast=None if multicast is None else parse_address("multicast", multicast),
        link=link or Link(),
        recorder=recorder,
        incarnation=incarnation if incarnation is not None else environment.new_incarnation(),
        timeout_s=duration_ns(timeout, "timeout") / NS_PER_S,
        queue_messages=queue_messages,
        injection=injection,
        slas=load_slas(sla),
        monitor=monitor,
        storage=None if storage is None else Path(storage),
        state=state,
        rejoin=rejoin,
        fsync=fsync,
        multigroup=multigroup_of(topology),
        deadline_ns=None if deadline is None else duration_ns(deadline, "deadline"),
    )
    setup.check()
    return PendingJoin(setup, environment)


class PendingJoin:
    """The result of `join`: use it with `async with` or `await`."""

    def __init__(self, setup: Setup, environment: Environment) -> None:
        self._setup = setup
        self._environment = environment
        self._group: Group | None = None

    def __await__(self) -> Generator[None, None, Group]:
        return self._open().__await__()

    async def __aenter__(self) -> Group:
        self._group = await self._open()
        return self._group

    async def __aexit__(self, *_: object) -> None:
        if self._group is not None:
            await self._group.leave()

    async def _open(self) -> Group:
        environment = self._environment
        setup, found = await self._setup.with_discovered_members(environment.discover)
        injection = setup.injection
        clock = environment.open_clock(setup.member, 0 if injection is None else injection.clock_offset_ns)
        try:
            transport = await environment.open_transport(
                TransportOptions(
                    setup.member,
                    setup.addresses,
                    multicast=setup.multicast,
                    injection=injection,
                    bound_socket=None if found is None else found.bound_socket,
                    timeout_s=setup.timeout_s,
                )
            )
        except BaseException:
            if found is not None:
                found.close()
            raise
        share = storage = None
        try:
            storage = setup.open_storage()
            by_multicast = setup.multicast is not None and transport.multicast_error is None
            share = setup.link.share(1 if by_multicast else max(1, len(setup.addresses) - 1))
            max_frame = setup.max_frame or transport.max_frame()
            stack = build(setup.policy(max_frame), share, None if storage is None else storage.stored_records)
            setup.attach_application_state(stack)
            driver = Driver(
                stack,
                transport,
                clock,
                environment,
                recorder=setup.recorder,
                qos_observer=setup.qos_observer(stack),
                on_metrics=None if isinstance(setup.monitor, bool) else setup.monitor,
                storage=storage,
                queue_messages=setup.queue_messages,
                deadline_ns=setup.deadline_ns,
            )
        except BaseException:
            transport.close()
            if storage is not None:
                storage.close()
            if share is not None:
                share.release()
            if found is not None:
                found.close()
            raise
        group = Group(driver, stack, share, setup, None if found is None else found.responder)
        await group._form(setup.timeout_s)
        environment.on_joined(setup.member, group._close)
        return group


class Group:
    """A group that this process is a member of."""

    def __init__(
        self, driver: Driver, stack: Stack, link_share: LinkShare, setup: Setup, responder: BeaconResponder | None
    ) -> None:
        self._driver = driver
        self.announce_verdicts = driver.announce_verdicts
        self._setup, self._responder = setup, responder
        self._stack = stack
        self._link_share = link_share
        self._opened_batch: Batch | None = None
        self._opened_payloads: list[bytes] = []
        """The messages of `_opened_batch`; the first `_prepared` of them have been prepared for the application."""
        self._prepared = 0
        self._remaining_deliveries: deque[Delivery] = deque()
        """The deliveries that were prepared and that no iteration has yielded yet, because the application may stop at
        any time."""
        self._chunk = _FIRST_CHUNK

    # -- sending ---------------------------------------------------------------------------------------------

    async def send(self, message: bytes, *, priority: int = 0, to: Sequence[str] | None = None) -> None:
        """Multicast one message; wait until the declared rate has room for it.

        Waiting messages of this member with higher `priority` go first. Only the priority orders also deliver by
        priority. A message still waiting when the group ends, or when this call is cancelled, is not sent.
        With a topology, the message goes `to` these groups, by default to this member's own group.
        DestinationNotAllowed lists the allowed groups.
        """
        if type(message) is bytes and priority is _DEFAULT_PRIORITY and to is None:
            driver = self._driver
            if driver.credit.take(message) or driver.take_first(message):
                return
        await self.send_many((message,), priority=priority, to=to)

    async def send_many(self, messages: Sequence[bytes], *, priority: int = 0, to: Sequence[str] | None = None) -> None:
        """Multicast several messages, in this order. This costs far less per message than `send`."""
        messages = tuple(messages)  # a copy: the caller may change its list while this waits
        if not set(map(type, messages)) <= {bytes}:
            wrong = next(type(message).__name__ for message in messages if type(message) is not bytes)
            raise TypeError(f"expected messages of type bytes, got {wrong}; encode each message before sending it")
        if not isinstance(priority, int) or not 0 <= priority <= PRIORITY_MAX:
            text = f"expected a number from 0 to {PRIORITY_MAX}, higher is more urgent, got {priority!r}"
            raise InvalidOption("priority", text)
        if messages:
            await self._driver.submit(messages, priority, None if to is None else group_names("to", to))

    def renegotiate(self, rate: Rate | None = None, *, slot: str | int | None = None) -> Awaitable[None]:
        """Change this member's rate from its next slot on, or the slot length of the whole group, or both.

        The group orders the request for a `slot` like a message. Await the result to wait until this member's slots
        have that length, and the new `rate` if there is one. A TimingChange event then comes between two slots.
        Awaiting raises GroupClosed if this member leaves first. ReservationRefused, InvalidOption and Infeasible (the
        bound would exceed this member's deadline) change nothing.
        """
        if slot is not None:
            return self._driver.change_slot(duration_ns(slot, "slot"), rate)
        if rate is None:
            raise InvalidOption("rate", "expected a rate, a slot, or both, got neither")
        self._driver.change_rate(rate)
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    async def change_topology(self, sends: Sequence[str]) -> None:
        """Let this member's group send only to these groups; wait until all groups concerned have made the change."""
        await self._driver.change_topology(group_names("topology.sends", sends))

    # -- receiving -------------------------------------------------------------------------------------------

    async def batches(self) -> AsyncGenerator[DriverEvent, None]:
        """Iterate over batches of deliveries and over other events, in order, until this member leaves the group."""
        driver = self._driver
        while True:
            if driver.turn.is_over():
                await asyncio.sleep(0)
            event = self._remaining_batch() or driver.pop()
            if event is None and self._stack.application_pulls:
                event = driver.consume()
            if event is not None:
                yield event
            elif driver.closed:
                driver.raise_if_failed()
                return
            else:
                await driver.wait_for_change()

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        async for event in self.batches():
            if isinstance(event, Batch):
                self._open_batch(event)
                while self._remaining_deliveries or self._prepare_deliveries():
                    yield self._remaining_deliveries.popleft()
                    if not self._remaining_deliveries and self._turn_is_over():
                        await asyncio.sleep(0)
            else:
                yield event

    async def consume(self) -> Delivery:
        """Take the next message from the queue of the priority order, which delivers it. An iteration does the same.

        Wait while the queue is empty or its first message is locked. Other events stay in the queue for an iteration.
        """
        driver = self._driver
        while (batch := driver.consume()) is None:
            driver.raise_if_closed()
            await driver.wait_for_change()
        return batch.deliveries()[0]

    def _remaining_batch(self) -> Batch | None:
        """The deliveries of a batch that an unfinished iteration has not yielded yet; None if there are none."""
        opened, yielded = self._opened_batch, self._prepared - len(self._remaining_deliveries)
        if opened is None or yielded == len(self._opened_payloads):
            return None
        rest = remaining(opened, self._opened_payloads[yielded:])
        self._opened_batch, self._opened_payloads, self._prepared = None, [], 0
        self._remaining_deliveries.clear()
        return rest

    def _open_batch(self, batch: Batch) -> None:
        """Start to yield the deliveries of a batch one by one."""
        self._opened_batch, self._opened_payloads, self._prepared = batch, batch.messages, 0
        self._remaining_deliveries.clear()

    def _prepare_deliveries(self) -> bool:
        """Prepare the next deliveries of the opened batch; False if it has no more."""
        batch, start = self._opened_batch, self._prepared
        if batch is None or start == len(self._opened_payloads):
            return False
        payloads = self._opened_payloads[start : start + self._chunk]
        self._remaining_deliveries.extend(batch.deliveries_of(payloads, start))
        self._prepared += len(payloads)
        return True

    def _turn_is_over(self) -> bool:
        """Whether the application has used up its turn with the last chunk of deliveries. Adapt the size of chunks.

        The chunks are short if the application needs long for each delivery, and long if a look at the clock would
        cost more than the delivery.
        """
        over = self._driver.turn.is_over()
        self._chunk = max(1, self._chunk // 2) if over else min(2 * self._chunk, _LARGEST_CHUNK)
        return over

    # -- properties and statistics ---------------------------------------------------------------------------

    @property
    def member(self) -> int:
        """This member's number."""
        return self._stack.policy.member

    @property
    def reference(self) -> str:
        """A text with the addresses of this group's members, for `join(reference, member=…)`."""
        return self._setup.reference()

    @property
    def members(self) -> tuple[int, ...]:
        """The members of the group, in this member's current view."""
        return self._driver.view.members

    @property
    def bound_ns(self) -> int:
        """The latency that no delivery exceeds while Δ and Γ hold."""
        return self._stack.bound_ns()

    def stats(self) -> Stats:
        """This member's measurements of itself and of the network, so far."""
        driver, stack = self._driver, self._stack
        return Stats(
            sent=driver.accepted,
            delivered=driver.delivered,
            bound_ns=self.bound_ns,
            delays=stack.delays,
            lateness=driver.alarm.lateness,
            gamma_ns=stack.gamma_ns(),
            refused={reason.value: count for reason, count in stack.refused.items()},
            ignored=dict(stack.ignored),
            dropped=driver.transport.dropped(),
            errors=dict(driver.transport.errors),
            multicast=stack.by_multicast(),
            order=stack.policy.order,
            counters=driver.counters(),
            gap_free=stack.gap_free() or stack.policy.grades != "early",
        )

    def metrics(self) -> tuple[MetricRow, ...]:
        """The metric rows of the last complete interval; empty without `monitor` and `sla`."""
        observer = self._driver.qos_observer
        return () if observer is None else observer.latest

    def on_sla(self, sla: str, listener: Listener) -> None:
        """Call `listener` with each SlaViolation and SlaCleared of the service level agreement named `sla`."""
        observer = self._driver.qos_observer
        if observer is None:
            raise InvalidOption("sla", "this group has no service level agreements; give sla=... to join")
        observer.register(sla, listener)

    # -- forming and leaving ---------------------------------------------------------------------------------

    async def _form(self, timeout_s: float) -> None:
        driver, stack = self._driver, self._stack
        try:
            driver.start()
            async with asyncio.timeout(timeout_s):
                while not stack.running() and driver.left is None:
                    await driver.wait_for_change()
            driver.raise_if_failed()
            if not stack.running():
                raise GroupClosed(f"this member could not join: {driver.last_violation_text()}")
            if stack.policy.multicast and not stack.by_multicast():
                # Multicast does not reach every peer, so each gets a copy, and the link needs room for all copies.
                self._link_share.set_copies(len(self._stack.policy.view.members) - 1)
        except TimeoutError:
            missing, hints = stack.waiting_for(), [stack.why_not_formed(), self._refused_datagrams_text()]
            self._close()
            hint = "; ".join(filter(None, hints))
            raise FormationTimeout(self._stack.policy.group, timeout_s, missing, hint) from None
        except BaseException:
            self._close()
            raise
        small = receive_buffer_violation(self._stack, driver.transport.receive_buffer_granted)
        if small is not None:
            driver.report_violation(small)
        problem = driver.transport.multicast_error
        if problem is not None:
            text = f"{problem}; this member sends a unicast copy to each peer instead"
            driver.report_violation(Violation(ViolationKind.MULTICAST, text, self._stack.policy.member))

    def _refused_datagrams_text(self) -> str:
        """A text with the number of refused datagrams by reason. It helps to find peers with other options."""
        refused = [f"{count} × {reason.value}" for reason, count in self._stack.refused.items()]
        return f"datagrams refused here: {', '.join(refused)}" if refused else ""

    async def leave(self) -> bool:
        """Leave the group after all accepted messages are sent. A second call does nothing.

        Return False if this member gave up waiting for departed or unresponsive peers: then it did not deliver their
        last messages.
        """
        driver = self._driver
        if driver.closed:
            return driver.left is not None
        try:
            driver.leave()
            async with asyncio.timeout(LEAVE_TIMEOUT_S + 4 * self.bound_ns / NS_PER_S):
                while driver.left is None and not driver.closed:
                    await driver.wait_for_change()
                while not driver.closed and not driver.transport.writable():
                    await driver.wait_for_change()
        except TimeoutError:
            return False
        finally:
            self._close()
        return driver.left is not None

    def _close(self) -> None:
        self._driver.close()
        if self._responder is not None:
            self._responder.close()
        self._link_share.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()
