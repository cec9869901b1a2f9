"""What a format of bodies is, and its errors."""

from abc import ABC, abstractmethod
from typing import Any

import pyarrow as pa

from skylark.mqcommon.errors import SkylarkError, UserError
from skylark.mqcommon.extras import missing_extra

_SHOWN = 60


class BadValue(SkylarkError):
    """A body that has no value of the format and type, or a value that has no body; the text says why."""


class Format(ABC):
    """Bodies with values of one struct type. A value is what `pyarrow.array` takes for that type."""

    @abstractmethod
    def decode(self, body: bytes) -> Any:
        """The value of ``body``; BadValue when it has none."""

    @abstractmethod
    def encode(self, value: dict[str, Any]) -> bytes:
        """The body of ``value``, as `pyarrow.Array.to_pylist` gives it; BadValue when it cannot be written."""

    def decode_all(self, bodies: pa.Array) -> pa.Array | None:
        """The values of all ``bodies`` at once; None when the bodies must be decoded one by one."""
        return None


def shown(value: object) -> str:
    """The value in an error text."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return f"a long {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def missing(kind: str, error: ImportError) -> UserError:
    """The error when the package that reads and writes the format ``kind`` is not installed."""
    return UserError(f"{missing_extra(f'valueFormat={kind}', 'spark,formats', error)}, here and on all executors")
