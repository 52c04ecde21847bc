"""Sockets and wall clocks: where a stack meets the machine.

`clock` (local time that never steps back), `alarm` (precise timers), `transport` (UDP, multicast or fan-out),
`driver` (one stack under asyncio), `local` (a cluster of processes on this machine), `node` (one of its members).
No protocol decision is made here. Tests: tests/unit/test_{clock,alarm,transport}.py, tests/process/.
"""
