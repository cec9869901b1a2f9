"""``broker importMetadata``: replaces the metadata of a stopped broker by RocketMQ's files.

A broker without metadata imports the files when it starts. This command is for a store that a Java broker has used
since.
Neighbours: meta/json_files.py, offline.py, cli.py.
"""

import click

from broker.commands.offline import absolute, errors_on_one_line, stopped_metadata
from broker.meta import json_files
from broker.meta.json_files import read_tables
from broker.meta.metadata import Metadata
from broker.options import BrokerOptions
from mqcommon.clock import Clock, SystemClock
from mqcommon.disk.files import FileSystem, OsFiles
from mqcommon.errors import UserError


@click.command("importMetadata")
@click.argument("store_dir")
def import_metadata(store_dir: str) -> None:
    """Replace topics, groups and offsets by those in RocketMQ's JSON files.

    STORE_DIR is the broker's storePathRootDir; the broker must be stopped. The files are read from STORE_DIR/config.
    """
    with errors_on_one_line(store_dir):
        summary, warnings = import_files(OsFiles(), SystemClock(), store_dir)
        click.echo(f"import {summary}")
        for warning in warnings:
            click.echo(f"broker: {warning}", err=True)


def import_files(fs: FileSystem, clock: Clock, store_dir: str) -> tuple[str, list[str]]:
    """Replace the metadata atomically; returns a summary of what was imported, and warnings of what was not."""
    root = absolute(store_dir)
    directory = f"{root}/config"
    with stopped_metadata(fs, clock, root) as before:
        tables = read_tables(fs, directory)
        if tables is None:
            raise UserError(f"{directory} holds none of RocketMQ's files: there is nothing to import")
        after = Metadata(fs, directory, clock, BrokerOptions())
        after.take_over(tables)
        before.journal.replace(after.state())
    return json_files.summary(tables), json_files.warnings(fs, directory, tables)
