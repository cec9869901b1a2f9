"""Whether the commit log on disk has files of the configured size; a Java broker's directory may have any."""

from broker.store.log.segment import NAME_DIGITS
from mqcommon.errors import ConfigError
from mqcommon.files import FileSystem

KEY = "mappedFileSizeCommitLog"


def refuse_other_size(fs: FileSystem, directory: str, configured: int, *, ours: bool) -> None:
    """ConfigError when the files in ``directory`` were made with another size.

    ``ours``: the store was open here before, and a single short file is one whose allocation a crash cut off.
    """
    names = [name for name in fs.listdir(directory) if len(name) == NAME_DIGITS and name.isdigit()]
    if not names:
        return
    path = f"{directory}/{names[0]}"
    found = fs.size(path)
    if found in (0, configured) or (found < configured and ours and len(names) == 1):
        return
    if int(names[0]) % found or (len(names) > 1 and int(names[1]) - int(names[0]) != found):
        return  # no size of files: a cut one, or a damaged one, of which whoever loads the files tells
    raise ConfigError(
        f"{path} has {found} bytes, but {KEY} is {configured}: set {KEY}={found} in the conf file; "
        "the size cannot change for a store that has messages"
    )
