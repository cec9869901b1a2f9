"""Empty handlers: servers that answer SendMessage at once, on grpc.aio and on our own HTTP/2.

python -m bench.proxy_limit aio|own     prints its address, and serves until its stdin closes
"""

import asyncio
import sys
from typing import Any

import grpc
import trio

from skylark.mqproxy.service import SERVICE
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.remoting.grpc.call import Call, Unary
from skylark.remoting.grpc.server import GrpcServer
from skylark.remoting.net.sockets import listen

OK = wire.Status(code=wire.OK, message="OK")


def _answer(request: wire.SendMessageRequest) -> wire.SendMessageResponse:
    entry = wire.SendResultEntry(status=OK, message_id=request.messages[0].system_properties.message_id, offset=1)
    return wire.SendMessageResponse(status=OK, entries=[entry])


async def aio() -> None:
    """Serve with grpc.aio."""

    async def send_message(request: wire.SendMessageRequest, context: Any) -> wire.SendMessageResponse:
        return _answer(request)

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(
        send_message, wire.SendMessageRequest.FromString, wire.SendMessageResponse.SerializeToString
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"SendMessage": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)


async def own() -> None:
    """Serve with our own server."""

    def begin(call: Call) -> None:
        """Read on."""

    def send_message(call: Call, message: bytes) -> bytes:
        return _answer(wire.SendMessageRequest.FromString(message)).SerializeToString()

    server = GrpcServer({f"/{SERVICE}/SendMessage": Unary(begin, send_message)})
    async with trio.open_nursery() as nursery:
        print(await nursery.start(server.serve_on, await listen("127.0.0.1", 0)), flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    if sys.argv[1:] == ["own"]:
        trio.run(own)
    else:
        asyncio.run(aio())
