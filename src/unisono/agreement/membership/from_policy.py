"""Virtual synchrony as a policy asks for it: what an order that keeps `view_contract` puts under itself."""

from __future__ import annotations

from unisono.agreement.membership.views import Membership
from unisono.model.durations import NS_PER_MS
from unisono.model.policy import Policy
from unisono.model.timing import Timing

EVERY_LEAST_NS = 20 * NS_PER_MS


def every_ns(timing: Timing) -> int:
    """How often members show themselves: no more often than the network takes to carry it, or a machine to run it."""
    return max(timing.theta_ns, timing.delta_ns, EVERY_LEAST_NS)


def retry_ns(timing: Timing) -> int:
    """A round trip, and what two clocks may make of it."""
    return 2 * timing.delta_ns + 2 * timing.gamma_ns + NS_PER_MS


def views_of(policy: Policy, *, founding: bool = True) -> Membership:
    """Membership among those whom the policy names: a majority of them may begin the group, if it is to be begun."""
    return Membership(
        policy.member,
        policy.view.members,
        incarnation=policy.incarnation,
        every_ns=every_ns(policy.timing),
        retry_ns=retry_ns(policy.timing),
        max_frame=policy.max_frame,
        founding=founding,
    )
