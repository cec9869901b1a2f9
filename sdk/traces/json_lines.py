"""`JsonLinesSink`: traces as lines of JSON in a file of bounded size."""

import io
import os
import threading
from collections.abc import Sequence

import orjson

from mqcommon.logs.rotated_file import RotatedFile, Rotation
from sdk.checked import Count, NotNegative, checked_methods
from sdk.traces.sink import Document


@checked_methods
class JsonLinesSink:
    """Appends each record to the file ``path`` as a line of JSON.

    A file of ``max_bytes`` is renamed to ``path.1``, an older one to ``path.2``, and so on; ``keep`` of them are kept.
    A file that somebody renames or removes is made again. Give each process its own file.
    """

    def __init__(self, path: str, *, max_bytes: Count = 100 * 1024 * 1024, keep: NotNegative = 5) -> None:
        self._file = RotatedFile(os.path.expanduser(path), Rotation(max_bytes, 0, keep))
        self._lock = threading.Lock()

    def write(self, documents: Sequence[Document]) -> None:
        """Append the documents; raises OSError when there is no room, or no such directory can be made."""
        # Each text is freed at once: keeping a list of them makes orjson ten times slower.
        lines = io.BytesIO()
        for document in documents:
            lines.write(orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE))
        with self._lock:
            self._file.write(lines.getvalue())

    def close(self) -> None:
        """Close the file; the next write opens it again."""
        with self._lock:
            self._file.close()
