"""The peers: their published tests, how the tests are installed, and how they find Skylark."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Servers:
    """The addresses of the servers that run for a peer's tests."""

    nameserver: str
    #: The address of a proxy for clients of RocketMQ 5; "" unless the peer needs a proxy.
    proxy: str
    #: The port of a Redis; 0 unless the peer needs Redis.
    redis_port: int


@dataclass(frozen=True)
class Peer:
    """A package, and the tests that are run."""

    package: str
    version: str
    #: A description of the tests, for people.
    tests: str
    #: Skylark's extra that has the integration.
    extra: str = ""
    #: More packages from PyPI that the tests import.
    requirements: tuple[str, ...] = ()
    #: The files that are taken from the source distribution.
    parts: tuple[str, ...] = ()
    #: A file of cases/ that gives the peer's cases Skylark's address.
    cases: str = ""
    #: Arguments of pytest.
    arguments: tuple[str, ...] = ()
    needs_proxy: bool = False
    needs_redis: bool = False
    is_npm: bool = False
    #: Topics that must exist; TOPIC=TYPE for messages of another type than NORMAL.
    topics: tuple[str, ...] = ()
    environment: Callable[[Servers], Mapping[str, str]] = lambda servers: {}


def _celery_environment(servers: Servers) -> Mapping[str, str]:
    return {
        "TEST_BROKER": f"rocketmq://{servers.nameserver}/",
        "TEST_BACKEND": f"redis://127.0.0.1:{servers.redis_port}/0",
        "REDIS_HOST": "127.0.0.1",
        "REDIS_PORT": str(servers.redis_port),
        # As in the project's own runs: cases read the worker's log.
        "WORKER_LOGLEVEL": "INFO",
    }


PYTEST = ("pytest>=9", "pytest-rerunfailures", "pytest-timeout")
PEERS: Mapping[str, Peer] = {
    "celery": Peer(
        "celery", "5.7.0", "its integration tests (t/integration), with Skylark as broker and Redis for results",
        extra="celery",
        requirements=(
            "celery[auth,azureblockblob,django,msgpack,pydantic,redis,sqlalchemy,yaml]==5.7.0",
            *PYTEST, "pytest-celery", "pytest-order", "pytest-subtests", "freezegun", "python-dateutil",
        ),
        parts=("t", "pyproject.toml"),
        arguments=("t/integration",),
        needs_redis=True,
        environment=_celery_environment,
    ),
    "kombu": Peer(
        "kombu", "5.7.0", "the cases for all transports (t/integration/common.py)",
        extra="celery",
        requirements=("kombu==5.7.0", *PYTEST),
        parts=("t",),
        cases="kombu_cases.py",
        arguments=("kombu_cases.py", "-o", "python_classes=Test*"),
        environment=lambda servers: {"PEER_NAMESERVER": servers.nameserver},
    ),
    "faststream": Peer(
        "faststream", "0.7.8", "the programs and tests of its README, with RocketBroker in place of KafkaBroker",
        extra="faststream",
        requirements=("faststream[cli]==0.7.8", *PYTEST, "pytest-asyncio", "aiohttp", "fastapi", "msgspec", "pydantic"),
        parts=("README.md",),
        cases="faststream_cases.py",
        arguments=("faststream_cases.py",),
        topics=("in", "out", "in-test", "test", "response"),
        environment=lambda servers: {"PEER_NAMESERVER": servers.nameserver},
    ),
    "node": Peer(
        "rocketmq-client-nodejs", "1.0.8", "the programs of its README, through mqproxy",
        requirements=PYTEST,
        cases="node_cases.py",
        arguments=("node_cases.py",),
        needs_proxy=True,
        is_npm=True,
        topics=("TopicTest", "DelayTopic=DELAY", "yourTopic"),
        environment=lambda servers: {"PEER_PROXY": servers.proxy},
    ),
    "python": Peer(
        "rocketmq-python-client", "5.1.2", "its unit tests (rocketmq.v5.test), which need no server",
        requirements=("rocketmq-python-client==5.1.2", *PYTEST),
        arguments=("--pyargs", "rocketmq.v5.test"),
    ),
}  # fmt: skip
