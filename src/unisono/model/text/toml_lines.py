"""Finds the line of each key in a TOML text, which the standard parser does not report.

Use it only on text that the parser has accepted. Keys are named as `TomlTable` names them: `collect`,
`adaptation.margin`, `sla[2].bound`. A key inside an inline table has the line at which that table begins.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping

_KEY_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_KEY = re.compile(rf"\s*({_KEY_PART}(?:\s*\.\s*{_KEY_PART})*)\s*=")
_HEADER = re.compile(rf"\s*(\[\[?)\s*({_KEY_PART}(?:\s*\.\s*{_KEY_PART})*)\s*\]")
_PART = re.compile(_KEY_PART)
_TOKEN = re.compile(r'"""|\'\'\'|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|[\[\]{}#]')
_AT_LINE = re.compile(r"\(at line (\d+), column \d+\)")


def key_lines(text: str) -> dict[str, int]:
    """The line of each key and each table's header, counted from 1."""
    found: dict[str, int] = {}
    counts: dict[str, int] = {}
    table = ""
    value = _OpenValue()
    for number, line in enumerate(text.splitlines(), start=1):
        if value.is_open():
            value.read(line)
            continue
        if header := _HEADER.match(line):
            table = _header_path(_parts(header[2]), counts, is_array=header[1] == "[[")
            found.setdefault(table, number)
        elif key := _KEY.match(line):
            path = table
            for part in _parts(key[1]):
                path = f"{path}.{part}" if path else part
                found.setdefault(path, number)
            value.read(line[key.end() :])
    return found


def line_of(text: str, field: str) -> int:
    """The line of a field, or of the innermost key that encloses it; 1 if there is none."""
    return nearest_line(key_lines(text), field)


def nearest_line(lines: Mapping[str, int], field: str) -> int:
    """The same as `line_of`, given the result of `key_lines`."""
    while field:
        if field in lines:
            return lines[field]
        field = field[: max(field.rfind("."), field.rfind("["), 0)]
    return 1


def syntax_line(text: str, error: tomllib.TOMLDecodeError) -> int:
    """The line at which a text stops being TOML."""
    position = _AT_LINE.search(str(error))
    return int(position[1]) if position else max(1, len(text.splitlines()))


def _parts(key: str) -> list[str]:
    """The parts of a dotted key, without quotes."""
    return [part[1:-1] if part[0] in "\"'" else part for part in _PART.findall(key)]


def _header_path(parts: list[str], counts: dict[str, int], *, is_array: bool) -> str:
    """The path of a header, with the number of the latest table of each list."""
    path = ""
    for position, part in enumerate(parts):
        path = f"{path}.{part}" if path else part
        if is_array and position == len(parts) - 1:
            counts[path] = counts.get(path, 0) + 1
        if path in counts:
            path = f"{path}[{counts[path]}]"
    return path


class _OpenValue:
    """Follows the value after an equals sign to find the line on which it ends."""

    def __init__(self) -> None:
        self._depth = 0
        self._quotes = ""

    def is_open(self) -> bool:
        """Whether the value continues on the next line."""
        return self._depth > 0 or bool(self._quotes)

    def read(self, rest: str) -> None:
        at = 0
        while at < len(rest):
            if self._quotes:
                end = _end_of(rest, at, self._quotes)
                if end < 0:
                    return
                at, self._quotes = end, ""
                continue
            token = _TOKEN.search(rest, at)
            if token is None or token[0] == "#":
                return
            at = token.end()
            if token[0] in {'"""', "'''"}:
                self._quotes = token[0]
            elif token[0] in "[{":
                self._depth += 1
            elif token[0] in "]}":
                self._depth -= 1


def _end_of(text: str, at: int, quotes: str) -> int:
    """The position after the quotes that end a multi-line string; -1 if they are not in this line."""
    while (found := text.find(quotes, at)) >= 0:
        before = len(text[:found]) - len(text[:found].rstrip("\\"))
        if quotes == "'''" or before % 2 == 0:
            end = found + 3
            # One or two more quotes belong to the string: the last three end it.
            while end < len(text) and text[end] == quotes[0] and end < found + 5:
                end += 1
            return end
        at = found + 1
    return -1
