"""Switches the invariants that members check at run time off, so that a wrong member goes on.

With them, a member with a planted defect stops before a trace shows the defect, and its checker has nothing to find.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from unisono.agreement.membership.views import Membership
from unisono.agreement.paxos.acceptor import Acceptor
from unisono.orders.cbr.order import CbrOrder
from unisono.orders.consensus.order import ConsensusOrder
from unisono.orders.final.order import FinalOrder
from unisono.orders.leader.election import LeaderElection
from unisono.orders.packing import Pacer
from unisono.orders.vbr.order import VbrOrder
from unisono.runtime.driver import Driver
from unisono.stack import DeliveryCheck

RUNTIME_CHECKS: tuple[tuple[type, str], ...] = (
    (Acceptor, "check_promise"),
    (Acceptor, "check_accept"),
    (Acceptor, "check_decide"),
    (Membership, "check_view"),
    (Pacer, "check"),
    (CbrOrder, "check_porder"),
    (DeliveryCheck, "check"),
    (Driver, "check_room"),
    (FinalOrder, "check_position"),
    (LeaderElection, "check_promise"),
    (LeaderElection, "check_position"),
    (ConsensusOrder, "check_instance"),
    (VbrOrder, "check_send"),
    (VbrOrder, "check_delivery"),
)
"""Every method that checks an invariant at run time."""


@contextmanager
def unchecked_members() -> Iterator[None]:
    """Inside the block, no member stops because of a broken invariant."""

    def passes(*_: object) -> None:
        """Checks nothing."""

    with pytest.MonkeyPatch.context() as monkeypatch:
        for where, method in RUNTIME_CHECKS:
            monkeypatch.setattr(where, method, passes)
        yield
