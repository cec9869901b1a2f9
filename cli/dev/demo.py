"""Keeps a few topics busy for `skylark dev --demo`, so that the console has something to show.

Topic orders: the group shipping keeps up, and gives up now and then on an order, which becomes a dead letter; the
group reports is slower than the orders come, and lags a bit before it catches up. Topic clicks has no group.
"""

from collections.abc import Awaitable, Callable
from itertools import count

import trio

from skylark import Client, ConsumeFrom, ConsumeResult, Message, MessageExt, Producer, PushConsumer

ORDERS, CLICKS = "orders", "clicks"
SHIPPING, REPORTS = "shipping", "reports"
_PAUSE_S = 0.2
# Reports take longer than the pause between orders for this many orders, and no time for as many after them.
_SLOW_ORDERS = 100
_SLOW_REPORT_S = 0.3
_MOST_CLICKS = 8
_NO_CITY_EVERY = 150
_CITIES = ("Berlin", "Lima", "Oslo", "Osaka")


Handler = Callable[[MessageExt], Awaitable[ConsumeResult | None]]


async def run_demo(namesrv: str) -> None:
    """Send and consume until cancelled."""
    async with (
        Client(namesrv) as client,
        Producer(client, group="shop") as producer,
    ):
        # Before the consumers, which would warn of a topic that does not exist.
        await _send(producer, 1)
        async with _consumer(client, SHIPPING, _ship), _consumer(client, REPORTS, _slow_reports()):
            for number in count(2):
                await trio.sleep(_PAUSE_S)
                await _send(producer, number)


async def _send(producer: Producer, number: int) -> None:
    """Send an order and some clicks."""
    city = _CITIES[number % len(_CITIES)] if number % _NO_CITY_EVERY else ""
    body = f'{{"order": {number}, "city": "{city}"}}'.encode()
    await producer.send(Message(ORDERS, body, tags=city or None, keys=f"order-{number}"))
    await producer.send_many(CLICKS, [b"click"] * (1 + number % _MOST_CLICKS))


def _consumer(client: Client, group: str, handler: Handler) -> PushConsumer:
    return PushConsumer(
        client,
        group=group,
        subscriptions={ORDERS: "*"},
        handler=handler,
        concurrency=1,
        consume_from=ConsumeFrom.FIRST_OFFSET,
        # A message that is not consumed becomes a dead letter at once.
        max_reconsume_times=0,
    )


async def _ship(order: MessageExt) -> ConsumeResult:
    return ConsumeResult.SUCCESS if order.tags else ConsumeResult.LATER


def _slow_reports() -> Handler:
    numbers = count()

    async def report(order: MessageExt) -> None:
        if next(numbers) % (2 * _SLOW_ORDERS) < _SLOW_ORDERS:
            await trio.sleep(_SLOW_REPORT_S)

    return report
