"""Replicated state on the two grades of delivery: an optimistic state on what came early, corrected by what is final.

Paper 003 §3.2: each object has a conservative state, an optimistic one, and a queue of the commands that lie between.
`Replicated` keeps a machine's state on a group; `Dict`, `Set`, `Counter` and `Log` are ready-made machines, and whoever
writes one keeps `Machine`. The tests are in tests/property/test_replica.py and tests/process/test_replicated.py.
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
