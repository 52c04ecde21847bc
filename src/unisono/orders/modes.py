"""The modes of the VBR and leader orders, and the inputs that each mode accepts (paper 000 figure 6)."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """The modes of figure 6, and LEFT, which the paper omits."""

    GET_RATE = "GetRate"
    DET_RATE = "DetRate"
    DELIVER_MESSAGES = "DeliverMessages"
    LEFT = "Left"


class Input(StrEnum):
    """The inputs of the automaton that depend on its mode, by their names in the paper."""

    SUBMIT = "app-mcast"
    HELLO = "rate received"
    DATA = "net-receive"
    NEW_RATE = "new-rate"
    LEAVE = "leave"


ACCEPTED_INPUTS: dict[Mode, frozenset[Input]] = {
    Mode.GET_RATE: frozenset({Input.HELLO, Input.NEW_RATE, Input.LEAVE}),
    Mode.DET_RATE: frozenset({Input.HELLO, Input.DATA, Input.NEW_RATE, Input.LEAVE}),
    Mode.DELIVER_MESSAGES: frozenset(Input),
    Mode.LEFT: frozenset(),
}
"""The inputs that have an effect in each mode. Others are ignored; a submission is not accepted, and waits."""
