"""One reliable multicast at one process (paper 002 §3.3, §3.4, lines 1 to 32; errata 002-2, -3, -12, -14, -15).

The automaton knows copy numbers and times, and no frames: whoever drives it sends what it says. The paper's variables
keep their names. Its timers and its Broadcaster thread are one deadline and one phase, so that setting a timer ends
the last one and a pending ζ with it, and no second thread can exist (002-15). Take-over resumes at copy k, the
largest one received. A first copy below ρ sets the time-out whoever broadcast it (002-2).

Counting is this project's own rule. The promise (7) rests on ρ+2 broadcasts: k+1 of the originator's, of which the last
may have been cut short, and ρ-k+1 of the receiver's. Whoever knows of as many, whoever made them, has nothing to add.
"""

from __future__ import annotations

from collections.abc import Callable

from unisono.model.redundancy import Redundancy
from unisono.net.rmcast.timeouts import FOREVER, OmegaRule, omega_rule_of

NEVER = 2**63 - 1
"""No deadline."""
MAXINT = 2**31
"""Larger than any copy number and any member."""
NO_COPY = -1
"""No copy is to be broadcast."""

WAITING = 0
"""For the next copy, until η+ω is over; before the first copy, for that."""
ZETA = 1
"""The random wait before taking over: a copy from anyone ends it."""
BROADCASTING = 2
"""Originator, or self-appointed: one copy each η."""
DONE = 3
"""This process will never broadcast the message again."""

Zeta = Callable[[int], int]
"""Draws ζ from (0, η), given η."""


class RmcastRules:
    """What one process's multicasts have in common."""

    __slots__ = ("enough_broadcasts", "eta_ns", "last_copy", "member", "omega_rule", "rho", "timeout_ns", "zeta")

    def __init__(self, member: int, members: int, redundancy: Redundancy, zeta: Zeta) -> None:
        self.member = member
        self.rho = redundancy.rho
        self.eta_ns = redundancy.eta_ns
        self.timeout_ns = redundancy.eta_ns + redundancy.omega_ns
        self.omega_rule: OmegaRule | None = omega_rule_of(redundancy, members)
        self.last_copy = bool(redundancy.last_copy)
        self.enough_broadcasts = redundancy.rho + 2 if redundancy.adaptive == "counting" else 0
        """How many broadcasts make another one needless; 0: they are not counted."""
        self.zeta = zeta


class RmcastMessage:
    """The automaton.

    Tell it `originate` or `copy`; when `deadline` is reached call `wake`, which says what to broadcast. A copy that
    comes at the very instant of the deadline is told first.
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
        """RMCast: the copy to broadcast now, which is copy 0; the others follow by `wake` (lines 1 to 4)."""
        # With max_recd above every copy number the originator ignores its message when it comes back (002-14).
        self.max_recd = MAXINT
        self.leader = self._rules.member
        self.phase = BROADCASTING
        return self._broadcast(now, 0)

    def on_copy(self, now: int, k: int, broadcaster: int) -> bool:
        """Copy k has come from `broadcaster`; whether the message is new here, to be delivered (lines 5 to 20)."""
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
            # A process armed for copy ρ (002-3) stands down when another one broadcasts it, not at a duplicate.
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
        """The deadline is reached: the copy to broadcast now, or NOTHING (lines 21 to 32)."""
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
        """Whether enough broadcasts are known, with this copy and those that its broadcaster must have made before."""
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
