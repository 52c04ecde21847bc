"""What can go wrong, as types: each error carries the figures that its message states."""

from __future__ import annotations


class UnisonoError(Exception):
    """Base of every error that unisono raises on purpose."""


class InvalidOption(UnisonoError, ValueError):
    """A rate, duration, size or other declared policy makes no sense; the message names the field."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class ReservationRefused(UnisonoError):
    """The link cannot carry what was asked for; `free_bytes_per_s` is what it could still carry."""

    def __init__(self, asked_bytes_per_s: int, free_bytes_per_s: int, capacity_bytes_per_s: int) -> None:
        super().__init__(
            f"reservation refused: {asked_bytes_per_s:,} B/s asked for, {free_bytes_per_s:,} B/s free of the "
            f"link's declared {capacity_bytes_per_s:,} B/s; lower the burst or the largest message, lengthen "
            "the slot, or declare a larger link"
        )
        self.asked_bytes_per_s = asked_bytes_per_s
        self.free_bytes_per_s = free_bytes_per_s
        self.capacity_bytes_per_s = capacity_bytes_per_s


class Infeasible(UnisonoError):
    """The quality of service asked for cannot be had; `offered_ns` is the best bound that can."""

    def __init__(self, asked_ns: int, offered_ns: int, arithmetic: str, alternative: str = "") -> None:
        """`instead` puts into words what can be offered where that is more than a bound."""
        offered = alternative or f"{offered_ns / 1e6:g} ms"
        super().__init__(
            f"a deadline of {asked_ns / 1e6:g} ms is not feasible: {arithmetic}; what can be offered is {offered}"
        )
        self.asked_ns = asked_ns
        self.offered_ns = offered_ns


class MessageTooLarge(UnisonoError, ValueError):
    """A message exceeds the size that was declared when the group was joined."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"message of {size:,} bytes is larger than the declared maximum of {limit:,}; "
            "join with a larger max_message, or split it"
        )
        self.size = size
        self.limit = limit


class DestinationNotAllowed(UnisonoError, ValueError):
    """A message is for a group that the sender's group may not send to (paper 003, assumption A1)."""

    def __init__(self, source: str, disallowed: tuple[str, ...], allowed: tuple[str, ...]) -> None:
        what = f"may not send to {', '.join(disallowed)}" if disallowed else "was given no group to send to"
        super().__init__(
            f"group {source!r} {what}; the topology lets it send to {', '.join(allowed) or 'nobody'}, and a member of "
            "it can have that changed (change_topology)"
        )
        self.source = source
        self.disallowed = disallowed
        self.allowed = allowed


class FormationTimeout(UnisonoError, TimeoutError):
    """The group did not form in time; `missing` are the members that were not heard from."""

    def __init__(self, group: str, timeout_s: float, missing: tuple[int, ...], hint: str = "") -> None:
        who = ", ".join(map(str, missing)) or "nobody, but their answers did not arrive"
        super().__init__(
            f"group {group!r} did not form within {timeout_s:g} s; missing: member {who}{f'; {hint}' if hint else ''}"
        )
        self.group = group
        self.missing = missing


class GroupClosed(UnisonoError):
    """The group has been left, or its driver has stopped."""


class StorageError(UnisonoError):
    """Stable storage is missing, damaged, read-only or full; the message names the file and says what to do."""


class MissingDependency(UnisonoError):
    """This machine lacks something that the work needs; the message says what to do."""


class ScenarioError(UnisonoError, ValueError):
    """A scenario file is wrong; names the file, the field and what was expected."""

    def __init__(self, source: str, field: str, problem: str) -> None:
        super().__init__(f"{source}: {field}: {problem}")
        self.source = source
        self.field = field
        self.problem = problem


class SlaError(UnisonoError, ValueError):
    """A file of service level agreements is wrong; names the file, the line, the field and what was expected."""

    def __init__(self, source: str, line: int, field: str, problem: str) -> None:
        super().__init__(f"{source}:{line}: {field}: {problem}")
        self.source = source
        self.line = line
        self.field = field
        self.problem = problem
