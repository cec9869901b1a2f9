"""The limit of bench.proxy: a server with the proxy's gRPC library that answers SendMessage at once.

python -m bench.proxy_limit     prints its address, and serves until its stdin closes
"""

import asyncio
import sys
from typing import Any

import grpc

from skylark.mqproxy.service import SERVICE
from skylark.mqproxy.wire import messaging_pb2 as wire

OK = wire.Status(code=wire.OK, message="OK")


async def _send_message(request: wire.SendMessageRequest, context: Any) -> wire.SendMessageResponse:
    entry = wire.SendResultEntry(status=OK, message_id=request.messages[0].system_properties.message_id, offset=1)
    return wire.SendMessageResponse(status=OK, entries=[entry])


async def _serve() -> None:
    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(
        _send_message, wire.SendMessageRequest.FromString, wire.SendMessageResponse.SerializeToString
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"SendMessage": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(_serve())
