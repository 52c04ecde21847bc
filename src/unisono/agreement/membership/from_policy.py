"""Virtual synchrony as a policy asks for it: what an order that keeps `view_contract` puts under itself."""

from __future__ import annotations

from unisono.agreement.membership.views import Membership
from unisono.model.durations import NS_PER_MS
from unisono.model.policy import Policy
from unisono.model.timing import Timing

HEARTBEAT_INTERVAL_MIN_NS = 20 * NS_PER_MS


def heartbeat_interval_ns(timing: Timing) -> int:
    """How often members show themselves: no more often than the network takes to carry it, or a machine to run it."""
    return max(timing.theta_ns, timing.delta_ns, HEARTBEAT_INTERVAL_MIN_NS)


def retry_interval_ns(timing: Timing) -> int:
    """A round trip, and what two clocks may make of it."""
    return 2 * timing.delta_ns + 2 * timing.gamma_ns + NS_PER_MS


def membership_of(policy: Policy, *, founding: bool = True) -> Membership:
    """Membership among those whom the policy names: a majority of them may begin the group, if it is to be begun."""
    return Membership(
        policy.member,
        policy.view.members,
        incarnation=policy.incarnation,
        every_ns=heartbeat_interval_ns(policy.timing),
        retry_ns=retry_interval_ns(policy.timing),
        max_frame=policy.max_frame,
        founding=founding,
    )
