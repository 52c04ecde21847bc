"""Named experiments: points to simulate, tables with confidence intervals, figures.

`catalogue` lists all experiments. `experiment` defines what an experiment is and splits it into tasks, `intervals`
computes confidence intervals, `drawing` draws figures. `tapas` and `tapas_figures` repeat the experiments of paper 002
§5, with the published numbers in `tapas_values` and the simulated multicasts in `multicasts`. `sweeps` runs a scenario
over a table of parameters; `trade_offs` and `mistakes` are named sweeps. A point is one setting of the parameters, a
block is some of its runs, and a tally is the sum of their results.

The random numbers of a task follow from the seed, the experiment, the point and the block alone. Tasks and tallies are
small, so any number of processes can share the work. This package does not know Spark.
"""
