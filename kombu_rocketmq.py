"""Lets kombu, and so Celery, find the URLs ``rocketmq://...``: kombu loads the serializers that are installed for it.

kombu has entry points for serializers (``kombu.serializers``), and a table of transports without one. So this module is
the serializer ``cbor``, and adds a row to the table of transports when kombu loads it. It imports nothing of the SDK:
programs with another broker pay for this file only. ``broker_transport = "skylark.integrations.kombu:Transport"`` does
without it.
"""

from typing import Any

from kombu.transport import TRANSPORT_ALIASES

SCHEME = "rocketmq"
TRANSPORT_ALIASES.setdefault(SCHEME, "skylark.integrations.kombu:Transport")


def encode(value: Any) -> bytes:
    """``value`` as CBOR."""
    from skylark.sdk.values.libraries import dumps_values

    return dumps_values(value, timezone=None, datetime_as_timestamp=False)


def decode(data: bytes) -> Any:
    """The value of CBOR, whose tags may stand for single values and for sets."""
    from skylark.remoting.protocol.strict_cbor import loads_values

    return loads_values(data)


#: Encoder, decoder, content type and content encoding, as kombu wants them.
CBOR = (encode, decode, "application/cbor", "binary")
