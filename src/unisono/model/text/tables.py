"""Reads a parsed TOML table field by field; what is wrong is said with the file, the field and what is expected."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

from unisono.errors import InvalidOption, ScenarioError
from unisono.model.durations import duration_ns

_Value = TypeVar("_Value")
_MISSING: Any = object()


class TomlTable:
    """One table of a file. Each field is taken once; `done` refuses what nobody took."""

    def __init__(self, source: str, path: str, values: object) -> None:
        self.source = source
        self.path = path
        if not isinstance(values, Mapping):
            raise ScenarioError(source, path, f"a table [{path}] is needed, not {values!r}")
        self._values = dict(values)
        self._known_fields: list[str] = []

    def error(self, field: str, problem: str) -> ScenarioError:
        """What to raise about a field."""
        return ScenarioError(self.source, self.full_name(field), problem)

    def full_name(self, field: str) -> str:
        """A field's name in the whole file."""
        return f"{self.path}.{field}" if self.path else field

    def has(self, field: str) -> bool:
        """Whether the file gives the field, which is not taken."""
        return field in self._values

    def pop(self, field: str, default: Any = _MISSING) -> Any:
        """The field as TOML has it."""
        self._known_fields.append(field)
        value = self._values.pop(field, default)
        if value is _MISSING:
            raise self.error(field, "is missing")
        return value

    def text(self, field: str, default: str = _MISSING) -> str:
        """A string."""
        return self._of_type(field, default, str, "a text in quotes")

    def flag(self, field: str, default: bool) -> bool:
        """true or false."""
        return self._of_type(field, default, bool, "true or false")

    def integer(self, field: str, default: int = _MISSING, *, minimum: int = 0) -> int:
        """A whole number."""
        value = self.pop(field, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.error(field, f"a whole number of at least {minimum} is needed, not {value!r}")
        return value

    def number(self, field: str, default: float = _MISSING, *, minimum: float = 0.0, maximum: float = 1e12) -> float:
        """A number, whole or not."""
        value = self.pop(field, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value <= maximum:
            raise self.error(field, f"a number from {minimum:g} to {maximum:g} is needed, not {value!r}")
        return float(value)

    def duration(self, field: str, default: str = _MISSING) -> int:
        """A duration with a unit, in nanoseconds."""
        value = self.pop(field, default)
        if not isinstance(value, str):
            raise self.error(field, f"a duration with a unit is needed, such as '5ms', not {value!r}")
        return self.checked(field, lambda: duration_ns(value))

    def choice(self, field: str, choices: Sequence[str], default: str = _MISSING) -> Any:
        """One of a few words."""
        value = self.pop(field, default)
        if value not in choices:
            near = get_close_matches(value, choices, 1) if isinstance(value, str) else []
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise self.error(field, f"one of {', '.join(map(repr, choices))} is needed, not {value!r}{hint}")
        return value

    def integers(self, field: str, default: Sequence[int] = _MISSING) -> tuple[int, ...]:
        """A list of whole numbers."""
        value = self.pop(field, default)
        if not isinstance(value, list | tuple) or not all(type(item) is int and item >= 0 for item in value):
            raise self.error(field, f"a list of whole numbers is needed, such as [1, 2], not {value!r}")
        return tuple(value)

    def member(self, field: str, members: Sequence[int]) -> int:
        """The number of one of the members."""
        value = self.pop(field)
        if type(value) is not int or value not in members:
            raise self.error(field, f"one of the members {_listed(members)} is needed, not {value!r}")
        return value

    def signed_duration(self, field: str) -> int:
        """A duration that may have a sign."""
        value = self.pop(field)
        if not isinstance(value, str):
            raise self.error(field, f"a duration such as '1ms' or '-1ms' is needed, not {value!r}")
        size = self.checked(field, lambda: duration_ns(value.strip().removeprefix("-").removeprefix("+")))
        return -size if value.strip().startswith("-") else size

    def table(self, field: str) -> TomlTable:
        """A table within; an empty one if it is left out."""
        return TomlTable(self.source, self.full_name(field), self.pop(field, {}))

    def tables(self, field: str) -> list[TomlTable]:
        """A list of tables, each `[[field]]` one."""
        value = self.pop(field, [])
        if not isinstance(value, list):
            raise self.error(field, f"a list of tables is needed, each under [[{self.full_name(field)}]]")
        return [TomlTable(self.source, f"{self.full_name(field)}[{n}]", item) for n, item in enumerate(value, start=1)]

    def tables_by_member(self, allowed: Sequence[int]) -> dict[int, TomlTable]:
        """The tables that are named by a member's number, such as [rate.3]."""
        found: dict[int, TomlTable] = {}
        for field in [field for field in self._values if field.isdecimal()]:
            member = int(field)
            if member not in allowed:
                raise self.error(field, f"{member} is no member of the group; its members are {_listed(allowed)}")
            found[member] = self.table(field)
        return found

    def with_fallback(self, base: TomlTable) -> TomlTable:
        """This table, with the fields of `base` that it does not give itself."""
        plain = {field: value for field, value in base._values.items() if not isinstance(value, dict)}
        return TomlTable(self.source, self.path, {**plain, **self._values})

    def with_defaults(self, defaults: Mapping[str, object]) -> TomlTable:
        """This table, with these values where it gives none."""
        return TomlTable(self.source, self.path, {**defaults, **self._values})

    def checked(self, field: str, make: Callable[[], _Value]) -> _Value:
        """What `make` gives; what it finds invalid is told of the field."""
        try:
            return make()
        except InvalidOption as error:
            raise self.error(field, error.problem) from error

    def reject_unknown_fields(self) -> None:
        """Refuse the fields that mean nothing here."""
        for field in self._values:
            known = [name for name in dict.fromkeys(self._known_fields) if not name.isdecimal()]
            near = get_close_matches(field, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}"
            raise self.error(field, f"is not known; {hint}")

    def _of_type(self, field: str, default: _Value, kind: type[_Value], expected: str) -> _Value:
        value = self.pop(field, default)
        if not isinstance(value, kind):
            raise self.error(field, f"{expected} is needed, not {value!r}")
        return value


def _listed(members: Sequence[int]) -> str:
    return ", ".join(map(str, members))
