"""Causal order in a run of any length, by its tiles (`check.message_shards`).

What a message depends on was delivered shortly before it was sent: in its own tile or in the one before, mostly. These
are judged together, two neighbours at a time, by the checker itself. Of tiles further apart it is enough that every
member delivered all of the earlier one before anything of the later, and that nobody sent a message of the earlier
after it had delivered one of the later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from unisono.check.causal import NAME, causal
from unisono.check.codes import message_codes
from unisono.check.verdict import Reason, Status, Verdict, unknown
from unisono.trace.table import Rows, Trace

Who = tuple[int, int]
"""A member in one of its lives."""
_BEFORE = -1 << 62


@dataclass(frozen=True, slots=True)
class CausalEdges:
    """What a tile shows of who delivered and sent what when."""

    broken: bool
    """Whether it and the tile before it, together, are not in causal order."""
    indices: dict[Who, tuple[int, int]]
    """The first and the last index at which a member delivered one of its messages."""
    first_ns: dict[Who, int]
    """When a member delivered one for the first time."""
    sent_ns: dict[Who, int]
    """When a member sent one for the last time."""
    lacking: frozenset[tuple[Who, Who]]
    """Members of whom the first delivered a message that the second did not."""


def causal_edges(own: Trace, with_previous: Trace) -> CausalEdges:
    """The edges of a tile."""
    deliveries, sends = own.deliveries(), own.sends()
    (message,) = message_codes(deliveries)
    indices, first_ns, had = {}, {}, {}
    for who, rows in _by_log(deliveries):
        indices[who] = int(deliveries.index[rows].min()), int(deliveries.index[rows].max())
        first_ns[who] = int(deliveries.real_ns[rows].min())
        had[who] = np.unique(message[rows])
    sent_ns = {who: int(sends.real_ns[rows].max()) for who, rows in _by_log(sends)}
    everyone = [(log.member, log.life) for log in own.logs]
    nothing = np.empty(0, dtype=np.int64)
    lacking = {
        (one, other)
        for one in had
        for other in everyone
        if other != one and not np.isin(had[one], had.get(other, nothing)).all()
    }
    broken = causal(with_previous).status is Status.VIOLATED
    return CausalEdges(broken, indices, first_ns, sent_ns, frozenset(lacking))


def _by_log(rows: Rows) -> list[tuple[Who, np.ndarray[tuple[int], np.dtype[np.int64]]]]:
    known = sorted(set(zip(rows.member.tolist(), rows.life.tolist(), strict=True)))
    return [(who, np.flatnonzero((rows.member == who[0]) & (rows.life == who[1]))) for who in known]


def causal_in_tiles(
    tiles: Sequence[CausalEdges], load: Callable[[Sequence[int]], Trace | None], fine: Verdict
) -> Verdict:
    """As `causal`; `load` gives the rows of tiles, None if they are too many; `fine` is said if nothing is broken."""
    far = _far_apart(tiles)
    if far:
        whole = load(range(len(tiles)))
        return unknown(NAME, Reason.SCATTERED, far) if whole is None else causal(whole)
    suspect = sorted({near for number, tile in enumerate(tiles) if tile.broken for near in (number - 1, number)} - {-1})
    if not suspect:
        return fine
    part = load(suspect)
    if part is None:
        text = f"{len(suspect)} parts of the run are suspect, too many to look at"
        return unknown(NAME, Reason.TOO_MUCH_SUSPECT, text)
    found = causal(part)
    return found if found.status is Status.VIOLATED else fine


def _far_apart(tiles: Sequence[CausalEdges]) -> str:
    """Why tiles that are not neighbours have to be looked at together; empty if they do not."""
    reached: dict[Who, int] = {}
    sent_ns: dict[Who, int] = {}
    lacking: set[tuple[Who, Who]] = set()
    for number, tile in enumerate(tiles):
        if number >= 2:
            before = tiles[number - 2]
            for who, (_, index) in before.indices.items():
                reached[who] = max(reached.get(who, _BEFORE), index)
            for who, when in before.sent_ns.items():
                sent_ns[who] = max(sent_ns.get(who, _BEFORE), when)
            lacking |= before.lacking
        for who, (index, _) in tile.indices.items():
            if reached.get(who, _BEFORE) >= index:
                return f"member {who[0]} delivered messages of distant slots one among the other"
            if sent_ns.get(who, _BEFORE) > tile.first_ns[who]:
                return f"member {who[0]} sent a message after it had delivered one of much later slots"
        for one, other in sorted(lacking):
            if one in tile.sent_ns and other in tile.indices:
                return f"member {other[0]} never delivered what member {one[0]} had delivered"
    return ""
