"""The committed hashes of the runs, and the comparison of new hashes with them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.behaviour.recording import STREAMS, Recording

PATH: Final = Path(__file__).with_name("baseline.json")
RUN_DIGITS: Final = 8
"""Digits of a run's hash in the baseline, enough to name the seeds that differ. Families have full hashes."""
SEEDS_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class RunHash:
    """The hashes of one run by stream, in the order of STREAMS."""

    streams: tuple[str, ...]

    @classmethod
    def of(cls, recording: Recording) -> RunHash:
        """The hashes of a recording."""
        return cls(tuple(recording.hexdigests().values()))

    @property
    def short(self) -> str:
        """A few digits for the whole run."""
        return _joined(self.streams)[:RUN_DIGITS]


@dataclass(frozen=True, slots=True)
class FamilyHash:
    """The hashes of a family by stream, and the short hash of each of its runs."""

    streams: Mapping[str, str]
    runs: tuple[str, ...]

    @classmethod
    def of(cls, runs: Sequence[RunHash]) -> FamilyHash:
        """The hashes of these runs together, in the order of their seeds."""
        streams = {stream: _joined([found.streams[at] for found in runs]) for at, stream in enumerate(STREAMS)}
        return cls(streams, tuple(found.short for found in runs))


def _joined(hexdigests: Sequence[str]) -> str:
    return hashlib.blake2b(" ".join(hexdigests).encode(), digest_size=16).hexdigest()


def total(families: Mapping[str, FamilyHash]) -> str:
    """One hash for all families, by name and stream."""
    return _joined([f"{name}/{at}={found.streams[at]}" for name, found in sorted(families.items()) for at in STREAMS])


def read(path: Path = PATH) -> dict[str, FamilyHash]:
    """The committed hashes."""
    stored = json.loads(path.read_text("utf-8"))
    return {
        name: FamilyHash(family["streams"], tuple(family["runs"].split()))
        for name, family in stored["families"].items()
    }


def write(families: Mapping[str, FamilyHash], path: Path = PATH) -> None:
    """Replace the committed hashes."""
    stored = {
        "total": total(families),
        "families": {
            name: {"streams": dict(found.streams), "runs": " ".join(found.runs)} for name, found in families.items()
        },
    }
    path.write_text(json.dumps(stored, indent=1) + "\n", "utf-8")


def differences(expected: Mapping[str, FamilyHash], found: Mapping[str, FamilyHash]) -> list[str]:
    """One line for each family that differs: in which streams, and the first seeds."""
    lines = []
    for name in sorted({*expected, *found}):
        one, other = expected.get(name), found.get(name)
        if one is None or other is None:
            lines.append(f"{name}: {'is not in the baseline' if one is None else 'is only in the baseline'}")
        elif len(one.runs) != len(other.runs):
            lines.append(f"{name}: {len(other.runs)} runs, but the baseline has {len(one.runs)}")
        elif one.streams != other.streams:
            streams = [stream for stream in STREAMS if one.streams.get(stream) != other.streams[stream]]
            seeds = [seed for seed, pair in enumerate(zip(one.runs, other.runs, strict=True)) if pair[0] != pair[1]]
            shown = ", ".join(map(str, seeds[:SEEDS_SHOWN])) + (", ..." if len(seeds) > SEEDS_SHOWN else "")
            lines.append(f"{name}: {', '.join(streams)} differ in {len(seeds)} of {len(one.runs)} runs: seeds {shown}")
    return lines
