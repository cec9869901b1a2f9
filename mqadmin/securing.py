"""The files of a cluster with access control and TLS, for `mqadmin secureCluster`. Pure.

Secrets are in separate files, as environment variables, so that confs can be shown and kept under version control;
conf/secure has the confs that are made for /etc/skylark.
"""

from collections.abc import Sequence

import orjson

from skylark.mqcommon.addresses import client_ip, split_address
from skylark.mqcommon.lazy_dataclass import lazy_dataclass

#: The super user of administrators, and the super user as which servers sign their requests to each other.
ROOT, INNER = "root", "inner"
LOOPBACK_HOSTS = ("127.0.0.1", "localhost")
#: Where deploy/kubernetes/components/secure mounts certificates, and the NameServers of its clients.
KUBERNETES_TLS, KUBERNETES_NAMESRV = "/etc/skylark-tls", "namesrv:9876"
#: Names of the Services there, and one that clients compare with where a server has only an address.
KUBERNETES_SERVICES, SERVER_NAME = ("namesrv", "namesrv-headless", "proxy"), "skylark"


@lazy_dataclass(frozen=True, slots=True)
class Plan:
    """A cluster to be made: the folder of its files, its NameServers, its hosts, and whether it uses TLS."""

    directory: str
    namesrv_addr: str = "127.0.0.1:9876"
    hosts: tuple[str, ...] = LOOPBACK_HOSTS
    tls: bool = True

    @property
    def is_local(self) -> bool:
        """Whether only one machine has servers and clients."""
        return all(_is_loopback(host) for host in self.hosts)


@lazy_dataclass(frozen=True, slots=True)
class Secrets:
    """The secrets of the users root and inner, and of the broker sets."""

    root: str
    inner: str
    set: str

    def __repr__(self) -> str:
        return "Secrets(...)"


def plan_of(directory: str, namesrv_addr: str, hosts: Sequence[str], *, tls: bool) -> Plan:
    """The plan of a cluster on ``hosts`` and the hosts in ``namesrv_addr`` (``host:port;...``)."""
    named = [split_address(addr)[0] for addr in namesrv_addr.split(";") if addr]
    return Plan(directory, namesrv_addr, tuple(dict.fromkeys([*(hosts or LOOPBACK_HOSTS), *named])), tls)


def kubernetes_plan(namespace: str) -> Plan:
    """The plan of a cluster in a namespace of Kubernetes."""
    domains = ("", f".{namespace}", f".{namespace}.svc")
    hosts = [f"{service}{domain}" for service in KUBERNETES_SERVICES for domain in domains]
    return Plan(KUBERNETES_TLS, KUBERNETES_NAMESRV, (SERVER_NAME, *hosts, *LOOPBACK_HOSTS))


def confs(plan: Plan) -> dict[str, str]:
    """File name → text of each conf; without secrets."""
    found = {"namesrv.conf": _namesrv(plan), "broker.conf": _broker(plan), "proxy.conf": _proxy(plan)}
    if plan.tls:
        found["tls.properties"] = _tls(plan)
    return found


def secret_files(secrets: Secrets) -> dict[str, str]:
    """File name → text of each file with secrets, which only its owner may read."""
    variables = _variables(secrets)
    found = {f"{server}.env": _env(variables[server]) for server in ("namesrv", "broker", "proxy")}
    return {**found, "tools.yml": f"accessKey: {ROOT}\nsecretKey: {secrets.root}\n"}


def kubernetes_secrets(secrets: Secrets, tls_files: dict[str, str]) -> str:
    """The Secrets that deploy/kubernetes/components/secure names, as kubectl reads them. ``tls_files``: name → text."""
    found = {f"skylark-{server}": values for server, values in _variables(secrets).items()} | {"skylark-tls": tls_files}
    items = [
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": "Opaque", "stringData": values}
        for name, values in found.items()
    ]
    return _json({"apiVersion": "v1", "kind": "List", "items": items}) + "\n"


def _variables(secrets: Secrets) -> dict[str, dict[str, str]]:
    """Server → the environment variables with its secrets."""
    inner = {"accessKey": INNER, "secretKey": secrets.inner}
    root = {"accessKey": ROOT, "secretKey": secrets.root, "admin": True}
    signing = {"ROCKETMQ_INNER_CLIENT_CREDENTIALS": _json(inner)}
    return {
        "namesrv": {"ROCKETMQ_REGISTRATION_USERS": _json([inner, root])},
        # Controllers change each other's state.
        "controller": {"ROCKETMQ_REGISTRATION_USERS": _json([{**inner, "admin": True}, root]), **signing},
        "broker": {
            "ROCKETMQ_INIT_AUTHENTICATION_USER": _json({"username": ROOT, "password": secrets.root}),
            **signing,
            "ROCKETMQ_HA_SHARED_SECRET": secrets.set,
        },
        "proxy": signing,
        "console": {"ROCKETMQ_ACCESS_KEY": ROOT, "ROCKETMQ_SECRET_KEY": secrets.root},
    }


def _namesrv(plan: Plan) -> str:
    return f"""\
# A NameServer that takes registrations only from the users in namesrv.env, whom ROCKETMQ_REGISTRATION_USERS names:
#     set -a; . {plan.directory}/namesrv.env; set +a; namesrv -c {plan.directory}/namesrv.conf
listenPort={split_address(plan.namesrv_addr.split(";")[0])[1]}
{_bind(plan)}{_tls_line(plan)}"""


def _broker(plan: Plan) -> str:
    return f"""\
# A broker with users and policies. Its secrets are in broker.env:
#     set -a; . {plan.directory}/broker.env; set +a; broker -c {plan.directory}/broker.conf
brokerClusterName=DefaultCluster
brokerName=broker-a
brokerId=0
listenPort=10911
{_bind(plan)}namesrvAddr={plan.namesrv_addr}
storePathRootDir=~/store
authenticationEnabled=true
authorizationEnabled=true
{_tls_line(plan)}"""


def _proxy(plan: Plan) -> str:
    return f"""\
# A proxy for clients of RocketMQ 5, which checks their signatures. It signs as the user in proxy.env:
#     set -a; . {plan.directory}/proxy.env; set +a; mqproxy -c {plan.directory}/proxy.conf
namesrvAddr={plan.namesrv_addr}
{_bind(plan)}authenticationEnabled=true
{_tls_line(plan)}"""


def _tls(plan: Plan) -> str:
    return f"""\
# Servers and tools speak TLS only: clients of RocketMQ need it switched on, too (permissive lets others in).
tls.server.mode=enforcing
tls.server.certPath={plan.directory}/server.pem
tls.server.keyPath={plan.directory}/server.key
tls.enable=true
tls.client.trustCertPath={plan.directory}/ca.pem
"""


def _bind(plan: Plan) -> str:
    return f"bindAddress={'127.0.0.1' if plan.is_local else '0.0.0.0'}\n"


def _tls_line(plan: Plan) -> str:
    return f"tlsConfigFile={plan.directory}/tls.properties\n" if plan.tls else ""


def _env(variables: dict[str, str]) -> str:
    # Names and secrets have no quotes, so a shell and systemd read this JSON alike.
    return "".join(f"{name}='{value}'\n" for name, value in variables.items())


def _json(value: object) -> str:
    return orjson.dumps(value).decode()


def _is_loopback(host: str) -> bool:
    address = client_ip(host)
    return host == "localhost" if address is None else address.is_loopback
