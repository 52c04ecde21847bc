"""What the services above reliable multicast share: a number in front of each frame, and the frame behind it.

A service takes what goes to everyone from above, whatever its kind, and puts a frame of its own kind around it, so
services compose in any order. Frames for one member pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import replace
from typing import ClassVar

from unisono.errors import InvalidOption
from unisono.model.ids import EVERYONE, group_key
from unisono.model.policy import FRAME_MIN, Policy
from unisono.wire.door import Door, Refusal
from unisono.wire.frame import HEADER_BYTES, Frame, Kind, Nested


class Service(ABC):
    """The common part of a layer that numbers what it wraps."""

    wraps = frozenset({Kind.DATA, Kind.FIFO, Kind.CAUSAL, Kind.UNIFORM})
    opens: frozenset[Kind]
    name: ClassVar[str]
    kind: Kind
    stamp_bytes_per_member = 0
    """What stands between this service's header and the frame."""

    @classmethod
    def order_policy(cls, policy: Policy) -> Policy:
        """The policy of what is above: its frames leave room for what this service puts before them."""
        room = policy.max_frame - HEADER_BYTES - cls.stamp_bytes_per_member * len(policy.view.members)
        if room < FRAME_MIN:
            raise InvalidOption(
                "max_frame", f"the service {policy.order} needs {FRAME_MIN - room} bytes more than there are"
            )
        return replace(policy, max_frame=room)

    def __init__(self, policy: Policy) -> None:
        if policy.reliable is None:
            raise InvalidOption("reliable", "this service rests on reliable multicast, which needs ρ, η and ω")
        self.down: list[Frame] = []
        self.up: list[Frame] = []
        self.ignored: Counter[str] = Counter()
        """Frames that came through the door but were not used, by reason."""
        self._policy = policy
        self._redundancy = policy.reliable
        self._message_lifetime_ns = policy.reliable.message_lifetime_ns(
            len(policy.view.members), policy.timing.delta_ns
        )
        """A message that has not come so long after a later one of its sender will not come (`Redundancy.life_ns`)."""
        self._door = Door(group_key(policy.group), policy.member, policy.view.members)
        self._sequence = 0

    def from_above(self, now: int, frame: Frame) -> None:
        """Number it."""
        if frame.to != EVERYONE:
            self.down.append(frame)
            return
        self.down.append(self._wrap(now, frame))
        self._sequence += 1

    def _wrap(self, now: int, frame: Frame) -> Nested:
        policy = self._policy
        return Nested(
            self.kind,
            policy.member,
            policy.incarnation,
            policy.epoch,
            frame.slot,
            0,
            0,
            0,
            self._sequence,
            now,
            None,
            self._stamp(),
            EVERYONE,
            frame.multicast,
            frame,
        )

    @abstractmethod
    def from_below(self, now: int, frame: Frame) -> None:
        """A frame of this service has come."""

    @abstractmethod
    def wake(self, now: int) -> None:
        """Time has passed."""

    @abstractmethod
    def wake_at(self) -> int | None:
        """When something will be due."""

    def _stamp(self) -> bytes:
        """What this service puts between its header and the frame."""
        return b""

    def _open(self, frame: Nested, stamp_bytes: int = 0) -> Frame | None:
        """The frame inside; None, counted, if it makes no sense."""
        frame.start += stamp_bytes
        inner = self._door.open_nested(frame, frame.sender, frame.incarnation)
        if isinstance(inner, Refusal):
            self.ignored[f"contains: {inner}"] += 1
            return None
        return inner
