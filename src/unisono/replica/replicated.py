"""A replica on a group: the group orders the commands, and every member runs them on its copy of the state.

Early deliveries run on the optimistic state, final ones on the conservative state (paper 003 §3.2). A group with one
grade delivers only final commands. A newcomer requests the state with an ordered message. One member takes a snapshot
at the position of the request and sends it in ordered messages, too. Until the snapshot has arrived, the newcomer holds
final commands back.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import struct
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeAlias

from unisono.errors import GroupClosed, InvalidOption, NoMajority, Timeout
from unisono.group import Group
from unisono.model.capabilities import capabilities_of, orders_with
from unisono.model.events import Batch, Gap, Grade, Notice, TimingChange, ViewChange, Violation
from unisono.model.units import NS_PER_S, duration_ns
from unisono.replica.replica import MessageName, MistakeCounts, Replica
from unisono.replica.state_machine import Key, StateMachine

GroupEvent: TypeAlias = ViewChange | TimingChange | Gap | Violation | Notice
_COMMAND, _STATE_REQUEST, _STATE, _PROBE = 1, 2, 3, 4
_MESSAGE_HEAD = struct.Struct("!BQ")
_PART = struct.Struct("!HII")
HEAD_BYTES = _MESSAGE_HEAD.size
"""The size in bytes of the header that precedes the command in each message."""
PART_BYTES = 1024
"""The default size in bytes of the parts in which a snapshot is sent, unless the group's messages are smaller."""
STATE_REQUEST_RETRY_S = 1.0
_LOGGER = logging.getLogger("unisono")


class Replicated:
    """Keeps a state machine's state the same at every member: `async with Replicated(group, machine) as state`."""

    def __init__(
        self,
        group: Group,
        machine: StateMachine,
        *,
        on_event: Callable[[GroupEvent], None] | None = None,
        part_bytes: int | None = None,
    ) -> None:
        """`on_event` receives all events but deliveries. From now on, only this object may iterate over the group.

        A snapshot is sent in parts of `part_bytes`, which plus 19 bytes must fit into one message of the group. By
        default, a part has up to 1024 bytes.
        """
        stats = group.stats()
        if not stats.gap_free:
            raise InvalidOption(
                "grades", 'deliveries of this group may have gaps, so states would differ; join with grades="both"'
            )
        orders = {*orders_with("numbers_finals"), *orders_with("starts_together")}
        if stats.order not in orders:
            raise InvalidOption("order", f"expected one of {', '.join(sorted(orders))}, got {stats.order!r}")
        capabilities, grades = capabilities_of(stats.order), getattr(group.plan.order, "grades", "early")
        self._may_start_midstream = capabilities.numbers_finals and (
            grades != "early" or not capabilities.starts_together
        )
        """Whether this member's first final message may have predecessors, which it does not get."""
        self._machine = machine
        self.replica = Replica(machine, two_grades=False)
        self._group = group
        self._on_event = on_event
        self._part_bytes = _checked_part_bytes(part_bytes, group.max_message)
        self._token = secrets.randbits(32) << 32
        self._pending_results: dict[int, tuple[Grade, asyncio.Future[Any]]] = {}
        self._needing_majority: dict[int, asyncio.Timeout] = {}
        """By token, the limits of calls that end when this member loses its majority."""
        # Early commands run without a majority, if they are not also the final ones.
        self._early_runs_alone = grades == "both" or capabilities.routed
        group.on_majority_lost(self._on_majority_lost)
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._background_tasks: dict[asyncio.Task[None], None] = {}
        self._background_failure: Exception | None = None
        self._has_final = self._complete = False
        """Whether a final message was delivered here, and whether the state includes all earlier final commands."""
        self._last_request = self._ordered_request = 0
        """The tokens of the last state request that was sent, and of the last one that the group has delivered."""
        self._held_back: list[tuple[MessageName, int, bytes]] = []
        """Final commands that wait until the requested snapshot has arrived: (message, token, command)."""
        self._parts: dict[int, bytes] = {}

    # -- the user ----------------------------------------------------------------------------------------------

    async def execute(
        self,
        command: bytes,
        *,
        grade: Grade = Grade.FINAL,
        to: Sequence[str] | None = None,
        priority: int = 0,
        timeout: str | None = None,
    ) -> Any:
        """Send a command and wait until it has run here. Returns the result of the machine's `apply`.

        With `grade=Grade.EARLY`, it returns when the command has run on the optimistic state. That is sooner, but the
        result may be corrected later. In a group with one grade there is no difference. An exception of the machine's
        `touches` is raised here before anything is sent: a command that cannot run would stop every member's replica.

        Without a majority no command becomes final. Then NoMajority is raised as soon as this member has detected
        that. With a `timeout`, such as "5s", the call waits that long instead, and then raises NoMajority or Timeout.
        A command that was sent before may still run later.
        """
        self._raise_if_closed()
        self._machine.touches(command)
        limit_s = None if timeout is None else duration_ns(timeout, "timeout") / NS_PER_S
        needs_majority = grade is Grade.FINAL or not self._early_runs_alone
        if timeout is None and needs_majority and self._group.has_majority is False:
            raise NoMajority("the command was not sent, because this member has no majority of the group")
        self._token += 1
        token, done = self._token, asyncio.get_running_loop().create_future()
        self._pending_results[token] = (grade, done)
        try:
            async with asyncio.timeout(limit_s) as limit:
                if timeout is None and needs_majority:
                    self._needing_majority[token] = limit
                if grade is Grade.FINAL and self._may_start_midstream:
                    await self._get_state_first()
                await self._group.send(_MESSAGE_HEAD.pack(_COMMAND, token) + command, priority=priority, to=to)
                return await done
        except TimeoutError:
            if not limit.expired():
                raise
            if needs_majority and (timeout is None or self._group.has_majority is False):
                text = "the command has not run here, because this member has no majority of the group"
                raise NoMajority(f"{text}; it may still run later") from None
            raise Timeout(f"the command has not run here within {timeout}; it may still run later") from None
        finally:
            self._pending_results.pop(token, None)
            self._needing_majority.pop(token, None)

    async def _get_state_first(self) -> None:
        """Wait until this member has the group's state, or knows that it needs none.

        A command that runs elsewhere before this member has the state is part of the state when it arrives. Then this
        member would never learn the result. The first final message shows whether the state is needed.
        """
        if not self._has_final:
            await self._group.send(_MESSAGE_HEAD.pack(_PROBE, 0))
        while not (self._has_final and self._complete):
            await self.wait_for_change()

    def _on_majority_lost(self, _reason: str) -> None:
        """End the calls that wait for a majority, without a time-out of their own."""
        waiting, self._needing_majority = self._needing_majority, {}
        for limit in waiting.values():
            limit.reschedule(asyncio.get_running_loop().time())

    def optimistic(self, key: Key) -> Any:
        """The object after all commands delivered so far, early ones included; None if it does not exist."""
        return self.replica.optimistic(key)

    def conservative(self, key: Key) -> Any:
        """The object as agreed by the group; None if it does not exist."""
        return self.replica.conservative(key)

    @property
    def mistakes(self) -> MistakeCounts:
        """How often the optimistic state was corrected, and why."""
        return self.replica.mistakes

    @property
    def is_complete(self) -> bool:
        """Whether this member has the group's state. A newcomer has it when another member's snapshot has arrived."""
        return self._complete or not self._has_final

    async def wait_for_change(self) -> None:
        """Wait until the next command has run here, or the optimistic state was corrected."""
        self._raise_if_closed()
        self._changed.clear()
        await self._changed.wait()
        self._raise_if_closed()

    async def wait_until_final(self) -> None:
        """Wait until all commands delivered early are final, and this member has the group's complete state."""
        while self.replica.pending or not self.is_complete:
            await self.wait_for_change()

    # -- the group ---------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        reason: Exception = GroupClosed("this member left the group before the command ran")
        try:
            async for event in self._group.batches():
                if isinstance(event, Batch):
                    self._on_batch(event)
                    self._changed.set()
                else:
                    self._pass_on(event)
        except asyncio.CancelledError:
            reason = self._background_failure or GroupClosed("the replica was closed before the command ran here")
            if self._background_failure is not None:
                raise self._background_failure from None
            raise
        except Exception as error:
            _LOGGER.exception("member %d: the replica has stopped", self._group.member)
            reason = error
            raise
        finally:
            self._changed.set()
            for _, done in self._pending_results.values():
                if not done.done():
                    done.set_exception(reason)
                    done.exception()  # so that asyncio does not warn if the caller fails before it awaits the future

    def _pass_on(self, event: GroupEvent) -> None:
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:
                text = "member %d: the on_event function raised an exception; the replica continues"
                _LOGGER.exception(text, self._group.member)

    def _on_batch(self, batch: Batch) -> None:
        final = batch.grade is not Grade.EARLY
        if final and not self._has_final:
            self._has_final, self._complete = True, not self._may_start_midstream or batch.first_position == 0
            if not self._complete:
                self._request_state()
        for number, message in enumerate(batch.messages, batch.first_sequence):
            name = (batch.sender, batch.incarnation, number)
            if len(message) < HEAD_BYTES:
                continue
            kind, token = _MESSAGE_HEAD.unpack_from(message)
            body = message[HEAD_BYTES:]
            if kind == _COMMAND and not final:
                self._resolve(token, Grade.EARLY, self.replica.deliver_early(name, body))
            elif kind == _COMMAND:
                self._on_final(name, token, body)
            elif kind == _STATE_REQUEST and final:
                self._on_state_request(batch.sender, token)
            elif kind == _STATE and final:
                self._on_state(token, body)

    def _on_final(self, name: MessageName, token: int, command: bytes) -> None:
        if self._complete:
            self._resolve(token, Grade.FINAL, self.replica.deliver_final(name, command))
        elif self._ordered_request:
            self._held_back.append((name, token, command))

    def _resolve(self, token: int, grade: Grade, result: Any) -> None:
        wanted, done = self._pending_results.get(token, (grade, None))
        if done is not None and not done.done() and (grade is wanted or grade is Grade.FINAL):
            done.set_result(result)

    # -- state transfer ------------------------------------------------------------------------------------------

    def _request_state(self) -> None:
        """Request the group's state repeatedly until it arrives.

        Each request has a new token, which selects the member that sends the snapshot.
        """
        self._spawn(self._request_until_complete())

    async def _request_until_complete(self) -> None:
        pause = STATE_REQUEST_RETRY_S + 20 * self._group.bound_ns / NS_PER_S
        while not self._complete:
            self._token += 1
            self._last_request = self._token
            await self._group.send(_MESSAGE_HEAD.pack(_STATE_REQUEST, self._last_request))
            await asyncio.sleep(pause)
            pause *= 2

    def _on_state_request(self, requester: int, token: int) -> None:
        if requester == self._group.member and token == self._last_request:
            self._ordered_request, self._held_back, self._parts = token, [], {}
            return
        others = [member for member in sorted(self._group.members) if member != requester]
        if self._complete and others and others[token % len(others)] == self._group.member:
            self._spawn(self._send_state(token, self.replica.snapshot()))

    async def _send_state(self, token: int, state: bytes) -> None:
        size, me = self._part_bytes, self._group.member
        for at in range(0, len(state), size):
            head = _MESSAGE_HEAD.pack(_STATE, token) + _PART.pack(me, len(state), at)
            await self._group.send(head + state[at : at + size])

    def _on_state(self, token: int, body: bytes) -> None:
        if self._complete or token != self._ordered_request or len(body) < _PART.size:
            return
        _, total, at = _PART.unpack_from(body)
        self._parts[at] = body[_PART.size :]
        if sum(map(len, self._parts.values())) < total:
            return
        self.replica.restore(b"".join(self._parts[at] for at in sorted(self._parts)))
        self._complete, self._parts = True, {}
        held, self._held_back = self._held_back, []
        for name, command_token, command in held:
            self._on_final(name, command_token, command)

    # -- the beginning and the end -------------------------------------------------------------------------------

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._run_in_background(coroutine))
        self._background_tasks[task] = None
        task.add_done_callback(lambda done: self._background_tasks.pop(done, None))

    async def _run_in_background(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a part of the state transfer. If it fails, the replica stops: a newcomer might wait for ever."""
        try:
            with suppress(GroupClosed):
                await coroutine
        except Exception as error:
            _LOGGER.exception("member %d: the replica has stopped: state transfer failed", self._group.member)
            self._background_failure = error
            if self._task is not None:
                self._task.cancel()

    def _raise_if_closed(self) -> None:
        if self._task is None:
            raise GroupClosed("the replica is not running; enter it with `async with`")
        if self._task.cancelled():
            raise GroupClosed("the replica is closed")
        if self._task.done():
            if (error := self._task.exception()) is not None:
                raise error
            raise GroupClosed("this member has left the group")

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        tasks = [*self._background_tasks, *([] if self._task is None else [self._task])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _checked_part_bytes(part_bytes: int | None, max_message: int) -> int:
    room = max_message - HEAD_BYTES - _PART.size
    if room < 1:
        text = f"expected at least {HEAD_BYTES + _PART.size + 1} bytes, to send a state in parts, got {max_message}"
        raise InvalidOption("max_message", text)
    if part_bytes is None:
        return min(PART_BYTES, room)
    if not 1 <= part_bytes <= room:
        text = (
            f"expected 1 to {room} bytes, because a message of this group has at most {max_message}, got {part_bytes}"
        )
        raise InvalidOption("part_bytes", text)
    return part_bytes
