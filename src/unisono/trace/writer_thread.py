"""The thread in which a writer of traces or metrics stores its queued rows."""

from __future__ import annotations

import threading
from collections.abc import Callable

_POLL_S = 0.05


class WriterThread:
    """Calls `work` every 50 ms until it is stopped.

    `work(last)` stores queued rows and returns whether the queue is empty. `last` says that no more rows will come.
    """

    def __init__(self, name: str, work: Callable[[bool], bool]) -> None:
        self.stopped = False
        """Whether `stop` was called: the writer accepts no more rows."""
        self._work = work
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        last = empty = False
        while not (last and empty):
            last = self._closing.wait(_POLL_S)
            empty = self._work(last)

    def stop(self) -> bool:
        """Stop after storing all queued rows, and wait for that. Returns False if the thread was already stopped."""
        if self.stopped:
            return False
        self.stopped = True
        self._closing.set()
        self._thread.join()
        return True
