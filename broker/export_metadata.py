"""``broker exportMetadata``: the metadata of a stopped broker as RocketMQ's files, so that a Java broker can go on.

Neighbours: meta/json_export.py (the files' content), cli.py.
"""

import os
import sys

import click

from broker.meta.json_export import json_files
from broker.meta.json_files import write_files
from broker.meta.metadata import Metadata
from broker.options import BrokerOptions
from common.clock import Clock, SystemClock
from common.errors import StoreError, StoreLocked, UserError
from common.files import FileSystem, OsFiles


@click.command("exportMetadata")
@click.argument("store_dir")
@click.option("--to", metavar="DIR", help="where the files go; default: STORE_DIR/config, where a Java broker looks")
def export_metadata(store_dir: str, to: str | None) -> None:
    """Write topics, groups and offsets as RocketMQ's JSON files.

    STORE_DIR is what storePathRootDir says; its broker must be stopped. A file that is there is kept as .bak.
    """
    try:
        written = export(OsFiles(), SystemClock(), store_dir, to)
    except (UserError, StoreError) as error:
        click.echo(f"broker: {error}", err=True)
        sys.exit(1)
    except OSError as error:
        click.echo(f"broker: {error.filename or store_dir}: {error.strerror or error}", err=True)
        sys.exit(1)
    for path in written:
        click.echo(f"export {path} success")


def export(fs: FileSystem, clock: Clock, store_dir: str, to: str | None = None) -> list[str]:
    """Write the files; returns their paths."""
    root = os.path.abspath(os.path.expanduser(store_dir))
    config = f"{root}/config"
    target = os.path.abspath(os.path.expanduser(to)) if to else config
    if not any(name.startswith("metadata.") for name in fs.listdir(config)):
        raise UserError(f"{config} holds no metadata of Skylark's: give the directory that storePathRootDir names")
    try:
        lock = fs.lock(f"{root}/lock")
    except StoreLocked:
        raise UserError(f"{root} is open in a broker: stop it first, or use mqadmin exportMetadata") from None
    try:
        metadata = Metadata(fs, config, clock, BrokerOptions())
        if metadata.recover().fresh:
            raise UserError(f"{config} has nothing to export: no topic, group or offset was stored there")
        files = json_files(metadata.topics, metadata.groups, metadata.consumer_offsets, metadata.delay_offsets)
        fs.mkdirs(target)
        write_files(fs, target, files)
        if target == config:
            metadata.json_files.note()
        metadata.journal.close()
    finally:
        lock.close()
    return [f"{target}/{name}" for name in files]
