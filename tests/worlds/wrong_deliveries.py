"""Lets members deliver in a wrong order, so that the checkers of traces have something to find."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from unisono.model.events import StackEvent
from unisono.orders.delivery_check import DeliveryCheck


def let_wrong_deliveries_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn the check of deliveries at run time off. With it, a member stops before its first wrong delivery."""

    def nothing(_: DeliveryCheck, events: Sequence[StackEvent]) -> None:
        del events

    monkeypatch.setattr(DeliveryCheck, "check", nothing)
