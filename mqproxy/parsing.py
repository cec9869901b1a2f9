"""Requests that are no messages: their calls are refused. gRPC would log each of them as an error of the server."""

from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError


def refusing(handler: grpc.RpcMethodHandler) -> grpc.RpcMethodHandler:
    """The handler of a method that takes one request, for requests that may be anything. Others stay as they are."""
    parse = _parse_or_error(handler.request_deserializer)
    if handler.unary_unary is not None:
        inner = handler.unary_unary

        async def answer(request: Any, context: Any) -> Any:
            await _check(request, context)
            return await inner(request, context)

        return grpc.unary_unary_rpc_method_handler(answer, parse, handler.response_serializer)
    if handler.unary_stream is not None:
        inner = handler.unary_stream

        async def stream(request: Any, context: Any) -> None:
            await _check(request, context)
            await inner(request, context)

        return grpc.unary_stream_rpc_method_handler(stream, parse, handler.response_serializer)
    return handler


async def refuse(error: DecodeError, context: Any) -> None:
    """End the call."""
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))


async def _check(request: Any, context: Any) -> None:
    if isinstance(request, DecodeError):
        await refuse(request, context)


def _parse_or_error(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def parsed(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError as error:
            return error

    return parsed
