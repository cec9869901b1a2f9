"""Files of dead letters: JSON lines, and Parquet if the extra ``arrow`` is installed.

A file is written under a temporary name and renamed when it is complete, so that nobody takes a part for the whole.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, BinaryIO, Protocol

import orjson

from skylark.mqcommon.errors import InvalidArgument, UserError
from skylark.sdk.admin.dead_letters import DeadLetter
from skylark.sdk.admin.reports.letter_lines import line_of, story_of
from skylark.sdk.admin.reports.message_report import body_of, message_report
from skylark.sdk.admin.reports.report import plain
from skylark.sdk.runtime import off_loop

FORMATS = ("jsonl", "parquet")
# The columns of a dead letter beside the columns of a message.
STORY = ("group", "originTopic", "failReason", "failClient", "failTime", "resentTimes")


class Rows(Protocol):
    """An open file of rows; its methods block, and are called in a thread."""

    def write(self, letters: Sequence[DeadLetter]) -> None: ...

    def close(self) -> None: ...


def format_of(path: str, file_format: str | None) -> str:
    """``file_format``, or else the format that the end of ``path`` names."""
    if file_format is None:
        file_format = "parquet" if path.endswith(".parquet") else "jsonl"
    if file_format not in FORMATS:
        raise InvalidArgument(f"file_format must be one of {', '.join(FORMATS)}, not {file_format!r}")
    if file_format == "parquet":
        # Checked before a file is opened: without the packages the only thing to do is to raise.
        from skylark.sdk.arrow import check_arrow

        check_arrow("a Parquet file")
    return file_format


class DeadLetterFile:
    """``async with DeadLetterFile(path, "jsonl") as file: await file.write(letters)``"""

    def __init__(self, path: str, file_format: str) -> None:
        self._path = path
        self._part = f"{path}.part"
        self._format = file_format
        self._rows: Rows | None = None

    async def __aenter__(self) -> "DeadLetterFile":
        self._rows = await off_loop(self._open)
        return self

    async def write(self, letters: Sequence[DeadLetter]) -> None:
        """Append the letters."""
        rows = self._rows
        assert rows is not None
        await off_loop(lambda: rows.write(letters))

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # After an error, clean up here and not in a thread: the caller may be cancelled, and the partial file must go.
        rows = self._rows
        assert rows is not None
        if error is not None:
            # On a full disk the last write fails again; this must not hide the first error.
            with suppress(OSError):
                rows.close()
            os.unlink(self._part)
            return
        await off_loop(self._finish)

    def _open(self) -> Rows:
        try:
            file = open(self._part, "wb")  # noqa: SIM115  closed by its rows
        except OSError as error:
            raise UserError(f"{self._path} cannot be written: {error.strerror}") from None
        return JsonLines(file) if self._format == "jsonl" else Parquet(file)

    def _finish(self) -> None:
        assert self._rows is not None
        try:
            self._rows.close()
            # Without this fsync a power loss could leave an empty file under the final name.
            with open(self._part, "rb") as file:
                os.fsync(file)
            os.replace(self._part, self._path)
        except OSError as error:
            os.unlink(self._part)
            raise UserError(f"{self._path} cannot be written: {error.strerror}") from error


class JsonLines:
    """A JSON object in each line: STORY and the members that mqadmin prints of a message."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, letters: Sequence[DeadLetter]) -> None:
        self._file.write(b"".join([orjson.dumps(plain(line_of(letter))) + b"\n" for letter in letters]))

    def close(self) -> None:
        self._file.close()


class Parquet:
    """STORY and the columns of record batches (docs/guides/arrow.md), a row group for each part."""

    def __init__(self, file: BinaryIO) -> None:
        import pyarrow as pa
        from pyarrow.parquet import ParquetWriter

        from skylark.sdk.arrow.schema import COLUMNS

        time, text = COLUMNS["storeTimestamp"], pa.string()
        types = {name: text for name in STORY} | {"failTime": time, "resentTimes": pa.int32()}
        self._schema = pa.schema([*types.items(), *COLUMNS.items()])
        self._file = file
        self._writer = ParquetWriter(file, self._schema)

    def write(self, letters: Sequence[DeadLetter]) -> None:
        import pyarrow as pa

        from skylark.sdk.arrow.schema import microseconds

        if letters:
            rows = [{**plain(story_of(letter)), **columns_of(letter)} for letter in letters]
            for row in rows:
                row["failTime"] = microseconds(row["failTime"])
            self._writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=self._schema))

    def close(self) -> None:
        with self._file:
            self._writer.close()


# Arrow takes a row as a dictionary.
def columns_of(letter: DeadLetter) -> dict[str, Any]:
    """The values of a message's columns; times in microseconds."""
    from skylark.sdk.arrow.schema import microseconds

    message = letter.message
    return {
        **plain(message_report(message, with_body=False)),
        "body": body_of(message),
        "bornTimestamp": microseconds(message.born_timestamp),
        "storeTimestamp": microseconds(message.store_timestamp),
        "properties": list(message.properties.items()),
    }
