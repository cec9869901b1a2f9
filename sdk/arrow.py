"""Arrow in the SDK: types for annotations, and the error when the packages of the extra ``arrow`` are missing.

Only `mqcommon.arrow` needs the packages. It is imported where a call needs it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Protocol, TypeAlias

from mqcommon.errors import UserError

if TYPE_CHECKING:
    from pyarrow import RecordBatch as RecordBatch
    from pyarrow import Table as Table
else:
    RecordBatch = Table = object


class ArrowStream(Protocol):
    """What a pyarrow.Table can be made of: a DataFrame of polars or pandas, a RecordBatchReader."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...


ArrowData: TypeAlias = RecordBatch | Table | ArrowStream


def check_arrow(what: str) -> None:
    """UserError unless the packages that ``what`` needs are installed."""
    for package in ("numpy", "pyarrow"):
        try:
            import_module(package)
        except ImportError:
            text = f"{what} needs the package {package}, which is not installed: pip install 'skylark-mq[arrow]'"
            raise UserError(text) from None
