"""Which manifest of a bucket a store was made from: the set's terms begin anew with the first broker of such a store.

All members were lost, and with them the Controllers' or the group's count of terms, by which the bucket tells owners
apart. A store that follows another owner of the set is no longer such a store.
File ``restoredFrom``: crc of the rest 4 | CBOR [number of the manifest, generation].
Neighbours: backup/from_bucket.py (writes it), tier/owner.py (begins anew).
"""

import cbor2

from skylark.mqcommon.disk.atomic import read_with_crc, write_with_crc
from skylark.mqcommon.disk.files import FileSystem

FILE_NAME = "restoredFrom"


class RestoredFrom:
    """The file in ``directory``. ``manifest``: (number, generation); None for other stores. Methods block."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._directory = directory
        self._path = f"{directory}/{FILE_NAME}"
        self.manifest: tuple[int, int] | None = None

    def load(self) -> None:
        """Read the file. A damaged file counts as missing: at the worst the broker has to have a later term."""
        data = read_with_crc(self._fs, self._path)
        if data is not None:
            number, generation = cbor2.loads(data)
            self.manifest = number, generation

    def note(self, number: int, generation: int) -> None:
        """Write down that the store was made from this manifest."""
        write_with_crc(self._fs, self._path, cbor2.dumps([number, generation]))
        self.manifest = number, generation

    def forget(self) -> None:
        """The terms have begun anew."""
        if self._fs.exists(self._path):
            self._fs.remove(self._path)
            self._fs.fsync_dir(self._directory)
        self.manifest = None
