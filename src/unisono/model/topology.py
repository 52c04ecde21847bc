"""The topology of a quasi-genuine order: which group may send to which (paper 003, assumption A1).

If group A may send to group B, B need not be allowed to send to A. Cycles are allowed. A group sends to itself only if
the topology says so. Two groups exchange datagrams only if one of them may send to the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias, get_args

from unisono.errors import DestinationNotAllowed, InvalidOption
from unisono.model.units import checked_member, duration_ns, exact_duration_text

GROUPS_MAX = 64
"""The most groups of a topology: frames carry a set of groups as a 64-bit mask."""
Liveness: TypeAlias = Literal["on_demand", "periodic"]
LIVENESS: tuple[Liveness, ...] = get_args(Liveness)


def group_names(field: str, names: Iterable[str]) -> tuple[str, ...]:
    """The names as a tuple. A single string is refused: iterating over it would give its letters."""
    if isinstance(names, str):
        raise InvalidOption(field, f"expected a sequence of names, such as ({names!r},), got the string {names!r}")
    return tuple(names)


@dataclass(frozen=True)
class Topology:
    """Several groups: `groups` has the members of each group, `sends` the groups that each group may send to."""

    groups: Mapping[str, Sequence[int]]
    sends: Mapping[str, Sequence[str]]

    def __post_init__(self) -> None:
        if not 1 <= len(self.groups) <= GROUPS_MAX:
            raise InvalidOption("topology.groups", f"expected 1 to {GROUPS_MAX} groups, got {len(self.groups)}")
        groups = {name: tuple(sorted(self.groups[name])) for name in sorted(self.groups)}
        seen: dict[int, str] = {}
        for name, members in groups.items():
            if not name or not members:
                raise InvalidOption(
                    "topology.groups", f"expected a name and at least one member, got {name!r} with members {members}"
                )
            for member in members:
                checked_member(member)
                if member in seen:
                    raise InvalidOption(
                        "topology.groups",
                        f"member {member} is in {seen[member]!r} and in {name!r}; each member belongs to one group",
                    )
                seen[member] = name
        sends = {name: group_names("topology.sends", listed) for name, listed in self.sends.items()}
        for name in (*sends, *(to for listed in sends.values() for to in listed)):
            if name not in groups:
                raise InvalidOption("topology.sends", f"expected one of the groups {', '.join(groups)}, got {name!r}")
        object.__setattr__(self, "groups", groups)
        object.__setattr__(self, "sends", {name: tuple(sorted(set(sends.get(name, ())))) for name in groups})

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The group names; a name's position is the group's index on the wire."""
        return tuple(self.groups)

    @cached_property
    def members(self) -> tuple[int, ...]:
        """The members of all groups."""
        return tuple(sorted(member for members in self.groups.values() for member in members))

    @cached_property
    def _group_by_member(self) -> dict[int, str]:
        return {member: name for name, members in self.groups.items() for member in members}

    def group_of(self, member: int) -> str:
        """The group that a member belongs to: group(p) in paper 003."""
        if member not in self._group_by_member:
            raise InvalidOption(
                "topology.groups", f"member {member} is in none of the groups {', '.join(self.names)}; add it to one"
            )
        return self._group_by_member[member]

    def receivers_from(self, group: str) -> tuple[str, ...]:
        """The groups that `group` may send to: receiversFrom(G) in paper 003."""
        return tuple(self.sends[group])

    def senders_to(self, group: str) -> tuple[str, ...]:
        """The groups that may send to `group`: sendersTo(G) in paper 003."""
        return tuple(name for name in self.names if group in self.sends[name])

    def blockers(self, destinations: Iterable[str]) -> tuple[str, ...]:
        """The groups whose barrier these destinations need before they deliver a message: blockers(m) in paper 003."""
        receivers = frozenset(destinations)
        return tuple(name for name in self.names if receivers.intersection(self.sends[name]))

    def connected(self, one: str, other: str) -> bool:
        """Whether two groups may exchange datagrams: one of them may send to the other."""
        return one == other or other in self.sends[one] or one in self.sends[other]

    def neighbours(self, group: str) -> tuple[str, ...]:
        """The groups that `group` exchanges datagrams with, itself included."""
        return tuple(name for name in self.names if self.connected(group, name))

    def check_destinations(self, source: str, destinations: Sequence[str]) -> None:
        """Raise DestinationNotAllowed unless `source` may send to all these groups, and at least one is given."""
        if not destinations:
            raise DestinationNotAllowed(source, (), self.receivers_from(source))
        outside = tuple(name for name in destinations if name not in self.sends[source])
        if outside:
            raise DestinationNotAllowed(source, outside, self.receivers_from(source))

    def mask(self, names: Iterable[str]) -> int:
        """A set of groups as a bit mask: the bit of each group is its index on the wire."""
        mask = 0
        for name in names:
            mask |= 1 << self._index[name]
        return mask

    def names_in_mask(self, mask: int) -> tuple[str, ...]:
        """The groups of a bit mask."""
        return tuple(name for index, name in enumerate(self.names) if mask >> index & 1)

    def index(self, name: str) -> int:
        """The index of a group on the wire."""
        return self._index[name]

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.names)}

    def members_of(self, names: Iterable[str]) -> tuple[int, ...]:
        """All members of these groups."""
        return tuple(sorted({member for name in names for member in self.groups[name]}))


@dataclass(frozen=True)
class Multigroup:
    """The options of a quasi-genuine order.

    `liveness` is "on_demand" (paper 003, Algorithm 3: a group that needs a barrier requests it) or "periodic"
    (Algorithm 2: a group that has sent nothing for `barrier_threshold` sends a barrier). `window` is how long a message
    is held before it is proposed, so that earlier ones can catch up (paper 003: w(p)); with None, members measure it.
    Both are durations with a unit, such as "20ms". `optimistic` delivers a message early at the end of its window.
    """

    topology: Topology
    liveness: Liveness = "on_demand"
    barrier_threshold: str = field(default="20ms", compare=False)
    window: str | None = field(default="0ms", compare=False)
    optimistic: bool = False
    barrier_threshold_ns: int = field(init=False, repr=False)
    window_ns: int | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        window_ns = None if self.window is None else duration_ns(self.window, "window")
        object.__setattr__(self, "barrier_threshold_ns", duration_ns(self.barrier_threshold, "barrier_threshold"))
        object.__setattr__(self, "window_ns", window_ns)
        if self.liveness not in LIVENESS:
            raise InvalidOption("barriers", f"expected {' or '.join(LIVENESS)}, got {self.liveness!r}")
        if self.barrier_threshold_ns < 1:
            raise InvalidOption("barrier_threshold", f"expected a time above zero, got {self.barrier_threshold_ns} ns")
        if self.optimistic and self.window_ns == 0:
            raise InvalidOption(
                "window", "optimistic delivery needs a window above zero, got 0; give a duration, or None to measure it"
            )

    @classmethod
    def of_ns(
        cls,
        topology: Topology,
        liveness: Liveness,
        barrier_threshold_ns: int,
        window_ns: int | None = 0,
        optimistic: bool = False,
    ) -> Multigroup:
        """The options with the durations in nanoseconds."""
        window = None if window_ns is None else exact_duration_text(window_ns)
        return cls(topology, liveness, exact_duration_text(barrier_threshold_ns), window, optimistic)


def multigroup_of(topology: object) -> Multigroup | None:
    """The `topology` argument of `join` as a Multigroup; a Topology alone gets the default options."""
    if topology is None or isinstance(topology, Multigroup):
        return topology
    if isinstance(topology, Topology):
        return Multigroup(topology)
    raise InvalidOption("topology", f"expected a Topology or a Multigroup, got {type(topology).__name__}")
