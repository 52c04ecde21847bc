"""Verdicts: the answer of a checker, and the smallest evidence for a violation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any


class Status(Enum):
    """The answer of a verdict: valid, violated, or unknown if the trace cannot tell. Unknown never stands for valid."""

    VALID = "valid"
    VIOLATED = "violated"
    UNKNOWN = "unknown"


class Reason(StrEnum):
    """Why a verdict is what it is. Programs read this token; the text beside it is for people."""

    AFTER_CRASH = "after_crash"
    """Valid, except for messages that a crashed sender did not log in time."""
    CYCLE = "cycle"
    """No single order fits all members, although no two disagree."""
    GRADES_MIXED = "grades_mixed"
    """Deliveries of several grades, or with and without a grade, cannot be checked together."""
    INDEX_MISSING = "index_missing"
    """A member's log lacks deliveries: an index is missing."""
    INDEX_TWICE = "index_twice"
    """Two deliveries of a log have the same index."""
    KEYS_CONTRADICT = "keys_contradict"
    """The keys (slot, place) of deliveries contradict each other, although no two members disagree."""
    LOG_NOT_WHOLE = "log_not_whole"
    """A log was not closed, lacks rows, or lacks required information."""
    MEMBERS_DISAGREE = "members_disagree"
    """Two members deliver two messages in different orders."""
    NEEDS_WHOLE_RUN = "needs_whole_run"
    """The check needs the whole run at once."""
    NO_BOUND = "no_bound"
    """The run promised no latency bound."""
    NOTHING_RECORDED = "nothing_recorded"
    NO_RECEPTIONS = "no_receptions"
    """Deliveries were recorded, but no receptions, which the check needs."""
    NO_VIEWS = "no_views"
    """No agreed view was recorded."""
    OVERTAKEN_IN_BOTH = "overtaken_in_both"
    """A message of lower priority came first, against both statements of priority accounting (P2) in paper 004."""
    OVERTAKEN_IN_WORDS = "overtaken_in_words"
    """A message of lower priority came first, against priority accounting (P2) as paper 004 states it in words only."""
    ROWS_DROPPED = "rows_dropped"
    """The trace lacks rows, because its writer had to drop them."""
    SCATTERED = "scattered"
    """The rows of some messages are too far apart to be read together."""
    SEND_NOT_RECORDED = "send_not_recorded"
    TOO_MUCH_SUSPECT = "too_much_suspect"
    """More rows are suspect than the checker reads."""
    TRACE_DAMAGED = "trace_damaged"
    """A file of the trace cannot be trusted."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why the trace cannot show that a promise was kept: a token for programs and a text for people."""

    reason: Reason
    text: str


@dataclass(frozen=True, slots=True, order=True)
class MessageId:
    """A message: its sender, the sender's incarnation, and its sequence number."""

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
    """The messages and members that show a violation, and one sentence that describes it."""

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
    """The result of one checker: `count` is the number of violations, `figures` are its measurements."""

    name: str
    status: Status
    witness: Witness | None = None
    count: int = 0
    reason: str = ""
    figures: Mapping[str, int] = field(default_factory=dict)
    token: Reason | None = None
    """The reason of the verdict as a token for programs; None if there is no reason."""

    def to_json(self) -> dict[str, Any]:
        """The verdict as JSON values; figures in nanoseconds become milliseconds."""
        shown: dict[str, Any] = {
            "verdict": self.status.value,
            "witness": None if self.witness is None else self.witness.to_json(),
            "count": self.count,
            "reason": self.reason,
            "token": None if self.token is None else self.token.value,
        }
        if self.figures:
            shown["figures"] = {
                name.removesuffix("_ns") + "_ms" if name.endswith("_ns") else name: (
                    value / 1e6 if name.endswith("_ns") else value
                )
                for name, value in self.figures.items()
            }
        return shown


def no_violation(name: str, doubt: Doubt | None, figures: Mapping[str, int] | None = None) -> Verdict:
    """The verdict if the checker found no violation: valid, or unknown if there is a doubt."""
    if doubt is None:
        return Verdict(name, Status.VALID, figures=figures or {})
    return Verdict(name, Status.UNKNOWN, reason=doubt.text, figures=figures or {}, token=doubt.reason)


def unknown(name: str, reason: Reason, text: str) -> Verdict:
    """The verdict `unknown`: the trace cannot tell whether the promise was kept."""
    return no_violation(name, Doubt(reason, text))


def graded_name(check: str, grade: str) -> str:
    """The key of a verdict on the deliveries of one grade: `total_order[early]`."""
    return f"{check}[{grade}]"


def check_name(key: str) -> str:
    """The check that a verdict's key names, without the grade."""
    return key.partition("[")[0]


def overall(verdicts: Mapping[str, Verdict]) -> Status:
    """The status of all verdicts together.

    Violated if any is violated; otherwise unknown if any is unknown or there is none; otherwise valid.
    """
    statuses = {verdict.status for verdict in verdicts.values()}
    if Status.VIOLATED in statuses:
        return Status.VIOLATED
    if Status.UNKNOWN in statuses or not statuses:
        return Status.UNKNOWN
    return Status.VALID


def _message_json(message: MessageId) -> dict[str, int]:
    return {"sender": message.sender, "incarnation": message.incarnation, "sequence": message.sequence}
