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

from unisono.errors import GroupClosed, InvalidPolicy
from unisono.group import Group
from unisono.model.durations import NS_PER_S
from unisono.model.events import Batch, Notice, TimingChange, ViewChange, Violation
from unisono.model.grades import Grade
from unisono.replica.replica import MessageName, Mistakes, Replica
from unisono.replica.state_machine import Key, Machine

Happening: TypeAlias = ViewChange | TimingChange | Violation | Notice
_COMMAND, _ASK, _STATE = 1, 2, 3
_HEAD = struct.Struct("!BQ")
_PART = struct.Struct("!HII")
HEAD_BYTES = _HEAD.size
"""What a command's message has before the command."""
PART_BYTES = 1024
"""A snapshot travels in parts of this size, or smaller if the group's messages are."""
ASK_AGAIN_S = 1.0
NUMBERED = frozenset({"cbr", "consensus", "vbr"})
"""Orders that say how many messages were final before one: who comes later sees that it does."""
TOGETHER = frozenset({"cbr", "leader", "quasi_genuine", "timestamp", "vbr"})
"""Orders whose members begin together, unless their deliveries come in two grades."""


class Replicated:
    """A machine's state, the same at every member: `async with Replicated(group, machine) as state`."""

    def __init__(
        self,
        group: Group,
        machine: Machine,
        *,
        on_event: Callable[[Happening], None] | None = None,
        part_bytes: int = PART_BYTES,
    ) -> None:
        """`on_event` hears what else happens to the group, which nobody else can iterate over from now on.

        `part_bytes` and 19 more have to fit in a message of the group.
        """
        facts = group.stats()
        if not facts.gap_free:
            raise InvalidPolicy("grades", 'this order has gaps, so states would differ: join with grades="both"')
        if facts.order not in NUMBERED | TOGETHER:
            raise InvalidPolicy("order", f"states are kept over {', '.join(sorted(NUMBERED | TOGETHER))}")
        self._order = facts.order
        self._machine = machine
        self.replica = Replica(machine, two_grades=False)
        self._group = group
        self._on_event = on_event
        self._part_bytes = part_bytes
        self._token = secrets.randbits(32) << 32
        self._waiting: dict[int, tuple[Grade, asyncio.Future[Any]]] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._sending: dict[asyncio.Task[None], None] = {}
        self._begun = self._whole = False
        """Whether anything was final here, and whether all that was before it is in the state."""
        self._asked = self._placed = 0
        """The token of the last question for the state, and of the last one that has its place in the order."""
        self._held: list[tuple[MessageName, int, bytes]] = []
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
        self._raise_if_over()
        self._machine.touches(command)
        self._token += 1
        token, done = self._token, asyncio.get_running_loop().create_future()
        self._waiting[token] = (grade, done)
        try:
            await self._group.send(_HEAD.pack(_COMMAND, token) + command, priority=priority, to=to)
            return await done
        finally:
            self._waiting.pop(token, None)

    def optimistic(self, key: Key) -> Any:
        """An object as everything delivered so far leaves it; None if there is none."""
        return self.replica.optimistic(key)

    def conservative(self, key: Key) -> Any:
        """An object as the group has agreed on it; None if there is none."""
        return self.replica.conservative(key)

    @property
    def mistakes(self) -> Mistakes:
        """What the optimistic state had to be corrected for."""
        return self.replica.mistakes

    @property
    def whole(self) -> bool:
        """Whether the state is the group's; not before another member's has come, for one that joined later."""
        return self._whole or not self._begun

    async def changed(self) -> None:
        """Wait until a command has run, or something was corrected."""
        self._raise_if_over()
        self._changed.clear()
        await self._changed.wait()
        self._raise_if_over()

    async def settled(self) -> None:
        """Wait until everything that was early is final, and the state is whole."""
        while self.replica.pending or not self.whole:
            await self.changed()

    # -- the group ---------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            async for event in self._group.batches():
                if isinstance(event, Batch):
                    self._take(event)
                    self._changed.set()
                elif self._on_event is not None:
                    self._on_event(event)
        finally:
            self._changed.set()
            for _, done in self._waiting.values():
                if not done.done():
                    done.set_exception(GroupClosed("the group was left before this command ran"))

    def _take(self, batch: Batch) -> None:
        final = batch.grade is not Grade.EARLY
        if final and not self._begun:
            counted = self._order in NUMBERED and (batch.grade is Grade.FINAL or self._order not in TOGETHER)
            self._begun, self._whole = True, not counted or batch.first_place == 0
            if not self._whole:
                self._ask()
        for number, message in enumerate(batch.messages, batch.first_sequence):
            name = (batch.sender, batch.incarnation, number)
            if len(message) < HEAD_BYTES:
                continue
            what, token = _HEAD.unpack_from(message)
            body = message[HEAD_BYTES:]
            if what == _COMMAND and not final:
                self._answer(token, Grade.EARLY, self.replica.early(name, body))
            elif what == _COMMAND:
                self._final(name, token, body)
            elif what == _ASK and final:
                self._on_ask(batch.sender, token)
            elif what == _STATE and final:
                self._on_state(token, body)

    def _final(self, name: MessageName, token: int, command: bytes) -> None:
        if self._whole:
            self._answer(token, Grade.FINAL, self.replica.final(name, command))
        elif self._placed:
            self._held.append((name, token, command))

    def _answer(self, token: int, grade: Grade, result: Any) -> None:
        wanted, done = self._waiting.get(token, (grade, None))
        if done is not None and not done.done() and (grade is wanted or grade is Grade.FINAL):
            done.set_result(result)

    # -- members that come later ---------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Ask for the state, and again when it does not come: each time somebody else gives it."""
        self._spawn(self._ask_until_whole())

    async def _ask_until_whole(self) -> None:
        pause = ASK_AGAIN_S + 20 * self._group.bound_ns / NS_PER_S
        while not self._whole:
            self._token += 1
            self._asked = self._token
            await self._group.send(_HEAD.pack(_ASK, self._asked))
            await asyncio.sleep(pause)
            pause *= 2

    def _on_ask(self, asker: int, token: int) -> None:
        if asker == self._group.member and token == self._asked:
            self._placed, self._held, self._parts = token, [], {}
            return
        others = [member for member in sorted(self._group.members) if member != asker]
        if self._whole and others and others[token % len(others)] == self._group.member:
            self._spawn(self._give(token, self.replica.snapshot()))

    async def _give(self, token: int, state: bytes) -> None:
        size, me = self._part_bytes, self._group.member
        for at in range(0, len(state), size):
            head = _HEAD.pack(_STATE, token) + _PART.pack(me, len(state), at)
            await self._group.send(head + state[at : at + size])

    def _on_state(self, token: int, body: bytes) -> None:
        if self._whole or token != self._placed or len(body) < _PART.size:
            return
        _, total, at = _PART.unpack_from(body)
        self._parts[at] = body[_PART.size :]
        if sum(map(len, self._parts.values())) < total:
            return
        self.replica.restore(b"".join(self._parts[at] for at in sorted(self._parts)))
        self._whole, self._parts = True, {}
        held, self._held = self._held, []
        for name, command_token, command in held:
            self._final(name, command_token, command)

    # -- the beginning and the end -------------------------------------------------------------------------------

    def _spawn(self, part: Any) -> None:
        task = asyncio.get_running_loop().create_task(self._unless_closed(part))
        self._sending[task] = None
        task.add_done_callback(lambda done: self._sending.pop(done, None))

    async def _unless_closed(self, part: Any) -> None:
        with suppress(GroupClosed):
            await part

    def _raise_if_over(self) -> None:
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
        tasks = [*self._sending, *([] if self._task is None else [self._task])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
