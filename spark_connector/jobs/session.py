"""The Spark session of a job, and its options ``NAME=VALUE`` for the connection to a cluster.

``spark-submit`` gives the master; without one the job runs in local threads.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import click
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from skylark.mqcommon.errors import SkylarkError


@contextmanager
def session(name: str) -> Iterator[SparkSession]:
    """A session that ends with the block; expected errors end the program with one line."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    # A second attempt beside a running first attempt would send the same messages.
    builder = builder.config("spark.speculation", "false")
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # spark-submit sets it, and gives the master
        builder = builder.master("local[*]")
    spark = builder.getOrCreate()
    try:
        yield spark
    except SkylarkError as error:
        raise click.ClickException(str(error)) from None
    except PySparkException as error:
        raise click.ClickException(str(error).splitlines()[0]) from None
    except Py4JJavaError as error:
        raise click.ClickException(task_error(str(error.java_exception.getMessage()))) from None
    finally:
        spark.stop()


def task_error(message: str) -> str:
    """The error of a task: the last line of its traceback, which Spark's own lines follow."""
    said = message
    for text in filter(None, map(str.rstrip, message.splitlines())):
        if text.startswith("\tat "):
            break
        said = text
    return said


EXAMPLES = "credentialsFile=FILE, tls=true, tlsCaFile=FILE, ...; may be repeated"


def named_values(context: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """The values of ``NAME=VALUE`` texts, by name; a callback of click. BadParameter for another text."""
    found: dict[str, str] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", context, param)
        found[name.strip()] = value.strip()
    return found


CONNECTION: Final[dict[str, Any]] = {"multiple": True, "metavar": "NAME=VALUE", "callback": named_values}
