"""Replicated state with two grades of delivery: early deliveries give an optimistic state, final ones correct it.

Paper 003 §3.2: each object has a conservative state, an optimistic state, and a queue of the commands between the two.
`Replicated` keeps the state of a state machine on a group. `Dict`, `Set`, `Counter` and `Log` are ready-made machines;
other machines implement `StateMachine`. Tests: tests/property/test_replica.py and tests/process/test_replicated.py.
"""

from unisono.replica.replica import MistakeCounts, Replica
from unisono.replica.replicated import Replicated
from unisono.replica.state_machine import Key, ObjectView, StateMachine, UndeclaredObject
from unisono.replica.structures import Counter, Dict, Log, Set

__all__ = [
    "Counter",
    "Dict",
    "Key",
    "Log",
    "MistakeCounts",
    "ObjectView",
    "Replica",
    "Replicated",
    "Set",
    "StateMachine",
    "UndeclaredObject",
]
