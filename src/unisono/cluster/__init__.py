"""Groups of real member processes on this machine, for `unisono demo` and `unisono monitor --join`.

`supervisor` starts, kills and watches member processes. `member_process` is one of them; `sla_reporter` is the process
through which the measurement service talks to a group. `scenario_limits` says which scenarios real processes can run.
`report` checks a finished run. The processes use the public API like any application.
"""
