"""`mqadmin secureCluster`: users, secrets, certificates and confs of a guarded cluster, in a new folder."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
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
    from skylark.mqadmin.securing import Plan

_SECRET_BYTES = 24
_DEFAULT_NAMESRV = "127.0.0.1:9876"


@lazy_dataclass(frozen=True, slots=True)
class SecuredCluster:
    """The folder and the files of a guarded cluster, and where its NameServers will be."""

    directory: str
    files: Sequence[str]
    namesrv_addr: str


def _show(made: SecuredCluster) -> Iterator[str]:
    folder = quote(made.directory)
    yield f"written to {folder}: {', '.join(made.files)}"
    yield ""
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
    show=_show,
    asks_servers=False,
)
async def secure_cluster(session: Session, directory: str, hosts: list[str] | None, no_tls: bool) -> SecuredCluster:
    """Write users, secrets, certificates and conf files of a guarded cluster into a new folder DIR.

    The NameServer takes registrations of its own brokers only, brokers check every client's signature, and all use TLS.
    -n says where the NameServers will be (default: 127.0.0.1:9876). Copy the folder to each machine of the cluster.
    """
    import trio

    from skylark.mqadmin.securing import plan_of

    namesrv_addr = session.settings.namesrv or _DEFAULT_NAMESRV
    if wrong := [addr for addr in namesrv_addr.split(";") if not is_address(addr)]:
        raise UserError(f"{wrong[0]!r} is not an address; give -n HOST:PORT, several separated by ;")
    given = plan_of(directory, namesrv_addr, hosts or (), tls=not no_tls)
    plan, files = await trio.to_thread.run_sync(_write, given)
    return SecuredCluster(plan.directory, files, plan.namesrv_addr)


def _write(plan: "Plan") -> "tuple[Plan, list[str]]":
    """Make the folder and its files. Returns the plan with the absolute path, and the files' names. Blocks."""
    from skylark.mqadmin.securing import Secrets, confs, secret_files

    plan = replace(plan, directory=os.path.abspath(plan.directory))
    texts = confs(plan)
    private = secret_files(Secrets(*(token_urlsafe(_SECRET_BYTES) for _ in range(3))))
    if plan.tls:
        from skylark.remoting.net.tls.authority import make_certificates

        certificates = make_certificates(plan.hosts)
        texts |= {"ca.pem": certificates.ca, "server.pem": certificates.server}
        private["server.key"] = certificates.server_key
    folder = Path(plan.directory)
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
    return plan, sorted([*texts, *private])


FAMILIES = {"Users and policies": (secure_cluster,)}
