"""The automaton of one reliable multicast at one process (paper 002 §3.3, §3.4, lines 1 to 32).

Errata 002-2, -3, -12, -14, -15. The automaton handles copy numbers and times, and no frames: its caller sends the
copies that it names. The variables have the paper's names. One deadline and one phase replace the paper's timers and
its Broadcaster thread. So setting a timer cancels the previous one and a pending ζ, and there is never a second thread
(002-15).

Originator: `originate` broadcasts copy 0, and `wake` the other copies, η apart.
Receiver: `on_copy` sets the time-out η+ω, no matter which process broadcast the copy (002-2). If no further copy
arrives in time, the process waits for a random ζ more. Then it takes over, from the largest copy number k that it has
received.

Counting is a rule of this project. The paper's guarantee, equation (7), rests on ρ+2 broadcasts: k+1 by the originator,
of which the last may have been incomplete, and ρ-k+1 by the receiver. A process that knows of ρ+2 broadcasts, by any
processes, makes none itself.
"""

from __future__ import annotations

from collections.abc import Callable

from unisono.model.policy import Redundancy
from unisono.net.rmcast.timeouts import FOREVER, OmegaRule, omega_rule_of

NEVER = 2**63 - 1
"""A deadline that is never reached: there is none."""
MAXINT = 2**31
"""Larger than any copy number and any member."""
NO_COPY = -1
"""Returned by `wake` if no copy is to be broadcast now."""

WAITING = 0
"""Phase: waiting for the first copy, or during η+ω for the next one."""
ZETA = 1
"""Phase: the random wait before taking over. A copy from any process ends it."""
BROADCASTING = 2
"""Phase: the originator, or a process that has taken over, broadcasts one copy every η."""
DONE = 3
"""Phase: this process will not broadcast the message again."""

Zeta = Callable[[int], int]
"""Draws ζ from (0, η), given η."""


class RmcastRules:
    """The parameters that the multicasts of one process share."""

    __slots__ = ("enough_broadcasts", "eta_ns", "last_copy", "member", "omega_rule", "rho", "timeout_ns", "zeta")

    def __init__(self, member: int, members: int, redundancy: Redundancy, zeta: Zeta) -> None:
        self.member = member
        self.rho = redundancy.rho
        self.eta_ns = redundancy.eta_ns
        self.timeout_ns = redundancy.eta_ns + redundancy.omega_ns
        self.omega_rule: OmegaRule | None = omega_rule_of(redundancy, members)
        self.last_copy = bool(redundancy.last_copy)
        self.enough_broadcasts = redundancy.rho + 2 if redundancy.adaptive == "counting" else 0
        """After this many known broadcasts, another one is not needed; 0 if broadcasts are not counted."""
        self.zeta = zeta


class RmcastMessage:
    """The automaton of one message of reliable multicast at one process.

    The caller uses `originate` or `on_copy`, and `wake` when `deadline` is reached; `wake` returns the copy to
    broadcast. If a copy arrives at the very instant of the deadline, `on_copy` comes first.
    """

    __slots__ = (
        "_first_copy",
        "_first_ns",
        "_known_broadcasts",
        "_last_copy_from",
        "_omega",
        "_originator",
        "_rules",
        "deadline",
        "last_own_bcast",
        "leader",
        "max_recd",
        "phase",
    )

    def __init__(self, rules: RmcastRules, originator: int) -> None:
        self._rules = rules
        self._originator = originator
        self.max_recd = NO_COPY
        self.leader = MAXINT
        self.last_own_bcast = NO_COPY
        self.phase = WAITING
        self.deadline = NEVER
        """When to call `wake`, or NEVER."""

    def originate(self, now: int) -> int:
        """Start the multicast of an own message (paper 002 §3.4, lines 1 to 4).

        Returns the number of the copy to broadcast now, 0; `wake` returns the others.
        """
        # With max_recd above every copy number, the originator ignores copies of its own message (002-14).
        self.max_recd = MAXINT
        self.leader = self._rules.member
        self.phase = BROADCASTING
        return self._broadcast(now, 0)

    def on_copy(self, now: int, k: int, broadcaster: int) -> bool:
        """Handle copy k from `broadcaster` (paper 002 §3.4, lines 5 to 20). Returns True if the message is new."""
        recd = self.max_recd
        rules = self._rules
        if rules.enough_broadcasts and recd < MAXINT and self._knows_enough(k, broadcaster):
            self._finish()
            return recd < 0
        if k < recd:
            return False
        if recd < 0:
            self.leader = broadcaster
            if k >= rules.rho and not rules.last_copy:
                self._finish()
                return True
            self.max_recd = k
            if rules.omega_rule is None:
                self.deadline = now + rules.timeout_ns
            else:
                self._first_copy, self._first_ns = k, now
                self._set_deadline(now, rules.omega_rule.first_omega(k))
            return True
        if k >= rules.rho:
            # A process that waits to broadcast copy ρ (002-3) stops if another one does so, but not at a duplicate.
            if recd < k or self.leader != broadcaster:
                self._finish()
            return False
        if k > recd or broadcaster == self._originator or broadcaster < self.leader:
            on_time = self.phase == WAITING
            self.max_recd = k
            self.leader = broadcaster
            self.phase = WAITING
            timeouts = rules.omega_rule
            if timeouts is None:
                self.deadline = now + rules.timeout_ns
            else:
                elapsed = now - self._first_ns
                self._set_deadline(now, timeouts.next_omega(self._omega, self._first_copy, k, elapsed, on_time))
        return False

    def wake(self, now: int) -> int:
        """Act on the deadline (paper 002 §3.4, lines 21 to 32). Returns the copy to broadcast now, or NO_COPY."""
        phase = self.phase
        if phase == WAITING:
            self.leader = MAXINT
            self.phase = ZETA
            self.deadline = now + self._rules.zeta(self._rules.eta_ns)
            return NO_COPY
        if phase == ZETA:
            self.leader = self._rules.member
            self.phase = BROADCASTING
            return self._broadcast(now, max(self.last_own_bcast + 1, self.max_recd))
        return self._broadcast(now, self.last_own_bcast + 1)

    def _broadcast(self, now: int, k: int) -> int:
        self.last_own_bcast = k
        if k >= self._rules.rho:
            self._finish()
        else:
            self.max_recd = max(self.max_recd, k)
            self.deadline = now + self._rules.eta_ns
            if self._rules.enough_broadcasts and self._rules.member != self._originator:
                self._known_broadcasts += 1
                if self._known_broadcasts >= self._rules.enough_broadcasts:
                    self._finish()
        return k

    def _knows_enough(self, k: int, broadcaster: int) -> bool:
        """Count this copy, and those that its broadcaster must have sent before it; return whether they are enough."""
        if self.max_recd < 0:
            self._last_copy_from: dict[int, int] = {}
            self._known_broadcasts = 0
        last = self._last_copy_from.get(broadcaster)
        if last is None:
            self._known_broadcasts += k + 1 if broadcaster == self._originator else 1
            self._last_copy_from[broadcaster] = k
        elif k > last:
            self._known_broadcasts += k - last
            self._last_copy_from[broadcaster] = k
        return self._known_broadcasts >= self._rules.enough_broadcasts

    def _set_deadline(self, now: int, omega: int) -> None:
        self._omega = omega
        self.deadline = NEVER if omega >= FOREVER else now + self._rules.eta_ns + omega

    def _finish(self) -> None:
        self.max_recd = MAXINT
        self.phase = DONE
        self.deadline = NEVER
