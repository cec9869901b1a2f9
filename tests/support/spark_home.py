"""An installation of Spark whose JVM starts in less than half of the time, and its Python processes in a third.

    python -m tests.support.spark_home [--is-made]

makes the installation in .venv, with an archive of the classes that Spark loads, or says by the exit code whether the
installation is there; scripts/venv.sh calls both. Tests with Spark run without the archive, too, and take longer.
"""

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.requirements import java_identity

# The folder of the installation, the same for making and for use: the JVM takes an archive only while Spark's files
# have the paths that they had when the archive was made.
MADE = Path(sys.prefix) / "spark-home"
# What spark-submit and the JVM read of an installation. Of its Python only the packed copy is left out.
PARTS = ("bin", "jars")
ARCHIVE = "classes.jsa"
# The Java and the Spark of the archive.
IDENTITY = "identity"
# Options of the JVM that runs the driver, which spark-submit reads in the environment.
SUBMIT_OPTIONS = "SPARK_SUBMIT_OPTS"
# Without a line about an archive that does not fit, or about a class that cannot be in it.
QUIETLY = "-Xlog:cds*=off"
# What Spark's Python processes import, but for the modules that Spark runs by `-m`.
IMPORTED = (
    "pyspark.worker",
    *(
        f"pyspark.sql.worker.{name}"
        for name in (
            "commit_data_source_write",
            "create_data_source",
            "data_source_pushdown_filters",
            "lookup_data_sources",
            "plan_data_source_read",
            "python_streaming_sink_runner",
            "write_into_data_source",
        )
    ),
    "skylark.spark_connector",
)
# Names the program that Spark's Python processes are; by default this Python.
SPARK_PYTHON = "TEST_SPARK_PYTHON"
# Loads what most of the tests load: a table by a Python worker, SQL, files, a stream.
PROGRAM = """
import sys
from pyspark.sql import SparkSession

options = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
           "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.memory": "512m",
           "spark.sql.shuffle.partitions": "2"}
spark = SparkSession.builder.config(map=options).getOrCreate()
rows = spark.createDataFrame([(number, str(number)) for number in range(10)], "number long, text string")
assert rows.rdd.map(lambda row: row.number).sum() == 45
rows.filter("number > 2").groupBy("text").count().orderBy("text").write.parquet(sys.argv[1] + "/rows")
assert spark.read.parquet(sys.argv[1] + "/rows").count() == 7
stream = spark.readStream.format("rate").load().selectExpr("value", "window(timestamp, '1 second') as at")
query = stream.groupBy("at").count().writeStream.format("noop").outputMode("update").trigger(once=True)
query.option("checkpointLocation", sys.argv[1] + "/checkpoint").start().awaitTermination()
jvm = spark.sparkContext._gateway.proc
spark.stop()
jvm.stdin.close()
sys.exit(jvm.wait())
"""


def quick_spark_home(folder: Path) -> Path | None:
    """Make ``folder`` a SPARK_HOME for processes of this Python; None without PySpark.

    Each Python process that Spark starts finds PySpark packed in SPARK_HOME/python/lib first, where all of its modules
    are compiled anew: a second of processor time. Here the process finds the installed package, which is compiled.
    """
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        return None
    installed = Path(found.origin).parent
    folder.mkdir(exist_ok=True)
    for part in PARTS:
        link = folder / part
        if not link.is_symlink():
            link.symlink_to(installed / part)
    return folder


def use_quick_spark(folder: Path) -> None:
    """Let what this process starts have the installation that was made, or one in ``folder`` without the archive."""
    # Not every JVM can make an archive.
    if _is_made() and (MADE / ARCHIVE).exists():
        os.environ.setdefault(SUBMIT_OPTIONS, f"-XX:SharedArchiveFile={MADE / ARCHIVE} {QUIETLY}")
        os.environ.setdefault("SPARK_HOME", str(MADE))
        return
    home = quick_spark_home(folder)
    if home is not None:
        os.environ.setdefault("SPARK_HOME", str(home))


def spark_python() -> str:
    """For PYSPARK_PYTHON: this Python, in forks of a process that has imported what Spark's processes need."""
    return os.environ.get(SPARK_PYTHON, sys.executable)


def make_archive(scratch: Path) -> None:
    """Make the installation, unless it is there; ``scratch`` is an empty folder."""
    if _is_made() or quick_spark_home(MADE) is None:
        return
    # The JVM writes the archive when it ends, and ends once its input does.
    environment = {
        **os.environ,
        "SPARK_HOME": str(MADE),
        SUBMIT_OPTIONS: f"-XX:ArchiveClassesAtExit={MADE / ARCHIVE} {QUIETLY} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "PYSPARK_PYTHON": sys.executable,
    }
    (MADE / ARCHIVE).unlink(missing_ok=True)
    subprocess.run([sys.executable, "-c", PROGRAM, str(scratch)], env=environment, cwd=scratch, check=True)
    (MADE / IDENTITY).write_text(identity(), encoding="utf-8")


def identity() -> str:
    """A text that differs once Java, Spark or the place of the archive has changed."""
    jars = (MADE / "jars").resolve()
    return f"{java_identity()}\n{MADE}\n{jars} {jars.stat().st_mtime_ns if jars.exists() else None}\n"


def _is_made() -> bool:
    made = MADE / IDENTITY
    return made.exists() and made.read_text(encoding="utf-8") == identity()


if __name__ == "__main__":
    if sys.argv[1:] == ["--is-made"]:
        sys.exit(not _is_made())
    # A set-up that is ended leaves no process: the one with the JVM is killed by `subprocess.run`.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with TemporaryDirectory() as scratch:
        make_archive(Path(scratch))
