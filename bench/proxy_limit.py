"""Empty handlers: servers that answer SendMessage at once, on grpc.aio and on our own HTTP/2.

Our own server says besides what RocketMQ's clients ask before they send: one queue, which takes any topic's messages.

python -m bench.proxy_limit aio|own     prints its address, and serves until its stdin closes
"""

import asyncio
import sys
from typing import Any

import grpc
import trio

from skylark.mqproxy.service import SERVICE
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.remoting.grpc.call import Call, Streaming, Unary
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

    def query_route(call: Call, message: bytes) -> bytes:
        asked = wire.QueryRouteRequest.FromString(message)
        broker = wire.Broker(name="empty", endpoints=asked.endpoints)
        kinds = [wire.NORMAL]
        queue = wire.MessageQueue(
            topic=asked.topic, permission=wire.READ_WRITE, broker=broker, accept_message_types=kinds
        )
        return wire.QueryRouteResponse(status=OK, message_queues=[queue]).SerializeToString()

    async def telemetry(call: Call) -> None:
        while (data := await call.read()) is not None:
            settings = wire.TelemetryCommand.FromString(data).settings
            settings.publishing.max_body_size = 1 << 20
            await call.write(wire.TelemetryCommand(status=OK, settings=settings).SerializeToString())

    def agree(call: Call, message: bytes) -> bytes:
        # The answers of Heartbeat and NotifyClientTermination have the same first field.
        return wire.HeartbeatResponse(status=OK).SerializeToString()

    methods: dict[str, Unary | Streaming] = {
        "SendMessage": Unary(begin, send_message),
        "QueryRoute": Unary(begin, query_route),
        "Telemetry": Streaming(telemetry),
        "Heartbeat": Unary(begin, agree),
        "NotifyClientTermination": Unary(begin, agree),
    }
    server = GrpcServer({f"/{SERVICE}/{name}": method for name, method in methods.items()})
    async with trio.open_nursery() as nursery:
        print(await nursery.start(server.serve_on, await listen("127.0.0.1", 0)), flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    if sys.argv[1:] == ["own"]:
        trio.run(own)
    else:
        asyncio.run(aio())
