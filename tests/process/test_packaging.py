"""Builds wheel and sdist, and installs the wheel into an otherwise empty virtual environment.

Nothing is downloaded: the build uses the installed setuptools, and the wheel is installed without its dependencies.
There, `import unisono` and a group without a trace must work, also with forward error correction, and a command must
name the package that it lacks.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

import unisono

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "src" / "unisono"
OFFLINE = ("--disable-pip-version-check", "--no-input", "--no-cache-dir")
BUILD = ("wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir")
SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"

TWO_MEMBERS = """
import asyncio, sys
import unisono

order = unisono.Vbr(fec=tuple(map(int, sys.argv[3:]))) if sys.argv[3:] else "auto"

async def first_delivery(member, peers):
    async with unisono.join("packaged", member=member, peers=peers, order=order) as group:
        if member == 1:
            await group.send(b"hello")
        async for event in group:
            if isinstance(event, unisono.Delivery):
                return event.sender, event.payload

async def main():
    peers = {1: sys.argv[1], 2: sys.argv[2]}
    return await asyncio.wait_for(asyncio.gather(*(first_delivery(member, peers) for member in peers)), 30)

print(asyncio.run(main()), "numpy" in sys.modules)
"""


def run(command: Sequence[str | os.PathLike[str]], cwd: Path, expect: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command without the Python settings of this environment, and check its exit status."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_"))}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == expect, f"{command}: status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def only_file(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


def digests(wheel: Path) -> dict[str, str]:
    """The files of a wheel, each with its hash, without RECORD, which repeats these names and hashes."""
    with zipfile.ZipFile(wheel) as packed:
        return {
            name: hashlib.sha256(packed.read(name)).hexdigest()
            for name in packed.namelist()
            if not name.endswith("/RECORD")
        }


@dataclass(frozen=True)
class Built:
    """The files that one build creates."""

    wheel: Path
    sdist: Path
    wheel_of_sdist: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Wheel and sdist of a copy of the project, and a wheel built from that sdist."""
    folder = tmp_path_factory.mktemp("packaging")
    ignored = (PROJECT / ".gitignore").read_text(encoding="utf-8").split()
    copy = folder / "copy"
    shutil.copytree(PROJECT, copy, ignore=shutil.ignore_patterns(".git", *(name.rstrip("/") for name in ignored)))
    pip = (sys.executable, "-m", "pip", *OFFLINE)
    for name in ("wheel", "sdist", "wheel_of_sdist"):
        (folder / name).mkdir()
    run([sys.executable, "-c", SDIST, folder / "sdist"], cwd=copy)
    sdist = only_file(folder / "sdist")
    run([*pip, *BUILD, folder / "wheel_of_sdist", sdist], cwd=folder)
    run([*pip, *BUILD, folder / "wheel", copy], cwd=folder)
    return Built(only_file(folder / "wheel"), sdist, only_file(folder / "wheel_of_sdist"))


@pytest.fixture(scope="module")
def empty(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of a virtual environment that contains only the wheel."""
    home = tmp_path_factory.mktemp("empty") / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, *OFFLINE)
    run([*pip, "install", "--quiet", "--no-index", "--no-deps", built.wheel], cwd=home)
    return home / "bin"


def test_the_wheel_contains_only_the_package(built: Built) -> None:
    source = {
        f"unisono/{file.relative_to(PACKAGE).as_posix()}"
        for file in PACKAGE.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    packed = set(digests(built.wheel))
    metadata = {name for name in packed if PurePosixPath(name).parts[0].endswith(".dist-info")}
    assert "unisono/py.typed" in packed
    assert packed - metadata == source
    assert {PurePosixPath(name).name for name in metadata} >= {"METADATA", "WHEEL", "LICENSE", "entry_points.txt"}


def test_the_file_names_contain_the_version(built: Built) -> None:
    assert built.wheel.name == f"unisono-{unisono.__version__}-py3-none-any.whl"
    assert built.sdist.name == f"unisono-{unisono.__version__}.tar.gz"


def test_the_sdist_builds_the_same_wheel(built: Built) -> None:
    assert digests(built.wheel_of_sdist) == digests(built.wheel)


def test_the_sdist_contains_no_tests(built: Built) -> None:
    with tarfile.open(built.sdist) as packed:
        names = packed.getnames()
    assert any(name.endswith("/src/unisono/py.typed") for name in names)
    assert not [name for name in names if "tests" in PurePosixPath(name).parts]


def test_only_the_package_is_installed(empty: Path) -> None:
    code = "import importlib.metadata as m; print(sorted(found.name for found in m.distributions()))"
    assert run([empty / "python", "-I", "-c", code], cwd=empty).stdout.strip() == "['unisono']"


def test_the_version_needs_no_dependency(empty: Path) -> None:
    code = "import unisono; print(unisono.__version__, unisono.__file__)"
    version, file = run([empty / "python", "-I", "-c", code], cwd=empty).stdout.split()
    assert version == unisono.__version__
    assert Path(file).is_relative_to(empty.parent)
    for command in ([empty / "python", "-I", "-m", "unisono"], [empty / "unisono"]):
        assert run([*command, "--version"], cwd=empty).stdout == f"unisono {unisono.__version__}\n"


def test_a_command_names_the_package_that_it_lacks(empty: Path) -> None:
    done = run([empty / "unisono", "plan", "--help"], cwd=empty, expect=3)
    missing = re.search(r"needs the package (\w+), which is not installed", done.stderr)
    assert missing
    assert missing[1] in {"numpy", "pyarrow", "rich"}
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("fec", [(), ("1", "3")])
def test_a_group_without_a_trace_needs_no_dependency(empty: Path, fec: tuple[str, ...]) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as one, socket.socket(type=socket.SOCK_DGRAM) as two:
        for each in (one, two):
            each.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in (one, two)]
    done = run([empty / "python", "-I", "-c", TWO_MEMBERS, *addresses, *fec], cwd=empty)
    assert done.stdout.strip() == "[(1, b'hello'), (1, b'hello')] False"
