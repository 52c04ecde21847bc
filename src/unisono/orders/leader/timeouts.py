"""Signs of life: how long silence may last, and what a leader knows of its members from their beats."""

from __future__ import annotations

from collections.abc import Sequence

from unisono.model.timing import Timing
from unisono.orders.leader.messages import Beat


def silence_ns(timing: Timing) -> int:
    """After how long without a sign of it a member counts as dead: Θ+Δ+3Γ.

    The leader beats each Θ and trusts itself Γ longer, for timers that are late; what it then sends takes Δ; and two
    clocks may each misjudge a span by Γ. Only then can no entry of its be on the way any more.
    """
    return timing.theta_ns + timing.delta_ns + 3 * timing.gamma_ns


def poll_ns(timing: Timing) -> int:
    """How long after its own suspicion a candidate has the votes of all that live: 2Δ+2Γ."""
    return 2 * timing.delta_ns + 2 * timing.gamma_ns


def gap_bound_ns(timing: Timing) -> int:
    """From the last sign of a leader that dies to the new roll, anywhere: Θ+5Δ+7Γ.

    Silence, and Γ for the clock that measures it; the poll, and Γ; Δ for the roll to arrive; and Δ by which members
    differ in when they last heard the leader. Each further member that dies with it may add one poll.
    """
    return silence_ns(timing) + poll_ns(timing) + 2 * timing.gamma_ns + 2 * timing.delta_ns


def outage_ns(timing: Timing, processing_ns: int) -> int:
    """How much longer than the bound a message takes at most because the leader dies: Δ+p more than nothing is ordered.

    What had been on its way to the leader, or waited there, is lost with it, and takes the whole way once more.
    """
    return timing.delta_ns + processing_ns + gap_bound_ns(timing)


class Signs:
    """What a leader has heard of each member."""

    def __init__(self, me: int, members: Sequence[int], timing: Timing) -> None:
        self._me = me
        self._silence_ns = silence_ns(timing)
        self._heard = dict.fromkeys(members, 0)
        self._echoes = dict.fromkeys(members, 0)
        self.acked = dict.fromkeys(members, 0)
        """How far each has delivered."""
        self.trusted_from = 0
        """Members count as supporters when they have answered a beat that was sent from then on."""

    def excuse(self, until: int) -> None:
        """Nobody is silent before: there was no hearing them, or they may not have begun."""
        for member, heard in self._heard.items():
            self._heard[member] = max(until, heard)

    def hear(self, member: int, now: int, beat: Beat) -> None:
        """A beat has come."""
        self._heard[member] = max(now, self._heard[member])
        self._echoes[member] = max(self._echoes[member], beat.echo_ns)
        self.acked[member] = max(self.acked[member], beat.position)

    def supporters(self, roll: Sequence[int], now: int) -> int:
        """How many on the roll are known to follow, this member included."""
        since, trusted = now - self._silence_ns, self.trusted_from
        heard, echoes = self._heard, self._echoes
        return 1 + sum(1 for m in roll if m != self._me and heard[m] >= since and echoes[m] >= trusted)

    def silent(self, roll: Sequence[int], now: int) -> list[int]:
        """Who on the roll has not been heard for too long."""
        return [m for m in roll if m != self._me and self._heard[m] < now - self._silence_ns]
