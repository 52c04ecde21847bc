"""The stack: layers with an order on top, as one machine with five verbs.

Take in (an application's messages, or a datagram), wake, say when to wake, hand out datagrams, hand out events.
The simulator and the asyncio driver use these and nothing else; no protocol decision is made outside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar, cast

from unisono.errors import InvalidOption
from unisono.model.capabilities import CAPABILITIES, capabilities_of, check_options, needs_storage, orders_with
from unisono.model.durations import earliest
from unisono.model.effects import Datagram, Effects
from unisono.model.events import Batch, LeaveComplete, SlaVerdict, StackEvent, ViewChange
from unisono.model.histogram import Histogram
from unisono.model.ids import EVERYONE, group_key
from unisono.model.policy import Policy
from unisono.model.rates import Rate, Reserver, UnlimitedNetwork
from unisono.model.settings import Settings
from unisono.model.slot_schedule import SlotGrid
from unisono.model.state_holder import StateHolder
from unisono.model.stored_records import StoredRecords, Write
from unisono.net.clock_check import ClockCheck
from unisono.net.fec import layer as fec
from unisono.net.fec.layer import Fec
from unisono.net.layer import Layer, LostMessages, Observer, Order, Service
from unisono.net.rmcast import layer as rmcast
from unisono.net.rmcast.layer import Rmcast
from unisono.net.services.causal import Causal
from unisono.net.services.fifo import Fifo
from unisono.net.services.uniform import UniformDelivery
from unisono.orders.cbr.order import Cbr
from unisono.orders.final.bounds import BackgroundReserver
from unisono.orders.final.order import FinalOrder
from unisono.orders.leader.base import LeaderOrderBase
from unisono.orders.leader.broadcast import LeaderBroadcast
from unisono.orders.leader.timestamp import TimestampLeader
from unisono.orders.log.order import ConsensusOrder
from unisono.orders.multigroup.order import QuasiGenuine
from unisono.orders.priority.order import PriorityOrder, build_priority_order
from unisono.orders.unordered import Unordered
from unisono.orders.vbr.failures import VbrGaps
from unisono.orders.vbr.order import Vbr
from unisono.wire.door import Door, Refusal
from unisono.wire.frame import END_OF_SLOT, FLAGS_AT, SERIAL_AT, SERIAL_MAX, Frame, Kind, encode
from unisono.wire.setting_requests import encode_settings_with_verdict

_OrderType = TypeVar("_OrderType")


def _vbr(policy: Policy, reserver: Reserver) -> Order:
    return (VbrGaps if policy.failures else Vbr)(policy, reserver)


ORDERS: dict[str, Callable[[Policy, Reserver], Order]] = {
    "cbr": Cbr,
    "consensus": ConsensusOrder,
    "leader": LeaderBroadcast,
    "priority": build_priority_order,
    "priority_coordinator": build_priority_order,
    "quasi_genuine": QuasiGenuine,
    "timestamp": TimestampLeader,
    "vbr": _vbr,
    **{name: Unordered for name, each in CAPABILITIES.items() if not each.total_order},
}
_SERVICES: dict[str, type[Service]] = {"causal": Causal, "fifo": Fifo, "uniform": UniformDelivery}


class DurableOrder(Protocol):
    """An order that keeps records on stable storage. It processes its input in batches, by `flush`."""

    down: list[Frame]
    writes: list[Write]
    """Records to persist before `down` and the events may be released."""
    has_pending_input: bool
    now: int

    def flush(self) -> None:
        """Process all input since the last call as one batch."""


class Host(Protocol):
    """What a driver offers a stack: stable storage, a network, an application and an alarm clock."""

    def persist(self, records: Sequence[Write]) -> None:
        """Make records durable before this returns."""

    def transmit(self, datagrams: Sequence[Datagram]) -> None:
        """Send datagrams, in order."""

    def on_event(self, event: StackEvent) -> None:
        """Hand an event to the application, and record it."""

    def set_alarm(self, at: int | None) -> None:
        """Wake the stack when the local clock shows `at`; None cancels the alarm."""


def carry_out(effects: Effects, host: Host) -> None:
    """Carry out the effects of one step in the order that safety needs: no datagram or event before its records.

    The simulator and the asyncio driver both use this function, so that the simulator exercises what production runs.
    """
    if effects.records:
        host.persist(effects.records)
    if effects.datagrams:
        host.transmit(effects.datagrams)
    for event in effects.events:
        host.on_event(event)
    host.set_alarm(effects.wake_at)


class Stack:
    """One member's machine."""

    def __init__(self, policy: Policy, order: Order, layers: Sequence[Layer], clock_check: ClockCheck) -> None:
        self.policy = policy
        self.order = order
        self.clock_check = clock_check
        self.delays = Histogram()
        """One-way delays of end-of-slot marks, which deliveries wait for, as the clocks show them, skew and all."""
        self._layers = tuple(layers)
        """From the order down to the network."""
        self._layer_names = tuple(layer.name for layer in layers)
        self.observer: Observer | None = None
        """Who collects metrics, if anybody does."""
        self._serial = self._now = 0
        self._group_destinations = tuple(member for member in policy.view.members if member != policy.member)
        """The members that a datagram to the whole group goes to."""
        self._out: list[Frame] = []
        self._receivers = {kind: self._receiver_of(kind, len(self._layers)) for kind in Kind}
        self._group = group_key(policy.group)
        layered = frozenset(kind for layer in self._layers for kind in layer.opens)
        self.door = Door(self._group, policy.member, policy.view.members, layered)
        self._rmcast = next((layer for layer in self._layers if isinstance(layer, Rmcast)), None)
        self._layer_events: list[StackEvent] = []
        """What layers have to tell the application."""
        capabilities = capabilities_of(policy.order)
        graded = policy.grades != "early"
        below = cast("FinalOrder", order).inner if graded else order
        if capabilities.by_clock:
            clock_check.on_clock_difference = cast("Cbr | Vbr", below).on_clock_difference
        self._slot_order = cast("Vbr", below) if capabilities.resizable_slots else None
        self._durable_order = cast("DurableOrder", order) if capabilities.durable or graded else None
        self._multigroup_order = cast("QuasiGenuine", order) if capabilities.routed else None
        self._priority_order = cast("PriorityOrder", order) if capabilities.pulled else None
        self._leader_order = cast("LeaderOrderBase", order) if capabilities.led else None
        self._declared_grid = SlotGrid.of(policy.timing)
        clock_check.next_wake = self._wake_at

    def submit(self, now: int, messages: Sequence[bytes], priority: int = 0) -> int:
        """Take application messages; how many, from the first on. The rest is to be offered again later.

        Only the priority order takes the priority into account.
        """
        self._now = now
        if self._priority_order is None:
            taken = self.order.submit(now, messages)
        else:
            taken = self._priority_order.submit_with_priority(now, messages, priority)
        return self._record_submitted(now, messages, taken)

    def submit_to(self, now: int, messages: Sequence[bytes], groups: Sequence[str]) -> int:
        """Take messages for these groups; DestinationNotAllowed if this member's group may not send there."""
        self._now = now
        return self._record_submitted(now, messages, self._require_multigroup().submit_to(now, messages, groups))

    def _record_submitted(self, now: int, messages: Sequence[bytes], accepted: int) -> int:
        if self.observer is not None:
            self.observer.submitted(now, messages, accepted)
        self._pump(now)
        return accepted

    def destinations(self, groups: Sequence[str]) -> tuple[int, ...]:
        """The members of these groups; DestinationNotAllowed if this member's group may not send there."""
        return self._require_multigroup().destinations(groups)

    def change_topology(self, now: int, sends: Sequence[str]) -> Callable[[], bool]:
        """Ask this member's group to send to these groups and no others; whether it does, in all groups concerned."""
        return self._require_multigroup().change_topology(now, sends)

    def _require_multigroup(self) -> QuasiGenuine:
        if self._multigroup_order is None:
            raise InvalidOption("to", f"the order {self.policy.order} has one group; quasi_genuine sends to several")
        return self._multigroup_order

    @property
    def declared_bound_ns(self) -> int | None:
        """The latency bound of delivery that the order declares; None where consumers set the pace."""
        return None if self.application_pulls else self.order.bound_ns()

    @property
    def application_pulls(self) -> bool:
        """Whether the application pulls its messages, by `consume`."""
        return self._priority_order is not None

    def queued(self) -> int:
        """How many messages wait to be pulled, locked or not."""
        return 0 if self._priority_order is None else len(self._priority_order.insertion.queue)

    def consumable(self) -> bool:
        """Whether `consume` would give a message."""
        return self._priority_order is not None and self._priority_order.consumable()

    def consume(self, now: int) -> Batch | None:
        """The next message in the priority order, which is delivered by this; None if none can be had now."""
        if self._priority_order is None:
            raise InvalidOption("order", f"the order {self.policy.order} hands messages out; nothing is to be pulled")
        batch = self._priority_order.consume(now)
        if batch is not None:
            if self.observer is not None:
                self.observer.delivered(now, [batch])
            self._pump(now)
        return batch

    @property
    def order_and_service_names(self) -> tuple[str, ...]:
        """The order, and the services under it that take its frames, by name."""
        services = [name for name, layer in zip(self._layer_names, self._layers, strict=True) if layer.wraps]
        return (self.policy.order, *services)

    def receive(self, now: int, data: bytes, start: int = 0, end: int | None = None, multicast: bool = False) -> None:
        """Take the datagram in data[start:end]."""
        frame = self._receive_one(now, data, start, len(data) if end is None else end, multicast)
        if frame is not None and self.observer is not None:
            self.observer.arrived(now, frame, data[start + SERIAL_AT])

    def receive_segments(self, now: int, data: bytes, start: int, end: int, segment: int, *, multicast: bool) -> None:
        """Take the datagrams in data[start:end], of `segment` bytes each but the last, that one read brought."""
        if end - start <= segment:
            self.receive(now, data, start, end, multicast)
            return
        frames = [
            self._receive_one(now, data, at, min(at + segment, end), multicast) for at in range(start, end, segment)
        ]
        if self.observer is None:
            return
        serials, flags = (data[start + at : end : segment] for at in (SERIAL_AT, FLAGS_AT))
        if all(frames):
            self.observer.arrived_in_batch(now, cast("list[Frame]", frames), serials, flags)
            return
        for frame, serial in zip(frames, serials, strict=False):
            if frame is not None:
                self.observer.arrived(now, frame, serial)

    def _receive_one(self, now: int, data: bytes, start: int, end: int, multicast: bool) -> Frame | None:
        """Take one datagram; None if it was not let in."""
        frame = self.door.admit(data, start, end, self.order.latest_slot(now))
        if frame is None:
            return None
        if frame.flags & END_OF_SLOT:
            self.delays.add(now - frame.sent_ns)
            if not self.clock_check.is_on_time(now - frame.sent_ns, frame.sender) and self.order.running():
                self._layer_events += self.clock_check.report_late(now, frame)
        frame.multicast = multicast
        self._now = now
        taker = self._receivers[frame.kind]
        taker.from_below(now, frame)
        if taker is not self.order or self.order.down:
            self._pump(now)
        return frame

    def wake(self, now: int) -> None:
        """The local clock has reached `now`."""
        self._now = now
        self.clock_check.record_own_lateness(now)
        self.order.wake(now)
        for layer in self._layers:
            layer.wake(now)
        if self.observer is not None and now >= self.observer.due:
            self.observer.wake(now)
        self._pump(now)

    def step(self) -> Effects:
        """Process all input since the last step as one batch, and return everything that the driver has to do.

        Call it after each input, or after several that arrived together.
        """
        records = self._flush() if self._durable_order is not None else ()
        datagrams = self._encode_outgoing() if self._out else ()
        events = self._pop_events()
        if events and self._rmcast is None and not self.order.keeps_sending_to_departed():
            self._follow_view(events)
        return Effects(records, datagrams, events, self._wake_at())

    def _wake_at(self) -> int | None:
        due = [part.wake_at() for part in (self.order, *self._layers)]
        return earliest(due if self.observer is None else [*due, self.observer.due])

    def _flush(self) -> Sequence[Write]:
        """Let a durable order process its batched input; the records that the rest of the effects depend on."""
        order = self._durable_order
        if order is None:
            return ()
        if order.has_pending_input:
            order.flush()
            if order.down:
                self._pump(order.now)
        records, order.writes[:] = order.writes[:], []
        return records

    def _encode_outgoing(self) -> list[Datagram]:
        datagrams, group, serial, size = [], self._group, self._serial, 0
        for frame in self._out:
            if frame.to == EVERYONE:
                serial = serial % SERIAL_MAX + 1
                data = encode(frame, group, serial)
                datagrams.append(Datagram(self._group_destinations, data, True, frame.multicast))
            else:
                data = encode(frame, group)
                datagrams.append(Datagram((frame.to,), data))
            size += len(data)
        self._serial = serial
        self._out.clear()
        if self.observer is not None:
            self.observer.datagrams_sent(len(datagrams), size)
        return datagrams

    def _pop_events(self) -> Sequence[StackEvent]:
        events = self._layer_events + self.order.events
        self._layer_events.clear()
        self.order.events.clear()
        if self._priority_order is not None and self._priority_order.incarnation != self.policy.incarnation:
            self.policy = replace(self.policy, incarnation=self._priority_order.incarnation)
            self.clock_check.change_incarnation(self.policy)
        if (
            self._rmcast is not None
            and events
            and isinstance(events[-1], LeaveComplete)
            and self._rmcast.is_broadcasting()
        ):
            # A leaving member stays until all copies of its last messages are sent, so no peer has to relay them.
            self.order.events.append(events.pop())
        self._report_settings()
        if self.observer is not None:
            self.observer.delivered(self._now, events)
            if self.observer.events:
                events += self.observer.events
                self.observer.events.clear()
        return events

    def _follow_view(self, events: Sequence[StackEvent]) -> None:
        """Send to the members of the newest view from now on.

        Datagrams of this step still go to departing members: they wait for the end-of-slot marks of their last slot.
        Over reliable multicast a departing member may need later copies too, so the destinations stay as they are.
        """
        for event in events:
            if isinstance(event, ViewChange):
                members = event.view.members
                self._group_destinations = tuple(member for member in members if member != self.policy.member)

    def change_rate(self, now: int, rate: Rate) -> None:
        """Renegotiate this member's rate; raises ReservationRefused and changes nothing when there is no room."""
        self.order.change_rate(now, rate)
        self._pump(now)

    def change_slot(self, now: int, theta_ns: int, rate: Rate | None = None) -> None:
        """Ask the group for slots of another length, and for another rate of this member's with them.

        A TimingChange says when it has them. ReservationRefused and InvalidOption change nothing.
        """
        if self._slot_order is None:
            others = " and ".join(orders_with("resizable_slots"))
            raise InvalidOption("slot", f"the order {self.policy.order} keeps its slot length; {others} can change it")
        if self.policy.reliable is not None:
            raise InvalidOption("slot", "over reliable multicast the slot length stays as declared")
        self._slot_order.change_slot(now, theta_ns, rate)
        self._pump(now)

    def _report_settings(self) -> None:
        """Tell the watcher of the settings that everybody goes by now."""
        if self._slot_order is not None and self._slot_order.settings_agreed:
            demanded, self._slot_order.settings_agreed[:] = self._slot_order.settings_agreed[:], []
            if self.observer is not None:
                self.observer.settings_agreed(self._now, demanded)

    def request_settings(
        self, now: int, settings: Settings, verdict: SlaVerdict | None = None, member: int | None = None
    ) -> None:
        """Let everybody know which settings this member needs, or one who is gone, and the verdict they follow from.

        The watcher hears when they count. It calls this while the stack is at work, which carries on what follows.
        """
        if self._slot_order is None:
            raise InvalidOption("adaptation", f"the order {self.policy.order} agrees on no settings; vbr can")
        self._slot_order.request_settings(
            now, encode_settings_with_verdict(settings, verdict), member, keep=verdict is not None
        )

    def apply_settings(self, settings: Settings, slot: int) -> None:
        """Have these settings in force from a slot on that everybody has agreed on."""
        for layer in self._layers:
            if isinstance(layer, Rmcast) and settings.redundancy is not None and self.policy.reliable is not None:
                rho, eta_ns, omega_ns = settings.redundancy
                layer.change_redundancy(replace(self.policy.reliable, rho=rho, eta_ns=eta_ns, omega_ns=omega_ns), slot)
            elif isinstance(layer, Fec) and settings.fec is not None:
                layer.change_code(settings.fec, slot)

    def bound_ns(self) -> int:
        """The latency that no delivery exceeds while the assumptions hold."""
        return self.order.bound_ns()

    def gap_free(self) -> bool:
        """Whether the order promises deliveries without gaps (paper 000, Definition 1)."""
        return self.order.gap_free()

    def running(self) -> bool:
        """Whether messages are accepted and delivered."""
        return self.order.running()

    def waiting_for(self) -> tuple[int, ...]:
        """The members that the group is still waiting for before it starts; empty when it runs."""
        return self.order.waiting_for()

    def why_not_formed(self) -> str:
        """What keeps the group from starting, beyond missing members; empty if nothing is known."""
        return self.order.why_not_formed()

    def by_multicast(self) -> bool:
        """Whether this member's data goes by IP multicast."""
        return self.order.by_multicast()

    def peer_rate(self, peer: int) -> Rate | None:
        """The rate that a peer declared, if it has."""
        return self.order.peer_rate(peer)

    @property
    def window_slots(self) -> int:
        """How many slots a sender may be ahead of its own deliveries."""
        return self.order.window_slots

    @property
    def ignored(self) -> Mapping[str, int]:
        """Frames that passed the door and were not used, by reason."""
        return self.order.ignored

    @property
    def refused(self) -> Mapping[Refusal, int]:
        """Datagrams that the door refused, by reason."""
        return self.door.refused

    @property
    def clock_differences(self) -> ClockCheck:
        """The measured clock differences, for an observer."""
        return self.clock_check

    def gamma_ns(self) -> int | None:
        """The largest clock difference measured so far; None before the first measurement."""
        return self.clock_check.gamma_ns()

    def inspect(self, kind: type[_OrderType]) -> _OrderType:
        """The order itself, for simulations and tests that look inside it; TypeError if it is of another kind."""
        if not isinstance(self.order, kind):
            raise TypeError(f"member {self.policy.member} runs {type(self.order).__name__}, not {kind.__name__}")
        return self.order

    def share_application_state(self, holder: StateHolder | None) -> None:
        """Transfer the application's state to joining members together with the order's, where the order can."""
        if self._priority_order is not None:
            self._priority_order.application = holder

    @property
    def grid(self) -> SlotGrid:
        """The slots as this member knows them."""
        return self._declared_grid if self._slot_order is None else self._slot_order.grid

    def slot_of(self, local_ns: int) -> int:
        """The slot of a local clock reading."""
        return self.grid.slot_of(local_ns)

    def leave(self, now: int) -> None:
        """Depart in order; a Left event says when it is done."""
        self.order.leave(now)
        self._pump(now)

    def outage_ns(self, crashed: Sequence[int]) -> int:
        """How much longer than the bound a message takes at most when these members crash; 0 without a leader."""
        return 0 if self._leader_order is None else self._leader_order.outage_ns(crashed)

    def _pump(self, now: int) -> None:
        """Carry frames on, past layers that have no business with them, until there is nothing to carry."""
        order, layers = self.order, self._layers
        self._report_settings()  # before anything of the slot from which on it counts goes down
        moved = True
        while moved:
            moved = False
            if order.down:
                frames, order.down[:] = order.down[:], []
                self._pass_down(now, frames, 0)
            for position, layer in enumerate(layers):
                if layer.down:
                    frames, layer.down[:] = layer.down[:], []
                    self._pass_down(now, frames, position + 1)
                if layer.up:
                    moved = True
                    frames, layer.up[:] = layer.up[:], []
                    if self.observer is not None:
                        self.observer.passed_up(self._layer_names[position], frames)
                    for frame in frames:
                        if isinstance(frame, LostMessages):
                            self._layer_events.append(frame.to_violation())
                            continue
                        taker = self._receiver_of(frame.kind, position)
                        if self._rmcast is not None and taker is order and frame.flags & END_OF_SLOT:
                            self.delays.add(now - frame.sent_ns)
                        taker.from_below(now, frame)

    def _pass_down(self, now: int, frames: list[Frame], position: int) -> None:
        """Frames on their way down, to the first layer from `position` on that takes them, or out."""
        below = self._layers[position:]
        for frame in frames:
            for at, layer in enumerate(below, start=position):
                if frame.kind in layer.wraps:
                    if self.observer is not None:
                        self.observer.passed_down(self._layer_names[at], 1)
                    layer.from_above(now, frame)
                    break
            else:
                self._out.append(frame)

    def _receiver_of(self, kind: Kind, position: int) -> Layer | Order:
        """Who takes a frame of this kind that comes up from `position`: a layer above it, or the order."""
        for layer in reversed(self._layers[:position]):
            if kind in layer.opens:
                return layer
        return self.order


def build(policy: Policy, reserver: Reserver | None = None, stored_records: StoredRecords | None = None) -> Stack:
    """The stack that a policy asks for; raises ReservationRefused if the network has no room for its rate.

    `memory` is what a durable order kept in earlier lives; without it, it keeps nothing.
    """
    capabilities = capabilities_of(policy.order)
    check_options(policy)
    make = ORDERS[policy.order]
    skew, reserver = ClockCheck(policy), reserver or UnlimitedNetwork()
    if stored_records is not None and not needs_storage(policy.order, policy.grades):
        text = f"the order {policy.order} keeps nothing on stable storage; consensus does, and so do final deliveries"
        raise InvalidOption("storage", text)
    if not capabilities.total_order or policy.reliable is not None:
        return _build_over_rmcast(policy, make, reserver, skew)
    for keeping in (ConsensusOrder, QuasiGenuine):
        if make is keeping:
            return Stack(policy, keeping(policy, reserver, stored_records), [skew], skew)
    if policy.grades != "early":
        reserver = BackgroundReserver(policy, reserver)
    layers: list[Layer] = [skew]
    order = make(policy if policy.fec is None else fec.order_policy(policy), reserver)
    if policy.fec is not None:
        layers.insert(0, Fec(policy, slots=(lambda: order.grid) if isinstance(order, Vbr) else None))
    if policy.grades != "early" and isinstance(order, Cbr | Vbr):
        return Stack(policy, FinalOrder(order, policy, stored_records), layers, skew)
    return Stack(policy, order, layers, skew)


def _build_over_rmcast(
    policy: Policy, make: Callable[[Policy, Reserver], Order], reserver: Reserver, clock_check: ClockCheck
) -> Stack:
    if policy.reliable is None:
        raise InvalidOption("reliable", f"{policy.order} rests on reliable multicast, which needs ρ, η and ω")
    services = CAPABILITIES[policy.order].services
    if policy.reliable.last_copy is None:
        policy = replace(policy, reliable=replace(policy.reliable, last_copy="uniform" in services))
    layers: list[Layer] = [Rmcast(policy), clock_check]
    above = rmcast.order_policy(policy)
    for service in reversed(services):
        layers.insert(0, _SERVICES[service](above))
        above = _SERVICES[service].order_policy(above)
    return Stack(policy, make(above, reserver), layers, clock_check)
