"""Setting requests in end-of-slot marks: wire form, spreading, and the settings that satisfy all requests."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.model.events import NoticeKind, SlaCleared, SlaVerdict, SlaViolation, View, ViolationKind
from unisono.model.policy import Policy, Settings, strongest
from unisono.model.sla import METRICS
from unisono.model.timing import SlotGrid, Timing
from unisono.model.units import Rate
from unisono.orders.vbr.order import VbrOrder
from unisono.orders.vbr.slots import SettingRequests, effective_from, effective_slot
from unisono.stack import build
from unisono.wire.codec import Unreadable
from unisono.wire.control import (
    MARK_REQUESTS,
    NAME_MAX_BYTES,
    SETTING_REQUEST_CONTENT_MAX_BYTES,
    MarkRequests,
    SettingRequest,
    decode_settings,
    decode_settings_with_verdict,
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
def test_settings_round_trip_the_wire(settings: Settings) -> None:
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
def test_a_verdict_round_trips_the_wire_with_its_settings(settings: Settings, verdict: SlaVerdict | None) -> None:
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
def test_arbitrary_bytes_are_refused_or_decode_to_a_verdict_that_encodes_again(body: bytes) -> None:
    for candidate in (body, encode_settings(Settings()) + body):
        command = decode_settings_with_verdict(candidate)
        if command is not None:
            again = decode_settings_with_verdict(encode_settings_with_verdict(*command))
            assert again == command


@given(st.binary(max_size=80))
def test_arbitrary_bytes_are_refused_or_decode_to_settings_that_encode_again(body: bytes) -> None:
    settings = decode_settings(body)
    assert settings is None or decode_settings(encode_settings(settings)) == settings


@given(st.lists(SETTINGS, max_size=5))
def test_the_settings_that_satisfy_all_requests_do_not_depend_on_their_order(requests: list[Settings]) -> None:
    assert len({strongest(order) for order in itertools.permutations(requests)}) <= 1


def test_the_strongest_value_of_each_setting_wins() -> None:
    one = Settings((2, 8 * MS, 0), (1, 5), 5 * MS)
    two = Settings((3, 4 * MS, MS), None, 2 * MS)
    assert strongest([one, two]) == Settings((3, 4 * MS, MS), (1, 5), 2 * MS)
    assert strongest([Settings((2, 8 * MS, 0)), Settings((2, 4 * MS, 0))]).redundancy == (2, 4 * MS, 0)
    assert strongest([]) == Settings()


@pytest.mark.parametrize("theta_ns", [0, 5 * MS])
@pytest.mark.parametrize(
    "requests", [(), (SettingRequest(7, 2, b"abc"),), (SettingRequest(7, 2, b"abc"), SettingRequest(3, 1, bytes(160)))]
)
def test_a_mark_carries_a_slot_request_or_setting_requests_or_both(
    theta_ns: int, requests: tuple[SettingRequest, ...]
) -> None:
    mark = MarkRequests(theta_ns, requests)
    body = MARK_REQUESTS.encode(mark)
    if theta_ns or requests:
        assert MARK_REQUESTS.decode(body) == mark
    else:
        with pytest.raises(Unreadable):
            MARK_REQUESTS.decode(body)


def mark_with(content: bytes) -> bytes:
    return MARK_REQUESTS.encode(MarkRequests(5 * MS, (SettingRequest(1, 1, content),)))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x",
        bytes(8),
        MARK_REQUESTS.encode(MarkRequests(5 * MS)) + b"1234567",
        mark_with(bytes(SETTING_REQUEST_CONTENT_MAX_BYTES + 1)),
        mark_with(b""),
        mark_with(b"cut short")[:-1],
        b"\1" * 30,
    ],
)
def test_a_malformed_mark_body_is_refused(body: bytes) -> None:
    with pytest.raises(Unreadable):
        MARK_REQUESTS.decode(body)


@given(st.sampled_from([0, 5 * MS]), st.binary(max_size=120))
def test_arbitrary_bytes_are_refused_or_decode_to_requests_that_encode_again(theta_ns: int, rest: bytes) -> None:
    for body in (rest, theta_ns.to_bytes(8) + rest):
        try:
            mark = MARK_REQUESTS.decode(body)
        except Unreadable:
            continue
        assert MARK_REQUESTS.encode(mark) == body


def requests_of(member: int, max_per_frame: int = 8) -> SettingRequests:
    """The requests of one member; a request with origin n takes effect at slot n + 10."""
    return SettingRequests(member, (1, 2, 3), lambda origin: origin + 10, max_per_frame)


def test_members_pass_a_request_on_and_it_takes_effect_at_one_slot() -> None:
    one, two, three = (requests_of(member) for member in (1, 2, 3))
    assert one.to_send(10) == []
    one.request(b"more")
    (request,) = one.to_send(11)
    assert request == SettingRequest(11, 1, b"more")
    assert one.to_send(12) == [request], "again, with the same origin"
    two.receive([request], 14)
    assert two.to_send(15) == [request]
    three.receive(two.to_send(16), 18)  # which receives nothing from member 1
    for each in (one, two, three):
        assert each.pop_due(20) == []
        assert each.pop_due(21) == [(request, 21)]
        assert each.pop_due(22) == []
        assert not each.missed
    two.receive([request], 30)
    assert not two.missed, "known already"


def test_a_request_that_arrives_too_late_is_recorded_as_missed() -> None:
    one, absent = requests_of(2), requests_of(3)
    request = SettingRequest(11, 1, b"more")
    one.receive([request], 21)
    assert one.missed == [request]
    absent.receive([request], None)
    assert not absent.missed, "a member that is not sending has missed nothing"
    assert absent.pop_due(40) == [(request, 21)]


def test_repeating_ends_but_a_request_can_be_repeated_again_with_its_old_origin() -> None:
    one, two = requests_of(1), requests_of(2)
    one.request(b"more")
    (request,) = one.to_send(5)
    repeated_in = [slot for slot in range(6, 90) if one.pop_due(slot) is not None and one.to_send(slot)]
    assert repeated_in == list(range(6, repeated_in[-1] + 1))
    assert 15 < repeated_in[-1] < 40
    one.request(b"more")
    assert one.to_send(90) == [request]
    two.receive([request], 90)
    assert two.missed == [request]
    one.request(b"less")
    assert one.to_send(91) == [request, SettingRequest(91, 1, b"less")]


def test_requests_of_one_slot_apply_in_member_order_and_older_ones_are_ignored() -> None:
    requests = requests_of(1)
    requests.receive([SettingRequest(5, member, bytes([member])) for member in (3, 2)], 6)
    assert [request.member for request, _ in requests.pop_due(15)] == [2, 3]
    requests.receive([SettingRequest(4, 2, b"older")], 16)
    requests.receive([SettingRequest(6, 9, b"of a non-member")], 16)
    assert (requests.pop_due(30), requests.missed) == ([], [])
    assert requests.snapshot() == (SettingRequest(5, 2, b"\2"), SettingRequest(5, 3, b"\3"))


def test_if_a_mark_cannot_carry_all_requests_it_rotates_them() -> None:
    requests = requests_of(1, max_per_frame=2)
    requests.receive([SettingRequest(5, member, b"x") for member in (1, 2, 3)], 6)
    sent = [requests.to_send(slot) for slot in range(6, 9)]
    assert all(len(each) == 2 for each in sent)
    assert {request.member for each in sent for request in each} == {1, 2, 3}


def test_a_member_can_request_settings_for_a_departed_one() -> None:
    one = requests_of(1)
    one.receive([SettingRequest(5, 3, b"more")], 6)
    one.pop_due(15)
    one.request(b"nothing", 3)
    assert SettingRequest(16, 3, b"nothing") in one.to_send(16)
    assert [request.content for request, _ in one.pop_due(26)] == [b"nothing"]


@pytest.mark.parametrize("delta", [1, 10, 40])
def test_without_failures_no_member_can_miss_a_request(delta: int) -> None:
    grid = SlotGrid.of(Timing(delta * MS, MS, 5 * MS))
    order = build(Policy("g", 1, View((1, 2)), Timing(delta * MS, MS, 5 * MS), Rate(100, 5))).order
    assert isinstance(order, VbrOrder)
    assert effective_from(grid, 1000, None) > 1000 + 2 * order.window_slots
    assert effective_from(grid, 1000, 4) > effective_slot(grid, 1004)


def test_kept_requests_are_sent_first_each_in_a_slot_of_its_own() -> None:
    requests = requests_of(1)
    requests.request(b"settings")
    requests.request(b"first", keep=True)
    requests.request(b"second", keep=True)
    requests.request(b"newer settings")
    for slot in range(10, 13):
        requests.to_send(slot)
    assert requests.to_send(13) == [
        SettingRequest(10, 1, b"first"),
        SettingRequest(11, 1, b"second"),
        SettingRequest(12, 1, b"newer settings"),
    ]
    assert [request.content for request, _ in requests.pop_due(30)] == [b"first", b"second", b"newer settings"]
