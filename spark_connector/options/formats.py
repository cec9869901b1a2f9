"""The options of formats, which reading and writing declare both: `valueFormat`, `valueSchema`, `valueMessage`.

Neighbours: read.py and write.py (declarations), formats/ (the formats).
"""

import os
from pathlib import Path
from typing import Protocol

from skylark.mqcommon.errors import UserError
from skylark.spark_connector.formats.format_spec import AVRO, CBOR, JSON, PROTOBUF, FormatSpec

FORMATS = (JSON, AVRO, CBOR, PROTOBUF)
FORMAT_HELP = "bodies are of this format: the column `value` is a struct in place of the body"
MESSAGE_HELP = "the full name of the message in the file of valueSchema, for protobuf"


class FormatOptions(Protocol):
    """The options of a format."""

    @property
    def value_format(self) -> str: ...
    @property
    def value_schema(self) -> str: ...
    @property
    def value_message(self) -> str: ...


def check_format(options: FormatOptions) -> None:
    """Raise UserError for combinations of these options that are invalid."""
    kind = options.value_format
    if not kind and (options.value_schema or options.value_message):
        raise UserError("options valueSchema and valueMessage need valueFormat")
    if kind in (AVRO, PROTOBUF) and not options.value_schema:
        raise UserError(f"option valueFormat: {kind} needs valueSchema")
    if kind == PROTOBUF and not options.value_message:
        raise UserError("option valueFormat: protobuf needs valueMessage, the full name of the message")
    if kind != PROTOBUF and options.value_message:
        raise UserError("option valueMessage belongs to valueFormat=protobuf")


def value_spec(options: FormatOptions) -> FormatSpec | None:
    """The format of bodies, None when bodies are left as they are. Reads the descriptor file, so on the driver."""
    if not options.value_format:
        return None
    if options.value_format == AVRO:
        return FormatSpec(AVRO, schema=options.value_schema)
    if options.value_format != PROTOBUF:
        return FormatSpec(options.value_format)
    path = Path(os.path.expanduser(options.value_schema))
    try:
        return FormatSpec(PROTOBUF, descriptors=path.read_bytes(), message=options.value_message)
    except OSError as error:
        raise UserError(
            f"option valueSchema: {path} cannot be read here, on the driver: {error.strerror}; with protobuf it is the"
            " file of protoc --include_imports --descriptor_set_out"
        ) from None
