"""An installation of Spark whose Python processes start in a third of the time."""

from importlib.util import find_spec
from pathlib import Path

# What spark-submit and the JVM read of an installation. Of its Python only the packed copy is left out.
PARTS = ("bin", "jars")


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
