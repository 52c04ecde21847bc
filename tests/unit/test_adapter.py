"""One member adapts with its group: its requests, the settings that follow from all requests, and refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from unisono.errors import SlaError
from unisono.model.delays import Histogram
from unisono.model.events import Notice, SlaViolation, View, ViolationKind
from unisono.model.policy import Policy, Redundancy, Settings
from unisono.model.sla import MetricRow, Side
from unisono.model.text.sla import parse_slas
from unisono.model.timing import Timing
from unisono.model.units import Rate
from unisono.qos.adapt.controller import DEPARTED_REQUEST_KEPT_NS, Adapter

MS = 1_000_000
S = 1000 * MS
COPIES = Redundancy.of_ns(1, 8 * MS, 8 * MS)
POLICY = Policy(
    *("g", 1, View((1, 2, 3)), Timing(60 * MS, MS, 5 * MS), Rate(50, 8)),
    failures=True,
    reliable=COPIES,
    rho_most=4,
)
SLA = """
[[sla]]
name = "network"
provider = "network"
consumer = "rmcast"
metric = "loss"
bound = 0.05
probability = 0.95
window = "1s"
informs = ["rmcast"]

[[sla]]
name = "own"
provider = "rmcast"
consumer = "vbr"
metric = "loss"
bound = 0.001
probability = 0.95
window = "1s"

[adaptation]
knobs = {knobs}
reliability = 0.999
"""


def adapter(knobs: str = '["rho", "eta"]', **policy: Any) -> Adapter:
    slas = parse_slas(SLA.format(knobs=knobs), "sla.toml")
    return Adapter(replace(POLICY, **policy), slas, slas.slas, "rmcast")


def rows(loss: float, number: int) -> tuple[list[MetricRow], int]:
    delays = Histogram()
    delays.add(MS, 100)
    pairs = tuple(delays.to_pairs())
    start = number * S
    lost = MetricRow("rmcast", Side.BELOW, 2, "loss", start, S, 1000, loss)
    delay = MetricRow("rmcast", Side.BELOW, 2, "delay", start, S, 100, MS, MS, pairs)
    return [lost, delay], start + S


def test_a_worse_network_makes_a_member_request_more_and_give_the_reason() -> None:
    one = adapter()
    assert one.declared == Settings((1, 8 * MS, 8 * MS))
    assert one.step(*rows(0.01, 0), ()) == (None, [])
    wanted, events = one.step(*rows(0.2, 1), ())
    assert wanted is not None
    assert wanted.redundancy is not None
    assert wanted.redundancy[0] > 1
    (notice,) = events
    assert isinstance(notice, Notice)
    assert "loss 0.2" in notice.text
    assert one.in_force == one.declared, "a request changes nothing until all members have it"


def test_the_settings_in_force_satisfy_every_member() -> None:
    one = adapter()
    more, less = Settings((3, 8 * MS, 0)), Settings((0, 8 * MS, 0))
    assert one.on_request(2, more) == more
    assert one.on_request(3, less) is None, "the others need more"
    assert one.on_request(2, less) == one.declared, "member 1 needs what was declared"
    assert one.on_request(1, less) == less


def test_the_request_of_a_departed_member_stays_for_a_while_if_it_may_return() -> None:
    more = Settings((3, 8 * MS, 0))
    for failures, patience in ((True, DEPARTED_REQUEST_KEPT_NS), (False, 0)):
        one = adapter(failures=failures)
        one.on_request(3, more)
        one.on_view(5, (1, 2))
        assert one.departed_with_request(5 + patience) == [3]
        assert patience == 0 or one.departed_with_request(4 + patience) == []
        assert one.in_force == more, "until a remaining member withdraws the request"
        assert one.on_request(3, one.declared) == one.declared
        assert one.departed_with_request(5 + patience) == []
        one.on_request(3, more)
        one.on_view(9, (1, 2, 3))
        assert one.departed_with_request(9 + patience) == [], "it is back"


def test_only_a_violation_of_the_layer_itself_forces_a_step() -> None:
    one, two = adapter(), adapter()
    for each in (one, two):
        each.step(*rows(0.01, 0), ())
    violation = SlaViolation(ViolationKind.SLA, "broken", sla="own")
    one.on_violation("rmcast")(violation)
    wanted, _ = one.step(*rows(0.01, 1), ())
    assert wanted is not None
    assert wanted.redundancy is not None
    assert wanted.redundancy[0] == 2
    assert two.step(*rows(0.01, 1), ()) == (None, [])


def test_a_promise_that_cannot_be_kept_is_a_violation_with_an_alternative() -> None:
    one = adapter()
    one.step(*rows(0.01, 0), ())
    _, events = one.step(*rows(0.9, 1), ())
    (violation,) = [event for event in events if isinstance(event, SlaViolation)]
    assert violation.kind == "cannot_hold"
    assert violation.sla == "network"
    assert "probability" in violation.offered


@pytest.mark.parametrize(
    ("knobs", "policy", "problem"),
    [
        ('["rho"]', {"reliable": None}, "a setting of reliable multicast"),
        ('["fec"]', {}, "fec is a setting of the fec layer, which this stack does not use"),
        ('["rho", "omega"]', {}, "omega follows eta"),
        ('["slot"]', {}, "adapting the slot length needs"),
        ('["rho"]', {"order": "leader"}, "only the order vbr can change settings"),
    ],
)
def test_a_setting_that_the_stack_does_not_have_is_refused(knobs: str, policy: dict[str, Any], problem: str) -> None:
    with pytest.raises(SlaError, match=rf"sla.toml:2\d: adaptation.knobs: .*{problem}"):
        adapter(knobs, **policy)
