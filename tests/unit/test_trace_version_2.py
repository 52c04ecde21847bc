"""What version 2 of the trace schema has from the start: declared bounds, and kinds of rows that are reserved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from unisono.check.suite import check_all
from unisono.pipeline.verify import verify
from unisono.sim import run
from unisono.sim.swarm.orders import any_order
from unisono.sim.swarm.vbr import calm
from unisono.trace.files import read_trace, write_trace
from unisono.trace.schema import ABSENT, EventKind
from unisono.trace.table import Trace, concatenated

RESERVED = (EventKind.REPAIR, EventKind.LATE, EventKind.INVOKE, EventKind.RESPOND)


def test_members_and_runs_say_which_bound_they_declare() -> None:
    result = run(calm(3))
    starts = result.trace.of_kind(EventKind.START)
    declared = result.meta.declared_bound_ns
    assert declared is not None
    assert declared <= (result.meta.bound_ns or 0)
    assert set(starts.bound_ns.tolist()) == {declared}
    others = result.trace.select(~np.isin(result.trace.kind, [EventKind.START.code, EventKind.TIMING.code]))
    assert (others.bound_ns == ABSENT).all()


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_reserved_kinds_are_read_and_change_no_verdict(seed: int, tmp_path: Path) -> None:
    trace = run(any_order(seed)).trace
    starts = trace.of_kind(EventKind.START)
    more = [
        replace(starts, kind=np.full(len(starts), kind.code, dtype=np.int8), real_ns=starts.real_ns + 1)
        for kind in RESERVED
    ]
    fuller = Trace.from_rows(concatenated([trace, *more]), trace.meta, trace.logs)
    assert check_all(fuller) == check_all(trace)
    folder = write_trace(tmp_path, fuller)
    assert read_trace(folder).digest() == fuller.digest() != trace.digest()
    (report,) = verify(folder, max_whole_rows=0)
    statuses = {name: verdict.status for name, verdict in report.verdicts.items()}
    assert statuses == {name: verdict.status for name, verdict in check_all(trace).items()}
