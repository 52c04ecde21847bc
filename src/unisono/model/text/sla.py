"""Reads service level agreements from TOML; what is wrong is said with the file, the line, the field and what is
expected."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from functools import partial

from unisono.errors import InvalidOption, ScenarioError, SlaError
from unisono.model.ids import MEMBER_MAX
from unisono.model.metrics import APPLICATION, METRICS, NETWORK, Unit
from unisono.model.redundancy import RHO_MAX
from unisono.model.sla import FEC_MOST, MIN_OBSERVATIONS, RELIABILITY, RHO_MOST, Hysteresis, Sla, SlaSet
from unisono.model.text.tables import TomlTable
from unisono.model.text.toml_lines import key_lines, line_of, syntax_line

COLLECT_DEFAULT = "250ms"
EVALUATORS = ("members", "system")
ADAPTABLE_SETTINGS = ("rho", "eta", "omega", "fec", "slot")


def parse_slas(text: str, source: str) -> SlaSet:
    """The agreements in a TOML text; `source` is how errors name it."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SlaError(source, syntax_line(text, error), "(syntax)", f"this is not TOML: {error}") from error
    try:
        return replace(_slas(TomlTable(source, "", values)), lines=key_lines(text))
    except ScenarioError as error:
        raise SlaError(source, line_of(text, error.field), error.field, error.problem) from error


def _slas(top: TomlTable) -> SlaSet:
    collect_ns = top.duration("collect", COLLECT_DEFAULT)
    if collect_ns < 1_000_000:
        raise top.error("collect", "at least 1ms is needed")
    tables = top.tables("sla")
    if not tables:
        raise top.error("sla", "is missing: at least one agreement is needed, under [[sla]]")
    slas = tuple(_sla(table, collect_ns) for table in tables)
    for number, sla in enumerate(slas):
        if sla.name in {earlier.name for earlier in slas[:number]}:
            raise tables[number].error("name", f"{sla.name!r} is the name of an agreement above")
    adaptation = top.table("adaptation")
    adapt = _adaptable_settings(adaptation)
    reliability = adaptation.number("reliability", RELIABILITY, maximum=0.999999999)
    rho_most = adaptation.integer("rho_most", RHO_MOST)
    fec_most = adaptation.integer("fec_most", FEC_MOST)
    if rho_most > RHO_MAX:
        raise adaptation.error("rho_most", f"at most {RHO_MAX} is possible, not {rho_most}")
    by_members = adaptation.choice("judge", EVALUATORS, EVALUATORS[0]) == EVALUATORS[0]
    hysteresis = _hysteresis(adaptation)
    top.reject_unknown_fields()
    return SlaSet(top.source, slas, collect_ns, adapt, hysteresis, reliability, rho_most, fec_most, by_members)


def _sla(table: TomlTable, collect_ns: int) -> Sla:
    name = table.text("name")
    if not name or len(name) > 100 or not name.isprintable():
        raise table.error("name", f"a printable name of 1 to 100 characters is needed, not {name!r}")
    metric = str(table.choice("metric", tuple(METRICS)))
    provider, consumer = _layer(table, "provider"), _layer(table, "consumer")
    if provider == APPLICATION:
        raise table.error("provider", "the application is at the top of the stack: it can only be the consumer")
    if consumer == NETWORK:
        raise table.error("consumer", "the network is at the bottom of the stack: it can only be the provider")
    bound = float(table.duration("bound")) if METRICS[metric].unit is Unit.NS else table.number("bound")
    probability = table.number("probability", maximum=1.0)
    window_ns = table.duration("window")
    if window_ns < collect_ns or window_ns % collect_ns:
        raise table.error("window", f"a whole multiple of collect, {collect_ns / 1e6:g}ms, is needed")
    links = table.integers("links", ())
    if any(not 1 <= link <= MEMBER_MAX for link in links):
        raise table.error("links", f"a list of members' numbers is needed, not {list(links)}")
    together = table.flag("together", False)
    observations = table.integer("observations", MIN_OBSERVATIONS, minimum=1)
    informs = tuple(_layer_name(table, "informs", word) for word in _names(table, "informs"))
    table.reject_unknown_fields()
    make = partial(
        Sla,
        name=name,
        provider=provider,
        consumer=consumer,
        metric=metric,
        bound=bound,
        probability=probability,
        window_ns=window_ns,
        links=links,
        together=together,
        observations=observations,
        informs=informs,
    )
    try:
        return make()
    except InvalidOption as error:
        raise table.error(error.field, error.problem) from error


def _layer(table: TomlTable, field: str) -> str:
    return _layer_name(table, field, table.text(field))


def _layer_name(table: TomlTable, field: str, name: str) -> str:
    if not name.isidentifier():
        raise table.error(field, f"application, network or a layer's name such as vbr is needed, not {name!r}")
    return name


def _names(table: TomlTable, field: str) -> tuple[str, ...]:
    value = table.pop(field, [])
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise table.error(field, f'a list of names is needed, such as ["rmcast"], not {value!r}')
    return tuple(value)


def _adaptable_settings(table: TomlTable) -> tuple[str, ...]:
    knobs = _names(table, "knobs")
    for knob in knobs:
        if knob not in ADAPTABLE_SETTINGS:
            raise table.error("knobs", f"{', '.join(ADAPTABLE_SETTINGS)} can be adapted, not {knob!r}")
    return knobs


def _hysteresis(table: TomlTable) -> Hysteresis:
    usual = Hysteresis()
    values = {
        "raise_after": table.integer("raise_after", usual.raise_after),
        "lower_after": table.integer("lower_after", usual.lower_after),
        "margin": table.number("margin", usual.margin),
    }
    table.reject_unknown_fields()
    try:
        return Hysteresis(int(values["raise_after"]), int(values["lower_after"]), values["margin"])
    except InvalidOption as error:
        raise table.error(error.field, error.problem) from error
