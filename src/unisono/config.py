"""The configuration with which a process joins a group: one frozen value, in Python or as a TOML file.

`join` takes the most common fields as arguments, and all of them as `join(config=Config(...))` or
`join(config="group.toml")`. The options of an order are in its own class (`unisono.Vbr`, `unisono.Consensus`, …).
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar, get_args

from unisono.errors import ConfigError, InvalidOption, ScenarioError
from unisono.model.options import (
    COUNT,
    DURATION,
    FLAG,
    Option,
    OrderName,
    OrderOptions,
    TextForm,
    check_options,
    check_type,
    choice_form,
    order_options,
    text_options,
)
from unisono.model.policy import Gaps
from unisono.model.sla import MetricRow, SlaSet
from unisono.model.text.toml import TomlTable, line_of, syntax_line
from unisono.model.text.topology import parse_topology
from unisono.model.timing import DELTA_DEFAULT, GAMMA_DEFAULT
from unisono.model.units import Rate
from unisono.qos.plan.admission import Link, capacity_bytes_per_s

if TYPE_CHECKING:
    from unisono.trace.recorder import Recorder

_Made = TypeVar("_Made")

Fsync: TypeAlias = Literal["always", "batch", "never"]
MetricSink: TypeAlias = Callable[[Sequence[MetricRow]], None]
"""A function that gets the metric rows of each collecting interval. It must not block."""


# -- the members ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Beacon:
    """Find the members by IP multicast: the group forms when `members` processes have found each other."""

    members: int
    address: str | None = None
    """The multicast address and port of the beacon; by default 239.255.77.76:7776."""
    interface: str | None = None
    """The address at which the others reach this machine; by default the one from which multicast leaves."""


@dataclass(frozen=True, kw_only=True)
class Dns:
    """Find the members by a DNS name that has one address per member; all members use the same port."""

    name: str
    port: int
    members: int
    """How many addresses the name has when the group is complete."""


Peers: TypeAlias = Mapping[int, str | tuple[str, int]] | Beacon | Dns


# -- options of every group ----------------------------------------------------------------------------------


def _text(name: str, text: str) -> str:
    if not text:
        raise InvalidOption(name, "expected a text, got an empty one")
    return text


def _share(name: str, text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise InvalidOption(name, f"expected a share from 0 to less than 1, such as 0.01, got {text!r}")
    return share


def _capacity(name: str, text: str) -> str:
    try:
        capacity_bytes_per_s(text)
    except InvalidOption as error:
        raise InvalidOption(name, error.problem) from error
    return text


PATH: Final = TextForm(
    "FILE", _text, str, python_types=(str, os.PathLike), python_expected="the path of a file, such as 'member-1.log'"
)
SLA_FILE: Final = replace(
    PATH, python_types=(str, os.PathLike, SlaSet), python_expected="an SlaSet or the path of a file, such as 'sla.toml'"
)
ADDRESS: Final = TextForm(
    "ADDRESS:PORT",
    _text,
    str,
    python_types=(str, tuple),
    python_expected="an address and port, such as '239.1.2.3:7776'",
)
SHARE: Final = TextForm("p", _share, repr, (int, float), "a share from 0 to less than 1, such as 0.01")
CAPACITY: Final = TextForm(
    "CAPACITY",
    _capacity,
    str,
    python_types=(str, Link),
    python_expected="a capacity such as '100Mbit/s', or a Link('100Mbit/s') that several groups share",
)

DEADLINE: Final = Option("deadline", None, "the latency that every delivery has to meet", DURATION)
GAPS: Final = Option(
    "gaps",
    None,
    "never: no member misses a message, even if that takes longer (default); repaired: early deliveries on time, final "
    "ones without gaps; allowed: on time, and a crash or loss may leave gaps",
    choice_form(get_args(Gaps)),
)
STORAGE: Final = Option("storage", None, "file for this member's durable state, to return after a crash", PATH)
FSYNC: Final = Option("fsync", "always", "when to sync the storage to disk", choice_form(get_args(Fsync)))
TIMEOUT: Final = Option("timeout", "30s", "how long the group may take to form", DURATION)
MIN_MEMBERS: Final = Option(
    "min_members",
    None,
    "how many members must be up before `join` returns, this one included; by default as many as the order needs to "
    "start",
    COUNT,
)
MAX_MESSAGE: Final = Option("max_message", 4096, "largest message in bytes", COUNT)
QUEUE_MESSAGES: Final = Option("queue_messages", 1_000_000, "how many deliveries may wait for the application", COUNT)
STATUS_SOCKET: Final = Option("status_socket", True, "serve this member's status to `unisono status`", FLAG)
DELTA: Final = Option("delta", DELTA_DEFAULT, "largest delay of the network (Δ)", DURATION)
GAMMA: Final = Option("gamma", GAMMA_DEFAULT, "largest difference between two members' clocks (Γ)", DURATION)
LOSS: Final = Option("loss", 0.0, "share of datagrams that the network is expected to lose", SHARE)
LINK: Final = Option("link", "1Gbit/s", "capacity of this machine's link; groups reserve no more than this", CAPACITY)
MULTICAST: Final = Option("multicast", None, "IP multicast group to use if it reaches all members", ADDRESS)
MULTICAST_TTL: Final = Option(
    "multicast_ttl",
    1,
    "TTL of multicast datagrams and beacons: how many networks they may cross; 1 is the local network only",
    COUNT,
)
BIND: Final = Option(
    "bind",
    None,
    "local address at which this member's socket listens, such as 0.0.0.0:9001, if the peers reach the member at "
    "another one (containers, NAT); by default its address in `peers`",
    ADDRESS,
)
MAX_FRAME: Final = Option(
    "max_frame", None, "largest datagram in bytes; by default it fits the path to the peers", COUNT
)
SLA: Final = Option("sla", None, "service level agreements to evaluate while the group runs", SLA_FILE)
CONFIG_OPTIONS: Final = (
    *(DEADLINE, GAPS, DELTA, GAMMA, LOSS, LINK, MULTICAST, MULTICAST_TTL, BIND, MAX_FRAME),
    *(STORAGE, FSYNC, SLA, TIMEOUT, MIN_MEMBERS, MAX_MESSAGE, QUEUE_MESSAGES, STATUS_SOCKET),
)
"""The options of every group that files and the command line can give."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """The network between the members, and how this member uses it."""

    delta: str = DELTA.field()
    gamma: str = GAMMA.field()
    loss: float = LOSS.field()
    link: str | Link = LINK.field()
    """A capacity such as "100Mbit/s", or a `Link` that several groups of this process share."""
    multicast: str | tuple[str, int] | None = MULTICAST.field()
    multicast_ttl: int = MULTICAST_TTL.field()
    bind: str | tuple[str, int] | None = BIND.field()
    max_frame: int | None = MAX_FRAME.field()

    def __post_init__(self) -> None:
        check_options(self)
        if not 0 <= self.multicast_ttl <= 255:
            raise InvalidOption("multicast_ttl", f"expected a number from 0 to 255, got {self.multicast_ttl}")

    def shared_link(self) -> Link:
        """The link to reserve bandwidth from."""
        return self.link if isinstance(self.link, Link) else Link(self.link)


@dataclass(frozen=True, kw_only=True)
class Observe:
    """What observes the group while it runs."""

    recorder: Recorder | None = None
    """Writes the trace of this member."""
    sla: SlaSet | str | os.PathLike[str] | None = SLA.field()
    """Service level agreements, or the path of a file of them. Violations come as events."""
    metrics: bool | MetricSink = False
    """True collects metrics for `group.metrics()`. A function also gets the rows of each interval."""

    def __post_init__(self) -> None:
        check_options(self)
        if not isinstance(self.metrics, bool) and not callable(self.metrics):
            raise TypeError(f"metrics: expected True, False or a function that takes rows, got {self.metrics!r}")
        if self.recorder is not None and not hasattr(self.recorder, "delivered"):
            raise TypeError(
                f"recorder: expected the recorder of a trace, such as writer.recorder() of a TraceWriter, "
                f"got {self.recorder!r}"
            )


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything with which a process joins a group. The fields that `join` also has are described there."""

    group: str = "unisono"
    member: int | None = None
    peers: Peers | None = None
    deadline: str | None = DEADLINE.field()
    gaps: Gaps | None = GAPS.field()
    order: OrderName | Literal["auto"] | OrderOptions = "auto"
    storage: str | os.PathLike[str] | None = STORAGE.field()
    fsync: Fsync = FSYNC.field()
    """When the storage is synced: before anything depends on a write, soon after it, or never."""
    network: Network = field(default_factory=Network)
    rate: Rate = Rate(avg=50, burst=8)
    observe: Observe = field(default_factory=Observe)
    timeout: str = TIMEOUT.field()
    """How long the group may take to form."""
    min_members: int | None = MIN_MEMBERS.field()
    """How many members must be up before `join` returns, this one included; `Group.wait_for` says when one is up.

    Some orders start without all members, such as `consensus` with a majority. None waits only for those.
    """
    max_message: int = MAX_MESSAGE.field()
    """The size of the largest message, in bytes."""
    queue_messages: int = QUEUE_MESSAGES.field()
    """How many deliveries may wait for the application before this member stops delivering."""
    status_socket: bool = STATUS_SOCKET.field()
    """Whether this member serves its status to `unisono status`, through a Unix socket of this user."""

    def __post_init__(self) -> None:
        check_options(self)
        for name, value, types, expected in (
            ("group", self.group, (str,), "the name of the group, such as 'table-7'"),
            ("member", self.member, (int, type(None)), "the number of this member, such as 1"),
            ("order", self.order, (str, OrderOptions), "the name or the options of an order, such as 'vbr' or Vbr()"),
            ("network", self.network, (Network,), "a Network, such as Network(delta='20ms')"),
            ("rate", self.rate, (Rate,), "a Rate, such as Rate(avg=50, burst=8)"),
            ("observe", self.observe, (Observe,), "an Observe, such as Observe(metrics=True)"),
        ):
            check_type(name, value, types, expected)
        if self.queue_messages < 1:
            raise InvalidOption("queue_messages", f"expected room for at least one message, got {self.queue_messages}")

    @property
    def storage_path(self) -> Path | None:
        """The path of the storage file; None without storage."""
        return None if self.storage is None else Path(self.storage)


# -- the TOML form -------------------------------------------------------------------------------------------


def read_config(path: str | os.PathLike[str]) -> Config:
    """Read the configuration in a TOML file. Errors name the file, the line, the field and the expected value."""
    source = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(source, line, "(encoding)", "expected UTF-8 text; save the file as UTF-8") from error
    except OSError as error:
        raise ConfigError(source, 1, "(file)", f"cannot be read: {error.strerror}") from error
    return parse_config(text, source)


def parse_config(text: str, source: str) -> Config:
    """Parse the configuration in a TOML text. Errors name the text by `source`."""
    try:
        top = TomlTable(source, "", tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(source, syntax_line(text, error), "(syntax)", f"not valid TOML: {error}") from error
    try:
        return _config(top)
    except ScenarioError as error:
        raise ConfigError(source, line_of(text, error.field), error.field, error.problem) from error


def _config(top: TomlTable) -> Config:
    values: dict[str, Any] = _option_values(top, Config)
    values["group"] = top.text("group", "unisono")
    values["member"] = top.integer("member", minimum=1) if top.has("member") else None
    values["order"] = _order(top)
    for name, read in (("peers", _peers), ("rate", _rate)):
        is_given, table = top.has(name), top.table(name)
        if is_given:
            values[name] = read(table)
    for name, made in (("network", Network), ("observe", Observe)):
        table = top.table(name)
        given = _option_values(table, made)
        table.reject_unknown_fields()
        values[name] = _made(table, made, given)
    top.reject_unknown_fields()
    return _made(top, Config, values)


def _made(table: TomlTable, made: type[_Made], values: Mapping[str, Any]) -> _Made:
    """A value of the class `made`. If it refuses an option, the error names that field of the table."""
    try:
        return made(**values)
    except InvalidOption as error:
        raise table.error(error.field, error.problem) from error


def _option_values(table: TomlTable, made: type) -> dict[str, Any]:
    """The values of a table for the fields of `made` that have a text form."""
    values = {}
    for each in fields(made):
        option: Option | None = each.metadata.get("option")
        if option is not None:
            value = table.pop(option.name, None)
            if value is not None:
                values[option.name] = table.checked(option.name, partial(option.parse, value))
    return values


def _peers(table: TomlTable) -> Peers:
    """The table [peers]: addresses by member number, or [peers.beacon], or [peers.dns]."""
    if table.has("beacon"):
        beacon = table.table("beacon")
        members = beacon.integer("members", minimum=1)
        address, interface = (beacon.text(name) if beacon.has(name) else None for name in ("address", "interface"))
        beacon.reject_unknown_fields()
        found: Peers = Beacon(members=members, address=address, interface=interface)
    elif table.has("dns"):
        dns = table.table("dns")
        found = Dns(
            name=dns.text("name"), port=dns.integer("port", minimum=1), members=dns.integer("members", minimum=1)
        )
        dns.reject_unknown_fields()
    else:
        found = {member: table.text(str(member)) for member in table.member_numbers()}
        if not found:
            raise table.error("1", "expected the address of every member, such as 1 = '10.0.0.7:9001', got none")
    table.reject_unknown_fields()
    return found


def _order(top: TomlTable) -> OrderName | Literal["auto"] | OrderOptions:
    """The field `order`: the name of an order, or a table [order] with `name` and the order's options."""
    if not top.has("order") or not top.is_table("order"):
        name = top.text("order", "auto")
        return "auto" if name == "auto" else top.checked("order", partial(order_options, name))
    table = top.table("order")
    name = table.text("name")
    values = {}
    for option in text_options():
        value = table.pop(option.name, None)
        if value is not None:
            values[option.name] = table.checked(option.name, partial(option.parse, value))
    if table.has("topology"):
        values["topology"], _ = parse_topology(table.table("topology"))
    table.reject_unknown_fields()
    try:
        return order_options(name, values)
    except InvalidOption as error:
        raise table.error("name" if error.field == "order" else error.field, error.problem) from error


def _rate(table: TomlTable) -> Rate:
    avg, burst = table.number("avg"), table.integer("burst", minimum=1)
    burst_bytes = table.integer("burst_bytes", minimum=1) if table.has("burst_bytes") else None
    table.reject_unknown_fields()
    return table.checked("avg", lambda: Rate(avg, burst, burst_bytes))
