"""Each port for requests gives each identity what `expected.txt` says, in each mode and kind of access control."""

from pathlib import Path

import pytest
import trio

from skylark.mqcommon.addresses import split_address
from skylark.mqcommon.errors import RemotingError
from skylark.remoting.net import sockets
from skylark.remoting.net.tls.client import tls_connect
from skylark.remoting.net.tls.settings import Tls
from skylark.remoting.net.transport import Connect
from skylark.remoting.protocol.requests.controller import CONTROLLER_GET_METADATA_INFO
from skylark.remoting.protocol.requests.raft import DLEDGER_ENTRY
from skylark.remoting.protocol.requests.registrations import REGISTER_BROKER
from skylark.remoting.protocol.requests.sends import SEND_MESSAGE
from skylark.remoting.protocol.requests.table import BY_NAME
from tests.intruder import wire
from tests.intruder.requests import UNKNOWN, outcomes
from tests.intruder.targets import (
    ACL_1,
    ACL_2,
    CONTROLLER,
    DLEDGER,
    FOREIGN,
    LITTLE,
    MARK,
    MASTER_SLAVE,
    OWN,
    THEIRS,
    TLS,
    Ports,
    Targets,
    note_ports,
    open_targets,
)
from tests.support.certificates import Authority

TABLE = Path(__file__).with_name("expected.txt")
#: In the order of the letters.
IDENTITIES = ((THEIRS, None), (THEIRS, FOREIGN[0]), (THEIRS, FOREIGN[1]), (THEIRS, LITTLE), (OWN, LITTLE))
# A stranger, and the client of little rights about others' things.
ALL, FEW = (0, 1, 2, 3, 4), (0, 3)
COLUMNS = ("broker 1", "broker 2", "names s", "names o", "contr", "member")
# A code that only this kind of daemon serves, the first that fits.
KINDS = (
    (SEND_MESSAGE.code, ("broker 1", "broker 2")),
    (REGISTER_BROKER.code, ("names s", "names o")),
    (CONTROLLER_GET_METADATA_INFO.code, ("contr", "contr")),
    (DLEDGER_ENTRY.code, ("member", "member")),
)
MODES = (MASTER_SLAVE, CONTROLLER, DLEDGER)


def table() -> dict[int, tuple[str, dict[str, str]]]:
    """By code: the name of the request, and the cell of each column."""
    found = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            code, name, *cells = line.split()
            found[int(code)] = name, dict(zip(COLUMNS, cells, strict=True))
    return found


ROWS = table()


def column_of(codes: list[int], kind: str) -> str:
    """The column of a daemon that serves ``codes``."""
    return next(columns[kind == ACL_2] for code, columns in KINDS if code in codes)


def expected(code: int, column: str, mode: str) -> str:
    """Five letters."""
    if code not in ROWS:
        return UNKNOWN * len(IDENTITIES)
    cell = ROWS[code][1][column]
    if "/" in cell:
        cell = cell.split("/")[mode == CONTROLLER]
    return UNKNOWN * len(IDENTITIES) if cell == UNKNOWN else cell


def test_names_of_the_table_are_those_of_the_requests() -> None:
    names = {request.code: name for name, request in BY_NAME.items()}
    assert {code: name for code, (name, _) in ROWS.items() if name != "(none)"} == {
        code: names[code] for code in ROWS if code in names
    }


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        *((ACL_1, MASTER_SLAVE), (ACL_2, MASTER_SLAVE), (ACL_1, CONTROLLER), (ACL_2, DLEDGER)),
        *(pytest.param(*each, marks=pytest.mark.nightly) for each in ((ACL_2, CONTROLLER), (ACL_1, DLEDGER))),
    ],
)
async def test_everybody_gets_what_the_table_says(
    kind: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = note_ports(monkeypatch)
    async with open_targets(kind, mode, tmp_path) as targets:
        check_ports(ports, mode)
        wrong: list[str] = []
        async with trio.open_nursery() as nursery:
            tried: set[str] = set()
            for addr, codes in ports.codes.items():
                column = column_of(codes, kind)
                # The other ports of the same kind, a fast one and the slave's, are tried with fewer identities.
                identities = FEW if column in tried else ALL
                nursery.start_soon(try_codes, addr, codes, column, identities, mode, wrong)
                tried.add(column)
            for addr in ports.logs:
                nursery.start_soon(try_hellos, addr, targets)
        assert wrong == []
        await try_pages(ports)


def check_ports(ports: Ports, mode: str) -> None:
    assert not ports.unknown, "a port that is served in a way that is not known here"
    # One port of the NameServer, two of each broker, one of the Controller, or one of each member of a group.
    assert (len(ports.codes), len(ports.pages)) == (5 + {CONTROLLER: 1, DLEDGER: 2}.get(mode, 0), 3)
    # With Controllers another broker may have become the master meanwhile, and opened its port for slaves.
    assert len(ports.logs) == (mode == MASTER_SLAVE) or mode == CONTROLLER


async def try_codes(
    addr: str, codes: list[int], column: str, identities: tuple[int, ...], mode: str, wrong: list[str]
) -> None:
    """All codes of this port and of all other daemons; a stranger also tries the codes beside them."""
    if lacking := [code for code in codes if code not in ROWS or ROWS[code][1][column] == UNKNOWN]:
        wrong.append(f"{TABLE.name} has no answer of {column} to {lacking}")
    asked = sorted({*codes, *ROWS})
    letters = []
    for name, who in (IDENTITIES[each] for each in identities):
        got, answers = await outcomes(addr, asked, name, who)
        letters.append(got)
        told = (code for code, each in zip(asked, answers, strict=True) if MARK in each.body)
        wrong += [f"{code} gave {who} a message" for code in told]
    for code, *seen in zip(asked, *letters, strict=True):
        right = "".join(expected(code, column, mode)[each] for each in identities)
        if "".join(seen) != right:
            wrong.append(f"{code} at {column} ({mode}): {''.join(seen)} instead of {right}")
    beside = sorted({near for code in asked for near in (code - 1, code + 1)} - {*asked})
    got, _ = await outcomes(addr, beside, THEIRS, None)
    wrong += [f"{code} at {column} is served" for code, each in zip(beside, got, strict=True) if each != UNKNOWN]


async def try_hellos(addr: str, targets: Targets) -> None:
    """Whatever a slave begins with that does not know the secret of the set, it gets no message."""
    options = targets.master.broker.options

    async def try_one(pieces: list[bytes]) -> None:
        assert MARK not in await wire.told_at(addr, *pieces), pieces

    async with trio.open_nursery() as nursery:
        for pieces in wire.slave_hellos(options.broker_cluster_name, options.broker_name):
            nursery.start_soon(try_one, pieces)


async def try_pages(ports: Ports) -> None:
    """By HTTP to whoever is on this machine (docs/operate/ports.md): figures, no messages."""
    for addr, paths in ports.pages.items():
        assert split_address(addr)[0] == "127.0.0.1" and paths == {"/metrics", "/healthz", "/readyz"}
        for path in sorted(paths):
            page = await wire.http(addr, "GET", path)
            assert page.status in (200, 503) and MARK not in page.body
            assert (await wire.http(addr, "POST", path)).status == 405
        for path in ("/", "/metrics/", "/../etc/passwd", "/%2e%2e/etc/passwd", "/debug", "//metrics"):
            assert (await wire.http(addr, "GET", path)).status == 404


@pytest.mark.parametrize("mode", MODES)
async def test_without_a_certificate_nobody_gets_a_byte(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = note_ports(monkeypatch)
    async with open_targets(TLS, mode, tmp_path) as targets:
        check_ports(ports, mode)
        # Without TLS, with TLS but no certificate, and with one of another authority.
        ca_file = str(tmp_path / "ca.pem")
        stranger = Authority(tmp_path, "other").sign("stranger")
        connects: list[Connect] = [sockets.connect, tls_connect(Tls(ca_file)), tls_connect(Tls(ca_file, *stranger))]
        options = targets.master.broker.options
        hellos = [b"".join(each) for each in wire.slave_hellos(options.broker_cluster_name, options.broker_name)]
        async with trio.open_nursery() as nursery:
            for connect in connects:
                for addr, codes in ports.codes.items():
                    frames = b"".join(wire.request(code, number, {}) for number, code in enumerate(codes))
                    nursery.start_soon(gets_nothing, connect, addr, frames)
                for addr in ports.logs:
                    for hello in hellos:
                        nursery.start_soon(gets_nothing, connect, addr, hello)


async def gets_nothing(connect: Connect, addr: str, data: bytes) -> None:
    with trio.fail_after(wire.TIMEOUT_S):
        try:
            transport = await connect(*split_address(addr))
        except (OSError, RemotingError):
            return
        async with transport:
            try:
                await transport.send_all(data)
                assert await transport.receive(1 << 16) == b"", addr
            except trio.BrokenResourceError:
                pass
