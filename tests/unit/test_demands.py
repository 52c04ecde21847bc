"""Demands on marks: how they travel, and what follows from everybody's."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.model.events import SlaCleared, SlaVerdict, SlaViolation
from unisono.model.metrics import METRICS
from unisono.model.settings import Settings, strongest
from unisono.orders.demands import Demands
from unisono.wire.control import DEMAND_MAX, encode_demand, encode_wish, join_wishes, split_wishes
from unisono.wire.demand import NAME_MAX, decode_command, decode_settings, encode_command, encode_settings

MS = 1_000_000

SETTINGS = st.builds(
    Settings,
    copies=st.none() | st.tuples(st.integers(0, 254), st.integers(1_000, 2**40), st.integers(0, 2**40)),
    fec=st.none() | st.integers(1, 100).flatmap(lambda a: st.tuples(st.just(a), st.integers(a + 1, 256))),
    theta_ns=st.none() | st.integers(MS, 50 * MS),
)


@given(SETTINGS)
def test_settings_survive_the_wire(settings: Settings) -> None:
    assert decode_settings(encode_settings(settings)) == settings


WINDOWS = st.fixed_dictionaries({"window_start_ns": st.integers(0, 2**62), "window_ns": st.integers(0, 2**62)})
NAMES = st.text("few losses: ü€𝄞", min_size=1, max_size=15)
IDS = st.binary(min_size=8, max_size=8).map(bytes.hex)
WHERE = st.none() | st.integers(1, 65535)
FINITE = st.floats(0, 1e18)
VIOLATIONS = st.builds(
    lambda window, **fields: SlaViolation("system sla", "text", **window, **fields),
    window=WINDOWS,
    member=WHERE,
    id=IDS,
    sla=NAMES,
    metric=st.sampled_from(sorted(METRICS)),
    bound=FINITE,
    measured=FINITE,
    probability=FINITE,
    link=st.integers(0, 65535),
)
CLEARANCES = st.builds(
    lambda window, **fields: SlaCleared("system sla cleared", "text", **window, **fields),
    window=WINDOWS,
    member=WHERE,
    id=IDS,
    sla=NAMES,
)


@given(SETTINGS, st.none() | VIOLATIONS | CLEARANCES)
def test_a_verdict_survives_the_wire_with_its_settings(settings: Settings, verdict: SlaVerdict | None) -> None:
    body = encode_command(settings, verdict)
    assert len(body) <= DEMAND_MAX
    command = decode_command(body)
    assert command is not None
    assert command[0] == settings
    if verdict is None or command[1] is None:
        assert command[1] == verdict
    else:
        assert replace(command[1], text="text") == verdict
        assert repr(command[1].sla) in command[1].text


def test_a_long_name_is_cut_between_two_letters() -> None:
    event = SlaCleared("system sla cleared", "", sla="ü" * 100, id="00" * 8)
    command = decode_command(encode_command(Settings(), event))
    assert command is not None
    assert command[1] is not None
    assert command[1].sla == "ü" * (NAME_MAX // 2)


@given(st.binary(max_size=DEMAND_MAX))
def test_other_bytes_are_no_verdict_or_one_that_can_be(body: bytes) -> None:
    for candidate in (body, encode_settings(Settings()) + body):
        command = decode_command(candidate)
        if command is not None:
            again = decode_command(encode_command(*command))
            assert again == command


@given(st.binary(max_size=80))
def test_other_bytes_are_no_settings_or_ones_that_can_be(body: bytes) -> None:
    settings = decode_settings(body)
    assert settings is None or decode_settings(encode_settings(settings)) == settings


@given(st.lists(SETTINGS, max_size=5))
def test_what_satisfies_all_does_not_depend_on_their_order(demands: list[Settings]) -> None:
    assert len({strongest(order) for order in itertools.permutations(demands)}) <= 1


def test_the_strongest_of_each_is_taken() -> None:
    one = Settings((2, 8 * MS, 0), (1, 5), 5 * MS)
    two = Settings((3, 4 * MS, MS), None, 2 * MS)
    assert strongest([one, two]) == Settings((3, 4 * MS, MS), (1, 5), 2 * MS)
    assert strongest([Settings((2, 8 * MS, 0)), Settings((2, 4 * MS, 0))]).copies == (2, 4 * MS, 0)
    assert strongest([]) == Settings()


@pytest.mark.parametrize("wish", [None, 5 * MS])
@pytest.mark.parametrize("demand", [None, (7, b"abc")])
def test_a_mark_carries_either_or_both(wish: int | None, demand: tuple[int, bytes] | None) -> None:
    body = join_wishes(None if wish is None else encode_wish(wish), None if demand is None else encode_demand(*demand))
    expected = None if wish is None and demand is None else (wish, demand)
    assert split_wishes(body) == expected


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x",
        bytes(8),
        encode_wish(5 * MS) + b"1234567",
        encode_wish(5 * MS) + bytes(8 + DEMAND_MAX + 1),
        b"\1" * 30,
    ],
)
def test_a_mark_that_carries_something_else_is_refused(body: bytes) -> None:
    assert split_wishes(body) is None


def test_a_demand_is_said_in_a_row_and_delivered_with_the_last() -> None:
    one, two = Demands(2), Demands(2)
    assert one.said(10) is None
    one.ask(b"first")
    said = {slot: one.said(slot) for slot in range(11, 16)}
    assert [slot for slot, body in said.items() if body is not None] == [11, 12, 13]
    # The first is lost: the others say the same.
    for slot in (12, 13):
        wishes = split_wishes(join_wishes(None, said[slot]))
        assert wishes is not None
        assert wishes[1] is not None
        two.heard(1, *wishes[1])
        assert two.decide(slot) == ([] if slot < 13 else [(1, b"first", 13)])
    assert two.decide(14) == []


def test_demands_of_one_slot_are_delivered_in_the_members_order() -> None:
    demands = Demands(0)
    for sender in (3, 1, 2):
        demands.heard(sender, 5, bytes([sender]))
    assert [sender for sender, _, _ in demands.decide(5)] == [1, 2, 3]


def test_what_is_to_be_kept_is_said_to_the_end_one_after_the_other() -> None:
    demands = Demands(1)
    demands.ask(b"settings")
    demands.ask(b"first", keep=True)
    demands.ask(b"second", keep=True)
    demands.ask(b"older settings")
    demands.ask(b"newer settings")
    said = [demands.said(slot) for slot in range(10, 18)]
    expected = [(10, b"first"), (12, b"second"), (14, b"newer settings")]
    assert said == [encode_demand(*each) for each in expected for _ in range(2)] + [None, None]
    demands.ask(b"settings")
    assert demands.said(20) == encode_demand(20, b"settings")
    demands.ask(b"others")
    assert demands.said(21) == encode_demand(21, b"others")
