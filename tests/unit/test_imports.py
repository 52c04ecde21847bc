"""Rules for the parts, the top-level modules and packages of `unisono`, checked in one `ast` pass.

`MAY_IMPORT` is the map of allowed imports. docs/architecture.md shows the same table, and a test compares the two:
change both to add a part or to allow an import. The checker reads source text, so planted breaches pass through the
same function as the real files.
"""

import ast
import graphlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "src" / "unisono"

# Part -> other parts that it may import. Each module at the top of the package is a part.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "errors": (),
    "model": ("errors",),
    "wire": ("errors", "model"),
    "net": ("errors", "model", "wire"),
    "agreement": ("errors", "model", "wire", "net"),
    "orders": ("errors", "model", "wire", "net", "agreement"),
    "stack": ("errors", "model", "wire", "net", "agreement", "orders"),
    "qos": ("errors", "model", "wire", "net", "agreement", "orders", "stack"),
    "trace": ("errors", "model"),
    "check": ("errors", "model", "trace"),
    "sim": ("errors", "model", "wire", "net", "agreement", "orders", "stack", "qos", "trace"),
    "config": ("errors", "model", "qos", "trace"),
    "runtime": ("errors", "model", "wire", "net", "agreement", "orders", "stack", "qos", "trace", "config"),
    "group": ("errors", "model", "net", "agreement", "orders", "stack", "qos", "trace", "config", "runtime"),
    "replica": ("errors", "model", "net", "agreement", "orders", "group"),
    "experiments": ("errors", "model", "net", "agreement", "orders", "stack", "qos", "trace", "sim", "check"),
    "pipeline": (
        "errors",
        "model",
        "net",
        "agreement",
        "orders",
        "stack",
        "qos",
        "trace",
        "sim",
        "check",
        "experiments",
    ),
    "cluster": ("errors", "model", "stack", "qos", "trace", "check", "config", "runtime", "group", "replica"),
    "testing": ("errors", "model", "runtime", "group"),
    "__init__": ("errors", "model", "qos", "config", "group"),
    "cli": (
        *("errors", "model", "wire", "net", "agreement", "orders", "stack", "qos", "trace", "check", "sim", "config"),
        *("runtime", "group", "cluster", "replica", "experiments", "pipeline", "testing", "__init__"),
    ),
    "__main__": ("cli", "__init__"),
}

# In these parts time and randomness are arguments, and there is no I/O.
PURE_PARTS = frozenset({"errors", "model", "wire", "net", "agreement", "orders", "stack", "qos", "check"})
IMPURE_MODULES = frozenset(
    {
        *("time", "datetime", "random", "secrets", "uuid"),
        *("asyncio", "concurrent", "multiprocessing", "signal", "subprocess", "threading"),
        *("logging", "os", "select", "selectors", "socket"),
    }
)

# In these parts the same seed gives the same run, so no set is iterated in hash order.
SEEDED_PARTS = PURE_PARTS | {"sim", "trace", "replica", "experiments"}
ORDER_KEEPING_CALLS = frozenset({"list", "tuple", "enumerate", "reversed", "iter"})

VAGUE_NAMES = frozenset({"util", "utils", "helper", "helpers", "manager", "managers", "common"})
UNFINISHED = re.compile(r"\b(TODO|FIXME)\b")
LONGEST_FUNCTION_LINES = 70
# Functions that may be longer until their part of the package is rewritten.
LONG_FUNCTIONS = frozenset({"join", "_all_equal"})


@dataclass(frozen=True)
class Breach:
    path: PurePosixPath  # relative to src/unisono
    line: int
    rule: str
    found: str

    def __str__(self) -> str:
        return f"src/unisono/{self.path}:{self.line}: [{self.rule}] {self.found}"


def part_of(path: PurePosixPath) -> str:
    return path.parts[0].removesuffix(".py")


def imported_modules(tree: ast.Module, path: PurePosixPath) -> Iterator[tuple[int, str]]:
    """Every module that a file imports anywhere, by its absolute name."""
    package = ("unisono", *path.parent.parts)
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = package[: len(package) - level + 1] if level else ()
                origin = ".".join((*base, module) if module else base)
                # The imported name may be a part (`from unisono import model`), so it is part of the path.
                yield from ((node.lineno, f"{origin}.{alias.name}") for alias in names)
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_]):
                yield node.lineno, name
            case ast.Call(func=ast.Name(id="import_module" | "__import__"), args=[ast.Constant(value=str(name)), *_]):
                yield node.lineno, name
            case _:
                pass


def imported_part(module: str) -> str:
    """The part of a dotted name under `unisono`; a name in no part comes from the package's `__init__`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else "__init__"


def import_breaches(tree: ast.Module, path: PurePosixPath) -> Iterator[Breach]:
    part = part_of(path)
    if part not in MAY_IMPORT:
        yield Breach(path, 1, "parts", f"{part} is not in the map: add it to MAY_IMPORT and docs/architecture.md")
    for line, module in imported_modules(tree, path):
        top = module.split(".")[0]
        if top == "unisono":
            target = imported_part(module)
            if target not in (part, *MAY_IMPORT.get(part, ())):
                yield Breach(path, line, "imports", f"{part} may not import {target} ({module})")
        elif top in IMPURE_MODULES and part in PURE_PARTS:
            yield Breach(path, line, "purity", f"{part} may not import {top}: pass time, randomness and I/O in")
        elif top == "pyspark" and part != "pipeline":
            yield Breach(path, line, "pyspark", f"only pipeline imports pyspark, not {part}")


def is_hash_ordered(iterable: ast.expr) -> bool:
    match iterable:
        case ast.Set() | ast.SetComp() | ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case ast.BinOp(left=left, op=ast.BitOr() | ast.BitAnd() | ast.BitXor() | ast.Sub(), right=right):
            return is_hash_ordered(left) or is_hash_ordered(right)
        case ast.Call(func=ast.Name(id=name), args=[first, *_]) if name in ORDER_KEEPING_CALLS:
            return is_hash_ordered(first)
        case _:
            return False


def loops(tree: ast.Module) -> Iterator[ast.expr]:
    """The iterables of all loops whose order matters: not set comprehensions, nor generators."""
    for node in ast.walk(tree):
        match node:
            case ast.For(iter=iterable):
                yield iterable
            case ast.ListComp(generators=generators) | ast.DictComp(generators=generators):
                yield from (generator.iter for generator in generators)
            case _:
                pass


def text_breaches(tree: ast.Module, path: PurePosixPath, source: str) -> Iterator[Breach]:
    lines = source.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > LONGEST_FUNCTION_LINES and node.name not in LONG_FUNCTIONS:
                yield Breach(
                    path, node.lineno, "length", f"{node.name} has {length} lines, not {LONGEST_FUNCTION_LINES}"
                )
    for number, line in enumerate(lines, start=1):
        if mark := UNFINISHED.search(line):
            yield Breach(path, number, "unfinished", f"{mark[0]} in the source: finish it or open an issue")
    for part in path.with_suffix("").parts:
        if VAGUE_NAMES.intersection(part.split("_")):
            yield Breach(path, 1, "names", f"{part} does not describe its contents")
    if path.name == "__init__.py" and not ast.get_docstring(tree):
        yield Breach(path, 1, "docstring", "the __init__ of a package must describe its contents")


def breaches(path: PurePosixPath, source: str) -> list[Breach]:
    """All breaches in one file, whose path is relative to src/unisono."""
    tree = ast.parse(source)
    part = part_of(path)
    found = [*import_breaches(tree, path), *text_breaches(tree, path, source)]
    if part != "cli":
        found += [
            Breach(path, node.lineno, "print", f"{part} may not print: only cli writes to the terminal")
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        ]
    if part in SEEDED_PARTS:
        found += [
            Breach(path, iterable.lineno, "hash order", "iterates a set: sort it, or keep a dict or a tuple")
            for iterable in loops(tree)
            if is_hash_ordered(iterable)
        ]
    return found


def test_every_file_keeps_the_rules() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert files, f"no source under {PACKAGE}"
    found = [
        breach
        for file in files
        for breach in breaches(PurePosixPath(file.relative_to(PACKAGE).as_posix()), file.read_text("utf-8"))
    ]
    assert not found, "\n" + "\n".join(map(str, found))


def test_only_the_stack_accesses_its_order_and_layers() -> None:
    inside = re.compile(r"\bstack\.(order|door|clock_check)\b")
    found = [
        f"{file.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for file in sorted(PACKAGE.rglob("*.py"))
        if file.name != "stack.py"
        for number, line in enumerate(file.read_text("utf-8").splitlines(), start=1)
        if inside.search(line)
    ]
    assert not found, "\n" + "\n".join(found)


def test_every_folder_with_code_is_a_package() -> None:
    folders = sorted({file.parent for file in PACKAGE.rglob("*.py")})
    bare = [str(folder.relative_to(PROJECT)) for folder in folders if not (folder / "__init__.py").exists()]
    assert not bare, f"these folders need an __init__.py to be part of the installed package: {bare}"


# Path, source, and the expected line and rule.
PLANTED = [
    ("model/units.py", "from unisono.wire import frame\n", 1, "imports"),
    ("model/units.py", "from unisono import wire\n", 1, "imports"),
    ("model/units.py", "from ..wire.frame import Frame\n", 1, "imports"),
    ("model/units.py", "import unisono\n", 1, "imports"),
    ("model/units.py", "from unisono import Group\n", 1, "imports"),
    ("errors.py", "from .model import Rate\n", 1, "imports"),
    ("net/services/fifo.py", "from unisono.orders.vbr.order import VbrOrder\n", 1, "imports"),
    ("net/services/fifo.py", "def late():\n    from unisono.stack import Stack\n", 2, "imports"),
    ("sim/world.py", "import unisono.runtime.driver\n", 1, "imports"),
    ("runtime/driver.py", "import unisono.sim.world as world\n", 1, "imports"),
    ("runtime/driver.py", "x = importlib.import_module('unisono.cli.main')\n", 1, "imports"),
    ("trace/rows.py", "from unisono.check import order\n", 1, "imports"),
    ("check/order.py", "from unisono.sim import world\n", 1, "imports"),
    ("group.py", "from unisono.cli import main\n", 1, "imports"),
    ("__init__.py", '"""Face."""\nfrom .runtime.driver import Driver\n', 2, "imports"),
    ("bridge/map.py", "x = 1\n", 1, "parts"),
    ("transport.py", "x = 1\n", 1, "parts"),
    ("orders/vbr/order.py", "import time\n", 1, "purity"),
    ("orders/vbr/order.py", "x = 1\nfrom random import Random\n", 2, "purity"),
    ("stack.py", "import os.path\n", 1, "purity"),
    ("check/order.py", "import logging\n", 1, "purity"),
    ("wire/seal.py", "from secrets import token_bytes\n", 1, "purity"),
    ("qos/plan.py", "def f():\n    import asyncio.queues\n", 2, "purity"),
    ("check/order.py", "from pyspark.sql import functions\n", 1, "pyspark"),
    ("cli/verify.py", "import pyspark\n", 1, "pyspark"),
    ("wire/utils.py", "x = 1\n", 1, "names"),
    ("runtime/socket_helpers.py", "x = 1\n", 1, "names"),
    ("sim/common/clock.py", "x = 1\n", 1, "names"),
    ("runtime/driver.py", "def f():\n    print('late')\n", 2, "print"),
    ("sim/world.py", "x = 1\n# TODO later\n", 2, "unfinished"),
    ("cli/demo.py", "x = 'FIXME'\n", 1, "unfinished"),
    ("wire/__init__.py", "from .frame import Frame\n", 1, "docstring"),
    ("sim/world.py", "x = 1\ndef f():\n" + "    x = 1\n" * 70, 2, "length"),
    ("orders/vbr/order.py", "for x in {1, 2}:\n    pass\n", 1, "hash order"),
    ("orders/vbr/order.py", "for x in set(y):\n    pass\n", 1, "hash order"),
    ("stack.py", "def f(y):\n    for x in frozenset(y) - {1}:\n        pass\n", 2, "hash order"),
    ("sim/world.py", "for n, x in enumerate({z for z in y}):\n    pass\n", 1, "hash order"),
    ("net/services/fifo.py", "x = [y for y in set(z)]\n", 1, "hash order"),
]


@pytest.mark.parametrize(("path", "source", "line", "rule"), PLANTED)
def test_a_planted_breach_is_found_and_named(path: str, source: str, line: int, rule: str) -> None:
    (breach,) = breaches(PurePosixPath(path), source)
    assert (breach.line, breach.rule) == (line, rule)
    assert str(breach).startswith(f"src/unisono/{path}:{line}: [{rule}] ")


LAWFUL = [
    ("model/units.py", "from .rates import Rate\nfrom ..errors import UnisonoError\nimport enum\n"),
    ("orders/vbr/order.py", "from unisono.net import layer\nfrom unisono import errors, model\n"),
    ("sim/world.py", "import heapq\nimport random\nfrom unisono.stack import Stack\n"),
    ("runtime/driver.py", "import asyncio, socket, time, os, logging\nfrom unisono.trace import rows\n"),
    ("pipeline/verify.py", "from pyspark.sql import functions\nfrom unisono.check import order\n"),
    ("cli/demo.py", "import unisono\nfrom unisono.runtime import cluster\nprint(cluster)\n"),
    ("orders/vbr/order.py", "for x in sorted({1, 2}):\n    pass\n"),
    ("orders/vbr/order.py", "for x in {1: 2}:\n    pass\nfor y in dict(a=1) | {2: 3}:\n    pass\n"),
    ("orders/vbr/order.py", "x = {y for y in set(z)}\nq = any(y for y in set(z))\n"),
    ("runtime/driver.py", "for x in set(y):\n    pass\n"),
    ("sim/world.py", "x = 1\n" * 900 + "def f():\n" + "    x = 1\n" * 69),
    ("replica/rollback.py", "console.print('a method, not the builtin')\n"),
]


@pytest.mark.parametrize(("path", "source"), LAWFUL)
def test_valid_source_passes(path: str, source: str) -> None:
    assert breaches(PurePosixPath(path), source) == []


def reachable(part: str) -> set[str]:
    return {part}.union(*(reachable(other) for other in MAY_IMPORT[part]))


def test_the_map_has_no_cycle() -> None:
    graphlib.TopologicalSorter(MAY_IMPORT).prepare()  # raises CycleError with the cycle
    assert [part for part, targets in MAY_IMPORT.items() if "cli" in targets] == ["__main__"]
    assert not [part for part, targets in MAY_IMPORT.items() if "__main__" in targets]
    assert set(MAY_IMPORT["cli"]) == MAY_IMPORT.keys() - {"cli", "__main__"}
    assert "runtime" not in reachable("sim")
    assert "sim" not in reachable("runtime")


def test_the_map_has_exactly_the_existing_parts() -> None:
    existing = {part_of(PurePosixPath(file.relative_to(PACKAGE).as_posix())) for file in PACKAGE.rglob("*.py")}
    assert existing == MAY_IMPORT.keys()


def test_the_documentation_shows_the_same_map() -> None:
    text = (PROJECT / "docs" / "architecture.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|$", text, flags=re.MULTILINE)
    documented = {part: set(re.findall(r"`(\w+)`", targets)) for part, targets in rows}
    # The page states above the table that all parts may import errors, and that cli may import all parts.
    assert documented.pop("cli", None) == {"__main__", "cli"}
    assert documented == {part: set(targets) - {"errors"} for part, targets in MAY_IMPORT.items() if part != "cli"}
