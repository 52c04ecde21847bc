"""Scripted runs of an ideal group: perform given actions, and compare the orders in which members consumed."""

from tests.worlds.ideal_views import Action, IdealGroup


def perform_all(group: IdealGroup, *actions: Action) -> None:
    for action in actions:
        assert action in group.enabled(), f"{action} is not enabled; enabled: {group.enabled()}"
        group.perform(action)


def receive_from(sender: int, receiver: int, count: int = 1) -> list[Action]:
    """`receiver` receives the next `count` bodies of `sender`."""
    return [("receive", receiver, sender, 1)] * count


def same_for_all(members: tuple[int, ...], order: list[str]) -> dict[int, list[str]]:
    return dict.fromkeys(members, order)


def consumed_orders(group: IdealGroup) -> dict[int, list[str]]:
    return {peer.member: [str(ref) for ref in peer.consumed] for peer in group.survivors()}


def finish_without(group: IdealGroup, kinds: set[str]) -> None:
    while actions := [action for action in group.enabled() if action[0] not in kinds]:
        group.perform(actions[0])
