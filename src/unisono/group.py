"""The public interface: `join` a group, `send` messages, iterate over events, `leave`."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Literal, Self, cast

from unisono.config import Config, Network, Observe, Peers, read_config
from unisono.errors import FormationTimeout, GroupClosed, InvalidOption, NoMajority, Timeout
from unisono.model.events import (
    Delivery,
    Event,
    Grade,
    Sending,
    Stats,
    Violation,
    ViolationKind,
)
from unisono.model.options import OrderName, OrderOptions
from unisono.model.policy import PRIORITY_MAX, Gaps
from unisono.model.sla import MetricRow
from unisono.model.status import Status
from unisono.model.topology import group_names
from unisono.model.units import NS_PER_S, Rate, duration_ns
from unisono.qos.plan.admission import LinkShare
from unisono.qos.plan.choice import GroupPlan
from unisono.qos.watch.observer import Listener
from unisono.runtime.addresses_tried import addresses_tried
from unisono.runtime.discovery import BeaconResponder
from unisono.runtime.driver import Driver, DriverEvent
from unisono.runtime.environment import Environment, TransportOptions, current_environment
from unisono.runtime.fault_injection import FaultInjection
from unisono.runtime.log_lines import GroupLog
from unisono.runtime.member_status import status_of
from unisono.runtime.reading import EventStreams, Iteration, wants_every_event, wants_messages
from unisono.runtime.setup import Setup
from unisono.runtime.socket_setup import receive_buffer_violation
from unisono.runtime.waiting import members_up, time_limit, wait_for_members
from unisono.stack import Stack, build

LEAVE_TIMEOUT_S = 1.0
_DEFAULT_PRIORITY = 0


def join(
    group: str | None = None,
    *,
    member: int | None = None,
    peers: Peers | None = None,
    deadline: str | None = None,
    gaps: Gaps | None = None,
    order: OrderName | Literal["auto"] | OrderOptions | None = None,
    storage: str | os.PathLike[str] | None = None,
    network: Network | None = None,
    rate: Rate | None = None,
    observe: Observe | None = None,
    config: Config | str | os.PathLike[str] | None = None,
) -> PendingJoin:
    """Join a group: `async with unisono.join(...) as group`, or `group = await unisono.join(...)`.

    - `group`: the group's name, or a reference (`Group.reference`), which contains the addresses.
    - `member`, `peers`: this process's number, and the address of every member by number, this one included, such as
      `{1: "10.0.0.7:9001", …}`. With `Beacon(members=…)` or `Dns(…)` the members find each other.
    - `deadline`: the latency that every delivery has to meet, such as "80ms". `join` raises Infeasible if no order can.
    - `gaps`: "never" (the default): all members that stay up deliver the same messages, even if that takes longer.
      "repaired": early deliveries are on time; final ones follow, without gaps. "allowed": deliveries are on time, and
      a crash or a loss may leave a gap.
    - `order`: "auto" (the default) chooses by `gaps`. Else the name of an order, or its options: `Vbr(slot="5ms")`.
    - `storage`: the file in which a durable order keeps this member's promises, so that it can return after a crash.
    - `network`: the delays, clocks and losses to expect, and this machine's link.
    - `rate`: the most that this member sends: messages per second on average, and messages in one slot.
    - `observe`: a recorder of the trace, service level agreements, metrics.
    - `config`: all of this, and more, as one value or the path of a TOML file. Other arguments override its fields.

    Durations are text with a unit, such as "5ms". A bare number raises TypeError.
    Members must agree on `deadline`, `gaps`, `order`, `peers` and the delays in `network`. Awaiting raises PlanMismatch
    if a peer's options do not let the group form. A member that already runs gets a Violation event instead.
    Raises ConfigError, SlaError, InvalidOption, Infeasible, ReservationRefused or StorageError; awaiting also
    FormationTimeout.
    """
    base = config if isinstance(config, Config) else Config() if config is None else read_config(config)
    given: dict[str, Any] = {
        "group": group,
        "member": member,
        "peers": peers,
        "deadline": deadline,
        "gaps": gaps,
        "order": order,
        "storage": storage,
        "network": network,
        "rate": rate,
        "observe": observe,
    }
    return open_group(replace(base, **{name: value for name, value in given.items() if value is not None}))


def open_group(
    config: Config, *, incarnation: int | None = None, injection: FaultInjection | None = None
) -> PendingJoin:
    """Join a group with this configuration. `incarnation` is this start's number, by default a new one.

    `injection` injects faults at the socket, for tests.
    """
    environment = current_environment()
    recorder = config.observe.recorder
    if incarnation is None:
        incarnation = environment.new_incarnation() if recorder is None else recorder.incarnation
    return PendingJoin(Setup.of(config, incarnation, injection), environment)


class PendingJoin:
    """The result of `join`: use it with `async with` or `await`."""

    def __init__(self, setup: Setup, environment: Environment) -> None:
        self._setup = setup
        self._environment = environment
        self._group: Group | None = None

    @property
    def plan(self) -> GroupPlan:
        """The order and the slot length that were chosen, and why."""
        return self._setup.plan

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
        injection, metrics = setup.injection, setup.config.observe.metrics
        clock = environment.open_clock(setup.member, 0 if injection is None else injection.clock_offset_ns)
        try:
            transport = await environment.open_transport(
                TransportOptions(
                    setup.member,
                    setup.place.addresses,
                    multicast=setup.multicast,
                    multicast_ttl=setup.config.network.multicast_ttl,
                    bind=setup.bind,
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
            share = setup.link.share(1 if by_multicast else max(1, len(setup.place.addresses) - 1))
            max_frame = setup.config.network.max_frame or transport.max_frame()
            stack = build(setup.policy(max_frame), share, None if storage is None else storage.stored_records)
            setup.attach_application_state(stack)
            log = GroupLog(setup.place.group, setup.member)
            log.write(clock.now(), logging.INFO, f"joins with {setup.plan.text()}")
            driver = Driver(
                stack,
                transport,
                clock,
                environment,
                recorder=setup.config.observe.recorder,
                qos_observer=setup.qos_observer(stack),
                on_metrics=None if isinstance(metrics, bool) else metrics,
                storage=storage,
                log=log,
                queue_messages=setup.config.queue_messages,
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
        try:
            if setup.config.status_socket:
                await group._serve_status(environment)
            await group._form(setup.timeout_s)
        except BaseException:
            group._close()
            raise
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
        self._streams = EventStreams(driver, pulls=stack.application_pulls)

    # -- sending ---------------------------------------------------------------------------------------------

    async def send(
        self, message: bytes, *, priority: int = 0, to: Sequence[str] | None = None, timeout: str | None = None
    ) -> None:
        """Multicast one message; wait until the declared rate has room for it.

        Waiting messages of this member with higher `priority` go first. Only the priority orders also deliver by
        priority. A message still waiting when the group ends, or when this call is cancelled, is not sent.
        With a topology, `to` names the groups that get the message; the default is this member's own group. Raises
        DestinationNotAllowed, which lists the allowed groups, if this member's group may not send to one of them.
        If there is no room within `timeout`, such as "2s", raises Timeout, or NoMajority if this member has none.
        """
        driver = self._driver
        plain = type(message) is bytes and priority is _DEFAULT_PRIORITY and to is None and timeout is None
        in_loop = plain and asyncio.get_running_loop() is driver.loop
        if in_loop and (driver.credit.take(message) or driver.take_first(message)):
            return
        await self.send_many((message,), priority=priority, to=to, timeout=timeout)

    async def send_many(
        self,
        messages: Sequence[bytes],
        *,
        priority: int = 0,
        to: Sequence[str] | None = None,
        sending: Sending | None = None,
        timeout: str | None = None,
    ) -> int:
        """Multicast several messages, in this order. This costs far less per message than `send`.

        Return the number of messages when the group has accepted all of them. If the call is cancelled or fails while
        messages wait, the group sends the accepted ones, which come first, and none of the others. A note of the
        exception says how many these are, and `sending.accepted` has the number. `timeout` is as in `send`.
        """
        messages = tuple(messages)  # a copy: the caller may change its list while this waits
        if not set(map(type, messages)) <= {bytes}:
            wrong = next(type(message).__name__ for message in messages if type(message) is not bytes)
            raise TypeError(f"expected messages of type bytes, got {wrong}; encode each message before sending it")
        if not isinstance(priority, int) or not 0 <= priority <= PRIORITY_MAX:
            text = f"expected a number from 0 to {PRIORITY_MAX}, higher is more urgent, got {priority!r}"
            raise InvalidOption("priority", text)
        if messages:
            groups = None if to is None else group_names("to", to)
            if timeout is None:
                await self._driver.submit(messages, priority, groups, sending)
                return len(messages)
            counted = sending or Sending()
            until = counted.accepted + len(messages)
            async with time_limit(
                timeout,
                self._driver,
                "the group had no room for the message",
                is_done=lambda: counted.accepted == until,
            ):
                await self._driver.submit(messages, priority, groups, counted)
        return len(messages)

    async def flush(self, *, timeout: str | None = None) -> None:
        """Wait until all messages that this member has accepted so far are delivered here, in the final grade.

        In the order consensus a majority has them then, on storage if the members have some. Raises NoMajority as soon
        as this member has detected that it has none. With a `timeout`, such as "5s", the call waits that long instead,
        and then raises NoMajority or Timeout. The messages may still be delivered later.
        """
        driver = self._driver
        driver.check_event_loop()
        if self._stack.application_pulls:
            text = "flush is not possible in the priority orders: the application decides when it takes each message"
            raise InvalidOption("order", text)
        watch = driver.watch
        expected = watch.own_delivered + watch.undelivered(driver.accepted_by_this_incarnation)
        async with time_limit(timeout, driver, "not all accepted messages became final"):
            while (missing := expected - watch.own_delivered) > 0:
                driver.raise_if_closed()
                if timeout is None and self.has_majority is False:
                    text = f"{missing} accepted messages are not final, because this member has no majority"
                    raise NoMajority(f"{text}; they may still be delivered later")
                await driver.wait_for_change()

    def submit_threadsafe(self, message: bytes, *, priority: int = 0, to: Sequence[str] | None = None) -> Future[None]:
        """Multicast one message from any thread. The future is done, or has the error, when `send` ends.

        Messages of one thread are sent in the order of the calls. Do not wait for the future in the thread of the
        group's event loop: nothing would be sent while it waits.
        """
        call = self.send(message, priority=priority, to=to)
        try:
            return asyncio.run_coroutine_threadsafe(call, self._driver.loop)
        except RuntimeError as error:
            call.close()
            raise GroupClosed("this group's event loop has ended") from error

    def renegotiate(self, rate: Rate | None = None, *, slot: str | None = None) -> Awaitable[None]:
        """Change this member's rate from its next slot on, or the slot length of the whole group, or both.

        The group orders the request for a `slot` like a message. Await the result to wait until this member uses the
        new slot length, and the new `rate` if there is one. A TimingChange event then comes between two slots.
        Awaiting raises GroupClosed if this member leaves first. If the call raises ReservationRefused, InvalidOption
        or Infeasible (the bound would exceed this member's deadline), nothing has changed.
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

    def messages(self, *, early: bool = False) -> AsyncIterator[Delivery]:
        """Iterate over the messages alone, each once, until this member leaves the group.

        If the order delivers in two grades, these are the final deliveries, without gaps; with `early`, the early ones,
        on time. Other events are left out; `events` has them, also at the same time. A stream begins with its first
        use: open all that you need before you read the first, or the later ones miss what was read before.
        """
        grade = Grade.EARLY if early else Grade.FINAL
        stream = self._streams.stream(f"{grade.value} messages", wants_messages(grade))
        return cast("AsyncIterator[Delivery]", Iteration(self._driver, stream.take_event, stream.turn_is_over))

    def complete_until(self, *, early: bool = False) -> int | None:
        """A time T, in nanoseconds since the Unix epoch: this application has taken every message sent by then.

        No message that a member accepted at T or before, by its clock, is delivered here later, unless it is marked
        `late`. So an auction can close at T. In two grades T is about the final deliveries, and a message is late at
        all members or at none; with `early`, T is about the early ones. Messages in a Gap never come. T is None before
        the first slot. It never includes messages that still wait for the application.

        Messages that a member accepted before it was suspended, or before it had to join again, count as sent when it
        is back: that member reports a Violation of kind `paused` or `slots`. Raises InvalidOption in the orders that
        have no such time: all except `cbr` and `vbr`.

        Members ask at different points of the sequence, so T alone does not say which messages count. Use
        `sent_before` for that, which is the same at all members.
        """
        unread = self._streams.first_unread_slot(Grade.EARLY if early else Grade.FINAL)
        return self._stack.complete_until(early=early, before_slot=unread)

    def sent_before(self, delivery: Delivery) -> int:
        """The end of the slot of a message, in nanoseconds since the Unix epoch.

        The message was sent before this time, by its sender's clock, and is delivered before `complete_until` reaches
        it, unless it is late. Raises InvalidOption in all orders except `cbr` and `vbr`.
        """
        return self._stack.sent_before(delivery.slot)

    def events(self) -> AsyncIterator[Event]:
        """Iterate over deliveries and all other events, in order, until this member leaves the group.

        A cancelled `anext` takes no event, and the next one continues. Several iterations share the events: each event
        goes to the one that asked first. `messages` is independent of them.
        """
        stream = self._streams.stream("events", wants_every_event)
        return Iteration(self._driver, stream.take_event, stream.turn_is_over)

    def __aiter__(self) -> AsyncIterator[Event]:
        """Iterate over `events`."""
        return self.events()

    def batches(self) -> AsyncIterator[DriverEvent]:
        """Iterate over `events`, with the deliveries in batches, which is faster."""
        stream = self._streams.stream("events", wants_every_event)
        return Iteration(self._driver, stream.take_batch, stream.batch_turn_is_over)

    async def next(self, *, timeout: str | None = None) -> Event:
        """Return the next of the `events`. Raise Timeout if none comes in time, GroupClosed if none can come."""
        limit_s = None if timeout is None else duration_ns(timeout, "timeout") / NS_PER_S
        try:
            async with asyncio.timeout(limit_s) as limit:
                return await anext(aiter(self))
        except StopAsyncIteration:
            raise GroupClosed("this member has left the group") from None
        except TimeoutError:
            if limit.expired():
                raise Timeout(f"no event within {timeout}") from None
            raise

    async def consume(self) -> Delivery:
        """Deliver the next message of a priority order: take it from the queue. Iterating over the group does the same.

        Wait while the queue is empty or its first message is locked. This call returns no other events: iterate over
        the group to get them.
        """
        driver = self._driver
        while (batch := driver.consume()) is None:
            driver.raise_if_closed()
            await driver.wait_for_change()
        return batch.deliveries()[0]

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
    def plan(self) -> GroupPlan:
        """The order and the slot length that were chosen for this group, and why."""
        return self._setup.plan

    @property
    def max_message(self) -> int:
        """The size in bytes of the largest message that this member may send."""
        return self._stack.policy.max_message

    @property
    def bound_ns(self) -> int:
        """The latency that no delivery exceeds while Δ and Γ hold."""
        return self._stack.bound_ns()

    def status(self) -> Status:
        """What this member knows of its group now: role, leader, majority, peers, queues, plan, measured Δ and Γ."""
        return status_of(self._driver, self._setup.place.group, self.plan.text())

    async def wait_for(self, members: int, *, timeout: str | None = None) -> None:
        """Wait until this many members are up, this one included.

        A member is up if it is in the view, this member has heard from it lately, and does not suspect it; that is the
        state "up" of `status().peers`. With a topology, only the members of related groups count. If too few members
        are up within `timeout`, such as "10s", raises Timeout, which names the missing ones.
        """
        await wait_for_members(self._driver, members, timeout)

    @property
    def has_majority(self) -> bool | None:
        """Whether this member has a majority of the group; None if the order needs none, or has not formed."""
        return self._driver.watch.standing(self._driver.clock.now()).majority

    def on_majority_lost(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the reason each time this member finds that it has lost its majority.

        An exception of the listener is logged, and the group continues.
        """
        watched = self._driver.logging_errors(listener, "the on_majority_lost listener")
        self._driver.watch.on_majority_lost.append(watched)

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
            late=driver.watch.late,
            counters=driver.counters(),
            gap_free=stack.gap_free() or stack.policy.grades != "early",
        )

    def metrics(self) -> tuple[MetricRow, ...]:
        """The metric rows of the last complete interval; empty without `metrics` and `sla` of `Observe`."""
        observer = self._driver.qos_observer
        return () if observer is None else observer.latest

    def on_sla(self, sla: str, listener: Listener) -> None:
        """Call `listener` with each SlaViolation and SlaCleared of the service level agreement named `sla`.

        An exception of the listener is logged, and the group continues.
        """
        observer = self._driver.qos_observer
        if observer is None:
            raise InvalidOption("sla", "this group has no agreements; join with observe=Observe(sla=…)")
        observer.register(sla, self._driver.logging_errors(listener, f"the on_sla listener of {sla!r}"))

    # -- forming and leaving ---------------------------------------------------------------------------------

    async def _serve_status(self, environment: Environment) -> None:
        """Serve this member's status to `unisono status`. A group works without that, so a failure is only logged."""
        try:
            server = await environment.serve_status(self._setup.place.group, self.member, self.status)
        except OSError as error:
            level = logging.INFO if isinstance(error, FileExistsError) else logging.WARNING
            text = f"`unisono status` cannot show this member: {error}; status_socket=False switches that off"
            self._driver.watch.log.write(self._driver.clock.now(), level, text)
            return
        if server is None:
            return
        if self._driver.closed:
            server.close()
        else:
            self._driver.close_with.append(server.close)

    async def _form(self, timeout_s: float) -> None:
        driver, stack, least = self._driver, self._stack, self._setup.config.min_members or 1
        try:
            driver.start()
            async with asyncio.timeout(timeout_s):
                while not stack.running() and driver.left is None:
                    stack.raise_if_plans_differ()
                    await driver.wait_for_change()
                while driver.left is None and not driver.closed and members_up(driver) < least:
                    await driver.wait_for_input()
            driver.raise_if_failed()
            if not stack.running():
                raise GroupClosed(f"this member could not join: {driver.last_violation_text()}")
            if stack.policy.multicast and not stack.by_multicast():
                # Multicast does not reach every peer, so each gets a copy, and the link needs room for all copies.
                self._link_share.set_copies(len(self._stack.policy.view.members) - 1)
        except TimeoutError:
            try:
                raise await self._formation_timeout(timeout_s) from None
            finally:
                self._close()
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

    async def _formation_timeout(self, timeout_s: float) -> FormationTimeout:
        """The error that says why the group has not formed, and what came back from each peer's address."""
        stack, group = self._stack, self._setup.place.group
        hint = "; ".join(filter(None, [stack.why_not_formed(), self._refused_datagrams_text()]))
        missing = stack.waiting_for()
        if stack.running():
            missing = tuple(peer.member for peer in self.status().peers if peer.state != "up")
            count, least = members_up(self._driver), self._setup.config.min_members
            hint = f"{count} of at least {least} members are up (min_members){f'; {hint}' if hint else ''}"
        tried = await addresses_tried(self._driver, self._setup.place.addresses)
        return FormationTimeout(group, timeout_s, missing, hint, tried)

    def _refused_datagrams_text(self) -> str:
        """A text with the number of refused datagrams by reason. It helps to find peers with other options."""
        refused = [f"{count} × {reason.value}" for reason, count in self._stack.refused.items()]
        return f"datagrams refused here: {', '.join(refused)}" if refused else ""

    async def leave(self, *, timeout: str | None = None) -> bool:
        """Leave the group after all accepted messages are sent. A second call does nothing.

        Return False if this member gave up waiting for departed or unresponsive peers: then it did not deliver their
        last messages. It gives up after `timeout`, by default 1 s and four times the latency bound. If this member has
        accepted messages that it has not delivered, a log line counts them, and so does `status().undelivered`.
        """
        limit_s = LEAVE_TIMEOUT_S + 4 * self.bound_ns / NS_PER_S
        if timeout is not None:
            limit_s = duration_ns(timeout, "timeout") / NS_PER_S
        driver = self._driver
        if driver.closed:
            return driver.left is not None
        driver.check_event_loop()
        try:
            driver.leave()
            async with asyncio.timeout(limit_s):
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
