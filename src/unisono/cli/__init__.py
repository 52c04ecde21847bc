"""The command line: one module per command, with the command's name. No other package imports this one.

Output is text for people, or JSON with `--json`; the option names and JSON fields are stable. `options` holds the
options that several commands share, `output` their common output, `main` the parser and the exit statuses. The modules
`demo_negotiation` and `spark_verdict` belong to `demo`, `swarm` to `simulate`, and `reporter_process` to `monitor`.
"""
