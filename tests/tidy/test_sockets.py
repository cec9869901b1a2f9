"""Only one module touches sockets: TLS can encrypt below all others, and tests can run in memory."""

import ast

from tests.tidy.tree import Module, modules

# The identities ask the system which address leads out; nothing is sent.
MAY = {"remoting/net/sockets.py", "broker/identity.py", "sdk/runtime.py"}
ATTRIBUTES = {
    *("socket", "fileno", "SocketStream", "SocketListener"),
    *("open_tcp_stream", "open_tcp_listeners", "serve_tcp"),
}


def touches(module: Module) -> list[str]:
    """Lines that use sockets or descriptors of connections."""
    found = [f"{module}:{line} imports {name}" for line, name in module.imports() if name.split(".")[0] == "socket"]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and node.attr in ATTRIBUTES:
            found.append(f"{module}:{node.lineno} uses {ast.unparse(node)}")
    return found


def test_only_the_socket_transport_touches_sockets() -> None:
    checked = modules("remoting", "namesrv", "broker", "sdk")
    assert [line for module in checked if module.path not in MAY for line in touches(module)] == []


def test_the_check_sees_a_breach() -> None:
    for text in ("import socket", "stream.socket.getpeername()", "fd = x.fileno()", "await trio.open_tcp_stream(h, p)"):
        assert touches(Module("broker/x.py", "broker.x", text, ast.parse(text))), text
    assert touches(next(iter(modules("remoting/net/sockets.py"))))
