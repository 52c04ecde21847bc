"""Reads service level agreements from TOML. Errors name the file, the line, the field and the expected value."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from functools import partial

from unisono.errors import InvalidOption, ScenarioError, SlaError
from unisono.model.policy import RHO_MAX
from unisono.model.sla import (
    APPLICATION,
    FEC_MOST,
    METRICS,
    MIN_OBSERVATIONS,
    NETWORK,
    RELIABILITY,
    RHO_MOST,
    Hysteresis,
    Sla,
    SlaSet,
    Unit,
)
from unisono.model.text.toml import TomlTable, key_lines, line_of, syntax_line
from unisono.model.units import MEMBER_MAX, duration_text

COLLECT_DEFAULT = "250ms"
EVALUATORS = ("members", "system")
ADAPTABLE_SETTINGS = ("rho", "eta", "omega", "fec", "slot")


def parse_slas(text: str, source: str) -> SlaSet:
    """Parse the agreements in a TOML text. Errors name the text by `source`."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SlaError(source, syntax_line(text, error), "(syntax)", f"not valid TOML: {error}") from error
    try:
        return replace(_slas(TomlTable(source, "", values)), lines=key_lines(text))
    except ScenarioError as error:
        raise SlaError(source, line_of(text, error.field), error.field, error.problem) from error


def _slas(top: TomlTable) -> SlaSet:
    collect_ns = top.duration("collect", COLLECT_DEFAULT)
    if collect_ns < 1_000_000:
        raise top.error("collect", f"expected at least 1ms, got {duration_text(collect_ns)}")
    tables = top.tables("sla")
    if not tables:
        raise top.error("sla", "expected at least one agreement under [[sla]], got none")
    slas = tuple(_sla(table, collect_ns) for table in tables)
    for number, sla in enumerate(slas):
        if sla.name in {earlier.name for earlier in slas[:number]}:
            raise tables[number].error("name", f"{sla.name!r} is already the name of an earlier agreement; use another")
    adaptation = top.table("adaptation")
    adapt = _adaptable_settings(adaptation)
    reliability = adaptation.number("reliability", RELIABILITY, maximum=0.999999999)
    rho_most = adaptation.integer("rho_most", RHO_MOST)
    fec_most = adaptation.integer("fec_most", FEC_MOST)
    if rho_most > RHO_MAX:
        raise adaptation.error("rho_most", f"expected at most {RHO_MAX}, got {rho_most}")
    by_members = adaptation.choice("judge", EVALUATORS, EVALUATORS[0]) == EVALUATORS[0]
    hysteresis = _hysteresis(adaptation)
    top.reject_unknown_fields()
    return SlaSet(top.source, slas, collect_ns, adapt, hysteresis, reliability, rho_most, fec_most, by_members)


def _sla(table: TomlTable, collect_ns: int) -> Sla:
    name = table.text("name")
    if not name or len(name) > 100 or not name.isprintable():
        raise table.error("name", f"expected a printable name of 1 to 100 characters, got {name!r}")
    metric = str(table.choice("metric", tuple(METRICS)))
    provider, consumer = _layer(table, "provider"), _layer(table, "consumer")
    if provider == APPLICATION:
        raise table.error("provider", "expected a layer or network; the application can only be the consumer")
    if consumer == NETWORK:
        raise table.error("consumer", "expected a layer or application; the network can only be the provider")
    bound = float(table.duration("bound")) if METRICS[metric].unit is Unit.NS else table.number("bound")
    probability = table.number("probability", maximum=1.0)
    window_ns = table.duration("window")
    if window_ns < collect_ns or window_ns % collect_ns:
        raise table.error(
            "window",
            f"expected a whole multiple of collect = {collect_ns / 1e6:g}ms, got {duration_text(window_ns)}",
        )
    links = table.integers("links", ())
    if any(not 1 <= link <= MEMBER_MAX for link in links):
        raise table.error("links", f"expected a list of member numbers from 1 to {MEMBER_MAX}, got {list(links)}")
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
        raise table.error(field, f"expected application, network or a layer's name such as vbr, got {name!r}")
    return name


def _names(table: TomlTable, field: str) -> tuple[str, ...]:
    value = table.pop(field, [])
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise table.error(field, f'expected a list of names, such as ["rmcast"], got {value!r}')
    return tuple(value)


def _adaptable_settings(table: TomlTable) -> tuple[str, ...]:
    names = _names(table, "knobs")
    for name in names:
        if name not in ADAPTABLE_SETTINGS:
            raise table.error("knobs", f"expected names among {', '.join(ADAPTABLE_SETTINGS)}, got {name!r}")
    return names


def _hysteresis(table: TomlTable) -> Hysteresis:
    defaults = Hysteresis()
    values = {
        "raise_after": table.integer("raise_after", defaults.raise_after),
        "lower_after": table.integer("lower_after", defaults.lower_after),
        "margin": table.number("margin", defaults.margin),
    }
    table.reject_unknown_fields()
    try:
        return Hysteresis(int(values["raise_after"]), int(values["lower_after"]), values["margin"])
    except InvalidOption as error:
        raise table.error(error.field, error.problem) from error
