from pathlib import Path

import pytest

from mqcommon.errors import InvalidArgument, UserError
from sdk.nameserver_source import Known, address_of, find_nameservers


def test_lists_of_addresses() -> None:
    assert find_nameservers("a:1;b:2") == Known(("a:1", "b:2"))
    assert find_nameservers(" a:1 , b:2;;a:1") == Known(("a:1", "b:2"))
    assert find_nameservers("[::1]:9876") == Known(("[::1]:9876",))
    assert find_nameservers(["a:1", "b:2;c:3"]) == Known(("a:1", "b:2", "c:3"))
    assert find_nameservers(("a:1",)) == Known(("a:1",))


def test_the_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "e:1")
    for nothing in (None, "", []):
        assert find_nameservers(nothing) == Known(("e:1",))
    assert find_nameservers("a:1") == Known(("a:1",))
    monkeypatch.setenv("NAMESRV_ADDR", "http://e:8080/rocketmq/nsaddr")
    assert find_nameservers(None) == Known(url="http://e:8080/rocketmq/nsaddr")


@pytest.mark.parametrize("text", ["localhost", "h:port", "h:0", "h:65536", "http://h:9876/x", ":9876", "kafka://h:9"])
def test_what_is_no_address_is_named(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        find_nameservers(f"good:9876;{text}")
    assert repr(text) in str(caught.value) and "host:port" in str(caught.value) and "\n" not in str(caught.value)


def test_no_address_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    for text in (None, "", " ; ", []):
        with pytest.raises(UserError, match="NAMESRV_ADDR"):
            find_nameservers(text)
        assert not find_nameservers(text, required=False)
    with pytest.raises(UserError, match="host:port"):
        find_nameservers("nonsense", required=False)


@pytest.mark.parametrize(
    ("url", "addr"),
    [
        ("http://jmenv.example/rocketmq/nsaddr", ("jmenv.example", 80)),
        ("http://h:8080/rocketmq/nsaddr?nofix=1", ("h", 8080)),
        ("http://[::1]:8080", ("::1", 8080)),
    ],
)
def test_address_servers(url: str, addr: tuple[str, int]) -> None:
    assert find_nameservers(f" {url}\n") == Known(url=url)
    assert address_of(url) == addr


@pytest.mark.parametrize(
    "url",
    [
        "https://h/x",
        "http://",
        "http:///x",
        "http://h:port/x",
        "http://h:0/x",
        "http://u@h/x",
        "http://h/a b",
        "http://h/\r\nx",
    ],
)
def test_urls_that_cannot_be_asked(url: str) -> None:
    with pytest.raises(InvalidArgument, match="address server"):
        find_nameservers(url)


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("brokerName=b\nnamesrvAddr=a:1;b:2\n", Known(("a:1", "b:2"))),
        ("rocketmq.namesrv.addr = a:1", Known(("a:1",))),
        ("namesrvAddr=http://h:8080/x", Known(url="http://h:8080/x")),
        ("rocketmq.namesrv.domain=jmenv.example", Known(url="http://jmenv.example:8080/rocketmq/nsaddr")),
        (
            "rocketmq.namesrv.domain=h:81\nrocketmq.namesrv.domain.subgroup=unit",
            Known(url="http://h:81/rocketmq/unit"),
        ),
    ],
)
def test_conf_files(tmp_path: Path, text: str, known: Known) -> None:
    path = tmp_path / "client.conf"
    path.write_text(text)
    assert find_nameservers(path) == known


def test_conf_files_that_do_not_say(tmp_path: Path) -> None:
    path = tmp_path / "client.conf"
    with pytest.raises(UserError, match=r"client\.conf"):
        find_nameservers(path)
    path.write_text("brokerName=b")
    with pytest.raises(UserError, match="namesrvAddr"):
        find_nameservers(path)
    path.write_text("namesrvAddr=nonsense")
    with pytest.raises(InvalidArgument, match="nonsense"):
        find_nameservers(path)
    path.write_text("namesrvAddr=\\uXYZ")
    with pytest.raises(UserError, match="properties"):
        find_nameservers(path)
    path.write_text("# " + "x" * 1024 * 1024)
    with pytest.raises(UserError, match="larger"):
        find_nameservers(path)


@pytest.mark.parametrize("given", [1, b"h:1", [b"h:1"], {"h:1"}])
def test_other_types_are_refused(given: object) -> None:
    with pytest.raises(TypeError, match="nameserver"):
        find_nameservers(given)  # type: ignore[arg-type]
