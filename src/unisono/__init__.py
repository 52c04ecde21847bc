"""unisono: group communication whose deliveries are in one order and on time."""

from __future__ import annotations

from unisono.errors import (
    AddressInUse,
    DestinationNotAllowed,
    FormationTimeout,
    GroupClosed,
    Infeasible,
    InvalidOption,
    MessageTooLarge,
    MissingDependency,
    ReservationRefused,
    SlaError,
    StorageError,
    Timeout,
    UnisonoError,
    WrongEventLoop,
)
from unisono.group import Event, Group, join
from unisono.model.events import (
    Batch,
    Blocked,
    ClockViolation,
    Delivery,
    Grade,
    Notice,
    NoticeKind,
    Rejoining,
    Sending,
    SlaCleared,
    SlaViolation,
    Stats,
    TimingChange,
    TopologyChange,
    View,
    ViewChange,
    Violation,
    ViolationKind,
)
from unisono.model.policy import Redundancy, StateHolder
from unisono.model.sla import MetricRow
from unisono.model.topology import Multigroup, Topology
from unisono.model.units import Rate
from unisono.qos.plan.admission import Link

__version__ = "0.1.0"
"""The version of the installed package; pyproject.toml states the same."""

__all__ = [
    "AddressInUse",
    "Batch",
    "Blocked",
    "ClockViolation",
    "Delivery",
    "DestinationNotAllowed",
    "Event",
    "FormationTimeout",
    "Grade",
    "Group",
    "GroupClosed",
    "Infeasible",
    "InvalidOption",
    "Link",
    "MessageTooLarge",
    "MetricRow",
    "MissingDependency",
    "Multigroup",
    "Notice",
    "NoticeKind",
    "Rate",
    "Redundancy",
    "Rejoining",
    "ReservationRefused",
    "Sending",
    "SlaCleared",
    "SlaError",
    "SlaViolation",
    "StateHolder",
    "Stats",
    "StorageError",
    "Timeout",
    "TimingChange",
    "Topology",
    "TopologyChange",
    "UnisonoError",
    "View",
    "ViewChange",
    "Violation",
    "ViolationKind",
    "WrongEventLoop",
    "join",
]
