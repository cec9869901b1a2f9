"""Pickling of readers for Spark's Python workers, with a helpful error when a worker cannot unpickle them.

The usual first failure of a Spark job is a worker with another Python than the driver's, without this package.
Unpickling then fails with a bare ModuleNotFoundError. `unpack` is pickled by value, so it runs in any Python and can
say what to set. It must therefore not use other code of this package, and must import inside the function.
"""

import sys
from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle

from skylark.mqcommon.version import VERSION

Packed = tuple[Callable[..., Any], tuple[str, str, bytes, str, str]]


def unpack(module: str, name: str, state: bytes, driver: str, version: str) -> Any:
    """Runs in the worker: recreate the object.

    ImportError names both Pythons when the worker lacks a module, and both versions when the worker's Skylark differs.
    """
    import importlib
    import os
    import pickle
    import sys

    try:
        package = importlib.import_module("skylark.spark_connector")
        theirs = getattr(package, "VERSION", "an older version")
        if theirs != version:
            raise ImportError(f"Skylark here is {theirs} (in {package.__file__}), the driver's is {version}")
        cls = getattr(importlib.import_module(module), name)
        fields = pickle.loads(state)
    except ImportError as error:
        python = ".".join(map(str, sys.version_info[:3]))
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # see one_line.py; Spark ends this worker
        raise ImportError(
            f"{error}. This Spark worker runs {sys.executable} (Python {python}), the driver {driver}. Before the"
            " session starts, set PYSPARK_PYTHON (or spark.pyspark.python) to a Python that has Skylark with its extra"
            " spark, of the driver's version; where the executors have none, ship one with --archives, or Skylark alone"
            " with --py-files (scripts/spark_package makes the zip), see docs/guides/spark.md"
        ) from None
    thing = cls.__new__(cls)
    thing.__dict__.update(fields)
    return thing


def pack(thing: object) -> Packed:
    """The result of ``__reduce__`` that makes pickle recreate ``thing`` with `unpack`."""
    cls = type(thing)
    python = ".".join(map(str, sys.version_info[:3]))
    # as bytes: otherwise pickle would import our classes before `unpack` could report that they are missing
    state = cloudpickle.dumps(thing.__dict__)  # type: ignore[no-untyped-call]
    return unpack, (cls.__module__, cls.__qualname__, state, f"{sys.executable} (Python {python})", VERSION)


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
