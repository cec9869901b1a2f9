"""How readers travel to Spark's Python workers, with an error that helps when one cannot land.

The usual first failure of a Spark job is a worker that runs another Python than the driver's, without this package:
unpickling then dies with a bare ModuleNotFoundError. `land` itself travels by value, so it runs in any Python, and
says what to set. It must therefore use nothing of ours and import inside.
"""

import sys
from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle

Packed = tuple[Callable[..., Any], tuple[str, str, bytes, str]]


def land(module: str, name: str, state: bytes, driver: str) -> Any:
    """In the worker: the object again; ImportError that names both Pythons when the worker's lacks a module."""
    import importlib
    import os
    import pickle
    import sys

    try:
        cls = getattr(importlib.import_module(module), name)
        fields = pickle.loads(state)
    except ImportError as error:
        python = ".".join(map(str, sys.version_info[:3]))
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # see one_line.py; Spark ends this worker
        raise ImportError(
            f"{error}. This Spark worker runs {sys.executable} (Python {python}), the driver {driver}. Before the"
            " session starts, set PYSPARK_PYTHON (or spark.pyspark.python) to a Python that has Skylark with its extra"
            " spark; where the executors have none, ship one with --archives, see docs/spark.md"
        ) from None
    thing = cls.__new__(cls)
    thing.__dict__.update(fields)
    return thing


def pack(thing: object) -> Packed:
    """What ``__reduce__`` of ``thing`` returns so that it lands by `land`."""
    cls = type(thing)
    python = ".".join(map(str, sys.version_info[:3]))
    # as bytes: pickle would otherwise look for our classes before `land` could say why they are missing
    state = cloudpickle.dumps(thing.__dict__)  # type: ignore[no-untyped-call]
    return land, (cls.__module__, cls.__qualname__, state, f"{sys.executable} (Python {python})")


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
