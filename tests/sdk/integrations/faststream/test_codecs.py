"""Parsers, decoders and codecs: who may give them, which of them counts, and when they are called."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from faststream._internal.parser import DefaultCodec

from skylark import MessageExt
from skylark.sdk.integrations.faststream import RocketBroker, RocketMessage, RocketRouter, ValueCodec
from skylark.sdk.integrations.faststream.testing import TestRocketBroker
from tests.sdk.facades.adapter import in_asyncio
from tests.sdk.integrations.faststream.services import Place, Seen, collect

# --- parsers and decoders


def parser_of(name: str) -> Callable[..., Any]:
    """A parser that changes the body, so that a test sees who has parsed it."""

    async def parse(raw: MessageExt, original: Callable[[MessageExt], Any]) -> RocketMessage:
        parsed: RocketMessage = await original(raw)
        parsed.headers["parser"] = name
        return parsed

    return parse


def decoder_of(name: str, is_plain: bool) -> Callable[..., Any]:
    """A decoder with the default one as its second argument, or a plain function of the message."""

    async def decode(message: RocketMessage, original: Callable[[RocketMessage], Any]) -> Any:
        return name, message.headers["parser"], await original(message)

    def decode_plain(message: RocketMessage) -> Any:
        return name, message.headers["parser"], message.body.decode()

    return decode_plain if is_plain else decode


LEVELS = ("broker", "router", "subscriber", "handler")


@pytest.mark.parametrize("is_plain", [False, True], ids=["async", "plain"])
@in_asyncio
async def test_the_parser_and_the_decoder_nearest_to_a_handler_count(place: Place, is_plain: bool) -> None:
    """Each level has a handler for which the levels from the broker to this one have parsers and decoders."""
    given = {name: {"parser": parser_of(name), "decoder": decoder_of(name, is_plain)} for name in LEVELS}
    broker, got = place.broker(**given["broker"]), Seen()
    topics = [place.topic() for _ in LEVELS]
    for deepest, topic in enumerate(topics):
        of_router, of_subscriber, of_handler = (
            given[name] if index <= deepest else {} for index, name in enumerate(LEVELS[1:], 1)
        )
        router = RocketRouter(**of_router)

        @router.subscriber(topic, **of_subscriber)(**of_handler)
        async def handle(by: str, parser: str, text: str) -> None:
            got.append((by, parser, text))

        broker.include_router(router)
    async with place.running(broker):
        for count, topic in enumerate(topics, 1):
            await broker.publish("tea", topic)
            await got.reaches(count)
    assert got == [(name, name, "tea") for name in LEVELS]


@in_asyncio
async def test_a_parser_and_a_decoder_are_those_of_one_subscriber_or_handler(place: Place) -> None:
    broker, got = place.broker(), Seen()
    first, second, third = place.topic(), place.topic(), place.topic()

    @broker.subscriber(first, parser=parser_of("own"), decoder=decoder_of("own", False))
    @broker.subscriber(second)
    async def handle(value: Any) -> None:
        got.append(value)

    subscriber = broker.subscriber(third)

    @subscriber(filter=lambda message: message.content_type == "application/json")
    async def of_json(value: Any) -> None:
        got.append(value)

    @subscriber(parser=parser_of("own"), decoder=decoder_of("own", False))
    async def of_others(value: Any) -> None:
        got.append(value)

    async with place.running(broker):
        for count, (topic, value) in enumerate(((first, "a"), (second, "b"), (third, ["c"]), (third, "d")), 1):
            await broker.publish(value, topic)
            await got.reaches(count)
    assert got == [("own", "own", "a"), "b", ["c"], ("own", "own", "d")]


# --- codecs


class Shouting(DefaultCodec):
    """Texts are sent in capitals, and come with an exclamation mark."""

    async def encode(self, msg: Any, serializer: Any = None) -> tuple[bytes, str | None]:
        return await super().encode(msg.upper() if isinstance(msg, str) else msg, serializer)

    async def decode(self, msg: Any) -> Any:
        value = await super().decode(msg)
        return f"{value}!" if isinstance(value, str) else value


class ShoutingInBatches(Shouting):
    async def encode_batch(self, msgs: Sequence[Any], serializer: Any = None) -> list[tuple[bytes, str | None]]:
        return [(f"{body.decode()}+".encode(), kind) for body, kind in [await self.encode(msg) for msg in msgs]]

    async def decode_batch(self, msg: Any) -> list[Any]:
        return [f"{body.decode()}!" for body in msg.body]


# What has the codec, and what becomes of a text and of a mapping. A subscriber's codec decodes only.
CODECS: dict[str, tuple[dict[str, Any], dict[str, Any], list[Any]]] = {
    "nobody": ({}, {}, ["tea", {"a": "b"}]),
    "the broker": ({"codec": Shouting()}, {}, ["TEA!", {"a": "b"}]),
    "the subscriber": ({}, {"codec": Shouting()}, ["tea!", {"a": "b"}]),
    "both": ({"codec": ValueCodec()}, {"codec": ValueCodec()}, ["tea", {"a": "b"}]),
}


@pytest.mark.parametrize("who", CODECS)
@in_asyncio
async def test_a_codec_encodes_what_is_published_and_decodes_what_comes(place: Place, who: str) -> None:
    of_broker, of_subscriber, expected = CODECS[who]
    broker, topic = place.broker(**of_broker), place.topic()
    got = collect(broker, topic, **of_subscriber)
    async with place.running(broker):
        await broker.publish("tea", topic)
        await got.reaches(1)
        await broker.publish({"a": "b"}, topic)
        await got.reaches(2)
    assert got == expected


@in_asyncio
async def test_a_codec_encodes_results_replies_and_requests(place: Place) -> None:
    broker, asked, answered = place.broker(codec=Shouting()), place.topic(), place.topic()

    @broker.subscriber(asked)
    @broker.publisher(answered)
    async def handle(text: str) -> str:
        return f"({text})-a"

    got = collect(broker, answered)
    async with place.running(broker):
        assert (await broker.request("x", asked, timeout=30)).body == b"(X!)-A"
        await got.reaches(1)
    assert got == ["(X!)-A!"]


@in_asyncio
async def test_a_codec_of_batches_has_a_batch_at_once(place: Place) -> None:
    broker, topic, got = place.broker(codec=ShoutingInBatches()), place.topic(), Seen()

    @broker.subscriber(topic, batch=True)
    async def handle(texts: list[str]) -> None:
        for text in texts:
            got.append(text)

    async with place.running(broker):
        await broker.publish_batch("a", "b", topic=topic, sharding_key="one")
        await got.reaches(2)
    assert got == ["A+!", "B+!"]


async def _decode(message: Any, original: Any) -> Any:
    return await original(message)


@pytest.mark.parametrize(
    ("of_broker", "of_subscriber", "reason"),
    [
        ({}, {"codec": Shouting(), "decoder": _decode}, "both 'codec' and 'decoder'"),
        ({"codec": Shouting()}, {"decoder": _decode}, "both 'codec' and 'decoder'"),
        ({"decoder": _decode}, {"codec": Shouting()}, "both 'codec' and 'decoder'"),
        ({"codec": Shouting()}, {"batch": True}, "BatchCodecProto"),
        ({}, {"codec": Shouting(), "batch": True}, "BatchCodecProto"),
    ],
)
@in_asyncio
async def test_a_codec_that_cannot_be_used_is_refused_at_the_start(
    of_broker: dict[str, Any], of_subscriber: dict[str, Any], reason: str
) -> None:
    broker = RocketBroker(group="own", logger=None, **of_broker)
    broker.subscriber("orders", **of_subscriber)(print)
    with pytest.raises(ValueError, match=reason):
        async with TestRocketBroker(broker):
            pass
