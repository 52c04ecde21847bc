"""What holds for a whole run: its parameters, and what is said when a recorded run is damaged."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from unisono.errors import UnisonoError
from unisono.trace.kinds import READ_VERSIONS, SCHEMA_VERSION

META_NAME = "meta.json"


class TraceDamaged(UnisonoError, ValueError):
    """A recorded trace cannot be trusted; `where` is the file or folder, `what` is wrong with it."""

    def __init__(self, where: str | os.PathLike[str], problem: str) -> None:
        super().__init__(f"{os.fspath(where)}: {problem}")
        self.where = os.fspath(where)
        self.problem = problem

    def __reduce__(self) -> tuple[type[TraceDamaged], tuple[str, str]]:
        """A worker's finding travels to whoever asked."""
        return TraceDamaged, (self.where, self.problem)


@dataclass(frozen=True, slots=True)
class RunMeta:
    """The parameters of one run of one group; `reliable` says that a gap-free order was promised."""

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
    """What was inflicted on purpose, each as `model.faults.described` has it."""
    rates: tuple[tuple[int, float, int], ...] = ()
    """What each member declared that it sends: member, average per second, burst per slot. Empty if that changed."""
    declared_bound_ns: int | None = None
    """The latency bound that the run declared before its first message; `bound_ns` is what it is held to."""
    group_id: str | None = None
    """What tells the group from all others of its name; None until groups have one."""
    configuration: int | None = None
    """The number of the group's configuration; None until groups have one."""


def group_folder(directory: str | os.PathLike[str], run: str, group: str) -> Path:
    """Where the files of one group in one run are; names are escaped, so any name is one path segment."""
    return Path(directory) / f"run={_segment(run)}" / f"group={_segment(group)}"


def _segment(name: str) -> str:
    return quote(name, safe="").replace(".", "%2E")


def write_meta(directory: str | os.PathLike[str], meta: RunMeta) -> Path:
    """Write `meta.json` of the run and group; gives its path."""
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
"""The fields of `meta.json`, and the attributes of a `RunMeta` that they hold."""
_MAY_LACK: Final[Mapping[str, object]] = {
    "faults": [],
    "rates": [],
    "declared_bound_ns": None,
    "group_id": None,
    "configuration": None,
}
"""What version 1 did not have, and what its first releases did not."""


def meta_fields(meta: RunMeta) -> dict[str, Any]:
    """The parameters under the names that `meta.json` has."""
    return {name: getattr(meta, attribute) for name, attribute in _FIELDS.items()}


def read_meta(path: str | os.PathLike[str]) -> RunMeta:
    """Read a `meta.json`."""
    stored = read_json(path)
    if check_version(path, stored.get("schema_version")) < SCHEMA_VERSION:
        stored = {**_MAY_LACK, **stored}
    missing = [name for name in _FIELDS if name not in stored]
    if missing:
        raise TraceDamaged(path, f"lacks the field {', '.join(missing)}")
    values = {attribute: stored[name] for name, attribute in _FIELDS.items()}
    members = values["members"]
    if not isinstance(members, list) or not all(isinstance(member, int) for member in members):
        raise TraceDamaged(path, f"members: a list of member numbers was expected, not {members!r}")
    try:
        rates = tuple((int(member), float(avg), int(burst)) for member, avg, burst in values["rates"])
    except (TypeError, ValueError):
        raise TraceDamaged(path, f"rates: member, average and burst were expected, not {values['rates']!r}") from None
    return RunMeta(**{**values, "members": tuple(members), "faults": tuple(values["faults"]), "rates": rates})


def check_version(where: str | os.PathLike[str], version: object) -> int:
    """The version of a file's schema; refused if this release does not know it."""
    if isinstance(version, int) and version in READ_VERSIONS:
        return version
    known = " and ".join(map(str, READ_VERSIONS))
    raise TraceDamaged(where, f"trace schema version {version!r} is unknown, this release reads version {known}")


def write_json(path: Path, value: Mapping[str, Any]) -> Path:
    """Write under a temporary name, then rename: a reader never sees half a file."""
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
