"""Tests on real processes and sockets use the public face of the package: they show what an application can see."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PROCESS_TESTS = Path(__file__).parents[1] / "process"
EXCEPTIONS = {
    ("test_members.py", "_transport"): "asyncio has no public way to close one pipe of a process",
}
"""By file and name, why a private name is needed."""
NAME_CALLS = frozenset({"setattr", "getattr", "hasattr", "delattr"})
"""Calls that take the name of an attribute as a string."""


def is_private(name: str) -> bool:
    """Whether a name, or the last part of a dotted name, begins with one underscore."""
    last = name.rpartition(".")[2]
    return last.startswith("_") and not last.startswith("__")


def called_name(call: ast.Call) -> str:
    """The last part of the name of the called function."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def private_uses(source: str) -> set[str]:
    """The private names of other objects that a program reads, writes, imports or replaces."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue
            case ast.Attribute(attr=name) if is_private(name):
                found.add(name)
            case ast.ImportFrom(names=names):
                found.update(alias.name for alias in names if is_private(alias.name))
            case ast.Call(args=arguments) if called_name(node) in NAME_CALLS:
                texts = [a.value for a in arguments if isinstance(a, ast.Constant) and isinstance(a.value, str)]
                found.update(text.rpartition(".")[2] for text in texts if is_private(text))
    return found


@pytest.mark.parametrize("path", sorted(PROCESS_TESTS.glob("*.py")), ids=lambda path: path.name)
def test_process_tests_use_no_private_names(path: Path) -> None:
    allowed = {name for file, name in EXCEPTIONS if file == path.name}
    assert private_uses(path.read_text()) == allowed


def test_the_exceptions_name_existing_files() -> None:
    assert all((PROCESS_TESTS / file).exists() for file, _ in EXCEPTIONS)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("group._driver.closed", "_driver"),
        ("group.stack._layers[0] = None", "_layers"),
        ("from unisono.runtime.driver import _queue_cost", "_queue_cost"),
        ("monkeypatch.setattr(group, '_paused', True)", "_paused"),
        ("monkeypatch.setattr('unisono.group.Group._close', print)", "_close"),
        ("getattr(group, '_stack')", "_stack"),
    ],
)
def test_a_private_use_is_found(source: str, name: str) -> None:
    assert private_uses(source) == {name}


def test_own_attributes_and_special_names_are_allowed() -> None:
    assert private_uses("self._tasks.append(group.__aiter__()); cls._count = len(_local)") == set()
