"""Holds a sender to what it declared: burst per slot, payload per slot, average over k slots (paper 000 §2.1).

The paper assumes that applications keep their rates; here the pacer says how much more the current slot takes, and
the rest waits at the application.
"""

from __future__ import annotations

from collections import deque

from unisono.model.rates import Rate


class Pacer:
    """The budget of one sender, slot by slot."""

    def __init__(self, rate: Rate, theta_ns: int, max_message: int) -> None:
        self.theta_ns = theta_ns
        self._max_message = max_message
        self._past: deque[tuple[int, int]] = deque()
        self._past_sum = 0
        self._slot = 0
        self.count = 0
        self.bytes = 0
        self._adopt(rate)

    def _adopt(self, rate: Rate) -> None:
        self.rate = rate
        self._burst_bytes = rate.bytes_per_slot(self._max_message)
        self._window = rate.averaging_slots(self.theta_ns)
        self._allowance = rate.allowance(self.theta_ns)

    def open_slot(self, slot: int, rate: Rate | None = None) -> None:
        """A slot begins, perhaps with a new rate."""
        if self.count:
            self._past.append((self._slot, self.count))
            self._past_sum += self.count
        if rate is not None:
            self._adopt(rate)
        self._slot, self.count, self.bytes = slot, 0, 0
        while self._past and self._past[0][0] <= slot - self._window:
            self._past_sum -= self._past.popleft()[1]

    def change_slot(self, slot: int, theta_ns: int) -> None:
        """Slots have another length from `slot` on, which is to be opened next.

        What was sent in earlier slots is noted for slots of the new length that are as long past, or a little less.
        """
        old, self.theta_ns = self.theta_ns, theta_ns
        if self.count:
            self._past.append((self._slot, self.count))
            self._past_sum += self.count
            self.count = 0
        self._past = deque((slot - (slot - then) * old // theta_ns, count) for then, count in self._past)
        self._adopt(self.rate)

    def messages_left(self) -> int:
        """How many more messages this slot takes."""
        return max(0, min(self.rate.burst, self._allowance - self._past_sum) - self.count)

    def bytes_left(self) -> int:
        """How much more payload this slot takes."""
        return self._burst_bytes - self.bytes

    def spend(self, messages: int, payload_bytes: int) -> None:
        """That much was taken."""
        self.count += messages
        self.bytes += payload_bytes

    def full(self) -> bool:
        """Whether this slot can take no further message, even an empty one."""
        return self.messages_left() == 0
