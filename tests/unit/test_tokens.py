"""Tokens and stored names: protocols write every token that checkers read, and stored names are fixed.

Renaming a Python name must not change a format.
"""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest

import unisono
from unisono.check.verdict import Reason
from unisono.cluster.member_process import stored_mistakes
from unisono.model.events import NoticeKind, SlaCleared, SlaVerdict, SlaViolation, ViolationKind
from unisono.model.faults import Crash, Duplication, Fault, Loss, Partition, Pause, Reordering, Span, fault_to_row
from unisono.model.sla import MetricRow, Side, fields_of_verdict, verdict_of_fields
from unisono.net.clock_check import ClockCheck
from unisono.net.fec.layer import Fec
from unisono.net.layer import Layer
from unisono.net.rmcast.layer import Rmcast
from unisono.net.services.causal import Causal
from unisono.net.services.fifo import Fifo
from unisono.net.services.uniform import UniformDelivery
from unisono.replica.replica import MistakeCounts
from unisono.trace.arrow import SCHEMA
from unisono.trace.metrics import MetricRecord, to_fields
from unisono.trace.schema import RunMeta, meta_fields

SOURCE = Path(unisono.__file__).parent


def used(enum: str, *folders: str) -> Counter[str]:
    """The members of an enum that the modules of these folders mention, with their counts."""
    found: Counter[str] = Counter()
    for folder in folders:
        for path in sorted((SOURCE / folder).rglob("*.py")) if folder else sorted(SOURCE.glob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == enum:
                    found[node.attr] += 1
    return found


WRITERS = ("orders", "net", "agreement", "runtime", "qos", "wire", "")
"""Folders whose modules create violations and notices; the empty name stands for the top of the package."""


def test_every_token_that_a_checker_reads_is_written_by_a_protocol() -> None:
    read = used("ViolationKind", "check")
    assert {"PAUSED", "EXCLUDED", "UNSETTLED", "NUMBER_TAKEN"} <= read.keys(), "otherwise this test checks nothing"
    assert read.keys() <= used("ViolationKind", "orders", "net", "agreement").keys()
    assert used("NoticeKind", "check").keys() <= used("NoticeKind", "orders", "net", "agreement").keys()


def test_every_kind_is_written_somewhere() -> None:
    in_events = used("ViolationKind", "model") + used("NoticeKind", "model")
    written = in_events + used("ViolationKind", *WRITERS) + used("NoticeKind", *WRITERS)
    assert {kind.name for kind in (*ViolationKind, *NoticeKind)} == written.keys()


def test_every_reason_of_a_verdict_is_used_somewhere() -> None:
    assert {reason.name for reason in Reason} == used("Reason", "check", "pipeline").keys()


@pytest.mark.parametrize("enum", [ViolationKind, NoticeKind, Reason])
def test_a_token_is_the_name_of_its_member(enum: type[ViolationKind | NoticeKind | Reason]) -> None:
    for kind in enum:
        assert kind.value == kind.name.lower()
        assert kind == kind.value


def test_no_checker_reads_notes_or_texts() -> None:
    for path in sorted((SOURCE / "check").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.Attribute) and node.attr in {"note", "notes"}), (path, node.lineno)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "startswith":
                raise AssertionError(f"{path}:{node.lineno} tests the beginning of a text")


def test_layers_have_these_names() -> None:
    layers: list[type[Layer]] = [Rmcast, Fec, ClockCheck, Fifo, Causal, UniformDelivery]
    assert [layer.name for layer in layers] == ["rmcast", "fec", "skew", "fifo", "causal", "uniform"]


def test_the_columns_of_a_trace_have_these_names() -> None:
    assert SCHEMA.names == [
        *("run", "group", "member", "recorder_incarnation", "kind", "sender", "sender_incarnation", "sequence"),
        *("slot", "place", "index", "real_ns", "local_ns", "size", "priority", "view", "grade", "destinations"),
        *("token", "members", "member_incarnations", "theta_ns", "bound_ns", "talks_with", "messages"),
        *("configuration", "group_id", "note"),
    ]


def test_the_parameters_of_a_run_are_stored_under_these_names() -> None:
    meta = RunMeta("r", "g", "vbr", (1,), 1, 2, 3, None, reliable=True, source="test")
    assert list(meta_fields(meta)) == [
        *("run", "group", "order", "members", "delta_ns", "gamma_ns", "theta_ns", "bound_ns", "reliable", "source"),
        *("versions", "faults", "rates", "declared_bound_ns", "group_id", "configuration"),
    ]
    assert len(meta_fields(meta)) == len(fields(RunMeta)), "every field is stored"


@pytest.mark.parametrize(
    ("fault", "stored"),
    [
        (
            Loss(Span(1, 2), 0.5, 1, 3, (1,), (2,)),
            {
                "kind": "loss",
                "from_ns": 1,
                "to_ns": 2,
                "probability": 0.5,
                "at_most": 1,
                "of": 3,
                "senders": [1],
                "receivers": [2],
            },
        ),
        (Duplication(Span(1), 0.5), {"kind": "duplication", "from_ns": 1, "to_ns": None, "probability": 0.5}),
        (Reordering(Span(1), 0.5), {"kind": "reordering", "from_ns": 1, "to_ns": None, "probability": 0.5}),
        (
            Partition(Span(), ((1, 2), (3,))),
            {"kind": "partition", "from_ns": 0, "to_ns": None, "groups": [[1, 2], [3]]},
        ),
        (Crash(2, 5), {"kind": "crash", "member": 2, "at_ns": 5}),
        (Pause(2, 5, 6), {"kind": "pause", "member": 2, "from_ns": 5, "to_ns": 6}),
    ],
)
def test_faults_are_stored_under_these_names(fault: Fault, stored: dict[str, object]) -> None:
    assert fault_to_row(fault) == stored


BROKEN = SlaViolation(ViolationKind.SYSTEM_SLA, "text", 2, 7, "own", "loss", 0.1, 0.2, 0.9, 3, 10, 20, "less", "ab")
CLEARED = SlaCleared(NoticeKind.SYSTEM_SLA_CLEARED, "text", 2, 7, "own", 10, 20, "ab")
OF_BOTH = {
    "text": "text",
    "member": 2,
    "slot": 7,
    "sla": "own",
    "window_start_ns": 10,
    "window_ns": 20,
    "id": "ab",
}
OF_BROKEN = {
    "metric": "loss",
    "bound": 0.1,
    "measured": 0.2,
    "probability": 0.9,
    "link": 3,
    "offered": "less",
}


@pytest.mark.parametrize(
    ("verdict", "stored"),
    [
        (BROKEN, {"violated": True, "kind": "system_sla", **OF_BOTH, **OF_BROKEN}),
        (CLEARED, {"violated": False, "kind": "system_sla_cleared", **OF_BOTH}),
    ],
)
def test_verdicts_on_agreements_are_stored_under_these_names(verdict: SlaVerdict, stored: dict[str, object]) -> None:
    assert fields_of_verdict(verdict) == stored
    assert verdict_of_fields(stored) == verdict
    before_tokens = {**stored, "kind": str(stored["kind"]).replace("_", " ")}
    assert verdict_of_fields(before_tokens) == verdict
    assert len(stored) == len(fields(verdict)) + 1, "every field is stored"


def test_counts_and_metric_rows_are_stored_under_these_names() -> None:
    assert stored_mistakes(MistakeCounts(1, 2, 3, 4, 5, 6)) == {
        "lost": 1,
        "out_of_order": 2,
        "retracted": 3,
        "late": 4,
        "rollbacks": 5,
        "reexecuted": 6,
    }
    row = MetricRow("network", Side.BELOW, 1, "loss", 0, 10, 4, 0.25)
    assert list(to_fields(MetricRecord("r", "g", 1, 0, row))) == [
        *("version", "run", "group", "member", "life", "layer", "side", "link", "metric", "window_start_ns"),
        *("window_ns", "count", "value", "p50", "p90", "p99", "p999", "largest", "buckets"),
    ]
