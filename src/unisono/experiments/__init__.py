"""Experiments by name: what each shows, its points, how a block of one point is run, how rows and figures come of it.

`experiment` (the value and its parts), `intervals` (confidence), `multicasts` (points that are many RMCasts),
`tapas` and `tapas_figures` (paper 002 §5), `tapas_values` (what it published), `drawing` (matplotlib, imported when a
figure is drawn), `catalogue` (all of them). Point functions are pure but for chance, which follows from seed,
experiment, point and block; tasks and tallies are small and can be sent to another process. No Spark here.
Tests: tests/unit/test_experiments.py, tests/paper/test_002_validation.py.
"""
