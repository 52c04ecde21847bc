"""Recovering messages that somebody else holds: asking for them, giving them, and putting parts together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from unisono.agreement.membership.from_policy import retry_ns
from unisono.model.events import Run
from unisono.model.message_range import Cell, Extent
from unisono.model.message_set import MessageSet, Range
from unisono.model.policy import Policy
from unisono.model.remaining import Rest
from unisono.orders.final.log import Agreed, FinalLog
from unisono.orders.final.messages import (
    EXTENT_BYTES,
    GIVE_BYTES,
    LENGTH_BYTES,
    Give,
    Message,
    Want,
    decode_messages,
    encode_messages,
)
from unisono.orders.final.reports import Reports
from unisono.orders.final.store import Store
from unisono.wire.frame import HEADER_BYTES

GIVEN_FRAMES = 64
"""So many frames answer one request, beyond the last message's."""
ASKED_MOST = 256
"""So much is asked for at a time."""
PARTIAL_MOST = 64
"""So many long messages may be under way to this member in parts."""

Say = Callable[[int, Message, int], None]


class Recovery:
    """One member's side of it."""

    def __init__(self, policy: Policy, store: Store, log: FinalLog, say: Say) -> None:
        self._me = policy.member
        self._store = store
        self._log = log
        self._say = say
        self._retry_ns = retry_ns(policy.timing)
        self._room = policy.max_frame - HEADER_BYTES
        self._asked: dict[Extent, tuple[int, int]] = {}
        """What was asked for: when, and whom."""
        self._partial: dict[tuple[int, int, int, int], dict[int, bytes]] = {}
        """By giver and message, what has come of it."""
        self._lost: dict[Cell, dict[int, None]] = {}
        """Who has said that it keeps a cell's messages no longer."""

    def due(self) -> int | None:
        """When to ask again."""
        return min((at for at, _ in self._asked.values()), default=None)

    def overdue(self, now: int) -> bool:
        """Whether somebody has not answered."""
        due = self.due()
        return due is not None and now >= due

    def hopeless(self, extent: Extent, majority: int) -> bool:
        """Whether a majority had this and keeps it no longer."""
        return len(self._lost.get(extent.cell, {})) >= majority

    # -- asking ------------------------------------------------------------------------------------------------

    def ask(self, now: int, agreed: Iterable[Agreed], reports: Reports, peers: Sequence[int], upto: int) -> None:
        """Request what is missing here: of what has its place, and of what a peer holds in a slot that is over."""
        missing: dict[Extent, list[int]] = {}
        for one in agreed:
            if len(missing) >= ASKED_MOST:
                break
            for extent in self._lacking(one.extent):
                holders = list(reports.holders(extent.cell, peers))
                missing[extent] = holders or [extent.sender] * (extent.sender in peers) + [
                    peer for peer in peers if peer != extent.sender
                ]
        for peer in peers:
            report = reports.of.get(peer)
            for cell, ranges in report.cells.items() if report is not None else ():
                if len(missing) >= ASKED_MOST or cell[0] > upto:
                    break
                if self._store.ranges(cell) != ranges:
                    for extent in self._open_there(cell, ranges):
                        missing.setdefault(extent, []).append(peer)
        wants: dict[int, list[Extent]] = {}
        asked, self._asked = self._asked, {}
        for extent, holders in missing.items():
            due, whom = asked.get(extent, (0, 0))
            if now >= due and holders:
                whom = holders[(holders.index(whom) + 1) % len(holders)] if whom in holders else holders[0]
                due = now + self._retry_ns
                wants.setdefault(whom, []).append(extent)
            if holders:
                self._asked[extent] = (due, whom)
        at_once = self._room // EXTENT_BYTES
        for whom, extents in sorted(wants.items()):
            for at in range(0, len(extents), at_once):
                self._say(now, Want(tuple(extents[at : at + at_once])), whom)

    def _open_there(self, cell: Cell, ranges: Sequence[Range]) -> list[Extent]:
        """What of these is missing here and not final."""
        there = [Extent(*cell, first, last - first + 1) for first, last in ranges]
        return [extent for one in there for lacked in self._lacking(one) for extent in self._log.left(lacked)]

    def _lacking(self, extent: Extent) -> list[Extent]:
        held = self._store.ranges(extent.cell)
        return extent.without(MessageSet({extent.origin: held})) if held else [extent]

    # -- giving ------------------------------------------------------------------------------------------------

    def give(self, now: int, to: int, want: Want, forgotten: Callable[[Extent], bool]) -> None:
        """Somebody lacks messages: as much of them as is here, or the word that they are forgotten."""
        frames = 0
        for extent in want.extents:
            held = self._store.ranges(extent.cell)
            if not held and forgotten(extent):
                self._say(now, Give(extent, 0, 0, b""), to)
                continue
            for first, last in held:
                start, end = max(first, extent.first), min(last, extent.last)
                runs = self._store.runs(Extent(*extent.cell, start, end - start + 1)) if start <= end else None
                if runs is None:
                    continue
                for give in self._gives(extent.cell, start, [m for run in runs for m in run.messages()]):
                    if frames >= GIVEN_FRAMES and give.offset == 0:
                        return
                    frames += 1
                    self._say(now, give, to)

    def _gives(self, cell: Cell, first: int, messages: list[bytes]) -> Iterator[Give]:
        """As many messages to a frame as fit; one that does not fit goes in parts."""
        room, at = self._room - GIVE_BYTES, 0
        while at < len(messages):
            end, size = at, 0
            while end < len(messages) and size + LENGTH_BYTES + len(messages[end]) <= room:
                size += LENGTH_BYTES + len(messages[end])
                end += 1
            if end == at:
                data = encode_messages(messages[at : at + 1])
                for offset in range(0, len(data), room):
                    yield Give(Extent(*cell, first + at, 1), len(data), offset, data[offset : offset + room])
                at += 1
            else:
                data = encode_messages(messages[at:end])
                yield Give(Extent(*cell, first + at, end - at), len(data), 0, data)
                at = end

    def take(self, sender: int, give: Give) -> list[tuple[Cell, int, Run]]:
        """Messages have come, or a part of one; what is whole now."""
        extent = give.extent
        if give.total == 0:
            self._lost.setdefault(extent.cell, {})[sender] = None
            return []
        self._lost.pop(extent.cell, None)
        data = give.part
        if len(data) < give.total:
            name = (sender, extent.sender, extent.incarnation, extent.first)
            if name not in self._partial and len(self._partial) >= PARTIAL_MOST:
                self._partial.pop(next(iter(self._partial)))
            parts = self._partial.setdefault(name, {})
            parts[give.offset] = give.part
            if sum(map(len, parts.values())) < give.total:
                return []
            data = b"".join(parts[offset] for offset in sorted(self._partial.pop(name)))
        messages = decode_messages(data, extent.length)
        return [] if messages is None else [(extent.cell, extent.first, Rest(messages))]
