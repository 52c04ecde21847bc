"""Causal order in a run of any length, by its message shards (`check.message_shards`).

A message mostly depends on messages delivered shortly before it was sent: in its own shard or the previous one. The
checker runs on two neighbouring shards at a time. For shards further apart two conditions are enough: every member
delivered all messages of the earlier shard before any of the later one, and no member sent a message of the earlier
shard after it had delivered one of the later shard.
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
    """What the check of causal order needs to know about one message shard."""

    is_violated: bool
    """Whether this shard and the previous one together violate causal order."""
    index_ranges: dict[MemberRunId, tuple[int, int]]
    """The first and the last index at which each member delivered a message of this shard."""
    first_delivery_ns: dict[MemberRunId, int]
    """When each member first delivered a message of this shard."""
    last_send_ns: dict[MemberRunId, int]
    """When each member last sent a message of this shard."""
    runs_missing_messages: frozenset[tuple[MemberRunId, MemberRunId]]
    """Pairs of member runs of which the first delivered a message that the second did not."""


def summarize_causal_order(shard: Trace, with_previous: Trace) -> CausalShardSummary:
    """Summarize causal order in a message shard; `with_previous` has its rows and those of the shard before it."""
    deliveries, sends = shard.deliveries(), shard.sends()
    (message,) = message_codes(deliveries)
    indices, first_ns, delivered = {}, {}, {}
    for run_id, rows in _rows_by_run(deliveries):
        indices[run_id] = int(deliveries.index[rows].min()), int(deliveries.index[rows].max())
        first_ns[run_id] = int(deliveries.real_ns[rows].min())
        delivered[run_id] = np.unique(message[rows])
    sent_ns = {run_id: int(sends.real_ns[rows].max()) for run_id, rows in _rows_by_run(sends)}
    all_runs = [(log.member, log.incarnation) for log in shard.logs]
    nothing = np.empty(0, dtype=np.int64)
    missing_pairs = {
        (one, other)
        for one in delivered
        for other in all_runs
        if other != one and not np.isin(delivered[one], delivered.get(other, nothing)).all()
    }
    is_violated = causal(with_previous).status is Status.VIOLATED
    return CausalShardSummary(is_violated, indices, first_ns, sent_ns, frozenset(missing_pairs))


def _rows_by_run(rows: Rows) -> list[tuple[MemberRunId, np.ndarray[tuple[int], np.dtype[np.int64]]]]:
    known = sorted(set(zip(rows.member.tolist(), rows.recorder_incarnation.tolist(), strict=True)))
    return [
        (run_id, np.flatnonzero((rows.member == run_id[0]) & (rows.recorder_incarnation == run_id[1])))
        for run_id in known
    ]


def causal_in_shards(
    shards: Sequence[CausalShardSummary], load: Callable[[Sequence[int]], Trace | None], clean_verdict: Verdict
) -> Verdict:
    """The verdict of the check `causal` on the whole run, from the summaries of its message shards.

    `load` returns the rows of some shards, or None if these have too many rows. `clean_verdict` is the verdict if there
    is no violation.
    """
    scattered_reason = _why_not_separable(shards)
    if scattered_reason:
        whole_run = load(range(len(shards)))
        return unknown(NAME, Reason.SCATTERED, scattered_reason) if whole_run is None else causal(whole_run)
    suspect = sorted(
        {
            suspect_number
            for number, shard in enumerate(shards)
            if shard.is_violated
            for suspect_number in (number - 1, number)
        }
        - {-1}
    )
    if not suspect:
        return clean_verdict
    part = load(suspect)
    if part is None:
        text = f"{len(suspect)} message shards may violate causal order, too many to be read together"
        return unknown(NAME, Reason.TOO_MUCH_SUSPECT, text)
    verdict = causal(part)
    return verdict if verdict.status is Status.VIOLATED else clean_verdict


def _why_not_separable(shards: Sequence[CausalShardSummary]) -> str:
    """Why shards that are not neighbours must be checked together; empty if they need not."""
    last_index: dict[MemberRunId, int] = {}
    sent_ns: dict[MemberRunId, int] = {}
    missing_pairs: set[tuple[MemberRunId, MemberRunId]] = set()
    for number, shard in enumerate(shards):
        if number >= 2:
            before = shards[number - 2]
            for run_id, (_, index) in before.index_ranges.items():
                last_index[run_id] = max(last_index.get(run_id, _LOWEST), index)
            for run_id, when in before.last_send_ns.items():
                sent_ns[run_id] = max(sent_ns.get(run_id, _LOWEST), when)
            missing_pairs |= before.runs_missing_messages
        for run_id, (index, _) in shard.index_ranges.items():
            if last_index.get(run_id, _LOWEST) >= index:
                return f"member {run_id[0]} delivered messages of much later slots between those of earlier slots"
            if sent_ns.get(run_id, _LOWEST) > shard.first_delivery_ns[run_id]:
                return f"member {run_id[0]} sent a message after it had delivered one of much later slots"
        for one, other in sorted(missing_pairs):
            if one in shard.last_send_ns and other in shard.index_ranges:
                return f"member {other[0]} never delivered some messages that member {one[0]} had delivered"
    return ""
