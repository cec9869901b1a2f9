"""A cluster whose brokers have users, shared by the tests of console and proxy."""

import json
from collections.abc import Iterator

import pytest

from skylark import Message, blocking
from skylark.remoting.protocol.requests.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from skylark.sdk.testing import Cluster
from tests.intruder.targets import INNER, LITTLE, MARK, OWN, THEIRS, WHO


@pytest.fixture(scope="module")
def guarded() -> Iterator[Cluster]:
    """A guarded cluster, whose topic `THEIRS` holds a message with `MARK`."""
    options = {
        "authenticationEnabled": True, "authorizationEnabled": True, "innerClientAuthenticationCredentials": INNER,
        "initAuthenticationUser": json.dumps({"username": WHO.access_key, "password": WHO.secret_key}),
    }  # fmt: skip
    with Cluster(1, options=options) as cluster:
        for topic in (THEIRS, OWN):
            cluster.create_topic(topic)
        with blocking.Admin(cluster.nameserver, credentials=WHO) as admin:
            broker = cluster.brokers[0].address
            admin.create_user(broker, UserInfo(LITTLE.name, LITTLE.secret))
            entries = [PolicyEntryInfo(f"{kind}:{OWN}", ["Pub", "Sub"], None, "Allow") for kind in ("Topic", "Group")]
            admin.create_acl(broker, AclInfo(f"User:{LITTLE.name}", [PolicyInfo("Custom", entries)]))
        with blocking.Producer(cluster.nameserver, credentials=WHO) as producer:
            producer.send(Message(THEIRS, MARK, keys=THEIRS))
        yield cluster
