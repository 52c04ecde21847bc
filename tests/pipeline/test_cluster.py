"""A real standalone cluster that has never seen this package: work is done there, and a dead worker loses nothing.

These run in a process of their own: a session of this test must not meet the local one of the others.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.metric_streams import SLA, append_rows, interval_rows, lossy_between, write_run
from tests.pipeline.standalone import Standalone, standalone
from tests.recorded_runs import record_run

from unisono.experiments.catalogue import find_experiment, run_task
from unisono.experiments.experiment import result_rows, split_into_tasks
from unisono.model.text.sla import parse_slas
from unisono.pipeline.measurement import MeasurementJob, measure_in_process
from unisono.trace.metrics import readable_offsets

DRIVER = """
import json, sys
from functools import partial
from pathlib import Path
from unisono.experiments.catalogue import find_experiment
from unisono.experiments.experiment import result_rows, split_into_tasks
from unisono.pipeline.experiments import run_experiment
from unisono.pipeline.session import SparkChoice, spark_session
from unisono.pipeline.verify import on_spark, verify

settings = json.loads(sys.argv[2])
experiment = find_experiment("tapas-group-1")
work = split_into_tasks(experiment, 400)
with spark_session(SparkChoice(sys.argv[1], settings=settings)) as session:
    print("ready", flush=True)
    for _ in range(int(sys.argv[4])):
        reports = verify(sys.argv[3], partial(on_spark, session))
        rows = result_rows(experiment, run_experiment(session, experiment, work, None, lambda *_: None))
        found = {r.run: [r.status.value, r.rows] for r in reports}
        print(json.dumps({"verified": found, "means": [row["broadcasts_mean"] for row in rows]}), flush=True)
"""


def driver(cluster: Standalone, trace: Path, times: int) -> subprocess.Popen[str]:
    choice = cluster.choice()
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, choice.master, json.dumps(dict(choice.settings)), str(trace), str(times)],
        stdout=subprocess.PIPE,
        text=True,
    )


STREAM = """
import json, sys
from pathlib import Path
from unisono.model.text.sla import parse_slas
from unisono.pipeline.measurement import MeasurementJob, measure_on_spark
from unisono.pipeline.session import SparkChoice
from unisono.trace.metrics import readable_offsets

master, settings, trace, keep, sla = sys.argv[1:6]
slas = parse_slas(Path(sla).read_text(encoding="utf-8"), sla)
job = MeasurementJob(Path(trace), slas, Path(keep), trigger_ns=200_000_000)
with measure_on_spark(job, SparkChoice(master, settings=json.loads(settings)), lambda _: None) as running:
    print("ready", flush=True)
    for _ in sys.stdin:
        while not running.has_processed(readable_offsets(trace, {})):
            running.wait(1)
        print(running.service.rows, json.dumps([v.id for v in running.store.verdicts()]), flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_stream_goes_on_when_a_worker_dies(tmp_path: Path) -> None:
    trace, loss = tmp_path / "trace", lossy_between(4, 8)
    (tmp_path / "sla.toml").write_text(SLA, encoding="utf-8")
    write_run(trace, 2, loss)
    with standalone(tmp_path / "cluster") as cluster:
        choice = cluster.choice()
        words = [choice.master, json.dumps(dict(choice.settings)), trace, tmp_path / "keep", tmp_path / "sla.toml"]
        command = [sys.executable, "-c", STREAM, *map(str, words)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
            assert job.stdin is not None
            assert job.stdout is not None
            assert job.stdout.readline() == "ready\n"
            for number in range(2, 16):
                if number == 6:
                    cluster.kill_worker(0)
                for member in (1, 2, 3):
                    append_rows(trace, member, interval_rows(member, (1, 2, 3), number, loss))
                job.stdin.write("go on\n")
                job.stdin.flush()
                rows, _, found = job.stdout.readline().partition(" ")
                assert int(rows) == (number + 1) * 3 * 11
            job.stdin.close()
        assert job.returncode == 0
    slas = parse_slas(SLA, "sla.toml")
    with measure_in_process(MeasurementJob(trace, slas, tmp_path / "other", 1_000_000), lambda _: None) as running:
        while not running.has_processed(readable_offsets(trace, {})):
            running.wait(1)
        expected = [verdict.id for verdict in running.store.verdicts()]
    assert json.loads(found) == expected
    assert len(expected) == 2


@pytest.mark.timeout(600)
def test_verification_and_an_experiment_go_on_when_a_worker_dies(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    record_run(trace, members=3, slots=3000, burst=4, range_slots=64)
    with standalone(tmp_path / "cluster") as cluster:
        with driver(cluster, trace, 3) as job:  # before it dies, when it dies, and without it
            assert job.stdout is not None
            assert job.stdout.readline() == "ready\n"
            first = json.loads(job.stdout.readline())
            cluster.kill_worker(0)
            later = [json.loads(line) for line in job.stdout]
        assert job.returncode == 0
        deadline = time.monotonic() + 120
        while cluster.alive() > 1 and time.monotonic() < deadline:
            time.sleep(0.5)
    experiment = find_experiment("tapas-group-1")
    here = result_rows(experiment, map(run_task, split_into_tasks(experiment, 400)))
    assert first["verified"] == {"r": ["valid", 3000 * 4 * (3 + 9)]}
    assert first["means"] == [row["broadcasts_mean"] for row in here], "the table of a single process"
    assert later == [first] * 2
