"""Recording at the speed of delivery: one small tuple for a whole run of messages, taken apart later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from unisono.model.events import Step
from unisono.trace.kinds import ABSENT, OF_MESSAGES, EventKind

if TYPE_CHECKING:
    from unisono.trace.meta import RunMeta
    from unisono.trace.table import Trace

Extras: TypeAlias = tuple[int | None, int | None, str | None, tuple[int, ...] | None, str | None]
"""(priority, view, grade, destinations, note)."""

Numbers: TypeAlias = int | Sequence[int]
"""One number for all messages of a run, or one for each."""

RunTuple: TypeAlias = tuple[int, int, int, int, int, Numbers, int, int, int, Numbers, Numbers, Extras | None]
"""(kind code, sender, incarnation, first sequence, count, sizes, slot, first place, first index, real, local,
extras): `count` rows whose sequence, place and index each go up by one."""

COUNT: Final = 4
SLOT: Final = 6


def view_note(members: Sequence[int], lives: Sequence[int] = ()) -> str:
    """The note of a VIEW row: who is in the list from its slot on; of agreed views also in which of its lives."""
    listed = [f"{member}:{life}" for member, life in zip(members, lives, strict=True)] if lives else map(str, members)
    return "members " + ",".join(listed)


def noted_members(note: str) -> tuple[int, ...]:
    """Whom the note of a VIEW row lists."""
    return tuple(int(entry.partition(":")[0]) for entry in _entries(note))


def noted_lives(note: str) -> tuple[tuple[int, int], ...]:
    """The members and their lives that the note of an agreed view's row lists; none of any other view."""
    pairs = [entry.partition(":") for entry in _entries(note)]
    return tuple((int(member), int(life)) for member, _, life in pairs if life)


def _entries(note: str) -> list[str]:
    return [entry for entry in note.removeprefix("members ").split(",") if entry]


_SEND = EventKind.SEND.code
_DELIVER = EventKind.DELIVER.code


class Recorder:
    """Writes down what one member, in one of its incarnations (`life`), sends and delivers.

    Sequences given for sizes or times are kept, not copied: do not change them afterwards.
    """

    __slots__ = ("_put", "again", "group", "life", "member", "run")

    def __init__(
        self,
        run: str,
        group: str,
        member: int,
        put: Callable[[RunTuple], object],
        *,
        life: int = 0,
        again: Callable[[int], Recorder] | None = None,
    ) -> None:
        """`again` gives the recorder of another of the member's lives: it may come back by itself, and begin one."""
        self.again = again
        self.run = run
        self.group = group
        self.member = member
        self.life = life
        self._put = put

    def sent(
        self,
        *,
        first_sequence: int,
        count: int,
        sizes: Numbers,
        slot: int,
        first_place: int,
        real_ns: Numbers,
        local_ns: Numbers,
        priority: int | None = None,
        view: int | None = None,
        destinations: tuple[int, ...] | None = None,
    ) -> None:
        """This member multicast `count` messages; the times are when the application handed them in."""
        extras = None
        if priority is not None or view is not None or destinations is not None:
            extras = (priority, view, None, destinations, None)
        self._put(
            (
                _SEND,
                self.member,
                self.life,
                first_sequence,
                count,
                sizes,
                slot,
                first_place,
                ABSENT,
                real_ns,
                local_ns,
                extras,
            )
        )

    def delivered(
        self,
        *,
        sender: int,
        incarnation: int,
        first_sequence: int,
        count: int,
        sizes: Numbers,
        slot: int,
        first_place: int,
        first_index: int,
        real_ns: Numbers,
        local_ns: Numbers,
        priority: int | None = None,
        view: int | None = None,
        grade: str | None = None,
        destinations: tuple[int, ...] | None = None,
    ) -> None:
        """This member delivered `count` consecutive messages of one sender in one slot."""
        extras = None
        if priority is not None or view is not None or grade is not None or destinations is not None:
            extras = (priority, view, grade, destinations, None)
        self._put(
            (
                _DELIVER,
                sender,
                incarnation,
                first_sequence,
                count,
                sizes,
                slot,
                first_place,
                first_index,
                real_ns,
                local_ns,
                extras,
            )
        )

    def step(self, step: Step, *, real_ns: int, local_ns: int) -> None:
        """A message on its way into the consumable queue: a RECEIVE or a QUEUE row.

        The place counts the member's steps, the index is how many messages it had delivered, the slot is its place in
        the agreed order: they tell what came before what, which times cannot. The note names messages: the target
        tail of a RECEIVE, the insertion point of a QUEUE. The view of a RECEIVE is the one in which the message came;
        it has none if the message was in the state that a newcomer took over.
        """
        kind = EventKind.QUEUE if step.queued else EventKind.RECEIVE
        message = (kind.code, step.sender, step.incarnation, step.sequence, 1, ABSENT)
        extras = (step.priority, step.view, None, None, step.detail or None)
        self._put((*message, step.position, step.number, step.consumed, real_ns, local_ns, extras))

    def event(
        self,
        kind: EventKind,
        *,
        slot: int,
        real_ns: int,
        local_ns: int,
        subject: int | None = None,
        incarnation: int | None = None,
        view: int | None = None,
        note: str | None = None,
    ) -> None:
        """Something happened to `subject` (this member unless told).

        The slot of START is the first whose messages the member has to deliver; the slot of LEAVE and CRASH
        is the first that it is no longer held to. A GAP says of which sender, and in which slot, this member went
        on without the rest; a VIEW's note is `view_note`.
        """
        if kind in OF_MESSAGES:
            raise ValueError(f"{kind.name} is recorded by sent(), delivered() or step()")
        self._put(
            (
                kind.code,
                self.member if subject is None else subject,
                self.life if incarnation is None else incarnation,
                ABSENT,
                1,
                ABSENT,
                slot,
                ABSENT,
                ABSENT,
                real_ns,
                local_ns,
                None if view is None and note is None else (None, view, None, None, note),
            )
        )


class MemoryTrace:
    """Keeps all that the recorders of one run note, in memory: the simulator's sink."""

    def __init__(self, run: str, group: str) -> None:
        self.run = run
        self.group = group
        self.runs: dict[tuple[int, int], list[RunTuple]] = {}

    def recorder(self, member: int, *, life: int = 0) -> Recorder:
        """The recorder of one member's life."""
        noted = self.runs.setdefault((member, life), [])
        again = partial(self._again, member)
        return Recorder(self.run, self.group, member, noted.append, life=life, again=again)

    def _again(self, member: int, life: int) -> Recorder:
        return self.recorder(member, life=life)

    def trace(self, meta: RunMeta) -> Trace:
        """All that was noted so far, as columns."""
        from unisono.trace.table import Trace  # noqa: PLC0415  numpy is loaded only when a trace is read

        return Trace.of(self, meta)
