"""The slot schedule of one member: slot-length changes, setting requests, and the bandwidth reserved for them.

Slots have the declared length Θ until the group agrees on another one. `SlotSchedule` is the part of a VBR order that
knows the length of every slot, present and agreed. Three smaller parts do the work:

- `SlotChange`: the group agrees on a new slot length while it runs.
- `SettingRequests`: members tell each other which settings of other layers they need (paper 002 §3.2).
- `SenderReservation`: reserves bandwidth before this member promises a rate or asks for a slot length.

All requests travel in end-of-slot marks, so they need no datagrams and no agreement messages of their own.

How a slot-length change is agreed on. A member puts its request into the end-of-slot mark of one of its slots, and
sends that mark as many times as needed for one copy to arrive (paper 000 §7). When a member delivers that slot, it sees
all requests in it and adopts the one of the lowest member. The change takes effect at slot

    S = the first slot that begins 3Δ+3Γ or more after the end of the slot that carried the request.

Δ+Γ after the end of a slot, by its own clock, each member has delivered the slot: all marks have arrived, or the
time-out has passed. What the member then tells a newcomer arrives at most Δ+Γ later. The third Γ makes sure that no
member sees a frame of S before that, whichever two clocks are compared. The third Δ is for members that join: a mark
sent at clock reading c by a member that knows of no change shows that the slots stay as they are until c+2Δ+2Γ. Other
requests in the same slot, and requests
sent in slots before S, are void; their members ask again once the change is in effect. So no member stores other
members' slot requests, and newcomers do not need to learn them.

How setting requests spread. A request has an origin: the slot in whose mark it was first sent. Every member that
receives it repeats it in its own marks until some time after it has taken effect. So a member that had any other
member in its view all that time knows the request in time, whatever it missed otherwise. JOINs carry all requests too.
The slot at which a request takes effect depends on the origin alone:

    S = the first slot that begins 2Δ+3Γ or more after the end of slot origin + K,

where K leaves time for other members to pass the request on. Without failures K = 0, and S is also beyond every slot
that a member may be sending in before it has delivered the origin. When a member enters a slot, it applies the requests
due by then, in the order of their origins. So members that know the same requests do the same at the same slot. If a
request reaches a member only after S, the member was cut off from the group, and joins again. The order does not
interpret the content of a request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from unisono.errors import InvalidOption, ReservationRefused
from unisono.model.events import SettingsAgreed, Violation, ViolationKind
from unisono.model.policy import Policy
from unisono.model.timing import SLOT_MAX_NS, SLOT_MIN_NS, Segment, SlotGrid
from unisono.model.units import Rate, Reserver, duration_text
from unisono.orders.packing import Pacer, reservation
from unisono.wire.control import SETTING_REQUEST_MAX_BYTES, MarkRequests, SettingRequest

MAX_SETTING_REQUESTS = 32
"""An end-of-slot mark carries at most this many setting requests."""

REQUEST_REPEATS = 4
"""Where gaps are possible, a member repeats a setting request in this many end-of-slot marks after the first one."""


def effective_slot(grid: SlotGrid, requested_in: int) -> int:
    """The slot at which a slot-length request sent in slot `requested_in` takes effect."""
    return _first_slot_from(grid, grid.end_of(requested_in) + 3 * (grid.delta_ns + grid.gamma_ns))


def effective_from(grid: SlotGrid, origin: int, extra_slots: int | None) -> int:
    """The slot at which a setting request first sent in slot `origin` takes effect.

    `extra_slots` leaves time for members to pass the request on; it is None without failures.
    """
    ahead = -(-(grid.delta_ns + grid.gamma_ns) // grid.theta_of(origin)) + 3
    delivered = origin if extra_slots is None else origin + extra_slots + ahead
    slot = _first_slot_from(grid, grid.end_of(delivered) + 2 * grid.delta_ns + 3 * grid.gamma_ns)
    return max(slot, origin + 2 * ahead + 1) if extra_slots is None else slot


def _first_slot_from(grid: SlotGrid, clock_ns: int) -> int:
    """The first slot that begins at this clock reading or later."""
    slot = grid.slot_of(clock_ns)
    return slot if grid.start_of(slot) == clock_ns else slot + 1


def check_slot_length(theta_ns: int) -> None:
    """Raise InvalidOption if slots cannot have this length."""
    if not SLOT_MIN_NS <= theta_ns <= SLOT_MAX_NS:
        least, most = duration_text(SLOT_MIN_NS), duration_text(SLOT_MAX_NS)
        raise InvalidOption("slot", f"expected a slot length from {least} to {most}, not {duration_text(theta_ns)}")


class SlotChange:
    """Slot-length requests: this member's own, and those in the slot being delivered."""

    def __init__(self) -> None:
        self.requested_theta_ns: int | None = None
        """The slot length that this member's application asks for; None once the group has agreed on it."""
        self._granted_segment: Segment | None = None
        """The segment of the slot schedule that fulfils this member's slot request; None once it is in effect."""
        self._requested_in: int | None = None
        """The slot whose end-of-slot mark carried this member's last slot request; None if none was sent."""
        self._requests: dict[int, int] = {}
        """By member, the slot length that it requests in the slot being delivered."""

    def next_request(self, slot: int, grid: SlotGrid) -> int | None:
        """The slot length that this member's end-of-slot mark of `slot` has to request; None if it requests none."""
        first = grid.last_segment.first_slot
        if self._granted_segment is not None and slot >= self._granted_segment.first_slot:
            self._granted_segment = None
        if (
            self.requested_theta_ns is None
            or slot < first
            or (self._requested_in is not None and self._requested_in >= first)
        ):
            return None
        self._requested_in = slot
        return self.requested_theta_ns

    def on_request(self, sender: int, theta_ns: int) -> None:
        """Record the slot-length request in an end-of-slot mark that is being delivered."""
        self._requests[sender] = theta_ns

    def decide(self, slot: int, grid: SlotGrid) -> SlotGrid | None:
        """The new slot schedule if the requests delivered in `slot` change the slot length; otherwise None."""
        if not self._requests:
            return None
        requests, self._requests = self._requests, {}
        if slot < grid.last_segment.first_slot:
            return None
        return grid.with_slot_length(effective_slot(grid, slot), requests[min(requests)])

    def discard_requests(self) -> None:
        """Forget the slot requests made under the old slot schedule, because this member switches to another one."""
        self._requests.clear()
        self._requested_in = None

    def on_agreed(self, grid: SlotGrid) -> None:
        """The group has adopted the slot schedule `grid`: note whether it fulfils this member's slot request.

        If `grid` replaces a change that was granted to this member and is not in effect yet, this member asks again.
        """
        if self._granted_segment is not None and self._granted_segment not in grid.segments:
            self.requested_theta_ns, self._granted_segment = (
                self.requested_theta_ns or self._granted_segment.theta_ns,
                None,
            )
        if self.requested_theta_ns == grid.last_segment.theta_ns:
            self.requested_theta_ns, self._granted_segment = None, grid.last_segment


class SettingRequests:
    """The setting requests that one member originates, repeats and applies."""

    def __init__(
        self, member: int, members: Iterable[int], effective_slot_of: Callable[[int], int], max_per_frame: int
    ) -> None:
        """`effective_slot_of` maps the slot in which a request is first sent to the slot of its effect.

        An end-of-slot mark or a JOIN carries at most `max_per_frame` requests.
        """
        self._member = member
        self._members = frozenset(members)
        self._effective_slot_of = effective_slot_of
        self._max_per_frame = max_per_frame
        self._unsent: dict[int, bytes] = {}
        """By member, the setting request for it that this member sends first in its next end-of-slot mark."""
        self._unsent_kept: deque[bytes] = deque()
        """Unsent setting requests of this member that no newer one replaces; each is first sent in its own slot."""
        self._not_yet_effective: set[SettingRequest] = set()
        self._repeat_until: dict[SettingRequest, int] = {}
        """The setting requests that our end-of-slot marks carry, and the last slot in which we repeat each."""
        self._latest_effective: dict[int, SettingRequest] = {}
        """By member, its last setting request that has taken effect."""
        self.missed: list[SettingRequest] = []
        """Setting requests that reached this member after they had taken effect at the others."""

    def request(self, content: bytes, member: int | None = None, *, keep: bool = False) -> None:
        """Send a setting request for this member, or for a departed `member`, in the next end-of-slot mark.

        A newer request replaces one that is not sent yet. Requests with `keep` are never replaced: they are all sent,
        in order, before the others.
        """
        if keep:
            self._unsent_kept.append(content)
        else:
            self._unsent[self._member if member is None else member] = content

    def to_send(self, slot: int) -> list[SettingRequest]:
        """The setting requests that our end-of-slot mark of `slot` carries, new and repeated ones."""
        kept = bool(self._unsent_kept)
        if kept:
            self._originate(slot, self._member, self._unsent_kept.popleft())
        for member, content in sorted(self._unsent.items()):
            if not (kept and member == self._member):  # a slot originates at most one request per member
                self._originate(slot, member, content)
                del self._unsent[member]
        if not self._repeat_until:
            return []
        self._repeat_until = {request: until for request, until in self._repeat_until.items() if until >= slot}
        requests = sorted(self._repeat_until)
        first = slot % len(requests) if len(requests) > self._max_per_frame else 0
        return (requests[first:] + requests[:first])[: self._max_per_frame]

    def _originate(self, slot: int, member: int, content: bytes) -> None:
        known = max(
            (r for r in self._not_yet_effective if r.member == member), default=self._latest_effective.get(member)
        )
        if known is not None and known.content == content:
            self._repeat_until[known] = slot + REQUEST_REPEATS
        else:
            self._record(SettingRequest(slot, member, content))

    def receive(self, requests: Iterable[SettingRequest], slot: int | None) -> None:
        """Process setting requests that arrived while this member sends in `slot`, which is None before it sends."""
        for request in requests:
            latest = self._latest_effective.get(request.member)
            if (
                request.member not in self._members
                or request in self._not_yet_effective
                or (latest is not None and request.origin_slot <= latest.origin_slot)
            ):
                continue
            if slot is not None and self._effective_slot_of(request.origin_slot) <= slot:
                self.missed.append(request)
            self._record(request)

    def _record(self, request: SettingRequest) -> None:
        self._not_yet_effective.add(request)
        # A JOIN that we sent before we knew the request may reach its receiver until then.
        self._repeat_until[request] = (
            2 * self._effective_slot_of(request.origin_slot) - request.origin_slot + REQUEST_REPEATS
        )

    def pop_due(self, slot: int) -> list[tuple[SettingRequest, int]]:
        """Remove and return the setting requests in effect by `slot`, in order, each with the slot of its effect."""
        if not self._not_yet_effective:
            return []
        found = [(request, self._effective_slot_of(request.origin_slot)) for request in sorted(self._not_yet_effective)]
        due = [(request, first) for request, first in found if first <= slot]
        for request, _ in due:
            self._not_yet_effective.discard(request)
            self._latest_effective[request.member] = request
        return due

    @property
    def knows_any(self) -> bool:
        """Whether this member knows a setting request, in effect or not."""
        return bool(self._latest_effective or self._not_yet_effective)

    def snapshot(self) -> tuple[SettingRequest, ...]:
        """The setting requests for a JOIN: each member's latest one in effect, and all that are not in effect yet.

        If a JOIN cannot carry that many, the newest ones.
        """
        return tuple(sorted({*self._latest_effective.values(), *self._not_yet_effective})[-self._max_per_frame :])


class SenderReservation:
    """Reserves the bandwidth that one sender needs for its rate and slot length.

    It asks the network before the sender promises anything, for the largest need of the present slot and of the slots
    to come.
    """

    def __init__(self, policy: Policy, reserver: Reserver) -> None:
        self._policy = policy
        self._reserver = reserver
        self._rate = policy.rate
        self._theta_ns = policy.timing.theta_ns
        self._next_rate: Rate | None = None
        """The rate that is in force from the next slot on; None if the rate does not change."""
        self._agreed_theta_ns: int | None = None
        """The slot length that the group has agreed on and that is not in effect yet; None if there is none."""
        self._requested_theta_ns: int | None = None
        """The slot length that this member has asked for, until it is in effect; None if there is none."""
        self._requested_rate: Rate | None = None
        self._is_insufficient = False
        """Whether the network refused the bandwidth that this sender needs."""
        self._reserve()

    def request_rate(self, rate: Rate) -> None:
        """Reserve for another rate from the next slot on. If this raises ReservationRefused, nothing has changed."""
        before, self._next_rate = self._next_rate, rate
        try:
            self._reserve()
        except BaseException:
            self._next_rate = before
            raise

    def request_slot(self, theta_ns: int, rate: Rate | None) -> None:
        """Reserve for another slot length and a rate for it. If this raises ReservationRefused, nothing has changed."""
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
        """Reserve for a slot length that the group has agreed on; raises ReservationRefused if there is no room."""
        self._agreed_theta_ns = theta_ns
        self._reserve()

    def shrink_burst(self, theta_ns: int, refusal: ReservationRefused) -> str:
        """Reduce the burst to the largest one that the network grants for agreed slots of `theta_ns`.

        Returns a sentence for the application that says what was refused and what the burst is now.
        """
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
        outcome = f"the burst is now {self._next_rate.burst} instead of {rate.burst}"
        if fits:
            self._reserve()
        else:
            self._is_insufficient = True
            outcome += ", and even that is more than is reserved"
        return f"the network refused the bandwidth for slots of {duration_text(theta_ns)}: {refusal}; {outcome}"

    def _scaled(self, rate: Rate, burst: int) -> Rate:
        if rate.burst_bytes is None:
            return replace(rate, burst=burst)
        return replace(
            rate, burst=burst, burst_bytes=max(self._policy.max_message, rate.burst_bytes * burst // rate.burst)
        )

    def enter_slot(self, theta_ns: int) -> Rate | None:
        """Enter a slot of length `theta_ns`. Returns the rate from this slot on; None if the rate does not change."""
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
        largest = max(needed, key=lambda each: (each.needed_bytes_per_s, each.burst_bytes_per_slot))
        average = max(each.avg_bytes_per_s for each in needed)
        self._reserver.reserve(replace(largest, avg_bytes_per_s=average))
        self._is_insufficient = False


class SlotSchedule:
    """The slots of one member, their agreed changes, and the pace at which the member sends in them."""

    def __init__(self, policy: Policy, reserver: Reserver) -> None:
        self.grid = SlotGrid.of(policy.timing)
        self.slot_change = SlotChange()
        # Where members may fail, a mark may be lost for good, so requests are repeated more often than losses require.
        extra_slots = max(policy.loss_burst, REQUEST_REPEATS) if policy.failures else None
        max_per_frame = max(1, min(MAX_SETTING_REQUESTS, policy.max_frame // (2 * SETTING_REQUEST_MAX_BYTES)))
        self.setting_requests = SettingRequests(
            policy.member,
            policy.view.members,
            lambda origin: effective_from(self.grid, origin, extra_slots),
            max_per_frame,
        )
        self.settings_agreed: list[SettingsAgreed] = []
        """The agreed settings to apply from the slot being entered on; the stack empties this list."""
        self._member = policy.member
        self._reservation = SenderReservation(policy, reserver)
        self.pacer = Pacer(policy.rate, policy.timing.theta_ns, policy.max_message)

    def request_rate(self, rate: Rate) -> None:
        """Reserve for another rate of this member from the next slot on."""
        self._reservation.request_rate(rate)

    def request_slot_length(self, theta_ns: int, rate: Rate | None, send_slot: int) -> None:
        """Ask the group for another slot length and, if given, another rate. This member now sends in `send_slot`."""
        last = self.grid.last_segment
        if theta_ns == last.theta_ns and send_slot >= last.first_slot:
            self.slot_change.requested_theta_ns = None
            if rate is not None:
                self._reservation.request_rate(rate)
            return
        self._reservation.request_slot(theta_ns, rate)
        self.slot_change.requested_theta_ns = None if theta_ns == last.theta_ns else theta_ns

    def requests_for_mark(self, slot: int) -> MarkRequests | None:
        """The requests that our end-of-slot mark of `slot` carries; None if there are none."""
        theta_ns = self.slot_change.next_request(slot, self.grid)
        setting_requests = self.setting_requests.to_send(slot)
        if theta_ns is None and not setting_requests:
            return None
        return MarkRequests(theta_ns or 0, tuple(setting_requests))

    def read_mark(self, sender: int, requests: MarkRequests) -> Sequence[SettingRequest]:
        """Read an end-of-slot mark that is being delivered: record its slot request, return its setting requests."""
        if requests.theta_ns:
            self.slot_change.on_request(sender, requests.theta_ns)
        return requests.setting_requests

    def adopt(self, grid: SlotGrid) -> Violation | None:
        """Use the slot schedule `grid` from now on. Returns a violation if the network refuses the bandwidth for it.

        While the assumptions hold, it differs from the present one only in slots that this member's clock has not
        reached.
        """
        self.grid = grid
        self.slot_change.on_agreed(grid)
        last = grid.last_segment
        try:
            self._reservation.on_slot_agreed(last.theta_ns)
        except ReservationRefused as refused:
            text = self._reservation.shrink_burst(last.theta_ns, refused)
            return Violation(ViolationKind.RESERVATION, text, self._member, last.first_slot)
        return None

    def enter_slot(self, slot: int) -> None:
        """Begin to send in `slot`: apply the rate, slot length and settings that take effect there."""
        theta_ns = self.grid.theta_of(slot)
        if theta_ns != self.pacer.theta_ns:
            self.pacer.change_slot(slot, theta_ns)
        self.pacer.open_slot(slot, self._reservation.enter_slot(theta_ns))
        self.settings_agreed += [
            SettingsAgreed(request.member, request.content, first, slot)
            for request, first in self.setting_requests.pop_due(slot)
        ]

    def window_slots(self, deliver_slot: int) -> int:
        """How many slots with messages may be in flight while `deliver_slot` is being delivered.

        Delivering a slot needs the marks of all members, and a member that sends its mark has read everything that
        had arrived. So this bounds every queue and every socket buffer.
        """
        shortest_ns = min(self.grid.lengths_from(deliver_slot))
        return -(-(self.grid.delta_ns + self.grid.gamma_ns) // shortest_ns) + 3
