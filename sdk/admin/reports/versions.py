"""The names of RocketMQ's version numbers, which clients and brokers report. Pure."""

from collections.abc import Iterator

_FIRST = (
    "SNAPSHOT ALPHA1 BETA1 BETA2 BETA3 BETA4 BETA5 BETA6_SNAPSHOT BETA6 BETA7_SNAPSHOT BETA7 "
    "BETA8_SNAPSHOT BETA8 BETA9_SNAPSHOT BETA9 FINAL"
)


# The names of RocketMQ's version numbers are in the order of its enum: 479 is ``V5_3_3``. Each release has two numbers,
# for its snapshot and for the release. Minor versions 3.3 to 3.9 have no patch 0.
def _patches() -> Iterator[str]:
    yield from (f"V3_0_{patch}" for patch in range(1, 16))
    for major, minors in ((3, range(1, 10)), (4, range(10)), (5, range(10))):
        for minor in minors:
            first = 1 if major == 3 and minor >= 3 else 0
            yield from (f"V{major}_{minor}_{patch}" for patch in range(first, 10))


def _names() -> Iterator[str]:
    yield from (f"V3_0_0_{stage}" for stage in _FIRST.split())
    for version in _patches():
        yield from (f"{version}_SNAPSHOT", version)
    yield "HIGHER_VERSION"


VERSION_NAMES = tuple(_names())


def version_name(version: int) -> str:
    """``V5_3_3`` for 479; numbers after the last are ``HIGHER_VERSION``."""
    return VERSION_NAMES[min(version, len(VERSION_NAMES) - 1)] if version >= 0 else str(version)
