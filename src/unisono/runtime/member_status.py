"""Collects the `Status` of a running member from its driver and its stack."""

from __future__ import annotations

from unisono.model.capabilities import capabilities_of
from unisono.model.sla import Side
from unisono.model.status import PeerState, PeerStatus, Role, Standing, Status
from unisono.model.units import NS_PER_S
from unisono.runtime.driver import Driver

SILENCE_NS = NS_PER_S
"""A peer of a slot order, which sends in every slot, is suspected if it was silent for this long beyond a slot."""
SILENT_PROBES = 3
"""A peer of another order is suspected if it was silent for the time of this many probes."""


def status_of(driver: Driver, group: str, plan: str) -> Status:
    """The status of a member now. `group` is the group's name, and `plan` its plan in one line."""
    stack, watch = driver.stack, driver.watch
    policy, standing = stack.policy, watch.standing(driver.clock.now())
    waiting_to_send, waiting_for_application = driver.queue_lengths()
    delays = stack.delays.largest if stack.delays.total else stack.clock_differences.longest_delay_ns
    return Status(
        group=group,
        member=policy.member,
        order=policy.order,
        role=_role(driver, standing),
        leader=standing.leader,
        members=driver.view.members,
        majority=standing.majority,
        peers=peer_statuses(driver),
        waiting_to_send=waiting_to_send,
        waiting_for_application=waiting_for_application,
        sent=driver.sent,
        delivered=driver.delivered,
        undelivered=watch.undelivered(driver.sent_by_this_incarnation),
        late=watch.late,
        plan=plan,
        bound_ns=stack.bound_ns(),
        delta_ns=delays,
        gamma_ns=stack.gamma_ns(),
        refused={reason.value: count for reason, count in stack.refused.items()},
        violations={kind.value: seen for kind, seen in watch.violations.items()},
    )


def peer_statuses(driver: Driver) -> tuple[PeerStatus, ...]:
    """What a member knows about each peer that it exchanges datagrams with."""
    now = driver.clock.now()
    standing = driver.stack.standing(now)
    return tuple(_peer_status(driver, now, peer, standing) for peer in driver.stack.policy.neighbours)


def _role(driver: Driver, standing: Standing) -> Role:
    if driver.closed or driver.left is not None:
        return "left"
    return standing.role_of(driver.stack.policy.member) if driver.stack.running() else "joining"


def _peer_status(driver: Driver, now: int, peer: int, standing: Standing) -> PeerStatus:
    heard_ns = driver.stack.last_heard_ns(peer)
    sample = driver.stack.clock_differences.estimate(peer)
    state: PeerState = "up"
    if peer not in driver.view.members:
        state = "left"
    elif peer in standing.suspected or heard_ns is None or _is_silent(driver, now - heard_ns):
        state = "suspected"
    return PeerStatus(
        peer,
        state,
        last_heard_ns=None if heard_ns is None else max(0, now - heard_ns),
        delay_ns=None if sample is None else sample.error_ns,
        loss=_loss(driver, peer),
        lag=standing.behind.get(peer),
    )


def _is_silent(driver: Driver, silence_ns: int) -> bool:
    """Whether a peer has been silent for too long. This also holds for peers that no failure detector watches."""
    policy, timing = driver.stack.policy, driver.stack.policy.timing
    longest_ns = SILENT_PROBES * policy.probe_every_ns
    if capabilities_of(policy.order).slotted:
        longest_ns = SILENCE_NS + driver.stack.grid.last_segment.theta_ns
    return silence_ns > longest_ns + timing.delta_ns + timing.gamma_ns


def _loss(driver: Driver, peer: int) -> float | None:
    """The share of a peer's datagrams that the network lost in the last interval of metrics; None without metrics."""
    rows = () if driver.qos_observer is None else driver.qos_observer.latest
    lost = [row.value for row in rows if row.metric == "loss" and row.link == peer and row.side is Side.BELOW]
    return lost[-1] if lost else None
