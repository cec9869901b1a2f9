"""The names of a set's objects in a bucket.

    SET/manifest/NNN                  immutable, created only if absent, with dense numbers: manifests.py
    SET/spans/NNN-RANDOM              what a manifest says of 1,000 old segments
    SET/seg/B-EPOCH-RANDOM/CLASS.log  the records of one file of the log, sorted by topic, queue, offset
    SET/seg/B-EPOCH-RANDOM/index      where each queue's records are in them: segment_index.py
    SET/seg/B-EPOCH-RANDOM/keys       which records have a key: keys.py
    SET/tail/B-EPOCH-RANDOM           bytes of the file that is still written, as they are in the log
    SET/meta/EPOCH-RANDOM             topics, groups, offsets

B is the physical offset at which the bytes begin. Numbers have 20 digits, so that names sort as numbers do.
"""

from typing import Final
from urllib.parse import quote

MANIFESTS: Final = "manifest"
SPANS: Final = "spans"
SEGMENTS: Final = "seg"
TAILS: Final = "tail"
METADATA: Final = "meta"
INDEX: Final = "index"
KEYS: Final = "keys"
DIGITS: Final = 20


def set_name(broker_name: str) -> str:
    """The name of the set of the brokers called ``broker_name``: a master and its slaves, whose logs are one log."""
    quoted = quote(broker_name, safe="")
    return f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted


def manifest_name(broker_set: str, number: int) -> str:
    """The name of manifest ``number``."""
    return f"{broker_set}/{MANIFESTS}/{number:0{DIGITS}}"


def span_name(broker_set: str, number: int, unique: str) -> str:
    """The name of span ``number``. ``unique``: random text, since two owners may write a span of the same number."""
    return f"{broker_set}/{SPANS}/{number:0{DIGITS}}-{unique}"


def segment_folder(broker_set: str, start: int, epoch: int, unique: str) -> str:
    """The folder of the segment that begins at ``start``."""
    return f"{broker_set}/{SEGMENTS}/{start:0{DIGITS}}-{epoch}-{unique}"


def class_name(folder: str, number: int) -> str:
    """The name of the records of retention class ``number`` in the segment with ``folder``."""
    return f"{folder}/{number}.log"


def tail_name(broker_set: str, start: int, epoch: int, unique: str) -> str:
    """The name of the bytes from ``start`` on of a file that is still written."""
    return f"{broker_set}/{TAILS}/{start:0{DIGITS}}-{epoch}-{unique}"


def metadata_name(broker_set: str, epoch: int, unique: str) -> str:
    """The name of a copy of the metadata."""
    return f"{broker_set}/{METADATA}/{epoch}-{unique}"
