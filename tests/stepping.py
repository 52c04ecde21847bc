"""Takes a stack's effects apart: tests look at datagrams, events and wake-ups one at a time, in any order."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from unisono.model.effects import Datagram, Effects
from unisono.model.events import StackEvent
from unisono.stack import Stack

_pending: WeakKeyDictionary[Stack, tuple[list[Datagram], list[StackEvent]]] = WeakKeyDictionary()
"""Effects of earlier steps that the test has not asked for yet."""


def _step(stack: Stack) -> tuple[Effects, list[Datagram], list[StackEvent]]:
    effects = stack.step()
    datagrams, events = _pending.setdefault(stack, ([], []))
    datagrams += effects.datagrams
    events += effects.events
    return effects, datagrams, events


def outgoing(stack: Stack) -> list[Datagram]:
    """The datagrams that the stack has sent since the last call."""
    _, datagrams, _ = _step(stack)
    found, datagrams[:] = datagrams[:], []
    return found


def events(stack: Stack) -> list[StackEvent]:
    """The events that the stack has reported since the last call."""
    _, _, reported = _step(stack)
    found, reported[:] = reported[:], []
    return found


def wake_at(stack: Stack) -> int | None:
    """When the stack wants to be woken."""
    return _step(stack)[0].wake_at
