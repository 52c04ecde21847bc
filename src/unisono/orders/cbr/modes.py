"""The modes of the CBR order as data: figure 2 of paper 000, and which inputs have an effect in which mode."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """The modes of figure 2, and the end that the paper leaves out."""

    GET_RATE = "GetRate"
    FIRST_RESERVE = "FirstReserve"
    DET_ORDER = "DetOrder"
    DELIVER_MESSAGES = "DeliverMessages"
    RESERVE = "Reserve"
    LEFT = "Left"


class Action(StrEnum):
    """What changes the mode."""

    INIT_RATE = "init-rate"
    RESERVE = "reserve"
    NEW_RATE = "new-rate"
    START_DELIVER = "start-deliver"
    LEAVE = "leave"


CHANGES: dict[tuple[Mode, Action], Mode] = {
    (Mode.GET_RATE, Action.INIT_RATE): Mode.FIRST_RESERVE,
    (Mode.GET_RATE, Action.NEW_RATE): Mode.GET_RATE,
    (Mode.FIRST_RESERVE, Action.RESERVE): Mode.DET_ORDER,
    (Mode.FIRST_RESERVE, Action.NEW_RATE): Mode.FIRST_RESERVE,  # 000-8: as in DetOrder, Porder is not known yet
    (Mode.DET_ORDER, Action.NEW_RATE): Mode.FIRST_RESERVE,
    (Mode.DET_ORDER, Action.START_DELIVER): Mode.DELIVER_MESSAGES,
    (Mode.DELIVER_MESSAGES, Action.NEW_RATE): Mode.RESERVE,
    (Mode.RESERVE, Action.NEW_RATE): Mode.RESERVE,
    (Mode.RESERVE, Action.RESERVE): Mode.DELIVER_MESSAGES,
    **{(mode, Action.LEAVE): Mode.LEFT for mode in Mode if mode is not Mode.LEFT},
}
"""Figure 2: the mode after each action. Reserve lasts until the new rate is in force; deliveries go on in it."""


class Input(StrEnum):
    """What can happen to the automaton."""

    SUBMIT = "app-mcast"
    HELLO = "rate received"
    DATA = "net-receive"
    RESERVATION = "new-rate or reservation received"
    NEW_RATE = "new-rate"
    LEAVE = "leave"


TAKES: dict[Mode, frozenset[Input]] = {
    Mode.GET_RATE: frozenset({Input.HELLO, Input.NEW_RATE, Input.LEAVE}),
    Mode.FIRST_RESERVE: frozenset({Input.HELLO, Input.NEW_RATE, Input.LEAVE}),
    Mode.DET_ORDER: frozenset({Input.HELLO, Input.DATA, Input.NEW_RATE, Input.LEAVE}),
    Mode.DELIVER_MESSAGES: frozenset(Input),
    Mode.RESERVE: frozenset(Input),
    Mode.LEFT: frozenset(),
}
"""Which inputs have an effect in which mode; any other pair is ignored (a submission is not taken, and waits)."""

RUNNING = frozenset({Mode.DELIVER_MESSAGES, Mode.RESERVE})
