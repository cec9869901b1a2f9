"""Finding messages: by key (12) and by their place in the commit log (33)."""

from broker.options import BrokerOptions
from broker.store.store import MessageStore
from common.errors import RequestRefused
from remoting.net.channel import Channel
from remoting.net.server import Handler
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.query import (
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    ViewMessageRequestHeader,
)

MAX_ANSWER_BYTES = 8 * 1024 * 1024


class QueryHandlers:
    """Answers with stored messages, untouched."""

    def __init__(self, store: MessageStore, options: BrokerOptions) -> None:
        self._store = store
        self._options = options

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.QUERY_MESSAGE: self.query, RequestCode.VIEW_MESSAGE_BY_ID: self.view}

    def query(self, channel: Channel, request: Command) -> Command:
        header = QueryMessageRequestHeader.from_ext(request.ext)
        max_num = self._options.default_query_max_num if header.unique_key_query else header.max_num
        result = self._store.query(
            header.topic, header.key, max_num, header.begin_timestamp, header.end_timestamp, MAX_ANSWER_BYTES
        )
        ext = QueryMessageResponseHeader(result.last_update_timestamp, result.last_update_physical_offset).to_ext()
        if not result.records:
            return request.respond(
                ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct", ext
            )
        return request.respond(ext=ext, body=b"".join(result.records))

    def view(self, channel: Channel, request: Command) -> Command:
        offset = ViewMessageRequestHeader.from_ext(request.ext).offset
        record = self._store.record_at(offset)
        if record is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        return request.respond(body=record)
