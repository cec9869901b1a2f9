"""Compressed bodies: zlib, LZ4 and Zstandard, with RocketMQ's bits in sysFlag.

LZ4 and Zstandard need the packages lz4 and zstandard (the extra ``compression``), which are loaded at the first use.
What comes out of a body is bounded: a body of some kilobytes may claim to hold gigabytes.
"""

import zlib
from importlib import import_module
from typing import Any, Final

from skylark.mqcommon.errors import InvalidArgument, ProtocolError
from skylark.mqcommon.extras import missing_extra
from skylark.mqcommon.message.flags import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_MASK,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
)

#: By name: the bits of sysFlag.
COMPRESSIONS: Final = {
    "zlib": COMPRESSED | COMPRESSION_ZLIB,
    "lz4": COMPRESSED | COMPRESSION_LZ4,
    "zstd": COMPRESSED | COMPRESSION_ZSTD,
}
# A body is decompressed to at most this many bytes.
MAX_CONTENT_BYTES = 64 * 1024 * 1024
#: RocketMQ's level of zlib and Zstandard. Its clients use LZ4 without a level.
LEVEL = 5
# Zstandard does not limit its output: it is fed in slices, each of which makes 16 MiB at the most.
_ZSTD_SLICE = 512
_MODULES = {COMPRESSION_LZ4: "lz4.frame", COMPRESSION_ZSTD: "zstandard"}


class MissingPackage(ProtocolError):
    """A body cannot be read here, since a package is not installed: the text says which, and how to install it."""


def _module(kind: int, what: str) -> Any:
    try:
        return import_module(_MODULES[kind])
    except ImportError as error:
        raise MissingPackage(missing_extra(what, "compression", error)) from None


def check_compression(name: str, value: str) -> None:
    """InvalidArgument unless ``value`` is the name of a compression that can be used here."""
    if value not in COMPRESSIONS:
        raise InvalidArgument(f"{name} must be one of {', '.join(map(repr, COMPRESSIONS))}, not {value!r}")
    kind = COMPRESSIONS[value] & COMPRESSION_MASK
    if kind in _MODULES:
        try:
            _module(kind, f"{name}={value!r}")
        except MissingPackage as missing:
            raise InvalidArgument(str(missing)) from None


def compressed(body: bytes, sys_flag: int, level: int = LEVEL) -> bytes:
    """``body``, compressed as the bits of ``sys_flag`` say, at ``level`` (not LZ4). For any thread."""
    kind = sys_flag & COMPRESSION_MASK
    if kind == COMPRESSION_LZ4:
        packed: bytes = _module(kind, "compression with LZ4").compress(body)
    elif kind == COMPRESSION_ZSTD:
        packed = _module(kind, "compression with Zstandard").ZstdCompressor(level=level).compress(body)
    else:
        packed = zlib.compress(body, level)
    return packed


def decompressed(body: bytes, sys_flag: int, most: int | None = None) -> bytes:
    """The content of a compressed body, of ``most`` bytes at most (by default MAX_CONTENT_BYTES).

    Raises ProtocolError when it is damaged, too large, or cannot be read here.
    """
    kind = sys_flag & COMPRESSION_MASK
    most = MAX_CONTENT_BYTES if most is None else most
    if kind in (0, COMPRESSION_ZLIB):
        return inflated(body, most)
    if kind not in _MODULES:
        raise ProtocolError(f"the body is compressed in a way that is not known (sysFlag {sys_flag:#x})")
    module = _module(kind, "the compressed body")
    try:
        return _unpacked(module, body, kind, most)
    except (RuntimeError, ValueError, EOFError) as error:
        raise ProtocolError(f"the compressed body is damaged: {error}") from None
    except Exception as error:
        # zstandard.ZstdError has no other base.
        if type(error).__name__ != "ZstdError":
            raise
        raise ProtocolError(f"the compressed body is damaged: {error}") from None


def _unpacked(module: Any, body: bytes, kind: int, most: int) -> bytes:
    parts: list[bytes] = []
    if kind == COMPRESSION_LZ4:
        unpacker = module.LZ4FrameDecompressor()
        parts.append(unpacker.decompress(body, most))
    else:
        unpacker = module.ZstdDecompressor().decompressobj()
        left = most
        for start in range(0, len(body), _ZSTD_SLICE):
            parts.append(unpacker.decompress(body[start : start + _ZSTD_SLICE]))
            left -= len(parts[-1])
            if left < 0:
                raise _cut_or_large(most)
            if unpacker.eof:
                break
    if not unpacker.eof:
        raise _cut_or_large(most)
    return b"".join(parts)


def inflated(data: bytes, most: int) -> bytes:
    """The content of zlib data. Raises ProtocolError when it is damaged or has more than ``most`` bytes."""
    inflate = zlib.decompressobj()
    try:
        found = inflate.decompress(data, most)
    except zlib.error as error:
        raise ProtocolError(f"the compressed body is damaged: {error}") from None
    if not inflate.eof:
        raise _cut_or_large(most)
    return found


def _cut_or_large(most: int) -> ProtocolError:
    return ProtocolError(f"the compressed body is cut short, or holds more than {most} bytes")
