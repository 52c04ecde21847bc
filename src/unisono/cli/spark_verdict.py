"""`demo --verify spark`: check the demo's trace again with the data pipeline on Spark."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from unisono.check.verdict import Status, Verdict, check_name, overall
from unisono.cli.output import progress_reports
from unisono.cluster.report import ORDER_CHECKS
from unisono.errors import MissingDependency


@dataclass(frozen=True, slots=True)
class SparkVerdict:
    """The verdicts of the data pipeline on the demo's trace, or the reason why there are none."""

    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    events: int = 0
    seconds: float = 0.0
    """How many seconds the verification took, without the start of Spark."""
    unavailable_reason: str = ""

    @property
    def verdict(self) -> Status | None:
        """The verdict of Spark on the order; None if Spark did not run.

        Late deliveries do not count, as in the demo's own verdict.
        """
        if self.unavailable_reason:
            return None
        order_checks = {name: verdict for name, verdict in self.verdicts.items() if _is_order_check(name)}
        return overall(order_checks or self.verdicts)

    def differing_checks(self, own_verdicts: Mapping[str, Verdict]) -> list[str]:
        """The names of the checks in which Spark and the checkers in this process disagree."""
        if self.unavailable_reason:
            return []
        names = sorted(own_verdicts.keys() | self.verdicts.keys())
        return [
            n
            for n in names
            if (n in own_verdicts and own_verdicts[n].status) != (n in self.verdicts and self.verdicts[n].status)
        ]

    def to_json(self, own_verdicts: Mapping[str, Verdict]) -> dict[str, Any]:
        """The field `spark` of `demo --json`."""
        verdict = self.verdict
        return {
            "verdict": None if verdict is None else verdict.value,
            "checks": {name: verdict.to_json() for name, verdict in self.verdicts.items()},
            "events": self.events,
            "seconds": round(self.seconds, 3),
            "differs": self.differing_checks(own_verdicts),
            "lacks": self.unavailable_reason or None,
        }

    def lines(self, own_verdicts: Mapping[str, Verdict]) -> list[str]:
        """The verdict of Spark as lines of text."""
        verdict = self.verdict
        if verdict is None:
            return [f"on Spark: not verified: {self.unavailable_reason}"]
        statuses = ", ".join(f"{name.replace('_', ' ')} {found.status.value}" for name, found in self.verdicts.items())
        differs = self.differing_checks(own_verdicts)
        agreement = f"differs from the in-process checkers in {', '.join(differs)}" if differs else "same as in-process"
        head = f"on Spark: {verdict.value}, {agreement} ({self.events:,} events in {self.seconds:.1f} s)"
        witnesses = [f"  ! {found.witness.text}" for found in self.verdicts.values() if found.witness is not None]
        return [head, f"  {statuses}", *witnesses]


def verify_on_spark(folder: Path, *, quiet: bool) -> SparkVerdict:
    """Verify the run in this folder with a local Spark."""
    from unisono.pipeline.session import SparkChoice, spark_session  # noqa: PLC0415 - only --verify spark needs it
    from unisono.pipeline.verify import on_spark, verify  # noqa: PLC0415

    try:
        with (
            progress_reports("starting Spark to verify the trace", quiet=quiet) as report_progress,
            spark_session(SparkChoice()) as session,
        ):
            report_progress("verifying the trace on Spark")
            began = time.monotonic()
            (report,) = verify(folder, partial(on_spark, session))
            took_s = time.monotonic() - began
            report_progress(f"verified {report.rows:,} events; stopping Spark")
    except MissingDependency as missing:
        return SparkVerdict(unavailable_reason=str(missing))
    return SparkVerdict(report.verdicts, report.rows, took_s)


def _is_order_check(name: str) -> bool:
    return check_name(name) in ORDER_CHECKS
