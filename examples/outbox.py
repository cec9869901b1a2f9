"""A web service whose orders and the messages about them are stored together: an outbox by transactional messages.

    NAMESRV_ADDR=127.0.0.1:9876 uvicorn --factory outbox:make_app

`POST /orders` with `{"item": "tea", "amount": 3}` stores the order in SQLite and publishes it; a handler of the same
service makes its bill. `GET /orders` lists the orders with their bills. A message becomes visible when its order is
committed. When the service dies in between, the broker asks the next process of the service, whose `was_stored` looks
into the database. So there is no order without its message, no message without its order, and no table of messages to
be sent that somebody must poll.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any
from uuid import uuid4

from fastapi import FastAPI
from pydantic import BaseModel, PositiveInt

from skylark import MessageExt, TransactionState, Values
from skylark.aio import TransactionProducer
from skylark.integrations.faststream.fastapi import RocketRouter

TOPIC = "orders"
SCHEMA = "CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, item TEXT, amount INTEGER, bill TEXT)"


class NewOrder(BaseModel):
    item: str
    amount: PositiveInt


class Order(NewOrder):
    id: str


class Shop:
    """The database. Each call has a connection of its own, in a thread."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._run(SCHEMA)

    def _run(self, statement: str, *values: object) -> list[Any]:
        with closing(sqlite3.connect(self._path)) as database, database:
            return database.execute(statement, values).fetchall()

    async def add(self, order: Order) -> None:
        statement = "INSERT INTO orders VALUES (?, ?, ?, NULL)"
        await asyncio.to_thread(self._run, statement, order.id, order.item, order.amount)

    async def has(self, order_id: str | None) -> bool:
        return bool(await asyncio.to_thread(self._run, "SELECT 1 FROM orders WHERE id = ?", order_id))

    async def bill(self, order: Order) -> None:
        # A message may come twice: the second bill replaces the equal first bill.
        text = f"{order.amount} x {order.item}"
        await asyncio.to_thread(self._run, "UPDATE orders SET bill = ? WHERE id = ?", text, order.id)

    async def all(self) -> dict[str, str | None]:
        return dict(await asyncio.to_thread(self._run, "SELECT id, bill FROM orders"))


def make_app(nameserver: str | None = None, database: str = "shop.db") -> FastAPI:
    """The application. ``nameserver`` is by default $NAMESRV_ADDR."""
    shop, orders = Shop(database), Values(Order)

    async def was_stored(message: MessageExt) -> TransactionState:
        """The outcome of the transaction of a message, for a broker that has not heard it."""
        return TransactionState.COMMIT if await shop.has(message.keys) else TransactionState.ROLLBACK

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await router.broker.connect()
        # With `topics` the broker can ask as soon as the service is back.
        app.state.producer = TransactionProducer(
            router.broker.client, group="shop-outbox", checker=was_stored, topics=[TOPIC]
        )
        async with app.state.producer:
            yield

    router = RocketRouter(nameserver, group="shop", lifespan=lifespan)

    @router.subscriber(TOPIC)
    async def bill(order: Order) -> None:
        await shop.bill(order)

    @router.post("/orders", status_code=201)
    async def place(new: NewOrder) -> Order:
        order = Order(id=uuid4().hex, **new.model_dump())
        # An error in the block rolls the message back; the order is not stored then, either.
        async with app.state.producer.transaction(orders.message(TOPIC, order, keys=order.id)):
            await shop.add(order)
        return order

    @router.get("/orders")
    async def listed() -> dict[str, str | None]:
        return await shop.all()

    app = FastAPI(title="Shop")
    app.include_router(router)
    return app
