"""Makes Spark sessions. No other module does."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from unisono.errors import InvalidOption, MissingDependency, UnisonoError
from unisono.pipeline.java import use_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_MASTER = "local[*]"
_CONNECT_PORT = 15002
"""The default port of a Spark Connect server."""
_CONNECT_TIMEOUT_S = 10
"""How many seconds a Spark master or Spark Connect server may take to answer."""
_MASTERS = "none, local, local[N], yarn, k8s://…, spark://HOST:PORT or sc://HOST:PORT"
_MASTER = re.compile(r"local(\[(\*|\d+)(, *\d+)?\])?|local-cluster\[.+\]|spark://.+|yarn|k8s://.+|sc://.+")
_MACHINE_ERRORS = (
    "ModuleNotFoundError",
    "ImportError",
    "MemoryError",
    "OSError",
    "PermissionError",
    "FileNotFoundError",
)
"""Errors of a task whose cause is the machine it runs on, and not the data."""
_LOG4J_PROPERTIES = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = spark %p %c{1}: %m%n
"""
DEFAULTS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    "spark.python.worker.reuse": "true",
}
"""The default Spark settings, for small machines and Python code; a configuration file or `settings` overrides them."""
_LOCAL_SETTINGS: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Over TCP between the JVM and its Python workers, a job takes some 45 ms longer.
    "spark.python.unix.domain.socket.enabled": "true",
    # The work is done in Python; a JVM that does not optimise itself is there in half the time.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@dataclass(frozen=True, slots=True)
class SparkChoice:
    """Where Spark runs: a master (`local[2]`, `spark://host:7077`, `yarn`, `k8s://…`) or Spark Connect (`sc://host`)."""

    master: str = LOCAL_MASTER
    config: Path | None = None
    """A TOML file whose table [spark] holds settings, e.g. "executor.memory" = "2g"."""
    settings: Mapping[str, str] = field(default_factory=dict)

    def all_settings(self) -> dict[str, str]:
        """All Spark settings. `settings` overrides the configuration file, which overrides the defaults."""
        found = dict(DEFAULTS)
        if self.is_local:
            found |= _LOCAL_SETTINGS
        if self.config is not None:
            found |= _read_settings(self.config)
        return found | dict(self.settings)

    @property
    def is_local(self) -> bool:
        """Whether Spark runs in one JVM on this machine."""
        return self.master.startswith("local")

    @property
    def is_connect(self) -> bool:
        """Whether the session is a client of a Spark Connect server."""
        return self.master.startswith("sc://")


def _read_settings(path: Path) -> dict[str, str]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise InvalidOption(str(path), f"is not TOML: {error}") from None
    settings = table.get("spark")
    if not isinstance(settings, dict) or set(table) != {"spark"}:
        raise InvalidOption(str(path), "expected exactly one table, named [spark]")
    return {
        f"spark.{name.removeprefix('spark.')}": _setting_text(path, name, value) for name, value in settings.items()
    }


def _setting_text(path: Path, name: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise InvalidOption(f"{path}: [spark] {name}", f"expected a string or a number, not {value!r}")


@contextmanager
def spark_session(choice: SparkChoice | None = None, name: str = "unisono") -> Iterator[SparkSession]:
    """Open a Spark session for a `with` block. The session sends this package to the executors."""
    chosen = choice or SparkChoice()
    _check_master(chosen.master)
    try:
        from py4j.protocol import Py4JError  # noqa: PLC0415 - what Spark needs takes half a second to import
        from pyspark.errors import PySparkException  # noqa: PLC0415
        from pyspark.sql import SparkSession  # noqa: PLC0415
    except ImportError:
        raise MissingDependency("pyspark is not installed: pip install 'unisono[pipeline]'") from None
    with tempfile.TemporaryDirectory(prefix="unisono-spark-") as scratch, _interruptible() as ours:
        builder = SparkSession.builder.appName(name)
        if chosen.is_connect:
            settings = _read_settings(chosen.config) if chosen.config is not None else {}
            try:
                session = builder.remote(chosen.master).getOrCreate()
            except ImportError as error:
                lacks = str(error).partition("] ")[2] or str(error)
                raise MissingDependency(f"Spark Connect: {lacks} (pip install 'unisono[connect]')") from error
            except PySparkException as error:
                problem = str(error).partition("\n")[0]
                raise MissingDependency(f"Spark Connect at {chosen.master}: {problem}") from error
            for key, value in {**settings, **chosen.settings}.items():
                session.conf.set(key, value)
            session.addArtifacts(str(package_archive(Path(scratch))), pyfile=True)
        else:
            use_java()
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            if chosen.is_local:
                os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            quiet = Path(scratch) / "log4j2.properties"
            quiet.write_text(_LOG4J_PROPERTIES, encoding="utf-8")
            settings = chosen.all_settings()
            _append_setting(settings, "spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={quiet}", " ")
            _append_setting(settings, "spark.submit.pyFiles", str(package_archive(Path(scratch))), ",")
            settings |= {"spark.master": chosen.master, "spark.app.name": name}
            said = Path(scratch) / "spark.log"
            try:
                _start(settings, said)
                session = builder.getOrCreate()
            except (PySparkException, Py4JError, OSError, RuntimeError) as error:
                if _interrupted(error):
                    raise KeyboardInterrupt from error
                raise MissingDependency(
                    f"Spark did not start at {chosen.master}: {_start_error(error, said)}"
                ) from error
            ours()
            session.sparkContext.setLogLevel("ERROR")
        try:
            yield session
        except (PySparkException, Py4JError) as error:
            if _interrupted(error):
                raise KeyboardInterrupt from error
            what, in_task = _error_line(error)
            if what.startswith("unisono."):  # an error of ours, by its module and name: what was given is at fault
                raise UnisonoError(what.partition(": ")[2]) from error
            if in_task and not what.startswith(_MACHINE_ERRORS):
                raise  # a mistake of ours: all there is to see is wanted
            raise MissingDependency(f"Spark at {chosen.master} failed: {what}") from error
        finally:
            with suppress(Py4JError, OSError):  # after an interruption it may not answer any more; it ends with us
                session.stop()


def _append_setting(settings: dict[str, str], name: str, value: str, separator: str) -> None:
    """Append a value to a setting that may have values already."""
    settings[name] = separator.join(filter(None, (settings.get(name, ""), value)))


def _check_master(master: str) -> None:
    """Refuse a malformed master URL, and a master that does not answer: Spark would retry silently for minutes."""
    if not _MASTER.fullmatch(master):
        raise InvalidOption("--master", f"expected {_MASTERS}, not {master!r}")
    if master.startswith("sc://"):
        places, what, port = [master.removeprefix("sc://").partition("/")[0]], "Spark Connect server", _CONNECT_PORT
    elif master.startswith("spark://"):
        places, what, port = master.removeprefix("spark://").split(","), "Spark master", 0
    else:
        return
    problems = []
    for place in places:
        try:
            where = urlsplit(f"//{place}")
            host, at = where.hostname or "", where.port or port
        except ValueError as error:
            raise InvalidOption("--master", f"expected {_MASTERS}, not {master!r} ({error})") from None
        if not host or not at:
            raise InvalidOption("--master", f"expected {_MASTERS}, not {master!r}")
        try:
            socket.create_connection((host, at), timeout=_CONNECT_TIMEOUT_S).close()
        except OSError as error:
            problems.append(f"no {what} answers at {host}:{at} ({error})")
    if len(problems) == len(places):
        raise MissingDependency(f"{'; '.join(problems)}. Check that it runs there, and that --master is right")


def _start(settings: Mapping[str, str], log_path: Path) -> None:
    """Start a Spark context with these settings, unless one is running already.

    Its JVM and workers write their output to a file, so that it does not mix with the output of the command. Errors of
    tasks are raised here as exceptions, so none is lost.
    """
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415

    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    gateway = None
    if SparkContext._gateway is None:
        with log_path.open("wb") as log:
            gateway = launch_gateway(conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
    if SparkContext._active_spark_context is None:
        SparkContext(conf=conf, gateway=gateway)


@contextmanager
def _interruptible() -> Iterator[Callable[[], None]]:
    """Let this process, not Spark, handle interruptions (SIGINT).

    Yields a function to call after Spark has started: it replaces Spark's handler by the one installed before. Spark's
    handler may call the JVM in the middle of another call, and logs both calls at length.
    """
    before, main = signal.getsignal(signal.SIGINT), threading.current_thread() is threading.main_thread()

    def quiet(record: logging.LogRecord) -> bool:
        return "py4j" not in Path(record.pathname).parts

    logging.getLogger().addFilter(quiet)

    def ours() -> None:
        if main:
            signal.signal(signal.SIGINT, before)

    try:
        yield ours
    finally:
        logging.getLogger().removeFilter(quiet)


def _interrupted(error: BaseException) -> bool:
    """Whether an error was caused by SIGINT: an interruption during a call of Spark raises an error of Spark."""
    before = error.__cause__ or error.__context__
    return isinstance(error, KeyboardInterrupt) or (before is not None and _interrupted(before))


def _error_line(error: Exception) -> tuple[str, bool]:
    """The line of Spark's error that says what went wrong, and whether it comes from a task's traceback."""
    lines = str(error).splitlines()
    at = next((number for number, line in enumerate(lines) if "Traceback (most recent call last)" in line), len(lines))
    told = [line for line in lines[at + 1 :] if line and not line[0].isspace()]
    return (told or lines or [repr(error)])[0], bool(told)


def _start_error(error: Exception, log_path: Path) -> str:
    """Why Spark did not start: the last error in the JVM's output, or the exception's text if there is none."""
    lines = log_path.read_text(encoding="utf-8", errors="replace").splitlines() if log_path.exists() else []
    told = [line for line in lines if "ERROR" in line or "Exception" in line]
    return told[-1] if told else str(error).partition("\n")[0]


def package_archive(folder: Path) -> Path:
    """Write this package as a zip file from which an executor can import it.

    The zip includes bytecode, if there is any: otherwise each process of an executor would compile the modules. A
    Python of another version uses the source.
    """
    root = Path(__file__).parents[1]
    archive = folder / "unisono.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(root.rglob("*")):
            if path.is_file() and path.suffix in {".py", ".typed"}:
                name = Path("unisono") / path.relative_to(root)
                packed.write(path, name)
                if path.suffix == ".py" and (compiled := Path(cache_from_source(str(path)))).is_file():
                    packed.write(compiled, name.with_suffix(".pyc"))
    return archive


def parallelism(session: SparkSession) -> int:
    """How many Spark tasks can run at the same time."""
    if hasattr(session, "_jsparkSession"):
        return max(1, int(session.sparkContext.defaultParallelism))
    return 4
