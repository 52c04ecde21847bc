"""Priority accounting and its neighbours, on planted violations first."""

from dataclasses import dataclass, replace

from unisono.check.columns import without_excused_deliveries
from unisono.check.completeness import gap_freedom
from unisono.check.priority import priority_accounting
from unisono.check.suite import check_all
from unisono.check.total_order import fifo, total_order
from unisono.check.verdict import MessageId, Status
from unisono.model.events import QueueStep
from unisono.trace.recorder import MemoryTrace
from unisono.trace.schema import OBSERVER, EventKind, RunMeta
from unisono.trace.table import Trace

LOW, HIGH = 0, 1
SENDER = 1


@dataclass
class Told:
    """Writes down what members did, in order: R receives, Q queues, D delivers; messages are named by priority."""

    memory: MemoryTrace
    levels: list[int]

    def member(self, number: int, *steps: str, start: int = 0, life: int = 1) -> None:
        recorder = self.memory.recorder(number, incarnation=life)
        recorder.event(EventKind.START, slot=start, real_ns=0, local_ns=0)
        consumed = 0
        for place, step in enumerate(steps):
            sequence, at = int(step[1:]), place + 1
            if step[0] == "D":
                recorder.delivered(
                    sender=SENDER,
                    sender_incarnation=1,
                    first_sequence=sequence,
                    count=1,
                    sizes=1,
                    slot=start + consumed,
                    first_place=0,
                    first_index=consumed,
                    real_ns=at,
                    local_ns=at,
                    priority=self.levels[sequence],
                )
                consumed += 1
            else:
                step_taken = QueueStep(
                    step[0] == "Q",
                    SENDER,
                    1,
                    sequence,
                    priority=self.levels[sequence],
                    number=place,
                    consumed=consumed,
                    position=start + consumed,
                    detail="",
                )
                recorder.step(step_taken, real_ns=at, local_ns=at)

    def crash(self, member: int, slot: int) -> None:
        observer = self.memory.recorder(OBSERVER)
        observer.event(EventKind.CRASH, slot=slot, real_ns=9, local_ns=9, subject=member, subject_incarnation=1)

    def trace(self) -> Trace:
        sender = self.memory.recorder(SENDER, incarnation=1)
        for sequence, level in enumerate(self.levels):
            sender.sent(
                first_sequence=sequence,
                count=1,
                sizes=1,
                slot=0,
                first_place=0,
                real_ns=0,
                local_ns=0,
                priority=level,
            )
        meta = RunMeta("r", "g", "priority", (1, 2, 3), 0, 0, 1, None, reliable=True, source="test")
        return self.memory.trace(meta)


def told(*levels: int) -> Told:
    return Told(MemoryTrace("r", "g"), list(levels))


def test_an_urgent_message_that_did_not_overtake_a_queued_message_is_found() -> None:
    run = told(LOW, HIGH)
    run.member(1, "R0", "Q0", "R1", "Q1", "D0", "D1")
    run.member(2, "R0", "Q0", "R1", "Q1", "D0", "D1")
    verdict = priority_accounting(run.trace())
    assert verdict.status is Status.VIOLATED
    assert verdict.reason == "breaks priority accounting (paper 004, P2) as stated in words and in equation (1)"
    assert verdict.witness is not None
    assert verdict.witness.messages == (MessageId(1, 1, 0), MessageId(1, 1, 1))
    assert verdict.count == 2


def test_not_overtaking_a_message_before_it_is_queued_breaks_only_the_words() -> None:
    run = told(LOW, HIGH)
    run.member(1, "R0", "R1", "Q0", "Q1", "D0", "D1")
    run.member(2, "R0", "Q0", "R1", "Q1", "D0", "D1")
    verdict = priority_accounting(run.trace())
    assert verdict.status is Status.VIOLATED
    assert verdict.reason.startswith(
        "breaks priority accounting (paper 004, P2) as stated in words; equation (1) does not apply"
    )


def test_overtaking_is_as_it_should_be_and_is_counted() -> None:
    run = told(LOW, HIGH)
    run.member(1, "R0", "Q0", "R1", "Q1", "D1", "D0")
    run.member(2, "R0", "Q0", "R1", "Q1", "D1", "D0")
    verdict = priority_accounting(run.trace())
    assert verdict.status is Status.VALID
    assert verdict.figures["overtakings"] == 2


def test_a_message_consumed_at_one_member_need_not_be_overtaken_anywhere() -> None:
    run = told(LOW, HIGH)
    run.member(1, "R0", "Q0", "D0", "R1", "Q1", "D1")
    run.member(2, "R0", "Q0", "R1", "Q1", "D0", "D1")
    assert priority_accounting(run.trace()).status is Status.VALID


def test_a_message_consumed_only_at_a_crashed_member_need_not_be_overtaken() -> None:
    run = told(LOW, HIGH)
    run.member(1, "R0", "Q0", "R1", "Q1", "D0", "D1")
    run.member(2, "R0", "Q0", "R1", "Q1", "D0", "D1")
    run.member(3, "R0", "Q0", "D0")
    run.crash(3, 1)
    assert priority_accounting(run.trace()).status is Status.VALID


def test_a_crashed_members_own_order_is_not_checked() -> None:
    run = told(LOW, HIGH)
    run.member(1, "R0", "Q0", "R1", "Q1", "D1", "D0")
    run.member(2, "R0", "Q0", "R1", "Q1", "D0", "D1")
    run.crash(2, 2)
    trace = run.trace()
    assert total_order(trace).status is Status.VIOLATED
    assert total_order(without_excused_deliveries(trace)).status is Status.VALID
    assert {name: verdict.status for name, verdict in check_all(trace).items()} == dict.fromkeys(
        ("total_order", "integrity", "fifo", "priority_accounting", "gap_freedom", "latency"), Status.VALID
    ) | {"view_atomicity": Status.UNKNOWN}, "no view was recorded"


def test_a_newcomer_that_never_received_a_message_of_before_its_time_excuses_nothing() -> None:
    run = told(LOW, HIGH, LOW)
    run.member(1, "R0", "Q0", "R2", "Q2", "R1", "Q1", "D0", "D1", "D2")
    run.member(2, "R0", "Q0", "R2", "Q2", "R1", "Q1", "D0", "D1", "D2")
    run.member(3, "R2", "Q2", "D2", start=2)
    verdict = priority_accounting(run.trace())
    assert verdict.status is Status.VIOLATED
    assert verdict.witness is not None
    assert verdict.witness.messages[0] == MessageId(1, 1, 0)


def test_an_urgent_message_that_is_never_delivered_though_received_is_found() -> None:
    run = told(LOW, HIGH)
    run.member(1, "R0", "Q0", "R1", "D0")
    run.member(2, "R0", "Q0", "R1", "D0")
    assert priority_accounting(run.trace()).status is Status.VIOLATED


def test_without_receptions_nothing_is_known() -> None:
    run = told(LOW)
    run.member(1, "D0")
    verdict = priority_accounting(run.trace())
    assert verdict.status is Status.UNKNOWN
    assert "no receptions" in verdict.reason


def test_fifo_is_checked_by_priority() -> None:
    run = told(LOW, HIGH, LOW)
    run.member(2, "R0", "R1", "R2", "D1", "D2", "D0")
    verdict = fifo(run.trace())
    assert verdict.status is Status.VIOLATED
    assert verdict.witness is not None
    assert verdict.witness.messages == (MessageId(1, 1, 2), MessageId(1, 1, 0))
    assert verdict.count == 1, "that an urgent one overtakes is no violation"


def test_a_message_that_waits_while_a_more_urgent_one_of_its_sender_is_delivered_is_not_lost() -> None:
    run = told(LOW, HIGH)
    run.member(1, "R0", "Q0", "R1", "Q1", "D1")
    run.member(2, "R0", "Q0", "R1", "Q1", "D1")
    assert gap_freedom(run.trace()).status is Status.VALID
    lost = told(LOW, LOW)
    lost.member(1, "R0", "R1", "D1")
    lost.member(2, "R0", "R1", "D1")
    assert gap_freedom(lost.trace()).status is Status.VIOLATED


def test_consumption_after_the_end_of_a_killed_members_log_is_unknown() -> None:
    """Member 3 was killed: it may have consumed message 0 before it received message 1, and the row is lost."""
    run = told(LOW, HIGH)
    run.member(1, "R0", "Q0", "R1", "Q1", "D0", "D1")
    run.member(2, "R0", "Q0", "R1", "Q1", "D0", "D1")
    run.member(3, "R0", "Q0")
    run.crash(3, 1)
    trace = run.trace()
    assert priority_accounting(trace).status is Status.VIOLATED, "by its log it had consumed nothing"
    logs = tuple(replace(log, closed=log.member != 3) for log in trace.logs)
    assert priority_accounting(replace(trace, logs=logs)).status is Status.VALID
