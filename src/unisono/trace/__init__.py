"""The one row schema of what a run sent and delivered, its recorders, and its Parquet files.

Here live the schema, the recorders that simulator and runtime write through, the background writer and the
columnar `Trace` that checkers read. No protocol, and no judgement about what a trace shows: that is `check`.
May import `unisono.model`, numpy and pyarrow; `kinds`, `meta` and `recorder` need neither numpy nor pyarrow,
so that a run without a trace does not load them. Tests: tests/unit/test_trace*.py.
"""
