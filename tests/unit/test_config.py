"""The configuration: a value of a wrong type is refused at once, and the error names the field and an example."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

import pytest

import unisono
from unisono.config import parse_config
from unisono.model.options import order_options

PEERS = "[peers]\n1 = '127.0.0.1:9001'\n"
ANY = cast("Any", unisono)
"""The package without types: a type checker refuses every call below."""


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: ANY.Config(status_socket="no"), "status_socket: expected True or False, got 'no'"),
        (lambda: ANY.Config(status_socket=0), "status_socket: expected True or False, got 0"),
        (lambda: ANY.Config(max_message="4k"), "max_message: expected a whole number of at least 0, such as "),
        (lambda: ANY.Config(max_message=True), "max_message: expected a whole number of at least 0, such as "),
        (lambda: ANY.Config(queue_messages=1.5), "queue_messages: expected a whole number of at least 0, such as "),
        (lambda: ANY.Config(rate=50), "rate: expected a Rate, such as Rate(avg=50, burst=8), got 50"),
        (lambda: ANY.Config(network={}), "network: expected a Network, such as Network(delta='20ms'), got {}"),
        (lambda: ANY.Config(observe=True), "observe: expected an Observe, such as Observe(metrics=True), got True"),
        (lambda: ANY.Config(order=ANY.Vbr), "order: expected the name or the options of an order, such as 'vbr' or "),
        (lambda: ANY.Config(group=7), "group: expected the name of the group, such as 'table-7', got 7"),
        (lambda: ANY.Config(member="1"), "member: expected the number of this member, such as 1, got '1'"),
        (lambda: ANY.Config(storage=7), "storage: expected the path of a file, such as "),
        (lambda: ANY.Config(gaps=True), "gaps: expected one of 'never', 'repaired', 'allowed', got True"),
        (lambda: ANY.Config(timeout=None), "timeout: expected a duration with a unit, such as '5ms', got None"),
        (lambda: ANY.Network(loss="0.1"), "loss: expected a share from 0 to less than 1, such as 0.01, got '0.1'"),
        (lambda: ANY.Network(link=100), "link: expected a capacity such as '100Mbit/s', or a Link('100Mbit/s')"),
        (lambda: ANY.Network(multicast=7776), "multicast: expected an address and port, such as '239.1.2.3:7776'"),
        (lambda: ANY.Network(max_frame="1400"), "max_frame: expected a whole number of at least 0, such as "),
        (lambda: ANY.Observe(sla=True), "sla: expected an SlaSet or the path of a file, such as 'sla.toml', got True"),
        (lambda: ANY.Observe(metrics="yes"), "metrics: expected True, False or a function that takes rows, got 'yes'"),
        (lambda: ANY.Observe(recorder="folder"), "recorder: expected the recorder of a trace, such as "),
        (lambda: ANY.Vbr(failures="yes"), "failures: expected True or False, got 'yes'"),
        (lambda: ANY.Vbr(loss_burst="2"), "loss_burst: expected a whole number of at least 0, such as "),
        (lambda: ANY.Vbr(fec="2/10"), "fec: expected two numbers (a, b), such as (2, 10), got '2/10'"),
        (lambda: ANY.Vbr(grades=None), "grades: expected one of 'early', 'final', 'both', got None"),
        (lambda: ANY.Cbr(reliable=3), "reliable: expected a Redundancy, such as Redundancy(4, eta='6ms', omega="),
        (
            lambda: ANY.Service(reliable=None),
            "reliable: expected a Redundancy, such as Redundancy(4, eta='6ms', omega=",
        ),
        (lambda: ANY.Priority(coordinator="no"), "coordinator: expected True or False, got 'no'"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_by_name(make: Callable[[], object], error: str) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(error)}"):
        make()


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: unisono.Network(loss=1.0), "loss"),
        (lambda: unisono.Network(loss=float("nan")), "loss"),
        (lambda: unisono.Network(link="fast"), "link"),
        (lambda: unisono.Network(max_frame=-5), "max_frame"),
        (lambda: unisono.Vbr(loss_burst=-1), "loss_burst"),
        (lambda: ANY.Vbr(grades="erly"), "grades"),
        (lambda: ANY.Config(gaps="sometimes"), "gaps"),
        (lambda: ANY.Config(fsync="often", storage="x"), "fsync"),
        (lambda: ANY.Service(service="fif"), "service"),
    ],
)
def test_a_wrong_value_is_refused_by_name(make: Callable[[], object], field: str) -> None:
    with pytest.raises(unisono.InvalidOption) as no:
        make()
    assert no.value.field == field


def test_values_of_every_allowed_type_are_accepted() -> None:
    for loss in (0, 0.1, 1e-7):
        assert unisono.Network(loss=loss).loss == loss
    link = unisono.Link("10Mbit/s")
    assert unisono.Network(link=link, multicast=("239.1.2.3", 7776), max_frame=None).link is link
    rows: list[object] = []
    assert unisono.Observe(metrics=rows.extend).metrics == rows.extend
    assert unisono.Vbr(fec=(2, 10), failures=True, reliable=unisono.Redundancy(1, eta="1ms")).fec == (2, 10)
    for order in ("auto", "vbr", order_options("leader")):
        assert ANY.Config(order=order).order == order


def test_a_sync_policy_needs_a_storage() -> None:
    peers = {1: "127.0.0.1:9001"}
    with pytest.raises(unisono.InvalidOption, match=r"^fsync: 'never' has no effect without storage; give"):
        unisono.join("g", member=1, peers=peers, config=unisono.Config(fsync="never"))
    assert unisono.join("g", member=1, peers=peers, storage="log", config=unisono.Config(fsync="never"))


def test_a_file_with_member_0_is_refused() -> None:
    with pytest.raises(unisono.ConfigError, match="expected a whole number of at least 1, got 0") as no:
        parse_config(f"group = 'g'\nmember = 0\n{PEERS}", "group.toml")
    assert (no.value.field, no.value.line) == ("member", 2)
    assert parse_config(f"member = 1\n{PEERS}", "group.toml").member == 1
    assert parse_config(PEERS, "group.toml").member is None
