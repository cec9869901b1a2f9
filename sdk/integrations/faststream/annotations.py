"""What a handler may ask for: ``async def handle(order: Order, message: RocketMessage) -> None: ...``"""

from typing import Annotated

from faststream._internal.context import Context
from faststream.annotations import ContextRepo, Logger
from faststream.params import NoCast

from skylark.sdk.aio.facade import Client as AioClient
from skylark.sdk.integrations.faststream.broker import RocketBroker as OwnBroker
from skylark.sdk.integrations.faststream.message import RocketMessage as OwnMessage

__all__ = ["Client", "ContextRepo", "Logger", "NoCast", "RocketBroker", "RocketMessage"]

Client = Annotated[AioClient, Context("broker._connection")]
RocketBroker = Annotated[OwnBroker, Context("broker")]
RocketMessage = Annotated[OwnMessage, Context("message")]
