"""Commands that write topics and groups of brokers to files."""

from collections.abc import Iterator
from dataclasses import field
from typing import TYPE_CHECKING

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.params import broker_addr, cluster_name, option
from skylark.mqadmin.scope import Scope, chosen_addrs
from skylark.mqadmin.session import Session
from skylark.mqcommon.disk.atomic import write_atomic
from skylark.mqcommon.disk.files import OsFiles
from skylark.mqcommon.errors import StoreError, UserError
from skylark.mqcommon.fastjson import pretty
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.sdk.admin.reports.report import FLAT, plain

if TYPE_CHECKING:
    from skylark.sdk.admin.reports.metadata import Metadata

# RocketMQ writes to /tmp/rocketmq/export, which another user of the machine may have made before.
DEFAULT_DIRECTORY = "rocketmq-export"


@lazy_dataclass(frozen=True, slots=True)
class ExportedFile:
    """The file that was written, and what is in it."""

    path: str
    metadata: "Metadata" = field(metadata=FLAT)


def _lines(exported: ExportedFile) -> Iterator[str]:
    yield f"export {exported.path} success"


@command(
    "exportMetadata",
    cluster_name("choose a cluster to export"),
    broker_addr("choose a broker to export"),
    option("f", "filePath", "export metadata.json path", default=DEFAULT_DIRECTORY, show_default=True, metavar="DIR"),
    option("t", "topic", "only export topic metadata", type=click.BOOL, is_flag=True),
    option("g", "subscriptionGroup", "only export subscriptionGroup metadata", type=click.BOOL, is_flag=True),
    option("s", "specialTopic", "need retryTopic and dlqTopic", type=click.BOOL, is_flag=True),
    show=_lines,
)
async def export_metadata(
    session: Session,
    scope: Scope,
    file_path: str,
    topic: bool,
    subscription_group: bool,
    special_topic: bool,
) -> ExportedFile:
    """Write the topics and groups of a broker, or of the masters of a cluster, to a JSON file.

    The file is topic.json with -t, subscriptionGroup.json with -g, else metadata.json. For a cluster, the numbers of
    queues of a topic are added up.
    """
    if topic and subscription_group:
        raise click.UsageError("Give only one of --topic or --subscriptionGroup.")
    from skylark.sdk.admin.reports.metadata import metadata

    addrs = await chosen_addrs(session, scope)
    found = await metadata(
        session.admin,
        addrs,
        topics=not subscription_group,
        groups=not topic,
        special=special_topic,
        is_of_broker=scope.broker_addr is not None,
        on_progress=session.progress,
    )
    name = "topic.json" if topic else "subscriptionGroup.json" if subscription_group else "metadata.json"
    path = f"{file_path.rstrip('/')}/{name}"
    _write(file_path, path, pretty(dict(sorted(plain(found).items()))).encode())
    return ExportedFile(path, found)


def _write(directory: str, path: str, data: bytes) -> None:
    fs = OsFiles()
    try:
        fs.mkdirs(directory)
        write_atomic(fs, path, data)
    except (OSError, StoreError) as error:
        raise UserError(f"{path} cannot be written ({error}); give another directory with -f") from None


FAMILIES = {
    "Export": (export_metadata,),
}
