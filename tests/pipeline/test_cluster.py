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
from tests.pipeline.standalone import Standalone, standalone
from tests.recorded import record

DRIVER = """
import json, sys
from functools import partial
from pathlib import Path
from unisono.pipeline.session import SparkChoice, spark_session
from unisono.pipeline.verify import on_spark, verify

settings = json.loads(sys.argv[2])
with spark_session(SparkChoice(sys.argv[1], settings=settings)) as session:
    print("ready", flush=True)
    for _ in range(int(sys.argv[4])):
        reports = verify(sys.argv[3], partial(on_spark, session))
        print(json.dumps({r.run: [r.status.value, r.rows] for r in reports}), flush=True)
"""


def driver(cluster: Standalone, trace: Path, times: int) -> subprocess.Popen[str]:
    choice = cluster.choice()
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, choice.master, json.dumps(dict(choice.settings)), str(trace), str(times)],
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.timeout(600)
def test_verification_goes_on_when_a_worker_dies(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    record(trace, members=3, slots=3000, burst=4, range_slots=64)
    with standalone(tmp_path / "cluster") as cluster:
        with driver(cluster, trace, 6) as job:
            assert job.stdout is not None
            assert job.stdout.readline() == "ready\n"
            first = json.loads(job.stdout.readline())
            cluster.kill_worker(0)
            later = [json.loads(line) for line in job.stdout]
        assert job.returncode == 0
        deadline = time.monotonic() + 120
        while cluster.alive() > 1 and time.monotonic() < deadline:
            time.sleep(0.5)
    assert first == {"r": ["valid", 3000 * 4 * (3 + 9)]}
    assert later == [first] * 5
