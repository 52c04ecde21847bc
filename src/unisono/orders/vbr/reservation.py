"""What one sender holds reserved while its rate and the slot's length change, and when a change reaches it.

The network is asked before anything is promised, for the largest of what the present slot and those to come need.
"""

from __future__ import annotations

from dataclasses import replace

from unisono.errors import ReservationRefused
from unisono.model.durations import duration_text
from unisono.model.policy import Policy
from unisono.model.rates import Rate, Reserver
from unisono.orders.packing import reservation


class SenderReservation:
    """One sender's reservation."""

    def __init__(self, policy: Policy, reserver: Reserver) -> None:
        self._policy = policy
        self._reserver = reserver
        self._rate = policy.rate
        self._theta_ns = policy.timing.theta_ns
        self._next_rate: Rate | None = None
        """From the next slot on."""
        self._agreed_theta_ns: int | None = None
        """The length that slots will have."""
        self._requested_theta_ns: int | None = None
        """The length that this member has asked for, and the rate that goes with it."""
        self._requested_rate: Rate | None = None
        self._is_insufficient = False
        """Whether what is reserved is known not to be enough."""
        self._reserve()

    def request_rate(self, rate: Rate) -> None:
        """Another rate from the next slot on."""
        before, self._next_rate = self._next_rate, rate
        try:
            self._reserve()
        except BaseException:
            self._next_rate = before
            raise

    def request_slot(self, theta_ns: int, rate: Rate | None) -> None:
        """Another slot length, as soon as it is agreed on, and another rate with it."""
        before, (self._requested_theta_ns, self._requested_rate) = (
            (self._requested_theta_ns, self._requested_rate),
            (theta_ns, rate),
        )
        try:
            self._reserve()
        except BaseException:
            self._requested_theta_ns, self._requested_rate = before
            raise

    def on_slot_agreed(self, theta_ns: int) -> None:
        """Another slot length has been agreed on."""
        self._agreed_theta_ns = theta_ns
        self._reserve()

    def shrink_burst(self, theta_ns: int, refusal: ReservationRefused) -> str:
        """No room is left for the present burst in slots of that length: send less at once. What was done, in words."""
        rate = self._next_rate or self._rate
        fits, above = 0, rate.burst
        while fits + 1 < above:
            burst = (fits + above) // 2
            self._next_rate = self._scaled(rate, burst)
            try:
                self._reserve()
                fits = burst
            except ReservationRefused:
                above = burst
        self._next_rate = self._scaled(rate, max(1, fits))
        done = f"the burst is now {self._next_rate.burst} instead of {rate.burst}"
        if fits:
            self._reserve()
        else:
            self._is_insufficient = True
            done += ", and even that is more than is reserved"
        return f"slots of {duration_text(theta_ns)} need more than there is room for: {refusal}; {done}"

    def _scaled(self, rate: Rate, burst: int) -> Rate:
        if rate.burst_bytes is None:
            return replace(rate, burst=burst)
        return replace(
            rate, burst=burst, burst_bytes=max(self._policy.max_message, rate.burst_bytes * burst // rate.burst)
        )

    def enter_slot(self, theta_ns: int) -> Rate | None:
        """A slot of that length begins; the rate from there on, if it is another one."""
        rate = self._next_rate
        if theta_ns == self._theta_ns and rate is None:
            return None
        if theta_ns != self._theta_ns:
            self._theta_ns, self._agreed_theta_ns = theta_ns, None
            if theta_ns == self._requested_theta_ns:
                rate, self._requested_theta_ns, self._requested_rate = self._requested_rate or rate, None, None
        self._next_rate, self._rate = None, rate or self._rate
        if not self._is_insufficient:
            self._reserve()
        return rate

    def _reserve(self) -> None:
        latest = self._next_rate or self._rate
        pairs = [(self._rate, self._theta_ns), (latest, self._theta_ns)]
        pairs += [(latest, theta) for theta in (self._agreed_theta_ns,) if theta is not None]
        pairs += [(self._requested_rate or latest, theta) for theta in (self._requested_theta_ns,) if theta is not None]
        needed = [reservation(self._policy, rate, theta) for rate, theta in pairs]
        largest = max(needed, key=lambda each: (each.peak_bytes_per_s, each.burst_bytes_per_slot))
        average = max(each.avg_bytes_per_s for each in needed)
        self._reserver.reserve(replace(largest, avg_bytes_per_s=average))
        self._is_insufficient = False
