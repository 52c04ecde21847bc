"""From the measurement service to the group: verdicts are sent once, and again if they were not delivered."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.metric_streams import SLA, lossy_between, write_run

from unisono.cli.reporter_process import ReporterProcess
from unisono.cluster import sla_reporter as teller
from unisono.cluster.sla_reporter import (
    SlaReporter,
    estimate_from_json,
    estimate_to_json,
    verdict_from_json,
    verdict_to_json,
)
from unisono.errors import GroupClosed
from unisono.model.events import SlaVerdict
from unisono.model.text.sla import parse_slas
from unisono.pipeline.measurement import MeasuredBatch, MeasurementService
from unisono.pipeline.measurement_store import MeasurementStore
from unisono.qos.adapt.estimate import Estimate
from unisono.trace.metrics import read_block, readable_offsets, slices_between

SLAS = parse_slas(SLA, "sla.toml")
SCENARIO = Path(__file__).parents[2] / "scenarios" / "monitored.toml"


def found(folder: Path, store: MeasurementStore) -> MeasuredBatch:
    """A violation and its clearance, in the group g."""
    write_run(folder, 16, lossy_between(4, 8))
    return MeasurementService(SLAS, store).process(
        [read_block(stretch) for stretch in slices_between({}, readable_offsets(folder, {}))]
    )


def reporter(group: str = "g") -> tuple[ReporterProcess, io.StringIO]:
    """A reporter process whose input is captured and that never answers."""
    one, heard = ReporterProcess(group, ("", "s"), ("", "a"), 6, {6: "127.0.0.1:1"}), io.StringIO()
    one._process = SimpleNamespace(stdin=heard)  # type: ignore[assignment]
    return one, heard


def lines(heard: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in heard.getvalue().splitlines()]


def test_the_findings_of_a_batch_go_to_their_own_group(tmp_path: Path) -> None:
    with MeasurementStore(tmp_path / "x.sqlite") as store:
        measured = found(tmp_path, store)
        one, heard = reporter()
        one.send_measured(measured)
        one.send_measured(MeasuredBatch())
        calm, worse = measured.network["r", "g"], Estimate.of(0.5, measured.network["r", "g"].delays)
        one.send_measured(MeasuredBatch(network={("q", "g"): calm, ("r", "g"): worse, ("r", "another"): calm}))
        line, later = lines(heard)
        assert later["verdicts"] == []
        assert estimate_from_json(later["network"]) == worse, "the last run's"
        assert [verdict_from_json(each) for each in line["verdicts"]] == [v.event for v in measured.verdicts]
        assert estimate_from_json(line["network"]) == measured.network["r", "g"]
        another, heard = reporter("another")
        another.send_measured(measured)
        another.send_unreported_verdicts(store)
        assert lines(heard) == [{"verdicts": []}]


def test_a_starting_service_sends_the_undelivered_verdicts(tmp_path: Path) -> None:
    with MeasurementStore(tmp_path / "x.sqlite") as store:
        broken, cleared = (verdict.event for verdict in found(tmp_path, store).verdicts)
        one, heard = reporter()
        one.send_unreported_verdicts(store)
        assert lines(heard) == [{"verdicts": [verdict_to_json(broken), verdict_to_json(cleared)]}]
        said = [{"kind": "ready", "members": [1, 6]}, {"kind": "told", "id": broken.id}, {"kind": "event", "what": "x"}]
        one._read_replies(SimpleNamespace(stdout=[json.dumps(each) for each in said]))  # type: ignore[arg-type]
        assert [verdict.reported for verdict in store.verdicts()] == [True, False]
        again, heard = reporter()
        again.send_unreported_verdicts(store)
        assert lines(heard) == [{"verdicts": [verdict_to_json(cleared)]}]


def test_estimates_and_verdicts_survive_the_round_trip(tmp_path: Path) -> None:
    with MeasurementStore(tmp_path / "x.sqlite") as store:
        measured = found(tmp_path, store)
    for verdict in measured.verdicts:
        assert verdict_from_json(json.loads(json.dumps(verdict_to_json(verdict.event)))) == verdict.event
    network = Estimate.of(0.25, measured.network["r", "g"].delays, loss_burst=4, gamma_ns=7, certain_loss=0.125)
    there = estimate_from_json(json.loads(json.dumps(estimate_to_json(network))))
    assert (there, there.delays) == (network, network.delays)


class FakeGroup:
    """A group that delivers the announced verdicts, until it continues without this member."""

    members = (1, 6)

    def __init__(self, hears: int) -> None:
        self.hears = hears
        self.proclaimed: list[list[SlaVerdict]] = []
        self._events: asyncio.Queue[SlaVerdict] = asyncio.Queue()

    def announce_verdicts(self, network: Estimate | None, verdicts: Sequence[SlaVerdict]) -> None:
        self.proclaimed.append(list(verdicts))
        for verdict in verdicts:
            self._events.put_nowait(verdict)

    async def batches(self) -> AsyncIterator[SlaVerdict]:
        for _ in range(self.hears):
            yield await self._events.get()
        raise GroupClosed("the others went on")


def test_a_reporter_that_lost_its_group_resends_undelivered_verdicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MeasurementStore(tmp_path / "x.sqlite") as store:
        measured = found(tmp_path, store)
    broken, cleared = (verdict.event for verdict in measured.verdicts)
    groups = [FakeGroup(hears=1), FakeGroup(hears=2)]
    joined, reports = iter(groups), []

    @asynccontextmanager
    async def joining(*_: object, **__: object) -> AsyncIterator[FakeGroup]:
        yield next(joined)

    async def play() -> None:
        ended = asyncio.Event()

        def report(kind: str, **said: Any) -> None:
            reports.append((kind, said.get("id")))
            if kind == "told" and said["id"] == cleared.id:
                ended.set()

        monkeypatch.setattr(teller, "join_as_member", joining)
        monkeypatch.setattr(teller, "print_report", report)
        monkeypatch.setattr(teller, "REJOIN_AFTER_S", 0)
        scenario, slas = (SCENARIO.read_text(encoding="utf-8"), "s"), (SLA, "a")
        sla_reporter = SlaReporter({"scenario": scenario, "slas": slas, "member": 6, "peers": {}})
        queue: asyncio.Queue[str | None] = asyncio.Queue()
        queue.put_nowait(json.dumps({"verdicts": [verdict_to_json(broken), verdict_to_json(cleared)]}))
        running = asyncio.create_task(sla_reporter.run(queue))
        await asyncio.wait_for(ended.wait(), 20)
        queue.put_nowait(None)
        await running

    asyncio.run(play())
    assert groups[0].proclaimed[-1] == [broken, cleared]
    assert groups[1].proclaimed == [[cleared]]
    confirmed = [said for said in reports if said[0] == "told"]
    assert confirmed == [("told", broken.id), ("told", cleared.id)]
    assert [kind for kind, _ in reports].count("ready") == 2
