"""The command line: one module per verb, named like the verb. No other package imports this one.

Output is text for people, or one JSON object with `--json`; the option names and JSON fields are stable. `options`
holds the options that several verbs share, `main` the parser and the exit statuses. Further modules: `demo_negotiation`
and `spark_verdict` belong to `demo`, `swarm` to `simulate`, and `reporter_process` to `monitor`.
"""
