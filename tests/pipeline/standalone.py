"""A real standalone Spark cluster on this machine: a master and workers as processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark

from unisono.pipeline.java import java_home
from unisono.pipeline.session import SparkChoice

PATIENCE_S = 180
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that does not live long enough for its own optimisation to pay."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Standalone:
    """A master and its workers; `kill_worker` takes one away, with the executor that it runs."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        self._page = free_port()
        port = free_port()
        self.master = f"spark://127.0.0.1:{port}"
        home = java_home()
        self._environment = {
            **os.environ,
            **({} if home is None else {"JAVA_HOME": str(home)}),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED,
            "PYSPARK_PYTHON": sys.executable,
        }
        self._environment.pop("PYTHONPATH", None)  # what executors know of this package is what is shipped to them
        self._processes: list[subprocess.Popen[bytes]] = []
        place = ("--host", "127.0.0.1")
        self._start("master.Master", *place, "--port", str(port), "--webui-port", str(self._page))
        self._await_workers(0)
        for number in range(workers):
            work = str(folder / f"work{number}")
            size = ("--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", work)
            self._start("worker.Worker", *place, *size, self.master)
        self._await_workers(workers)

    def _start(self, role: str, *arguments: str) -> None:
        command = Path(pyspark.__file__).parent / "bin" / "spark-class"
        log = (self._folder / f"{len(self._processes)}.log").open("wb")
        with log:
            self._processes.append(
                subprocess.Popen(
                    [command, f"org.apache.spark.deploy.{role}", *arguments],
                    env=self._environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def alive(self) -> int:
        """How many workers the master counts."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._page}/json/", timeout=10) as page:
            state = json.load(page)
        return sum(worker["state"] == "ALIVE" for worker in state["workers"])

    def _await_workers(self, count: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                if self.alive() >= count:
                    return
            except OSError:
                pass  # the page is not up yet
            if time.monotonic() > deadline:
                logs = "\n".join(log.read_text(errors="replace")[-2000:] for log in sorted(self._folder.glob("*.log")))
                raise TimeoutError(f"the cluster did not come up in {PATIENCE_S} s:\n{logs}")
            time.sleep(0.2)

    def kill_worker(self, number: int) -> None:
        """Kill a worker and its executors at once, as a machine that fails does."""
        os.killpg(self._processes[1 + number].pid, signal.SIGKILL)
        listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
        for line in listed.splitlines():
            pid, _, command = line.strip().partition(" ")
            if str(self._folder / f"work{number}") in command:
                os.kill(int(pid), signal.SIGKILL)

    def choice(self) -> SparkChoice:
        """How to reach it."""
        return SparkChoice(
            self.master,
            settings={
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.extraJavaOptions": SHORT_LIVED,
                "spark.executor.extraJavaOptions": SHORT_LIVED,
                "spark.executor.memory": "512m",
                "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            },
        )

    def stop(self) -> None:
        for process in reversed(self._processes):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def standalone(folder: Path, workers: int = 2) -> Iterator[Standalone]:
    cluster = Standalone(folder, workers)
    try:
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
