"""docs/architecture.md: the files, folders and functions that it names exist, and it names every folder of the package.

test_rooms.py compares its table of rooms with the imports.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "src" / "unisono"
TEXT = (PROJECT / "docs" / "architecture.md").read_text(encoding="utf-8")
TREE = TEXT.split("## What the project is made of")[1].split("\n## ")[0]
WALK = TEXT.split("## The path of one message")[1].split("\n## ")[0]

_ROW = re.compile(r"^\| (`[^|]*`) \|[^|]*\|([^|]*)\|$", re.MULTILINE)


def code(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", text)


@cache
def functions_of_package() -> frozenset[str]:
    """Every function of the package, methods as Class.method."""
    found = set()
    for file in PACKAGE.rglob("*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.ClassDef):
                inner = (part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef))
                found.update(f"{node.name}.{part.name}" for part in inner)
    return frozenset(found)


def test_every_path_exists() -> None:
    text = TEXT.replace(TREE, "")
    paths = [word for word in code(text) if re.fullmatch(r"[\w./]+(\.py|/)", word) and "/" in word]
    assert len(paths) > 50
    assert not [path for path in paths if not (PACKAGE / path).exists() and not (PROJECT / path).exists()]


def test_the_tree_names_every_folder_and_its_central_files() -> None:
    rows = _ROW.findall(TREE)
    named = {word.rstrip("/") for first, _ in rows for word in code(first)}
    folders = {file.parent.relative_to(PACKAGE).as_posix() for file in PACKAGE.rglob("__init__.py")} - {"."}
    modules = {file.name for file in PACKAGE.glob("*.py")} - {"__init__.py"}
    families = {"qos"}  # only its parts have code
    assert folders | modules <= named | families
    for first, files in rows:
        (folder, *_) = code(first)
        assert (PACKAGE / folder).exists(), folder
        assert not [file for file in code(files) if not (PACKAGE / folder / file).is_file()], first


def test_every_function_on_the_walk_exists() -> None:
    named = [word for word in code(WALK) if re.fullmatch(r"[A-Z]\w+\.\w+", word)]
    assert len(named) > 30
    assert not [word for word in named if word not in functions_of_package()]
