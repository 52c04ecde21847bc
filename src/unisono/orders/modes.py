"""The modes of the slot orders and of the leader orders, and what has an effect in which (paper 000 figure 6)."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """The modes of figure 6, and the end that the paper leaves out."""

    GET_RATE = "GetRate"
    DET_RATE = "DetRate"
    DELIVER_MESSAGES = "DeliverMessages"
    LEFT = "Left"


class Input(StrEnum):
    """What can happen to the automaton."""

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
"""Which inputs have an effect in which mode; any other pair is ignored (a submission is not taken, and waits)."""
