"""``broker exportMetadata``: writes the metadata of a stopped broker as RocketMQ's files, for a Java broker.

Neighbours: meta/json_export.py (the files' content), offline.py, cli.py.
"""

import click

from broker.commands.offline import absolute, errors_on_one_line, stopped_metadata
from broker.meta.json_export import json_files
from broker.meta.json_files import write_files
from mqcommon.clock import Clock, SystemClock
from mqcommon.errors import UserError
from mqcommon.files import FileSystem, OsFiles


@click.command("exportMetadata")
@click.argument("store_dir")
@click.option("--to", metavar="DIR", help="where the files go; default: STORE_DIR/config, where a Java broker looks")
def export_metadata(store_dir: str, to: str | None) -> None:
    """Write topics, groups and offsets as RocketMQ's JSON files.

    STORE_DIR is the broker's storePathRootDir; the broker must be stopped. An existing file is kept as .bak.
    """
    with errors_on_one_line(store_dir):
        for path in export(OsFiles(), SystemClock(), store_dir, to):
            click.echo(f"export {path} success")


def export(fs: FileSystem, clock: Clock, store_dir: str, to: str | None = None) -> list[str]:
    """Write the files; returns their paths."""
    root = absolute(store_dir)
    target = absolute(to) if to else f"{root}/config"
    with stopped_metadata(fs, clock, root) as metadata:
        files = json_files(
            metadata.topics, metadata.groups, metadata.consumer_offsets, metadata.delay_offsets, metadata.request_modes
        )
        if metadata.fresh:
            raise UserError(f"{root} has nothing to export: it holds no topic, group or offset")
        fs.mkdirs(target)
        write_files(fs, target, files)
        if target == f"{root}/config":
            metadata.json_files.note()
    return [f"{target}/{name}" for name in files]
