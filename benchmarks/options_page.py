"""Write docs/options.md, the reference of all options, from their definitions.

python -m benchmarks.options_page

The names, types, defaults and meanings come from the configuration classes, from the options of each order and from
the parser of `unisono member`. A unit test compares the page with the result.
"""

from __future__ import annotations

import argparse
import ast
import collections.abc
import dataclasses
import inspect
import os
import re
import sys
import textwrap
import types
import typing
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal

from unisono.cli.main import build_parser
from unisono.config import Beacon, Config, Dns, Network, Observe
from unisono.group import join
from unisono.model.options import ORDER_NAMES, Option, OrderOptions, Priority, QuasiGenuine, Service, order_class
from unisono.model.units import Rate
from unisono.trace.recorder import Recorder

PROJECT = Path(__file__).parents[1]
PAGE = PROJECT / "docs" / "options.md"
EXAMPLE = PROJECT / "examples" / "group.toml"

NONE: Final = "–"
"""In a cell: not given by default, or not available."""
REQUIRED: Final = "required"

FLAGS: Final[Mapping[tuple[type, str], tuple[str, ...]]] = {
    (Config, "group"): ("--group",),
    (Config, "member"): ("--id",),
    (Config, "peers"): ("--peers",),
    (Config, "order"): ("--order",),
    (Beacon, "members"): ("--members",),
    (Beacon, "address"): ("--beacon",),
    (Beacon, "interface"): ("--interface",),
    (Dns, "members"): ("--members",),
    (Rate, "avg"): ("--rate",),
    (Rate, "burst"): ("--burst",),
}
"""The command-line options of fields that have no `Option`."""
TEXTS: Final[Mapping[tuple[type, str], str]] = {
    (Config, "member"): "this process's number, from 1; optional if the members find each other",
    (Config, "peers"): "the address of every member by number, this one included, such as "
    '`{1: "10.0.0.7:9001", …}`; with `Beacon` or `Dns` the members find each other',
    (Beacon, "members"): "how many members the group has",
    (Dns, "name"): "the DNS name; on the command line `--peers dns:NAME:PORT`",
    (Dns, "port"): "the port of every member",
    (Rate, "burst_bytes"): "bytes of messages per slot, at most; by default `burst` times the largest message",
    (Priority, "coordinator"): "one member decides the order of new messages; the order `priority_coordinator`",
    (Service, "service"): "the service, which is the name of the order",
}
"""The meanings of fields for which no other definition has a text of their own."""
BELOW: Final = frozenset({(Config, "network"), (Config, "rate"), (Config, "observe")})
"""Fields whose own fields have command-line options."""
NOTES: Final[Mapping[type, str]] = {
    Network: "With a `loss` above 0, `join` refuses the orders that a single lost datagram would stop.",
}
"""Notes under the table of a class."""
TABLES: Final = frozenset({(QuasiGenuine, "topology")})
"""Options without a text form that a file gives as a table."""
PYTHON_ONLY: Final = frozenset(
    {(Observe, "recorder"), (Observe, "metrics"), (Priority, "coordinator"), (Service, "service")}
)
"""Fields without an `Option` that a file cannot give."""

PARTS: Final[tuple[tuple[type, str, str], ...]] = (
    (Beacon, "peers.beacon", "Members by beacon"),
    (Dns, "peers.dns", "Members by DNS name"),
    (Rate, "rate", "The rate"),
    (Network, "network", "The network"),
    (Observe, "observe", "Observation"),
)
"""The classes of fields of `Config`, with their TOML tables and headings."""

INTRODUCTION = """\
# Options

`unisono.join` takes the most common options as arguments, and all options as one value: `unisono.Config`. A `Config`
has the same form in Python, as a TOML file and on the command line:

```python
import unisono

config = unisono.Config(
    group="table-7",
    member=1,
    peers={1: "127.0.0.1:9001", 2: "127.0.0.1:9002", 3: "127.0.0.1:9003"},
    deadline="80ms",
    gaps="repaired",
    network=unisono.Network(delta="50ms", gamma="5ms"),
)
joining = unisono.join(config=config)  # also: unisono.join(config="examples/group.toml", member=1)
print(joining.plan.text())  # the order and the slot length that were chosen, and why
```

```sh
unisono member --config examples/group.toml --id 1
```

Arguments of `join`, and options of `unisono member`, override the fields of the configuration. An argument such as
`network=` replaces the whole `Network` of the configuration; an option such as `--delta` replaces one field of it. An
option that an order does not have is refused. Errors in a file name the file, the line, the field and the expected
value.

Durations are text with a unit: ns, us, ms, s, min or h. All members of a group must use the same `deadline`, `gaps`,
`delta` and `gamma`, and the same `order` with its options, because these decide how the group orders its messages.

`python -m benchmarks.options_page` writes this page from the definitions of the options.
"""

ORDERS = """\
## The orders

`order="auto"` chooses by `gaps`; see [what is promised](../README.md#what-is-promised). Give the name of an order, or
its options: `order=unisono.Vbr(slot="5ms")`. In a file, `order = "vbr"` is the name, and a table `[order]` has `name`
and the options. On the command line, an option of an order needs `--order`.
"""

COMMAND_LINE = """\
## Only on the command line

These options of `unisono member` belong to the command, not to the group.
"""

EXAMPLE_TEXT = """\
## Example of a file

This is [examples/group.toml](../examples/group.toml). Every member can use the same file, and gives its own `--id`, or
`member=` in Python.
"""


# -- cells -----------------------------------------------------------------------------------------------------


def type_text(hint: Any) -> str:
    """A type as the page shows it: the words of a Literal in quotes, and alternatives joined by "or", without None."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return ", ".join(f'`"{word}"`' for word in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_text(each) for each in arguments if each is not type(None))
    if origin is collections.abc.Callable:
        return "function"
    if origin is collections.abc.Mapping:
        return "`dict`"
    if origin is os.PathLike:
        return "`os.PathLike`"
    return f"`{hint}`" if arguments else f"`{hint.__name__}`"


def default_text(field: dataclasses.Field[Any]) -> str:
    """The default of a field."""
    if field.default_factory is not dataclasses.MISSING:
        return f"`{type(field.default_factory()).__name__}()`"
    if field.default is dataclasses.MISSING:
        return REQUIRED
    return NONE if field.default is None else f"`{_value_text(field.default)}`"


def _value_text(value: object) -> str:
    """A value as Python source, without the fields of a dataclass that have their default."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return repr(value).replace("'", '"')
    given = [each for each in dataclasses.fields(value) if each.repr and getattr(value, each.name) != each.default]
    inside = ", ".join(f"{each.name}={_value_text(getattr(value, each.name))}" for each in given)
    return f"{type(value).__name__}({inside})"


def field_texts(made: type) -> dict[str, str]:
    """The docstrings under the fields of a class, each in one line."""
    (definition,) = ast.parse(inspect.getsource(made)).body
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    found = {}
    for one, other in pairwise(body):
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(other, ast.Expr):
            found[one.target.id] = " ".join(str(ast.literal_eval(other.value)).split())
    return found


def join_texts() -> dict[str, str]:
    """What the docstring of `join` says about each argument, in one line."""
    listed = (inspect.getdoc(join) or "").split("\n\n")[1]
    found: dict[str, str] = {}
    for item in re.split(r"^- ", listed, flags=re.MULTILINE)[1:]:
        names, text = item.split(": ", 1)
        found |= dict.fromkeys(re.findall(r"\w+", names), " ".join(text.split()))
    return found


def member_actions() -> dict[str, argparse.Action]:
    """The options of `unisono member`, by flag."""
    verbs = next(each for each in build_parser()._actions if isinstance(each, argparse._SubParsersAction))
    return {flag: action for action in verbs.choices["member"]._actions for flag in action.option_strings}


def flag_cell(*flags: str) -> str:
    """Command-line options with the placeholders of their values; raises KeyError for one that does not exist."""
    shown = []
    for flag in flags:
        action = member_actions()[flag]
        value = action.metavar if isinstance(action.metavar, str) else flag.lstrip("-").upper()
        if isinstance(action, argparse.BooleanOptionalAction):
            shown += [f"`{each}`" for each in action.option_strings]
        else:
            shown.append(f"`{flag}`" if action.nargs == 0 else f"`{flag} {value}`")
    return ", ".join(shown).replace("|", "\\|")


# -- rows ------------------------------------------------------------------------------------------------------

HEAD = ("option", "type", "default", "meaning", "TOML key", "command line")


@dataclasses.dataclass(frozen=True)
class Row:
    """One option of the page."""

    name: str
    type: str
    default: str
    meaning: str
    toml_key: str
    """The key with the tables around it, such as `network.delta`; empty if a file cannot give the option."""
    flags: tuple[str, ...]
    option: Option | None
    is_below: bool

    def line(self) -> str:
        """The row of the table."""
        key = f"`{self.toml_key}`" if self.toml_key else NONE
        flags = flag_cell(*self.flags) or ("below" if self.is_below else NONE)
        return f"| `{self.name}` | {self.type} | {self.default} | {self.meaning} | {key} | {flags} |"


def rows_of(made: type, table: str = "") -> list[Row]:
    """The options that are fields of a class, in the TOML table with this name."""
    hints = typing.get_type_hints(made, localns={"Recorder": Recorder})
    documented = field_texts(made)
    of_join = join_texts() if made is Config else {}
    rows = []
    for field in dataclasses.fields(made):
        name, place = field.name, (made, field.name)
        option: Option | None = field.metadata.get("option")
        flags, in_file = FLAGS.get(place, ()), place not in PYTHON_ONLY
        if option is not None:
            flags = () if option.form is None else ("--" + name.replace("_", "-"),)
            in_file = option.form is not None or place in TABLES
            meaning = documented.get(name, option.meaning)
        else:
            meaning = (
                documented.get(name) or TEXTS.get(place) or of_join.get(name) or str(member_actions()[flags[0]].help)
            )
        key = f"{table}.{name}".lstrip(".") if in_file else ""
        types_text, default = type_text(hints[name]), default_text(field)
        rows.append(Row(name, types_text, default, _cell(meaning), key, flags, option, place in BELOW))
    return rows


def _cell(text: str) -> str:
    """A text for a cell: without the default, which has a column, and without a capital letter or a full stop."""
    text = re.sub(r" \(default [^)]*\)", "", text).replace("|", "\\|").rstrip(".")
    is_ordinary_word = re.match(r"(?!True)[A-Z][a-z ]", text)
    return text[0].lower() + text[1:] if is_ordinary_word else text


def table_of(rows: Iterable[Row]) -> list[str]:
    """The rows as a Markdown table."""
    return [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|", *(row.line() for row in rows)]


# -- the page --------------------------------------------------------------------------------------------------


def order_classes() -> dict[type[OrderOptions], list[str]]:
    """The classes of options, each with the names of its orders."""
    found: dict[type[OrderOptions], list[str]] = {}
    for name in ORDER_NAMES:
        found.setdefault(order_class(name), []).append(name)
    return found


def all_rows() -> list[Row]:
    """Every option of the page."""
    parts = [rows_of(Config), *(rows_of(made, table) for made, table, _ in PARTS)]
    return [row for part in (*parts, *(rows_of(made, "order") for made in order_classes())) for row in part]


def command_rows() -> list[str]:
    """The options of `unisono member` that are not options of the group, as a Markdown table."""
    known = {flag for row in all_rows() for flag in row.flags}
    found = {flag: action for flag, action in member_actions().items() if flag.startswith("--")}
    others = [flag for flag, action in found.items() if known.isdisjoint(action.option_strings)]
    lines = [f"| {flag_cell(flag)} | {_cell(str(found[flag].help))} |" for flag in others if flag != "--help"]
    return ["| command line | meaning |", "|---|---|", *lines]


def page() -> str:
    """The text of the page."""
    lines = [INTRODUCTION, "## The group: `Config`", "", *table_of(rows_of(Config)), ""]
    for made, table, heading in PARTS:
        lines += [f"## {heading}: `{made.__name__}`", "", _docstring(made), "", *table_of(rows_of(made, table)), ""]
        lines += [NOTES[made], ""] if made in NOTES else []
    lines += [ORDERS]
    for made, names in order_classes().items():
        listed = ", ".join(f"`{name}`" for name in names)
        lines += [f"### `{made.__name__}`: {listed}", "", _docstring(made), "", *table_of(rows_of(made, "order")), ""]
    lines += [COMMAND_LINE, *command_rows(), "", EXAMPLE_TEXT, "```toml", EXAMPLE.read_text("utf-8").strip(), "```"]
    return "\n".join(lines) + "\n"


def _docstring(made: type) -> str:
    paragraphs = (inspect.getdoc(made) or "").split("\n\n")
    return "\n\n".join(textwrap.fill(" ".join(each.split()), 120) for each in paragraphs)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE.relative_to(PROJECT)}\n")
