"""The project's prose is plain English: these phrases of its former dialect are refused.

The prose of a Python file is its docstrings, its comments, its string literals with a space in them (messages, help
texts, ids of test cases) and the names of its functions and classes, with underscores read as spaces. The prose of a
Markdown page is the text outside code fences. Configuration files are read as a whole. A phrase is also found if it is
broken over lines, comments or adjacent literals.
"""

import ast
import bisect
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]

REFUSED = (
    "whoever",
    "of whom",
    "whom",
    "anew",
    "the gone",
    "is told",
    "are told",
    "in place of",
    "so many",
    "so long",
    "so often",
    "nobody",
    "who is",
    "who has",
    "what is no",
    "as it is there",
    "its like",
)
_PATTERN = re.compile(r"\b(" + "|".join(REFUSED).replace(" ", r"\s+") + r")\b", re.IGNORECASE)

# Up to Python 3.11 an f-string is one STRING token; later versions split it into these.
_FSTRING_START: int = getattr(tokenize, "FSTRING_START", -1)
_FSTRING_MIDDLE: int = getattr(tokenize, "FSTRING_MIDDLE", -1)
_FSTRING_END: int = getattr(tokenize, "FSTRING_END", -1)
_FIELD = re.compile(r"\{[^{}]*(\{[^{}]*\}[^{}]*)*\}")

EXCEPTIONS = {
    "tests/unit/test_prose.py": "lists the phrases and plants them",
}
"""Files that may contain the phrases, with the reason."""

PENDING: frozenset[str] = frozenset()
"""Prefixes of paths that are not checked yet."""


@dataclass(frozen=True)
class Piece:
    """Text that is read as one: a docstring, adjacent literals, a block of comments, a name, a paragraph."""

    parts: tuple[tuple[int, str], ...]  # (line, text on that line)

    def refused(self) -> Iterator[tuple[int, str]]:
        text = "".join(part for _, part in self.parts)
        starts = [0, *accumulate(len(part) for _, part in self.parts)]
        for match in _PATTERN.finditer(text):
            line, _ = self.parts[bisect.bisect_right(starts, match.start()) - 1]
            yield line, " ".join(match[0].lower().split())


def _lines(first: int, text: str) -> Iterator[tuple[int, str]]:
    return enumerate(text.splitlines(keepends=True), start=first)


def _unescape(text: str) -> str:
    """Escaped line ends and tabs become spaces."""
    return re.sub(r"\\[ntr]", "  ", text)


def _literal_text(source: str) -> str:
    """The text between the quotes, with "…" for the replacement fields of an f-string."""
    body = source.lstrip("rRbBuUfF")
    quote = body[:3] if body[:3] in ('"""', "'''") else body[:1]
    text = body[len(quote) : -len(quote)]
    if "f" in source[: -len(body)].lower():
        text = _FIELD.sub("…", text)
    return _unescape(text)


def _comments(tokens: list[tokenize.TokenInfo]) -> Iterator[Piece]:
    """Comments on consecutive lines are one piece."""
    block: list[tuple[int, str]] = []
    for token in tokens:
        if token.type == tokenize.COMMENT:
            line = token.start[0]
            if block and line != block[-1][0] + 1:
                yield Piece(tuple(block))
                block = []
            block.append((line, token.string.lstrip("#") + "\n"))
    if block:
        yield Piece(tuple(block))


def _literals(tokens: list[tokenize.TokenInfo]) -> Iterator[Piece]:
    """Adjacent literals are one piece; a literal without any space is data, not prose."""
    parts: list[tuple[int, str]] = []
    depth = 0  # of f-strings
    for token in tokens:
        if token.type == tokenize.STRING and depth == 0:
            parts.extend(_lines(token.start[0], _literal_text(token.string)))
        elif token.type == _FSTRING_START:
            depth += 1
        elif token.type == _FSTRING_END:
            depth -= 1
        elif token.type == _FSTRING_MIDDLE:
            parts.extend(_lines(token.start[0], _unescape(token.string)))
        elif depth > 0:
            parts.append((token.start[0], "…"))  # a replacement field
        elif token.type not in (tokenize.NL, tokenize.COMMENT):
            if any(" " in text for _, text in parts):
                yield Piece(tuple(parts))
            parts = []


def _names(source: str) -> Iterator[Piece]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield Piece(((node.lineno, node.name.replace("_", " ")),))


def python_prose(source: str) -> Iterator[Piece]:
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    yield from _comments(tokens)
    yield from _literals(tokens)
    yield from _names(source)


def markdown_prose(source: str) -> Iterator[Piece]:
    """Everything outside code fences, cut at the fences."""
    parts: list[tuple[int, str]] = []
    fence = ""
    for line, text in _lines(1, source):
        mark = re.match(r"\s*(```+|~~~+)", text)
        if mark and not fence:
            yield Piece(tuple(parts))
            parts, fence = [], mark[1]
        elif mark and mark[1].startswith(fence):
            fence = ""
        elif not fence:
            parts.append((line, text))
    yield Piece(tuple(parts))


def plain_prose(source: str) -> Iterator[Piece]:
    yield Piece(tuple((line, text.lstrip("#")) for line, text in _lines(1, source)))


def prose(name: str, source: str) -> Iterator[Piece]:
    if name.endswith(".py"):
        return python_prose(source)
    return markdown_prose(source) if name.endswith(".md") else plain_prose(source)


def refused(name: str, source: str) -> list[str]:
    """`file:line: phrase` for each refused phrase of a file, in the order of the lines."""
    found = sorted(hit for piece in prose(name, source) for hit in piece.refused())
    return [f"{name}:{line}: {phrase}" for line, phrase in found]


def _files() -> dict[str, Path]:
    """The files whose prose counts, by their path in the project."""
    python = [
        file for folder in ("src", "tests", "benchmarks", "examples") for file in (PROJECT / folder).rglob("*.py")
    ]
    pages = [PROJECT / page for page in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    pages += (PROJECT / "docs").rglob("*.md")
    settings = [PROJECT / "Makefile", PROJECT / "pyproject.toml"]
    settings += [file for folder in ("scenarios", "slas", "sweeps") for file in (PROJECT / folder).glob("*.toml")]
    return {file.relative_to(PROJECT).as_posix(): file for file in sorted([*python, *pages, *settings])}


def test_prose_is_plain() -> None:
    found = [
        hit
        for name, file in _files().items()
        if name not in EXCEPTIONS and not name.startswith(tuple(PENDING))
        for hit in refused(name, file.read_text("utf-8"))
    ]
    assert not found, f"{len(found)} refused phrases:\n" + "\n".join(found)


def test_every_kind_of_file_is_read() -> None:
    suffixes = {(name.partition("/")[0], file.suffix) for name, file in _files().items()}
    expected = {
        *((folder, ".py") for folder in ("src", "tests", "benchmarks", "examples")),
        *((page, ".md") for page in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs")),
        *((folder, ".toml") for folder in ("scenarios", "slas", "sweeps", "pyproject.toml")),
        ("Makefile", ""),
    }
    assert suffixes == expected


def test_no_exception_is_stale() -> None:
    files = _files()
    unused = [name for name in EXCEPTIONS if not refused(name, files[name].read_text("utf-8"))]
    assert not unused, f"these files need no exception any more: {unused}"
    missing = [prefix for prefix in PENDING if not any(name.startswith(prefix) for name in files)]
    assert not missing, f"PENDING names paths that do not exist: {missing}"


@pytest.mark.parametrize("phrase", REFUSED)
def test_every_phrase_is_found_in_every_kind_of_prose(phrase: str) -> None:
    identifier = phrase.replace(" ", "_")
    python = (
        f'"""A docstring\nwith {phrase.upper()} in it."""\n'  # line 2
        f"x = 1  # with {phrase} after code\n"
        f'raise ValueError("with {phrase} in a message")\n'
        f'y = f"{{x}} and {phrase} of {{x!r}}"\n'
        f"@pytest.mark.parametrize('n', [pytest.param(1, id='with {phrase}')])\n"
        f"def test_{identifier}_in_a_name(n):\n    pass\n"
    )
    assert refused("a.py", python) == [f"a.py:{line}: {phrase}" for line in (2, 3, 4, 5, 6, 7)]
    assert refused("a.md", f"# Title\n\nText with {phrase}, and more.\n") == [f"a.md:3: {phrase}"]
    assert refused("a.toml", f"[group]  # with {phrase}\n") == [f"a.toml:1: {phrase}"]


@pytest.mark.parametrize(
    ("name", "source", "line"),
    [
        pytest.param("a.py", '"""Lines that run\n    so\n    long."""\n', 2, id="docstring"),
        pytest.param("a.py", "x = 1\n# waits so\n# long for it\n", 2, id="comments"),
        pytest.param("a.py", 'x = ("waits so "  # why\n     "long for it")\n', 1, id="literals"),
        pytest.param("a.py", 'x = (f"waits {1} so "\n     "long for it")\n', 1, id="f-string and literal"),
        pytest.param("a.py", 'x = "waits\\nso long"\n', 1, id="after an escaped line end"),
        pytest.param("a.md", "waits so\nlong for it\n", 1, id="Markdown lines"),
        pytest.param("Makefile", "# waits so\n# long for it\n", 1, id="Makefile comments"),
    ],
)
def test_a_phrase_across_a_line_break_is_found(name: str, source: str, line: int) -> None:
    assert refused(name, source) == [f"{name}:{line}: so long"]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        pytest.param("a.py", 'NOBODY = "nobody"\n', id="data without a space"),
        pytest.param("a.py", "nobody = so = long = 1\n", id="names of variables"),
        pytest.param("a.py", 'x = f"so {1} long"\n', id="words around a replacement field"),
        pytest.param("a.py", 'x = ["waits so", "long for it"]\n', id="separate literals"),
        pytest.param("a.py", "# also longer\n# its likeness, renewal\n", id="parts of longer words"),
        pytest.param("a.py", "# waits so\n\n# long for it\n", id="separate comments"),
        pytest.param("a.md", "Run:\n```\nnobody\n```\nthen\n~~~ text\nwhoever\n~~~\n", id="code fences"),
    ],
)
def test_data_and_unrelated_words_pass(name: str, source: str) -> None:
    assert refused(name, source) == []
