"""One member process of a local cluster: joins, sends its scenario's workload, counts, records, leaves.

Configuration is one line of JSON on standard input, which then stays open: its end means that whoever started this
process is gone, and this member leaves. Reports are lines of JSON on standard output: `ready` (the group runs),
`begun` (all who are expected are there, and the workload begins), `progress` (every tenth of a second), `again` (the
others went on without this member, and it joins again in another incarnation), `final` (what was measured).
Each message begins with the time at which it was handed in, so that latency can be watched as it happens; the verdict
is made from the trace.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unisono.cluster.grades_report import GradedReplica
from unisono.errors import GroupClosed, MissingDependency
from unisono.group import Group, PendingJoin, join
from unisono.model.capabilities import needs_storage
from unisono.model.delays import RandomSource
from unisono.model.durations import NS_PER_S, ns_to_ms
from unisono.model.events import Batch, Notice, Rejoining, SlaCleared, SlaViolation, Violation
from unisono.model.faults import Crash
from unisono.model.grades import Grade
from unisono.model.histogram import Histogram
from unisono.model.scenario import Leave, PlannedRateChange, PlannedSlotChange, Restart, Scenario, Workload
from unisono.model.sla import SlaSet
from unisono.model.text.scenario import parse_scenario
from unisono.model.text.sla import parse_slas
from unisono.model.workloads import ScheduledSends, scheduled_sends
from unisono.qos.plan.admission import Link
from unisono.runtime.fault_injection import FaultInjection
from unisono.runtime.setup import MetricSink
from unisono.runtime.timers import new_incarnation
from unisono.stack import build
from unisono.trace.metric_files import MetricWriter
from unisono.trace.recorder import Recorder
from unisono.trace.writer import ParquetWriter

_STAMP = struct.Struct("!Q")
PROGRESS_INTERVAL_S = 0.1
ROLL_CALL_PREFIX = b"here:"
"""A member's roll call: the numbers of those whose roll calls it has delivered."""
ROLL_CALL_INTERVAL_S = 0.05
GATHER_TIMEOUT_S = 20.0
GOODBYE_TIMEOUT_S = 2.0
GOODBYE = b"bye"
"""A member's last message. Whoever has delivered everyone's has delivered everything."""
ALL_FINAL = b"done"
"""In both grades, behind its goodbye: what it had early is final. Nobody goes before all of these are final, or there
might be no majority left to agree on the rest."""


def join_as_member(
    scenario: Scenario,
    member: int,
    peers: Mapping[int, tuple[str, int]],
    *,
    multicast: tuple[str, int] | None = None,
    capacity: str | int = "10Gbit/s",
    recorder: Recorder | None = None,
    incarnation: int | None = None,
    injection: FaultInjection | None = None,
    storage: Path | None = None,
    slas: SlaSet | None = None,
    monitor: bool | MetricSink = False,
) -> PendingJoin:
    """Join as a scenario says; raises at once, with nothing opened yet, what it asks for and cannot have."""
    return join(
        scenario.group,
        member=member,
        peers=peers,
        order=scenario.order,
        rate=scenario.rates[member],
        slot=scenario.timing.theta_ns,
        delta=scenario.timing.delta_ns,
        gamma=scenario.timing.gamma_ns,
        failures=scenario.failures,
        loss_burst=scenario.loss_burst,
        fec=scenario.fec,
        reliable=scenario.reliable,
        grades=scenario.grades,
        processing=scenario.processing_ns,
        max_message=scenario.max_message,
        multicast=multicast,
        link=Link(capacity),
        recorder=recorder,
        incarnation=incarnation,
        injection=injection,
        storage=storage,
        sla=slas,
        monitor=monitor,
    )


class ScenarioMember:
    """One member, from joining to leaving."""

    def __init__(self, configuration: dict[str, Any]) -> None:
        self.scenario: Scenario = parse_scenario(configuration["scenario"], configuration["source"])
        self.member: int = configuration["member"]
        self.peers = {int(member): (address[0], int(address[1])) for member, address in configuration["peers"].items()}
        group_address = configuration.get("multicast")
        self.multicast = (str(group_address[0]), int(group_address[1])) if group_address else None
        self.capacity: str | int = configuration.get("capacity", "10Gbit/s")
        self.latencies = Histogram()
        self.delivered: dict[int, int] = dict.fromkeys(self.scenario.members, 0)
        self.violations: list[str] = []
        self.longest_gap_ns = 0
        self._last_delivery_ns = 0
        self._sent = 0
        self._goodbyes_from: set[int] = set()
        self._consume_pause_s = self.scenario.consume_ns.get(self.member, 0) / NS_PER_S
        self._all_goodbyes_received = asyncio.Event()
        self._staying_members = staying_members(self.scenario)
        self._expected = frozenset(configuration.get("expected", ())) if self.scenario.failures else frozenset()
        """Who is to be there before this member sends; a group with failures begins without waiting for anybody."""
        self._roll_calls: dict[int, frozenset[int]] = {}
        """By member, whom it has heard according to its last roll call."""
        self._start_delay_ns = int(configuration.get("late_ns", 0))
        """How long after the others this life begins."""
        self.injection = FaultInjection(
            self.member,
            self.scenario.faults,
            seed=self.scenario.seed,
            clock_offset_ns=configuration.get("clock_offset_ns", self.scenario.clocks.offsets_ns.get(self.member, 0)),
        )
        if "begun_ns" in configuration:
            self.injection.start_run(int(configuration["begun_ns"]))
        self.incarnation = new_incarnation()
        where = configuration["trace"], configuration["run"], self.scenario.group, self.member
        self._storage_directory = Path(configuration["trace"], "memory", configuration["run"])
        self.writer = ParquetWriter(*where, life=self.incarnation)
        self.metrics = MetricWriter(*where, life=self.incarnation)
        self.slas = parse_slas(*configuration["slas"]) if configuration.get("slas") else None
        self.sla_events: list[dict[str, Any]] = []
        self._graded_replica = GradedReplica((GOODBYE, ALL_FINAL)) if self.scenario.grades == "both" else None

    def _storage_path(self) -> Path | None:
        """Where an order that keeps promises through a crash has them: their next life in this run reads them."""
        if not needs_storage(self.scenario.order, self.scenario.grades):
            return None
        self._storage_directory.mkdir(parents=True, exist_ok=True)
        return self._storage_directory / f"member-{self.member}.sqlite"

    async def run(self) -> None:
        """Take part until everyone has said goodbye, or a signal asks to leave."""
        joining = join_as_member(
            self.scenario,
            self.member,
            self.peers,
            multicast=self.multicast,
            capacity=self.capacity,
            recorder=self.writer.recorder(),
            incarnation=self.incarnation,
            injection=self.injection,
            storage=self._storage_path(),
            slas=self.slas,
            monitor=self.metrics.put,
        )
        group = await joining
        loop, stopping = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopping.set)
        loop.add_reader(sys.stdin.fileno(), stopping.set)
        print_report(
            "ready",
            member=self.member,
            incarnation=self.incarnation,
            bound_ms=ns_to_ms(group.bound_ns),
            members=group.members,
        )
        gaps = not build(self.scenario.policy_for(self.member)).order.gap_free()
        consuming = asyncio.create_task(self._consume(group))
        reporting = asyncio.create_task(self._report_progress(group))
        sending = asyncio.create_task(self._send_until_closed(group))
        ending = [
            asyncio.create_task(stopping.wait()),
            asyncio.create_task(self._all_goodbyes_received.wait()),
            consuming,
        ]
        try:
            await asyncio.wait({*ending, sending}, return_when=asyncio.FIRST_COMPLETED, timeout=self._send_timeout_s())
            if sending.done():
                sending.result()
                # Where members die or gaps are allowed somebody's goodbye may be missing. Where none are, who comes
                # back has more to make up for, and may need the others for it.
                patience = (GOODBYE_TIMEOUT_S if gaps else GATHER_TIMEOUT_S) if self._expects_crashes() else None
                await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED, timeout=patience)
                await self._wait_until_all_final(group, ending)
        finally:
            loop.remove_reader(sys.stdin.fileno())
            for task in (sending, reporting, *ending[:2]):
                task.cancel()
            try:
                in_order = await group.leave()
                await consuming
            finally:
                self.writer.close()
                self.metrics.close()
        self._report_final(group, in_order)

    async def _wait_until_all_final(self, group: Group, end_tasks: Sequence[asyncio.Task[Any]]) -> None:
        """In both grades: stay until nobody has anything left to become final, unless that takes too long."""
        grading, give_up = self._graded_replica, time.monotonic() + GATHER_TIMEOUT_S
        if grading is None:
            return
        for word in (GOODBYE, ALL_FINAL):
            while not grading.is_final_from(word, self._staying_members):
                if end_tasks[0].done() or end_tasks[-1].done() or time.monotonic() > give_up:
                    return
                await asyncio.sleep(ROLL_CALL_INTERVAL_S)
            if word == GOODBYE:
                with contextlib.suppress(TimeoutError, GroupClosed):
                    await asyncio.wait_for(group.send(ALL_FINAL), GATHER_TIMEOUT_S)

    def _expects_crashes(self) -> bool:
        return self.scenario.failures or any(isinstance(fault, Crash) for fault in self.scenario.faults)

    def _send_timeout_s(self) -> float | None:
        """How long sending may take: one that comes back may find too few of the others to get anything accepted."""
        if not self._expects_crashes():
            return None
        left_s = (self.scenario.run_ns - self._start_delay_ns) / NS_PER_S
        return left_s + GOODBYE_TIMEOUT_S + (0 if self._start_delay_ns else GATHER_TIMEOUT_S)

    async def _consume(self, group: Group) -> None:
        async for event in group.batches():
            if isinstance(event, Batch):
                if self._graded_replica is not None:
                    self._graded_replica.apply(event)
                    if event.grade is Grade.FINAL:
                        continue
                now = time.time_ns()
                if self._last_delivery_ns:
                    self.longest_gap_ns = max(self.longest_gap_ns, now - self._last_delivery_ns)
                self._last_delivery_ns = now
                self.delivered[event.sender] += event.count
                messages = event.messages
                for message in messages:
                    if message == GOODBYE:
                        self._goodbyes_from.add(event.sender)
                    elif message.startswith(ROLL_CALL_PREFIX):
                        self._roll_calls[event.sender] = frozenset(message[len(ROLL_CALL_PREFIX) :])
                    elif len(message) >= _STAMP.size:
                        self.latencies.add(now - _STAMP.unpack_from(message)[0])
                if not messages[-1].startswith(ROLL_CALL_PREFIX):
                    self._roll_calls[event.sender] = self._expected  # who sends anything else has heard everybody
            elif isinstance(event, Rejoining):
                print_report("again", member=self.member, incarnation=event.incarnation)
            elif isinstance(event, SlaViolation | Notice):
                self._report_qos_event(event)
            elif isinstance(event, Violation):
                self.violations.append(event.text)
            # One that is to be killed and begins alone must not take nobody's goodbye for everybody's; and one whom the
            # others have given up for a moment has not said its own.
            if self._goodbyes_from and self._goodbyes_from >= self._staying_members.intersection(
                {*group.members, self.member}
            ):
                self._all_goodbyes_received.set()
            if isinstance(event, Batch) and self._consume_pause_s:
                await asyncio.sleep(self._consume_pause_s)

    def _report_qos_event(self, event: SlaViolation | Notice) -> None:
        """Of an agreement that breaks or is kept again, and of what is done about it, whoever watches hears at once."""
        told: dict[str, Any] = {"what": event.kind, "text": event.text, "at_ns": time.time_ns(), "slot": event.slot}
        if isinstance(event, SlaViolation | SlaCleared):
            told["sla"] = event.sla
            told["id"] = event.id
        self.sla_events.append(told)
        print_report("qos", member=self.member, **told)

    async def _send_until_closed(self, group: Group) -> None:
        """Send; for one that the others have thrown out, that is over. Why is among what it consumes."""
        with contextlib.suppress(GroupClosed):
            await self._send(group)

    async def _send(self, group: Group) -> None:
        """The workload, then goodbye; a member that leaves by script goes without."""
        loop = asyncio.get_running_loop()
        await self._wait_for_expected_members(group)
        print_report("begun")
        if not self._start_delay_ns:
            self.injection.start_run()
        begin = loop.time()
        chance = random.Random(f"{self.scenario.seed}/{self.member}")
        for at_ns, what in timeline(self.scenario, self.member, chance, self._start_delay_ns):
            await asyncio.sleep(max(0.0, begin + at_ns / NS_PER_S - loop.time()))
            if isinstance(what, PlannedRateChange):
                await group.renegotiate(what.rate)
            elif isinstance(what, PlannedSlotChange):
                await group.renegotiate(slot=what.theta_ns)
            elif isinstance(what, Leave):
                await group.leave()
                return
            else:
                await self._send_stamped(group, what)
        await group.send(GOODBYE)

    async def _send_stamped(self, group: Group, sizes: Sequence[int]) -> None:
        """Together, or in the priority order each with its priority: the scenario's priorities take turns."""
        levels = self.scenario.priorities
        if len(levels) == 1:
            await group.send_many([stamped_message(size) for size in sizes], priority=levels[0])
            return
        for size in sizes:
            await group.send(stamped_message(size), priority=levels[self._sent % len(levels)])
            self._sent += 1

    async def _wait_for_expected_members(self, group: Group) -> None:
        """Call the roll until everybody who is expected is known to hear everybody who is expected."""
        give_up = time.monotonic() + GATHER_TIMEOUT_S
        while not all(self._expected <= self._roll_calls.get(member, frozenset()) for member in self._expected):
            if time.monotonic() > give_up:
                heard = {member: sorted(others) for member, others in sorted(self._roll_calls.items())}
                raise MissingDependency(
                    f"the members did not all hear each other within {GATHER_TIMEOUT_S:g} s, only {heard}"
                )
            await group.send(ROLL_CALL_PREFIX + bytes(sorted(m for m in self._roll_calls if m < 256)))
            await asyncio.sleep(ROLL_CALL_INTERVAL_S)

    async def _report_progress(self, group: Group) -> None:
        while True:
            await asyncio.sleep(PROGRESS_INTERVAL_S)
            print_report(
                "progress",
                sent=group.stats().sent,
                delivered=sum(self.delivered.values()),
                p50_ms=ns_to_ms(self.latencies.quantile(0.5)),
                p99_ms=ns_to_ms(self.latencies.quantile(0.99)),
                max_ms=ns_to_ms(self.latencies.largest),
                violations=len(self.violations),
            )

    def _report_final(self, group: Group, in_order: bool) -> None:
        stats = group.stats()
        print_report(
            "final",
            member=self.member,
            in_order=in_order,
            sent=stats.sent,
            delivered=sum(self.delivered.values()),
            longest_gap_ns=self.longest_gap_ns,
            gamma_ns=stats.gamma_ns,
            delays=stats.delays.to_pairs(),
            delay_max_ns=stats.delays.largest,
            lateness=stats.lateness.to_pairs(),
            lateness_max_ns=stats.lateness.largest,
            refused=dict(stats.refused),
            ignored=dict(stats.ignored),
            multicast=stats.multicast,
            violations=self.violations,
            qos=self.sla_events,
            trace_dropped=self.writer.dropped,
            grades=None if self._graded_replica is None else self._graded_replica.summary(),
            injected={"datagrams": self.injection.datagrams, "lost": self.injection.lost},
        )


def staying_members(scenario: Scenario) -> frozenset[int]:
    """Who is there at the end, and says goodbye: whose last part is not to crash or to leave."""
    gone = [fault for fault in scenario.faults if isinstance(fault, Crash)]
    ends = [*gone, *(step for step in scenario.steps if isinstance(step, Leave | Restart))]
    last = {end.member: end for end in sorted(ends, key=lambda end: end.at_ns)}
    return frozenset(m for m in scenario.members if isinstance(last.get(m), Restart | None))


def timeline(
    scenario: Scenario, member: int, rng: RandomSource, start_delay_ns: int = 0
) -> list[tuple[int, tuple[int, ...] | PlannedRateChange | PlannedSlotChange | Leave]]:
    """What this member does, by time since it began, which is `late_ns` after the group did.

    Sends of these sizes, changes, its departure; what was to be before it began was another life's.
    """
    workload: Workload = scenario.workloads[member]
    sends: ScheduledSends = scheduled_sends(workload, rng)
    if workload.sends:
        sends = iter(
            [(send.at_ns - start_delay_ns, send.sizes) for send in workload.sends if send.at_ns >= start_delay_ns]
        )
    found: list[tuple[int, tuple[int, ...] | PlannedRateChange | PlannedSlotChange | Leave]] = []
    for at_ns, sizes in sends:
        if at_ns >= scenario.run_ns - start_delay_ns:
            break
        found.append((at_ns, sizes))
    own = (step for step in scenario.steps if step.member == member and step.at_ns >= start_delay_ns)
    found.extend(
        (step.at_ns - start_delay_ns, step)
        for step in own
        if isinstance(step, PlannedRateChange | PlannedSlotChange | Leave)
    )
    return sorted(found, key=lambda entry: entry[0])


def stamped_message(size: int) -> bytes:
    """A message of this size that begins with the time, where there is room for it."""
    if size < _STAMP.size:
        return bytes(size)
    return _STAMP.pack(time.time_ns()) + bytes(size - _STAMP.size)


def print_report(kind: str, **fields: Any) -> None:
    """One line for whoever started this process."""
    sys.stdout.write(json.dumps({"kind": kind, **fields}) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Read the configuration, run, and say on standard error what went wrong if something did."""
    try:
        asyncio.run(_run(json.loads(sys.stdin.readline())))
    except KeyboardInterrupt:
        return 130
    return 0


async def _run(configuration: dict[str, Any]) -> None:
    await ScenarioMember(configuration).run()


if __name__ == "__main__":
    sys.exit(main())
