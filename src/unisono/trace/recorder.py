"""Recording at the speed of delivery: one small tuple for many consecutive messages, expanded into rows later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from unisono.model.events import Notice, QueueStep, TopologyChange, Violation
from unisono.trace.schema import ABSENT, MESSAGE_KINDS, EventKind

if TYPE_CHECKING:
    from unisono.trace.schema import RunMeta
    from unisono.trace.table import Trace


class Extras(NamedTuple):
    """The values of the trace columns that are null in most rows."""

    priority: int | None = None
    view: int | None = None
    grade: str | None = None
    destinations: tuple[int, ...] | None = None
    note: str | None = None
    token: str | None = None
    members: tuple[int, ...] | None = None
    member_incarnations: tuple[int, ...] | None = None
    theta_ns: int | None = None
    bound_ns: int | None = None
    talks_with: tuple[str, ...] | None = None
    messages: str | None = None
    configuration: int | None = None
    group_id: str | None = None


ExtraValues: TypeAlias = tuple[Any, ...]
"""The first fields of an `Extras`; the rest are None. Plain tuples, because the garbage collector untracks them."""

Numbers: TypeAlias = int | Sequence[int]
"""One number for all messages of a `PackedRows`, or one for each."""

PackedRows: TypeAlias = tuple[int, int, int, int, int, Numbers, int, int, int, Numbers, Numbers, ExtraValues | None]
"""(kind code, sender, sender incarnation, first sequence, count, sizes, slot, first place, first index, real times,
local times, extras): `count` rows whose sequence, place and index each go up by one from row to row."""

COUNT_INDEX: Final = 4
SLOT_INDEX: Final = 6


NOTHING_MORE: Final = Extras()


_SEND = EventKind.SEND.code
_DELIVER = EventKind.DELIVER.code


class Recorder:
    """Records what one incarnation of a member sends and delivers.

    The recorder keeps sequences of sizes or times without copying them; do not change them afterwards.
    """

    __slots__ = ("_put", "group", "incarnation", "member", "new_incarnation", "run")

    def __init__(
        self,
        run: str,
        group: str,
        member: int,
        put: Callable[[PackedRows], object],
        *,
        incarnation: int = 0,
        new_incarnation: Callable[[int], Recorder] | None = None,
    ) -> None:
        """`new_incarnation` returns the recorder of a later incarnation, for a member that rejoins by itself."""
        self.new_incarnation = new_incarnation
        self.run = run
        self.group = group
        self.member = member
        self.incarnation = incarnation
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
        """Record that the application of this member submitted `count` messages at these times."""
        extras: ExtraValues | None = None
        if priority is not None or view is not None or destinations is not None:
            extras = (priority, view, None, destinations)
        self._put(
            (
                _SEND,
                self.member,
                self.incarnation,
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
        sender_incarnation: int,
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
        """Record that this member delivered `count` consecutive messages of one sender in one slot."""
        extras: ExtraValues | None = None
        if priority is not None or view is not None or grade is not None or destinations is not None:
            extras = (priority, view, grade, destinations)
        self._put(
            (
                _DELIVER,
                sender,
                sender_incarnation,
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

    def step(self, step: QueueStep, *, real_ns: int, local_ns: int) -> None:
        """Record a step of a message into the consumable queue: a RECEIVE or a QUEUE row.

        The place counts the member's steps, the index is the number of messages delivered before, and the slot is the
        message's number in the agreed order. So the order of steps with equal times is known. The column `messages`
        has the target tail of a RECEIVE or the insertion point of a QUEUE. The view of a RECEIVE is the one in which
        the message arrived; it is null if the message came with a state transfer.
        """
        kind = EventKind.QUEUE if step.queued else EventKind.RECEIVE
        message = (kind.code, step.sender, step.incarnation, step.sequence, 1, ABSENT)
        extras = tuple(Extras(step.priority, step.view, messages=step.detail or None))
        self._put((*message, step.position, step.number, step.consumed, real_ns, local_ns, extras))

    def event(
        self,
        kind: EventKind,
        *,
        slot: int,
        real_ns: int,
        local_ns: int,
        subject: int | None = None,
        subject_incarnation: int | None = None,
        extras: Extras = NOTHING_MORE,
    ) -> None:
        """Record an event that concerns the member `subject`, by default this member.

        The slot of START is the first whose messages the member has to deliver. The slot of LEAVE and CRASH is the
        first whose messages it need not deliver. A GAP names a sender and a slot: this member continued without the
        rest of the sender's messages in that slot. The `extras` are the columns that this kind of row has
        (`trace.schema`).
        """
        if kind in MESSAGE_KINDS:
            raise ValueError(f"event() cannot record {kind.name} rows; call sent(), delivered() or step()")
        self._put(
            (
                kind.code,
                self.member if subject is None else subject,
                self.incarnation if subject_incarnation is None else subject_incarnation,
                ABSENT,
                1,
                ABSENT,
                slot,
                ABSENT,
                ABSENT,
                real_ns,
                local_ns,
                None if extras == NOTHING_MORE else tuple(extras),
            )
        )


def view_extras(view: int, members: Sequence[int], incarnations: Sequence[int] = ()) -> Extras:
    """The extra columns of a VIEW row: the members of the view and, if members agreed on it, their incarnations."""
    listed = tuple(incarnations)
    if listed and len(listed) != len(members):
        raise ValueError(f"expected one incarnation for each of the {len(members)} members, but found {len(listed)}")
    return Extras(view=view, members=tuple(members), member_incarnations=listed or None)


def report_extras(event: Violation | Notice) -> Extras:
    """The extra columns of a VIOLATION or NOTICE row: the event's token and its text."""
    talks_with = event.talks_with if isinstance(event, TopologyChange) else None
    return Extras(note=event.text, token=event.kind.value, talks_with=talks_with)


class MemoryTrace:
    """Collects the rows of all recorders of one run in memory, for the simulator."""

    def __init__(self, run: str, group: str) -> None:
        self.run = run
        self.group = group
        self.packed_rows: dict[tuple[int, int], list[PackedRows]] = {}

    def recorder(self, member: int, *, incarnation: int = 0) -> Recorder:
        """The recorder of one incarnation of a member."""
        rows = self.packed_rows.setdefault((member, incarnation), [])
        new_incarnation = partial(self._new_incarnation, member)
        return Recorder(
            self.run, self.group, member, rows.append, incarnation=incarnation, new_incarnation=new_incarnation
        )

    def _new_incarnation(self, member: int, incarnation: int) -> Recorder:
        return self.recorder(member, incarnation=incarnation)

    def trace(self, meta: RunMeta) -> Trace:
        """All rows recorded so far, as columns."""
        from unisono.trace.table import Trace  # noqa: PLC0415  numpy is loaded only when a trace is read

        return Trace.from_memory(self, meta)
