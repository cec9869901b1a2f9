"""Configurations on the wire: ``key=value`` lines, as codes 25, 26, 318 and 319 carry them.

Servers parse them as Java properties (with backslash escapes) but print them without escapes, so `encode_config` and
`decode_config` are not inverse.
"""

from collections.abc import Mapping


def encode_config(values: Mapping[str, str]) -> bytes:
    """The text that a server parses into ``values``."""
    # Imported here, as javaproperties imports parsers of XML and of e-mail, and few commands change a configuration.
    import javaproperties

    return javaproperties.dumps(values, timestamp=None).encode()


def decode_config(text: bytes) -> dict[str, str]:
    """The values that a server printed, in its order."""
    values: dict[str, str] = {}
    for line in text.decode("utf-8", "replace").splitlines():
        key, equals, value = line.partition("=")
        if equals and key and not key.startswith("#"):
            values[key] = value
    return values
