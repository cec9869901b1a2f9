"""Addresses of servers as text: ``host:port``. Pure."""


def split_address(addr: str) -> tuple[str, int]:
    """(host, port) of ``host:port`` or ``[v6]:port``; ValueError with a clear text otherwise."""
    host, colon, port = addr.rpartition(":")
    is_number = port.isascii() and port.isdecimal() and len(port) <= 5
    if not colon or not host or not is_number or not 0 < int(port) < 65536:
        raise ValueError(f"{addr!r} is not an address of the form host:port")
    return host.strip("[]"), int(port)


def format_address(host: str, port: int) -> str:
    """``host:port``; a v6 address is put in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_address(text: str) -> bool:
    """Whether `split_address` accepts ``text``."""
    try:
        split_address(text)
    except ValueError:
        return False
    return True


def is_any_address(host: str) -> bool:
    """Whether a server that listens on ``host`` is reached on all interfaces of its machine."""
    return host in ("", "0.0.0.0", "::")
