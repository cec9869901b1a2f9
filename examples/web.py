"""An asyncio web application with a producer and a consumer: an ASGI application, as FastAPI and Starlette make them.

    NAMESRV_ADDR=127.0.0.1:9876 uvicorn web:app

`POST /orders` stores the body of the request as a message and answers with its id; `GET /orders` answers with how many
orders this process has consumed; `GET /healthz` answers 503 with the reason while the consumer cannot work. In FastAPI
the `async with` of `lifespan` stands in the lifespan function, and `send_order` and `count_orders` are route functions.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from skylark import Message, MessageExt, SendFailed
from skylark.aio import Client, Producer, PushConsumer

TOPIC = "orders"
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Orders:
    """The application. ``nameserver`` is by default $NAMESRV_ADDR."""

    def __init__(self, nameserver: str | None = None) -> None:
        self._nameserver = nameserver
        self._producer: Producer | None = None
        self._consumer: PushConsumer | None = None
        self.consumed = 0

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Producer and consumer share one client, and with it one thread and its connections."""
        async with (
            Client(self._nameserver) as client,
            Producer(client) as self._producer,
            PushConsumer(client, group="web", subscriptions={TOPIC: "*"}, handler=self.handle) as self._consumer,
        ):
            yield

    async def handle(self, message: MessageExt) -> None:
        """Handle a message; runs in the application's loop, and may await anything."""
        self.consumed += 1

    async def send_order(self, body: bytes) -> tuple[int, dict[str, Any]]:
        """POST /orders. When the request is cancelled, the send is, too."""
        assert self._producer is not None
        try:
            result = await self._producer.send(Message(TOPIC, body))
        except SendFailed as error:
            return 503, {"error": str(error)}
        return 201, {"id": result.msg_id}

    async def count_orders(self) -> tuple[int, dict[str, Any]]:
        """GET /orders."""
        return 200, {"consumed": self.consumed}

    async def health(self) -> tuple[int, dict[str, Any]]:
        """GET /healthz."""
        problem = None if self._consumer is None else self._consumer.problem
        return (200, {"problem": None}) if problem is None else (503, {"problem": str(problem)})

    # --- ASGI

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            async with self.lifespan():
                await send({"type": "lifespan.startup.complete"})
                await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        match scope["method"], scope["path"]:
            case "POST", "/orders":
                status, answer = await self.send_order(await _body(receive))
            case "GET", "/orders":
                status, answer = await self.count_orders()
            case "GET", "/healthz":
                status, answer = await self.health()
            case _:
                status, answer = 404, {"error": "no such page"}
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


async def _body(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        part = await receive()
        body, more = body + part.get("body", b""), part.get("more_body", False)
    return body


app = Orders()
