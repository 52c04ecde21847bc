"""Checks the options of `join` and turns them into addresses, Δ, Γ, Θ and the policy that a stack is built from."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from unisono.config import FSYNC, Config
from unisono.errors import Infeasible, InvalidOption, SlaError
from unisono.model.addresses import address_text, parse_address
from unisono.model.capabilities import needs_storage
from unisono.model.events import View
from unisono.model.options import OrderName, Priority
from unisono.model.policy import PROBE_INTERVAL_NS, Policy, StateHolder
from unisono.model.sla import SlaSet
from unisono.model.text.references import GroupReference
from unisono.model.text.sla import parse_slas
from unisono.model.units import NS_PER_S, duration_ns, duration_text
from unisono.qos.plan.admission import Link
from unisono.qos.plan.choice import GroupPlan, Needs, choose
from unisono.qos.watch.observer import QosObserver
from unisono.runtime.discovery import BeaconDiscovery, DiscoveredGroup, DnsDiscovery
from unisono.runtime.fault_injection import FaultInjection
from unisono.runtime.peers import GroupLocation, bind_address, group_location
from unisono.runtime.storage import Storage
from unisono.stack import Stack, build

START_MARGIN_NS = 100_000_000


Discover: TypeAlias = Callable[[BeaconDiscovery | DnsDiscovery, int, float], Awaitable[DiscoveredGroup]]
"""A function that finds the members. Arguments: the search, this member's incarnation, the time-out in seconds."""


def load_slas(source: SlaSet | str | os.PathLike[str] | None) -> SlaSet | None:
    """The agreements in `source`, or in the file that it names if it is a path; None for None."""
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


@dataclass(frozen=True, slots=True)
class Setup:
    """A checked configuration, with the plan that follows from it and the place of the group."""

    config: Config
    plan: GroupPlan
    place: GroupLocation
    link: Link
    slas: SlaSet | None
    incarnation: int
    injection: FaultInjection | None = None

    @staticmethod
    def of(config: Config, incarnation: int, injection: FaultInjection | None = None) -> Setup:
        """Plan a group from its configuration; raises an error for options that cannot work."""
        place, link = group_location(config), config.network.shared_link()
        bind_address(config)  # raises an error for an address that cannot work
        setup = Setup(
            config, choose(_needs(config)), place, link, load_slas(config.observe.sla), incarnation, injection
        )
        return replace(setup, plan=replace(setup.plan, bound_ns=setup.check()))

    @property
    def order(self) -> OrderName:
        """The name of the order."""
        return self.plan.order.name

    @property
    def member(self) -> int:
        """This member's number."""
        return self.place.member

    @property
    def deadline_ns(self) -> int | None:
        """The deadline in nanoseconds; None if there is none."""
        return None if self.config.deadline is None else duration_ns(self.config.deadline, "deadline")

    @property
    def timeout_s(self) -> float:
        """How long the group may take to form, in seconds."""
        return duration_ns(self.config.timeout, "timeout") / NS_PER_S

    @property
    def multicast(self) -> tuple[str, int] | None:
        """The address of the IP multicast group; None without one."""
        address = self.config.network.multicast
        return None if address is None else parse_address("multicast", address)

    @property
    def bind(self) -> tuple[str, int] | None:
        """The local address at which this member's socket has to listen; None if it is the member's address."""
        return bind_address(self.config)

    @property
    def state(self) -> StateHolder | None:
        """The application whose state the order transfers; None if the order transfers none."""
        return self.plan.order.state if isinstance(self.plan.order, Priority) else None

    async def with_discovered_members(self, discover: Discover) -> tuple[Setup, DiscoveredGroup | None]:
        """Find the members' addresses if `search` is set. Return the completed setup and the discovered group.

        Without a search, return this setup and None.
        """
        if self.place.search is None:
            return self, None
        found = await discover(self.place.search, self.incarnation, self.timeout_s)
        place = GroupLocation(self.place.group, found.member, found.addresses, found.salt)
        return replace(self, place=place), found

    def reference(self) -> str:
        """The group reference: a text from which other processes learn the members' addresses."""
        peers = {number: address_text(address) for number, address in self.place.addresses.items()}
        return GroupReference(self.place.group, peers, self.place.salt).text()

    def qos_observer(self, stack: Stack) -> QosObserver | None:
        """The observer that collects metrics and evaluates the SLAs; None if `join` was asked for neither."""
        if self.slas is None and self.config.observe.metrics is False:
            return None
        return QosObserver(stack.policy, stack.order_and_service_names, stack.clock_differences, self.slas, stack)

    def open_storage(self) -> Storage | None:
        """Open this member's storage; return None if `join` was given none."""
        path = self.config.storage_path
        if path is None:
            return None
        return Storage(path, group=self.place.group, member=self.member, fsync=self.config.fsync)

    def attach_application_state(self, stack: Stack) -> None:
        """Let the stack transfer the application's state to joining members, if the order transfers state."""
        stack.share_application_state(self.state)

    def check(self) -> int:
        """Raise an error for options that cannot work, before a socket is opened; return the latency bound."""
        if self.config.storage is not None and not needs_storage(self.order, self._grades()):
            text = (
                f"the order {self.order} uses no stable storage; only consensus, quasi_genuine and final deliveries "
                "do; leave out storage"
            )
            raise InvalidOption("storage", text)
        if self.config.storage is None and self.config.fsync != FSYNC.default:
            raise InvalidOption("fsync", f"{self.config.fsync!r} has no effect without storage; give storage, too")
        self._check_pull_options()
        self._check_min_members()
        copies = 1 if self.multicast is not None else max(1, len(self.place.addresses) - 1)
        share = self.link.share(copies)
        try:
            stack = build(self.policy(self.config.network.max_frame or 1400), share)
        finally:
            share.release()
        bound_ns, deadline_ns = stack.bound_ns(), self.deadline_ns
        self.qos_observer(stack)
        if deadline_ns is not None and bound_ns > deadline_ns:
            raise Infeasible(
                deadline_ns,
                bound_ns,
                f"the latency bound of the order {self.order} is {duration_text(bound_ns)} with these options",
            )
        return bound_ns

    def _check_min_members(self) -> None:
        least, most = self.config.min_members, 1 + len(self.policy(1400).neighbours)
        if least is not None and not 1 <= least <= most:
            text = f"expected a number from 1 to {most}, the members that this one can hear, itself included"
            raise InvalidOption("min_members", f"{text}, got {least}")

    def _grades(self) -> str:
        return getattr(self.plan.order, "grades", "early")

    def _check_pull_options(self) -> None:
        """Raise InvalidOption if `state`, `deadline` or `recorder` does not fit the priority orders.

        There the application consumes messages itself, and an excluded member rejoins as a new incarnation.
        """
        order, recorder = self.plan.order, self.config.observe.recorder
        if not isinstance(order, Priority):
            return
        if order.state is not None and not isinstance(order.state, StateHolder):
            raise InvalidOption("state", f"expected an object with snapshot() and restore(state), got {order.state!r}")
        if self.deadline_ns is not None:
            text = "the priority orders cannot promise a deadline, because consumers set the pace; leave out deadline"
            raise InvalidOption("deadline", text)
        if order.rejoin and recorder is not None and recorder.new_incarnation is None:
            text = (
                "a member that rejoins has a new incarnation, but this recorder cannot record more than one; give a "
                "recorder with `new_incarnation`, or Priority(rejoin=False)"
            )
            raise InvalidOption("recorder", text)

    def policy(self, max_frame: int) -> Policy:
        """The policy from which this member's stack is built."""
        adaptable = () if self.slas is None else self.slas.adaptable_settings
        return Policy(
            group=self.place.group + self.place.salt,
            member=self.member,
            view=View(tuple(sorted(self.place.addresses))),
            timing=self.plan.timing,
            rate=self.config.rate,
            order=self.order,
            incarnation=self.incarnation,
            max_message=self.config.max_message,
            max_frame=max_frame,
            start_margin_ns=START_MARGIN_NS,
            probe_every_ns=PROBE_INTERVAL_NS,
            multicast=self.multicast is not None,
            rho_most=self.slas.rho_most if self.slas is not None and "rho" in adaptable else 0,
            fec_most=self.slas.fec_most if self.slas is not None and "fec" in adaptable else 0,
            plan_inputs=_needs(self.config).plan_inputs,
            **self.plan.order.policy_fields(),
        )


def _needs(config: Config) -> Needs:
    return Needs(
        config.order,
        config.gaps,
        None if config.deadline is None else duration_ns(config.deadline, "deadline"),
        duration_ns(config.network.delta, "delta"),
        duration_ns(config.network.gamma, "gamma"),
        config.network.loss,
        config.rate,
    )
