"""Signs of life: how long silence may last, and what a leader knows of its members from their beats."""

from __future__ import annotations

from collections.abc import Sequence

from unisono.model.timing import Timing
from unisono.orders.leader.messages import StreamHeartbeat


def heartbeat_timeout_ns(timing: Timing) -> int:
    """After how long without a sign of it a member counts as dead: Θ+Δ+3Γ.

    The leader beats each Θ and trusts itself Γ longer, for timers that are late; what it then sends takes Δ; and two
    clocks may each misjudge a span by Γ. Only then can no entry of its be on the way any more.
    """
    return timing.theta_ns + timing.delta_ns + 3 * timing.gamma_ns


def vote_wait_ns(timing: Timing) -> int:
    """How long after its own suspicion a candidate has the votes of all that live: 2Δ+2Γ."""
    return 2 * timing.delta_ns + 2 * timing.gamma_ns


def leader_change_bound_ns(timing: Timing) -> int:
    """From the last sign of a leader that dies to the new roll, anywhere: Θ+5Δ+7Γ.

    Silence, and Γ for the clock that measures it; the poll, and Γ; Δ for the roll to arrive; and Δ by which members
    differ in when they last heard the leader. Each further member that dies with it may add one poll.
    """
    return heartbeat_timeout_ns(timing) + vote_wait_ns(timing) + 2 * timing.gamma_ns + 2 * timing.delta_ns


def outage_ns(timing: Timing, processing_ns: int) -> int:
    """How much longer than the bound a message takes at most because the leader dies: Δ+p more than nothing is ordered.

    What had been on its way to the leader, or waited there, is lost with it, and takes the whole way once more.
    """
    return timing.delta_ns + processing_ns + leader_change_bound_ns(timing)


class FollowerHeartbeats:
    """What a leader has heard of each member."""

    def __init__(self, member: int, members: Sequence[int], timing: Timing) -> None:
        self._member = member
        self._timeout_ns = heartbeat_timeout_ns(timing)
        self._last_received = dict.fromkeys(members, 0)
        self._echoes = dict.fromkeys(members, 0)
        self.acked = dict.fromkeys(members, 0)
        """How far each has delivered."""
        self.trusted_from = 0
        """Members count as supporters when they have answered a beat that was sent from then on."""

    def assume_alive_until(self, until: int) -> None:
        """Nobody is silent before: there was no hearing them, or they may not have begun."""
        for member, heard in self._last_received.items():
            self._last_received[member] = max(until, heard)

    def on_heartbeat(self, member: int, now: int, heartbeat: StreamHeartbeat) -> None:
        """A beat has come."""
        self._last_received[member] = max(now, self._last_received[member])
        self._echoes[member] = max(self._echoes[member], heartbeat.echo_ns)
        self.acked[member] = max(self.acked[member], heartbeat.position)

    def supporters(self, members: Sequence[int], now: int) -> int:
        """How many on the roll are known to follow, this member included."""
        since, trusted = now - self._timeout_ns, self.trusted_from
        heard, echoes = self._last_received, self._echoes
        return 1 + sum(1 for m in members if m != self._member and heard[m] >= since and echoes[m] >= trusted)

    def unresponsive(self, members: Sequence[int], now: int) -> list[int]:
        """Who on the roll has not been heard for too long."""
        return [m for m in members if m != self._member and self._last_received[m] < now - self._timeout_ns]
