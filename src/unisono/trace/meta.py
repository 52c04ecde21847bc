"""What holds for a whole run: its parameters, and what is said when a recorded run is damaged."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

from unisono.errors import UnisonoError
from unisono.trace.kinds import SCHEMA_VERSION

META_NAME = "meta.json"


class TraceDamaged(UnisonoError, ValueError):
    """A recorded trace cannot be trusted; `where` is the file or folder, `what` is wrong with it."""

    def __init__(self, where: str | os.PathLike[str], what: str) -> None:
        super().__init__(f"{os.fspath(where)}: {what}")
        self.where = os.fspath(where)
        self.what = what

    def __reduce__(self) -> tuple[type[TraceDamaged], tuple[str, str]]:
        """A worker's finding travels to whoever asked."""
        return TraceDamaged, (self.where, self.what)


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


def group_folder(directory: str | os.PathLike[str], run: str, group: str) -> Path:
    """Where the files of one group in one run are; names are escaped, so any name is one path segment."""
    return Path(directory) / f"run={_segment(run)}" / f"group={_segment(group)}"


def _segment(name: str) -> str:
    return quote(name, safe="").replace(".", "%2E")


def write_meta(directory: str | os.PathLike[str], meta: RunMeta) -> Path:
    """Write `meta.json` of the run and group; gives its path."""
    folder = group_folder(directory, meta.run, meta.group)
    folder.mkdir(parents=True, exist_ok=True)
    return write_json(folder / META_NAME, {"schema_version": SCHEMA_VERSION, **asdict(meta)})


def read_meta(path: str | os.PathLike[str]) -> RunMeta:
    """Read a `meta.json`."""
    stored = read_json(path)
    check_version(path, stored.get("schema_version"))
    stored.setdefault("faults", [])  # traces from before these were written down
    stored.setdefault("rates", [])
    missing = [f.name for f in fields(RunMeta) if f.name not in stored]
    if missing:
        raise TraceDamaged(path, f"lacks the field {', '.join(missing)}")
    values = {f.name: stored[f.name] for f in fields(RunMeta)}
    members = values["members"]
    if not isinstance(members, list) or not all(isinstance(member, int) for member in members):
        raise TraceDamaged(path, f"members: a list of member numbers was expected, not {members!r}")
    try:
        rates = tuple((int(member), float(avg), int(burst)) for member, avg, burst in values["rates"])
    except (TypeError, ValueError):
        raise TraceDamaged(path, f"rates: member, average and burst were expected, not {values['rates']!r}") from None
    return RunMeta(**{**values, "members": tuple(members), "faults": tuple(values["faults"]), "rates": rates})


def check_version(where: str | os.PathLike[str], version: object) -> None:
    """Refuse a file of a schema that this release does not know."""
    if version != SCHEMA_VERSION:
        raise TraceDamaged(
            where, f"trace schema version {version!r} is unknown, this release reads version {SCHEMA_VERSION}"
        )


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
