"""TOML: typed tables whose errors name the file and the field, the lines of a file's fields, and a writer."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeAlias, TypeVar

from unisono.errors import InvalidOption, ScenarioError
from unisono.model.units import duration_ns

_KEY_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_KEY = re.compile(rf"\s*({_KEY_PART}(?:\s*\.\s*{_KEY_PART})*)\s*=")
_HEADER = re.compile(rf"\s*(\[\[?)\s*({_KEY_PART}(?:\s*\.\s*{_KEY_PART})*)\s*\]")
_PART = re.compile(_KEY_PART)
_TOKEN = re.compile(r'"""|\'\'\'|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|[\[\]{}#]')
_AT_LINE = re.compile(r"\(at line (\d+), column \d+\)")


def key_lines(text: str) -> dict[str, int]:
    """The line number of each key and of each table's header in a TOML text, counted from 1."""
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
    """The line number of a field of a TOML text, or of the innermost table around it; 1 if the text has neither."""
    return nearest_line(key_lines(text), field)


def nearest_line(lines: Mapping[str, int], field: str) -> int:
    """The line number of a field, as `line_of` finds it. `lines` is the result of `key_lines`."""
    while field:
        if field in lines:
            return lines[field]
        field = field[: max(field.rfind("."), field.rfind("["), 0)]
    return 1


def syntax_line(text: str, error: tomllib.TOMLDecodeError) -> int:
    """The line of the first syntax error in a text that is not TOML."""
    position = _AT_LINE.search(str(error))
    return int(position[1]) if position else max(1, len(text.splitlines()))


def _parts(key: str) -> list[str]:
    """The parts of a dotted key, without quotes."""
    return [part[1:-1] if part[0] in "\"'" else part for part in _PART.findall(key)]


def _header_path(parts: list[str], counts: dict[str, int], *, is_array: bool) -> str:
    """The path of the table that a header opens.

    In the path, the name of a list of tables is followed by the number of its latest table, such as `sla[2]`.
    """
    path = ""
    for position, part in enumerate(parts):
        path = f"{path}.{part}" if path else part
        if is_array and position == len(parts) - 1:
            counts[path] = counts.get(path, 0) + 1
        if path in counts:
            path = f"{path}[{counts[path]}]"
    return path


class _OpenValue:
    """Follows a TOML value after its equals sign, line by line, to find the line on which it ends."""

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
    """The position after the quotes that end a multi-line TOML string; -1 if the string does not end in this line."""
    while (found := text.find(quotes, at)) >= 0:
        before = len(text[:found]) - len(text[:found].rstrip("\\"))
        if quotes == "'''" or before % 2 == 0:
            end = found + 3
            # Up to two more quotes may follow. They belong to the string: its last three quotes end it.
            while end < len(text) and text[end] == quotes[0] and end < found + 5:
                end += 1
            return end
        at = found + 1
    return -1


_Value = TypeVar("_Value")
_MISSING: Any = object()


class TomlTable:
    """One table of a TOML file. Each field is read once; `reject_unknown_fields` refuses the fields left over."""

    def __init__(self, source: str, path: str, values: object, *, misspelling: str = "") -> None:
        """If the file does not have this table, `misspelling` is the similar name of another one, if there is any."""
        self.source = source
        self.path = path
        self._misspelling = misspelling
        if not isinstance(values, Mapping):
            raise ScenarioError(source, path, f"expected a table [{path}], got {values!r}")
        self._values = dict(values)
        self._known_fields: list[str] = []

    def error(self, field: str, problem: str) -> ScenarioError:
        """The error to raise for a field of this table. It names the file and the field's full path."""
        return ScenarioError(self.source, self.full_name(field), problem)

    def full_name(self, field: str) -> str:
        """The full path of a field in the file."""
        return ".".join(filter(None, (self.path, field)))

    def has(self, field: str) -> bool:
        """Whether this table has the field. The field still counts as unread."""
        return field in self._values

    def is_table(self, field: str) -> bool:
        """Whether this table has a nested table of this name. The field still counts as unread."""
        return isinstance(self._values.get(field), Mapping)

    def member_numbers(self) -> tuple[int, ...]:
        """The member numbers among the names of the unread fields."""
        return tuple(int(field) for field in self._values if field.isdecimal())

    def pop(self, field: str, default: Any = _MISSING) -> Any:
        """Read a field of any type."""
        self._known_fields.append(field)
        value = self._values.pop(field, default)
        if value is _MISSING:
            hint = "add it"
            if similar := self._similar_field(field):
                hint = f"is {self.full_name(similar)} a misspelling of it?"
            elif self._misspelling:
                hint = f"is [{self._misspelling}] a misspelling of [{self.path}]?"
            raise self.error(field, f"required field is missing; {hint}")
        return value

    def _similar_field(self, field: str) -> str:
        """The unread field of this table whose name is most similar to that of a field that it lacks; or empty."""
        return "" if field in self._values else next(iter(get_close_matches(field, self._values, 1)), "")

    def text(self, field: str, default: str = _MISSING) -> str:
        """Read a string."""
        return self._of_type(field, default, str, "a string in quotes")

    def flag(self, field: str, default: bool) -> bool:
        """Read true or false."""
        return self._of_type(field, default, bool, "true or false")

    def integer(self, field: str, default: int = _MISSING, *, minimum: int = 0) -> int:
        """Read a whole number."""
        value = self.pop(field, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.error(field, f"expected a whole number of at least {minimum}, got {value!r}")
        return value

    def number(self, field: str, default: float = _MISSING, *, minimum: float = 0.0, maximum: float = 1e12) -> float:
        """Read a number, whole or not."""
        value = self.pop(field, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value <= maximum:
            raise self.error(field, f"expected a number from {minimum:g} to {maximum:g}, got {value!r}")
        return float(value)

    def duration(self, field: str, default: str = _MISSING) -> int:
        """Read a duration with a unit, in nanoseconds."""
        value = self.pop(field, default)
        if not isinstance(value, str):
            raise self.error(field, f"expected a duration with a unit, such as '5ms', got {value!r}")
        return self.checked(field, lambda: duration_ns(value))

    def choice(self, field: str, choices: Sequence[str], default: str = _MISSING) -> Any:
        """Read one of a few words."""
        value = self.pop(field, default)
        if value not in choices:
            near = get_close_matches(value, choices, 1) if isinstance(value, str) else []
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise self.error(field, f"expected one of {', '.join(map(repr, choices))}, got {value!r}{hint}")
        return value

    def integers(self, field: str, default: Sequence[int] = _MISSING) -> tuple[int, ...]:
        """Read a list of whole numbers."""
        value = self.pop(field, default)
        if not isinstance(value, list | tuple) or not all(type(item) is int and item >= 0 for item in value):
            raise self.error(field, f"expected a list of whole numbers, such as [1, 2], got {value!r}")
        return tuple(value)

    def member(self, field: str, members: Sequence[int]) -> int:
        """Read the number of one of the members."""
        value = self.pop(field)
        if type(value) is not int or value not in members:
            raise self.error(field, f"expected one of the members {_listed(members)}, got {value!r}")
        return value

    def signed_duration(self, field: str) -> int:
        """Read a duration that may have a sign."""
        value = self.pop(field)
        if not isinstance(value, str):
            raise self.error(field, f"expected a duration such as '1ms' or '-1ms', got {value!r}")
        size = self.checked(field, lambda: duration_ns(value.strip().removeprefix("-").removeprefix("+")))
        return -size if value.strip().startswith("-") else size

    def table(self, field: str) -> TomlTable:
        """Read a nested table; an empty one if the file does not have it."""
        misspelling = self._similar_field(field)
        return TomlTable(
            self.source,
            self.full_name(field),
            self.pop(field, {}),
            misspelling=self.full_name(misspelling) if misspelling else "",
        )

    def tables(self, field: str) -> list[TomlTable]:
        """Read a list of tables, written as `[[field]]`."""
        value = self.pop(field, [])
        if not isinstance(value, list):
            raise self.error(field, f"expected tables, each under [[{self.full_name(field)}]], got {value!r}")
        return [TomlTable(self.source, f"{self.full_name(field)}[{n}]", item) for n, item in enumerate(value, start=1)]

    def tables_by_member(self, allowed: Sequence[int]) -> dict[int, TomlTable]:
        """Read the tables named by a member number, such as [rate.3]."""
        found: dict[int, TomlTable] = {}
        for field in [field for field in self._values if field.isdecimal()]:
            member = int(field)
            if member not in allowed:
                raise self.error(field, f"expected one of the members {_listed(allowed)}, got {member}")
            found[member] = self.table(field)
        return found

    def with_fallback(self, base: TomlTable) -> TomlTable:
        """A table with the fields of this one and, where this one lacks a field, that of `base`."""
        plain = {field: value for field, value in base._values.items() if not isinstance(value, dict)}
        return TomlTable(self.source, self.path, {**plain, **self._values})

    def with_defaults(self, defaults: Mapping[str, object]) -> TomlTable:
        """A table with the fields of this one and, where this one lacks a field, the value in `defaults`."""
        return TomlTable(self.source, self.path, {**defaults, **self._values})

    def checked(self, field: str, make: Callable[[], _Value]) -> _Value:
        """The result of calling `make`. If it raises InvalidOption, raise an error that names this field instead."""
        try:
            return make()
        except InvalidOption as error:
            raise self.error(field, error.problem) from error

    def reject_unknown_fields(self) -> None:
        """Raise ScenarioError if the table has fields that were not read."""
        for field in self._values:
            known = [name for name in dict.fromkeys(self._known_fields) if not name.isdecimal()]
            near = get_close_matches(field, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known fields: {', '.join(known)}"
            raise self.error(field, f"unknown field; {hint}")

    def _of_type(self, field: str, default: _Value, kind: type[_Value], expected: str) -> _Value:
        value = self.pop(field, default)
        if not isinstance(value, kind):
            raise self.error(field, f"expected {expected}, got {value!r}")
        return value


def _listed(members: Sequence[int]) -> str:
    return ", ".join(map(str, members))


# -- writing -------------------------------------------------------------------------------------------------

TomlTables: TypeAlias = Mapping[str, Any]
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(tables: TomlTables) -> str:
    """Encode tables as TOML text. `tomllib` reads equal tables back."""
    return "\n".join(_table_lines("", tables)) + "\n"


def _table_lines(name: str, values: TomlTables) -> list[str]:
    lines = [f"{_key(key)} = {_value(value)}" for key, value in values.items() if not _has_header(value)]
    for key, value in values.items():
        path = f"{name}.{_key(key)}" if name else _key(key)
        if isinstance(value, Mapping):
            lines += [f"[{path}]", *_table_lines(path, value)]
        elif _has_header(value):
            for each in value:
                lines += [f"[[{path}]]", *_table_lines(path, each)]
    return lines


def _has_header(value: object) -> bool:
    """Whether a value is written under a header of its own: a table, or a list of tables."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(each, Mapping) for each in value)
    return isinstance(value, Mapping)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_value(each)}" for key, each in value.items()) + "}"
    return _string(value) if isinstance(value, str) else str(value)


def _string(text: str) -> str:
    # The escapes of JSON are escapes of TOML too, but TOML also requires one for the control character DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
