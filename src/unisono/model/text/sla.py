"""Reads service level agreements from TOML; what is wrong is said with the file, the line, the field and what is
expected."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from functools import partial

from unisono.errors import InvalidPolicy, ScenarioError, SlaError
from unisono.model.ids import MEMBER_MAX
from unisono.model.metrics import APPLICATION, METRICS, NETWORK, Unit
from unisono.model.redundancy import RHO_MAX
from unisono.model.sla import FEC_MOST, OBSERVATIONS, RELIABILITY, RHO_MOST, Hysteresis, Sla, SlaSet
from unisono.model.text.tables import Table
from unisono.model.text.toml_lines import key_lines, line_of, syntax_line

COLLECT = "250ms"
JUDGES = ("members", "system")
KNOBS = ("rho", "eta", "omega", "fec", "slot")


def parse_slas(text: str, source: str) -> SlaSet:
    """The agreements in a TOML text; `source` is how errors name it."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SlaError(source, syntax_line(text, error), "(syntax)", f"this is not TOML: {error}") from error
    try:
        return replace(_slas(Table(source, "", values)), lines=key_lines(text))
    except ScenarioError as error:
        raise SlaError(source, line_of(text, error.field), error.field, error.problem) from error


def _slas(top: Table) -> SlaSet:
    collect_ns = top.duration("collect", COLLECT)
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
    adapt = _knobs(adaptation)
    reliability = adaptation.number("reliability", RELIABILITY, most=0.999999999)
    rho_most = adaptation.whole("rho_most", RHO_MOST)
    fec_most = adaptation.whole("fec_most", FEC_MOST)
    if rho_most > RHO_MAX:
        raise adaptation.error("rho_most", f"at most {RHO_MAX} is possible, not {rho_most}")
    by_members = adaptation.choice("judge", JUDGES, JUDGES[0]) == JUDGES[0]
    hysteresis = _hysteresis(adaptation)
    top.done()
    return SlaSet(top.source, slas, collect_ns, adapt, hysteresis, reliability, rho_most, fec_most, by_members)


def _sla(table: Table, collect_ns: int) -> Sla:
    name = table.text("name")
    if not name or len(name) > 100 or not name.isprintable():
        raise table.error("name", f"a printable name of 1 to 100 characters is needed, not {name!r}")
    metric = str(table.choice("metric", tuple(METRICS)))
    provider, consumer = _party(table, "provider"), _party(table, "consumer")
    if provider == APPLICATION:
        raise table.error("provider", "the application is at the top of the stack: it can only be the consumer")
    if consumer == NETWORK:
        raise table.error("consumer", "the network is at the bottom of the stack: it can only be the provider")
    bound = float(table.duration("bound")) if METRICS[metric].unit is Unit.NS else table.number("bound")
    probability = table.number("probability", most=1.0)
    window_ns = table.duration("window")
    if window_ns < collect_ns or window_ns % collect_ns:
        raise table.error("window", f"a whole multiple of collect, {collect_ns / 1e6:g}ms, is needed")
    links = table.wholes("links", ())
    if any(not 1 <= link <= MEMBER_MAX for link in links):
        raise table.error("links", f"a list of members' numbers is needed, not {list(links)}")
    together = table.flag("together", False)
    observations = table.whole("observations", OBSERVATIONS, least=1)
    informs = tuple(_party_name(table, "informs", word) for word in _words(table, "informs"))
    table.done()
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
    except InvalidPolicy as error:
        raise table.error(error.field, error.problem) from error


def _party(table: Table, field: str) -> str:
    return _party_name(table, field, table.text(field))


def _party_name(table: Table, field: str, word: str) -> str:
    if not word.isidentifier():
        raise table.error(field, f"application, network or a layer's name such as vbr is needed, not {word!r}")
    return word


def _words(table: Table, field: str) -> tuple[str, ...]:
    value = table.taken(field, [])
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise table.error(field, f'a list of names is needed, such as ["rmcast"], not {value!r}')
    return tuple(value)


def _knobs(table: Table) -> tuple[str, ...]:
    knobs = _words(table, "knobs")
    for knob in knobs:
        if knob not in KNOBS:
            raise table.error("knobs", f"{', '.join(KNOBS)} can be adapted, not {knob!r}")
    return knobs


def _hysteresis(table: Table) -> Hysteresis:
    usual = Hysteresis()
    values = {
        "raise_after": table.whole("raise_after", usual.raise_after),
        "lower_after": table.whole("lower_after", usual.lower_after),
        "margin": table.number("margin", usual.margin),
    }
    table.done()
    try:
        return Hysteresis(int(values["raise_after"]), int(values["lower_after"]), values["margin"])
    except InvalidPolicy as error:
        raise table.error(error.field, error.problem) from error
