"""The command line: one function per verb, printing kept apart from protocols.

Human output on a terminal, one JSON object with `--json`. Nobody imports this room.
Tests: tests/unit/test_cli.py, tests/process/test_demo.py.
"""
