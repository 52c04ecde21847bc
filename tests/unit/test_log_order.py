"""Total order by consensus: bundles, the agreed log, the order alone and in the simulator."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from unisono.agreement.paxos.acceptor import RestoredState
from unisono.check.suite import check_all
from unisono.check.verdict import Status
from unisono.errors import InvalidOption, MessageTooLarge, StorageError
from unisono.model.effects import StoredRecords
from unisono.model.events import View
from unisono.model.policy import Policy
from unisono.model.text.scenario import parse_scenario
from unisono.model.timing import Timing
from unisono.model.units import NS_PER_MS, Rate, UnlimitedNetwork
from unisono.orders.consensus.order import BUNDLES_MAX, AgreedLog, ConsensusOrder
from unisono.orders.packing import Bundle, decode_bundle, decode_log_value, encode_bundle, encode_log_value
from unisono.sim import run
from unisono.stack import build
from unisono.wire.codec import Unreadable
from unisono.wire.frame import FIRST_FRAGMENT, FRAGMENT, MORE_FRAGMENTS, OutgoingMessages

MS = NS_PER_MS


def bundle(sender: int, serial: int, *messages: bytes, incarnation: int = 1, sequence: int = 0) -> Bundle:
    body = b"".join(OutgoingMessages(list(messages), False).parts())
    return Bundle(sender, incarnation, serial, sequence, 0, body)


def deliver(log: AgreedLog, slot: int, *bundles: Bundle) -> list[tuple[int, list[bytes]]]:
    log.apply(encode_log_value(slot, [encode_bundle(b) for b in bundles]))
    found = [(batch.sender, batch.messages) for batch in log.batches]
    log.batches.clear()
    return found


def test_bundles_and_values_round_trip() -> None:
    one, two = bundle(3, 7, b"a", b"bc"), Bundle(4, 9, 1, 5, FRAGMENT | FIRST_FRAGMENT | MORE_FRAGMENTS, b"part")
    value = encode_log_value(12, [encode_bundle(one), encode_bundle(two)])
    assert decode_log_value(value) == (12, [one, two])
    assert decode_bundle(encode_bundle(one)) == one


def test_a_truncated_value_is_refused() -> None:
    value = encode_log_value(12, [encode_bundle(bundle(3, 7, b"a", b"bc"))])
    assert decode_log_value(value[:8]) == (12, [])
    for length in set(range(len(value))) - {8}:
        with pytest.raises(Unreadable):
            decode_log_value(value[:length])


def test_the_first_bundle_with_a_serial_number_counts_and_only_in_order() -> None:
    log = AgreedLog()
    assert deliver(log, 5, bundle(1, 0, b"a"), bundle(1, 0, b"a"), bundle(1, 2, b"c")) == [(1, [b"a"])]
    assert deliver(log, 6, bundle(1, 1, b"b"), bundle(1, 0, b"a"), bundle(1, 2, b"c")) == [(1, [b"b"]), (1, [b"c"])]
    assert log.next_serial(1, 1) == 3


def test_a_new_incarnation_starts_at_zero_and_ends_the_earlier_one() -> None:
    log = AgreedLog()
    deliver(log, 5, bundle(1, 0, b"a"))
    assert deliver(log, 6, bundle(1, 0, b"A", incarnation=2), bundle(1, 1, b"b")) == [(1, [b"A"])]
    assert log.next_serial(1, 1) > 2**62


def test_slots_never_decrease() -> None:
    log = AgreedLog()
    log.apply(encode_log_value(9, [encode_bundle(bundle(1, 0, b"a"))]))
    log.apply(encode_log_value(5, [encode_bundle(bundle(1, 1, b"b"))]))
    assert [batch.slot for batch in log.batches] == [9, 9]
    assert [batch.first_position for batch in log.batches] == [0, 1]


def test_a_snapshot_replaces_the_log_even_in_the_middle_of_a_message() -> None:
    original, restored = AgreedLog(), AgreedLog()
    first = Bundle(2, 1, 0, 0, FRAGMENT | FIRST_FRAGMENT | MORE_FRAGMENTS, b"first ")
    second = Bundle(2, 1, 1, 0, FRAGMENT, b"second")
    deliver(original, 5, bundle(1, 0, b"a"), first)
    restored.restore(RestoredState(1, original.state()))
    assert deliver(restored, 6, second, bundle(1, 0, b"a")) == [(2, [b"first second"])]
    assert restored.first_slot == 6


def test_values_and_states_that_cannot_be_decoded_are_refused() -> None:
    with pytest.raises(Unreadable):
        AgreedLog().apply(b"junk")
    with pytest.raises(StorageError, match="cannot be read"):
        AgreedLog().restore(RestoredState(3, b"junk"))


def policy(member: int = 1, members: Sequence[int] = (1, 2, 3), **options: object) -> Policy:
    timing = Timing(5 * MS, MS, 5 * MS)
    rate = Rate(avg=10_000, burst=50)
    return Policy("g", member, View(tuple(members)), timing, rate, order="consensus", **options)  # type: ignore[arg-type]


def alone(**options: object) -> ConsensusOrder:
    order = ConsensusOrder(policy(1, (1,), **options), UnlimitedNetwork())
    order.wake(0)
    order.flush()
    order.events.clear()
    return order


def test_a_group_of_one_decides_alone_and_writes_first() -> None:
    order = alone()
    assert order.submit(MS, [b"x" * 100, b"y"]) == 2
    assert not order.events, "nothing is delivered before flush, so that its records can be written first"
    order.flush()
    assert order.writes
    (batch,) = order.events
    assert batch.messages == [b"x" * 100, b"y"]  # type: ignore[union-attr]


def test_large_messages_travel_in_fragments() -> None:
    order = alone(max_message=4000, max_frame=576)
    order.submit(MS, [b"a" * 4000, b"b", b"c" * 1000])
    order.flush()
    assert [m for batch in order.events for m in batch.messages] == [  # type: ignore[union-attr]
        b"a" * 4000,
        b"b",
        b"c" * 1000,
    ]


def test_messages_that_are_too_large_or_too_many_are_refused() -> None:
    order = alone()
    with pytest.raises(MessageTooLarge):
        order.submit(MS, [bytes(5000)])
    assert order.submit(MS, [b"x"] * 60) == 50, "a slot accepts the declared burst"
    follower = ConsensusOrder(policy(), UnlimitedNetwork())
    follower.wake(0)
    assert follower.submit(MS, [b"x"]) == 0, "there is no leader yet"


def test_the_number_of_undecided_bundles_is_bounded() -> None:
    order = ConsensusOrder(policy(), UnlimitedNetwork())
    order.wake(0)
    order.mode = order.mode.DELIVER_MESSAGES
    accepted = sum(order.submit(number * 5 * MS, [b"x"]) for number in range(1, BUNDLES_MAX + 100))
    assert accepted == BUNDLES_MAX


def test_storage_is_refused_for_orders_that_store_nothing() -> None:
    with pytest.raises(InvalidOption, match="uses no stable storage"):
        build(Policy("g", 1, View((1,)), Timing(MS, MS, MS), Rate(1, 1, 5000)), stored_records=StoredRecords(1))


SCENARIO = """
[group]
name = "log"
order = "consensus"
members = 3
slot = "5ms"
delta = "10ms"
gamma = "2ms"
[rate]
avg = 200
burst = 8
[workload]
kind = "poisson"
rate = 100
size = 300
[network]
delay = "uniform:0ms..10ms"
[run]
seconds = 0.5
"""


def test_the_latency_bound_holds_while_nothing_fails() -> None:
    for seed in range(5):
        result = run(parse_scenario(SCENARIO, "calm"), seed, compare_payloads=True)
        verdicts = check_all(result.trace, until_ns=result.until_ns)
        assert {name: v.status for name, v in verdicts.items() if v.status is not Status.VALID} == {}
        assert result.sent[1] > 20
        assert not any(result.unsent.values())


FAULTS = """
[[fault]]
kind = "loss"
probability = 0.1
[[fault]]
kind = "crash"
member = 1
at = "200ms"
[[step]]
kind = "restart"
member = 1
at = "400ms"
[[fault]]
kind = "pause"
member = 2
from = "600ms"
to = "900ms"
"""


def test_crashes_restarts_pauses_and_losses_leave_one_log_without_gaps() -> None:
    seen = set()
    for seed in range(4):
        text = SCENARIO.replace("seconds = 0.5", "seconds = 2.5") + FAULTS
        result = run(parse_scenario(text, "rough"), seed, compare_payloads=True)
        verdicts = check_all(result.trace, until_ns=result.until_ns, bound_ns=1500 * MS)
        del verdicts["latency"]
        assert {name: v.status for name, v in verdicts.items() if v.status is not Status.VALID} == {}, seed
        reported = {violation.kind for violations in result.violations.values() for violation in violations}
        assert reported <= {"leader_lost", "blocked"}
        seen |= reported
    assert "leader_lost" in seen, "in none of these runs a leader was replaced"
