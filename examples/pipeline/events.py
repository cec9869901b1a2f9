"""Sends orders and payments as JSON, some of them twice: python events.py NAMESERVER FIRST COUNT

Order n is one second later than order n - 1. Three of four orders are paid, half a minute later.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from skylark import Message
from skylark.blocking import Producer

SHOPS = ("north", "south", "west")
START = datetime(2026, 1, 1, tzinfo=UTC)
# One event in this many is sent twice.
TWICE = 10


class Event(NamedTuple):
    topic: str
    fields: Mapping[str, str | int]

    def message(self) -> Message:
        return Message(self.topic, json.dumps(self.fields).encode(), keys=str(self.fields["order_id"]))


def events_of(number: int) -> Iterator[Event]:
    """An order, and its payment if it is paid."""
    at = START + timedelta(seconds=number)
    order_id = f"order-{number}"
    amount = 100 + number * 7 % 1000
    yield Event(
        "orders",
        {"order_id": order_id, "shop": SHOPS[number % len(SHOPS)], "amount": amount, "at": at.isoformat()},
    )
    if number % 4:
        yield Event("payments", {"order_id": order_id, "paid_at": (at + timedelta(seconds=30)).isoformat()})


def messages(first: int, count: int) -> dict[str, list[Message]]:
    """The events of these orders by topic, some of them twice."""
    events = [event for number in range(first, first + count) for event in events_of(number)]
    found: dict[str, list[Message]] = {"orders": [], "payments": []}
    for event in [*events, *events[::TWICE]]:
        found[event.topic].append(event.message())
    return found


def main(nameserver: str, first: int, count: int) -> None:
    with Producer(nameserver) as producer:
        for topic, sent in messages(first, count).items():
            producer.send_many(topic, sent)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("nameserver")
    arguments.add_argument("first", type=int)
    arguments.add_argument("count", type=int)
    main(**vars(arguments.parse_args()))
