"""The public face: its names, their docstrings, what importing it costs, and that its types are packaged."""

import inspect
import subprocess
import sys
from importlib import resources

import unisono

NAMES = [
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
    "SlaCleared",
    "SlaError",
    "SlaViolation",
    "StateHolder",
    "Stats",
    "StorageError",
    "TimingChange",
    "Topology",
    "TopologyChange",
    "UnisonoError",
    "View",
    "ViewChange",
    "Violation",
    "ViolationKind",
    "join",
]
HEAVY = ["numpy", "pyarrow", "rich", "pyspark"]


def test_the_exports_are_these_and_no_others() -> None:
    assert unisono.__all__ == NAMES
    assert unisono.__all__ == sorted(unisono.__all__)


def test_every_export_explains_itself() -> None:
    assert unisono.__doc__
    for name in NAMES:
        thing = getattr(unisono, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert inspect.getdoc(thing), name


def test_what_a_user_calls_explains_itself() -> None:
    for kind in (unisono.Group, unisono.Link, unisono.Batch):
        for name, member in inspect.getmembers(kind):
            if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                assert inspect.getdoc(member), f"{kind.__name__}.{name}"


def test_errors_have_one_base() -> None:
    for name in ("MissingDependency", "FormationTimeout", "GroupClosed", "Infeasible", "InvalidOption"):
        assert issubclass(getattr(unisono, name), unisono.UnisonoError)
    assert issubclass(unisono.MessageTooLarge, ValueError)
    assert issubclass(unisono.FormationTimeout, TimeoutError)


def test_importing_is_light() -> None:
    code = f"import sys, unisono; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_types_are_packaged() -> None:
    assert resources.files("unisono").joinpath("py.typed").is_file()
