"""The tables to which a topic is exported. A table's position: the offset in a broker's log up to which the table goes.

Rows and position come to a table together: whoever runs an export again, at any point, gets no row twice.
Neighbours: export_topic.py (the job).
"""

import json
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from py4j.java_gateway import JavaPackage  # type: ignore[import-untyped]  # py4j has no types
from pyspark.sql import DataFrame, SparkSession

from skylark.mqcommon.errors import UserError

PARQUET, DELTA, ICEBERG = "parquet", "delta", "iceberg"
#: Begins the names under which positions are kept in properties and commits.
MARK = "skylark"
#: The folder of marker files. Spark reads no folder whose name begins with an underscore.
MARKERS = "_skylark"
_DIGITS = 20
_START = "start="


class Table(Protocol):
    """A table of one topic. The table has a position for each broker: an offset in the broker's log."""

    def position(self, broker: str) -> int | None:
        """Up to where the table has the messages of ``broker``; None if the table has no position for the broker."""

    def append(self, rows: DataFrame, broker: str, start: int, end: int) -> None:
        """Add the messages between two offsets of the broker's log. ``start``: the position, or the first offset."""

    def skip(self, broker: str, start: int, end: int) -> None:
        """Note that the broker's log has no message of the topic between two offsets; ``start``: see `append`."""


def table_of(spark: SparkSession, kind: str, target: str, topic: str) -> Table:
    """The table ``target``: a directory or a URL of Parquet files; for the other kinds also a name in a catalog."""
    kinds: dict[str, Callable[[SparkSession, str, str], Table]] = {
        PARQUET: ParquetFiles,
        DELTA: DeltaTable,
        ICEBERG: IcebergTable,
    }
    return kinds[kind](spark, target, topic)


class ParquetFiles:
    """A directory of Parquet files, with a folder for each `append`, and an empty marker file for each complete folder.

    A folder is named after the offset at which its messages start. A folder without a marker was left by a kill: the
    next `append` or `skip` removes it.
    """

    def __init__(self, spark: SparkSession, target: str, topic: str) -> None:
        self._spark = spark
        self._target = target.rstrip("/")
        self._topic = topic
        if others := [name for name in self._names(MARKERS) if name != topic]:
            raise UserError(f"--to {target}: topic {others[0]} has been exported there; give another directory")

    def position(self, broker: str) -> int | None:
        ends = [int(name.partition("-")[2]) for name in self._names(MARKERS, self._topic, broker)]
        return max(ends, default=None)

    def append(self, rows: DataFrame, broker: str, start: int, end: int) -> None:
        self._remove_left(broker)
        rows.write.parquet(f"{self._target}/{_folder(broker)}/{_START}{start:0{_DIGITS}}")
        self._mark(broker, start, end)

    def skip(self, broker: str, start: int, end: int) -> None:
        self._remove_left(broker)
        self._mark(broker, start, end)

    def _mark(self, broker: str, start: int, end: int) -> None:
        marker = self._path(MARKERS, self._topic, broker, f"{start:0{_DIGITS}}-{end:0{_DIGITS}}")
        marker.getFileSystem(self._conf).create(marker, True).close()

    def _remove_left(self, broker: str) -> None:
        """Remove the folders that are not complete; the rows in them are written again."""
        complete = {_START + name.partition("-")[0] for name in self._names(MARKERS, self._topic, broker)}
        for name in self._names(_folder(broker)):
            if name.startswith(_START) and name not in complete:
                left = self._path(_folder(broker), name)
                left.getFileSystem(self._conf).delete(left, True)

    def _names(self, *parts: str) -> list[str]:
        """The names in a folder; none if the folder does not exist."""
        folder = self._path(*parts)
        files = folder.getFileSystem(self._conf)
        return [str(one.getPath().getName()) for one in files.listStatus(folder)] if files.exists(folder) else []

    @property
    def _conf(self) -> Any:
        return self._spark.sparkContext._jsc.hadoopConfiguration()

    def _path(self, *parts: str) -> Any:
        jvm: Any = self._spark.sparkContext._jvm
        return jvm.org.apache.hadoop.fs.Path("/".join((self._target, *parts)))


def _folder(broker: str) -> str:
    return f"broker={broker}"


class _PropertyTable:
    """A table that keeps the position in its commits and in its properties.

    A commit has the position together with the rows. But commits are forgotten after some time, so the position is
    copied to a property of the table, by the next run at the latest.
    """

    def __init__(self, spark: SparkSession, target: str, topic: str) -> None:
        self._spark = spark
        self._target = target
        self._topic = topic

    def position(self, broker: str) -> int | None:
        if not self._exists():
            return None
        kept = self._kept(broker)
        known = max(filter(None, (kept, *self._committed(broker))), default=None)
        if known is not None and known != kept:
            self._keep(broker, known)
        return known

    def skip(self, broker: str, start: int, end: int) -> None:
        if self._exists():
            self._keep(broker, end)

    def _key(self, broker: str) -> str:
        return f"{MARK}.{self._topic}.{broker}"

    def _kept(self, broker: str) -> int | None:
        for row in self._spark.sql(f"SHOW TBLPROPERTIES {self._name}").collect():
            if row["key"] == self._key(broker):
                return int(row["value"])
        return None

    def _keep(self, broker: str, position: int) -> None:
        self._spark.sql(f"ALTER TABLE {self._name} SET TBLPROPERTIES ('{self._key(broker)}' = '{position}')")

    @property
    def _name(self) -> str:
        return self._target

    def _exists(self) -> bool:
        return self._spark.catalog.tableExists(self._name)

    def _committed(self, broker: str) -> Iterable[int]:
        """The positions in the commits that the table still knows."""
        raise NotImplementedError


class DeltaTable(_PropertyTable):
    """A Delta table, by its path or its name in the catalog.

    Delta itself refuses a second commit of the same position (`txnAppId`, `txnVersion`).
    """

    def __init__(self, spark: SparkSession, target: str, topic: str) -> None:
        super().__init__(spark, target, topic)
        jvm: Any = spark._jvm
        self._tables = jvm.io.delta.tables.DeltaTable
        if isinstance(self._tables, JavaPackage):  # py4j takes a missing class for a package
            raise UserError(
                "--format delta: this Spark has no Delta Lake: give spark-submit --packages io.delta:delta-spark_2.13:"
                "VERSION and the two --conf of Delta's quick start"
            )

    def append(self, rows: DataFrame, broker: str, start: int, end: int) -> None:
        key = self._key(broker)
        writer = rows.write.format(DELTA).mode("append").option("userMetadata", json.dumps({key: end}))
        writer = writer.option("txnAppId", key).option("txnVersion", str(end))
        (writer.save if self._is_path else writer.saveAsTable)(self._target)
        self._keep(broker, end)

    @property
    def _is_path(self) -> bool:
        return "/" in self._target

    @property
    def _name(self) -> str:
        return f"delta.`{self._target}`" if self._is_path else self._target

    def _exists(self) -> bool:
        if not self._is_path:
            return super()._exists()
        return bool(self._tables.isDeltaTable(self._spark._jsparkSession, self._target))

    def _committed(self, broker: str) -> Iterable[int]:
        for row in self._spark.sql(f"DESCRIBE HISTORY {self._name}").select("userMetadata").collect():
            try:
                found = json.loads(row["userMetadata"] or "{}")
            except ValueError:  # the text of another writer
                continue
            if isinstance(found, dict) and self._key(broker) in found:
                yield int(found[self._key(broker)])


class IcebergTable(_PropertyTable):
    """An Iceberg table, by its name in a catalog; it is made if it does not exist."""

    def append(self, rows: DataFrame, broker: str, start: int, end: int) -> None:
        if not self._exists():
            rows.limit(0).writeTo(self._target).using(ICEBERG).create()
        rows.writeTo(self._target).option(f"snapshot-property.{self._key(broker)}", str(end)).append()
        self._keep(broker, end)

    def _committed(self, broker: str) -> Iterable[int]:
        for row in self._spark.sql(f"SELECT summary FROM {self._target}.snapshots").collect():
            if (found := row["summary"].get(self._key(broker))) is not None:
                yield int(found)


def check_target(kind: str, target: str) -> None:
    """Raise UserError for a target that the kind of table cannot have."""
    if kind == ICEBERG and ("/" in target or "." not in target):
        raise UserError(f"--to {target}: an Iceberg table is named as in Spark: catalog.database.table")
