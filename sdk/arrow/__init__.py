"""Messages as Arrow record batches and back, column by column: no loop over messages, no brokers, no event loop.

schema.py    the columns of a message
records.py   where the fields of each record are, and Arrow arrays of such positions
decode.py    the record batch of one buffer of stored records, with properties and inner batches, or of messages
encode.py    the columns of a user's table, checked, and the body of a batch send

Only these modules need numpy and pyarrow, the extra ``arrow``; calls that need the modules import them. This file has
the types for annotations, and the error when the packages are missing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Protocol, TypeAlias

from skylark.mqcommon.extras import needs_extra

if TYPE_CHECKING:
    from pyarrow import RecordBatch as RecordBatch
    from pyarrow import Table as Table
else:
    RecordBatch = Table = object


class ArrowStream(Protocol):
    """An object that converts to a pyarrow.Table: a DataFrame of polars or pandas, a RecordBatchReader."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...


ArrowData: TypeAlias = RecordBatch | Table | ArrowStream


def check_arrow(what: str) -> None:
    """UserError unless the packages that ``what`` needs are installed."""
    for package in ("numpy", "pyarrow"):
        with needs_extra(what, "arrow"):
            import_module(package)
