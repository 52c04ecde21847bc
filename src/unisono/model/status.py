"""The status of a running member: what it knows of its group, as frozen values with a JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from unisono.model.units import duration_text, ns_to_ms

Role: TypeAlias = Literal["joining", "leader", "follower", "member", "blocked", "left"]
"""The part that a member has in its group.

"joining": the group has not formed. "member": the order has no leader. "blocked": this member has no majority. "left":
it has left the group, or has stopped.
"""
PeerState: TypeAlias = Literal["up", "suspected", "left"]
"""What a member believes about a peer. "suspected": it does not respond. "left": it is not in the view any more."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What an order knows about its leader, its majority and its peers. Orders without such knowledge keep defaults."""

    led: bool = False
    """Whether the order has a leader, even if none is known at present."""
    leader: int | None = None
    """The member that leads; None if the order has no leader, or this member knows none at present."""
    majority: bool | None = None
    """Whether this member has a majority; None if the order needs none, or the group has not formed."""
    suspected: tuple[int, ...] = ()
    """The members of the view that this member suspects to have failed."""
    behind: Mapping[int, int] = field(default_factory=dict)
    """By peer, how many entries of the agreed order it lacks, as far as this member knows."""

    def role_of(self, member: int) -> Role:
        """The role of this member."""
        if self.majority is False:
            return "blocked"
        if not self.led:
            return "member"
        return "leader" if self.leader == member else "follower"


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """What a member knows about one peer."""

    member: int
    state: PeerState
    last_heard_ns: int | None
    """How long ago a datagram of the peer arrived; None if none ever arrived."""
    delay_ns: int | None
    """The shortest delay from here to the peer in recent probes: half a round trip; None before the first answer."""
    loss: float | None
    """The share of the peer's datagrams that were lost; None unless the group collects metrics."""
    lag: int | None
    """How many entries of the agreed order the peer lacks; None if this member does not know that."""

    def why_not_up(self) -> str:
        """Why the peer does not count as up, in a few words."""
        if self.last_heard_ns is None:
            return "never heard"
        return "not in the view" if self.state == "left" else f"not heard for {duration_text(self.last_heard_ns)}"

    def as_json(self) -> dict[str, Any]:
        """The JSON form. Times are in milliseconds."""
        return {
            "member": self.member,
            "state": self.state,
            "last_heard_ms": _ms(self.last_heard_ns),
            "delay_ms": _ms(self.delay_ns),
            "loss": self.loss,
            "lag": self.lag,
        }


@dataclass(frozen=True, slots=True)
class SeenViolations:
    """How many violations of one kind a member has reported, and the text of the last one."""

    count: int
    last_text: str


@dataclass(frozen=True, slots=True)
class Status:
    """What a member knows of its group now. `unisono status` shows the same."""

    group: str
    member: int
    order: str
    role: Role
    leader: int | None
    """The member that leads; None if the order has no leader, or this member knows none at present."""
    members: tuple[int, ...]
    """The members of the group, in this member's current view."""
    majority: bool | None
    """Whether this member has a majority of the group; None if the order needs none."""
    peers: tuple[PeerStatus, ...]
    waiting_to_send: int
    """The messages of callers that wait in `send`, because the group has no room for them yet."""
    waiting_for_application: int
    """The messages and other events that the application has not taken yet."""
    sent: int
    """The messages that this member has accepted from the application."""
    delivered: int
    """The messages that this member has delivered; each grade of a message counts."""
    undelivered: int
    """The messages that this member has accepted and not delivered to itself yet, finally if there are two grades."""
    late: int
    """The deliveries that were certainly later than the deadline, or than the bound if there is no deadline."""
    plan: str
    """The order and the slot length of the group, and the reasons for them."""
    bound_ns: int
    """The latency that no delivery exceeds while Δ and Γ hold."""
    delta_ns: int | None
    """Δ as measured: the longest delay of an end-of-slot mark, or else half of the longest round trip of a probe.

    None before the first one has arrived.
    """
    gamma_ns: int | None
    """Γ as measured: the largest difference between two clocks; None until every peer has answered a probe."""
    refused: Mapping[str, int]
    """The number of datagrams that this member refused as invalid, by reason."""
    violations: Mapping[str, SeenViolations]
    """The violations that this member has reported, by kind."""

    def as_json(self) -> dict[str, Any]:
        """The JSON form. Times are in milliseconds."""
        return {
            "group": self.group,
            "member": self.member,
            "order": self.order,
            "role": self.role,
            "leader": self.leader,
            "members": list(self.members),
            "majority": self.majority,
            "peers": [peer.as_json() for peer in self.peers],
            "waiting_to_send": self.waiting_to_send,
            "waiting_for_application": self.waiting_for_application,
            "sent": self.sent,
            "delivered": self.delivered,
            "undelivered": self.undelivered,
            "late": self.late,
            "plan": self.plan,
            "bound_ms": ns_to_ms(self.bound_ns),
            "delta_ms": _ms(self.delta_ns),
            "gamma_ms": _ms(self.gamma_ns),
            "refused": dict(self.refused),
            "violations": {
                kind: {"count": seen.count, "last": seen.last_text} for kind, seen in self.violations.items()
            },
        }


def _ms(time_ns: int | None) -> float | None:
    return None if time_ns is None else ns_to_ms(time_ns)
