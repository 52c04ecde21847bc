"""Bulk work on Apache Spark: experiments, verification, measurement. The only part that imports pyspark.

Local by default, unchanged on a cluster: each job ships this package to its executors.
"""
