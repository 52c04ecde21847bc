"""A replica on a group: commands go out through the group's order, and come back to every member's copy.

Early deliveries run on the optimistic state, final ones on the conservative state (paper 003 §3.2); where there is one
grade, it is the final one. A member that comes in when others have a state asks for it in the order: one of them
takes a snapshot at the very place where the question stands, and sends it in the order too. Until it is here, what is
final is held back.
"""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeAlias

from unisono.errors import GroupClosed, InvalidOption
from unisono.group import Group
from unisono.model.durations import NS_PER_S
from unisono.model.events import Batch, Notice, TimingChange, ViewChange, Violation
from unisono.model.grades import Grade
from unisono.replica.replica import MessageName, MistakeCounts, Replica
from unisono.replica.state_machine import Key, StateMachine

GroupEvent: TypeAlias = ViewChange | TimingChange | Violation | Notice
_COMMAND, _STATE_REQUEST, _STATE = 1, 2, 3
_MESSAGE_HEAD = struct.Struct("!BQ")
_PART = struct.Struct("!HII")
HEAD_BYTES = _MESSAGE_HEAD.size
"""What a command's message has before the command."""
PART_BYTES = 1024
"""A snapshot travels in parts of this size, or smaller if the group's messages are."""
STATE_REQUEST_RETRY_S = 1.0
ORDERS_WITH_POSITIONS = frozenset({"cbr", "consensus", "vbr"})
"""Orders that say how many messages were final before one: who comes later sees that it does."""
ORDERS_STARTING_TOGETHER = frozenset({"cbr", "leader", "quasi_genuine", "timestamp", "vbr"})
"""Orders whose members begin together, unless their deliveries come in two grades."""


class Replicated:
    """A machine's state, the same at every member: `async with Replicated(group, machine) as state`."""

    def __init__(
        self,
        group: Group,
        machine: StateMachine,
        *,
        on_event: Callable[[GroupEvent], None] | None = None,
        part_bytes: int = PART_BYTES,
    ) -> None:
        """`on_event` hears what else happens to the group, which nobody else can iterate over from now on.

        `part_bytes` and 19 more have to fit in a message of the group.
        """
        facts = group.stats()
        if not facts.gap_free:
            raise InvalidOption("grades", 'this order has gaps, so states would differ: join with grades="both"')
        if facts.order not in ORDERS_WITH_POSITIONS | ORDERS_STARTING_TOGETHER:
            raise InvalidOption(
                "order", f"states are kept over {', '.join(sorted(ORDERS_WITH_POSITIONS | ORDERS_STARTING_TOGETHER))}"
            )
        self._order = facts.order
        self._machine = machine
        self.replica = Replica(machine, two_grades=False)
        self._group = group
        self._on_event = on_event
        self._part_bytes = part_bytes
        self._token = secrets.randbits(32) << 32
        self._pending_results: dict[int, tuple[Grade, asyncio.Future[Any]]] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._background_tasks: dict[asyncio.Task[None], None] = {}
        self._has_final = self._complete = False
        """Whether anything was final here, and whether all that was before it is in the state."""
        self._last_request = self._ordered_request = 0
        """The token of the last question for the state, and of the last one that has its place in the order."""
        self._held_back: list[tuple[MessageName, int, bytes]] = []
        """What became final behind that place: (message, token, command)."""
        self._parts: dict[int, bytes] = {}

    # -- the user ----------------------------------------------------------------------------------------------

    async def execute(
        self, command: bytes, *, grade: Grade = Grade.FINAL, to: Sequence[str] | None = None, priority: int = 0
    ) -> Any:
        """Send a command, and wait until it has run here; what the machine's `apply` gave back.

        With `grade=Grade.EARLY` that is when it has run on the optimistic state: sooner, and perhaps to be corrected.
        Where there is one grade, there is no difference. What the machine's `touches` raises is raised here before
        anything is sent: a command that cannot run would end everybody's state.
        """
        self._raise_if_closed()
        self._machine.touches(command)
        self._token += 1
        token, done = self._token, asyncio.get_running_loop().create_future()
        self._pending_results[token] = (grade, done)
        try:
            await self._group.send(_MESSAGE_HEAD.pack(_COMMAND, token) + command, priority=priority, to=to)
            return await done
        finally:
            self._pending_results.pop(token, None)

    def optimistic(self, key: Key) -> Any:
        """An object as everything delivered so far leaves it; None if there is none."""
        return self.replica.optimistic(key)

    def conservative(self, key: Key) -> Any:
        """An object as the group has agreed on it; None if there is none."""
        return self.replica.conservative(key)

    @property
    def mistakes(self) -> MistakeCounts:
        """What the optimistic state had to be corrected for."""
        return self.replica.mistakes

    @property
    def is_complete(self) -> bool:
        """Whether the state is the group's; not before another member's has come, for one that joined later."""
        return self._complete or not self._has_final

    async def wait_for_change(self) -> None:
        """Wait until a command has run, or something was corrected."""
        self._raise_if_closed()
        self._changed.clear()
        await self._changed.wait()
        self._raise_if_closed()

    async def wait_until_final(self) -> None:
        """Wait until everything that was early is final, and the state is whole."""
        while self.replica.pending or not self.is_complete:
            await self.wait_for_change()

    # -- the group ---------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            async for event in self._group.batches():
                if isinstance(event, Batch):
                    self._on_batch(event)
                    self._changed.set()
                elif self._on_event is not None:
                    self._on_event(event)
        finally:
            self._changed.set()
            for _, done in self._pending_results.values():
                if not done.done():
                    done.set_exception(GroupClosed("the group was left before this command ran"))

    def _on_batch(self, batch: Batch) -> None:
        final = batch.grade is not Grade.EARLY
        if final and not self._has_final:
            counted = self._order in ORDERS_WITH_POSITIONS and (
                batch.grade is Grade.FINAL or self._order not in ORDERS_STARTING_TOGETHER
            )
            self._has_final, self._complete = True, not counted or batch.first_position == 0
            if not self._complete:
                self._request_state()
        for number, message in enumerate(batch.messages, batch.first_sequence):
            name = (batch.sender, batch.incarnation, number)
            if len(message) < HEAD_BYTES:
                continue
            what, token = _MESSAGE_HEAD.unpack_from(message)
            body = message[HEAD_BYTES:]
            if what == _COMMAND and not final:
                self._resolve(token, Grade.EARLY, self.replica.deliver_early(name, body))
            elif what == _COMMAND:
                self._on_final(name, token, body)
            elif what == _STATE_REQUEST and final:
                self._on_state_request(batch.sender, token)
            elif what == _STATE and final:
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

    # -- members that come later ---------------------------------------------------------------------------------

    def _request_state(self) -> None:
        """Ask for the state, and again when it does not come: each time somebody else gives it."""
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

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(self._unless_closed(coroutine))
        self._background_tasks[task] = None
        task.add_done_callback(lambda done: self._background_tasks.pop(done, None))

    async def _unless_closed(self, coroutine: Any) -> None:
        with suppress(GroupClosed):
            await coroutine

    def _raise_if_closed(self) -> None:
        if self._task is None:
            raise GroupClosed("this state is not being kept: enter it with `async with`")
        if self._task.done():
            if not self._task.cancelled() and (error := self._task.exception()) is not None:
                raise error
            raise GroupClosed("the group was left")

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
