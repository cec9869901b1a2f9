"""Expected errors on one line: Spark would otherwise print the whole traceback of its Python worker before the text.

When a worker has failed, Spark reads an environment variable of the worker that hides the traceback, and then ends the
worker. So other code that runs in Spark keeps its tracebacks.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from skylark.mqcommon.errors import SkylarkError

HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"


@contextmanager
def one_line() -> Iterator[None]:
    """Hide the traceback of errors that Skylark raises on purpose; other errors keep it."""
    try:
        yield
    except SkylarkError:
        if in_worker():
            os.environ[HIDE_TRACEBACK] = "1"
        raise


def in_worker() -> bool:
    """Whether this process is one of Spark's Python workers, not the user's program."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
