"""`RocketRouter` for FastAPI: what handlers get, the life of the application, and its schema."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, Header
from fastapi.exceptions import RequestValidationError
from fastapi.testclient import TestClient
from faststream import Context as PlainContext
from faststream import Depends as PlainDepends
from faststream._internal.fastapi.context import Context
from faststream._internal.fastapi.route import StreamMessage
from faststream.exceptions import SetupError
from pydantic import BaseModel

from skylark.sdk.integrations.faststream import RocketRouter as PlainRouter
from skylark.sdk.integrations.faststream.fastapi import RocketRouter
from skylark.sdk.integrations.faststream.testing import TestRocketBroker
from tests.sdk.facades.adapter import in_asyncio
from tests.sdk.integrations.faststream.services import Place, Seen


class Order(BaseModel):
    number: int


def router_in(place: Place, **options: Any) -> RocketRouter:
    return RocketRouter(place.nameserver, group="web", logger=None, **options)


@pytest.fixture
def router() -> RocketRouter:
    """The router of tests in memory."""
    return RocketRouter(group="web", logger=None)


# --- handlers


@in_asyncio
async def test_a_handler_gets_messages_and_its_result_is_published(place: Place) -> None:
    router, got = router_in(place), Seen()
    first, second, answered = place.topic(), place.topic(), place.topic()

    @router.subscriber(first)
    @router.subscriber(second)
    @router.publisher(answered)
    async def handle(order: Order) -> Order:
        return Order(number=order.number + 1)

    @router.subscriber(answered)
    async def note(order: Order) -> None:
        got.append(order.number)

    async with place.running(router.broker):
        await router.broker.publish({"number": 1}, first)
        await got.reaches(1)
        await router.broker.publish({"number": 2}, second)
        await got.reaches(2)
    assert got == [2, 3]


@in_asyncio
async def test_a_handler_has_context_headers_scope_and_tasks_for_later(place: Place) -> None:
    router, topic, got = router_in(place), place.topic(), Seen()

    async def later(text: str) -> None:
        got.append(f"later {text}")

    @router.subscriber(topic)
    async def handle(
        text: str,
        raw: StreamMessage,
        tasks: BackgroundTasks,
        shop: Annotated[str, Header()],
        numbers: Annotated[list[int], Context("numbers", initial=list)],
        headers: Annotated[Any, Context("message.headers")],
        city: str = Context("message.headers.city"),
    ) -> None:
        numbers.append(len(numbers))
        tasks.add_task(later, text)
        got.append((shop, headers["shop"], city, "app" in raw.scope, numbers == router.context.get("numbers")))

    async with place.running(router.broker):
        for count in (2, 4):
            await router.broker.publish("tea", topic, headers={"shop": "north", "city": "Ayr"})
            await got.reaches(count)
    assert got == [("north", "north", "Ayr", True, True), "later tea"] * 2
    assert router.context.get("numbers") == [0, 1]
    router.context.reset_global("numbers")


@in_asyncio
async def test_dependencies_are_those_of_fastapi(router: RocketRouter) -> None:
    noted: list[str] = []

    def of(name: str) -> Any:
        def depend(item: str) -> Iterator[str]:
            noted.append(f"begin {name}")
            yield f"{name} {item}"
            noted.append(f"end {name}")

        return Depends(depend)

    web = RocketRouter(group="web", logger=None, dependencies=[of("router")])

    @web.subscriber("orders", dependencies=[of("subscriber")])
    async def handle(item: str, count: int, given: Annotated[str, of("handler"), PlainDepends(_never)]) -> str:
        noted.append("handle")
        return f"{count} {item} {given}"

    async with TestRocketBroker(web.broker) as broker:
        reply = await broker.request({"item": "tea", "count": "2"}, "orders")
        assert await reply.decode() == "2 tea handler tea"
    names = ("router", "subscriber", "handler")
    assert noted[:4] == [*(f"begin {name}" for name in names), "handle"]
    assert sorted(noted[4:]) == sorted(f"end {name}" for name in names)


def _never() -> None:
    raise AssertionError("FastAPI's dependency is beside it")


@in_asyncio
async def test_the_application_may_put_other_dependencies_in_their_place(router: RocketRouter) -> None:
    app = FastAPI()
    app.dependency_overrides[_never] = lambda: "other"

    @router.subscriber("orders")
    async def handle(given: Annotated[str, Depends(_never)]) -> str:
        return given

    app.include_router(router)
    async with TestRocketBroker(router.broker) as broker:
        with TestClient(app):
            assert await (await broker.request(None, "orders")).decode() == "other"


@in_asyncio
async def test_a_value_that_does_not_fit_is_an_error_of_the_request(router: RocketRouter) -> None:
    @router.subscriber("orders")
    async def handle(number: int) -> None: ...

    async with TestRocketBroker(router.broker) as broker:
        with pytest.raises(RequestValidationError):
            await broker.publish("tea", "orders")


@pytest.mark.parametrize("others", [False, True])
@in_asyncio
async def test_a_result_has_the_fields_of_its_response_model(others: bool) -> None:
    class Bill(BaseModel):
        number: int
        note: str = "none"

    web = RocketRouter(group="web", logger=None)

    @web.subscriber("orders", response_model=Bill, response_model_exclude_defaults=not others)
    async def handle(number: int) -> dict[str, Any]:
        return {"number": number, "secret": "not shown"}

    async with TestRocketBroker(web.broker) as broker:
        reply = await (await broker.request(7, "orders")).decode()
    assert reply == ({"number": 7, "note": "none"} if others else {"number": 7})


# What FastStream injects is nothing that FastAPI knows, unless it has its own beside it.
ARGUMENTS = {
    "depends": (PlainDepends(_never), None, True),
    "annotated depends": (None, Annotated[Any, PlainDepends(_never)], True),
    "context": (PlainContext(), None, True),
    "annotated context": (None, Annotated[Any, PlainContext()], True),
    "both depends": (None, Annotated[Any, PlainDepends(_never), Depends(_ignore := lambda: None)], False),
    "both contexts": (None, Annotated[Any, Context("message"), PlainContext("message")], False),
    "nested contexts": (None, Annotated[Annotated[Any, PlainContext("message")], Context("message")], False),
}


@pytest.mark.parametrize("name", ARGUMENTS)
@in_asyncio
async def test_arguments_of_faststream_are_refused_at_the_start(router: RocketRouter, name: str) -> None:
    default, annotation, is_refused = ARGUMENTS[name]
    app = FastAPI()
    if annotation is None:

        async def handle(value: Any = default) -> None: ...
    else:

        async def handle(value: annotation) -> None: ...  # type: ignore[misc]

    router.subscriber("orders")(handle)
    app.include_router(router)

    async def start() -> None:
        async with TestRocketBroker(router.broker):
            with TestClient(app):
                pass

    if is_refused:
        with pytest.raises(SetupError):
            await start()
    else:
        await start()


# --- the application


@pytest.mark.parametrize("has_state", [True, False])
@in_asyncio
async def test_the_application_starts_the_broker_and_has_it_as_its_state(place: Place, has_state: bool) -> None:
    noted = Seen()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        noted.append("begin")
        yield {"shop": "north"}
        noted.append("end")

    router, topic = router_in(place, lifespan=lifespan, setup_state=has_state), place.topic()
    app = FastAPI()

    @router.subscriber(topic)
    async def handle(text: str) -> None:
        noted.append(text)

    @router.after_startup
    async def started(given: FastAPI) -> None:
        noted.append(("started", given is app))

    @router.after_startup
    def started_too(given: FastAPI) -> None:
        noted.append(("started, too", given is app))

    @router.on_broker_shutdown
    async def stopped(given: FastAPI) -> None:
        noted.append(("stopped", given is app))

    app.include_router(router)
    async with asyncio.timeout(60):
        tested = TestRocketBroker(router.broker, with_real=not place.is_in_memory, connect_only=True)
        async with tested, router.lifespan_context(app) as state:
            assert state == ({"shop": "north", "broker": router.broker} if has_state else None)
            await router.broker.publish("tea", topic)
            await noted.reaches(4)
        await router.broker.stop()
    assert noted == ["begin", ("started", True), ("started, too", True), "tea", ("stopped", True), "end"]


@in_asyncio
async def test_a_router_of_a_broker_may_be_included_but_no_second_one_of_fastapi(router: RocketRouter) -> None:
    plain, app = PlainRouter(prefix="eu-"), FastAPI()

    @plain.subscriber("orders")
    async def handle(text: str) -> str:
        return f"answer to {text}"

    router.include_router(plain)
    app.include_router(router)
    async with TestRocketBroker(router.broker) as broker:
        with TestClient(app) as client:
            assert client.app_state["broker"] is broker
            assert await (await broker.request("tea", "eu-orders")).decode() == "answer to tea"
    with pytest.raises(TypeError, match="not supported"):
        router.include_router(RocketRouter(group="web"))


# --- the schema


@in_asyncio
async def test_the_schema_is_served_with_what_the_application_says_of_itself() -> None:
    router = RocketRouter(
        "10.0.0.1:9876", group="web", protocol="own", protocol_version="2", description="The broker.",
        schema_url="/messages", specification_tags=[{"name": "shop"}],
    )  # fmt: skip
    app = FastAPI(title="Shop", version="3", description="Sells tea.", contact={"name": "Ann"})

    @router.subscriber("orders")
    async def handle(order: "Order") -> None: ...

    app.include_router(router)
    async with TestRocketBroker(router.broker):
        with TestClient(app) as client:
            schema = client.get("/messages.json").json()
            assert client.get("/messages").status_code == 200
    info, server = schema["info"], schema["servers"]["development"]
    assert (info["title"], info["version"], info["description"], info["contact"]["name"]) == (
        "Shop", "3", "Sells tea.", "Ann",
    )  # fmt: skip
    assert (server["host"], server["protocol"], server["protocolVersion"], server["description"], server["tags"]) == (
        "10.0.0.1:9876", "own", "2", "The broker.", [{"name": "shop"}],
    )  # fmt: skip
    assert list(schema["channels"]) == ["orders:Handle"] and "Order" in schema["components"]["schemas"]
