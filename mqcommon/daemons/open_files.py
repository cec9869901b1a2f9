"""The limit of open files of this process (ulimit -n)."""

import resource

_UNLIMITED = 1 << 30


def raise_open_files() -> None:
    """Raise the soft limit to the hard one: the usual 1024 is meant for programs that use select."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def open_files_limit() -> int:
    """How many descriptors this process may have."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if limit == resource.RLIM_INFINITY else limit
