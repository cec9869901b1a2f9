"""Shared parts of the commands on a stopped broker.

Neighbours: diverged_slave.py, dledger_store.py, json_metadata.py, rebuild_metadata.py, restore.py, verify_store.py.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from skylark.broker.meta.metadata import Metadata
from skylark.broker.options import BrokerOptions
from skylark.broker.store.inventory import read_inventory
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.errors import StoreError, StoreLocked, UserError

PROGRESS_INTERVAL_S = 1.0


@contextmanager
def errors_on_one_line(store_dir: str) -> Iterator[None]:
    """Print a user's mistake or an error of the disk as one line on stderr, and exit with code 1."""
    try:
        yield
    except (UserError, StoreError) as error:
        click.echo(f"broker: {error}", err=True)
        sys.exit(1)
    except OSError as error:
        click.echo(f"broker: {error.filename or store_dir}: {error.strerror or error}", err=True)
        sys.exit(1)


def has_metadata(fs: FileSystem, root: str) -> bool:
    """Whether the store ``root`` has metadata of this broker's."""
    return any(name.startswith("metadata.") for name in fs.listdir(f"{root}/config"))


@contextmanager
def locked(fs: FileSystem, root: str, instead: str = "") -> Iterator[None]:
    """Hold the lock of the store ``root``; UserError if a broker holds it. ``instead``: what may be done then."""
    try:
        lock = fs.lock(f"{root}/lock")
    except StoreLocked:
        raise UserError(f"{root} is open in a broker: stop it first{instead}") from None
    try:
        yield
    finally:
        lock.close()


@contextmanager
def stopped_metadata(fs: FileSystem, clock: Clock, root: str) -> Iterator[Metadata]:
    """The metadata of the store ``root``, recovered, while its lock is held; UserError if there is none."""
    directory = f"{root}/config"
    if not has_metadata(fs, root):
        raise UserError(f"{directory} holds no metadata of Skylark's: give the directory that storePathRootDir names")
    with locked(fs, root):
        metadata = Metadata(fs, directory, clock, BrokerOptions())
        metadata.recover(must_exist=read_inventory(fs, root).has_metadata)
        yield metadata
        metadata.journal.close()


def absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


class ProgressLines:
    """Prints on stderr how much of a long command is done, a line per second."""

    def __init__(self) -> None:
        self._next = time.monotonic() + PROGRESS_INTERVAL_S

    def of(self, verb: str) -> Callable[[int, int], None]:
        """To be called with the bytes done, and with the most bytes there can be. ``verb``: what is done with them."""

        def show(done: int, most: int) -> None:
            now = time.monotonic()
            if now >= self._next:
                self._next = now + PROGRESS_INTERVAL_S
                click.echo(f"{verb} {done >> 20:,} of at most {most >> 20:,} MiB", err=True)

        return show
