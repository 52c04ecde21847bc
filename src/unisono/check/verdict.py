"""What a checker answers, and the smallest evidence for a violation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Status(Enum):
    """`unknown` means that the trace cannot tell: it never stands for `valid`."""

    VALID = "valid"
    VIOLATED = "violated"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, order=True)
class MessageId:
    """A message: its sender, the sender's incarnation, and its number there."""

    sender: int
    incarnation: int
    sequence: int

    def __str__(self) -> str:
        return f"({self.sender},{self.sequence})"


@dataclass(frozen=True, slots=True)
class Position:
    """`member` delivered `message` as its delivery number `index`."""

    member: int
    message: MessageId
    index: int


@dataclass(frozen=True, slots=True)
class Witness:
    """The messages and members that show a violation, and one sentence that tells it."""

    messages: tuple[MessageId, ...]
    members: tuple[int, ...]
    positions: tuple[Position, ...]
    text: str

    def to_json(self) -> dict[str, Any]:
        """The witness as JSON values."""
        return {
            "text": self.text,
            "messages": [_message_json(message) for message in self.messages],
            "members": list(self.members),
            "positions": [
                {"member": at.member, **_message_json(at.message), "index": at.index} for at in self.positions
            ],
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one checker found; `count` is the number of violations, `figures` are what it measured."""

    name: str
    status: Status
    witness: Witness | None = None
    count: int = 0
    reason: str = ""
    figures: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The verdict as JSON values; figures in nanoseconds become milliseconds."""
        shown: dict[str, Any] = {
            "verdict": self.status.value,
            "witness": None if self.witness is None else self.witness.to_json(),
            "count": self.count,
            "reason": self.reason,
        }
        if self.figures:
            shown["figures"] = {
                name.removesuffix("_ns") + "_ms" if name.endswith("_ns") else name: (
                    value / 1e6 if name.endswith("_ns") else value
                )
                for name, value in self.figures.items()
            }
        return shown


def overall(verdicts: Mapping[str, Verdict]) -> Status:
    """Violated if one is, else unknown if one is (or there is none), else valid."""
    statuses = {verdict.status for verdict in verdicts.values()}
    if Status.VIOLATED in statuses:
        return Status.VIOLATED
    if Status.UNKNOWN in statuses or not statuses:
        return Status.UNKNOWN
    return Status.VALID


def _message_json(message: MessageId) -> dict[str, int]:
    return {"sender": message.sender, "incarnation": message.incarnation, "sequence": message.sequence}
