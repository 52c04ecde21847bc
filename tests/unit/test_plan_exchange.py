"""Members compare their plans when they meet, and name the option that differs as the user wrote it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

import unisono
from unisono.model.events import View, Violation, ViolationKind
from unisono.model.policy import PlanInputs, Policy, Redundancy
from unisono.model.timing import Timing
from unisono.model.units import Rate, group_key
from unisono.net.plan_exchange import (
    REPORT_INTERVAL_NS,
    SEND_INTERVAL_NS,
    PlanDifference,
    PlanExchange,
    differences,
    plan_of,
)
from unisono.stack import build
from unisono.testing import MemoryNetwork, deliveries, network, run
from unisono.wire.codec import Unreadable, control_frame, decode_message, encode_message, message_in
from unisono.wire.control import Plan
from unisono.wire.door import Refusal
from unisono.wire.frame import Frame, encode

MS = 1_000_000
T0 = 10**18
TIMING = Timing(10 * MS, 2 * MS, 5 * MS)
AUTO = PlanInputs("never", None, order_is_given=False, slot_is_given=False)
GIVEN = PlanInputs("never", None, order_is_given=True, slot_is_given=True)
FIVE_CASES: list[tuple[str, dict[str, Any], dict[str, Any], object, object]] = [
    ("gaps", {}, {"gaps": "repaired"}, "never", "repaired"),
    ("gaps", {"gaps": "repaired"}, {"gaps": "allowed"}, "repaired", "allowed"),
    (
        "delta",
        {"gaps": "allowed"},
        {"gaps": "allowed", "network": unisono.Network(delta="20ms")},
        "50ms",
        "20ms",
    ),
    ("delta", {}, {"network": unisono.Network(delta="20ms")}, "50ms", "20ms"),
    ("deadline", {"gaps": "allowed", "deadline": "80ms"}, {"gaps": "allowed"}, "80ms", None),
]


def policy(member: int = 1, members: tuple[int, ...] = (1, 2), **changes: Any) -> Policy:
    fields: dict[str, Any] = {"timing": TIMING, "rate": Rate(50, 8), "plan_inputs": AUTO}
    fields.update(changes)
    return Policy("g", member, View(members), **fields)


def plan(inputs: PlanInputs = AUTO, **changes: Any) -> Plan:
    return plan_of(policy(**changes), inputs)


def exchange(member: int = 1, inputs: PlanInputs = AUTO, **changes: Any) -> tuple[PlanExchange, list[Violation]]:
    """The layer of one member, and the violations that it reports."""
    found: list[Violation] = []
    layer = PlanExchange(policy(member, **changes), inputs)
    layer.report = found.append
    return layer, found


def sent(layer: PlanExchange) -> list[Frame]:
    frames, layer.down[:] = layer.down[:], []
    return frames


def plan_frame(theirs: Plan, incarnation: int = 1, known: int = 1, peer: int = 2) -> Frame:
    """A frame with the plan of a peer, which has our PLAN if `known` is 1, and otherwise asks for it."""
    return control_frame(replace(theirs, known_incarnation=known, wants_answer=known != 1), peer, incarnation, 0, to=1)


# -- which option is named ---------------------------------------------------------------------------------------


def named(ours: Plan, theirs: Plan) -> list[tuple[str, object, object]]:
    return [(found.option, found.ours, found.theirs) for found in differences(ours, theirs)]


def test_equal_plans_have_no_differences() -> None:
    assert differences(plan(), plan()) == []
    explicit = replace(GIVEN, slot_is_given=False)
    assert differences(plan(order="consensus"), plan(explicit, order="consensus")) == [], "however it was chosen"
    assert differences(plan(), replace(plan(), known_incarnation=9)) == []


def test_gaps_stand_for_everything_that_auto_chooses() -> None:
    ours = plan(AUTO, order="consensus")
    theirs = plan(replace(AUTO, gaps="repaired"), order="vbr", failures=True, grades="both")
    assert named(ours, theirs) == [("gaps", "never", "repaired")]
    assert named(theirs, ours) == [("gaps", "repaired", "never")]


def test_a_given_order_is_named_with_the_option_that_chose_the_other() -> None:
    ours = plan(replace(AUTO, gaps="repaired"), order="vbr", failures=True, grades="both")
    theirs = plan(GIVEN, order="leader")
    (found,) = differences(ours, theirs)
    assert (found.option, found.ours, found.theirs) == ("order", "vbr", "leader")
    assert found.our_text == "order='vbr' (chosen by gaps='repaired')"
    assert found.their_text == "order='leader'"


def test_a_deadline_is_named_if_it_chose_the_slots() -> None:
    ours = plan(replace(AUTO, deadline_ns=80 * MS), timing=replace(TIMING, theta_ns=20 * MS))
    assert named(ours, plan()) == [("deadline", "80ms", None)]
    given = plan(replace(AUTO, slot_is_given=True))
    (found,) = differences(ours, given)
    assert (found.option, found.our_text) == ("slot", "slot='20ms' (chosen by deadline='80ms')")
    assert found.their_text == "slot='5ms'"


def test_a_deadline_that_changes_nothing_may_differ() -> None:
    assert differences(plan(replace(AUTO, deadline_ns=80 * MS)), plan()) == []


def test_a_derived_value_is_named_if_no_option_differs() -> None:
    assert named(plan(), plan(timing=replace(TIMING, theta_ns=7 * MS))) == [("slot", "5ms", "7ms")]
    assert named(plan(), plan(order="cbr")) == [("order", "vbr", "cbr")]


def test_a_slot_that_follows_from_another_option_is_not_named() -> None:
    changed = plan(timing=Timing(20 * MS, 2 * MS, 7 * MS))
    assert named(plan(), changed) == [("delta", "10ms", "20ms")]


def test_after_a_slot_length_change_declared_lengths_may_differ() -> None:
    theirs = plan(timing=replace(TIMING, theta_ns=7 * MS))
    assert differences(replace(plan(), slots_changed=True), theirs) == []
    assert differences(plan(), replace(theirs, slots_changed=True)) == []


@pytest.mark.parametrize(
    ("changes", "option", "theirs"),
    [
        ({"timing": replace(TIMING, theta_ns=6 * MS)}, "slot", "6ms"),
        ({"timing": replace(TIMING, delta_ns=11 * MS)}, "delta", "11ms"),
        ({"timing": replace(TIMING, gamma_ns=3 * MS)}, "gamma", "3ms"),
        ({"failures": True}, "failures", True),
        ({"grades": "both"}, "grades", "both"),
        ({"loss_burst": 2}, "loss_burst", 2),
        ({"fec": (1, 4)}, "fec", (1, 4)),
        ({"reliable": Redundancy(4, "6ms", "2ms")}, "reliable", "4/6ms/2ms"),
        ({"max_message": 4097}, "max_message", 4097),
        ({"members": (1, 2, 3)}, "peers", "hash 11894deb"),
    ],
    ids=str,
)
def test_each_option_is_named_with_its_value(changes: dict[str, Any], option: str, theirs: object) -> None:
    (found,) = differences(plan(GIVEN), plan(GIVEN, **changes))
    assert (found.option, found.theirs) == (option, theirs)
    assert found.prevents_forming == (option != "max_message")


def test_rho_eta_and_omega_do_not_prevent_forming() -> None:
    one, two = Redundancy(4, "6ms", "2ms"), Redundancy(3, "6ms", "2ms")
    (found,) = differences(plan(GIVEN, reliable=one), plan(GIVEN, reliable=two))
    assert found == PlanDifference("reliable", "4/6ms/2ms", "3/6ms/2ms", "reliable='4/6ms/2ms'", "reliable='3/6ms/2ms'")
    assert not found.prevents_forming


def test_differences_that_prevent_forming_come_first() -> None:
    theirs = plan(GIVEN, max_message=5000, members=(1, 2, 3))
    assert [found.option for found in differences(plan(GIVEN), theirs)] == ["peers", "max_message"]


def test_an_unknown_order_is_named_so() -> None:
    assert named(plan(GIVEN), replace(plan(GIVEN), order_key=1)) == [("order", "vbr", "unknown")]


# -- the exchange --------------------------------------------------------------------------------------------------


def test_a_plan_is_repeated_until_the_peer_has_answered() -> None:
    layer, _ = exchange(members=(1, 2, 3))
    assert layer.wake_at() == 0
    layer.wake(T0)
    assert [frame.to for frame in sent(layer)] == [2, 3]
    layer.wake(T0 + SEND_INTERVAL_NS - 1)
    assert sent(layer) == []
    layer.from_below(T0, plan_frame(plan(members=(1, 2, 3))))
    layer.wake(T0 + SEND_INTERVAL_NS)
    assert [frame.to for frame in sent(layer)] == [3]
    layer.from_below(T0, plan_frame(plan(members=(1, 2, 3)), peer=3))
    layer.wake(T0 + 2 * SEND_INTERVAL_NS)
    assert (sent(layer), layer.wake_at()) == ([], None)


def test_plans_are_answered_until_each_member_has_a_proven_one() -> None:
    one, two = exchange(1)[0], exchange(2, incarnation=8)[0]
    one.wake(T0)
    (first,) = sent(one)
    found = message_in(first, Plan)
    assert (found.known_incarnation, found.wants_answer) == (0, True)
    two.from_below(T0, first)
    (answer,) = sent(two)
    found = message_in(answer, Plan)
    assert (found.known_incarnation, found.wants_answer) == (1, True)
    one.from_below(T0, answer)
    (last,) = sent(one)
    found = message_in(last, Plan)
    assert (found.known_incarnation, found.wants_answer) == (8, False)
    two.from_below(T0, last)
    assert sent(two) == []


def test_only_a_proven_plan_prevents_forming() -> None:
    layer, found = exchange(inputs=GIVEN)
    layer.from_below(T0, plan_frame(plan(GIVEN, failures=True), 5, known=0))
    assert (layer.mismatches, found) == ({}, [])
    sent(layer)
    layer.wake(T0 + SEND_INTERVAL_NS)
    (again,) = sent(layer)
    assert message_in(again, Plan).wants_answer
    layer.from_below(T0, plan_frame(plan(GIVEN, failures=True), 4))
    assert len(found) == 1
    assert layer.mismatches[2].option == "failures"
    layer.from_below(T0, plan_frame(plan(GIVEN), 6, known=0))
    assert layer.mismatches[2].option == "failures", "a forged PLAN does not hide it either"


def test_a_restarted_peer_gets_an_answer_and_a_new_report() -> None:
    layer, found = exchange()
    other = plan(max_message=5000)
    for incarnation, now in ((1, T0), (2, T0 + REPORT_INTERVAL_NS)):
        layer.from_below(now, plan_frame(other, incarnation, known=0))
        assert len(sent(layer)) == 1
        layer.from_below(now + MS, plan_frame(other, incarnation))
        layer.from_below(now + 2 * MS, plan_frame(other, incarnation))
        assert [violation.member for violation in found] == [2] * incarnation, "once for each incarnation"


def test_the_report_names_all_differences() -> None:
    layer, found = exchange(inputs=GIVEN)
    layer.from_below(T0, plan_frame(plan(GIVEN, max_message=5000, failures=True)))
    text = (
        "member 2 joined with failures=True, max_message=5000, "
        "this member with failures=False, max_message=4096; give both the same"
    )
    assert found == [Violation(ViolationKind.POLICY_DIFFERS, text, 2)]
    mismatch = layer.mismatches[2]
    assert (mismatch.peer, mismatch.option, mismatch.ours, mismatch.theirs) == (2, "failures", False, True)
    assert str(mismatch) == text
    layer.from_below(T0, plan_frame(plan(GIVEN), 2))
    assert layer.mismatches == {}, "the peer has restarted with the same options"


def test_many_forged_incarnations_give_few_reports() -> None:
    layer, found = exchange()
    other, now = plan(max_message=5000), T0
    for incarnation in range(1, 1001):
        layer.from_below(now, plan_frame(other, incarnation))
        layer.wake(now)
        now += 50 * MS
        assert len(sent(layer)) <= 2, "no amplification"
    assert len(found) == 5
    due = layer.wake_at()
    assert due is not None
    layer.from_below(now, plan_frame(plan(), 1001))
    assert layer.wake_at() != due, "the peer has the same options now: nothing waits to be reported"


def test_a_report_that_had_to_wait_comes_later() -> None:
    layer, found = exchange()
    layer.from_below(T0, plan_frame(plan(max_message=5000), 1))
    layer.from_below(T0 + MS, plan_frame(plan(max_message=6000), 2))
    assert len(found) == 1
    layer.wake(T0 + MS)
    sent(layer)
    assert layer.wake_at() == T0 + REPORT_INTERVAL_NS
    layer.wake(T0 + REPORT_INTERVAL_NS)
    assert "max_message=6000" in found[1].text
    assert layer.wake_at() is None


# -- bytes ---------------------------------------------------------------------------------------------------------


def test_a_plan_survives_a_round_trip() -> None:
    for each in (
        plan(),
        plan(GIVEN, fec=(1, 4), reliable=Redundancy(4, "6ms", "2ms"), grades="final"),
        plan(PlanInputs("allowed", 80 * MS, order_is_given=True, slot_is_given=False), failures=True),
    ):
        assert decode_message(*encode_message(each)) == each


@pytest.mark.parametrize(
    "changes",
    [
        {"fec_redundant": 4, "fec_shares": 4},
        {"fec_redundant": 1, "fec_shares": 0},
        {"fec_redundant": 1, "fec_shares": 257},
        {"rho": 1},
        {"omega_ns": 1},
        {"rho": 255, "eta_ns": 1},
        {"theta_ns": 0},
        {"max_message": 0},
        {"max_message": 2**31},
        {"delta_ns": 2**63},
    ],
    ids=str,
)
def test_impossible_plans_are_refused(changes: dict[str, Any]) -> None:
    kind, body = encode_message(replace(plan(), **changes))
    with pytest.raises(Unreadable):
        decode_message(kind, body)


# -- groups --------------------------------------------------------------------------------------------------------


async def _outcome(net: MemoryNetwork, member: int, **options: Any) -> tuple[Exception, float]:
    """The error of a `join`, and when it was raised."""
    with pytest.raises(unisono.UnisonoError) as raised:
        await net.join(member, **options)
    return raised.value, asyncio.get_running_loop().time()


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("option", "ours", "theirs", "our_value", "their_value"), FIVE_CASES)
def test_join_names_the_option_at_once(
    option: str, ours: dict[str, Any], theirs: dict[str, Any], our_value: object, their_value: object, swapped: bool
) -> None:
    first, second = (2, 1) if swapped else (1, 2)

    async def scene() -> None:
        async with network(members=0) as net:
            net.peers.update({member: ("memory", member) for member in (1, 2)})
            started = asyncio.create_task(_outcome(net, first, **(theirs if swapped else ours)))
            await asyncio.sleep(0.02)
            begun = asyncio.get_running_loop().time()
            late = await _outcome(net, second, **(ours if swapped else theirs))
            for (error, at), peer in zip((await started, late), (second, first), strict=True):
                assert isinstance(error, unisono.PlanMismatch)
                mine, other = (our_value, their_value) if peer == 2 else (their_value, our_value)
                assert (error.peer, error.option, error.ours, error.theirs) == (peer, option, mine, other)
                text = f"member {peer} joined with {option}={other!r}, this member with {option}={mine!r}"
                assert str(error) == f"{text}; give both the same"
                assert at - begun < 1

    run(scene())


def test_a_running_group_reports_a_newcomer_with_another_plan(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with network(members=2, later=(3,)) as net:
            error, _ = await _outcome(net, 3, gaps="repaired")
            assert isinstance(error, unisono.PlanMismatch)
            assert (error.option, error.ours, error.theirs) == ("gaps", "repaired", "never")
            for member in (1, 2):
                event = await net[member].next(timeout="1s")
                while not isinstance(event, Violation) or event.kind is not ViolationKind.POLICY_DIFFERS:
                    event = await net[member].next(timeout="1s")
                text = "member 3 joined with gaps='repaired', this member with gaps='never'; give both the same"
                assert (event.text, event.member) == (text, 3)
            await net[1].send(b"still running")
            for member in (1, 2):
                assert [each.payload for each in await deliveries(net[member], 1)] == [b"still running"]

    with caplog.at_level(logging.WARNING, "unisono"):
        run(scene())
    assert "group 'test', member 1: policy_differs: member 3 joined with gaps='repaired'" in caplog.text
    assert "group 'test', member 2: policy_differs: member 3 joined with gaps='repaired'" in caplog.text


def test_a_difference_that_does_not_matter_for_forming_is_reported() -> None:
    async def scene() -> None:
        async with network(members=0, order="vbr") as net:
            net.peers.update({member: ("memory", member) for member in (1, 2)})
            large = unisono.Config(max_message=8192)
            await asyncio.gather(net.join(1), net.join(2, config=large))
            for member in (1, 2):
                event = await net[member].next(timeout="1s")
                assert isinstance(event, Violation)
                assert event.kind is ViolationKind.POLICY_DIFFERS
                assert "max_message=8192" in event.text

    run(scene())


def test_forged_plans_do_not_stop_a_running_group() -> None:
    """Plans of every incarnation and value, under the name of a real member, and with a foreign sender."""

    async def scene() -> None:
        async with network(members=2) as net:
            stack, now = net[1]._stack, net[1]._driver.clock.now()
            key = group_key(stack.policy.group)
            for incarnation in range(1000):
                forged = replace(plan(GIVEN, order="leader"), known_incarnation=incarnation, delta_ns=2**63 - 1)
                for sender in (2, 77):
                    stack.receive(now, encode(control_frame(forged, sender, incarnation, 0), key))
            assert stack.running()
            await asyncio.gather(*(net[member].send(b"%d" % member) for member in (1, 2)))
            found = [[each.payload for each in await deliveries(net[member], 2)] for member in (1, 2)]
            assert found[0] == found[1]
            assert stack.refused[Refusal.NOT_A_MEMBER] == 1000

    run(scene())


def test_a_forged_plan_does_not_abort_a_join() -> None:
    """The forger sends from another address than the peer's, so it does not know the incarnation of the member."""

    async def scene() -> None:
        async with network(members=0, order="vbr") as net:
            net.peers.update({member: ("memory", member) for member in (1, 2)})
            first = asyncio.ensure_future(net.join(1))
            await asyncio.sleep(0.02)
            forged = replace(plan(GIVEN, order="leader"), delta_ns=77 * MS)
            data = encode(control_frame(forged, 2, 12345, 0, to=1), group_key("test"))
            net._transports_of(1)[0].arrive(data, multicast=False)
            await asyncio.sleep(0.02)
            assert not first.done()
            await asyncio.gather(first, net.join(2))

    run(scene())


def test_a_stack_without_inputs_exchanges_no_plans() -> None:
    stack = build(policy(plan_inputs=None))
    stack.receive(T0, encode(plan_frame(plan()), group_key("g")))
    assert dict(stack.refused) == {"unknown kind": 1}
