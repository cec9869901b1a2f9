"""Columns of bodies to columns of values, and back."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from skylark.mqcommon.errors import SkylarkError
from skylark.spark_connector.formats.format import BadValue, Format

# What Arrow raises for a value that its type cannot hold.
_UNFIT = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, TypeError, ValueError)


class Decoded(NamedTuple):
    """The values, null in ``bad`` rows; ``bad`` has the reason of each."""

    values: pa.Array
    bad: Mapping[int, str]


def decode_column(form: Format, bodies: pa.Array, kind: pa.DataType) -> Decoded:
    """The values of ``bodies`` as a column of the type ``kind``."""
    whole = form.decode_all(bodies)
    if whole is not None:
        return Decoded(whole, {})
    values: list[Any] = []
    bad: dict[int, str] = {}
    for row, body in enumerate(bodies.to_pylist()):
        try:
            values.append(form.decode(body))
        except BadValue as error:
            values.append(None)
            bad[row] = str(error)
    try:
        return Decoded(pa.array(values, kind), bad)
    except _UNFIT:
        for row, value in enumerate(values):
            if (reason := _misfit(value, kind)) is not None:
                values[row] = None
                bad[row] = reason
        return Decoded(pa.array(values, kind), bad)


def _misfit(value: Any, kind: pa.DataType) -> str | None:
    """Why ``value`` cannot be of ``kind``, with the field; None when it can."""
    try:
        pa.array([value], kind)
    except _UNFIT as error:
        if pa.types.is_struct(kind) and isinstance(value, dict):
            for field in kind:
                if (reason := _misfit(value.get(field.name), field.type)) is not None:
                    return f"field {field.name}: {reason}"
        return f"it does not fit the type {kind}: {error}"
    return None


class RowUnwritable(SkylarkError):
    """The value of the row number ``row`` has no body."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(row, reason)
        self.row = row
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


def encode_column(form: Format, values: pa.Array) -> pa.Array:
    """The bodies of ``values``; null where a value is. Raises RowUnwritable."""
    bodies: list[bytes | None] = []
    for row, value in enumerate(values.to_pylist()):
        try:
            bodies.append(None if value is None else form.encode(value))
        except BadValue as error:
            raise RowUnwritable(row, str(error)) from None
    return pa.array(bodies, pa.binary())
