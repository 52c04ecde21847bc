"""The stored form of an SLA verdict: one table of field names for databases and JSON lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from unisono.model.events import NoticeKind, SlaCleared, SlaVerdict, SlaViolation, ViolationKind

_OF_BOTH: Final = {
    "text": "text",
    "member": "member",
    "slot": "slot",
    "sla": "sla",
    "window_start_ns": "window_start_ns",
    "window_ns": "window_ns",
    "id": "id",
}
"""Stored field name and attribute, for every verdict."""
_OF_VIOLATIONS: Final = {
    "metric": "metric",
    "bound": "bound",
    "measured": "measured",
    "probability": "probability",
    "link": "link",
    "offered": "offered",
}
"""Stored field name and attribute, only for violations."""


def fields_of_verdict(verdict: SlaVerdict) -> dict[str, Any]:
    """The fields to store."""
    violated = isinstance(verdict, SlaViolation)
    names = _OF_BOTH | _OF_VIOLATIONS if violated else _OF_BOTH
    stored = {name: getattr(verdict, attribute) for name, attribute in names.items()}
    return {"violated": violated, "kind": verdict.kind.value, **stored}


def verdict_of_fields(fields: Mapping[str, Any]) -> SlaVerdict:
    """Read a stored verdict. Early releases stored kinds with spaces ("system sla")."""
    token = str(fields["kind"]).replace(" ", "_")
    names = _OF_BOTH | _OF_VIOLATIONS if fields["violated"] else _OF_BOTH
    values = {attribute: fields[name] for name, attribute in names.items()}
    if fields["violated"]:
        return SlaViolation(ViolationKind(token), **values)
    return SlaCleared(NoticeKind(token), **values)
