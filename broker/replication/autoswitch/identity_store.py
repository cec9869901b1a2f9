"""Reads and writes the two files of identity_file.py in a store, where RocketMQ keeps them. All functions block."""

from typing import NamedTuple

from broker.replication.autoswitch.identity_file import Identified, decode, encode
from mqcommon.atomic import write_atomic
from mqcommon.files import FileSystem

FILE_NAME = "brokerIdentity"
TEMPORARY_NAME = "brokerIdentity-temp"


class Kept(NamedTuple):
    """What is in the file and in the temporary one; None where there is no file."""

    identified: Identified | None
    temporary: Identified | None


def read_identity(fs: FileSystem, directory: str, cluster: str, broker: str) -> Kept:
    """What broker ``broker`` has in store ``directory``. ConfigError as in `decode`."""

    def read(name: str) -> Identified | None:
        path = f"{directory}/{name}"
        return decode(fs.read(path), path, cluster, broker) if fs.exists(path) else None

    return Kept(read(FILE_NAME), read(TEMPORARY_NAME))


def write_temporary(fs: FileSystem, directory: str, identified: Identified) -> None:
    """Keep the id that the broker will apply for. Durable."""
    write_atomic(fs, f"{directory}/{TEMPORARY_NAME}", encode(identified))


def write_identity(fs: FileSystem, directory: str, identified: Identified) -> None:
    """Keep the id for good, and remove the temporary file. Durable."""
    write_atomic(fs, f"{directory}/{FILE_NAME}", encode(identified._replace(check_code="")))
    remove_temporary(fs, directory)


def remove_temporary(fs: FileSystem, directory: str) -> None:
    """Begin anew: another broker has got the id."""
    path = f"{directory}/{TEMPORARY_NAME}"
    if fs.exists(path):
        fs.remove(path)
        fs.fsync_dir(directory)
