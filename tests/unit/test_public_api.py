"""The public API: its names and docstrings, a light import, and packaged types."""

import inspect
import subprocess
import sys
from importlib import resources

import unisono

NAMES = [
    "AddressInUse",
    "AddressTried",
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
    "Gap",
    "Grade",
    "Group",
    "GroupClosed",
    "GroupPlan",
    "Infeasible",
    "InvalidOption",
    "LateDeliveries",
    "Leader",
    "Link",
    "MessageTooLarge",
    "MetricRow",
    "MissingDependency",
    "Multigroup",
    "Network",
    "NoMajority",
    "Notice",
    "NoticeKind",
    "Observe",
    "OrderOptions",
    "PeerStatus",
    "PlanMismatch",
    "Priority",
    "QuasiGenuine",
    "Rate",
    "Redundancy",
    "Rejoining",
    "ReservationRefused",
    "SeenViolations",
    "Sending",
    "Service",
    "SlaCleared",
    "SlaError",
    "SlaViolation",
    "StateHolder",
    "Stats",
    "Status",
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
HEAVY = ["numpy", "pyarrow", "rich", "pyspark"]


def test_exactly_these_names_are_exported() -> None:
    assert unisono.__all__ == NAMES
    assert unisono.__all__ == sorted(unisono.__all__)


def test_every_export_has_a_docstring() -> None:
    assert unisono.__doc__
    for name in NAMES:
        thing = getattr(unisono, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert inspect.getdoc(thing), name


def test_every_public_method_has_a_docstring() -> None:
    for kind in (unisono.Group, unisono.Link, unisono.Batch):
        for name, member in inspect.getmembers(kind):
            if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                assert inspect.getdoc(member), f"{kind.__name__}.{name}"


def test_errors_have_one_base_class() -> None:
    for name in ("MissingDependency", "FormationTimeout", "GroupClosed", "Infeasible", "InvalidOption", "PlanMismatch"):
        assert issubclass(getattr(unisono, name), unisono.UnisonoError)
    assert issubclass(unisono.MessageTooLarge, ValueError)
    assert issubclass(unisono.FormationTimeout, TimeoutError)
    assert issubclass(unisono.Timeout, TimeoutError)
    assert issubclass(unisono.NoMajority, unisono.Timeout)
    assert issubclass(unisono.WrongEventLoop, RuntimeError)


def test_importing_the_package_imports_no_heavy_dependency() -> None:
    code = f"import sys, unisono; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_types_are_packaged() -> None:
    assert resources.files("unisono").joinpath("py.typed").is_file()
