"""mqadmin secureCluster: a cluster of its files works, lets in who has its secrets, and nobody else."""

import json
import os
import shlex
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner, Result
from cryptography import x509

from scripts.daemons import free_port
from skylark.broker.broker import Broker
from skylark.broker.options import BrokerOptions
from skylark.mqadmin.cli import mqadmin
from skylark.mqcommon.errors import BrokerError, RemotingError
from skylark.mqcommon.options.conf_file import load_conf
from skylark.mqproxy.options import ProxyOptions
from skylark.namesrv.controller.options import ControllerDaemonOptions
from skylark.namesrv.namesrv import Namesrv
from skylark.namesrv.options import NamesrvOptions
from skylark.remoting.net.call import Remote, call
from skylark.remoting.net.client import open_client
from skylark.remoting.net.tls.client import tls_connect
from skylark.remoting.net.tls.options import daemon_tls
from skylark.remoting.net.tls.settings import Tls
from skylark.remoting.protocol.requests.registrations import UNREGISTER_BROKER, BrokerRequestHeader
from tests.broker.running import SMALL
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import DEADLINE_S, until

SECRETS = {"namesrv.env", "broker.env", "proxy.env", "tools.yml", "server.key"}


def run(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(mqadmin, list(arguments), env=env, prog_name="mqadmin")


async def in_thread(*arguments: str, env: dict[str, str] | None = None) -> Result:
    """A command of mqadmin has a loop of its own."""
    return await trio.to_thread.run_sync(lambda: run(*arguments, env=env))


def variables(file: Path) -> dict[str, str]:
    """The variables as a shell reads the file."""
    return dict(each.split("=", 1) for each in shlex.split(file.read_text()))


@asynccontextmanager
async def cluster_of(folder: Path) -> AsyncIterator[str]:
    """The NameServer and the broker of the folder, which is registered; the broker's address."""
    conf = load_conf(NamesrvOptions, folder / "namesrv.conf", environ=variables(folder / "namesrv.env"))
    more = {key: str(value) for key, value in SMALL.items() if key not in ("broker_name", "bind_address")}
    options = load_conf(BrokerOptions, folder / "broker.conf", more, environ=variables(folder / "broker.env"))
    conf = replace(conf, kv_config_path=f"{folder}/kvConfig.json")
    namesrv, broker = Namesrv(conf), Broker(options, fs=MemoryFiles())
    async with trio.open_nursery() as nursery:
        await nursery.start(namesrv.run)
        addr = await nursery.start(broker.run)
        await until(lambda: "broker-a" in namesrv.state.routes.cluster_info().broker_addr_table, "it is registered")
        yield addr
        broker.stop()
        await namesrv.stop()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("way", ["", "--no-tls"])
async def test_a_cluster_of_these_files_lets_in_who_has_its_secrets(way: str, tmp_path: Path) -> None:
    folder, namesrv = tmp_path / "secure", f"127.0.0.1:{free_port()}"
    made = await in_thread("secureCluster", str(folder), "-n", namesrv, *([way] if way else []))
    assert made.exit_code == 0, made.output
    assert f"broker -c {folder}/broker.conf" in made.output
    texts = {path.name: path.read_text() for path in folder.iterdir()}
    for name, text in texts.items():
        mode = stat.S_IMODE((folder / name).stat().st_mode)
        assert mode == 0o600 if name in SECRETS else not text.count("secretKey"), name
    tools = {"ROCKETMQ_CREDENTIALS_FILE": f"{folder}/tools.yml", "NAMESRV_ADDR": namesrv}
    if not way:
        tools["ROCKETMQ_TLS_CONFIG"] = f"{folder}/tls.properties"
    async with cluster_of(folder) as addr:
        with trio.fail_after(DEADLINE_S):
            for arguments in (
                ("clusterList",),
                ("createUser", "-b", addr, "-u", "shop", "-p", "a-secret"),
                ("getUser", "-b", addr, "-u", "shop"),
                ("updateKvConfig", "-s", "n", "-k", "k", "-v", "v"),
            ):
                result = await in_thread(*arguments, env=tools)
                assert result.exit_code == 0, result.output
            result = await in_thread("doctor", "--output", "json", env=tools)
            checks = {(each["check"], each["state"]) for each in json.loads(result.stdout)["findings"]}
            assert ("registration", "OK") in checks and ("broker", "OK") in checks
            await strangers_are_refused(folder, way, namesrv, addr)


async def strangers_are_refused(folder: Path, way: str, namesrv: str, addr: str) -> None:
    header = BrokerRequestHeader("broker-a", addr, "DefaultCluster", 0)
    if not way:
        async with open_client() as plain:
            with pytest.raises(RemotingError):
                await call(Remote(plain, namesrv, 1_000), UNREGISTER_BROKER, header)
    connect = {"connect": tls_connect(Tls(ca_file=f"{folder}/ca.pem"))} if not way else {}
    async with open_client(**connect) as stranger:
        with pytest.raises(BrokerError, match="has no signature"):
            await call(Remote(stranger, namesrv, 10_000), UNREGISTER_BROKER, header)


def test_a_folder_with_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "broker.env").write_text("in use")
    result = run("secureCluster", str(tmp_path), "--no-tls")
    assert result.exit_code == 1 and "is not empty: give a new folder" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["broker.env"]
    result = run("secureCluster", str(tmp_path / "other"), "-n", "nowhere")
    assert result.exit_code != 0 and not (tmp_path / "other").exists()


def test_servers_of_other_machines_open_their_ports(tmp_path: Path) -> None:
    result = run("secureCluster", str(tmp_path), "-n", "10.0.0.1:9876;10.0.0.2:9876", "--hosts", "10.0.0.5,mq.example")
    assert result.exit_code == 0, result.output
    for name in ("namesrv.conf", "broker.conf", "proxy.conf"):
        assert "bindAddress=0.0.0.0\n" in (tmp_path / name).read_text()
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["mq.example"]
    assert list(map(str, names.get_values_for_type(x509.IPAddress))) == ["10.0.0.5", "10.0.0.1", "10.0.0.2"]
    assert os.stat(tmp_path / "server.key").st_mode & 0o077 == 0


def test_secrets_for_kubernetes(tmp_path: Path) -> None:
    result = run("secureCluster", str(tmp_path / "s"), "--kubernetes", "orders")
    assert result.exit_code == 0, result.output
    assert f"kubectl -n orders apply -f {tmp_path}/s/secrets.json" in result.output
    assert {path.name for path in (tmp_path / "s").iterdir()} == {"secrets.json", "tools.yml", "ca.pem"}
    assert stat.S_IMODE((tmp_path / "s" / "secrets.json").stat().st_mode) == 0o600
    items = json.loads((tmp_path / "s" / "secrets.json").read_text())["items"]
    found = {each["metadata"]["name"]: each["stringData"] for each in items}
    kinds = {"namesrv": NamesrvOptions, "controller": ControllerDaemonOptions, "broker": BrokerOptions}
    for name, kind in {**kinds, "proxy": ProxyOptions}.items():
        given = {} if name != "controller" else {"controllerDLegerPeers": "n0-a:1", "controllerDLegerSelfId": "n0"}
        options = load_conf(kind, None, given, environ=found[f"skylark-{name}"])
        assert name == "namesrv" or options.inner_credentials is not None
    (tmp_path / "tls").mkdir()
    for name, text in found["skylark-tls"].items():
        (tmp_path / "tls" / name).write_text(text.replace("/etc/skylark-tls", f"{tmp_path}/tls"))
    assert daemon_tls(NamesrvOptions(tls_config_file=f"{tmp_path}/tls/tls.properties")).server is not None
    assert "namesrv.orders.svc" in certificate_names(tmp_path / "tls" / "server.pem")


@pytest.mark.parametrize("more", [["--no-tls"], ["-n", "10.0.0.1:9876"]])
def test_secrets_for_kubernetes_have_tls_and_the_services_of_the_manifests(tmp_path: Path, more: list[str]) -> None:
    result = run("secureCluster", str(tmp_path / "s"), "--kubernetes", "orders", *more)
    assert result.exit_code == 1 and "--kubernetes has its own NameServers and TLS" in result.output
    assert not (tmp_path / "s").exists()


def certificate_names(path: Path) -> list[str]:
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return names.get_values_for_type(x509.DNSName)
