"""What final deliveries cost beside the order that gives the early ones: reports, votes, signs of life."""

from __future__ import annotations

from unisono.layers.views import every_ns
from unisono.model.durations import NS_PER_MS, NS_PER_S
from unisono.model.policy import Policy
from unisono.model.rates import Reservation, Reserver
from unisono.wire.finals import EXTENT_BYTES, HOLDINGS_BYTES
from unisono.wire.frame import HEADER_BYTES, UDP_IP_BYTES

REPORT_LEAST_NS = 10 * NS_PER_MS
_VOTES_BYTES = 64


def report_every_ns(policy: Policy) -> int:
    """How often a member reports at most: once a slot, or as often as pays."""
    return max(policy.timing.theta_ns, REPORT_LEAST_NS)


def background_bytes_per_s(policy: Policy) -> int:
    """A member's reports, each of the slots that are under way; a leader's values, of every slot once; two signs."""
    timing, members = policy.timing, len(policy.view.members)
    frame = HEADER_BYTES + UDP_IP_BYTES
    under_way = (5 * timing.delta_ns + 2 * report_every_ns(policy)) // timing.theta_ns + 2
    report = frame + HOLDINGS_BYTES + EXTENT_BYTES * members * under_way
    value = frame + _VOTES_BYTES + EXTENT_BYTES * members
    reports = report * NS_PER_S // report_every_ns(policy)
    return reports + 2 * value * NS_PER_S // timing.theta_ns + 2 * frame * NS_PER_S // every_ns(timing)


class Background:
    """Reserves for what runs behind the order together with what the order itself needs."""

    def __init__(self, policy: Policy, reserver: Reserver) -> None:
        self._added = background_bytes_per_s(policy)
        self._reserver = reserver

    def reserve(self, reservation: Reservation) -> None:
        """The order's reservation, and the rest."""
        burst = -(-self._added * reservation.theta_ns // NS_PER_S)
        self._reserver.reserve(
            Reservation(
                reservation.avg_bytes_per_s + self._added,
                reservation.burst_bytes_per_slot + burst,
                reservation.theta_ns,
            )
        )
