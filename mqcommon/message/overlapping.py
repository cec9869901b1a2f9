"""Reads fields at any places of a buffer as numpy arrays. Needs numpy. Pure."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def overlapping(data: bytes | memoryview | NDArray[np.uint8], kind: str | np.dtype[Any]) -> NDArray[Any]:
    """A view of ``data`` with a value of type ``kind`` at every byte; index it with places to read a field there."""
    return np.ndarray(max(len(data) - np.dtype(kind).itemsize + 1, 0), kind, data, strides=(1,))
