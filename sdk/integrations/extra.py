"""What an integration says when the packages of its extra are not installed."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def extra(name: str, *packages: str) -> Iterator[None]:
    """The block imports modules that need the extra ``name``, which installs ``packages``."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in packages:
            raise
        text = f"{error.msg}: this needs Skylark's extra {name}: pip install 'skylark-mq[{name}]'"
        raise ModuleNotFoundError(text, name=error.name) from None
