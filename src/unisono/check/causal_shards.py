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
from unisono.check.columns import MemberRunId, message_codes
from unisono.check.verdict import Reason, Status, Verdict, unknown
from unisono.trace.table import Rows, Trace

_LOWEST = -1 << 62


@dataclass(frozen=True, slots=True)
class CausalShardSummary:
    """What a tile shows of who delivered and sent what when."""

    is_violated: bool
    """Whether it and the tile before it, together, are not in causal order."""
    index_ranges: dict[MemberRunId, tuple[int, int]]
    """The first and the last index at which a member delivered one of its messages."""
    first_delivery_ns: dict[MemberRunId, int]
    """When a member delivered one for the first time."""
    last_send_ns: dict[MemberRunId, int]
    """When a member sent one for the last time."""
    runs_missing_messages: frozenset[tuple[MemberRunId, MemberRunId]]
    """Members of whom the first delivered a message that the second did not."""


def summarize_causal_order(shard: Trace, with_previous: Trace) -> CausalShardSummary:
    """The edges of a tile."""
    deliveries, sends = shard.deliveries(), shard.sends()
    (message,) = message_codes(deliveries)
    indices, first_ns, had = {}, {}, {}
    for run_id, rows in _rows_by_run(deliveries):
        indices[run_id] = int(deliveries.index[rows].min()), int(deliveries.index[rows].max())
        first_ns[run_id] = int(deliveries.real_ns[rows].min())
        had[run_id] = np.unique(message[rows])
    sent_ns = {run_id: int(sends.real_ns[rows].max()) for run_id, rows in _rows_by_run(sends)}
    everyone = [(log.member, log.incarnation) for log in shard.logs]
    nothing = np.empty(0, dtype=np.int64)
    lacking = {
        (one, other)
        for one in had
        for other in everyone
        if other != one and not np.isin(had[one], had.get(other, nothing)).all()
    }
    broken = causal(with_previous).status is Status.VIOLATED
    return CausalShardSummary(broken, indices, first_ns, sent_ns, frozenset(lacking))


def _rows_by_run(rows: Rows) -> list[tuple[MemberRunId, np.ndarray[tuple[int], np.dtype[np.int64]]]]:
    known = sorted(set(zip(rows.member.tolist(), rows.recorder_incarnation.tolist(), strict=True)))
    return [
        (run_id, np.flatnonzero((rows.member == run_id[0]) & (rows.recorder_incarnation == run_id[1])))
        for run_id in known
    ]


def causal_in_shards(
    shards: Sequence[CausalShardSummary], load: Callable[[Sequence[int]], Trace | None], clean_verdict: Verdict
) -> Verdict:
    """As `causal`; `load` gives the rows of tiles, None if they are too many; `fine` is said if nothing is broken."""
    far = _why_not_separable(shards)
    if far:
        whole = load(range(len(shards)))
        return unknown(NAME, Reason.SCATTERED, far) if whole is None else causal(whole)
    suspect = sorted(
        {near for number, tile in enumerate(shards) if tile.is_violated for near in (number - 1, number)} - {-1}
    )
    if not suspect:
        return clean_verdict
    part = load(suspect)
    if part is None:
        text = f"{len(suspect)} parts of the run are suspect, too many to look at"
        return unknown(NAME, Reason.TOO_MUCH_SUSPECT, text)
    found = causal(part)
    return found if found.status is Status.VIOLATED else clean_verdict


def _why_not_separable(shards: Sequence[CausalShardSummary]) -> str:
    """Why tiles that are not neighbours have to be looked at together; empty if they do not."""
    reached: dict[MemberRunId, int] = {}
    sent_ns: dict[MemberRunId, int] = {}
    lacking: set[tuple[MemberRunId, MemberRunId]] = set()
    for number, tile in enumerate(shards):
        if number >= 2:
            before = shards[number - 2]
            for run_id, (_, index) in before.index_ranges.items():
                reached[run_id] = max(reached.get(run_id, _LOWEST), index)
            for run_id, when in before.last_send_ns.items():
                sent_ns[run_id] = max(sent_ns.get(run_id, _LOWEST), when)
            lacking |= before.runs_missing_messages
        for run_id, (index, _) in tile.index_ranges.items():
            if reached.get(run_id, _LOWEST) >= index:
                return f"member {run_id[0]} delivered messages of distant slots one among the other"
            if sent_ns.get(run_id, _LOWEST) > tile.first_delivery_ns[run_id]:
                return f"member {run_id[0]} sent a message after it had delivered one of much later slots"
        for one, other in sorted(lacking):
            if one in tile.last_send_ns and other in tile.index_ranges:
                return f"member {other[0]} never delivered what member {one[0]} had delivered"
    return ""
