"""Spark Connect: what is lacking is named at once; with a server, its executors are given this package."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest
from tests.pipeline.standalone import free_port
from tests.recorded_runs import record_run

from unisono.cli.main import ExitStatus, main
from unisono.pipeline.java import java_home

COMMAND = "import sys; from unisono.cli.main import main; sys.exit(main(sys.argv[1:]))"
PATIENCE_S = 600
"""A server writes much into its log, and takes minutes to come up on a busy machine."""
WITHOUT_GRPC = f"import sys; sys.modules['grpc'] = None; {COMMAND}"


def run(folder: Path, code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own: one process has either a session of its own or a server's."""
    script = folder / "command.py"  # pyspark takes `python -c` for its doctests
    script.write_text(code, encoding="utf-8")
    command = [sys.executable, str(script), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


def test_a_server_that_is_not_there_is_named_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record_run(tmp_path, members=2, slots=10, burst=1)
    port = free_port()
    assert main(["verify", str(tmp_path), "--master", f"sc://127.0.0.1:{port}"]) == ExitStatus.ENVIRONMENT
    assert f"no Spark Connect server answers at 127.0.0.1:{port}" in capsys.readouterr().err
    assert main(["verify", str(tmp_path), "--master", "sc://127.0.0.1:many"]) == ExitStatus.BAD_INPUT
    assert "sc://HOST:PORT, not" in capsys.readouterr().err


def test_without_grpc_it_says_what_to_install(tmp_path: Path) -> None:
    record_run(tmp_path, members=2, slots=10, burst=1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        ended = run(
            tmp_path, WITHOUT_GRPC, "verify", str(tmp_path), "--master", f"sc://127.0.0.1:{server.getsockname()[1]}"
        )
    assert ended.returncode == ExitStatus.ENVIRONMENT
    assert "grpcio" in ended.stderr
    assert "pip install 'unisono[connect]'" in ended.stderr
    assert "Traceback" not in ended.stderr


@contextmanager
def connect_server(log: Path) -> Iterator[str]:
    """A Spark Connect server that has never seen this package; where it is."""
    port, home = free_port(), java_home()
    environment = {
        **os.environ,
        **({} if home is None else {"JAVA_HOME": str(home)}),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    environment.pop("PYTHONPATH", None)
    settings = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.ui.enabled": "false",
    }
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2]"]
    command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    with log.open("wb") as said:
        server = subprocess.Popen(
            command, env=environment, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
                break
            except OSError:
                if server.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"no server came up:\n{log.read_text(errors='replace')[-2000:]}") from None
                time.sleep(0.2)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_server_verifies_and_runs_an_experiment(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    folder = record_run(tmp_path / "trace", members=3, slots=600, burst=2)
    with connect_server(tmp_path / "server.log") as master:
        verified = run(tmp_path, COMMAND, "verify", str(folder), "--master", master)
        assert verified.returncode == ExitStatus.SUCCESS, verified.stderr
        assert "verdict: valid" in verified.stdout
        words = ("experiment", "tapas-group-1", "--runs", "20", "--json")
        there, here = (
            run(tmp_path, COMMAND, *words, "--master", master),
            run(tmp_path, COMMAND, *words, "--master", "none"),
        )
        assert there.returncode == here.returncode == ExitStatus.SUCCESS, there.stderr
        assert there.stdout == here.stdout
