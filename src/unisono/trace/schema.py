"""The schema of a trace: row kinds, columns, and the parameters of a run (`meta.json`).

A trace has one row per message sent, one per message delivered, and one per event of a member. Needs neither numpy nor
pyarrow; the Arrow form of the columns is in `trace.arrow`.

Columns. `run`, `group`, `member` and `recorder_incarnation` say where a row was recorded. `sender`,
`sender_incarnation` and `sequence` name the message; START, LEAVE, CRASH and GAP rows have the member concerned in
`sender` and `sender_incarnation`. A message's key in the order is (`slot`, `place`). Every member must record the same
key for a message, even if it missed other messages; so `place` cannot be a member's own count of its deliveries. In the
priority order all members consume the same sequence, and `slot` is the message's number in it.

RECEIVE and QUEUE rows are the steps of a message into the consumable queue of the priority order. Their `place` counts
the member's steps, `index` is the number of messages delivered before, and `slot` is the message's number in the order.
The `view` of a RECEIVE row is the agreed view in which the message arrived. The `view` of a VIEW row is the number of
an agreed view, else its first slot.

Some columns are null except in some kinds of rows: `token` (VIOLATION and NOTICE: the kind of event), `members` (VIEW),
`member_incarnations` (VIEW of an agreed view), `theta_ns` (TIMING), `bound_ns` (TIMING, and START: the bound that the
member declares), `talks_with` (NOTICE of a topology), `messages` (RECEIVE: the target tail; QUEUE: the insertion
point). `configuration` and `group_id` are reserved and null. `note` is free text; no program reads it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from unisono.errors import UnisonoError

SCHEMA_VERSION: Final = 2
"""The schema version that this release writes."""
READ_VERSIONS: Final = (1, 2)

OBSERVER: Final = 0
"""The `member` of rows that no member recorded, such as a CRASH seen by the supervisor of the processes."""

ABSENT: Final = -1
"""The value in memory of a numeric column that is null in the file."""


class EventKind(Enum):
    """The kind of a row. The value is the word in the file; `code` is the number in memory."""

    SEND = "send"
    DELIVER = "deliver"
    VIEW = "view"
    VIOLATION = "violation"
    START = "start"
    LEAVE = "leave"
    CRASH = "crash"
    GAP = "gap"
    NOTICE = "notice"
    TIMING = "timing"
    """From the row's slot on, slots have the length `theta_ns`, and the latency bound is `bound_ns`."""
    RECEIVE = "receive"
    """A message arrived at a member of the priority order; `messages` names its target tail."""
    QUEUE = "queue"
    """A member put a message into its consumable queue; `messages` names the insertion point."""
    REPAIR = "repair"
    """A member recovered a message that it had continued without. This closes the GAP row of the sender and slot."""
    LATE = "late"
    """A message arrived after the member had continued without it, and was not delivered."""
    INVOKE = "invoke"
    """A client called an operation on a replicated object."""
    RESPOND = "respond"
    """The operation of an INVOKE row returned to its client."""

    @property
    def code(self) -> int:
        """The number that stands for this kind in the column `kind` in memory."""
        return _CODES[self]


MESSAGE_KINDS: Final = (EventKind.SEND, EventKind.DELIVER, EventKind.RECEIVE, EventKind.QUEUE)
"""The kinds of rows that are about a message and have its sequence number."""


KINDS: Final = tuple(EventKind)
_CODES: Final = {kind: code for code, kind in enumerate(KINDS)}

NUMBER_COLUMNS: Final = {
    "member": "int32",
    "recorder_incarnation": "int64",
    "sender": "int32",
    "sender_incarnation": "int64",
    "sequence": "int64",
    "slot": "int64",
    "place": "int64",
    "index": "int64",
    "real_ns": "int64",
    "local_ns": "int64",
    "size": "int32",
    "priority": "int16",
    "view": "int64",
    "theta_ns": "int64",
    "bound_ns": "int64",
    "configuration": "int64",
}
"""The numeric columns and their types, the same in memory as in the file."""

NULLABLE_NUMBER_COLUMNS: Final = (
    *("sequence", "place", "index", "size", "priority", "view"),
    *("theta_ns", "bound_ns", "configuration"),
)

CODED: Final = {
    "note": "notes",
    "grade": "grades",
    "destinations": "destination_sets",
    "token": "tokens",
    "members": "member_lists",
    "member_incarnations": "incarnation_lists",
    "talks_with": "talk_lists",
    "messages": "message_texts",
    "group_id": "group_ids",
}
"""The columns of words or lists, and the name of each column's table.

In memory such a column holds codes: indices into its table of distinct values.
"""

FREE_TEXT: Final = ("note",)
"""Columns for people only: no program branches on them, and a trace's digest leaves them out."""


META_NAME = "meta.json"


class TraceDamaged(UnisonoError, ValueError):
    """A recorded trace cannot be trusted: `problem` says what is wrong with the file or folder `where`."""

    def __init__(self, where: str | os.PathLike[str], problem: str) -> None:
        super().__init__(f"{os.fspath(where)}: {problem}")
        self.where = os.fspath(where)
        self.problem = problem

    def __reduce__(self) -> tuple[type[TraceDamaged], tuple[str, str]]:
        """Make this error picklable: Spark workers send it to the driver."""
        return TraceDamaged, (self.where, self.problem)


@dataclass(frozen=True, slots=True)
class RunMeta:
    """The parameters of one run of one group. `reliable` means that the order promises to have no gaps."""

    run: str
    group: str
    order: str
    members: tuple[int, ...]
    delta_ns: int
    gamma_ns: int
    theta_ns: int
    bound_ns: int | None
    reliable: bool
    source: str
    versions: Mapping[str, str] = field(default_factory=dict)
    faults: tuple[Mapping[str, object], ...] = ()
    """The faults injected on purpose, each in the form of `model.faults.described`."""
    rates: tuple[tuple[int, float, int], ...] = ()
    """The declared rates: member, average per second, burst per slot. Empty if the rates changed during the run."""
    declared_bound_ns: int | None = None
    """The latency bound declared before the first message; checkers use `bound_ns`."""
    group_id: str | None = None
    """Distinguishes groups of the same name. Reserved: None in this release."""
    configuration: int | None = None
    """The number of the group's configuration. Reserved: None in this release."""


def group_folder(directory: str | os.PathLike[str], run: str, group: str) -> Path:
    """The folder of one group in one run. Names are escaped, so any name is one path segment."""
    return Path(directory) / f"run={_segment(run)}" / f"group={_segment(group)}"


def _segment(name: str) -> str:
    return quote(name, safe="").replace(".", "%2E")


def write_meta(directory: str | os.PathLike[str], meta: RunMeta) -> Path:
    """Write the `meta.json` of the run and group and return its path."""
    folder = group_folder(directory, meta.run, meta.group)
    folder.mkdir(parents=True, exist_ok=True)
    return write_json(folder / META_NAME, {"schema_version": SCHEMA_VERSION, **meta_fields(meta)})


_FIELDS: Final = {
    "run": "run",
    "group": "group",
    "order": "order",
    "members": "members",
    "delta_ns": "delta_ns",
    "gamma_ns": "gamma_ns",
    "theta_ns": "theta_ns",
    "bound_ns": "bound_ns",
    "reliable": "reliable",
    "source": "source",
    "versions": "versions",
    "faults": "faults",
    "rates": "rates",
    "declared_bound_ns": "declared_bound_ns",
    "group_id": "group_id",
    "configuration": "configuration",
}
"""The fields of `meta.json`, and the `RunMeta` attribute that each holds."""
_MAY_LACK: Final[Mapping[str, object]] = {
    "faults": [],
    "rates": [],
    "declared_bound_ns": None,
    "group_id": None,
    "configuration": None,
}
"""Defaults for fields that some files of version 1 lack."""


def meta_fields(meta: RunMeta) -> dict[str, Any]:
    """The parameters under their names in `meta.json`."""
    return {name: getattr(meta, attribute) for name, attribute in _FIELDS.items()}


def read_meta(path: str | os.PathLike[str]) -> RunMeta:
    """Read the parameters of a run from its `meta.json`; raises `TraceDamaged` if the file is not valid."""
    stored = read_json(path)
    if check_version(path, stored.get("schema_version")) < SCHEMA_VERSION:
        stored = {**_MAY_LACK, **stored}
    missing = [name for name in _FIELDS if name not in stored]
    if missing:
        raise TraceDamaged(path, f"lacks the fields {', '.join(missing)}")
    values = {attribute: stored[name] for name, attribute in _FIELDS.items()}
    members = values["members"]
    if not isinstance(members, list) or not all(isinstance(member, int) for member in members):
        raise TraceDamaged(path, f"members: expected a list of member numbers, found {members!r}")
    try:
        rates = tuple((int(member), float(avg), int(burst)) for member, avg, burst in values["rates"])
    except (TypeError, ValueError):
        raise TraceDamaged(
            path, f"rates: expected [member, average, burst] for each member, found {values['rates']!r}"
        ) from None
    return RunMeta(**{**values, "members": tuple(members), "faults": tuple(values["faults"]), "rates": rates})


def check_version(where: str | os.PathLike[str], version: object) -> int:
    """Return the version of a file's schema; raise `TraceDamaged` if this release cannot read it."""
    if isinstance(version, int) and version in READ_VERSIONS:
        return version
    known = " and ".join(map(str, READ_VERSIONS))
    raise TraceDamaged(where, f"trace schema version {version!r} is unknown; this release reads versions {known}")


def write_json(path: Path, value: Mapping[str, Any]) -> Path:
    """Write under a temporary name, then rename, so that a reader never sees half a file."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    partial.replace(path)
    return path


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a JSON object that belongs to a trace."""
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TraceDamaged(path, "is missing") from None
    except (OSError, ValueError) as error:
        raise TraceDamaged(path, f"is not readable JSON ({error})") from error
    if not isinstance(value, dict):
        raise TraceDamaged(path, "is not a JSON object")
    return value
