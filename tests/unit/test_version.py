"""The version is the same everywhere and printed without dependencies; a missing dependency is named."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import unisono
from unisono.cli.main import main

PROJECT = Path(__file__).parents[2]

BLOCKING = """
import runpy, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if any(f"{{name}}.".startswith(f"{{one}}.") for one in {blocked!r}):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
sys.argv[1:] = {words!r}
runpy.run_module("unisono", run_name="__main__", alter_sys=True)
"""


def run_without(blocked: list[str], *words: str) -> subprocess.CompletedProcess[str]:
    """`python -m unisono` in a process in which the named modules cannot be imported."""
    code = BLOCKING.format(blocked=blocked, words=list(words))
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)


def test_pyproject_states_the_same_version() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == unisono.__version__


def test_the_command_line_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"unisono {unisono.__version__}\n"


def test_the_module_prints_the_version_without_the_commands() -> None:
    done = run_without(["numpy", "pyarrow", "rich", "unisono.cli"], "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"unisono {unisono.__version__}\n", "")


def test_the_module_runs_commands_and_passes_their_status_on() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "unisono", "dance"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert "invalid choice: 'dance'" in done.stderr


@pytest.mark.parametrize("package", ["numpy", "pyarrow", "rich"])
def test_a_missing_dependency_is_named(package: str) -> None:
    done = run_without([package], "plan", "--help")
    assert done.returncode == 3
    assert f"needs the package {package}, which is not installed" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_module_of_unisono_itself_is_not_reported_as_a_missing_dependency() -> None:
    done = run_without(["unisono.cli"], "plan", "--help")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
