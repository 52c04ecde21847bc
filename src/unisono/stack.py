"""The stack of one member: an order on top of layers, as one machine without sockets, clocks or threads.

An input tells the stack what happened, with the reading of the local clock: `submit` (the application has messages),
`receive` (a datagram arrived), `wake` (the requested time has come), and a few requests such as `change_rate` and
`leave`. After one or more inputs, `step` returns all effects: records to persist, datagrams to send, events for the
application, and the time of the next `wake`. `carry_out` carries them out in the order that safety needs.

Sending: the order puts frames into its `down`. Each frame goes through the layers that wrap its kind, is encoded and
leaves with the next step. Receiving: the door admits and decodes a datagram. Its frame goes up through the layers that
open its kind to the order, which puts deliveries into its `events`.

The simulator and the asyncio driver both run this machine with `carry_out`. Neither makes a protocol decision.
`build` makes the stack for a policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar, cast

from unisono.errors import InvalidOption, InvariantViolated
from unisono.model.capabilities import CAPABILITIES, capabilities_of, check_options, needs_storage, orders_with
from unisono.model.delays import Histogram
from unisono.model.effects import Datagram, Effects, StoredRecords, Write
from unisono.model.events import Batch, Grade, LeaveComplete, Rejoining, SlaVerdict, StackEvent, ViewChange
from unisono.model.policy import Policy, Settings, StateHolder
from unisono.model.status import Standing
from unisono.model.timing import SlotGrid, earliest
from unisono.model.units import EVERYONE, Rate, Reserver, UnlimitedNetwork, exact_duration_text, group_key
from unisono.net.clock_check import ClockCheck
from unisono.net.fec import layer as fec
from unisono.net.fec.layer import Fec
from unisono.net.layer import Layer, LostMessages, Observer, Order, Service
from unisono.net.plan_exchange import PlanExchange
from unisono.net.rmcast import layer as rmcast
from unisono.net.rmcast.layer import Rmcast
from unisono.net.services.causal import Causal
from unisono.net.services.fifo import Fifo
from unisono.net.services.uniform import UniformDelivery
from unisono.orders.cbr.order import CbrOrder
from unisono.orders.cbr.turns import CYCLE_NS
from unisono.orders.consensus.order import ConsensusOrder
from unisono.orders.final.bounds import BackgroundReserver
from unisono.orders.final.order import FinalOrder
from unisono.orders.leader.base import LeaderOrderBase
from unisono.orders.leader.broadcast import LeaderBroadcast
from unisono.orders.leader.timestamp import TimestampLeader
from unisono.orders.priority.order import PriorityOrder, build_priority_order
from unisono.orders.quasi_genuine.order import QuasiGenuineOrder
from unisono.orders.unordered import Unordered
from unisono.orders.vbr.failures import VbrGaps
from unisono.orders.vbr.order import VbrOrder
from unisono.wire.control import encode_settings_with_verdict
from unisono.wire.door import Door, Refusal
from unisono.wire.frame import END_OF_SLOT, FLAGS_AT, SERIAL_AT, SERIAL_MAX, Frame, Kind, encode

_OrderType = TypeVar("_OrderType")

_FINAL = Grade.FINAL  # read once: reading a member of an enumeration is slow, and this runs for every batch


class DurableOrder(Protocol):
    """An order that keeps records on stable storage."""

    down: list[Frame]
    writes: list[Write]
    """Records that must be on stable storage before the frames in `down` and the events may leave the stack."""
    has_pending_input: bool
    now: int

    def flush(self) -> None:
        """Process all input since the last call as one batch."""


class DeliveryCheck:
    """Checks at run time that no delivery is lost or repeated between an order and the application.

    Each order numbers its deliveries itself. The check needs two comparisons per batch, so it is always on. It sees one
    member only: that all members deliver the same is for the checkers of traces.
    """

    __slots__ = ("_member", "_next_final", "_next_index")

    def __init__(self, member: int) -> None:
        self._member = member
        self._next_index = 0
        """The index that the next early delivery must have, or the next delivery if each message is delivered once."""
        self._next_final = 0

    def check(self, events: Sequence[StackEvent]) -> None:
        """Raise InvariantViolated unless the indices of this member's deliveries are consecutive."""
        for event in events:
            if isinstance(event, Batch):
                if event.grade is _FINAL:
                    expected = self._next_final
                    self._next_final += event.count
                else:
                    expected = self._next_index
                    self._next_index += event.count
                if event.first_index != expected:
                    text = "the index of a delivery repeats or skips a number"
                    raise InvariantViolated("index", self._member, text, str(expected), str(event.first_index))
            elif isinstance(event, Rejoining):  # the member starts again from the state of another member
                self._next_index = self._next_final = 0


class Stack:
    """The stack of one member: its order and the layers under it, without sockets, clocks or threads."""

    def __init__(self, policy: Policy, order: Order, layers: Sequence[Layer], clock_check: ClockCheck) -> None:
        self.policy = policy
        self.order = order
        self.clock_check = clock_check
        self.delays = Histogram()
        """One-way delays of end-of-slot marks, which deliveries wait for; they include the difference of the clocks."""
        self._layers = tuple(layers)
        """The layers under the order, from the order down to the network."""
        self._layer_names = tuple(layer.name for layer in layers)
        self.observer: Observer | None = None
        """Collects metrics and evaluates agreements; None if the application asked for neither."""
        self._serial = self._now = 0
        self._group_destinations = tuple(member for member in policy.view.members if member != policy.member)
        """The members that a datagram to the whole group goes to."""
        self._out: list[Frame] = []
        """Frames that leave with the next step."""
        self._receivers = {kind: self._receiver_of(kind, len(self._layers)) for kind in Kind}
        """For each kind of frame, the layer or the order that gets such a frame first when it arrives."""
        self._group = group_key(policy.group)
        layer_kinds = frozenset(kind for layer in self._layers for kind in layer.opens)
        self.door = Door(self._group, policy.member, policy.view.members, layer_kinds)
        self._rmcast = next((layer for layer in self._layers if isinstance(layer, Rmcast)), None)
        self._last_heard_ns: dict[int, int] = {}
        """By sender, when its last valid datagram arrived."""
        self._layer_events: list[StackEvent] = []
        """Events of the layers, for the application."""
        self._plan_exchange = next((layer for layer in self._layers if isinstance(layer, PlanExchange)), None)
        if self._plan_exchange is not None:
            self._plan_exchange.report = self._layer_events.append
            self._plan_exchange.slots_have_changed = lambda: self.grid.changes > 0
        capabilities = capabilities_of(policy.order)
        has_final_grade = policy.grades != "early"
        early_order = cast("FinalOrder", order).inner if has_final_grade else order
        if capabilities.by_clock:
            clock_check.on_clock_difference = cast("CbrOrder | VbrOrder", early_order).on_clock_difference
        self._slot_order = cast("VbrOrder", early_order) if capabilities.resizable_slots else None
        self._durable_order = cast("DurableOrder", order) if capabilities.durable or has_final_grade else None
        self._multigroup_order = cast("QuasiGenuineOrder", order) if capabilities.routed else None
        self._priority_order = cast("PriorityOrder", order) if capabilities.pulled else None
        self._leader_order = cast("LeaderOrderBase", order) if capabilities.led else None
        # VBR alone checks its deliveries itself, once per slot.
        is_bare_vbr = self._slot_order is not None and not has_final_grade
        self._delivery_check = None if is_bare_vbr else DeliveryCheck(policy.member)
        self._declared_grid = SlotGrid.of(policy.timing)
        clock_check.next_wake = self._wake_at

    # -- input: messages --------------------------------------------------------------------------------------

    def submit(self, now: int, messages: Sequence[bytes], priority: int = 0) -> int:
        """Submit messages of the application; return how many of them, from the first on, the order accepted.

        Submit the rest again later. Only the priority order uses the priority.
        """
        self._now = now
        if self._priority_order is None:
            accepted = self.order.submit(now, messages)
        else:
            accepted = self._priority_order.submit_with_priority(now, messages, priority)
        return self._record_submitted(now, messages, accepted)

    def room(self, now: int) -> tuple[int, int]:
        """How many messages, and how many bytes of payload, `submit` accepts for certain at the same clock reading.

        Nothing else may be passed to the stack in between. The answer may be lower than what `submit` accepts.
        """
        self._now = now
        found = self.order.room(now)
        self._pump(now)
        return found

    def submit_to(self, now: int, messages: Sequence[bytes], groups: Sequence[str]) -> int:
        """Submit messages to these groups; return how many of them, from the first on, the order accepted.

        Raise DestinationNotAllowed if this member's group may not send to one of them.
        """
        self._now = now
        return self._record_submitted(now, messages, self._require_multigroup().submit_to(now, messages, groups))

    def _record_submitted(self, now: int, messages: Sequence[bytes], accepted: int) -> int:
        if self.observer is not None:
            self.observer.submitted(now, messages, accepted)
        self._pump(now)
        return accepted

    def destinations(self, groups: Sequence[str]) -> tuple[int, ...]:
        """The members of these groups; raises DestinationNotAllowed if this member's group may not send to one."""
        return self._require_multigroup().destinations(groups)

    def _require_multigroup(self) -> QuasiGenuineOrder:
        if self._multigroup_order is None:
            raise InvalidOption(
                "to", f"the order {self.policy.order} has one group; only the order quasi_genuine sends to several"
            )
        return self._multigroup_order

    # -- input: datagrams and time ----------------------------------------------------------------------------

    def receive(self, now: int, data: bytes, start: int = 0, end: int | None = None, multicast: bool = False) -> None:
        """Receive the datagram in data[start:end]."""
        frame = self._receive_one(now, data, start, len(data) if end is None else end, multicast)
        if frame is not None and self.observer is not None:
            self.observer.arrived(now, frame, data[start + SERIAL_AT])

    def receive_segments(self, now: int, data: bytes, start: int, end: int, segment: int, *, multicast: bool) -> None:
        """Receive the datagrams of one read: data[start:end] in parts of `segment` bytes; the last may be shorter."""
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
        """Receive one datagram; None if the door refused it."""
        frame = self.door.admit(data, start, end, self.order.latest_slot(now))
        if frame is None:
            return None
        if frame.flags & END_OF_SLOT:
            self.delays.add(now - frame.sent_ns)
            if not self.clock_check.is_on_time(now - frame.sent_ns, frame.sender) and self.order.running():
                self._layer_events += self.clock_check.report_late(now, frame)
        frame.multicast = multicast
        self._now = self._last_heard_ns[frame.sender] = now
        receiver = self._receivers[frame.kind]
        receiver.from_below(now, frame)
        if receiver is not self.order or self.order.down:
            self._pump(now)
        return frame

    def wake(self, now: int) -> None:
        """Let the order, the layers and the observer do everything that is due at the clock reading `now`."""
        self._now = now
        self.clock_check.record_own_lateness(now)
        self.order.wake(now)
        for layer in self._layers:
            layer.wake(now)
        if self.observer is not None and now >= self.observer.due:
            self.observer.wake(now)
        self._pump(now)

    # -- input: requests of the application -------------------------------------------------------------------

    def consume(self, now: int) -> Batch | None:
        """Deliver the next message of the priority order; None if no message can be delivered now."""
        if self._priority_order is None:
            raise InvalidOption(
                "order",
                f"the order {self.policy.order} delivers by events; only the priority orders deliver by consume()",
            )
        batch = self._priority_order.consume(now)
        if batch is not None:
            if self._delivery_check is not None:
                self._delivery_check.check((batch,))
            if self.observer is not None:
                self.observer.delivered(now, [batch])
            self._pump(now)
        return batch

    def change_rate(self, now: int, rate: Rate) -> None:
        """Renegotiate this member's rate. If there is no room, raise ReservationRefused and change nothing."""
        self.order.change_rate(now, rate)
        self._pump(now)

    def change_slot(self, now: int, theta_ns: int, rate: Rate | None = None) -> None:
        """Ask the group for slots of another length and, optionally, for another rate of this member from then on.

        A TimingChange event follows when slots have that length. ReservationRefused and InvalidOption change nothing.
        """
        if self._slot_order is None:
            others = " and ".join(orders_with("resizable_slots"))
            raise InvalidOption("slot", f"the order {self.policy.order} cannot change its slot length; {others} can")
        if self.policy.reliable is not None:
            raise InvalidOption("slot", "the slot length cannot change over reliable multicast; leave out slot")
        self._slot_order.change_slot(now, theta_ns, rate)
        self._pump(now)

    def change_topology(self, now: int, sends: Sequence[str]) -> Callable[[], bool]:
        """Ask this member's group to send to these groups and to no others.

        Return a function that says whether all groups concerned have made the change.
        """
        return self._require_multigroup().change_topology(now, sends)

    def request_settings(
        self, now: int, settings: Settings, verdict: SlaVerdict | None = None, member: int | None = None
    ) -> None:
        """Announce the settings that a member needs, by default this one, and the verdict that they follow from.

        The observer calls this during an input or a step of the stack, and the stack then sends the announcement. The
        stack reports to the observer when the group has agreed.
        """
        if self._slot_order is None:
            raise InvalidOption(
                "adaptation", f"the order {self.policy.order} cannot agree on settings; the order vbr can"
            )
        self._slot_order.request_settings(
            now, encode_settings_with_verdict(settings, verdict), member, keep=verdict is not None
        )

    def apply_settings(self, settings: Settings, slot: int) -> None:
        """Use these settings from `slot` on; all members have agreed on that slot."""
        for layer in self._layers:
            if isinstance(layer, Rmcast) and settings.redundancy is not None and self.policy.reliable is not None:
                rho, eta_ns, omega_ns = settings.redundancy
                eta, omega = exact_duration_text(eta_ns), exact_duration_text(omega_ns)
                layer.change_redundancy(replace(self.policy.reliable, rho=rho, eta=eta, omega=omega), slot)
            elif isinstance(layer, Fec) and settings.fec is not None:
                layer.change_code(settings.fec, slot)

    def share_application_state(self, holder: StateHolder | None) -> None:
        """Transfer the application's state to joining members, if the order transfers its own state."""
        if self._priority_order is not None:
            self._priority_order.application = holder

    def leave(self, now: int) -> None:
        """Start to leave the group; a LeaveComplete event follows when this is done."""
        self.order.leave(now)
        self._pump(now)

    # -- output -----------------------------------------------------------------------------------------------

    def step(self) -> Effects:
        """Return the effects of all inputs since the last step.

        A driver calls this after each input, or once after several inputs that arrived together, and passes the result
        to `carry_out`. InvariantViolated means that this member has a defect and must stop: it releases nothing.
        """
        records = self._flush() if self._durable_order is not None else ()
        datagrams = self._encode_outgoing() if self._out else ()
        events = self._pop_events()
        if events and self._delivery_check is not None:
            self._delivery_check.check(events)
        if events and self._rmcast is None and not self.order.keeps_sending_to_departed:
            self._follow_view(events)
        return Effects(records, datagrams, events, self._wake_at())

    def _flush(self) -> Sequence[Write]:
        """Let a durable order process its input as one batch; return the records that the other effects depend on."""
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
            if self._plan_exchange is not None:
                self._plan_exchange.change_incarnation(self.policy)
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

    def _wake_at(self) -> int | None:
        due = [part.wake_at() for part in (self.order, *self._layers)]
        return earliest(due if self.observer is None else [*due, self.observer.due])

    def _report_settings(self) -> None:
        """Report to the observer the settings that the group has agreed on."""
        if self._slot_order is not None and self._slot_order.settings_agreed:
            agreed, self._slot_order.settings_agreed[:] = self._slot_order.settings_agreed[:], []
            if self.observer is not None:
                self.observer.settings_agreed(self._now, agreed)

    # -- frames between the order, the layers and the network -------------------------------------------------

    def _pump(self, now: int) -> None:
        """Pass frames down and up until the order and all layers have none left to pass on."""
        order, layers = self.order, self._layers
        self._report_settings()  # first: frames of the slot from which the settings hold may follow
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
                    passed, layer.up[:] = layer.up[:], []
                    self._pass_up(now, passed, position)

    def _pass_up(self, now: int, frames: Sequence[Frame | LostMessages], position: int) -> None:
        """Give frames from the layer at `position` to the layer above that opens their kind, or to the order."""
        if self.observer is not None:
            self.observer.passed_up(self._layer_names[position], frames)
        for frame in frames:
            if isinstance(frame, LostMessages):
                self._layer_events.append(frame.to_violation())
                continue
            receiver = self._receiver_of(frame.kind, position)
            if self._rmcast is not None and receiver is self.order and frame.flags & END_OF_SLOT:
                self.delays.add(now - frame.sent_ns)
            receiver.from_below(now, frame)

    def _pass_down(self, now: int, frames: list[Frame], position: int) -> None:
        """Give each frame to the first layer from `position` on that wraps its kind, or let it leave."""
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
        """The layer above `position` that opens frames of this kind; the order if no layer does."""
        for layer in reversed(self._layers[:position]):
            if kind in layer.opens:
                return layer
        return self.order

    # -- state ------------------------------------------------------------------------------------------------

    def running(self) -> bool:
        """Whether the group has formed and this member takes part."""
        return self.order.running()

    def waiting_for(self) -> tuple[int, ...]:
        """The members that must still appear before the group starts; empty when it runs."""
        return self.order.waiting_for()

    def peer_problems(self) -> Mapping[int, str]:
        """By peer, why the group cannot start with it, such as "joined with other options"."""
        return self.order.peer_problems()

    def why_not_formed(self) -> str:
        """Why the group does not start, other than missing members and `peer_problems`; empty if not known."""
        return self.order.why_not_formed()

    def standing(self, now: int) -> Standing:
        """What this member knows about the group's leader, its majority and its peers."""
        return self.order.standing(now)

    def last_heard_ns(self, peer: int) -> int | None:
        """When the last valid datagram of a peer arrived; None if none has arrived."""
        return self._last_heard_ns.get(peer)

    def raise_if_plans_differ(self) -> None:
        """Raise PlanMismatch if a peer has joined with options with which the group cannot form."""
        if self._plan_exchange is not None and self._plan_exchange.mismatches:
            raise next(iter(self._plan_exchange.mismatches.values()))

    def bound_ns(self) -> int:
        """The latency that no delivery exceeds while Δ, Γ and the other assumptions of the order hold."""
        return self.order.bound_ns()

    @property
    def declared_bound_ns(self) -> int | None:
        """The latency bound that the order declares; None in the priority orders, where consumers set the pace."""
        return None if self.application_pulls else self.order.bound_ns()

    def outage_ns(self, crashed: Sequence[int]) -> int:
        """How much longer than the bound a message may take when these members crash; 0 without a leader."""
        return 0 if self._leader_order is None else self._leader_order.outage_ns(crashed)

    def gap_free(self) -> bool:
        """Whether the order promises deliveries without gaps (paper 000, Definition 1)."""
        return self.order.gap_free

    @property
    def application_pulls(self) -> bool:
        """Whether the application pulls its messages with `consume`."""
        return self._priority_order is not None

    def queued(self) -> int:
        """How many messages wait until the application pulls them with `consume`, including locked ones."""
        return 0 if self._priority_order is None else len(self._priority_order.insertion.queue)

    def consumable(self) -> bool:
        """Whether `consume` would return a message."""
        return self._priority_order is not None and self._priority_order.consumable()

    @property
    def order_and_service_names(self) -> tuple[str, ...]:
        """The names of the order and of the layers that wrap its frames."""
        services = [name for name, layer in zip(self._layer_names, self._layers, strict=True) if layer.wraps]
        return (self.policy.order, *services)

    def by_multicast(self) -> bool:
        """Whether this member's data goes by IP multicast."""
        return self.order.by_multicast()

    def peer_rate(self, peer: int) -> Rate | None:
        """The rate that a peer has declared; None if this member does not know it yet."""
        return self.order.peer_rate(peer)

    @property
    def window_slots(self) -> int:
        """How many slots a sender may be ahead of its own deliveries."""
        return self.order.window_slots

    @property
    def grid(self) -> SlotGrid:
        """The slot schedule as this member knows it."""
        return self._declared_grid if self._slot_order is None else self._slot_order.grid

    def complete_until(self, *, early: bool = False, before_slot: int | None = None) -> int | None:
        """The time up to which all messages are delivered, as in `Group.complete_until`; None before the first slot.

        With `before_slot`, the messages of this slot and of later ones do not count as delivered.
        """
        inner = self._order_with_send_slots()
        slot = self.order.complete_slot(early=early) if isinstance(self.order, FinalOrder) else inner.complete_slot()
        if slot is None:
            return None
        if before_slot is not None:
            slot = min(slot, before_slot - 1)
        # In the order cbr a message waits for its sender's next turn, which comes within a cycle.
        waits_ns = CYCLE_NS if isinstance(inner, CbrOrder) else 0
        return self.grid.end_of(slot) - 1 - waits_ns

    def sent_before(self, slot: int) -> int:
        """The end of a slot: the messages of this slot were sent before it, by the clocks of their senders."""
        self._order_with_send_slots()
        return self.grid.end_of(slot)

    def _order_with_send_slots(self) -> CbrOrder | VbrOrder:
        """The order in whose slots messages are sent; raises InvalidOption if slots have another meaning."""
        order = self.order.inner if isinstance(self.order, FinalOrder) else self.order
        if not isinstance(order, CbrOrder | VbrOrder):
            text = "only the orders cbr and vbr know by which time a message was sent"
            raise InvalidOption("order", f"{text}; this group has the order {self.policy.order}")
        return order

    def slot_of(self, local_ns: int) -> int:
        """The slot at a reading of the local clock."""
        return self.grid.slot_of(local_ns)

    @property
    def ignored(self) -> Mapping[str, int]:
        """How many frames passed the door but were not used, by reason."""
        return self.order.ignored

    @property
    def refused(self) -> Mapping[Refusal, int]:
        """How many datagrams the door refused, by reason."""
        return self.door.refused

    def refused_from(self, member: int) -> Mapping[Refusal, int]:
        """How many datagrams that name this member as their sender the door refused, by reason."""
        return self.door.refused_from(member)

    @property
    def clock_differences(self) -> ClockCheck:
        """The layer that measures the differences between this member's clock and those of its peers."""
        return self.clock_check

    def counters(self) -> dict[str, int]:
        """The counters of the layers, by names such as "fec.recovered"; in some orders also those of the order."""
        found = {f"{layer.name}.{name}": n for layer in self._layers for name, n in layer.counters().items()}
        if self._priority_order is not None:
            found[f"{self.policy.order}.queued"] = self.queued()
        if self._multigroup_order is not None:
            found |= {f"{self.policy.order}.{name}": n for name, n in self._multigroup_order.counters().items()}
        return found

    def gamma_ns(self) -> int | None:
        """The largest clock difference measured so far; None before the first measurement."""
        return self.clock_check.gamma_ns()

    def inspect(self, kind: type[_OrderType]) -> _OrderType:
        """The order, for simulations and tests that look inside it; raises TypeError if it is of another type."""
        if not isinstance(self.order, kind):
            raise TypeError(f"member {self.policy.member} runs {type(self.order).__name__}, not {kind.__name__}")
        return self.order


class Host(Protocol):
    """What a driver provides to its stack: stable storage, a network, an application and an alarm."""

    def persist(self, records: Sequence[Write]) -> None:
        """Make records durable before this returns."""

    def transmit(self, datagrams: Sequence[Datagram]) -> None:
        """Send datagrams, in order."""

    def on_event(self, event: StackEvent) -> None:
        """Hand an event to the application and record it in the trace."""

    def set_alarm(self, at: int | None) -> None:
        """Wake the stack when the local clock shows `at`; None cancels the alarm."""


def carry_out(effects: Effects, host: Host) -> None:
    """Carry out the effects of one step in the order that safety needs: records first, then datagrams and events.

    The simulator and the asyncio driver both use this function, so simulations test the code that production runs.
    """
    if effects.records:
        host.persist(effects.records)
    if effects.datagrams:
        host.transmit(effects.datagrams)
    for event in effects.events:
        host.on_event(event)
    host.set_alarm(effects.wake_at)


def _vbr(policy: Policy, reserver: Reserver) -> Order:
    return (VbrGaps if policy.failures else VbrOrder)(policy, reserver)


_DURABLE_ORDERS: dict[str, Callable[[Policy, Reserver, StoredRecords | None], Order]] = {
    "consensus": ConsensusOrder,
    "quasi_genuine": QuasiGenuineOrder,
}
ORDERS: dict[str, Callable[[Policy, Reserver], Order]] = {
    "cbr": CbrOrder,
    "consensus": ConsensusOrder,
    "leader": LeaderBroadcast,
    "priority": build_priority_order,
    "priority_coordinator": build_priority_order,
    "quasi_genuine": QuasiGenuineOrder,
    "timestamp": TimestampLeader,
    "vbr": _vbr,
    **{name: Unordered for name, each in CAPABILITIES.items() if not each.total_order},
}
_SERVICES: dict[str, type[Service]] = {"causal": Causal, "fifo": Fifo, "uniform": UniformDelivery}


def build(policy: Policy, reserver: Reserver | None = None, stored_records: StoredRecords | None = None) -> Stack:
    """Build the stack for a policy; raises ReservationRefused if the network has no room for its rate.

    `stored_records` are the records that a durable order wrote in earlier incarnations. Without them, it stores none.
    """
    capabilities = capabilities_of(policy.order)
    check_options(policy)
    make = ORDERS[policy.order]
    clock_check, reserver = ClockCheck(policy), reserver or UnlimitedNetwork()
    if stored_records is not None and not needs_storage(policy.order, policy.grades):
        text = f"the order {policy.order} uses no stable storage; only consensus, quasi_genuine and final deliveries do"
        raise InvalidOption("storage", text)
    if not capabilities.total_order or policy.reliable is not None:
        return _build_over_rmcast(policy, make, reserver, clock_check)
    if capabilities.durable:
        durable_order = _DURABLE_ORDERS[policy.order](policy, reserver, stored_records)
        return Stack(policy, durable_order, _lowest_layers(policy, clock_check), clock_check)
    if policy.grades != "early":
        reserver = BackgroundReserver(policy, reserver)
    layers = _lowest_layers(policy, clock_check)
    order = make(policy if policy.fec is None else fec.order_policy(policy), reserver)
    if policy.fec is not None:
        vbr = cast("VbrOrder", order)  # no other order honours the option
        layers.insert(0, Fec(policy, slots=lambda: vbr.grid))
    if policy.grades != "early":
        order = FinalOrder(cast("CbrOrder | VbrOrder", order), policy, stored_records)
    return Stack(policy, order, layers, clock_check)


def _lowest_layers(policy: Policy, clock_check: ClockCheck) -> list[Layer]:
    """The layers at the network, which exchange messages of their own and wrap no frames."""
    return [clock_check] if policy.plan_inputs is None else [PlanExchange(policy, policy.plan_inputs), clock_check]


def _build_over_rmcast(
    policy: Policy, make: Callable[[Policy, Reserver], Order], reserver: Reserver, clock_check: ClockCheck
) -> Stack:
    if policy.reliable is None:
        raise InvalidOption(
            "reliable",
            f"the order {policy.order} needs reliable multicast: give ρ, η and ω (option reliable)",
        )
    services = CAPABILITIES[policy.order].services
    if policy.reliable.last_copy is None:
        policy = replace(policy, reliable=replace(policy.reliable, last_copy="uniform" in services))
    layers = [Rmcast(policy), *_lowest_layers(policy, clock_check)]
    above = rmcast.order_policy(policy)
    for service in reversed(services):
        layers.insert(0, _SERVICES[service](above))
        above = _SERVICES[service].order_policy(above)
    return Stack(policy, make(above, reserver), layers, clock_check)
