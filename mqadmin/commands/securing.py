"""`mqadmin secureCluster`: users, secrets, certificates and confs of a guarded cluster, in a new folder."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from secrets import token_urlsafe
from shlex import quote
from typing import TYPE_CHECKING

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.commands.users import Names
from skylark.mqadmin.session import Session
from skylark.mqcommon.addresses import is_address
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass

if TYPE_CHECKING:
    from skylark.mqadmin.securing import Secrets

_SECRET_BYTES = 24
_DEFAULT_NAMESRV = "127.0.0.1:9876"
_SECRETS = "secrets.json"


@lazy_dataclass(frozen=True, slots=True)
class SecuredCluster:
    """The folder and the files of a guarded cluster, and where its NameServers will be."""

    directory: str
    files: Sequence[str]
    namesrv_addr: str
    namespace: str | None = None


def _show(made: SecuredCluster) -> Iterator[str]:
    folder = quote(made.directory)
    yield f"written to {folder}: {', '.join(made.files)}"
    yield ""
    if _SECRETS in made.files:
        yield "give the cluster its secrets, then add components/secure to your overlay (docs/operate/kubernetes.md):"
        yield f"  kubectl -n {made.namespace} apply -f {folder}/{_SECRETS}"
        return
    yield "start the servers:"
    for server in ("namesrv", "broker"):
        yield f"  set -a; . {folder}/{server}.env; set +a; {server} -c {folder}/{server}.conf"
    yield "sign in as root:"
    tls = f" ROCKETMQ_TLS_CONFIG={folder}/tls.properties" if "tls.properties" in made.files else ""
    yield f"  export ROCKETMQ_CREDENTIALS_FILE={folder}/tools.yml{tls} NAMESRV_ADDR='{made.namesrv_addr}'"
    yield "  mqadmin doctor"


@command(
    "secureCluster",
    click.Argument(["directory"], metavar="DIR"),
    click.Option(
        ["--hosts"],
        type=Names(),
        metavar="HOST,...",
        default=None,
        help="hosts of all servers, as clients reach them, for the certificate; default: this machine only",
    ),
    click.Option(
        ["--no-tls"],
        is_flag=True,
        help="no TLS between servers and tools: anyone who can listen on the network can read messages",
    ),
    click.Option(
        ["--kubernetes"],
        metavar="NAMESPACE",
        help="write the Secrets of deploy/kubernetes/components/secure instead, for a cluster in this namespace",
    ),
    show=_show,
    asks_servers=False,
)
async def secure_cluster(
    session: Session, directory: str, hosts: list[str] | None, no_tls: bool, kubernetes: str | None
) -> SecuredCluster:
    """Write users, secrets, certificates and conf files of a guarded cluster into a new folder DIR.

    The NameServer takes registrations of its own brokers only, brokers check every client's signature, and all use TLS.
    -n says where the NameServers will be (default: 127.0.0.1:9876). Copy the folder to each machine of the cluster.
    """
    import trio

    namesrv = session.settings.namesrv
    if kubernetes is None:
        return await trio.to_thread.run_sync(_for_machines, directory, namesrv or _DEFAULT_NAMESRV, hosts or (), no_tls)
    if no_tls or namesrv:
        raise UserError("--kubernetes has its own NameServers and TLS: leave out -n (and NAMESRV_ADDR) and --no-tls")
    return await trio.to_thread.run_sync(_for_kubernetes, directory, kubernetes, hosts or ())


def _for_machines(directory: str, namesrv_addr: str, hosts: Sequence[str], no_tls: bool) -> SecuredCluster:
    """Make the folder of a cluster whose machines have a copy of it. Blocks."""
    from skylark.mqadmin.securing import confs, plan_of, secret_files

    if wrong := [addr for addr in namesrv_addr.split(";") if not is_address(addr)]:
        raise UserError(f"{wrong[0]!r} is not an address; give -n HOST:PORT, several separated by ;")
    plan = plan_of(os.path.abspath(directory), namesrv_addr, hosts, tls=not no_tls)
    texts, private = confs(plan), secret_files(_new_secrets())
    if plan.tls:
        from skylark.remoting.net.tls.authority import make_certificates

        certificates = make_certificates(plan.hosts)
        texts |= {"ca.pem": certificates.ca, "server.pem": certificates.server}
        private["server.key"] = certificates.server_key
    return SecuredCluster(plan.directory, _write(plan.directory, texts, private), plan.namesrv_addr)


def _for_kubernetes(directory: str, namespace: str, hosts: Sequence[str]) -> SecuredCluster:
    """Make a folder with the Secrets of a cluster, and what tools and clients need. Blocks."""
    from skylark.mqadmin.securing import confs, kubernetes_plan, kubernetes_secrets, secret_files
    from skylark.remoting.net.tls.authority import make_certificates

    plan = kubernetes_plan(namespace)
    secrets, certificates = _new_secrets(), make_certificates([*plan.hosts, *hosts])
    tls_files = {
        "tls.properties": confs(plan)["tls.properties"],
        "ca.pem": certificates.ca,
        "server.pem": certificates.server,
        "server.key": certificates.server_key,
    }
    private = {_SECRETS: kubernetes_secrets(secrets, tls_files), "tools.yml": secret_files(secrets)["tools.yml"]}
    folder = os.path.abspath(directory)
    return SecuredCluster(folder, _write(folder, {"ca.pem": certificates.ca}, private), plan.namesrv_addr, namespace)


def _new_secrets() -> "Secrets":
    from skylark.mqadmin.securing import Secrets

    return Secrets(*(token_urlsafe(_SECRET_BYTES) for _ in range(3)))


def _write(directory: str, texts: dict[str, str], private: dict[str, str]) -> list[str]:
    """Write the files into the new folder, the private ones for its owner only; returns their names. Blocks."""
    folder = Path(directory)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UserError(f"{folder} is not empty: give a new folder, so that no secret in use is overwritten")
        for name, text in {**texts, **private}.items():
            made = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if name in private else 0o644)
            with open(made, "w", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror or error}") from None
    return sorted([*texts, *private])


FAMILIES = {"Users and policies": (secure_cluster,)}
