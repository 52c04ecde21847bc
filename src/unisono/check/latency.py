"""The latency bound (Theorems 1 and 2 of paper 000, or whatever was negotiated): send to delivery, in real time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unisono.check.codes import message_at, message_codes, position_at
from unisono.check.member_runs import SendStatus, dropped_rows_reason, empty_trace_reason, send_statuses
from unisono.check.verdict import Doubt, Reason, Status, Verdict, Witness, kept
from unisono.trace.table import Ints, Rows, Trace

NAME = "latency"
NO_BOUND_PROMISED = Doubt(Reason.NO_BOUND, "no bound was promised")


@dataclass(frozen=True, slots=True)
class LatencyStatistics:
    """Of all deliveries whose send is recorded; a percentile is a latency that occurred. Zeros if there is none."""

    deliveries: int
    late: int
    min_ns: int
    p50_ns: int
    p99_ns: int
    p999_ns: int
    max_ns: int

    def figures(self) -> dict[str, int]:
        """The statistics under the names that verdicts carry."""
        return {
            "deliveries": self.deliveries,
            "late": self.late,
            "min_ns": self.min_ns,
            "p50_ns": self.p50_ns,
            "p99_ns": self.p99_ns,
            "p999_ns": self.p999_ns,
            "max_ns": self.max_ns,
        }


def latency(trace: Trace, *, bound_ns: int | None = None) -> Verdict:
    """Every delivery within `bound_ns` of its send; the run's own bound unless told. Figures: the statistics."""
    bound = trace.meta.bound_ns if bound_ns is None else bound_ns
    deliveries = trace.deliveries()
    matched, taken_ns = latencies(trace, deliveries)
    statistics = _statistics(taken_ns, bound)
    figures = statistics.figures()
    if bound is not None and statistics.late:
        late = np.flatnonzero(taken_ns > bound)
        first = late[np.argmin(deliveries.real_ns[matched[late]])]
        row = int(matched[first])
        message, member = message_at(deliveries, row), int(deliveries.member[row])
        text = (
            f"member {member} delivered {message} {taken_ns[first] / 1e6:.3f} ms after it was sent, "
            f"{(taken_ns[first] - bound) / 1e6:.3f} ms later than the bound of {bound / 1e6:.3f} ms"
        )
        witness = Witness((message,), (member,), (position_at(deliveries, row),), text)
        return Verdict(NAME, Status.VIOLATED, witness, statistics.late, figures=figures)
    doubt = NO_BOUND_PROMISED if bound is None else dropped_rows_reason(trace) or empty_trace_reason(trace)
    if doubt is None and len(matched) < len(deliveries):
        doubt = sends_not_recorded(int((send_statuses(trace, deliveries) == SendStatus.NOT_RECORDED).sum()))
    return kept(NAME, doubt, figures)


def sends_not_recorded(deliveries: int) -> Doubt | None:
    """The doubt that so many deliveries without a recorded send leave; None if there are none."""
    if not deliveries:
        return None
    return Doubt(Reason.SEND_NOT_RECORDED, f"the send of {deliveries} deliveries is not recorded")


def latency_statistics(trace: Trace, *, bound_ns: int | None = None) -> LatencyStatistics:
    """How long deliveries took."""
    bound = trace.meta.bound_ns if bound_ns is None else bound_ns
    return _statistics(latencies(trace, trace.deliveries())[1], bound)


def latencies(trace: Trace, deliveries: Rows) -> tuple[Ints, Ints]:
    """The deliveries whose send is recorded, by row, and the time that each took."""
    sends = trace.sends()
    sent, delivered = message_codes(sends, deliveries)
    if len(sent) == 0:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    order = np.argsort(sent, kind="stable")
    at = np.minimum(np.searchsorted(sent[order], delivered), len(sent) - 1)
    matched = np.flatnonzero(sent[order][at] == delivered)
    return matched, deliveries.real_ns[matched] - sends.real_ns[order][at][matched]


def _statistics(latencies_ns: Ints, bound_ns: int | None) -> LatencyStatistics:
    if len(latencies_ns) == 0:
        return LatencyStatistics(0, 0, 0, 0, 0, 0, 0)
    p50, p99, p999 = np.quantile(latencies_ns, (0.5, 0.99, 0.999), method="inverted_cdf")
    late = 0 if bound_ns is None else int((latencies_ns > bound_ns).sum())
    return LatencyStatistics(
        len(latencies_ns), late, int(latencies_ns.min()), int(p50), int(p99), int(p999), int(latencies_ns.max())
    )
