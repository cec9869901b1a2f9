"""Every request that has a description is served, and every daemon serves its requests.

A request counts as served where its code is a key of a handler table: ``{X.code: handler}`` or
``table[X.code] = handler``.
"""

import ast

from skylark.remoting.protocol.requests.table import BY_NAME
from tests.tidy.tree import Module, modules

CODES = {name: request.code for name, request in BY_NAME.items()}

NAMESRV = {*range(100, 107), 205, 206, 216, 217, 219, 224, 304, 318, 319, 322, 327, 901, 904}
BROKER = {
    *(10, 310, 320, 11, 361, 12, 14, 15, 17, 18, 21, 25, 26, *range(28, 37), 38, 41, 42, 60, 61, 402),
    *(200, 201, 202, 203, 204, 207, 208, 215, 222, 223, 300, 303, *range(305, 310), 314, 315, 316, 317),
    *(37, 46, 225, 321, 323, 324, 325, 328, 329, 343, 351, 352),
    *(400, 401),
    *range(905, 909),
    *range(5001, 5004),
}

# What servers send to clients; a client without the feature need not answer.
TO_CLIENTS = {
    "CHECK_TRANSACTION_STATE",
    "CONSUME_MESSAGE_DIRECTLY",
    "GET_CONSUMER_RUNNING_INFO",
    "GET_CONSUMER_STATUS_FROM_CLIENT",
    "NOTIFY_CONSUMER_IDS_CHANGED",
    "PUSH_REPLY_MESSAGE_TO_CLIENT",
    "RESET_CONSUMER_CLIENT_OFFSET",
}

# The hot path writes its requests itself.
WRITES_COMMANDS = {"sdk/producer/wire.py"}


def handled(package: str) -> set[str]:
    """Names of the codes for which a package has a handler."""
    found = set()
    for module in modules(package):
        for node in module.nodes:
            keys: list[ast.expr | None] = []
            if isinstance(node, ast.Dict):
                keys = list(node.keys)
            elif isinstance(node, ast.Assign):
                keys = [target.slice for target in node.targets if isinstance(target, ast.Subscript)]
            found |= {name for key in keys if (name := _name_of_code(key))}
    return found


def _name_of_code(key: ast.expr | None) -> str:
    """X where the key is ``X.code``; "" for other keys."""
    if isinstance(key, ast.Attribute) and key.attr == "code" and isinstance(key.value, ast.Name):
        return key.value.id if key.value.id in CODES else ""
    return ""


def written_by_hand(module: Module) -> list[str]:
    """Requests that are made without their descriptions."""
    return [
        f"{module}:{node.lineno}"
        for node in module.calls()
        if isinstance(node.func, ast.Name) and node.func.id == "Command" and _code_is_named(node)
    ]


def _code_is_named(call: ast.Call) -> bool:
    return any(_name_of_code(each) for each in ast.walk(call) if isinstance(each, ast.expr))


def missing(package: str, wanted: set[int]) -> set[str]:
    by_code = {code: name for name, code in CODES.items()}
    return {by_code[code] for code in wanted} - handled(package)


def test_the_namesrv_handles_its_codes() -> None:
    assert missing("namesrv", NAMESRV) == set()


def test_the_broker_handles_its_codes() -> None:
    assert missing("broker", BROKER) == set()


def test_every_description_is_served() -> None:
    served = handled("namesrv") | handled("broker") | handled("sdk") | handled("remoting")
    assert set(BY_NAME) - served == set()


def test_requests_are_made_by_their_descriptions() -> None:
    places = [place for module in modules() for place in written_by_hand(module)]
    assert {place.partition(":")[0] for place in places} == WRITES_COMMANDS


def test_a_request_that_is_written_by_hand_is_seen() -> None:
    text = "Command(GET_MAX_OFFSET.code, {})\nCommand(request.code, {})"
    assert written_by_hand(Module("x.py", "x", text)) == ["x.py:1"]
