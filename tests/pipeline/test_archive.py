"""What is shipped to executors: the whole package, with bytecode that is used only where it is of use."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib.util import cache_from_source
from pathlib import Path

import pytest

import unisono
from unisono.pipeline.session import package_archive

ROOT = Path(unisono.__file__).parent
HISTOGRAM = "unisono/model/delays.py"


def imported(archive: Path) -> str:
    """Where an interpreter that knows nothing else of this package finds one of its modules."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import unisono.model.delays as found; print(found.__file__)"
    done = subprocess.run([sys.executable, "-c", code, archive], capture_output=True, text=True, check=True)
    return str(Path(done.stdout.strip()).relative_to(archive))


def test_every_module_is_there_and_bytecode_only_of_those(tmp_path: Path) -> None:
    with zipfile.ZipFile(package_archive(tmp_path)) as packed:
        names = set(packed.namelist())
    sources = {f"unisono/{path.relative_to(ROOT)}" for path in ROOT.rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == sources
    assert {name for name in names if name.endswith(".pyc")} <= {f"{source}c" for source in sources}


@pytest.mark.parametrize("state", ["good", "of another Python", "of another source"])
def test_bytecode_that_is_of_no_use_is_passed_over(state: str, tmp_path: Path) -> None:
    compiled = Path(cache_from_source(str(ROOT.parent / HISTOGRAM)))
    if not compiled.is_file():
        pytest.skip("this interpreter keeps no bytecode")
    archive, odd = package_archive(tmp_path), tmp_path / "odd.zip"
    with zipfile.ZipFile(archive) as packed, zipfile.ZipFile(odd, "w") as changed:
        for entry in packed.infolist():
            data = packed.read(entry)
            if entry.filename == f"{HISTOGRAM}c" and state == "of another Python":
                data = b"\0\0\r\n" + data[4:]
            elif entry.filename == f"{HISTOGRAM}c" and state == "of another source":
                data = data[:8] + bytes(8) + data[16:]
            changed.writestr(entry, data)
    assert imported(odd) == (f"{HISTOGRAM}c" if state == "good" else HISTOGRAM)
