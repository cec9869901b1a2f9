"""`RocketBroker`: connects to a cluster, starts the subscribers, and publishes."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Annotated, Any

from fast_depends import Provider, dependency_provider
from fast_depends.dependencies import Dependant
from fast_depends.library.serializer import SerializerProto
from faststream._internal.basic_types import LoggerProto
from faststream._internal.broker import BrokerUsecase
from faststream._internal.configs import UnderlyingDriverAnnotation
from faststream._internal.constants import EMPTY
from faststream._internal.context import Context
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream._internal.parser import CodecProto
from faststream._internal.types import BrokerMiddleware, CustomCallable, IdGenerator
from faststream.exceptions import SetupError
from faststream.message import gen_cor_id
from faststream.middlewares import AckPolicy
from faststream.response.publish_type import PublishType
from faststream.security import BaseSecurity, SASLPlaintext
from faststream.specification.schema import BrokerSpec
from faststream.specification.schema.extra import Tag, TagDict

from skylark.mqcommon.errors import SkylarkError
from skylark.remoting.net.tls.settings import Tls
from skylark.remoting.protocol.signature import Credentials
from skylark.sdk.aio.admin import Admin
from skylark.sdk.aio.facade import Client
from skylark.sdk.integrations.faststream.config import LOGGED_ID, RocketBrokerConfig
from skylark.sdk.integrations.faststream.message import RocketMessage
from skylark.sdk.integrations.faststream.producing import (
    REQUEST_TIMEOUT_S,
    RocketProducer,
    RocketPublishCommand,
    SendOptions,
)
from skylark.sdk.integrations.faststream.registrator import NO_OPTIONS, RocketRegistrator
from skylark.sdk.nameservers import NameServerSource
from skylark.sdk.producer.result import SendResult

PING_TIMEOUT_S = 5.0


class LogColumns(DefaultLoggerStorage):
    """A logger whose lines have columns for topic and group, as wide as the subscribers need."""

    __slots__ = ("_widths",)

    def __init__(self) -> None:
        super().__init__()
        self._widths = {"topic": 5, "group": 5}

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Leave room for a subscriber."""
        for name, width in self._widths.items():
            self._widths[name] = max(width, len(params.get(name, "")))

    def get_logger(self, *, context: ContextRepo) -> LoggerProto:
        """The logger, made once."""
        logger = self._get_logger_ref()
        if logger is None:
            columns = "".join(f"%({name})-{width}s | " for name, width in self._widths.items())
            logger = get_broker_logger(
                name="rocketmq",
                default_context={"topic": "", "group": ""},
                message_id_ln=LOGGED_ID,
                context=context,
                fmt=f"%(asctime)s %(levelname)-8s - {columns}%(message_id)-{LOGGED_ID}s - %(message)s",
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(logger)
        return logger


class RocketBroker(RocketRegistrator, BrokerUsecase[Any, Client, RocketBrokerConfig]):
    """``broker = RocketBroker("127.0.0.1:9876", group="shop")``: RocketMQ, or Skylark, for FastStream.

    ``nameserver``: where the NameServers are, by default $NAMESRV_ADDR. ``group``: the name of this service, before the
    names of its consumer groups. ``security``: `SASLPlaintext` has access key and secret key; ``use_ssl`` encrypts,
    and ``tls`` says how. ``producer_options``: further arguments of `Producer`. The others are FastStream's.
    """

    def __init__(
        self,
        nameserver: NameServerSource | None = None,
        *,
        group: str | None = None,
        namespace: str = "",
        security: BaseSecurity | None = None,
        tls: Tls | None = None,
        producer_options: Mapping[str, Any] = NO_OPTIONS,
        graceful_timeout: float | None = 15.0,
        decoder: CustomCallable | None = None,
        parser: CustomCallable | None = None,
        codec: CodecProto | None = None,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[RocketRegistrator] = (),
        ack_policy: AckPolicy = EMPTY,
        id_generator: IdGenerator = gen_cor_id,
        specification_url: str | Iterable[str] | None = None,
        protocol: str = "rocketmq",
        protocol_version: str | None = None,
        description: str | None = None,
        tags: Iterable[Tag | TagDict] = (),
        logger: LoggerProto | None = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: SerializerProto | None = EMPTY,
        provider: Provider | None = None,
        context: ContextRepo | None = None,
    ) -> None:
        urls = specification_url if specification_url is not None else nameserver or "127.0.0.1:9876"
        self._own_producer = producer = RocketProducer(parser, decoder, producer_options)
        super().__init__(
            nameserver=nameserver,
            namespace=namespace,
            **_proofs(security, tls),
            routers=routers,
            config=RocketBrokerConfig(
                producer=producer,
                group=group,
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                broker_dependencies=dependencies,
                graceful_timeout=graceful_timeout,
                ack_policy=ack_policy,
                id_generator=id_generator,
                logger=make_logger_state(logger=logger, log_level=log_level, default_storage_cls=LogColumns),
                fd_config=FastDependsConfig(
                    use_fastdepends=apply_types,
                    serializer=serializer,
                    provider=provider or dependency_provider,
                    context=context or ContextRepo(),
                ),
                extra_context={"broker": self},
                default_driver_annotations=_annotations(),
            ),
            specification=BrokerSpec(
                url=_urls(urls),
                protocol=protocol,
                protocol_version=protocol_version,
                description=description,
                tags=tags,
                security=security,
            ),
        )

    # --- start and stop

    async def _connect(self) -> Client:
        client = Client(**self._connection_kwargs)
        await client.__aenter__()  # `stop` closes it
        config = self.config.broker_config
        try:
            await self._own_producer.connect(client, config.fd_config._serializer, config.broker_codec)
        except BaseException:
            await client.__aexit__(None, None, None)
            raise
        config.opened = client
        return client

    async def start(self) -> None:
        """Connect, and start all subscribers.

        Raises NoNameServer, BrokerError and other errors of the cluster; `stop` then closes what is open.
        """
        await self.connect()
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Stop the subscribers, send the messages that wait in the producer, and disconnect."""
        try:
            await super().stop(exc_type, exc_val, exc_tb)
        finally:
            # Connections are closed also when a subscriber could not be stopped.
            client, self._connection = self._connection, None
            self.config.broker_config.opened = None
            if client is not None:
                try:
                    await self._own_producer.disconnect()  # flushes first
                finally:
                    await client.__aexit__(None, None, None)

    async def ping(self, timeout: float | None = None) -> bool:
        """Whether this broker is connected and a NameServer answers. ``timeout`` in seconds."""
        if self._connection is None:
            return False
        try:
            async with Admin(self._connection, timeout_ms=(timeout or PING_TIMEOUT_S) * 1000) as admin:
                await admin.cluster_info()
        except SkylarkError:
            return False
        return True

    @property
    def client(self) -> Client:
        """The client of this broker's publishers and subscribers, to be given to other classes of `skylark.aio`.

        Raises IncorrectState unless the broker is connected.
        """
        return self.config.broker_config.client

    # --- messages

    async def publish(
        self,
        message: Any = None,
        topic: str = "",
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        sharding_key: str | None = None,
        priority: int | None = None,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
    ) -> SendResult:
        """Publish a message; returns its queue and offset. Raises SendFailed when it could not be stored.

        ``sharding_key``: messages with the same sharding key keep their order. ``priority``: in a topic of type
        PRIORITY a higher number is consumed first. ``delay`` or ``deliver_at``, not both: the message is delivered
        after this time, or at this time. ``reply_to``: the topic to which the consumer's handler publishes its result.
        """
        sending = SendOptions(
            tags=tags, keys=keys, sharding_key=sharding_key, priority=priority, delay=delay, deliver_at=deliver_at
        )
        cmd = RocketPublishCommand(
            message,
            topic=topic,
            sending=sending,
            headers=headers,
            reply_to=reply_to,
            correlation_id=correlation_id or self.config.id_generator(),
            _publish_type=PublishType.PUBLISH,
        )
        result: SendResult = await self._basic_publish(cmd, producer=self.config.producer)
        return result

    async def publish_batch(  # type: ignore[override]
        self,
        *messages: Any,
        topic: str,
        tags: str | None = None,
        sharding_key: str | None = None,
        priority: int | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
    ) -> list[SendResult]:
        """Publish several messages in few requests; with a ``sharding_key`` they keep their order.

        Without messages nothing is published. Raises an ExceptionGroup with the error of each message that is not
        stored, as SendFailed; the others are stored.
        """
        cmd = RocketPublishCommand(
            *(messages or (None,)),
            topic=topic,
            headers=headers,
            sending=SendOptions(tags=tags, sharding_key=sharding_key, priority=priority),
            correlation_id=correlation_id or self.config.id_generator(),
            reply_to=reply_to,
            _publish_type=PublishType.PUBLISH,
        )
        results: list[SendResult] = await self._basic_publish_batch(cmd, producer=self.config.producer)
        return results

    async def request(  # type: ignore[override]
        self,
        message: Any = None,
        topic: str = "",
        *,
        timeout: float = REQUEST_TIMEOUT_S,
        tags: str | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
    ) -> RocketMessage:
        """Publish a message and return the reply of its handler. TimeoutError when there is none in time."""
        cmd = RocketPublishCommand(
            message,
            topic=topic,
            sending=SendOptions(tags=tags),
            headers=headers,
            timeout_s=timeout,
            correlation_id=correlation_id or self.config.id_generator(),
            _publish_type=PublishType.REQUEST,
        )
        reply: RocketMessage = await self._basic_request(cmd, producer=self.config.producer)
        return reply


def _proofs(security: BaseSecurity | None, tls: Tls | None) -> dict[str, Any]:
    """The arguments of a client that say who it is, and how it encrypts."""
    credentials = None
    if isinstance(security, SASLPlaintext):
        credentials = Credentials(security.username, security.password)
    elif security is not None and type(security) is not BaseSecurity:
        raise SetupError(f"{type(security).__name__} is not for RocketMQ: SASLPlaintext has access key and secret key")
    if security is not None and security.ssl_context is not None:
        raise SetupError("an ssl_context cannot be used: give use_ssl=True, and tls=Tls(ca_file=...)")
    if tls is None and security is not None and security.use_ssl:
        tls = Tls()
    return {"credentials": credentials, "tls": tls}


def _annotations() -> dict[type, UnderlyingDriverAnnotation]:
    """What FastStream proposes to who annotates an argument with one of these classes, which no message can fill."""
    paths: dict[type, str] = {RocketMessage: "message", RocketBroker: "broker", Client: "broker._connection"}
    return {
        kind: UnderlyingDriverAnnotation(
            type_hint=Annotated[kind, Context(path)], module=f"{__package__}.annotations", name=kind.__name__
        )
        for kind, path in paths.items()
    }


def _urls(source: Any) -> list[str]:
    """The servers of the AsyncAPI schema."""
    texts = source.split(";") if isinstance(source, str) else list(source)
    return [text if "://" in text else f"rocketmq://{text}" for text in texts]
