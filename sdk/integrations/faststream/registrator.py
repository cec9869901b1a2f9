"""`subscriber` and `publisher` of brokers and routers; `RocketRouter` with `RocketRoute` and `RoutePublisher`."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from fast_depends.dependencies import Dependant
from faststream._internal.broker.registrator import Registrator
from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.configs import PublisherUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.parser import CodecProto
from faststream._internal.types import BrokerMiddleware, CustomCallable
from faststream.middlewares import AckPolicy

from skylark.sdk.consumer.outcome import ConsumeFrom
from skylark.sdk.consumer.retry_policy import RetryPolicy
from skylark.sdk.integrations.faststream.config import RocketBrokerConfig
from skylark.sdk.integrations.faststream.producing import (
    PublisherSpecConfig,
    RocketPublisher,
    RocketPublisherSpec,
    SendOptions,
)
from skylark.sdk.integrations.faststream.subscriber import (
    ConsumeOptions,
    RocketSubscriber,
    RocketSubscriberSpec,
    SubscriberConfig,
    SubscriberSpecConfig,
)

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


class RocketRegistrator(Registrator[Any, RocketBrokerConfig]):
    """What brokers and routers have in common."""

    def subscriber(  # type: ignore[override]
        self,
        topic: str,
        *,
        group: str | None = None,
        tags: str = "*",
        sql: str | None = None,
        orderly: bool = False,
        broadcast: bool = False,
        batch: bool = False,
        batch_size: int = 32,
        max_workers: int = 1,
        consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET,
        retry: RetryPolicy | None = None,
        consumer_options: Mapping[str, Any] = NO_OPTIONS,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Dependant] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
    ) -> RocketSubscriber:
        """Subscribe handlers to a topic, or make a subscriber without handlers for `get_one` and iteration.

        ``group``: the consumer group, by default ``<group of the broker>-<topic>``. ``tags``: ``"tea || coffee"``;
        ``sql``: a condition on headers, as ``"amount > 5"``. ``orderly``: the messages of a sharding key one after
        another. ``broadcast``: every process gets every message. ``batch``: lists of up to ``batch_size`` messages.
        ``max_workers``: how many handlers run at once. ``consume_from``: where a new group begins. ``retry``: which
        failures are tried again, when and how often. ``consumer_options``: further arguments of `PushConsumer`, without
        handlers of `SimpleConsumer`. docs/guides/faststream.md says more; the others are FastStream's.
        """
        config = self._config
        consuming = ConsumeOptions(
            topic=topic,
            group=group,
            tags=tags,
            sql=sql,
            orderly=orderly,
            broadcast=broadcast,
            batch=batch,
            batch_size=batch_size,
            max_workers=max_workers,
            consume_from=consume_from,
            retry=retry,
            options=consumer_options,
        )
        calls: CallsCollection[Any] = CallsCollection()
        described = SubscriberSpecConfig(
            topic=topic, title_=title, description_=description, include_in_schema=include_in_schema
        )
        subscriber = RocketSubscriber(
            SubscriberConfig(_outer_config=config, no_reply=no_reply, _ack_policy=ack_policy),
            RocketSubscriberSpec(config, described, calls),
            calls,
            consuming,
        )
        super().subscriber(subscriber, persistent=persistent)
        return subscriber.add_call(
            parser_=parser or self._parser, decoder_=decoder or self._decoder, dependencies_=dependencies, codec_=codec
        )

    def publisher(  # type: ignore[override]
        self,
        topic: str,
        *,
        tags: str | None = None,
        sharding_key: str | None = None,
        priority: int | None = None,
        delay: timedelta | None = None,
        headers: dict[str, str] | None = None,
        reply_to: str = "",
        batch: bool = False,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any | None = None,
        include_in_schema: bool = True,
    ) -> RocketPublisher:
        """A publisher: a decorator that publishes what a handler returns, and an object with `publish` and `request`.

        ``tags``, ``sharding_key``, ``priority``, ``delay`` and ``headers`` apply to its messages, unless a message has
        its own: ``return RocketResponse(order, sharding_key=order.customer)``. ``batch``: a list is a message for each
        element.
        """
        described = PublisherSpecConfig(
            topic=topic, schema_=schema, title_=title, description_=description, include_in_schema=include_in_schema
        )
        publisher = RocketPublisher(
            PublisherUsecaseConfig(_outer_config=self._config),
            RocketPublisherSpec(self._config, described),
            sending=SendOptions(tags=tags, sharding_key=sharding_key, priority=priority, delay=delay),
            headers=headers,
            reply_to=reply_to,
            batch=batch,
        )
        super().publisher(publisher, persistent=persistent)
        return publisher

    @property
    def _config(self) -> Any:
        # FastStream passes a composition of configs, which has the attributes of a config.
        return self.config


class RoutePublisher(ArgsContainer):
    """The arguments of `RocketRegistrator.publisher`, for ``RocketRoute(..., publishers=[RoutePublisher(...)])``."""


class RocketRoute(SubscriberRoute):
    """``RocketRoute(handle, "orders", ...)``: a handler and the arguments of `RocketRegistrator.subscriber`."""


class RocketRouter(RocketRegistrator, BrokerRouter[Any, RocketBrokerConfig]):
    """Subscribers and publishers of one part of a program; ``broker.include_router(router)`` adds them to a broker.

    ``prefix`` comes before the topics of all of them.
    """

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[RocketRoute] = (),
        *,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[RocketRegistrator] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        include_in_schema: bool | None = None,
        ack_policy: AckPolicy = EMPTY,
    ) -> None:
        super().__init__(
            handlers=handlers,
            routers=routers,
            config=RocketBrokerConfig(
                prefix=prefix,
                ack_policy=ack_policy,
                broker_dependencies=dependencies,
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                include_in_schema=include_in_schema,
            ),
        )
