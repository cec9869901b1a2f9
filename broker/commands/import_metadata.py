"""``broker importMetadata``: RocketMQ's files in place of the metadata of a stopped broker.

A start takes the files over by itself where there is no metadata of ours yet; this is for when a Java broker had the
store in between. Neighbours: meta/json_import.py, offline.py, cli.py.
"""

import click

from broker.commands.offline import absolute, stopped_metadata, told_in_one_line
from broker.meta import json_import
from broker.meta.json_files import read_tables
from broker.meta.metadata import Metadata
from broker.options import BrokerOptions
from mqcommon.clock import Clock, SystemClock
from mqcommon.errors import UserError
from mqcommon.files import FileSystem, OsFiles


@click.command("importMetadata")
@click.argument("store_dir")
def import_metadata(store_dir: str) -> None:
    """Take topics, groups and offsets from RocketMQ's JSON files, and forget what was there.

    STORE_DIR is what storePathRootDir says; its broker must be stopped. The files are those in STORE_DIR/config.
    """
    with told_in_one_line(store_dir):
        summary, warnings = import_files(OsFiles(), SystemClock(), store_dir)
        click.echo(f"import {summary}")
        for warning in warnings:
            click.echo(f"broker: {warning}", err=True)


def import_files(fs: FileSystem, clock: Clock, store_dir: str) -> tuple[str, list[str]]:
    """Replace the metadata, whole or not at all; returns what was taken over, and what was not."""
    root = absolute(store_dir)
    directory = f"{root}/config"
    with stopped_metadata(fs, clock, root) as before:
        tables = read_tables(fs, directory)
        if tables is None:
            raise UserError(f"{directory} holds none of RocketMQ's files: there is nothing to import")
        after = Metadata(fs, directory, clock, BrokerOptions())
        after.take_over(tables)
        before.journal.replace(after.state())
    return json_import.summary(tables), json_import.warnings(fs, directory, tables)
