"""One engine verifies recorded runs in a process of its own: `python -m benchmarks.verify_engines ENGINE FOLDER...`.

Three ways to ask the same of the same files. Spark runs `unisono.pipeline.verify`. DuckDB and polars prove the same
promises in the way that suits them: one aggregation to keys, one join with the sends, and windows over the keys. For a
run in which no gap is allowed that is the same question: each member's index is dense and grows with the key, a key is
one message, each sender's numbers grow with the key, everyone has everything, what was delivered was sent, and in time.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from benchmarks.process_tree import cpu_s
from unisono.check.verdict import Status
from unisono.trace.schema import META_NAME, RunMeta, read_meta

Found = dict[str, bool]
"""By check, whether it was violated."""
Engine = Callable[[Path, RunMeta], Found]

DUCKDB = """
with keys as (
    select slot, place, min(sender) as sender, min(sender_incarnation) as sender_incarnation, min(sequence) as sequence,
           min(index) as index, max(index) as last_index, count(*) as members, max(real_ns) as last_ns,
           max(sender) != min(sender) or max(sender_incarnation) != min(sender_incarnation)
               or max(sequence) != min(sequence) as mixed
    from rows where kind = 'deliver' group by slot, place),
placed as (
    select *, row_number() over (order by slot, place) - 1 as place_in_run,
           lag(sequence) over (partition by sender, sender_incarnation order by slot, place) as before
    from keys),
sends as (select sender, sender_incarnation, sequence, real_ns from rows where kind = 'send'),
joined as (
    select placed.*, sends.real_ns as sent_ns, sends.sender is null as unsent, placed.sender is null as undelivered
    from placed full join sends using (sender, sender_incarnation, sequence))
select coalesce(bool_or(mixed or index != last_index or index != place_in_run), false) as total_order,
       coalesce(bool_or(unsent), false) as integrity,
       coalesce(bool_or(sequence <= before), false) as fifo,
       coalesce(bool_or(undelivered or members != $members), false) as gap_freedom,
       coalesce(bool_or(last_ns - sent_ns > $bound_ns), false) as latency
from joined
"""


@contextmanager
def spark() -> Iterator[Engine]:
    """The pipeline, in local mode on all cores."""
    from unisono.pipeline.distribute import run_on_spark  # noqa: PLC0415 - each engine in its own process
    from unisono.pipeline.session import spark_session  # noqa: PLC0415
    from unisono.pipeline.verify import on_spark, verify  # noqa: PLC0415

    with spark_session() as session:
        list(run_on_spark(session, [[0], [0]], abs))  # the first task starts Python on the workers

        def ask(folder: Path, meta: RunMeta) -> Found:
            (report,) = verify(folder, partial(on_spark, session), bound_ns=meta.bound_ns)
            if Status.UNKNOWN in {verdict.status for verdict in report.verdicts.values()}:
                raise AssertionError(f"unknown: {report.verdicts}")
            return {name: verdict.status is Status.VIOLATED for name, verdict in report.verdicts.items()}

        yield ask


@contextmanager
def duckdb() -> Iterator[Engine]:
    """SQL, on all cores."""
    import duckdb as database  # noqa: PLC0415

    def ask(folder: Path, meta: RunMeta) -> Found:
        connection = database.connect()
        files = f"{folder}/member=*/*.parquet"
        connection.execute(f"create view rows as select * from read_parquet('{files}', hive_partitioning = false)")
        query = connection.execute(DUCKDB, {"members": len(meta.members), "bound_ns": meta.bound_ns})
        names = [column[0] for column in query.description]
        return dict(zip(names, map(bool, query.fetchone() or ()), strict=True))

    yield ask


@contextmanager
def polars() -> Iterator[Engine]:
    """Lazy frames, streamed, on all cores."""
    import polars as pl  # noqa: PLC0415

    message = ["sender", "sender_incarnation", "sequence"]
    column = pl.col

    def ask(folder: Path, meta: RunMeta) -> Found:
        rows = pl.scan_parquet(f"{folder}/member=*/*.parquet", hive_partitioning=False)
        mixed = pl.any_horizontal(column(name).min() != column(name).max() for name in message)
        keys = (
            rows.filter(column("kind") == "deliver")
            .group_by("slot", "place")
            .agg(
                mixed.alias("mixed"),
                *(column(name).min() for name in (*message, "index")),
                column("index").max().alias("last_index"),
                pl.len().alias("members"),
                column("real_ns").max().alias("last_ns"),
            )
            .sort("slot", "place")
            .with_row_index("place_in_run")
            .with_columns(column("sequence").shift(1).over("sender", "sender_incarnation").alias("before"))
        )
        sends = rows.filter(column("kind") == "send").select(*message, column("real_ns").alias("sent_ns"))
        index = column("index")
        disorder = column("mixed") | (index != column("last_index")) | (index != column("place_in_run"))
        found = (
            keys.join(sends, on=message, how="full", coalesce=True)
            .select(
                disorder.any().alias("total_order"),
                (column("sent_ns").is_null()).any().alias("integrity"),
                (column("sequence") <= column("before")).any().alias("fifo"),
                (column("members").is_null() | (column("members") != len(meta.members))).any().alias("gap_freedom"),
                (column("last_ns") - column("sent_ns") > meta.bound_ns).any().alias("latency"),
            )
            .collect(engine="streaming")
        )
        return {name: bool(found[name][0]) for name in found.columns}

    yield ask


ENGINES: dict[str, Callable[[], AbstractContextManager[Engine]]] = {"spark": spark, "duckdb": duckdb, "polars": polars}


def main(name: str, *folders: str) -> None:
    """Verify each run, and print a line of JSON for each."""
    with ENGINES[name]() as ask:
        for folder in folders:
            meta, began, used = read_meta(Path(folder) / META_NAME), time.perf_counter(), cpu_s(os.getpid())
            found = ask(Path(folder), meta)
            figures = {"seconds": time.perf_counter() - began, "cpu_s": cpu_s(os.getpid()) - used}
            sys.stdout.write(json.dumps({**figures, "violated": sorted(n for n in found if found[n])}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
