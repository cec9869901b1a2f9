"""What an integration says when the packages of its extra are not installed."""

from collections.abc import Iterator
from contextlib import contextmanager

from skylark.mqcommon.extras import missing_extra


@contextmanager
def extra(what: str, name: str, *packages: str) -> Iterator[None]:
    """The block imports modules of ``what`` that need the extra ``name``, which installs ``packages``."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in packages:
            raise
        raise ModuleNotFoundError(missing_extra(what, name, error), name=error.name) from None
