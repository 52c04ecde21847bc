"""The options of each order, every one defined once.

A definition (`Option`) has the name, the default, the meaning and the text form of an option. The frozen classes below
(`Vbr`, `Consensus`, …) say which order has which options, so a wrong combination is a type error. Everything else is
derived: the keys of configuration and scenario files, the options of the command line, the fields of `Policy`, and the
reference in docs/options.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, ClassVar, Final, Literal, TypeAlias, get_args

from unisono.errors import InvalidOption
from unisono.model.events import GRADES
from unisono.model.policy import RESERVATIONS, Adaptive, OrderSettings, Redundancy, StateHolder, check_fec
from unisono.model.timing import SLOT_DEFAULT
from unisono.model.topology import Multigroup, Topology, multigroup_of
from unisono.model.units import duration_ns, exact_duration_text

OrderName: TypeAlias = Literal[
    "vbr",
    "cbr",
    "leader",
    "timestamp",
    "consensus",
    "priority",
    "priority_coordinator",
    "quasi_genuine",
    "reliable",
    "fifo",
    "causal",
    "uniform",
    "uniform_fifo",
    "uniform_causal",
]
ServiceName: TypeAlias = Literal["reliable", "fifo", "causal", "uniform", "uniform_fifo", "uniform_causal"]
Grades: TypeAlias = Literal["early", "final", "both"]
Reservation: TypeAlias = Literal["sender", "receiver"]


# -- text forms ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TextForm:
    """How files and the command line write the values of an option."""

    placeholder: str
    """The value in the help of the command line, such as `a/b`. Empty for an option that is only switched on."""
    parse: Callable[[str, str], Any]
    """Parses a text. Arguments: the option's name, for errors, and the text."""
    text: Callable[[Any], str]
    """The text of a value; `parse` reads it back."""
    toml_types: tuple[type, ...] = (str,)
    """The types of the value in a TOML file."""
    expected: str = "a string in quotes"
    """The expected value of a TOML file in words, for errors."""
    python_types: tuple[type, ...] = ()
    """The types of the value in Python; empty if they are those of a TOML file."""
    python_expected: str = ""
    """The expected value in Python in words, for errors; empty if it is that of a TOML file."""

    def check(self, name: str, value: object) -> None:
        """Check a value given in Python; raises TypeError for a wrong type and InvalidOption for a wrong value."""
        check_type(name, value, self.python_types or self.toml_types, self.python_expected or self.expected)
        if isinstance(value, self.toml_types):
            self.parse(name, text_of(value))


def check_type(name: str, value: object, types: tuple[type, ...], expected: str) -> None:
    """Raise TypeError unless the value has one of these types. True and False are no numbers."""
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise TypeError(f"{name}: expected {expected}, got {value!r}")


def text_of(value: object) -> str:
    """A value of a TOML file as `TextForm.parse` takes it."""
    return value if isinstance(value, str) else str(value).lower()


def _parse_flag(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise InvalidOption(name, f"expected true or false, got {text!r}")
    return text == "true"


def _parse_count(name: str, text: str) -> int:
    if not text.isdecimal():
        raise InvalidOption(name, f"expected a whole number of at least 0, got {text!r}")
    return int(text)


def _parse_duration(name: str, text: str) -> str:
    duration_ns(text, name)
    return text


def _parse_fec(name: str, text: str) -> tuple[int, int]:
    a, slash, b = text.partition("/")
    if not slash or not a.isdecimal() or not b.isdecimal():
        raise InvalidOption(name, f"expected a/b such as 2/10 (repair 2 losses in 10 datagrams), got {text!r}")
    check_fec((int(a), int(b)))
    return int(a), int(b)


def _parse_reliable(name: str, text: str) -> Redundancy:
    rho, *parts = text.split("/")
    durations, rules = parts[:2], parts[2:]
    if not rho.isdecimal() or not durations or len(rules) > 1:
        raise InvalidOption(name, f"expected ρ/η, ρ/η/ω or ρ/η/ω/RULE such as 4/6ms/2ms, got {text!r}")
    eta_ns, *omega_ns = (duration_ns(part, name) for part in durations)
    known: dict[str, Adaptive] = {"none": "none", "heuristic": "heuristic", "counting": "counting"}
    rule = known.get(rules[0]) if rules else "none"
    if rule is None:
        raise InvalidOption(name, f"expected one of {', '.join(known)} after ω, got {rules[0]!r}")
    return Redundancy.of_ns(int(rho), eta_ns, sum(omega_ns), rule)


def _reliable_text(value: Redundancy) -> str:
    if value.adaptive == "exact" or value.last_copy is not None:
        raise InvalidOption("reliable", f"{value} has no short text; write the table [reliable] of a scenario instead")
    eta, omega = exact_duration_text(value.eta_ns), exact_duration_text(value.omega_ns)
    return f"{value.rho}/{eta}/{omega}/{value.adaptive}"


def choice_form(words: tuple[str, ...]) -> TextForm:
    """The text form of an option whose value is one of these words."""

    def parse(name: str, text: str) -> str:
        if text not in words:
            near = get_close_matches(text, words, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InvalidOption(name, f"expected one of {', '.join(words)}, got {text!r}{hint}")
        return text

    quoted = ", ".join(map(repr, words))
    return TextForm("|".join(words), parse, str, python_expected=f"one of {quoted}")


FLAG: Final = TextForm(
    "",
    _parse_flag,
    lambda value: "true" if value else "false",
    (bool,),
    "true or false",
    python_expected="True or False",
)
COUNT: Final = TextForm(
    "N",
    _parse_count,
    str,
    (int,),
    "a whole number of at least 0",
    python_expected="a whole number of at least 0, such as 3",
)
DURATION: Final = TextForm("TIME", _parse_duration, str, expected="a duration with a unit, such as '5ms'")
FEC: Final = TextForm(
    "a/b",
    _parse_fec,
    lambda value: f"{value[0]}/{value[1]}",
    python_types=(tuple,),
    python_expected="two numbers (a, b), such as (2, 10)",
)
RELIABLE: Final = TextForm(
    "ρ/η[/ω[/RULE]]",
    _parse_reliable,
    _reliable_text,
    python_types=(Redundancy,),
    python_expected="a Redundancy, such as Redundancy(4, eta='6ms', omega='2ms')",
)


# -- definitions ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Option:
    """The definition of one option."""

    name: str
    default: Any
    meaning: str
    """What the option does, for the help of the command line and for the documentation."""
    form: TextForm | None = None
    """How files and the command line write it; None if only Python can give the value."""
    policy_field: str = ""
    """The field of `Policy` and `Scenario` that holds the value; empty if none does."""
    to_policy: Callable[[Any], Any] | None = None
    """Converts the value for that field; None if the field holds the value itself."""
    from_policy: Callable[[Any], Any] | None = None
    """Converts the field's value back; None if the field holds the value itself."""

    def field(self) -> Any:
        """The dataclass field of this option, with its default."""
        return dataclasses.field(default=self.default, metadata={"option": self})

    def parse(self, value: object) -> Any:
        """Check and convert a value of a TOML file or a text of the command line; raises InvalidOption."""
        if self.form is None:
            raise InvalidOption(self.name, "this option can only be given in Python")
        if type(value) not in self.form.toml_types:
            raise InvalidOption(self.name, f"expected {self.form.expected}, got {value!r}")
        return self.form.parse(self.name, text_of(value))


def check_options(made: Any) -> None:
    """Check the options of a new value of a class that has them; raises TypeError or InvalidOption."""
    for field in dataclasses.fields(made):
        option: Option | None = field.metadata.get("option")
        value = getattr(made, field.name)
        if option is None or option.form is None or (value is None and field.default is None):
            continue
        if option.form is DURATION:
            duration_ns(value, option.name)  # its error for a number without a unit says how to write it
        else:
            option.form.check(option.name, value)


SLOT: Final = Option(
    "slot",
    None,
    f"length of a slot (Θ); by default {SLOT_DEFAULT}; vbr with a deadline uses the longest that keeps it",
    DURATION,
)
FAILURES: Final = Option(
    "failures", False, "tolerate members that crash, join and leave; deliveries may have gaps", FLAG, "failures"
)
LOSS_BURST: Final = Option(
    "loss_burst",
    0,
    "tolerate up to N consecutive losses of one sender; lost messages are gaps, so this needs failures",
    COUNT,
    "loss_burst",
)
FEC_OPTION: Final = Option(
    "fec",
    None,
    "forward error correction: repair up to a losses in any b consecutive datagrams of a sender",
    FEC,
    "fec",
)
RELIABLE_OPTION: Final = Option(
    "reliable",
    None,
    "reliable multicast, such as 4/6ms/2ms: send everything ρ+1 times, η apart; a receiver that misses the next copy "
    "for η+ω takes over. RULE is how receivers save broadcasts: none, heuristic or counting",
    RELIABLE,
    "reliable",
)
GRADES_OPTION: Final = Option(
    "grades",
    "early",
    "early: on time; final: later, after agreement, without gaps; both: each message in both grades",
    choice_form(GRADES),
    "grades",
)
PROCESSING: Final = Option(
    "processing",
    "0ms",
    "the most time that a leader needs for one message (p)",
    DURATION,
    "processing_ns",
    duration_ns,
    exact_duration_text,
)
RESERVATION: Final = Option(
    "reservation",
    "sender",
    "who reserves the bandwidth of a flow: its sender, or each of its receivers",
    choice_form(RESERVATIONS),
    "reservation",
)
STATE: Final = Option("state", None, "the application, which gives its state to members that join later")
REJOIN: Final = Option("rejoin", True, "rejoin by itself after the others have excluded this member", FLAG, "rejoin")
TOPOLOGY: Final = Option(
    "topology",
    None,
    "the members of each group and the groups that each may send to",
    policy_field="multigroup",
    to_policy=multigroup_of,
)
_SERVICES: Final = choice_form(get_args(ServiceName))
SERVICE_REDUNDANCY: Final = Redundancy(2, "10ms")
"""The redundancy of the services by default: three copies, 10 ms apart."""


# -- the options of each order -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OrderOptions:
    """The options of one order. `join(order=…)` takes a value of a class below, or the name of an order."""

    order: ClassVar[OrderName]

    slot: str | None = SLOT.field()

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def name(self) -> OrderName:
        """The name of the order."""
        return self.order

    def policy_fields(self) -> dict[str, Any]:
        """The values of these options as fields of `Policy` and `Scenario`."""
        values = {}
        for option in options_of(type(self)):
            if option.policy_field:
                value = getattr(self, option.name)
                values[option.policy_field] = value if option.to_policy is None else option.to_policy(value)
        return values


def options_of(order: type[OrderOptions]) -> tuple[Option, ...]:
    """The definitions of an order's options."""
    return tuple(field.metadata["option"] for field in dataclasses.fields(order) if "option" in field.metadata)


@dataclass(frozen=True, kw_only=True)
class Vbr(OrderOptions):
    """VBR: order by slots and synchronised clocks (paper 000 §5 to §7)."""

    order = "vbr"

    failures: bool = FAILURES.field()
    grades: Grades = GRADES_OPTION.field()
    loss_burst: int = LOSS_BURST.field()
    fec: tuple[int, int] | None = FEC_OPTION.field()
    reliable: Redundancy | None = RELIABLE_OPTION.field()


@dataclass(frozen=True, kw_only=True)
class Cbr(OrderOptions):
    """CBR: order by slots for senders with a steady rate (paper 000 §4)."""

    order = "cbr"

    grades: Grades = GRADES_OPTION.field()
    reliable: Redundancy | None = RELIABLE_OPTION.field()
    reservation: Reservation = RESERVATION.field()


@dataclass(frozen=True, kw_only=True)
class Leader(OrderOptions):
    """A leader broadcasts all messages in its order (paper 000 §8)."""

    order = "leader"

    processing: str = PROCESSING.field()
    reliable: Redundancy | None = RELIABLE_OPTION.field()


@dataclass(frozen=True, kw_only=True)
class Timestamp(OrderOptions):
    """Senders broadcast their messages, and a leader gives them timestamps (paper 000 §8)."""

    order = "timestamp"

    processing: str = PROCESSING.field()
    reliable: Redundancy | None = RELIABLE_OPTION.field()


@dataclass(frozen=True, kw_only=True)
class Consensus(OrderOptions):
    """Order by consensus among a majority; safe without any assumption on delays and clocks (paper 003)."""

    order = "consensus"


@dataclass(frozen=True, kw_only=True)
class Priority(OrderOptions):
    """Urgent messages overtake queued ones at every member (paper 004).

    With `coordinator`, one member decides the order of new messages instead of all members together.
    """

    order = "priority"

    coordinator: bool = False
    state: StateHolder | None = STATE.field()
    rejoin: bool = REJOIN.field()

    def __post_init__(self) -> None:
        super().__post_init__()
        FLAG.check("coordinator", self.coordinator)

    @property
    def name(self) -> OrderName:
        """The name of the order."""
        return "priority_coordinator" if self.coordinator else "priority"


@dataclass(frozen=True, kw_only=True)
class QuasiGenuine(OrderOptions):
    """One order over messages to several groups; only related groups communicate (paper 003)."""

    order = "quasi_genuine"

    topology: Topology | Multigroup = dataclasses.field(metadata={"option": TOPOLOGY})


@dataclass(frozen=True, kw_only=True)
class Service(OrderOptions):
    """A multicast without a total order, over reliable multicast (paper 002 §2.2)."""

    service: ServiceName = "reliable"
    reliable: Redundancy = dataclasses.field(default=SERVICE_REDUNDANCY, metadata={"option": RELIABLE_OPTION})
    failures: bool = FAILURES.field()

    def __post_init__(self) -> None:
        super().__post_init__()
        _SERVICES.check("service", self.service)

    @property
    def name(self) -> OrderName:
        """The name of the order."""
        return self.service


_CLASSES: Final[Mapping[OrderName, tuple[type[OrderOptions], dict[str, Any]]]] = {
    "vbr": (Vbr, {}),
    "cbr": (Cbr, {}),
    "leader": (Leader, {}),
    "timestamp": (Timestamp, {}),
    "consensus": (Consensus, {}),
    "priority": (Priority, {}),
    "priority_coordinator": (Priority, {"coordinator": True}),
    "quasi_genuine": (QuasiGenuine, {}),
    **{name: (Service, {"service": name}) for name in get_args(ServiceName)},
}
"""By the name of an order: its class, and the values of the class that stand for the name."""

ORDER_NAMES: Final[tuple[OrderName, ...]] = get_args(OrderName)


def order_class(name: str) -> type[OrderOptions]:
    """The class of an order's options; raises InvalidOption for an unknown name."""
    for known, (found, _) in _CLASSES.items():
        if known == name:
            return found
    near = get_close_matches(name, ORDER_NAMES, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise InvalidOption("order", f"expected one of {', '.join(sorted(ORDER_NAMES))}, got {name!r}{hint}")


def order_options(name: str, values: Mapping[str, Any] | None = None) -> OrderOptions:
    """The options of the order `name`, with these values; raises InvalidOption for an option that the order lacks."""
    found = order_class(name)
    known = {option.name for option in options_of(found)}
    given = values or {}
    for field in given:
        if field not in known:
            raise InvalidOption(field, f"the order {name} does not have this option{_orders_with(field)}")
    if found is QuasiGenuine and "topology" not in given:
        raise InvalidOption("topology", "the order quasi_genuine needs a topology; give QuasiGenuine(topology=…)")
    fixed = next(fixed for known_name, (_, fixed) in _CLASSES.items() if known_name == name)
    return found(**fixed, **given)


def order_options_of(name: str, settings: OrderSettings, theta_ns: int) -> OrderOptions:
    """The options of the order `name` that correspond to the settings of a policy or scenario."""
    values: dict[str, Any] = {"slot": exact_duration_text(theta_ns)}
    for option in options_of(order_class(name)):
        if hasattr(settings, option.policy_field):
            value = getattr(settings, option.policy_field)
            values[option.name] = value if option.from_policy is None else option.from_policy(value)
    return order_options(name, values)


def _orders_with(field: str) -> str:
    """The part of an error that names the orders with an option; empty if no order has it."""
    names = [name for name, (each, _) in _CLASSES.items() if field in {option.name for option in options_of(each)}]
    return f"; orders that do: {', '.join(names)}" if names else ""


def text_options() -> tuple[Option, ...]:
    """The options of all orders that files and the command line can give, each once."""
    found = {option.name: option for each, _ in _CLASSES.values() for option in options_of(each) if option.form}
    return tuple(found.values())
