"""The durable state of the measurement service and its verdicts, in one SQLite file.

Each batch writes both in one transaction, and the state says how far each stream was processed. A job that was killed
finds each batch either done or not begun, so no verdict is lost or found twice. SQLite is in the standard library, and
its committed data survives `kill -9` and power cuts.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from unisono.errors import InvalidOption
from unisono.model.events import SlaVerdict, SlaViolation
from unisono.model.sla import fields_of_verdict, verdict_of_fields

STATE_VERSION = 1
_TABLES = """
CREATE TABLE IF NOT EXISTS state (only INTEGER PRIMARY KEY CHECK (only = 1), version INTEGER, value TEXT);
CREATE TABLE IF NOT EXISTS verdicts (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, run TEXT NOT NULL, team TEXT NOT NULL,
    verdict TEXT NOT NULL, told INTEGER NOT NULL DEFAULT 0
);
"""


@dataclass(frozen=True, slots=True)
class StoredSlaVerdict:
    """A stored SLA violation or clearance, its group, and whether the group was notified."""

    run: str
    group: str
    event: SlaVerdict
    reported: bool = False

    @property
    def id(self) -> str:
        """The unique id of the verdict."""
        return self.event.id

    @property
    def violated(self) -> bool:
        """Whether this is an SLA violation; otherwise it is a clearance."""
        return isinstance(self.event, SlaViolation)


class MeasurementStore:
    """The file that stores the state and the SLA verdicts of one measurement job."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The job's thread writes while other threads read and mark verdicts as reported, so a lock guards the file.
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=30, check_same_thread=False)
        try:
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.executescript(_TABLES)
            row = self._connection.execute("SELECT version, value FROM state").fetchone()
        except sqlite3.DatabaseError as error:
            self._connection.close()
            raise InvalidOption(str(path), f"is not a readable measurement state ({error})") from error
        if row is not None and row[0] != STATE_VERSION:
            raise InvalidOption(
                str(path), f"has measurement state of version {row[0]}, but this release reads version {STATE_VERSION}"
            )
        self.state: dict[str, Any] | None = None if row is None else json.loads(row[1])

    def commit(self, state: Mapping[str, Any], verdicts: Sequence[StoredSlaVerdict]) -> None:
        """Store the results of a batch in one transaction."""
        with self._lock, self._connection as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT OR REPLACE INTO state VALUES (1, ?, ?)", (STATE_VERSION, json.dumps(state)))
            connection.executemany(
                "INSERT OR IGNORE INTO verdicts (id, run, team, verdict) VALUES (?, ?, ?, ?)",
                [(v.id, v.run, v.group, event_text(v.event)) for v in verdicts],
            )

    def mark_reported(self, verdict_id: str) -> None:
        """Record that the group delivered the verdict."""
        with self._lock:
            self._connection.execute("UPDATE verdicts SET told = 1 WHERE id = ?", (verdict_id,))

    def verdicts(self) -> list[StoredSlaVerdict]:
        """All verdicts, in the order in which they were found."""
        with self._lock:
            found = self._connection.execute("SELECT run, team, verdict, told FROM verdicts ORDER BY number").fetchall()
        return [StoredSlaVerdict(row[0], row[1], event_from_text(row[2]), bool(row[3])) for row in found]

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def event_text(event: SlaVerdict) -> str:
    """Encode an SLA verdict as JSON text."""
    return json.dumps(fields_of_verdict(event))


def event_from_text(text: str) -> SlaVerdict:
    """Decode an SLA verdict from JSON text."""
    return verdict_of_fields(json.loads(text))
