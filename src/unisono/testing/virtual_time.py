"""Virtual time for asyncio: when every task waits, the clock jumps to the next timer and the process does not sleep."""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from unisono.model.units import NS_PER_S

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time, as `asyncio.run` does in real time.

    `asyncio.sleep(60)` takes no real time. Two runs of the same program do the same, if the program uses only asyncio's
    clock. Work in threads, processes or sockets is not part of virtual time: while the program waits for it, timers may
    expire.
    """
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock starts at 0 and moves only when no callback is ready."""

    def __init__(self) -> None:
        self._now_ns = 0
        super().__init__(_TimeSkippingSelector(self._advance))

    def time(self) -> float:
        """The virtual time in seconds."""
        return self._now_ns / NS_PER_S

    def time_ns(self) -> int:
        """The virtual time in nanoseconds."""
        return self._now_ns

    def _advance(self, seconds: float) -> None:
        self._now_ns += max(1, math.ceil(seconds * NS_PER_S))


class _TimeSkippingSelector(selectors.BaseSelector):
    """A selector for an event loop in virtual time.

    It checks files without waiting. Where a plain selector would wait for a timer, it advances the virtual time.
    """

    def __init__(self, advance: Callable[[float], None]) -> None:
        self._inner = selectors.DefaultSelector()
        self._advance = advance

    def register(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.register(fileobj, events, data)

    def unregister(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        return self._inner.unregister(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return self._inner.select(None)  # no timer is set: only a file or another thread can continue the program
        ready = self._inner.select(0)
        if not ready and timeout > 0:
            self._advance(timeout)
        return ready

    def close(self) -> None:
        self._inner.close()

    def get_map(self) -> Mapping[FileDescriptorLike, selectors.SelectorKey]:
        return self._inner.get_map()
