"""Scenarios as text, and what the members of a simulated run report, as text.

A transcript is a list of commands, one per line. Below each `run` stands a line `----`, and then the reports of all
members in that time:

    members 1 2 3 order vbr failures   the group; options: later 4 5, slot, delta, gamma, delay, consume (durations)
    run 50ms                           let time pass, and print every report of every member in it
    send 1 3                           member 1 submits 3 messages
    join 4                             a member listed as later starts
    leave 2                            a member leaves in order
    crash 3, restart 3                 a member stops, and starts again as a new incarnation
    pause 2 200ms                      a member is suspended for some time
    cut 1|2,3, heal                    cut the network into parts, and join it again
    # ...                              a comment, kept where it is

Times count from the start of the run. A report at the instant at which a `run` ends belongs to the next one. Members
that report the same at the same instant share a line: `44ms  1 2: view 1 2 3`. "joined" means that the member takes
part from then on; "about 2" names the member that a violation or notice is about, if it is not the reporting one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from unisono.model.delays import ConstantDelay
from unisono.model.faults import Fault, Partition, Pause, Span
from unisono.model.scenario import Clocks, Network, Restart, Scenario, ScenarioStep, Start, Workload
from unisono.model.timing import Timing
from unisono.model.units import Rate, duration_ns, duration_text
from unisono.orders.consensus.order import ConsensusOrderBase
from unisono.orders.leader.base import LeaderOrderBase
from unisono.sim.run import build_world, run_meta
from unisono.sim.world import World
from unisono.stack import Stack
from unisono.trace.schema import KINDS, EventKind
from unisono.trace.table import Trace

SEPARATOR = "----"
MESSAGE_BYTES = 20
DURATIONS = {"slot": "5ms", "delta": "20ms", "gamma": "2ms", "delay": "1ms", "consume": "1ms"}


@dataclass(frozen=True)
class Command:
    """One command, with the comment lines above it."""

    comment: tuple[str, ...]
    words: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join((*self.comment, " ".join(self.words)))


@dataclass
class Script:
    """The commands of a transcript as a scenario, and the spans of time that `run` commands cover."""

    members: tuple[int, ...] = ()
    later: tuple[int, ...] = ()
    order: str = "vbr"
    failures: bool = False
    durations: dict[str, str] = field(default_factory=lambda: dict(DURATIONS))
    now_ns: int = 0
    faults: list[Fault] = field(default_factory=list)
    steps: list[ScenarioStep] = field(default_factory=list)
    actions: list[tuple[int, Callable[[World, int], None]]] = field(default_factory=list)
    """Inputs to whichever incarnation of a member is running at that time."""
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By the number of a `run` command: from when, and until when."""

    def add(self, number: int, command: Command) -> None:
        match command.words:
            case ("members", *words):
                self._describe_group(words)
            case ("run", duration):
                before, self.now_ns = self.now_ns, self.now_ns + duration_ns(duration)
                self.spans[number] = before, self.now_ns
            case ("send", member, count):
                number_of, sizes = int(member), (MESSAGE_BYTES,) * int(count)
                self.actions.append((self.now_ns, lambda world, now: world.send(now, number_of, sizes)))
            case ("join", member):
                self.later = tuple(each for each in self.later if each != int(member))
                self.steps.append(Start(int(member), self.now_ns))
            case ("leave", member):
                leaving = int(member)
                self.actions.append((self.now_ns, lambda world, now: world.leave(now, leaving)))
            case ("crash", member):
                crashing = int(member)
                self.actions.append((self.now_ns, lambda world, now: world.crash(now, crashing)))
            case ("restart", member):
                self.steps.append(Restart(int(member), self.now_ns))
            case ("pause", member, duration):
                self.faults.append(Pause(int(member), self.now_ns, self.now_ns + duration_ns(duration)))
            case ("cut", parts):
                groups = tuple(tuple(map(int, part.split(","))) for part in parts.split("|"))
                self.faults.append(Partition(Span(self.now_ns), groups))
            case ("heal",):
                self.faults = [self._ended(fault) for fault in self.faults]
            case _:
                raise ValueError(f"unknown command: {command.text}")

    def _describe_group(self, words: list[str]) -> None:
        target: list[int] = []
        targets = {"members": target, "later": []}
        rest = iter(words)
        for word in rest:
            if word.isdecimal():
                target.append(int(word))
            elif word == "later":
                target = targets["later"]
            elif word == "failures":
                self.failures = True
            elif word == "order":
                self.order = next(rest)
            elif word in DURATIONS:
                self.durations[word] = next(rest)
            else:
                raise ValueError(f"unknown option of members: {word}")
        self.later = tuple(targets["later"])
        self.members = (*targets["members"], *self.later)

    def _ended(self, fault: Fault) -> Fault:
        if isinstance(fault, Partition) and fault.span.to_ns is None:
            return replace(fault, span=Span(fault.span.from_ns, self.now_ns))
        return fault

    def scenario(self) -> Scenario:
        if self.later:
            raise ValueError(f"members {self.later} never join")
        ns = {name: duration_ns(text) for name, text in self.durations.items()}
        return Scenario(
            source="transcript",
            group="transcript",
            order=self.order,
            members=self.members,
            timing=Timing(ns["delta"], ns["gamma"], ns["slot"]),
            rates=dict.fromkeys(self.members, Rate(avg=400, burst=8)),
            workloads=dict.fromkeys(self.members, Workload()),
            network=Network(ConstantDelay(ns["delay"])),
            clocks=Clocks("perfect"),
            run_ns=self.now_ns,
            failures=self.failures,
            consume_ns=dict.fromkeys(self.members, ns["consume"]),
            faults=tuple(self.faults),
            steps=tuple(self.steps),
        )


class LeaderLog:
    """The leader that each member follows, sampled after every step of the world."""

    def __init__(self) -> None:
        self.changes: list[tuple[int, int, str]] = []
        self._last: dict[int, int | None] = {}

    def sample(self, world: World) -> None:
        for member, node in world.members.items():
            leader = _leader(node.stack) if node.up else None
            if leader != self._last.get(member):
                self._last[member] = leader
                if node.up:
                    text = "no leader" if leader is None else f"leader {leader}"
                    self.changes.append((world.now - world.start_ns, member, text))


def _leader(stack: object) -> int | None:
    order = stack.order if isinstance(stack, Stack) else None
    if isinstance(order, LeaderOrderBase):
        return order.election.leader
    return order.consensus.leader if isinstance(order, ConsensusOrderBase) else None


def parse(text: str) -> list[Command]:
    """The commands of a transcript; the outputs are left out."""
    commands: list[Command] = []
    comment: list[str] = []
    in_output = False
    for line in text.splitlines():
        if line == SEPARATOR:
            in_output = True
        elif not line.strip():
            in_output = False
        elif in_output:
            continue
        elif line.startswith("#"):
            comment.append(line)
        else:
            commands.append(Command(tuple(comment), tuple(line.split())))
            comment = []
    return commands


def play(text: str) -> str:
    """The transcript with the outputs that its commands have now."""
    commands, script = parse(text), Script()
    for number, command in enumerate(commands):
        script.add(number, command)
    scenario, leaders = script.scenario(), LeaderLog()
    world, memory, bound_ns, reliable = build_world(scenario, 1, check=leaders.sample, compare_payloads=True)
    for at_ns, action in script.actions:
        world.schedule(world.start_ns + at_ns, lambda now, act: act(world, now), action)
    world.run(world.start_ns + scenario.run_ns)
    trace = memory.trace(run_meta(scenario, 1, bound_ns, reliable))
    reports = sorted([*_reports(trace, world.start_ns), *leaders.changes], key=lambda report: report[0])
    played = []
    for number, command in enumerate(commands):
        played.append(command.text)
        if number in script.spans:
            lines = _lines(reports, trace, world.start_ns, script.spans[number])
            played.append("\n".join((SEPARATOR, *lines, "")))
    return "\n".join(played)


def _reports(trace: Trace, start_ns: int) -> list[tuple[int, int, str]]:
    """Every report but deliveries: when, by which member, and what it says."""
    found = []
    for row in range(len(trace)):
        kind = KINDS[int(trace.kind[row])]
        token = trace.tokens[int(trace.token[row])] if trace.token[row] >= 0 else ""
        subject = f" about {int(trace.sender[row])}" if trace.sender[row] not in (0, trace.member[row]) else ""
        match kind:
            case EventKind.VIEW:
                text = f"view {' '.join(map(str, trace.listed(row)))}"
            case EventKind.VIOLATION:
                text = f"violation {token}{subject}"
            case EventKind.NOTICE:
                text = f"notice {token}{subject}"
            case EventKind.START:
                text = "joined"
            case EventKind.LEAVE:
                text = "left"
            case _:
                continue
        found.append((int(trace.real_ns[row]) - start_ns, int(trace.member[row]), text))
    return found


def _lines(reports: list[tuple[int, int, str]], trace: Trace, start_ns: int, span: tuple[int, int]) -> list[str]:
    shared: dict[tuple[int, str], list[int]] = {}
    for at, member, text in reports:
        if span[0] <= at < span[1]:
            shared.setdefault((at, text), []).append(member)
    lines = [f"{duration_text(at)}  {_members(members)}: {text}" for (at, text), members in shared.items()]
    delivered = trace.deliveries()
    times = delivered.real_ns - start_ns
    rows = [row for row in range(len(delivered)) if span[0] <= times[row] < span[1]]
    counts = {
        member: Counter(int(delivered.sender[row]) for row in rows if delivered.member[row] == member)
        for member in sorted({int(delivered.member[row]) for row in rows})
    }
    by_counts: dict[str, list[int]] = {}
    for member, count in counts.items():
        text = ", ".join(f"{number} from {sender}" for sender, number in sorted(count.items()))
        by_counts.setdefault(text, []).append(member)
    lines += [f"{_members(members)}: delivered {text}" for text, members in by_counts.items()]
    return lines or ["nothing is reported"]


def _members(members: list[int]) -> str:
    return " ".join(map(str, sorted(dict.fromkeys(members))))
