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
        self._past_slots: deque[tuple[int, int]] = deque()
        self._past_messages = 0
        self._slot = 0
        self.slot_messages = 0
        self.slot_bytes = 0
        self._set_rate(rate)

    def _set_rate(self, rate: Rate) -> None:
        self.rate = rate
        self._burst_bytes = rate.bytes_per_slot(self._max_message)
        self._averaging_slots = rate.averaging_slots(self.theta_ns)
        self._allowance = rate.allowance(self.theta_ns)

    def open_slot(self, slot: int, rate: Rate | None = None) -> None:
        """A slot begins, perhaps with a new rate."""
        if self.slot_messages:
            self._past_slots.append((self._slot, self.slot_messages))
            self._past_messages += self.slot_messages
        if rate is not None:
            self._set_rate(rate)
        self._slot, self.slot_messages, self.slot_bytes = slot, 0, 0
        while self._past_slots and self._past_slots[0][0] <= slot - self._averaging_slots:
            self._past_messages -= self._past_slots.popleft()[1]

    def change_slot(self, slot: int, theta_ns: int) -> None:
        """Slots have another length from `slot` on, which is to be opened next.

        What was sent in earlier slots is noted for slots of the new length that are as long past, or a little less.
        """
        old, self.theta_ns = self.theta_ns, theta_ns
        if self.slot_messages:
            self._past_slots.append((self._slot, self.slot_messages))
            self._past_messages += self.slot_messages
            self.slot_messages = 0
        self._past_slots = deque((slot - (slot - then) * old // theta_ns, count) for then, count in self._past_slots)
        self._set_rate(self.rate)

    def messages_left(self) -> int:
        """How many more messages this slot takes."""
        return max(0, min(self.rate.burst, self._allowance - self._past_messages) - self.slot_messages)

    def bytes_left(self) -> int:
        """How much more payload this slot takes."""
        return self._burst_bytes - self.slot_bytes

    def record_sent(self, messages: int, payload_bytes: int) -> None:
        """That much was taken."""
        self.slot_messages += messages
        self.slot_bytes += payload_bytes

    def is_full(self) -> bool:
        """Whether this slot can take no further message, even an empty one."""
        return self.messages_left() == 0
