"""View-atomic multicast (paper 004 §3.2): who goes from one view to the next has received the same messages in it.

Judged from the rows of messages with a view and the VIEW rows, which list the members with their incarnations. In the
priority order a message is received before it is queued, and consumed in any later view: there RECEIVE rows count,
elsewhere DELIVER rows. Besides the definition: one sequence of views, each message in one view only, from a member of
that view, and before the next view is installed; a member that goes on has received all that it sent in the view it
leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from unisono.check.member_runs import hidden_rows, nothing_recorded
from unisono.check.verdict import Doubt, MessageId, Reason, Status, Verdict, Witness, kept
from unisono.model.message_set import NO_MESSAGES, MessageSet, Ref
from unisono.model.priorities import PRIORITY_ORDERS
from unisono.trace.kinds import ABSENT, EventKind
from unisono.trace.table import Rows, Trace

NAME = "view_atomicity"
Who = tuple[int, int]
"""A member in one of its lives."""
Views = dict[int, tuple[Who, ...]]
"""Who is in which view."""
Installed = dict[Who, dict[int, int]]
"""When who installed which views."""
Complain = Callable[[tuple[int, ...], str, tuple[MessageId, ...]], None]


def view_atomicity(trace: Trace) -> Verdict:
    """The verdict; a witness names a message and two members."""
    faults: list[Witness] = []

    def complain(members: tuple[int, ...], text: str, messages: tuple[MessageId, ...] = ()) -> None:
        faults.append(Witness(messages, members, (), f"member {members[0]} {text}"))

    views, installed = views_installed(trace, complain)
    sets = in_their_views(trace, views, installed, complain)
    received = {key: MessageSet.of(Ref(m.sender, m.incarnation, m.sequence) for m in of) for key, of in sets.items()}
    same_when_going_on(installed, received, complain)
    return verdict_of(faults, len(views), hidden_rows(trace) or nothing_recorded(trace))


def verdict_of(faults: list[Witness], views: int, hidden: Doubt | None) -> Verdict:
    """What the faults come to; `hidden` says why there could be others."""
    if faults:
        return Verdict(NAME, Status.VIOLATED, faults[0], len(faults))
    if hidden is None and not views:
        hidden = Doubt(Reason.NO_VIEWS, "no agreed view was recorded")
    return kept(NAME, hidden, {"views": views})


def same_when_going_on(
    installed: Installed, received: Mapping[tuple[Who, int], MessageSet], complain: Complain
) -> None:
    """Whoever goes from one view to the next has received what the others have that do, and what it sent itself."""
    for who, ids in installed.items():
        for view in ids:
            if view + 1 not in ids:
                continue
            mine = received.get((who, view), NO_MESSAGES)
            for other, theirs in installed.items():
                if other > who and view in theirs and view + 1 in theirs:
                    its = received.get((other, view), NO_MESSAGES)
                    difference = (mine - its) | (its - mine)
                    if difference:
                        lost = next(iter(difference))
                        has, lacks = (who, other) if lost in mine else (other, who)
                        text = f"received {lost} in view {view} and went on, member {lacks[0]} went on without it"
                        complain((has[0], lacks[0]), text, (MessageId(*lost),))
    _own_messages(installed, received, complain)


def _text(members: tuple[Who, ...]) -> str:
    return ", ".join(f"{member}:{life}" for member, life in members)


def _rows(rows: Rows, *names: str) -> list[tuple[int, ...]]:
    return list(zip(*(getattr(rows, name).tolist() for name in names), strict=True))


def views_installed(trace: Trace, complain: Complain) -> tuple[Views, Installed]:
    """What each view is, and by member and life when it installed which views."""
    rows = trace.of_kind(EventKind.VIEW)
    views: Views = {}
    installed: Installed = {}
    for row, (member, life, view, at) in enumerate(_rows(rows, "member", "life", "view", "real_ns")):
        members = rows.listed_runs(row)
        if not members:
            continue
        if views.setdefault(view, members) != members:
            text = f"installed view {view} with {_text(members)}, another member with {_text(views[view])}"
            complain((member,), text, ())
        mine = installed.setdefault((member, life), {})
        if mine and view != max(mine) + 1:
            complain((member,), f"installed view {view} after view {max(mine)}", ())
        mine[view] = at
        if (member, life) not in members:
            complain((member,), f"installed view {view}, which it is not in", ())
    return views, installed


def in_their_views(
    trace: Trace, views: Views, installed: Installed, complain: Complain
) -> dict[tuple[Who, int], set[MessageId]]:
    """What each has received in which view; each message once, in the view that it is of, from a member of it."""
    kind = EventKind.RECEIVE if trace.meta.order in PRIORITY_ORDERS else EventKind.DELIVER
    rows = trace.of_kind(kind)
    rows = rows.select(rows.view != ABSENT)
    received: dict[tuple[Who, int], set[MessageId]] = {}
    where: dict[MessageId, int] = {}
    names = ("member", "life", "sender", "incarnation", "sequence", "view", "real_ns")
    for member, life, sender, incarnation, sequence, view, at in _rows(rows, *names):
        who, message = (member, life), MessageId(sender, incarnation, sequence)
        mine = installed.get(who, {})
        if view not in mine or at < mine[view] or at > mine.get(view + 1, at):
            complain((member,), f"received {message} of view {view} outside that view", (message,))
        if (sender, incarnation) not in views.get(view, ()):
            complain((member,), f"received {message} in view {view}, which its sender is not in", (message,))
        if where.setdefault(message, view) != view:
            complain((member,), f"received {message} in view {view}, others in view {where[message]}", (message,))
        known = received.setdefault((who, view), set())
        if message in known:
            complain((member,), f"received {message} twice", (message,))
        known.add(message)
    return received


def _own_messages(installed: Installed, received: Mapping[tuple[Who, int], MessageSet], complain: Complain) -> None:
    """Whoever goes on has received its own messages of the view, without gaps from its first."""
    for who, ids in installed.items():
        own = 0
        for view in sorted(ids):
            mine = received.get((who, view), NO_MESSAGES).ranges.get(who, ())
            count = sum(last - first + 1 for first, last in mine)
            if view + 1 in ids and mine != (((own, own + count - 1),) if count else ()):
                complain((who[0],), f"left view {view} without some of its own messages", ())
            own += count
