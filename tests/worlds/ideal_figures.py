"""The runs that Figures 2 and 3 of paper 004 show, played in an ideal group."""

from __future__ import annotations

from tests.worlds.ideal_views import IdealGroup

from unisono.model.message_set import MessageRef

_LOW, _MEDIUM, _HIGH = 0, 1, 2

FIGURE_2_NAMES = {
    MessageRef(1, 1, 0): "m",
    MessageRef(1, 1, 1): "n",
    MessageRef(1, 1, 2): "o",
    MessageRef(1, 1, 3): "h",
}
FIGURE_3_NAMES = {MessageRef(1, 1, 0): "l", MessageRef(1, 1, 1): "m", MessageRef(2, 1, 0): "h"}


def figure_2() -> IdealGroup:
    """Three processes hold m, n and o; process 1 has consumed m when the urgent h comes."""
    group = IdealGroup({1: [_LOW, _LOW, _LOW, _HIGH], 2: [], 3: []})
    for _ in range(3):
        group.perform(("send", 1))
        _deliver_everything(group)
    group.perform(("consume", 1))
    group.perform(("send", 1))
    _deliver_everything(group)
    _finish(group)
    return group


def figure_3() -> IdealGroup:
    """Two processes hold l; m and the more urgent h come at once, and are inserted in two orders."""
    group = IdealGroup({1: [_LOW, _MEDIUM], 2: [_HIGH]})
    group.perform(("send", 1))
    _deliver_everything(group)
    group.perform(("send", 1))
    group.perform(("send", 2))
    for at, sender in ((1, 2), (1, 1), (2, 1), (2, 2)):  # 3.i: each process locks l for both, in its own order
        group.perform(("receive", at, sender, 1))
    for at, sender in ((1, 1), (1, 1), (1, 2), (2, 2), (2, 2), (2, 1)):  # 3.iii: m at process 1, h at process 2
        group.perform(("receive", at, sender, 1))
    _finish(group)
    return group


def _deliver_everything(group: IdealGroup) -> None:
    """Everything but consuming and sending."""
    while actions := [action for action in group.enabled() if action[0] not in {"consume", "send"}]:
        group.perform(actions[0])


def _finish(group: IdealGroup) -> None:
    _deliver_everything(group)
    while actions := group.enabled():
        group.perform(actions[-1])
