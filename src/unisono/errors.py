"""All exceptions of unisono. The values that a message states are also attributes of the exception."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias


class UnisonoError(Exception):
    """Base class of all errors that unisono raises."""


class InvalidOption(UnisonoError, ValueError):
    """An option has an invalid value. The message names the option, the expected value and the given one."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class ReservationRefused(UnisonoError):
    """The link cannot carry the requested rate; `free_bytes_per_s` is the rate that it can still carry."""

    def __init__(self, asked_bytes_per_s: int, free_bytes_per_s: int, capacity_bytes_per_s: int) -> None:
        super().__init__(
            f"reservation refused: requested {asked_bytes_per_s:,} B/s, but the link has {free_bytes_per_s:,} B/s free "
            f"of its declared {capacity_bytes_per_s:,} B/s; lower the burst or the largest message, use longer slots, "
            "or declare a faster link"
        )
        self.asked_bytes_per_s = asked_bytes_per_s
        self.free_bytes_per_s = free_bytes_per_s
        self.capacity_bytes_per_s = capacity_bytes_per_s


class Infeasible(UnisonoError):
    """The requested deadline cannot be met; `offered_ns` is the smallest latency bound that is possible."""

    def __init__(self, asked_ns: int, offered_ns: int, arithmetic: str, alternative: str = "") -> None:
        """`arithmetic` shows in words why the deadline cannot be met.

        `alternative` describes the best offer in words. Without it, the message names `offered_ns`.
        """
        offered = alternative or f"{offered_ns / 1e6:g} ms"
        super().__init__(
            f"a deadline of {asked_ns / 1e6:g} ms is not feasible: {arithmetic}; the best offer is {offered}"
        )
        self.asked_ns = asked_ns
        self.offered_ns = offered_ns


class MessageTooLarge(UnisonoError, ValueError):
    """A message is larger than the `max_message` declared when the group was joined."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"message of {size:,} bytes is larger than the declared maximum of {limit:,}; "
            "join with a larger max_message, or split the message"
        )
        self.size = size
        self.limit = limit


class DestinationNotAllowed(UnisonoError, ValueError):
    """The sender's group may not send to a destination of the message (paper 003, assumption A1)."""

    def __init__(self, source: str, disallowed: tuple[str, ...], allowed: tuple[str, ...]) -> None:
        problem = f"may not send to {', '.join(disallowed)}" if disallowed else "needs at least one destination group"
        super().__init__(
            f"group {source!r} {problem}; the topology lets it send to {', '.join(allowed) or 'no group'}; "
            "its members can change that with change_topology"
        )
        self.source = source
        self.disallowed = disallowed
        self.allowed = allowed


Outcome: TypeAlias = Literal["answers", "differs", "rejected", "refused", "unreachable", "silent"]
"""What came back from the address of a peer while the group formed.

"answers": valid datagrams. "differs": datagrams of a member with other options or a wrong clock. "rejected": only
invalid datagrams. "refused": no process has the port open. "unreachable": another error of the network. "silent":
nothing.
"""


@dataclass(frozen=True, slots=True)
class AddressTried:
    """The address of a peer, and what came back from it while the group formed."""

    member: int
    address: str
    outcome: Outcome
    text: str
    """The outcome in words, with details."""


class FormationTimeout(UnisonoError, TimeoutError):
    """The group did not form in time.

    `missing` are the members that did not respond. `tried` has the address of each peer, with what came back from it;
    it is empty if the addresses were not found.
    """

    def __init__(
        self,
        group: str,
        timeout_s: float,
        missing: tuple[int, ...],
        hint: str = "",
        tried: tuple[AddressTried, ...] = (),
    ) -> None:
        reason = f"missing: member {', '.join(map(str, missing))}" if missing else "not all answers arrived"
        text = f"group {group!r} did not form within {timeout_s:g} s; {reason}{f'; {hint}' if hint else ''}"
        lines = [f"member {each.member} at {each.address}: {each.text}" for each in tried]
        super().__init__("\n  ".join([text, *lines]))
        self.group = group
        self.missing = missing
        self.tried = tried
        self._arguments = group, timeout_s, missing, hint, tried

    def __reduce__(self) -> tuple[type[FormationTimeout], tuple[object, ...]]:
        """Let pickle rebuild the error from the arguments."""
        return FormationTimeout, self._arguments


class PlanMismatch(UnisonoError):
    """The group cannot form: `peer` has joined with another value of `option`. `ours` and `theirs` are the values."""

    def __init__(self, peer: int, option: str, ours: object, theirs: object, text: str) -> None:
        super().__init__(text)
        self.peer = peer
        self.option = option
        self.ours = ours
        self.theirs = theirs


class GroupClosed(UnisonoError):
    """The group cannot be used any more: this member has left it or has stopped."""


class Timeout(UnisonoError, TimeoutError):
    """What the caller waited for did not happen within the `timeout` that it gave."""


class NoMajority(Timeout):
    """What the caller waited for cannot happen now: this member reaches no majority of the group."""


class WrongEventLoop(UnisonoError, RuntimeError):
    """A group was called from another event loop or thread than the one that joined it; the call has done nothing."""

    def __init__(self) -> None:
        super().__init__(
            "this group belongs to another event loop: call its methods in the event loop in which join was awaited; "
            "from another thread or event loop, send with group.submit_threadsafe(message)"
        )


class StorageError(UnisonoError):
    """Stable storage is missing, damaged, read-only or full; the message names the file and says what to do."""


class InvariantViolated(UnisonoError):
    """A member was about to break a safety invariant. This is a defect of unisono; the member stops at once.

    `invariant` is the name of the invariant; docs/architecture.md lists these names. `expected` and `found` are the
    values that the member compared. A member checks only its own decisions, so no datagram can cause this error.
    """

    def __init__(self, invariant: str, member: int, text: str, expected: str, found: str) -> None:
        super().__init__(invariant, member, text, expected, found)  # so that pickle can rebuild the error
        self.invariant = invariant
        self.member = member
        self.text = text
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        return (
            f"member {self.member} has stopped: {self.text} (expected {self.expected}, found {self.found}); "
            "this is a defect of unisono, please report it"
        )


class MissingDependency(UnisonoError):
    """A needed program, package, service or address is missing or unusable; the message says which, and what to do."""


class AddressInUse(UnisonoError):
    """Another process, or another member of this one, already uses the UDP address of this member."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(
            f"UDP port {port} of {host} is in use; stop the process that uses it (`ss -ulpn sport = :{port}` shows "
            "it) or give this member another port"
        )
        self.host = host
        self.port = port


class MemberProcessFailed(UnisonoError):
    """A member process on this machine ended early, or did not start or finish in time; the message names it."""


class ScenarioError(UnisonoError, ValueError):
    """A scenario file is invalid. The message names the file, the field and the expected value."""

    def __init__(self, source: str, field: str, problem: str) -> None:
        super().__init__(f"{source}: {field}: {problem}")
        self.source = source
        self.field = field
        self.problem = problem


class InvalidFile(UnisonoError, ValueError):
    """A file is invalid. The message names the file, the line, the field and the expected value."""

    def __init__(self, source: str, line: int, field: str, problem: str) -> None:
        super().__init__(f"{source}:{line}: {field}: {problem}")
        self.source = source
        self.line = line
        self.field = field
        self.problem = problem


class ConfigError(InvalidFile):
    """A configuration file is invalid."""


class SlaError(InvalidFile):
    """A file of service level agreements is invalid."""
