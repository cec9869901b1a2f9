"""The warehouse: reserves what is in stock. An order that is delivered twice is reserved once."""

import json
import threading

from skylark import MessageExt

TOPIC = "orders"


class Warehouse:
    """The stock, and the reservation of each order. `handle` is a handler of a PushConsumer."""

    def __init__(self, stock: dict[str, int]) -> None:
        self.stock = dict(stock)
        self.reserved: dict[int, dict[str, int]] = {}
        self._changed = threading.Condition()

    def handle(self, message: MessageExt) -> None:
        """Reserve the items of an order. Messages are delivered at least once, so a known order is left alone."""
        order = json.loads(message.body)
        with self._changed:
            if order["number"] not in self.reserved:
                for item, count in order["items"].items():
                    self.stock[item] -= count
                self.reserved[order["number"]] = order["items"]
                self._changed.notify_all()

    def wait_for(self, orders: int, timeout_s: float = 30) -> bool:
        """Wait until ``orders`` orders are reserved."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self.reserved) >= orders, timeout_s)
