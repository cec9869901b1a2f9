"""What went wrong as one line: Spark would otherwise put the whole traceback of its Python worker before it.

When a worker has failed, Spark asks its environment whether to hide the traceback. It then ends that worker, so nothing
else that runs in Spark loses its tracebacks.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from mqcommon.errors import SkylarkError

HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"


@contextmanager
def one_line() -> Iterator[None]:
    """An error that Skylark raises on purpose ends the worker with its text alone; any other with its traceback."""
    try:
        yield
    except SkylarkError:
        if in_worker():
            os.environ[HIDE_TRACEBACK] = "1"
        raise


def in_worker() -> bool:
    """Whether this process is one of Spark's Python workers, not a program of the user's."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
