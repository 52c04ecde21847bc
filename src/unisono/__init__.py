"""unisono: group communication whose deliveries are in one order and on time."""

from __future__ import annotations

from unisono.config import Beacon, Config, Dns, Network, Observe
from unisono.errors import (
    AddressInUse,
    ConfigError,
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
from unisono.model.options import (
    Cbr,
    Consensus,
    Leader,
    OrderOptions,
    Priority,
    QuasiGenuine,
    Service,
    Timestamp,
    Vbr,
)
from unisono.model.policy import Redundancy, StateHolder
from unisono.model.sla import MetricRow
from unisono.model.topology import Multigroup, Topology
from unisono.model.units import Rate
from unisono.qos.plan.admission import Link
from unisono.qos.plan.choice import GroupPlan

__version__ = "0.1.0"
"""The version of the installed package; pyproject.toml states the same."""

__all__ = [
    "AddressInUse",
    "Batch",
    "Beacon",
    "Blocked",
    "Cbr",
    "ClockViolation",
    "Config",
    "ConfigError",
    "Consensus",
    "Delivery",
    "DestinationNotAllowed",
    "Dns",
    "Event",
    "FormationTimeout",
    "Grade",
    "Group",
    "GroupClosed",
    "GroupPlan",
    "Infeasible",
    "InvalidOption",
    "Leader",
    "Link",
    "MessageTooLarge",
    "MetricRow",
    "MissingDependency",
    "Multigroup",
    "Network",
    "Notice",
    "NoticeKind",
    "Observe",
    "OrderOptions",
    "Priority",
    "QuasiGenuine",
    "Rate",
    "Redundancy",
    "Rejoining",
    "ReservationRefused",
    "Sending",
    "Service",
    "SlaCleared",
    "SlaError",
    "SlaViolation",
    "StateHolder",
    "Stats",
    "StorageError",
    "Timeout",
    "Timestamp",
    "TimingChange",
    "Topology",
    "TopologyChange",
    "UnisonoError",
    "Vbr",
    "View",
    "ViewChange",
    "Violation",
    "ViolationKind",
    "WrongEventLoop",
    "join",
]
