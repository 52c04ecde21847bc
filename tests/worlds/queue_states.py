"""The consumable queues in a recorded trace, step by step, as in Figures 2 and 3 of paper 004."""

from __future__ import annotations

from dataclasses import dataclass, field

from unisono.check.verdict import MessageId
from unisono.trace.schema import EventKind
from unisono.trace.table import Rows, Trace

TAIL = "(0,0)"


@dataclass(frozen=True, slots=True)
class QueueState:
    """One member's queue after one of its steps."""

    member: int
    at_ns: int
    action: str
    queue: tuple[MessageId, ...]
    waiting: tuple[MessageId, ...]
    consumed: tuple[MessageId, ...]
    priorities: tuple[int, ...]
    """The priorities of the messages in the queue."""


@dataclass(slots=True)
class _Replay:
    queue: list[MessageId] = field(default_factory=list)
    waiting: list[MessageId] = field(default_factory=list)
    consumed: list[MessageId] = field(default_factory=list)


def queue_states(trace: Trace, member: int) -> list[QueueState]:
    """The states of one member's queue, from its receptions, insertions and deliveries."""
    own = trace.select(trace.member == member)
    steps = own.of_kind(EventKind.RECEIVE, EventKind.QUEUE)
    rows = [_queue_row(steps, at) for at in range(len(steps))]
    # A delivery comes after all steps at which the member had delivered fewer messages.
    taken = own.of_kind(EventKind.DELIVER)
    rows += [_queue_row(taken, at) for at in range(len(taken))]
    rows.sort(key=lambda row: (row.consumed, row.is_delivery, row.step))
    replay, level = _Replay(), {row.message: row.priority for row in rows}
    return [_apply(replay, row, member, level) for row in rows]


@dataclass(frozen=True, slots=True)
class _QueueRow:
    message: MessageId
    kind: int
    is_delivery: bool
    consumed: int
    step: int
    at_ns: int
    priority: int
    messages: str


def _queue_row(rows: Rows, at: int) -> _QueueRow:
    messages = int(rows.messages[at])
    return _QueueRow(
        MessageId(int(rows.sender[at]), int(rows.sender_incarnation[at]), int(rows.sequence[at])),
        int(rows.kind[at]),
        int(rows.kind[at]) == EventKind.DELIVER.code,
        int(rows.index[at]),
        int(rows.place[at]),
        int(rows.real_ns[at]),
        int(rows.priority[at]),
        rows.message_texts[messages] if messages >= 0 else "",
    )


def _apply(replay: _Replay, row: _QueueRow, member: int, level: dict[MessageId, int]) -> QueueState:
    message = row.message
    if row.is_delivery:
        replay.queue.remove(message)
        replay.consumed.append(message)
        what = f"consumes {message}"
    elif row.kind == EventKind.RECEIVE.code:
        replay.waiting.append(message)
        what = f"receives {message}, locks {_expand_tail(row.messages) or 'the tail'}"
    else:
        replay.waiting.remove(message)
        before = next((at for at, other in enumerate(replay.queue) if str(other) == row.messages), len(replay.queue))
        replay.queue.insert(before, message)
        what = f"inserts {message} before {'the tail' if row.messages == TAIL else row.messages}"
    queue = tuple(replay.queue)
    return QueueState(
        member,
        row.at_ns,
        what,
        queue,
        tuple(replay.waiting),
        tuple(replay.consumed),
        tuple(level[message] for message in queue),
    )


def _expand_tail(ranges: str) -> str:
    """The messages of a target tail, which is recorded in the form `1.0-2 3.5`."""
    found = []
    for part in ranges.split():
        sender, _, numbers = part.partition(".")
        first, _, last = numbers.partition("-")
        found += [f"({sender},{number})" for number in range(int(first), int(last or first) + 1)]
    return " ".join(found)


def render(states: list[QueueState], names: dict[MessageId, str] | None = None) -> str:
    """The states as lines of text: consumed │ queue ┊ waiting; `names` gives names to messages."""
    called = names or {}

    def shown(messages: tuple[MessageId, ...]) -> str:
        return " ".join(called.get(message, str(message)) for message in messages)

    def said(text: str) -> str:
        for message, name in called.items():
            text = text.replace(str(message), name)
        return text

    width = max((len(shown(state.consumed)) for state in states), default=0)
    middle = max((len(shown(state.queue)) for state in states), default=0)
    lines = []
    for state in states:
        left, queue = shown(state.consumed).rjust(width), shown(state.queue).ljust(middle)
        lines.append(f"{state.member}: {left} │ {queue} ┊ {shown(state.waiting):<4} {said(state.action)}".rstrip())
    return "\n".join(lines)
