"""Traces: the record of what a run sent and delivered.

`schema` defines rows and run parameters, `recorder` turns a member's events into rows (for simulator and runtime),
`table` holds rows as numpy columns, `arrow` and `files` store them as Parquet, `metrics` stores metric rows. This
package contains no protocol and does not check what a trace shows; `check` does that.
May import `unisono.model`, numpy and pyarrow. `schema` and `recorder` need neither numpy nor pyarrow, so a run without
a trace does not load them. Tests: tests/unit/test_trace*.py.
"""
