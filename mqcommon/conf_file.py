"""Changes a conf file that a user wrote: values are replaced in place, the rest stays as it was.

Neighbours: options.py reads these files; the daemons save options here that an administrator changed at run time.
"""

from collections.abc import Mapping

import javaproperties

from mqcommon.atomic import write_atomic
from mqcommon.files import FileSystem


def edit(text: str, changes: Mapping[str, str]) -> str:
    """A properties text with ``changes`` applied; comments, blank lines and order are kept, new keys come last."""
    file = javaproperties.PropertiesFile.loads(text)
    for key, value in changes.items():
        file[key] = value
    edited: str = file.dumps(separator="=")
    return edited


def save_changes(fs: FileSystem, path: str, changes: Mapping[str, str]) -> None:
    """Apply ``changes`` to the file, which is created when missing; the old one is kept as ``.bak``. Blocks."""
    data = fs.read(path) if fs.exists(path) else b""
    try:
        text, encoding = data.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:  # the encoding of Java's own properties; decoding it never fails
        text, encoding = data.decode("iso-8859-1"), "iso-8859-1"
    write_atomic(fs, path, edit(text, changes).encode(encoding), keep_backup=True)
