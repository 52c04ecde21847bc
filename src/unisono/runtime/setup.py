"""Checks the options of `join` and turns them into addresses, Δ, Γ, Θ and the policy that a stack is built from."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from unisono.errors import Infeasible, InvalidOption, SlaError
from unisono.model.capabilities import capabilities_of, needs_storage, orders_with
from unisono.model.events import View
from unisono.model.policy import PROBE_INTERVAL_NS, Policy, Redundancy, StateHolder
from unisono.model.sla import MetricRow, SlaSet
from unisono.model.text.references import GroupReference
from unisono.model.text.sla import parse_slas
from unisono.model.timing import SLOT_DEFAULT, Timing
from unisono.model.topology import Multigroup
from unisono.model.units import Rate, duration_ns, duration_text
from unisono.qos.plan.admission import Link
from unisono.qos.watch.observer import QosObserver
from unisono.runtime.discovery import BeaconDiscovery, DiscoveredGroup, DnsDiscovery
from unisono.runtime.fault_injection import FaultInjection
from unisono.runtime.storage import Storage, check_fsync
from unisono.stack import Stack, build

if TYPE_CHECKING:
    from unisono.trace.recorder import Recorder

MAX_SLOT_NS = 50_000_000
MIN_SLOT_NS = 500_000
START_MARGIN_NS = 100_000_000


MetricSink: TypeAlias = Callable[[Sequence[MetricRow]], None]
"""A function that gets the metric rows of each collecting interval. It must not block."""
Discover: TypeAlias = Callable[[BeaconDiscovery | DnsDiscovery, int, float], Awaitable[DiscoveredGroup]]
"""A function that finds the members. Arguments: the search, this member's incarnation, the time-out in seconds."""


def load_slas(source: SlaSet | str | os.PathLike[str] | None) -> SlaSet | None:
    """The service level agreements given, or read from the file at the path given; None for None."""
    if source is None or isinstance(source, SlaSet):
        return source
    try:
        text = Path(source).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise SlaError(os.fspath(source), line, "(encoding)", "expected UTF-8 text; save the file as UTF-8") from error
    except OSError as error:
        problem = f"cannot read {os.fspath(source)} ({error.strerror}); give the path of an SLA file"
        raise InvalidOption("sla", problem) from error
    return parse_slas(text, os.fspath(source))


def parse_address(field: str, value: object) -> tuple[str, int]:
    """Parse an address, given as text or as (host, port). Raises InvalidOption, which names `field`."""
    match value:
        case str():
            host, _, port = value.rpartition(":")
        case (str(host), int(number)):
            port = str(number)
        case _:
            host = port = ""
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidOption(field, f"expected an address such as '127.0.0.1:9001', got {value!r}")
    return host.strip("[]"), int(port)


def choose_timing(
    order: str, deadline: str | None, slot: str | None, delta_ns: int, skews_ns: tuple[int, int]
) -> Timing:
    """Return Δ, Γ and the slot length: `slot` if it is given, else the longest slot that keeps the deadline.

    `skews_ns` has two values: Γ, and how much clock differences add to the latency bound (Γ, or 2Γ with failures).
    """
    gamma_ns, skew_ns = skews_ns
    if slot is not None or deadline is None or order not in {"auto", "vbr"}:
        return Timing(delta_ns, gamma_ns, duration_ns(SLOT_DEFAULT if slot is None else slot, "slot"))
    limit = duration_ns(deadline, "deadline")
    theta_ns = min(limit - delta_ns - skew_ns, MAX_SLOT_NS)
    if theta_ns < MIN_SLOT_NS:
        terms, word = (delta_ns, skew_ns, MIN_SLOT_NS), "2Γ" if skew_ns > gamma_ns else "Γ"
        raise Infeasible(limit, sum(terms), f"Δ+{word}+Θ = {' + '.join(map(duration_text, terms))}")
    return Timing(delta_ns, gamma_ns, theta_ns)


@dataclass(frozen=True, slots=True)
class Setup:
    group: str
    member: int
    addresses: dict[int, tuple[str, int]]
    order: str
    rate: Rate
    timing: Timing
    max_message: int
    max_frame: int | None
    failures: bool
    loss_burst: int
    fec: tuple[int, int] | None
    reliable: Redundancy | None
    grades: str
    processing_ns: int
    multicast: tuple[str, int] | None
    link: Link
    recorder: Recorder | None
    incarnation: int
    timeout_s: float
    queue_messages: int
    injection: FaultInjection | None
    slas: SlaSet | None = None
    monitor: bool | MetricSink = False
    storage: Path | None = None
    fsync: str = "always"
    state: StateHolder | None = None
    rejoin: bool = True
    multigroup: Multigroup | None = None
    deadline_ns: int | None = None
    salt: str = ""
    """A suffix of the group's name on the wire. With it, groups of one name but different members ignore each other."""
    search: BeaconDiscovery | DnsDiscovery | None = None
    """How to find the members; None if their addresses are given."""

    async def with_discovered_members(self, discover: Discover) -> tuple[Setup, DiscoveredGroup | None]:
        """Find the members' addresses if `search` is set. Return the completed setup and the discovered group.

        Without a search, return this setup and None.
        """
        if self.search is None:
            return self, None
        found = await discover(self.search, self.incarnation, self.timeout_s)
        return replace(self, member=found.member, addresses=found.addresses, salt=found.salt, search=None), found

    def reference(self) -> str:
        """The group reference: a text from which other processes learn the members' addresses."""
        peers = {
            number: f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            for number, (host, port) in self.addresses.items()
        }
        return GroupReference(self.group, peers, self.salt).text()

    def qos_observer(self, stack: Stack) -> QosObserver | None:
        """The observer that collects metrics and evaluates the SLAs; None if `join` was asked for neither."""
        if self.slas is None and self.monitor is False:
            return None
        return QosObserver(stack.policy, stack.order_and_service_names, stack.clock_differences, self.slas, stack)

    def open_storage(self) -> Storage | None:
        """Open this member's storage; return None if `join` was given none."""
        if self.storage is None:
            return None
        return Storage(self.storage, group=self.group, member=self.member, fsync=self.fsync)

    def attach_application_state(self, stack: Stack) -> None:
        """Let the stack transfer the application's state to joining members, if the order transfers state."""
        stack.share_application_state(self.state)

    def check(self) -> None:
        """Raise an error for options that cannot work, before a socket is opened."""
        if self.storage is not None and not needs_storage(self.order, self.grades):
            text = (
                f"the order {self.order} uses no stable storage; only consensus, quasi_genuine and final deliveries "
                "do; leave out storage"
            )
            raise InvalidOption("storage", text)
        deadline_ns = self.deadline_ns
        check_fsync(self.fsync)
        self._check_pull_options()
        copies = 1 if self.multicast is not None else max(1, len(self.addresses) - 1)
        share = self.link.share(copies)
        try:
            stack = build(self.policy(self.max_frame or 1400), share)
        finally:
            share.release()
        bound_ns = stack.bound_ns()
        self.qos_observer(stack)
        if deadline_ns is not None and bound_ns > deadline_ns:
            raise Infeasible(
                deadline_ns,
                bound_ns,
                f"the latency bound of the order {self.order} is {duration_text(bound_ns)} with these options",
            )

    def _check_pull_options(self) -> None:
        """Raise InvalidOption if `state`, `deadline` or `recorder` does not fit the order.

        Their rules differ in the priority orders, where the application consumes messages itself.
        """
        pulled = capabilities_of(self.order).pulled
        if self.state is not None and not pulled:
            text = f"the order {self.order} has no state transfer; use {' or '.join(orders_with('pulled'))}"
            raise InvalidOption("state", text)
        if self.state is not None and not isinstance(self.state, StateHolder):
            raise InvalidOption("state", f"expected an object with snapshot() and restore(state), got {self.state!r}")
        if self.deadline_ns is not None and pulled:
            text = "the priority orders cannot promise a deadline, because consumers set the pace; leave out deadline"
            raise InvalidOption("deadline", text)
        if pulled and self.rejoin and self.recorder is not None and self.recorder.new_incarnation is None:
            text = (
                "a member that rejoins has a new incarnation, but this recorder cannot record more than one; give a "
                "recorder with `new_incarnation`, or rejoin=False"
            )
            raise InvalidOption("recorder", text)

    def policy(self, max_frame: int) -> Policy:
        return Policy(
            group=self.group + self.salt,
            member=self.member,
            view=View(tuple(sorted(self.addresses))),
            timing=self.timing,
            rate=self.rate,
            order=self.order,
            incarnation=self.incarnation,
            max_message=self.max_message,
            max_frame=max_frame,
            start_margin_ns=START_MARGIN_NS,
            probe_every_ns=PROBE_INTERVAL_NS,
            multicast=self.multicast is not None,
            failures=self.failures,
            loss_burst=self.loss_burst,
            fec=self.fec,
            reliable=self.reliable,
            grades=self.grades,
            rho_most=0 if self.slas is None or "rho" not in self.slas.adaptable_settings else self.slas.rho_most,
            fec_most=0 if self.slas is None or "fec" not in self.slas.adaptable_settings else self.slas.fec_most,
            processing_ns=self.processing_ns,
            multigroup=self.multigroup,
            rejoin=self.rejoin,
        )
