"""``broker exportMetadata``: writes the metadata of a stopped broker as RocketMQ's files, for a Java broker.

Neighbours: meta/json_export.py (the files' content), export_pops.py, offline.py, cli.py.
"""

from collections.abc import Callable
from dataclasses import replace

import click

from broker.broker import store_options
from broker.commands.export_pops import hand_over, has_messages
from broker.commands.offline import absolute, errors_on_one_line, has_metadata, stopped_metadata
from broker.meta.json_export import Offsets, json_files
from broker.meta.json_files import write_files
from broker.options import BrokerOptions
from mqcommon.clock import Clock, SystemClock
from mqcommon.disk.files import FileSystem, OsFiles
from mqcommon.errors import UserError
from mqcommon.options.conf_file import load_conf


@click.command("exportMetadata")
@click.argument("store_dir")
@click.option("--to", metavar="DIR", help="where the files go; default: STORE_DIR/config, where a Java broker looks")
@click.option("-c", "--config-file", "conf", metavar="FILE", help="the broker's conf file; for the size of index files")
def export_metadata(store_dir: str, to: str | None, conf: str | None) -> None:
    """Write topics, groups and offsets as RocketMQ's JSON files, and popped messages in flight for a Java broker.

    STORE_DIR is the broker's storePathRootDir; the broker must be stopped. An existing file is kept as .bak.
    Without --to the check points of popped messages are stored in the log so that a Java broker finds them.
    """
    with errors_on_one_line(store_dir):
        options = load_conf(BrokerOptions, conf, {"store_path_root_dir": absolute(store_dir)})
        for path in export(OsFiles(), SystemClock(), store_dir, to, options, click.echo):
            click.echo(f"export {path} success")


def export(
    fs: FileSystem,
    clock: Clock,
    store_dir: str,
    to: str | None = None,
    options: BrokerOptions | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[str]:
    """Write the files; returns their paths. ``say`` gets lines for the user."""
    root = absolute(store_dir)
    target = absolute(to) if to else f"{root}/config"
    instead: Offsets = {}
    if target == f"{root}/config" and has_metadata(fs, root) and has_messages(fs, root):
        options = options or BrokerOptions()
        in_root = replace(store_options(options), directory=root)
        instead = hand_over(fs, clock, in_root, options.timer_precision_ms, say)
    with stopped_metadata(fs, clock, root) as metadata:
        files = json_files(
            metadata.topics, metadata.groups, metadata.consumer_offsets, metadata.delay_offsets,
            metadata.request_modes, instead,
        )  # fmt: skip
        if metadata.fresh:
            raise UserError(f"{root} has nothing to export: it holds no topic, group or offset")
        fs.mkdirs(target)
        write_files(fs, target, files)
        if target == f"{root}/config":
            metadata.json_files.note()
    return [f"{target}/{name}" for name in files]
