"""How the application reads the events of a group: streams over the driver's queue.

A group has at most three streams: all events, the final messages, and the early messages. Each stream gets every event
that it wants, so an application can read messages in one task and other events in another. Several iterations over the
same stream share it: each event goes to the one that asked first, and an iteration that is abandoned loses nothing.

A stream exists from its first use on. If one stream is far behind the others, these wait for it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Generic, Self, TypeVar

from unisono.model.events import Batch, Delivery, Event, Grade, remaining
from unisono.runtime.driver import Driver, DriverEvent, queue_cost

_FIRST_CHUNK, _LARGEST_CHUNK = 16, 256
"""How many deliveries a stream prepares at once: at first, and at most."""
_LOGGER: Final = logging.getLogger("unisono")
_Taken = TypeVar("_Taken")


class EventStreams:
    """Distributes the events of one driver to the streams of a group."""

    def __init__(self, driver: Driver, *, pulls: bool) -> None:
        """`pulls`: the application pulls messages, so reading an event may deliver one."""
        self.driver = driver
        self._pulls = pulls
        self._streams: dict[str, EventStream] = {}
        self._has_reported_slow_stream = False

    def stream(self, name: str, wants: Callable[[DriverEvent], bool]) -> EventStream:
        """The stream of this name. At its first use it begins, with all events that no other stream has taken yet."""
        found = self._streams.get(name)
        if found is None:
            found = self._streams[name] = EventStream(self, name, wants)
        return found

    def first_unread_slot(self, grade: Grade) -> int | None:
        """The slot of the first batch of this grade, and not late, that waits for the application; None if none."""
        waiting = [self.driver.waiting_events(), *(stream.waiting_events() for stream in self._streams.values())]
        slots = [
            next((e.slot for e in events if isinstance(e, Batch) and e.grade in (None, grade) and not e.late), None)
            for events in waiting
        ]
        return min((slot for slot in slots if slot is not None), default=None)

    def next_for(self, reader: EventStream) -> DriverEvent | None:
        """Take the next event that `reader` wants from the driver, and keep it for the other streams; None if none."""
        others = [stream for stream in self._streams.values() if stream is not reader]
        while self.driver.closed or not any(map(self._is_behind, others)):
            event = self.driver.pop()
            if event is None and self._pulls:
                event = self.driver.consume()
            if event is None:
                return None
            for stream in others:
                stream.keep(event)
            if reader.wants(event):
                return event
        return None

    def _is_behind(self, stream: EventStream) -> bool:
        """Whether the other streams have to wait for this one, because too many events are kept for it."""
        behind = stream.kept_messages >= self.driver.queue_messages or stream.kept_bytes >= self.driver.queue_bytes
        if behind and not self._has_reported_slow_stream:
            self._has_reported_slow_stream = True
            text = "%s events wait for the application in the stream %r; other streams of this group wait for it"
            _LOGGER.warning(text, f"{stream.kept_messages:,}", stream.name)
        return behind


class EventStream:
    """One stream of a group's events. All its state is here, so a cancelled or abandoned iteration loses nothing."""

    def __init__(self, streams: EventStreams, name: str, wants: Callable[[DriverEvent], bool]) -> None:
        self.name, self.wants = name, wants
        self.kept_messages = self.kept_bytes = 0
        self._streams, self._driver = streams, streams.driver
        self._kept: deque[DriverEvent] = deque()
        """Events that another stream has taken from the driver first."""
        self._opened_batch: Batch | None = None
        self._opened_payloads: list[bytes] = []
        """The messages of `_opened_batch`; the first `_prepared` of them have been prepared for the application."""
        self._prepared = 0
        self._deliveries: deque[Delivery] = deque()
        """The deliveries that were prepared and that no iteration has yielded yet."""
        self._chunk = _FIRST_CHUNK

    def keep(self, event: DriverEvent) -> None:
        """Keep an event that another stream has taken, if this stream wants it."""
        if self.wants(event):
            self._kept.append(event)
            messages, size = queue_cost(event)
            self.kept_messages += messages
            self.kept_bytes += size

    def waiting_events(self) -> Iterator[DriverEvent]:
        """The events that this stream has taken from the driver, and that the application has not taken yet."""
        if self._opened_batch is not None and self._prepared - len(self._deliveries) < len(self._opened_payloads):
            yield self._opened_batch
        yield from self._kept

    def take_batch(self) -> DriverEvent | None:
        """Take the next batch or other event; None if there is none now."""
        rest = self._rest_of_batch()
        if rest is not None:
            return rest
        if not self._kept:
            return self._streams.next_for(self)
        event = self._kept.popleft()
        messages, size = queue_cost(event)
        self.kept_messages -= messages
        self.kept_bytes -= size
        self._driver.announce_change()  # another stream may wait for this one
        return event

    def take_event(self) -> Event | None:
        """Take the next delivery or other event; None if there is none now."""
        deliveries = self._deliveries
        while not deliveries and not self._prepare_deliveries():
            event = self.take_batch()
            if not isinstance(event, Batch):
                return event
            self._opened_batch, self._opened_payloads, self._prepared = event, event.messages, 0
        return deliveries.popleft()

    def batch_turn_is_over(self) -> bool:
        """Whether the application has used up its turn of the event loop."""
        return self._driver.turn.is_over()

    def turn_is_over(self) -> bool:
        """Whether the application has used up its turn with the last chunk of deliveries. Adapt the size of chunks.

        Never in the middle of a chunk. The chunks are short if the application needs long for each delivery, and long
        if a look at the clock would cost more than the delivery.
        """
        if self._deliveries:
            return False
        over = self._driver.turn.is_over()
        self._chunk = max(1, self._chunk // 2) if over else min(2 * self._chunk, _LARGEST_CHUNK)
        return over

    def _rest_of_batch(self) -> Batch | None:
        """The deliveries of a batch that an unfinished iteration has not yielded yet; None if there are none."""
        opened, yielded = self._opened_batch, self._prepared - len(self._deliveries)
        if opened is None or yielded == len(self._opened_payloads):
            return None
        rest = remaining(opened, self._opened_payloads[yielded:])
        self._opened_batch, self._opened_payloads, self._prepared = None, [], 0
        self._deliveries.clear()
        return rest

    def _prepare_deliveries(self) -> bool:
        """Prepare the next deliveries of the opened batch; False if it has no more."""
        batch, start = self._opened_batch, self._prepared
        if batch is None or start == len(self._opened_payloads):
            return False
        payloads = self._opened_payloads[start : start + self._chunk]
        self._deliveries.extend(batch.deliveries_of(payloads, start))
        self._prepared += len(payloads)
        return True


class Iteration(Generic[_Taken]):
    """An iteration over a stream. All its state is in the stream, so a cancelled `anext` loses nothing."""

    __slots__ = ("_driver", "_take", "_turn_is_over")

    def __init__(self, driver: Driver, take: Callable[[], _Taken | None], turn_is_over: Callable[[], bool]) -> None:
        driver.check_event_loop()
        self._driver, self._take, self._turn_is_over = driver, take, turn_is_over

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _Taken:
        driver = self._driver
        if self._turn_is_over():
            await driver.next_turn()
        while (event := self._take()) is None:
            if driver.closed:
                driver.raise_if_failed()
                raise StopAsyncIteration
            await driver.wait_for_change()
        return event


def wants_every_event(_: DriverEvent) -> bool:
    """The choice of the stream of all events."""
    return True


def wants_messages(grade: Grade) -> Callable[[DriverEvent], bool]:
    """The choice of a stream of messages in one grade. Batches of orders without grades belong to every grade."""

    def wants(event: DriverEvent) -> bool:
        return isinstance(event, Batch) and event.grade in (None, grade)

    return wants
