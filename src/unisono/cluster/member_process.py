"""One member process of a local cluster: joins, sends its scenario's workload, measures, records, leaves.

The configuration is one line of JSON on standard input. A second, empty line says that all members of the scenario have
joined, also the late ones; until then no member leaves at the end of its workload. Standard input then stays open; when
it closes, the supervisor is gone and this member leaves. Reports are lines of JSON on standard output:

    ready       the group runs
    begun       all expected members are there, and the workload starts
    progress    counts and latencies, every tenth of a second
    qos         an SLA violation, its clearance or a change of settings
    again       the others continued without this member; it joins again in another incarnation
    final       all measurements

Each message starts with its submission time, so that latency can be watched live; the verdict comes from the trace.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import random
import signal
import struct
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from unisono.config import Config, MetricSink, Network, Observe
from unisono.errors import GroupClosed, MemberProcessFailed
from unisono.group import Group, PendingJoin, open_group
from unisono.model.capabilities import needs_storage
from unisono.model.delays import DelayModel, Histogram, RandomSource, truncated_to
from unisono.model.events import Batch, Grade, Notice, Rejoining, SlaCleared, SlaViolation, Violation
from unisono.model.faults import Crash
from unisono.model.options import order_options_of
from unisono.model.scenario import Leave, PlannedRateChange, PlannedSlotChange, Restart, Scenario, Workload
from unisono.model.sla import SlaSet
from unisono.model.text.scenario import parse_scenario
from unisono.model.text.sla import parse_slas
from unisono.model.units import NS_PER_S, exact_duration_text, ns_to_ms
from unisono.model.workloads import ScheduledSends, scheduled_sends
from unisono.qos.plan.admission import Link
from unisono.replica.replica import MistakeCounts, Replica
from unisono.replica.structures import Dict
from unisono.runtime.fault_injection import FaultInjection
from unisono.runtime.timers import new_incarnation
from unisono.stack import build
from unisono.trace.files import ParquetWriter, warm_up
from unisono.trace.metrics import MetricWriter
from unisono.trace.recorder import Recorder


class GradedReplica:
    """A replica of one member that stores the last message of each sender, fed with early and final deliveries."""

    def __init__(self, awaited_messages: Iterable[bytes] = ()) -> None:
        self.final_count = 0
        self.replica = Replica(Dict())
        self._final_from: dict[bytes, set[int]] = {message: set() for message in awaited_messages}
        """By awaited message: the members from which that message was delivered finally."""

    def is_final_from(self, message: bytes, members: AbstractSet[int]) -> bool:
        """Whether no early delivery waits to become final, and this message is final from each of these members."""
        return self.replica.pending == 0 and self._final_from[message] >= members

    def apply(self, batch: Batch) -> None:
        """Apply delivered messages to the replica, early or final as their grade says."""
        final = batch.grade is Grade.FINAL
        key = b"%d" % batch.sender
        for number, message in enumerate(batch.messages, batch.first_sequence):
            name, command = (batch.sender, batch.incarnation, number), Dict.put(key, message)
            if final:
                self.replica.deliver_final(name, command)
                if message in self._final_from:
                    self._final_from[message].add(batch.sender)
            else:
                self.replica.deliver_early(name, command)
        self.final_count += batch.count if final else 0

    def summary(self) -> dict[str, Any]:
        """The field `grades` of the member's final report."""
        replica = self.replica
        states = [
            Dict().dump({key: value(key) for key in replica.objects()})
            for value in (replica.conservative, replica.optimistic)
        ]
        return {
            "delivered": self.final_count,
            "open": replica.pending,
            "state": hashlib.blake2b(states[0], digest_size=8).hexdigest(),
            "converged": states[0] == states[1],
            "mistakes": stored_mistakes(replica.mistakes),
        }


def stored_mistakes(mistakes: MistakeCounts) -> dict[str, int]:
    """Convert the counts of mistakes to a dictionary, with the names that reports use."""
    return {
        "lost": mistakes.lost,
        "out_of_order": mistakes.out_of_order,
        "retracted": mistakes.retracted,
        "late": mistakes.late,
        "rollbacks": mistakes.rollbacks,
        "reexecuted": mistakes.reexecuted,
    }


_STAMP = struct.Struct("!Q")
PROGRESS_INTERVAL_S = 0.1
ROLL_CALL_PREFIX = b"here:"
"""Prefix of a roll call: a message with the numbers of the members whose roll calls its sender has delivered."""
ROLL_CALL_INTERVAL_S = 0.05
GATHER_TIMEOUT_S = 20.0
GOODBYE_TIMEOUT_S = 2.0
GOODBYE = b"bye"
"""A member's last message. A member that has delivered the goodbyes of all members has delivered everything."""
ALL_FINAL = b"done"
"""With both grades, sent after the goodbye once all early deliveries of the member are final. Members stay until this
message of every member is final; otherwise no majority might be left to agree on the rest."""


def join_as_member(
    scenario: Scenario,
    member: int,
    peers: Mapping[int, tuple[str, int]],
    *,
    multicast: tuple[str, int] | None = None,
    capacity: str = "10Gbit/s",
    recorder: Recorder | None = None,
    incarnation: int | None = None,
    injection: FaultInjection | None = None,
    storage: Path | None = None,
    slas: SlaSet | None = None,
    monitor: bool | MetricSink = False,
) -> PendingJoin:
    """Join with the settings of a scenario. Impossible settings raise at once, before a socket or file is opened."""
    config = Config(
        group=scenario.group,
        member=member,
        peers=peers,
        order=order_options_of(scenario.order, scenario, scenario.timing.theta_ns),
        rate=scenario.rates[member],
        max_message=scenario.max_message,
        network=Network(
            delta=exact_duration_text(scenario.timing.delta_ns),
            gamma=exact_duration_text(scenario.timing.gamma_ns),
            multicast=multicast,
            max_frame=scenario.max_frame,
            link=Link(capacity),
        ),
        storage=storage,
        observe=Observe(recorder=recorder, sla=slas, metrics=monitor),
    )
    return open_group(config, incarnation=incarnation, injection=injection)


class ScenarioMember:
    """Runs one member of a scenario: joins, sends the workload, reports, and leaves."""

    def __init__(self, configuration: dict[str, Any]) -> None:
        self.scenario: Scenario = parse_scenario(configuration["scenario"], configuration["source"])
        self.member: int = configuration["member"]
        self.peers = {int(member): (address[0], int(address[1])) for member, address in configuration["peers"].items()}
        group_address = configuration.get("multicast")
        self.multicast = (str(group_address[0]), int(group_address[1])) if group_address else None
        self.capacity: str = configuration.get("capacity", "10Gbit/s")
        self.latencies = Histogram()
        self.delivered: dict[int, int] = dict.fromkeys(self.scenario.members, 0)
        self.violations: list[str] = []
        self.longest_gap_ns = 0
        self._last_delivery_ns = 0
        self._sent = 0
        self._goodbyes_from: set[int] = set()
        self._consume_pause_s = self.scenario.consume_ns.get(self.member, 0) / NS_PER_S
        self._all_goodbyes_received = asyncio.Event()
        self._all_joined = asyncio.Event()
        self._staying_members = staying_members(self.scenario)
        self._expected = frozenset(configuration.get("expected", ())) if self.scenario.failures else frozenset()
        """The members to wait for before sending; a group with failures starts without waiting."""
        self._roll_calls: dict[int, frozenset[int]] = {}
        """By member: the members listed in that member's last roll call."""
        self._start_delay_ns = int(configuration.get("late_ns", 0))
        """How many nanoseconds after the workload's start this incarnation starts; 0 if it starts with the others."""
        self.injection = fault_injection(self.scenario, self.member, configuration.get("clock_offset_ns"))
        if "begun_ns" in configuration:
            self.injection.start_run(int(configuration["begun_ns"]))
        self.incarnation = new_incarnation()
        where = configuration["trace"], configuration["run"], self.scenario.group, self.member
        self._storage_directory = Path(configuration["trace"], "memory", configuration["run"])
        self.writer = ParquetWriter(*where, incarnation=self.incarnation)
        self.metrics = MetricWriter(*where, incarnation=self.incarnation)
        self.slas = parse_slas(*configuration["slas"]) if configuration.get("slas") else None
        self.sla_events: list[dict[str, Any]] = []
        self._graded_replica = GradedReplica((GOODBYE, ALL_FINAL)) if self.scenario.grades == "both" else None

    def _storage_path(self) -> Path | None:
        """The path of this member's storage, which its next incarnation reads; None if the order needs no storage."""
        if not needs_storage(self.scenario.order, self.scenario.grades):
            return None
        self._storage_directory.mkdir(parents=True, exist_ok=True)
        return self._storage_directory / f"member-{self.member}.sqlite"

    async def run(self) -> None:
        """Take part in the group until the goodbyes of all members are delivered, or a signal asks to leave."""
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
        loop.add_reader(sys.stdin.fileno(), self._read_input, group, stopping)
        print_report(
            "ready",
            member=self.member,
            incarnation=self.incarnation,
            bound_ms=ns_to_ms(group.bound_ns),
            members=group.members,
        )
        gaps = not build(self.scenario.policy_for(self.member)).gap_free()
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
                await self._wait_for_late_members(ending)
                # With crashes or gaps a goodbye may be missing. Without gaps, a restarted member has more to catch up
                # with and may need the others for it, so they wait longer.
                timeout_s = (GOODBYE_TIMEOUT_S if gaps else GATHER_TIMEOUT_S) if self._expects_crashes() else None
                await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED, timeout=timeout_s)
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
        """In a group with both grades: stay until all messages are final at all members, unless that takes too long."""
        replica, give_up_at = self._graded_replica, time.monotonic() + GATHER_TIMEOUT_S
        if replica is None:
            return
        for message in (GOODBYE, ALL_FINAL):
            while not replica.is_final_from(message, self._staying_members):
                if end_tasks[0].done() or end_tasks[-1].done() or time.monotonic() > give_up_at:
                    return
                await asyncio.sleep(ROLL_CALL_INTERVAL_S)
            if message == GOODBYE:
                with contextlib.suppress(TimeoutError, GroupClosed):
                    await asyncio.wait_for(group.send(ALL_FINAL), GATHER_TIMEOUT_S)

    def _expects_crashes(self) -> bool:
        return self.scenario.failures or any(isinstance(fault, Crash) for fault in self.scenario.faults)

    def _send_timeout_s(self) -> float | None:
        """How many seconds sending the workload may take; None for no limit.

        There is a limit if members may crash: a restarted member may find too few members left to accept messages.
        """
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
                    self._roll_calls[event.sender] = self._expected  # other messages follow a complete roll call
            elif isinstance(event, Rejoining):
                print_report("again", member=self.member, incarnation=event.incarnation)
            elif isinstance(event, SlaViolation | Notice):
                self._report_qos_event(event)
            elif isinstance(event, Violation):
                self.violations.append(event.text)
            self._check_goodbyes(group)
            if isinstance(event, Batch) and self._consume_pause_s:
                await asyncio.sleep(self._consume_pause_s)

    def _check_goodbyes(self, group: Group) -> None:
        """Note it if the goodbyes of all members that stay have arrived, so that this member may leave."""
        # A member that starts alone has no goodbyes to wait for, which must not end its run; and a member that the
        # others exclude for a moment still has to send its own goodbye.
        expected = self._staying_members.intersection({*group.members, self.member})
        if self._all_joined.is_set() and self._goodbyes_from and self._goodbyes_from >= expected:
            self._all_goodbyes_received.set()

    def _read_input(self, group: Group, stopping: asyncio.Event) -> None:
        """Read from the supervisor: a line if all members have joined, nothing if the supervisor is gone."""
        if os.read(sys.stdin.fileno(), 1):
            self._all_joined.set()
            self._check_goodbyes(group)
        else:
            stopping.set()

    async def _wait_for_late_members(self, end_tasks: Sequence[asyncio.Task[Any]]) -> None:
        """Stay until all members of the scenario have joined: on a busy machine, late ones may be very late."""
        joined = asyncio.create_task(self._all_joined.wait())
        await asyncio.wait({joined, *end_tasks}, return_when=asyncio.FIRST_COMPLETED, timeout=GATHER_TIMEOUT_S)
        joined.cancel()

    def _report_qos_event(self, event: SlaViolation | Notice) -> None:
        """Report an SLA violation, a clearance or an adaptation to the supervisor at once."""
        report: dict[str, Any] = {"what": event.kind, "text": event.text, "at_ns": time.time_ns(), "slot": event.slot}
        if isinstance(event, SlaViolation | SlaCleared):
            report["sla"] = event.sla
            report["id"] = event.id
        self.sla_events.append(report)
        print_report("qos", member=self.member, **report)

    async def _send_until_closed(self, group: Group) -> None:
        """Send the workload, and return early if the group closes; the group's events say why it closed."""
        with contextlib.suppress(GroupClosed):
            await self._send(group)

    async def _send(self, group: Group) -> None:
        """Send the workload, then the goodbye; a member that leaves by script sends no goodbye."""
        loop = asyncio.get_running_loop()
        await self._wait_for_expected_members(group)
        print_report("begun")
        if not self._start_delay_ns:
            self.injection.start_run()
        begin = loop.time()
        chance = random.Random(f"{self.scenario.seed}/{self.member}")
        for at_ns, step in timeline(self.scenario, self.member, chance, self._start_delay_ns):
            await asyncio.sleep(max(0.0, begin + at_ns / NS_PER_S - loop.time()))
            if isinstance(step, PlannedRateChange):
                await group.renegotiate(step.rate)
            elif isinstance(step, PlannedSlotChange):
                await group.renegotiate(slot=exact_duration_text(step.theta_ns))
            elif isinstance(step, Leave):
                await group.leave()
                return
            else:
                await self._send_stamped(group, step)
        await group.send(GOODBYE)

    async def _send_stamped(self, group: Group, sizes: Sequence[int]) -> None:
        """Send messages of these sizes, each with its submission time; several priorities take turns."""
        levels = self.scenario.priorities
        if len(levels) == 1:
            await group.send_many([stamped_message(size) for size in sizes], priority=levels[0])
            return
        for size in sizes:
            await group.send(stamped_message(size), priority=levels[self._sent % len(levels)])
            self._sent += 1

    async def _wait_for_expected_members(self, group: Group) -> None:
        """Send roll calls, which list the members heard so far, until all expected members have heard each other."""
        give_up_at = time.monotonic() + GATHER_TIMEOUT_S
        while not all(self._expected <= self._roll_calls.get(member, frozenset()) for member in self._expected):
            if time.monotonic() > give_up_at:
                heard = {member: sorted(others) for member, others in sorted(self._roll_calls.items())}
                raise MemberProcessFailed(
                    f"the members did not all hear each other within {GATHER_TIMEOUT_S:g} s; "
                    f"the members that each of them heard: {heard}"
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


def fault_injection(scenario: Scenario, member: int, offset_ns: int | None = None) -> FaultInjection:
    """The injection of the scenario's faults, delays and clock offset at one member.

    `offset_ns` replaces the clock offset, if given.
    """
    return FaultInjection(
        member,
        scenario.faults,
        delays=link_delays(scenario, member),
        delta_ns=scenario.timing.delta_ns,
        fifo=scenario.network.fifo,
        seed=scenario.seed,
        clock_offset_ns=clock_offset_ns(scenario, member) if offset_ns is None else offset_ns,
    )


def link_delays(scenario: Scenario, member: int) -> dict[int, DelayModel]:
    """The delays that the scenario states for the datagrams that a member receives, by sender, limited to Δ."""
    network, found = scenario.network, {}
    if network.delay is not None:
        found = dict.fromkeys((other for other in scenario.members if other != member), network.delay)
    found |= {link.sender: link.delay for link in network.links if link.receiver == member}
    return {sender: truncated_to(model, scenario.timing.delta_ns) for sender, model in found.items()}


def clock_offset_ns(scenario: Scenario, member: int) -> int:
    """How far the scenario sets a member's clock ahead: its stated offset or, for fixed clocks, a random one."""
    clocks, half = scenario.clocks, scenario.timing.gamma_ns // 2
    if member in clocks.offsets_ns or clocks.kind != "fixed":
        return clocks.offsets_ns.get(member, 0)
    return int(random.Random(f"{scenario.seed}/clock/{member}").random() * (2 * half + 1)) - half


def staying_members(scenario: Scenario) -> frozenset[int]:
    """The members that run to the end of the scenario and send a goodbye: all that neither crash nor leave for good."""
    crashes = [fault for fault in scenario.faults if isinstance(fault, Crash)]
    ends = [*crashes, *(step for step in scenario.steps if isinstance(step, Leave | Restart))]
    last = {end.member: end for end in sorted(ends, key=lambda end: end.at_ns)}
    return frozenset(m for m in scenario.members if isinstance(last.get(m), Restart | None))


def timeline(
    scenario: Scenario, member: int, rng: RandomSource, start_delay_ns: int = 0
) -> list[tuple[int, tuple[int, ...] | PlannedRateChange | PlannedSlotChange | Leave]]:
    """The steps of a member, each with its time since the member's start.

    A step is a tuple of sizes of messages to send, a change of rate or slot length, or leaving. The member starts
    `start_delay_ns` after the group; earlier steps belong to an earlier incarnation and are left out.
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
    """A message of this size that starts with the current time, if there is room for it."""
    if size < _STAMP.size:
        return bytes(size)
    return _STAMP.pack(time.time_ns()) + bytes(size - _STAMP.size)


def print_report(kind: str, **fields: Any) -> None:
    """Print one report for the supervisor, as a line of JSON."""
    sys.stdout.write(json.dumps({"kind": kind, **fields}) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Read the configuration from standard input and run the member; errors go to standard error.

    A process may start long before its configuration arrives, so it loads all modules first. If the input ends before
    a configuration, the supervisor does not need this member.
    """
    warm_up()
    configuration = sys.stdin.readline()
    if not configuration:
        return 0
    try:
        asyncio.run(_run(json.loads(configuration)))
    except KeyboardInterrupt:
        return 130
    return 0


async def _run(configuration: dict[str, Any]) -> None:
    await ScenarioMember(configuration).run()


if __name__ == "__main__":
    sys.exit(main())
