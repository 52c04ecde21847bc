"""What an order does about slots whose length may change: it asks for a change, agrees on one, and enters it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from unisono.errors import InvalidOption, ReservationRefused
from unisono.model.durations import duration_text
from unisono.model.events import SettingsAgreed, StackEvent, TimingChange, Violation, ViolationKind
from unisono.model.policy import Policy
from unisono.model.rates import Rate, Reserver
from unisono.model.slot_schedule import SlotGrid
from unisono.model.timing import SLOT_MAX_NS, SLOT_MIN_NS, Timing
from unisono.net.pacer import Pacer
from unisono.orders.modes import ACCEPTED_INPUTS, Input, Mode
from unisono.orders.vbr.reservation import SenderReservation
from unisono.orders.vbr.setting_requests import REQUEST_REPEATS, SettingRequests, effective_from
from unisono.orders.vbr.slot_change import SlotChange
from unisono.wire.control import decode_mark_requests, encode_mark_requests
from unisono.wire.setting_requests import SETTING_REQUEST_MAX_BYTES, SettingRequest, encode_setting_requests

MAX_SETTING_REQUESTS = 32
"""A mark carries no more demands than this."""


class SlotOrderBase(ABC):
    """The part of a slot order that knows what slots are now."""

    def __init__(self, policy: Policy, reserver: Reserver) -> None:
        self.mode = Mode.GET_RATE
        self.events: list[StackEvent] = []
        self.grid = SlotGrid.of(policy.timing)
        self.slot_change = SlotChange()
        # Where members may fail a mark may be lost for good, so that a demand is said more often than losses need.
        more = max(policy.loss_burst, REQUEST_REPEATS) if policy.failures else None
        room = max(1, min(MAX_SETTING_REQUESTS, policy.max_frame // (2 * SETTING_REQUEST_MAX_BYTES)))
        self.setting_requests = SettingRequests(
            policy.member, policy.view.members, lambda origin: effective_from(self.grid, origin, more), room
        )
        self.settings_agreed: list[SettingsAgreed] = []
        """What everybody goes by from the slot on that is being entered; the stack empties it."""
        self.window_slots = 0
        self._policy = policy
        self._reported_timing = policy.timing
        """The timing that the application knows to be in force."""
        self._reservation = SenderReservation(policy, reserver)
        self._pacer = Pacer(policy.rate, policy.timing.theta_ns, policy.max_message)
        self._send_slot = 0
        """The slot being sent."""
        self._deliver_slot = 0
        self._update_window()

    @abstractmethod
    def bound_of(self, timing: Timing) -> int:
        """The latency bound where slots are like this."""

    @abstractmethod
    def _catch_up(self, now: int) -> None:
        """Do what is due before something changes."""

    def bound_ns(self) -> int:
        """The order's bound, for the longest slots that a message taken now or still under way may be in."""
        lengths = self.grid.lengths_from(self._deliver_slot)
        return max(self.bound_of(Timing(self.grid.delta_ns, self.grid.gamma_ns, theta_ns)) for theta_ns in lengths)

    def change_rate(self, now: int, rate: Rate) -> None:
        """new-rate: in force from the next slot on; the larger of both rates is reserved until then."""
        if Input.NEW_RATE not in ACCEPTED_INPUTS[self.mode]:
            return
        self._policy.check_rate(rate)
        self._catch_up(now)
        self._reservation.request_rate(rate)

    def change_slot(self, now: int, theta_ns: int, rate: Rate | None = None) -> None:
        """Wish for slots of another length, and with them for another rate of our own.

        A TimingChange tells when they have it. Until then what both need is reserved. InvalidOption and
        ReservationRefused change nothing.
        """
        if Input.NEW_RATE not in ACCEPTED_INPUTS[self.mode]:
            return
        if not SLOT_MIN_NS <= theta_ns <= SLOT_MAX_NS:
            least, most = duration_text(SLOT_MIN_NS), duration_text(SLOT_MAX_NS)
            raise InvalidOption("slot", f"a length from {least} to {most} is needed, not {duration_text(theta_ns)}")
        self._policy.check_rate(rate or self._policy.rate)
        self._catch_up(now)
        last = self.grid.last_segment
        if theta_ns == last.theta_ns and self._send_slot >= last.first_slot:
            self.slot_change.requested_theta_ns = None
            if rate is not None:
                self._reservation.request_rate(rate)
            return
        self._reservation.request_slot(theta_ns, rate)
        self.slot_change.requested_theta_ns = None if theta_ns == last.theta_ns else theta_ns

    def request_settings(self, now: int, content: bytes, member: int | None = None, *, keep: bool = False) -> None:
        """Let everybody know which settings this member needs, or one who is gone.

        A later demand takes the place of one that has not been said yet, unless that is to be kept.
        """
        if Input.NEW_RATE in ACCEPTED_INPUTS[self.mode]:
            self._catch_up(now)
            self.setting_requests.request(content, member, keep=keep)

    def _requests_for_mark(self) -> bytes | None:
        """What the mark of the slot being sent is to carry, if anything."""
        wish, demands = (
            self.slot_change.next_request(self._send_slot, self.grid),
            self.setting_requests.to_send(self._send_slot),
        )
        return None if wish is None and not demands else encode_mark_requests(wish, encode_setting_requests(demands))

    def _on_mark_requests(self, sender: int, body: bytes | memoryview) -> None:
        """A mark that carries something is being delivered."""
        wish, demands = decode_mark_requests(body) or (None, ())
        if wish is not None:
            self.slot_change.on_request(sender, wish)
        self._on_setting_requests(demands)

    def _on_setting_requests(self, requests: Sequence[SettingRequest]) -> None:
        # Without failures nobody is sending in a slot so late before it has delivered the one that a demand comes from.
        sending = self._policy.failures and self.mode is Mode.DELIVER_MESSAGES
        self.setting_requests.receive(requests, self._send_slot if sending else None)

    def _decide_slot_change(self, slot: int) -> bool:
        """A slot has been delivered: what was wished for in it is agreed on. Whether slots are others now."""
        grid = self.slot_change.decide(slot, self.grid)
        if grid is not None:
            self._adopt_schedule(grid)
        return grid is not None

    def _adopt_schedule(self, grid: SlotGrid) -> None:
        """These are the slots from now on; the change is ahead of our clock while the assumptions hold."""
        self.grid = grid
        self.slot_change.on_agreed(grid)
        self._update_window()
        try:
            self._reservation.on_slot_agreed(grid.last_segment.theta_ns)
        except ReservationRefused as refused:
            text = self._reservation.shrink_burst(grid.last_segment.theta_ns, refused)
            self.events.append(
                Violation(ViolationKind.RESERVATION, text, self._policy.member, grid.last_segment.first_slot)
            )

    def _report_timing(self) -> None:
        """Between two slots: the application learns of another length before the first message of such a slot."""
        timing = self.grid.timing_of(self._deliver_slot)
        if timing != self._reported_timing:
            self._reported_timing = timing
            self._update_window()
            self.events.append(TimingChange(self._deliver_slot, timing, self.bound_ns()))

    def _update_window(self) -> None:
        """How many slots with messages may be under way.

        Delivering one here takes everyone's marks, and who sends its mark has read what had arrived: this bounds
        every queue and every socket's buffer.
        """
        shortest_ns = min(self.grid.lengths_from(self._deliver_slot))
        self.window_slots = -(-(self.grid.delta_ns + self.grid.gamma_ns) // shortest_ns) + 3

    def _enter_slot(self, slot: int) -> None:
        """The next slot to send is this one."""
        theta_ns = self.grid.theta_of(slot)
        if theta_ns != self._pacer.theta_ns:
            self._pacer.change_slot(slot, theta_ns)
        self._pacer.open_slot(slot, self._reservation.enter_slot(theta_ns))
        self.settings_agreed += [
            SettingsAgreed(d.member, d.content, first, slot) for d, first in self.setting_requests.pop_due(slot)
        ]

    def max_send(self) -> int:
        """maxSend: the burst in force in the slot being sent (Lemma 5.1)."""
        return self._pacer.rate.burst
