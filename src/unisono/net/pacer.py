"""Pacer: holds a sender to its declared rate (paper 000 §2.1).

A rate limits the messages per slot, the payload per slot, and the average over k slots. The paper assumes that
applications keep their rates. Here the order asks the pacer how much the current slot can still take; further messages
wait at the application.
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
        """Start a slot, with a new rate if one is given."""
        if self.slot_messages:
            self._past_slots.append((self._slot, self.slot_messages))
            self._past_messages += self.slot_messages
        if rate is not None:
            self._set_rate(rate)
        self._slot, self.slot_messages, self.slot_bytes = slot, 0, 0
        while self._past_slots and self._past_slots[0][0] <= slot - self._averaging_slots:
            self._past_messages -= self._past_slots.popleft()[1]

    def change_slot(self, slot: int, theta_ns: int) -> None:
        """Change the slot length from `slot` on, which must be opened next.

        Messages of earlier slots then count for slots of the new length that are as far back in time, or slightly less.
        """
        old_theta_ns, self.theta_ns = self.theta_ns, theta_ns
        if self.slot_messages:
            self._past_slots.append((self._slot, self.slot_messages))
            self._past_messages += self.slot_messages
            self.slot_messages = 0
        self._past_slots = deque(
            (slot - (slot - past_slot) * old_theta_ns // theta_ns, count) for past_slot, count in self._past_slots
        )
        self._set_rate(self.rate)

    def messages_left(self) -> int:
        """How many more messages this slot can take."""
        return max(0, min(self.rate.burst, self._allowance - self._past_messages) - self.slot_messages)

    def bytes_left(self) -> int:
        """How many more bytes of payload this slot can take."""
        return self._burst_bytes - self.slot_bytes

    def record_sent(self, messages: int, payload_bytes: int) -> None:
        """Count messages and payload bytes that were accepted in this slot."""
        self.slot_messages += messages
        self.slot_bytes += payload_bytes

    def is_full(self) -> bool:
        """Whether this slot can take no more messages, not even an empty one."""
        return self.messages_left() == 0
