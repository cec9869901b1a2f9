"""`RocketRouter` for FastAPI: handlers of messages with FastAPI's dependencies; the application starts their broker.

router = RocketRouter("127.0.0.1:9876", group="shop")
app = FastAPI()
app.include_router(router)
"""

from collections.abc import Iterable
from typing import Any, cast

from fastapi import params
from fastapi.datastructures import Default
from fastapi.types import IncEx
from faststream._internal.context import ContextRepo
from faststream._internal.fastapi.router import StreamRouter

from skylark.sdk.integrations.faststream.broker import RocketBroker
from skylark.sdk.integrations.faststream.producing import RocketPublisher
from skylark.sdk.integrations.faststream.subscriber import RocketSubscriber
from skylark.sdk.nameservers import NameServerSource


class RocketRouter(StreamRouter[Any]):
    """A FastAPI router with a `RocketBroker`, which is ``router.broker``.

    ``options`` are the arguments of FastAPI's APIRouter and of `RocketBroker`; where both have a name, as ``tags`` and
    ``dependencies``, FastAPI's. ``schema_url`` is where the AsyncAPI schema is served.
    """

    broker_class = RocketBroker
    broker: RocketBroker

    def __init__(
        self,
        nameserver: NameServerSource | None = None,
        *,
        group: str | None = None,
        context: ContextRepo | None = None,
        **options: Any,
    ) -> None:
        super().__init__(nameserver, group=group, context=context, **options)

    def subscriber(  # type: ignore[override]
        self,
        topic: str,
        *,
        dependencies: Iterable[params.Depends] = (),
        response_model: Any = Default(None),  # noqa: B008  FastAPI's mark of an argument that is not given
        response_model_include: IncEx | None = None,
        response_model_exclude: IncEx | None = None,
        response_model_by_alias: bool = True,
        response_model_exclude_unset: bool = False,
        response_model_exclude_defaults: bool = False,
        response_model_exclude_none: bool = False,
        **options: Any,
    ) -> RocketSubscriber:
        """As `RocketBroker.subscriber`, whose arguments ``options`` are."""
        subscriber = super().subscriber(
            topic,
            dependencies=dependencies,
            response_model=response_model,
            response_model_include=response_model_include,
            response_model_exclude=response_model_exclude,
            response_model_by_alias=response_model_by_alias,
            response_model_exclude_unset=response_model_exclude_unset,
            response_model_exclude_defaults=response_model_exclude_defaults,
            response_model_exclude_none=response_model_exclude_none,
            **options,
        )
        return cast(RocketSubscriber, subscriber)

    def publisher(self, topic: str, **options: Any) -> RocketPublisher:  # type: ignore[override]
        """As `RocketBroker.publisher`, whose arguments ``options`` are."""
        return self.broker.publisher(topic, **options)
