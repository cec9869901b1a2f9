"""Tasks of the SDK are protected from KeyboardInterrupt; mqcommon/shielded_nursery.py says why."""

import ast
from collections.abc import Iterator

from tests.tidy.tree import Module, modules

# What is started under another name than its own, or in another file: what the call says → where the tasks are.
ELSEWHERE = {
    "follow_address_server": [("sdk/nameservers.py", "follow_address_server")],
    "watch_trio": [("sdk/loop_blocks.py", "watch_trio")],
    "self._watch.run": [("sdk/route_watch.py", "run")],
    "self.ready.run": [("sdk/consumer/process_queue.py", "run")],
    "self._handed_out.watch": [("sdk/consumer/stream_message.py", "watch")],
    "self._ordered.watch": [("sdk/consumer/orderly.py", "watch")],
    "self.ownership.run": [("sdk/consumer/ownership.py", "run")],
    "self.popping.run": [("sdk/consumer/popping.py", "run")],
    "self._failures.failed": [("sdk/consumer/failures.py", "failed")],
    "serve": [("sdk/consumer/pull_loop.py", "pull"), ("sdk/consumer/orderly.py", "serve")],
    "lane.run": [("sdk/producer/lane.py", "run")],
    "client.sweep": [("remoting/net/client.py", "sweep")],
    "feed.run": [("sdk/integrations/kombu/feed.py", "run")],
    "stream.read": [("sdk/integrations/kombu/stream.py", "read")],
}
CHECKED = ("mqcommon", "sdk", "remoting/net/client.py", "remoting/net/channel.py")
# Runs in tests, whose runner reports the interrupt.
LEFT_OUT = "sdk/testing"


def started(module: Module) -> Iterator[str]:
    """The first arguments of ``nursery.start_soon`` and ``nursery.start``."""
    for node in module.calls():
        if isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name == "start_soon" or (name == "start" and "nursery" in ast.unparse(node.func.value)):
                yield ast.unparse(node.args[0])


def is_protected(module: Module, name: str) -> bool:
    """Whether the module has such coroutine functions, all of them protected."""
    found = [node for node in module.nodes if isinstance(node, ast.AsyncFunctionDef) and node.name == name]
    return bool(found) and all(
        any(ast.unparse(decorator) == "enable_ki_protection" for decorator in node.decorator_list) for node in found
    )


def unprotected(module: Module, others: dict[str, Module]) -> list[str]:
    """The tasks that the module starts without protection, or from an unknown place."""
    found = []
    for text in started(module):
        places = ELSEWHERE.get(text, [(module.path, text.removeprefix("self."))])
        for path, name in places:
            if not is_protected(others.get(path, module), name):
                found.append(f"{module}: {text}")
    return found


def test_tasks_of_clients_are_protected_from_keyboard_interrupts() -> None:
    checked = {module.path: module for module in modules(*CHECKED) if not module.path.startswith(LEFT_OUT)}
    assert [line for module in checked.values() for line in unprotected(module, checked)] == []
    assert {text for module in checked.values() for text in started(module)} >= ELSEWHERE.keys()


def test_the_check_sees_a_breach() -> None:
    task = "async def work() -> None: ...\n"
    start = "def f(nursery): nursery.start_soon(work)\n"
    for text, count in ((task + start, 1), ("@enable_ki_protection\n" + task + start, 0), (start, 1)):
        assert len(unprotected(Module("sdk/x.py", "sdk.x", text), {})) == count
