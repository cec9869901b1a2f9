"""Every request code that we name has a handler, or stands here as refused; what is served or asked is described.

A refused code is answered with REQUEST_CODE_NOT_SUPPORTED, by broker/handlers/refused.py or by the server itself.
A code counts as handled where it is a key of a handler table: ``{RequestCode.X: handler}`` or
``table[RequestCode.X] = handler``.
"""

import ast

from remoting.protocol.codes import RequestCode
from tests.remoting.protocol.described import BY_NAME
from tests.tidy.tree import PACKAGES, Module, modules

CODES = {name: code for name, code in vars(RequestCode).items() if name.isupper()}

NAMESRV = {*range(100, 107), 205, 206, 216, 217, 219, 224, 304, 318, 319, 322, 327, 901, 904}
BROKER = {
    *(10, 310, 320, 11, 361, 12, 14, 15, 17, 18, 21, 25, 26, *range(28, 37), 38, 41, 42, 60, 61, 402),
    *(200, 201, 202, 203, 204, 207, 208, 215, 222, 223, 300, 303, *range(305, 310), 314, 315, 316, 317),
    *(37, 46, 225, 321, 323, 324, 325, 328, 329, 343, 351, 352),
    *(400, 401),
    *range(905, 909),
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

# Refused until the feature behind them comes.
REFUSED = {
    "further administration": {
        "QUERY_SUBSCRIPTION_BY_CONSUMER",
        "UPDATE_AND_GET_GROUP_FORBIDDEN",
    },
}


# The hot path writes its requests itself.
WRITES_COMMANDS = {"sdk/producer/wire.py"}


def handled(package: str) -> set[str]:
    """Names of the codes for which a package has a handler."""
    found = set()
    for module in modules(package):
        for node in ast.walk(module.tree):
            keys: list[ast.expr | None] = []
            if isinstance(node, ast.Dict):
                keys = list(node.keys)
            elif isinstance(node, ast.Assign):
                keys = [target.slice for target in node.targets if isinstance(target, ast.Subscript)]
            found |= {key.attr for key in keys if isinstance(key, ast.Attribute) and _is_code(key)}
    return found


def _is_code(key: ast.Attribute) -> bool:
    return isinstance(key.value, ast.Name) and key.value.id == "RequestCode"


def named(package: str) -> set[str]:
    """Names of the codes that a package mentions."""
    return {
        node.attr
        for module in modules(package)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and _is_code(node)
    }


def written_by_hand(module: Module) -> list[str]:
    """Requests that are made without their descriptions."""
    return [
        f"{module}:{node.lineno}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Command" and "RequestCode." in ast.unparse(node)
    ]


def missing(package: str, wanted: set[int]) -> set[str]:
    by_code = {code: name for name, code in CODES.items()}
    return {by_code[code] for code in wanted} - handled(package)


def test_the_namesrv_handles_its_codes() -> None:
    assert missing("namesrv", NAMESRV) == set()


def test_the_broker_handles_its_codes() -> None:
    assert missing("broker", BROKER) == set()


def test_every_named_code_is_handled_or_refused() -> None:
    refused = set().union(*REFUSED.values())
    served = handled("namesrv") | handled("broker") | handled("remoting")
    assert set(CODES) - served - TO_CLIENTS - refused == set()


def test_the_refused_are_not_handled() -> None:
    refused = set().union(*REFUSED.values())
    assert refused & (handled("namesrv") | handled("broker")) == set()
    assert refused <= set(CODES)


def test_every_code_that_is_served_or_asked_is_described() -> None:
    refused = set().union(*REFUSED.values())
    for package in ("namesrv", "broker", "sdk", "spark_connector"):
        assert named(package) - refused - set(BY_NAME) == set()


def test_every_description_is_served() -> None:
    served = handled("namesrv") | handled("broker") | handled("sdk") | handled("remoting")
    assert set(BY_NAME) - served == set()


def test_requests_are_made_by_their_descriptions() -> None:
    places = [place for module in modules(*PACKAGES) for place in written_by_hand(module)]
    assert {place.partition(":")[0] for place in places} == WRITES_COMMANDS


def test_a_request_that_is_written_by_hand_is_seen() -> None:
    text = "Command(RequestCode.GET_MAX_OFFSET, {})\nCommand(request.code, {})"
    assert written_by_hand(Module("x.py", "x", text, ast.parse(text))) == ["x.py:1"]
