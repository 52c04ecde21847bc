"""Runs large jobs on Apache Spark: experiments, verification and measurement. Only this package imports pyspark.

Spark runs on this machine by default. On a cluster, each job sends this package to its executors.
"""
