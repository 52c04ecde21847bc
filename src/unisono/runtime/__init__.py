"""Connects a stack to the machine: sockets, clocks, timers, files and asyncio.

- `timers`: the local clock, which never steps back, and a precise alarm
- `socket_setup`, `udp`: UDP by multicast or unicast, many datagrams per system call
- `fault_injection`: loses, duplicates and delays received datagrams, for `unisono demo` and tests
- `storage`: the file of a durable order
- `driver`: runs one stack under asyncio
- `watch`, `log_lines`: what a member writes with `logging`, and what it counts
- `member_status`, `status_socket`: the status of a member, and how `unisono status` reads it
- `waiting`: time-outs of calls
- `environment`: the interfaces to clock, transport and timers, which `unisono.testing` implements in memory
- `peers`, `discovery`: where the other members are
- `setup`: the checked options of `join`

No module here makes a protocol decision. Tests: tests/unit/test_{clock,timers,transport,storage,driver}.py and
tests/process/.
"""
