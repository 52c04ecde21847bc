"""The modes of the CBR order as data: figure 2 of paper 000, and which inputs have an effect in which mode."""

from __future__ import annotations

from enum import StrEnum


class CbrMode(StrEnum):
    """The modes of figure 2, and the end that the paper leaves out."""

    GET_RATE = "GetRate"
    FIRST_RESERVE = "FirstReserve"
    DET_ORDER = "DetOrder"
    DELIVER_MESSAGES = "DeliverMessages"
    RESERVE = "Reserve"
    LEFT = "Left"


class CbrAction(StrEnum):
    """What changes the mode."""

    INIT_RATE = "init-rate"
    RESERVE = "reserve"
    NEW_RATE = "new-rate"
    START_DELIVER = "start-deliver"
    LEAVE = "leave"


CBR_TRANSITIONS: dict[tuple[CbrMode, CbrAction], CbrMode] = {
    (CbrMode.GET_RATE, CbrAction.INIT_RATE): CbrMode.FIRST_RESERVE,
    (CbrMode.GET_RATE, CbrAction.NEW_RATE): CbrMode.GET_RATE,
    (CbrMode.FIRST_RESERVE, CbrAction.RESERVE): CbrMode.DET_ORDER,
    (
        CbrMode.FIRST_RESERVE,
        CbrAction.NEW_RATE,
    ): CbrMode.FIRST_RESERVE,  # 000-8: as in DetOrder, Porder is not known yet
    (CbrMode.DET_ORDER, CbrAction.NEW_RATE): CbrMode.FIRST_RESERVE,
    (CbrMode.DET_ORDER, CbrAction.START_DELIVER): CbrMode.DELIVER_MESSAGES,
    (CbrMode.DELIVER_MESSAGES, CbrAction.NEW_RATE): CbrMode.RESERVE,
    (CbrMode.RESERVE, CbrAction.NEW_RATE): CbrMode.RESERVE,
    (CbrMode.RESERVE, CbrAction.RESERVE): CbrMode.DELIVER_MESSAGES,
    **{(mode, CbrAction.LEAVE): CbrMode.LEFT for mode in CbrMode if mode is not CbrMode.LEFT},
}
"""Figure 2: the mode after each action. Reserve lasts until the new rate is in force; deliveries go on in it."""


class CbrInput(StrEnum):
    """What can happen to the automaton."""

    SUBMIT = "app-mcast"
    HELLO = "rate received"
    DATA = "net-receive"
    RESERVATION = "new-rate or reservation received"
    NEW_RATE = "new-rate"
    LEAVE = "leave"


CBR_ACCEPTED_INPUTS: dict[CbrMode, frozenset[CbrInput]] = {
    CbrMode.GET_RATE: frozenset({CbrInput.HELLO, CbrInput.NEW_RATE, CbrInput.LEAVE}),
    CbrMode.FIRST_RESERVE: frozenset({CbrInput.HELLO, CbrInput.NEW_RATE, CbrInput.LEAVE}),
    CbrMode.DET_ORDER: frozenset({CbrInput.HELLO, CbrInput.DATA, CbrInput.NEW_RATE, CbrInput.LEAVE}),
    CbrMode.DELIVER_MESSAGES: frozenset(CbrInput),
    CbrMode.RESERVE: frozenset(CbrInput),
    CbrMode.LEFT: frozenset(),
}
"""Which inputs have an effect in which mode; any other pair is ignored (a submission is not taken, and waits)."""

CBR_RUNNING = frozenset({CbrMode.DELIVER_MESSAGES, CbrMode.RESERVE})
