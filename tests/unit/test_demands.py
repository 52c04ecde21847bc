"""Demands on marks: how they travel, and what follows from everybody's."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.model.events import NoticeKind, SlaCleared, SlaVerdict, SlaViolation, ViolationKind
from unisono.model.metrics import METRICS
from unisono.model.policy import Policy
from unisono.model.rates import Rate
from unisono.model.settings import Settings, strongest
from unisono.model.slot_schedule import SlotGrid
from unisono.model.timing import Timing
from unisono.model.views import View
from unisono.orders.vbr.order import Vbr
from unisono.orders.vbr.slots import SettingRequests, effective_from, effective_slot
from unisono.stack import build
from unisono.wire.control import decode_mark_requests, encode_mark_requests, encode_slot_request
from unisono.wire.setting_requests import (
    NAME_MAX_BYTES,
    SETTING_REQUEST_CONTENT_MAX_BYTES,
    SettingRequest,
    decode_setting_requests,
    decode_settings,
    decode_settings_with_verdict,
    encode_setting_requests,
    encode_settings,
    encode_settings_with_verdict,
)

MS = 1_000_000

SETTINGS = st.builds(
    Settings,
    redundancy=st.none() | st.tuples(st.integers(0, 254), st.integers(1_000, 2**40), st.integers(0, 2**40)),
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
    lambda window, **fields: SlaViolation(ViolationKind.SYSTEM_SLA, "text", **window, **fields),
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
    lambda window, **fields: SlaCleared(NoticeKind.SYSTEM_SLA_CLEARED, "text", **window, **fields),
    window=WINDOWS,
    member=WHERE,
    id=IDS,
    sla=NAMES,
)


@given(SETTINGS, st.none() | VIOLATIONS | CLEARANCES)
def test_a_verdict_survives_the_wire_with_its_settings(settings: Settings, verdict: SlaVerdict | None) -> None:
    body = encode_settings_with_verdict(settings, verdict)
    assert len(body) <= SETTING_REQUEST_CONTENT_MAX_BYTES
    command = decode_settings_with_verdict(body)
    assert command is not None
    assert command[0] == settings
    if verdict is None or command[1] is None:
        assert command[1] == verdict
    else:
        assert replace(command[1], text="text") == verdict
        assert repr(command[1].sla) in command[1].text


def test_a_long_name_is_cut_between_two_letters() -> None:
    event = SlaCleared(NoticeKind.SYSTEM_SLA_CLEARED, "", sla="ü" * 100, id="00" * 8)
    command = decode_settings_with_verdict(encode_settings_with_verdict(Settings(), event))
    assert command is not None
    assert command[1] is not None
    assert command[1].sla == "ü" * (NAME_MAX_BYTES // 2)


@given(st.binary(max_size=SETTING_REQUEST_CONTENT_MAX_BYTES))
def test_other_bytes_are_no_verdict_or_one_that_can_be(body: bytes) -> None:
    for candidate in (body, encode_settings(Settings()) + body):
        command = decode_settings_with_verdict(candidate)
        if command is not None:
            again = decode_settings_with_verdict(encode_settings_with_verdict(*command))
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
    assert strongest([Settings((2, 8 * MS, 0)), Settings((2, 4 * MS, 0))]).redundancy == (2, 4 * MS, 0)
    assert strongest([]) == Settings()


@pytest.mark.parametrize("wish", [None, 5 * MS])
@pytest.mark.parametrize(
    "demands", [(), (SettingRequest(7, 2, b"abc"),), (SettingRequest(7, 2, b"abc"), SettingRequest(3, 1, bytes(160)))]
)
def test_a_mark_carries_either_or_both(wish: int | None, demands: tuple[SettingRequest, ...]) -> None:
    body = encode_mark_requests(None if wish is None else encode_slot_request(wish), encode_setting_requests(demands))
    expected = None if wish is None and not demands else (wish, demands)
    assert decode_mark_requests(body) == expected


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x",
        bytes(8),
        encode_slot_request(5 * MS) + b"1234567",
        encode_slot_request(5 * MS)
        + encode_setting_requests([SettingRequest(1, 1, bytes(SETTING_REQUEST_CONTENT_MAX_BYTES + 1))]),
        encode_slot_request(5 * MS) + encode_setting_requests([SettingRequest(1, 1, b"")]),
        encode_slot_request(5 * MS) + encode_setting_requests([SettingRequest(1, 1, b"cut short")])[:-1],
        b"\1" * 30,
    ],
)
def test_a_mark_that_carries_something_else_is_refused(body: bytes) -> None:
    assert decode_mark_requests(body) is None


@given(st.binary(max_size=120))
def test_other_bytes_are_no_demands_or_ones_that_can_be(body: bytes) -> None:
    demands = decode_setting_requests(body)
    assert demands is None or encode_setting_requests(demands) == body


def demands_of(member: int, room: int = 8) -> SettingRequests:
    """What is said first in slot n counts from slot n + 10 on."""
    return SettingRequests(member, (1, 2, 3), lambda origin: origin + 10, room)


def test_a_demand_is_passed_on_by_who_has_heard_it_and_counts_at_one_slot() -> None:
    one, two, three = (demands_of(member) for member in (1, 2, 3))
    assert one.to_send(10) == []
    one.request(b"more")
    (demand,) = one.to_send(11)
    assert demand == SettingRequest(11, 1, b"more")
    assert one.to_send(12) == [demand], "again, with the same origin"
    two.receive([demand], 14)
    assert two.to_send(15) == [demand]
    three.receive(two.to_send(16), 18)  # which hears nothing of member 1
    for each in (one, two, three):
        assert each.pop_due(20) == []
        assert each.pop_due(21) == [(demand, 21)]
        assert each.pop_due(22) == []
        assert not each.missed
    two.receive([demand], 30)
    assert not two.missed, "known already"


def test_who_hears_of_a_demand_too_late_says_so() -> None:
    one, absent = demands_of(2), demands_of(3)
    demand = SettingRequest(11, 1, b"more")
    one.receive([demand], 21)
    assert one.missed == [demand]
    absent.receive([demand], None)
    assert not absent.missed, "who is not sending has not missed anything"
    assert absent.pop_due(40) == [(demand, 21)]


def test_what_is_said_ends_but_can_be_said_again_with_the_old_origin() -> None:
    one, two = demands_of(1), demands_of(2)
    one.request(b"more")
    (demand,) = one.to_send(5)
    said = [slot for slot in range(6, 90) if one.pop_due(slot) is not None and one.to_send(slot)]
    assert said == list(range(6, said[-1] + 1))
    assert 15 < said[-1] < 40
    one.request(b"more")
    assert one.to_send(90) == [demand]
    two.receive([demand], 90)
    assert two.missed == [demand]
    one.request(b"less")
    assert one.to_send(91) == [demand, SettingRequest(91, 1, b"less")]


def test_those_of_one_slot_are_taken_in_the_members_order_and_old_ones_not_at_all() -> None:
    demands = demands_of(1)
    demands.receive([SettingRequest(5, member, bytes([member])) for member in (3, 2)], 6)
    assert [demand.member for demand, _ in demands.pop_due(15)] == [2, 3]
    demands.receive([SettingRequest(4, 2, b"older")], 16)
    demands.receive([SettingRequest(6, 9, b"of a stranger")], 16)
    assert (demands.pop_due(30), demands.missed) == ([], [])
    assert demands.snapshot() == (SettingRequest(5, 2, b"\2"), SettingRequest(5, 3, b"\3"))


def test_where_room_is_short_all_have_their_turn() -> None:
    demands = demands_of(1, room=2)
    demands.receive([SettingRequest(5, member, b"x") for member in (1, 2, 3)], 6)
    said = [demands.to_send(slot) for slot in range(6, 9)]
    assert all(len(each) == 2 for each in said)
    assert {demand.member for each in said for demand in each} == {1, 2, 3}


def test_who_is_gone_can_be_spoken_for() -> None:
    one = demands_of(1)
    one.receive([SettingRequest(5, 3, b"more")], 6)
    one.pop_due(15)
    one.request(b"nothing", 3)
    assert SettingRequest(16, 3, b"nothing") in one.to_send(16)
    assert [demand.content for demand, _ in one.pop_due(26)] == [b"nothing"]


@pytest.mark.parametrize("delta", [1, 10, 40])
def test_without_failures_no_member_is_so_far_ahead_that_it_could_miss_a_demand(delta: int) -> None:
    grid = SlotGrid.of(Timing(delta * MS, MS, 5 * MS))
    order = build(Policy("g", 1, View((1, 2)), Timing(delta * MS, MS, 5 * MS), Rate(100, 5))).order
    assert isinstance(order, Vbr)
    assert effective_from(grid, 1000, None) > 1000 + 2 * order.window_slots
    assert effective_from(grid, 1000, 4) > effective_slot(grid, 1004)


def test_what_is_to_be_kept_is_said_first_each_in_a_slot_of_its_own() -> None:
    demands = demands_of(1)
    demands.request(b"settings")
    demands.request(b"first", keep=True)
    demands.request(b"second", keep=True)
    demands.request(b"newer settings")
    for slot in range(10, 13):
        demands.to_send(slot)
    assert demands.to_send(13) == [
        SettingRequest(10, 1, b"first"),
        SettingRequest(11, 1, b"second"),
        SettingRequest(12, 1, b"newer settings"),
    ]
    assert [demand.content for demand, _ in demands.pop_due(30)] == [b"first", b"second", b"newer settings"]
