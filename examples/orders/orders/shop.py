"""The shop: publishes each order. All orders of one customer keep their order."""

import json

from skylark import Message
from skylark.blocking import Producer

TOPIC = "orders"


class Shop:
    """Takes orders; ``producer`` is open."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def order(self, number: int, customer: str, items: dict[str, int]) -> None:
        """Returns when a broker has stored the order; raises SendFailed when none could."""
        body = json.dumps({"number": number, "customer": customer, "items": items}).encode()
        self._producer.send(Message(TOPIC, body, keys=f"order-{number}", tags="new", sharding_key=customer))
