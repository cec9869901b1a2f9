"""Checks that the commit log's files have the configured size: a Java broker's directory may have any."""

from broker.store.log.segment import NAME_DIGITS
from mqcommon.disk.files import FileSystem
from mqcommon.errors import ConfigError

KEY = "mappedFileSizeCommitLog"


def refuse_other_size(fs: FileSystem, directory: str, configured: int, *, ours: bool) -> None:
    """ConfigError if the files in ``directory`` were made with another size.

    ``ours``: Skylark has used the store. A single short file is then one that a crash kept from being allocated.
    """
    names = [name for name in fs.listdir(directory) if len(name) == NAME_DIGITS and name.isdigit()]
    if not names:
        return
    path = f"{directory}/{names[0]}"
    found = fs.size(path)
    if found in (0, configured) or (found < configured and ours and len(names) == 1):
        return
    if int(names[0]) % found or (len(names) > 1 and int(names[1]) - int(names[0]) != found):
        return  # not a possible file size: a damaged file, which the load of the files reports
    raise ConfigError(
        f"{path} has {found} bytes, but {KEY} is {configured}: set {KEY}={found} in the conf file; "
        "the size cannot change for a store that has messages"
    )
