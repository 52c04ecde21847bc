"""Sockets and wall clocks: where a stack meets the machine.

`clock` (local time that never steps back), `alarm` (precise timers), `transport` (UDP, multicast or fan-out),
`batching` and `sockets` (what it is made of), `driver` (one stack under asyncio).
No protocol decision is made here. Tests: tests/unit/test_{clock,alarm,transport}.py, tests/process/.
"""
