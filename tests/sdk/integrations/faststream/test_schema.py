"""The AsyncAPI schema, of version 3: names of its parts, what is in them, and several brokers."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from fastapi import Depends as WebDepends
from faststream import Context, Depends
from faststream.specification.asyncapi import AsyncAPI
from pydantic import BaseModel

from skylark.sdk.integrations.faststream import RocketBroker, RocketRoute, RocketRouter, RoutePublisher, annotations
from skylark.sdk.integrations.faststream.fastapi import RocketRouter as WebRouter


def schema_of(*brokers: RocketBroker) -> dict[str, Any]:
    factory = AsyncAPI(schema_version="3.0.0")
    for broker in brokers:
        factory.add_broker(broker)
    schema: dict[str, Any] = factory.to_specification().to_jsonable()
    return schema


@pytest.fixture(params=["plain", "web"])
def broker(request: pytest.FixtureRequest) -> RocketBroker:
    """A broker, and the broker of a router for FastAPI: different libraries read the arguments of handlers."""
    return WebRouter(group="own").broker if request.param == "web" else RocketBroker(group="own")


class Item(BaseModel):
    name: str


class Box(BaseModel):
    item: Item
    count: int = 1


@dataclass
class Place:
    city: str
    street: str = "?"


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Painted(BaseModel):
    colour: Colour


class Cat(BaseModel):
    kind: Literal["cat"]


class Example(BaseModel):
    number: int
    model_config = {"json_schema_extra": {"examples": [{"number": 7}]}}


# --- names


async def take_order(order: str) -> None: ...


async def take_item(item: Item) -> None: ...


async def take_number(number: int) -> None: ...


def give_text() -> str:
    return ""


def give_item() -> Item:
    return Item(name="")


def subscribed(*handlers: Callable[..., Any], **options: Any) -> Callable[[RocketBroker], None]:
    def build(broker: RocketBroker) -> None:
        subscriber = broker.subscriber("orders", **options)
        for handler in handlers:
            subscriber(handler)

    return build


def published(*handlers: Callable[..., Any], **options: Any) -> Callable[[RocketBroker], None]:
    def build(broker: RocketBroker) -> None:
        publisher = broker.publisher("bills", **options)
        for handler in handlers:
            publisher(handler)

    return build


def routed(broker: RocketBroker) -> None:
    publishers = [RoutePublisher("bills", schema=int)]
    broker.include_router(RocketRouter("eu-", [RocketRoute(take_order, "orders", publishers=publishers)]))


ORDER, NUMBER, SUBSCRIBER = (f"{name}:Message:Payload" for name in ("TakeOrder", "TakeNumber", "Subscriber"))
BILL, TEXT = "bills:Publisher:Message:Payload", "GiveText:Publisher:Message:Payload"

# How a broker is filled, and the names of its channels and payloads.
NAMES: list[tuple[Callable[[RocketBroker], None], list[str], list[str]]] = [
    (subscribed(take_order), ["orders:TakeOrder"], [ORDER]),
    (subscribed(take_item), ["orders:TakeItem"], ["Item"]),
    (subscribed(take_order, take_number), ["orders:[TakeOrder,TakeNumber]"], [NUMBER, ORDER]),
    (subscribed(take_item, take_number), ["orders:[TakeItem,TakeNumber]"], ["Item", NUMBER]),
    (subscribed(take_order, title="own"), ["own"], ["own:Message:Payload"]),
    (subscribed(take_order, take_number, title="own"), ["own"], [NUMBER, ORDER]),
    (subscribed(), ["orders:Subscriber"], [SUBSCRIBER]),
    (subscribed(title="own"), ["own"], ["own:Message:Payload"]),
    (published(give_text), ["bills:Publisher"], [BILL]),
    (published(give_item), ["bills:Publisher"], ["Item"]),
    (published(give_text, give_item), ["bills:Publisher"], [TEXT, "Item"]),
    (published(give_text, title="own"), ["own"], ["own:Message:Payload"]),
    (published(schema=str), ["bills:Publisher"], [BILL]),
    (published(schema=str, title="own"), ["own"], ["own:Message:Payload"]),
    (routed, ["eu-bills:Publisher", "eu-orders:TakeOrder"], [ORDER, f"eu-{BILL}"]),
    (subscribed(take_order, include_in_schema=False), [], []),
    (published(give_text, include_in_schema=False), [], []),
]


@pytest.mark.parametrize(("fill", "channels", "payloads"), NAMES)
def test_parts_are_named_after_topics_handlers_and_titles(
    fill: Callable[[RocketBroker], None], channels: list[str], payloads: list[str]
) -> None:
    broker = RocketBroker(group="own")
    fill(broker)
    schema = schema_of(broker)
    assert sorted(schema["channels"]) == channels
    endings = {"receive": "SubscribeMessage", "send": "Message"}
    operations = sorted(schema["operations"].values(), key=lambda operation: operation["channel"]["$ref"])
    assert sorted(schema["components"]["messages"]) == [
        f"{channel}:{endings[operation['action']]}" for channel, operation in zip(channels, operations, strict=True)
    ]
    assert sorted(schema["components"]["schemas"]) == sorted(payloads)
    assert all(payload["title"] == title for title, payload in schema["components"]["schemas"].items())


def test_a_channel_has_the_topic_as_its_address_and_operations_refer_to_it(broker: RocketBroker) -> None:
    @broker.subscriber("orders", title="/orders {of} all")
    async def handle(text: str) -> None: ...

    schema = schema_of(broker)
    ((key, channel),) = schema["channels"].items()
    ((name, message),) = channel["messages"].items()
    (operation,) = schema["operations"].values()
    assert (key, channel["address"]) == (".orders {of} all", "orders")
    quoted = ".orders%20%7Bof%7D%20all"
    assert message == {"$ref": f"#/components/messages/{quoted}:SubscribeMessage"}
    assert operation["channel"] == {"$ref": f"#/channels/{quoted}"}
    assert operation["messages"] == [{"$ref": f"#/channels/{quoted}/messages/{name}"}]


async def silent(text: str) -> None: ...


async def talking(text: str) -> None:
    """Takes a text."""


@pytest.mark.parametrize(
    ("handler", "given", "description"),
    [(silent, None, None), (talking, None, "Takes a text."), (silent, "own", "own"), (talking, "own", "own")],
)
def test_a_description_is_given_or_that_of_the_handler(
    broker: RocketBroker, handler: Any, given: str | None, description: str | None
) -> None:
    broker.subscriber("orders", description=given)(handler)
    broker.publisher("bills", description=given)(handler)
    channels = schema_of(broker)["channels"]
    assert channels.pop("bills:Publisher").get("description") == given
    assert [channel.get("description") for channel in channels.values()] == [description]


# --- payloads

OWN = "Handle:Message:Payload"
STRING, INTEGER, NULL = {"type": "string"}, {"type": "integer"}, {"type": "null"}


def _object(title: str, required: list[str], **properties: dict[str, Any]) -> dict[str, Any]:
    titled = {name: each if "$ref" in each else {"title": name.title(), **each} for name, each in properties.items()}
    return {"title": title, "type": "object", "required": required, "properties": titled}


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


ITEM = _object("Item", ["name"], name=STRING)
BOX = _object("Box", ["item"], item=_reference("Item"), count={**INTEGER, "default": 1})
PLACE = _object("Place", ["city"], city=STRING, street={**STRING, "default": "?"})
PAINTED = _object("Painted", ["colour"], colour=_reference("Colour"))
EXAMPLE = {**_object("Example", ["number"], number=INTEGER), "examples": [{"number": 7}]}


def _of(annotation: Any) -> Any:
    async def handle(value: annotation) -> None: ...

    return handle


def _untyped() -> Any:
    async def handle(text) -> None: ...  # type: ignore[no-untyped-def]

    return handle


def _various() -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def handle() -> None: ...

    found["nothing"] = handle

    async def handle(number: int = 1) -> None: ...  # type: ignore[no-redef]

    found["default"] = handle

    async def handle(first, second) -> None: ...  # type: ignore[no-redef, no-untyped-def]

    found["untyped arguments"] = handle

    async def handle(box: Box, number: int, text: str | None = None) -> None: ...  # type: ignore[no-redef]

    found["arguments"] = handle
    return found


VARIOUS = _various()

# name: (handler, the payloads)
PAYLOADS: dict[str, tuple[Any, dict[str, Any]]] = {
    "nothing": (VARIOUS["nothing"], {"EmptyPayload": {"title": "EmptyPayload", **NULL}}),
    "any": (_untyped(), {OWN: {"title": OWN}}),
    "integer": (_of(int), {OWN: {"title": OWN, **INTEGER}}),
    "optional": (_of(int | None), {OWN: {"title": OWN, "anyOf": [INTEGER, NULL]}}),
    "default": (VARIOUS["default"], {OWN: {"title": OWN, **INTEGER, "default": 1}}),
    "untyped arguments": (
        VARIOUS["untyped arguments"],
        {OWN: _object(OWN, ["first", "second"], first={}, second={})},
    ),
    "arguments": (
        VARIOUS["arguments"],
        {
            "Item": ITEM,
            "Box": BOX,
            OWN: _object(
                OWN, ["box", "number"], box=_reference("Box"), number=INTEGER,
                text={"anyOf": [STRING, NULL], "default": None},
            ),
        },
    ),
    "dataclass": (_of(Place), {"Place": PLACE}),
    "model": (_of(Item), {"Item": ITEM}),
    "model in a model": (_of(Box), {"Item": ITEM, "Box": BOX}),
    "enum in a model": (
        _of(Painted), {"Colour": {"title": "Colour", "enum": ["red", "blue"], **STRING}, "Painted": PAINTED}
    ),
    "model with an example": (_of(Example), {"Example": EXAMPLE}),
}  # fmt: skip


@pytest.mark.parametrize("name", PAYLOADS)
def test_a_payload_is_what_the_handler_takes(broker: RocketBroker, name: str) -> None:
    handler, payloads = PAYLOADS[name]
    broker.subscriber("orders")(handler)
    found = schema_of(broker)["components"]["schemas"]
    for payload in found.values():
        if "required" in payload:
            payload["required"].sort()  # FastAPI has an order of its own
    assert found == payloads


def test_models_of_a_union_are_parts_of_their_own(broker: RocketBroker) -> None:
    broker.subscriber("orders")(_of(Box | Cat))
    schemas = schema_of(broker)["components"]["schemas"]
    assert schemas["Item"] == ITEM and schemas["Box"] == BOX
    assert schemas[OWN]["anyOf"] == [_reference("Box"), _reference("Cat")]


@pytest.mark.parametrize(
    ("broker", "depends"), [("plain", Depends), ("web", WebDepends)], indirect=["broker"], ids=["plain", "web"]
)
def test_arguments_of_dependencies_are_taken_from_the_message(broker: RocketBroker, depends: Any) -> None:
    def of_subscriber(first: str) -> None: ...

    def of_argument(second: int = 2) -> None: ...

    async def handle(own: int, given: Annotated[None, depends(of_argument)]) -> None: ...

    broker.subscriber("orders", dependencies=[depends(of_subscriber)])(handle)
    (payload,) = schema_of(broker)["components"]["schemas"].values()
    payload["required"].sort()
    second = {**INTEGER, "default": 2}
    assert payload == _object(OWN, ["first", "own"], own=INTEGER, first=STRING, second=second)


def test_arguments_of_the_context_are_not_taken_from_the_message() -> None:
    broker = RocketBroker(group="own")

    @broker.subscriber("orders")
    async def handle(own: int, message: Annotated[Any, Context()], other: annotations.RocketMessage) -> None: ...

    assert schema_of(broker)["components"]["schemas"] == {OWN: {"title": OWN, **INTEGER}}


# name: (what the publisher is given, the type of what its handler returns, the payload without its title)
RESULTS: dict[str, tuple[dict[str, Any], Any, dict[str, Any]]] = {
    "returned": ({}, int, {"type": "integer"}),
    "given": ({"schema": int}, None, {"type": "integer"}),
    "model": ({}, Item, {key: value for key, value in ITEM.items() if key != "title"}),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_payload_is_what_the_publisher_publishes(broker: RocketBroker, name: str) -> None:
    options, returned, expected = RESULTS[name]

    def give() -> returned: ...

    broker.publisher("bills", **options)(give)
    (payload,) = schema_of(broker)["components"]["schemas"].values()
    del payload["title"]
    assert payload == expected


# --- several brokers


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("descriptions", "servers"), [((None, None), ["development"] * 2), (("one", "two"), ["Server1", "Server2"])]
)
def test_channels_refer_to_the_servers_of_their_brokers(descriptions: Any, servers: list[str]) -> None:
    brokers = [RocketBroker(group="own", description=description) for description in descriptions]
    brokers[0].subscriber("orders")(take_item)
    brokers[1].subscriber("orders")(give_item)
    schema = schema_of(*brokers)
    assert sorted(schema["servers"]) == sorted(set(servers))
    assert [server.get("description") for server in schema["servers"].values()] == [
        description for description in dict.fromkeys(descriptions)
    ]
    assert {name: channel["servers"] for name, channel in schema["channels"].items()} == {
        "orders:TakeItem": [{"$ref": f"#/servers/{servers[0]}"}],
        "orders:GiveItem": [{"$ref": f"#/servers/{servers[1]}"}],
    }


def test_one_name_of_two_channels_is_warned_of() -> None:
    brokers = [RocketBroker(group="own", description=name) for name in ("one", "two")]
    for broker in brokers:
        broker.subscriber("orders")(take_item)
    with pytest.warns(RuntimeWarning, match="orders:TakeItem"):
        schema = schema_of(*brokers)
    assert list(schema["channels"]) == ["orders:TakeItem"]
