"""Which group may send to which (paper 003, assumption A1): what a quasi-genuine order is told by the application.

The relation may be asymmetric and may have cycles. A group sends to itself only if the relation says so. Groups talk
to one another only where one may send to the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias, get_args

from unisono.errors import DestinationNotAllowed, InvalidOption
from unisono.model.ids import checked_member

GROUPS_MAX = 64
"""A set of groups travels as a number of 64 bits."""
Liveness: TypeAlias = Literal["on_demand", "periodic"]
LIVENESS: tuple[Liveness, ...] = get_args(Liveness)


def group_names(field: str, names: Iterable[str]) -> tuple[str, ...]:
    """Names of groups. A text is a sequence of letters too, and taken for a slip."""
    if isinstance(names, str):
        raise InvalidOption(field, f"a sequence of names is needed, such as ({names!r},), not the text {names!r}")
    return tuple(names)


@dataclass(frozen=True)
class Topology:
    """`groups` says who is in which group, `sends` to which groups each group may send."""

    groups: Mapping[str, Sequence[int]]
    sends: Mapping[str, Sequence[str]]

    def __post_init__(self) -> None:
        if not 1 <= len(self.groups) <= GROUPS_MAX:
            raise InvalidOption("topology.groups", f"1 to {GROUPS_MAX} groups are possible, not {len(self.groups)}")
        groups = {name: tuple(sorted(self.groups[name])) for name in sorted(self.groups)}
        seen: dict[int, str] = {}
        for name, members in groups.items():
            if not name or not members:
                raise InvalidOption("topology.groups", f"a group has a name and a member, and {name!r} does not")
            for member in members:
                checked_member(member)
                if member in seen:
                    raise InvalidOption(
                        "topology.groups", f"member {member} is in {seen[member]!r} and in {name!r}: one group each"
                    )
                seen[member] = name
        sends = {name: group_names("topology.sends", listed) for name, listed in self.sends.items()}
        for name in (*sends, *(to for listed in sends.values() for to in listed)):
            if name not in groups:
                raise InvalidOption("topology.sends", f"{name!r} is none of the groups {', '.join(groups)}")
        object.__setattr__(self, "groups", groups)
        object.__setattr__(self, "sends", {name: tuple(sorted(set(sends.get(name, ())))) for name in groups})

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The groups in the order in which numbers stand for them."""
        return tuple(self.groups)

    @cached_property
    def members(self) -> tuple[int, ...]:
        """Everybody."""
        return tuple(sorted(member for members in self.groups.values() for member in members))

    @cached_property
    def _group_by_member(self) -> dict[int, str]:
        return {member: name for name, members in self.groups.items() for member in members}

    def group_of(self, member: int) -> str:
        """group(p)."""
        if member not in self._group_by_member:
            raise InvalidOption("topology.groups", f"member {member} is in none of the groups")
        return self._group_by_member[member]

    def receivers_from(self, group: str) -> tuple[str, ...]:
        """receiversFrom(G): the groups that can get a message from G."""
        return tuple(self.sends[group])

    def senders_to(self, group: str) -> tuple[str, ...]:
        """sendersTo(G): the groups from which G can get a message."""
        return tuple(name for name in self.names if group in self.sends[name])

    def blockers(self, destinations: Iterable[str]) -> tuple[str, ...]:
        """blockers(m): the groups whose barrier somebody needs in order to deliver m."""
        wanted = frozenset(destinations)
        return tuple(name for name in self.names if wanted.intersection(self.sends[name]))

    def connected(self, one: str, other: str) -> bool:
        """Whether the two may exchange datagrams at all."""
        return one == other or other in self.sends[one] or one in self.sends[other]

    def neighbours(self, group: str) -> tuple[str, ...]:
        """The groups that G is related to, itself included."""
        return tuple(name for name in self.names if self.connected(group, name))

    def check_destinations(self, source: str, destinations: Sequence[str]) -> None:
        """Raise DestinationNotAllowed if `source` may not send to all of these."""
        if not destinations:
            raise DestinationNotAllowed(source, (), self.receivers_from(source))
        outside = tuple(name for name in destinations if name not in self.sends[source])
        if outside:
            raise DestinationNotAllowed(source, outside, self.receivers_from(source))

    def mask(self, names: Iterable[str]) -> int:
        """A set of groups as a number."""
        mask = 0
        for name in names:
            mask |= 1 << self._index[name]
        return mask

    def names_in_mask(self, mask: int) -> tuple[str, ...]:
        """The groups in a set that came as a number."""
        return tuple(name for index, name in enumerate(self.names) if mask >> index & 1)

    def index(self, name: str) -> int:
        """The number that stands for a group."""
        return self._index[name]

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.names)}

    def members_of(self, names: Iterable[str]) -> tuple[int, ...]:
        """All members of these groups, each once."""
        return tuple(sorted({member for name in names for member in self.groups[name]}))


@dataclass(frozen=True)
class Multigroup:
    """What a quasi-genuine order runs by.

    `liveness` is "on_demand" (Algorithm 3: barriers are asked for by who needs them) or "periodic" (Algorithm 2: a
    group that has been silent for `barrier_threshold_ns` says so). `window_ns` is w(p), how long a message is held
    before it is proposed, so that earlier ones catch up; None has it measured. `optimistic` delivers a message early
    at the end of its window.
    """

    topology: Topology
    liveness: Liveness = "on_demand"
    barrier_threshold_ns: int = 20_000_000
    window_ns: int | None = 0
    optimistic: bool = False

    def __post_init__(self) -> None:
        if self.liveness not in LIVENESS:
            raise InvalidOption("barriers", f"{' or '.join(LIVENESS)} is possible, not {self.liveness!r}")
        if self.barrier_threshold_ns < 1:
            raise InvalidOption("barrier_threshold", "a time above zero is needed")
        if self.window_ns is not None and self.window_ns < 0:
            raise InvalidOption("window", f"a duration cannot be negative, and {self.window_ns} ns is")
        if self.optimistic and self.window_ns == 0:
            raise InvalidOption("window", "optimistic delivery waits for a window: give one, or have it measured")


def multigroup_of(topology: object) -> Multigroup | None:
    """What `join` was given: a topology alone, or with how it is run by."""
    if topology is None or isinstance(topology, Multigroup):
        return topology
    if isinstance(topology, Topology):
        return Multigroup(topology)
    raise InvalidOption("topology", f"a Topology or a Multigroup is needed, not {type(topology).__name__}")
