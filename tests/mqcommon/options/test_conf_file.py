"""Conf files, overrides and updates: values, precedence, and errors that say what to do."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import javaproperties
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.disk.files import OsFiles
from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.options.command_line import markdown_table
from skylark.mqcommon.options.conf_file import (
    edit,
    entries,
    load_conf,
    raw_value,
    read_update,
    save_changes,
    to_properties,
    update,
)
from skylark.mqcommon.options.fields import BYTES, camel_case, option, options_of


@dataclass(frozen=True)
class Options:
    ignored_keys: ClassVar[frozenset[str]] = frozenset({"useEpollNativeSelector"})

    listen_port: int = option(10911, "port", minimum=0, maximum=65535)
    broker_ip1: str = option("", "address", key="brokerIP1")
    namesrv_addr: str = option("", "NameServers", env="NAMESRV_ADDR", mutable=True)
    flush_disk_type: str = option("ASYNC_FLUSH", "flush", choices=("ASYNC_FLUSH", "SYNC_FLUSH"), mutable=True)
    auto_create_topic_enable: bool = option(True, "create", mutable=True)
    ratio: float = option(0.5, "share", minimum=0.0, maximum=1.0, mutable=True)
    interval_ms: int = option(500, "pause", unit="ms", minimum=1, mutable=True)
    cache_size: int = option(4_096, "memory", unit=BYTES, minimum=1, maximum=1 << 40)
    password: str = option("hidden", "password", secret=True, mutable=True)


@pytest.fixture
def conf(tmp_path: Path) -> Any:
    def write(content: str | bytes) -> str:
        path = tmp_path / "broker.conf"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


def load(path: str | None = None, overrides: dict[str, str] | None = None, **kwargs: Any) -> Options:
    return load_conf(Options, path, overrides, environ=kwargs.pop("environ", {}), **kwargs)


def test_defaults_stand_when_nothing_is_given() -> None:
    assert load() == Options()


def test_conf_is_read_as_java_reads_properties(conf: Any) -> None:
    text = "# comment\n! comment\n\nlistenPort = 1\n brokerIP1:10.0.0.1  \nnamesrvAddr=a:1;\\\n   b:2\nratio 0.25"
    loaded = load(conf(text))
    assert loaded == Options(listen_port=1, broker_ip1="10.0.0.1", namesrv_addr="a:1;b:2", ratio=0.25)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "iso-8859-1"])
def test_conf_may_be_in_utf8_or_latin1(conf: Any, encoding: str) -> None:
    assert load(conf("brokerIP1=Zürich\n".encode(encoding))).broker_ip1 == "Zürich"


def test_command_line_beats_conf_beats_environment(conf: Any) -> None:
    environ = {"NAMESRV_ADDR": "from-env:1"}
    path = conf("namesrvAddr=from-conf:1")
    assert load(environ=environ).namesrv_addr == "from-env:1"
    assert load(path, environ=environ).namesrv_addr == "from-conf:1"
    assert load(path, {"namesrv_addr": "from-cli:1"}, environ=environ).namesrv_addr == "from-cli:1"
    assert load(path, {"namesrvAddr": "by-key:1"}).namesrv_addr == "by-key:1"


def test_an_empty_environment_variable_is_none() -> None:
    assert load(environ={"NAMESRV_ADDR": " "}).namesrv_addr == ""


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("listenProt=1", "1: listenProt: unknown key; did you mean listenPort?"),
        ("LISTENPORT=1", "1: LISTENPORT: unknown key; did you mean listenPort?"),
        ("brokerIp1=x", "1: brokerIp1: unknown key; did you mean brokerIP1?"),
        ("zzz=1", "1: zzz: unknown key; docs/reference/conf.md lists all keys"),
        ("\n\nlistenPort=abc", "3: listenPort: 'abc' is not an integer; give a number from 0 to 65535"),
        ("listenPort=", "1: listenPort: '' is not an integer; give a number from 0 to 65535"),
        ("listenPort=1_0", "1: listenPort: '1_0' is not an integer; give a number from 0 to 65535"),
        ("listenPort=٣", "1: listenPort: '٣' is not an integer; give a number from 0 to 65535"),
        ("listenPort=65536", "1: listenPort: 65536 is too large; give a number from 0 to 65535"),
        ("intervalMs=0", "1: intervalMs: 0 is too small; give a number from 1 up"),
        ("intervalMs=" + "9" * 40, f"1: intervalMs: {'9' * 40} is too large; give a number from 1 up"),
        ("intervalMs=2K", "1: intervalMs: '2K' is not an integer; give a number from 1 up"),
        (
            "cacheSize=64 pears",
            "1: cacheSize: '64 pears' is not an integer, nor a size as 64MB; give a number from 1 to 1099511627776",
        ),
        ("cacheSize=2TB", "1: cacheSize: 2TB is too large; give a number from 1 to 1099511627776"),
        ("ratio=nan", "1: ratio: 'nan' is not a number; give a number from 0.0 to 1.0"),
        ("ratio=1.5", "1: ratio: 1.5 is too large; give a number from 0.0 to 1.0"),
        ("autoCreateTopicEnable=yes", "1: autoCreateTopicEnable: 'yes' is not a boolean; give true or false"),
        ("flushDiskType=X", "1: flushDiskType: 'X' is not a choice; give ASYNC_FLUSH or SYNC_FLUSH"),
        ("# a\\\nratio=1\\\n\\\nx\nzzz=1", "2: ratio: '1x' is not a number; give a number from 0.0 to 1.0"),
        ("ratio=\\\n1\nzzz=1", "3: zzz: unknown key; docs/reference/conf.md lists all keys"),
        ("ratio=1\r\nzzz=1", "2: zzz: unknown key; docs/reference/conf.md lists all keys"),
        ("ratio=1\nbrokerIP1=\\u12", "2: Invalid \\u escape sequence: \\u12; write \\u and four hexadecimal digits"),
    ],
)
def test_bad_conf_names_file_line_key_and_remedy(conf: Any, text: str, error: str) -> None:
    path = conf(text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value) == f"{path}:{error}"


@dataclass(frozen=True)
class JsonOptions(Options):
    conf_may_be_json: ClassVar[bool] = True


def test_a_conf_may_be_json_where_rocketmqs_is(conf: Any) -> None:
    text = """\n {"listenPort": 1, "brokerIP1": " 10.0.0.1 ", "namesrvAddr": null, "ratio": 0.25,
        "autoCreateTopicEnable": false, "password": {"accessKey": "a", "secrets": ["b", {}]},
        "useEpollNativeSelector": true, "listenPort": "2"}"""
    path, warnings = conf(text), list[str]()
    Path(path).chmod(0o600)
    loaded = load_conf(JsonOptions, path, {"interval_ms": "7"}, environ={"NAMESRV_ADDR": "a:1"}, warnings=warnings)
    assert loaded == JsonOptions(
        listen_port=2, broker_ip1="10.0.0.1", namesrv_addr="a:1", ratio=0.25, auto_create_topic_enable=False,
        password='{"accessKey": "a", "secrets": ["b", {}]}', interval_ms=7,
    )  # fmt: skip
    assert [warning.removeprefix(f"{path}:") for warning in warnings] == [
        "4: useEpollNativeSelector: a RocketMQ option that Skylark does not use; it has no effect",
        "4: listenPort: given before, in line 2; this one counts",
    ]
    assert raw_value(JsonOptions, "brokerIP1", path, {}) == "10.0.0.1"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"listenPort": 1,\n "ratio" 2}', r"2: this is not JSON \(Expecting ':' delimiter, column 10\)"),
        ('{"listenPort": 1', r"1: this is not JSON \(Expecting ',' delimiter"),
        ('{"ratio": NaN}', " this is not JSON: NaN is no number of JSON"),
        ('{"ratio": ' + "[" * 100_000, " this is not JSON: "),
        ('{\n"lisenPort": 1}', r"2: lisenPort: unknown key; did you mean listenPort\?"),
        ('{\n\n"listenPort": [1]}', r"3: listenPort: '\[1\]' is not an integer"),
        ('{"listenPort": 70000}', "1: listenPort: 70000 is too large"),
        ('{"autoCreateTopicEnable": 1}', "1: autoCreateTopicEnable: '1' is not a boolean"),
    ],
)
def test_bad_json_names_file_line_and_remedy(conf: Any, text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(conf(text))}:{error}"):
        load_conf(JsonOptions, conf(text), environ={})


def test_json_is_read_only_where_rocketmqs_conf_is_json(conf: Any) -> None:
    with pytest.raises(ConfigError, match="unknown key"):
        load(conf('{"listenPort": 1}'))


def test_missing_conf_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.conf: no such file; name a conf file that exists"):
        load(str(tmp_path / "nowhere.conf"))


def test_a_directory_is_no_conf(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory; check the path and its permissions"):
        load(str(tmp_path))


def test_bad_override_names_its_flag() -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {"listen_port": "x"})
    assert str(caught.value) == "--listen-port: 'x' is not an integer; give a number from 0 to 65535"


def test_bad_environment_names_its_variable() -> None:
    @dataclass(frozen=True)
    class Sized:
        size: int = option(1, "size", env="SIZE")

    with pytest.raises(ConfigError) as caught:
        load_conf(Sized, environ={"SIZE": "big"})
    assert str(caught.value) == "SIZE: 'big' is not an integer; give a number"


def test_unknown_override_is_refused() -> None:
    with pytest.raises(ConfigError, match="listenPrt: unknown key; did you mean listenPort"):
        load(None, {"listenPrt": "1"})


@pytest.mark.parametrize(
    ("text", "size"),
    [("64MB", 64 << 20), ("64m", 64 << 20), ("3 GiB", 3 << 30), ("10K", 10_240), ("1TB", 1 << 40), ("7", 7)],
)
def test_sizes_may_have_a_unit(conf: Any, text: str, size: int) -> None:
    assert load(conf(f"cacheSize={text}")).cache_size == size
    assert load(overrides={"cache_size": text}).cache_size == size


def test_oddities_are_warnings(conf: Any) -> None:
    warnings: list[str] = []
    path = conf("useEpollNativeSelector=true\nlistenPort=1\nlistenPort=2")
    assert load(path, warnings=warnings).listen_port == 2
    assert warnings == [
        f"{path}:1: useEpollNativeSelector: a RocketMQ option that Skylark does not use; it has no effect",
        f"{path}:3: listenPort: given before, in line 2; this one counts",
    ]


def test_a_rule_between_options_names_the_file(conf: Any) -> None:
    @dataclass(frozen=True)
    class Pair:
        low: int = option(1, "low")
        high: int = option(2, "high")

        def __post_init__(self) -> None:
            if self.low > self.high:
                raise ConfigError("low: above high; lower it")

    path = conf("low=3")
    with pytest.raises(ConfigError, match=r"broker\.conf: low: above high; lower it"):
        load_conf(Pair, path, environ={})


def test_choices_are_found_in_any_case(conf: Any) -> None:
    assert load(conf("flushDiskType=sync_flush\nautoCreateTopicEnable=FALSE")) == Options(
        flush_disk_type="SYNC_FLUSH", auto_create_topic_enable=False
    )


def test_properties_are_sorted_and_secrets_masked() -> None:
    lines = to_properties(Options(namesrv_addr="a:1;b:2")).splitlines()
    assert lines == [
        "autoCreateTopicEnable=true",
        "brokerIP1=",
        "cacheSize=4096",
        "flushDiskType=ASYNC_FLUSH",
        "intervalMs=500",
        "listenPort=10911",
        "namesrvAddr=a:1;b:2",
        "password=******",
        "ratio=0.5",
    ]


values = st.builds(
    Options,
    listen_port=st.integers(0, 65535),
    broker_ip1=st.text(st.characters(exclude_categories=["Cs"])).map(str.strip),
    namesrv_addr=st.text(st.sampled_from(" a=:#!\\\n\r\t\f")).map(str.strip),
    flush_disk_type=st.sampled_from(["ASYNC_FLUSH", "SYNC_FLUSH"]),
    auto_create_topic_enable=st.booleans(),
    ratio=st.floats(0, 1),
    interval_ms=st.integers(1, 2**63 - 1),
)


@given(values)
def test_properties_read_back_as_they_were(options: Options) -> None:
    text = to_properties(options)
    found = {key: value for _, key, value in entries(text)}
    assert load(None, found | {"password": "hidden"}) == options


@given(values, values)
def test_update_applies_what_may_change(old: Options, new: Options) -> None:
    mutable = {o.key for o in options_of(Options) if o.mutable}
    updated = update(old, [(key, value) for key, value in read_update(to_properties(new).encode()) if key in mutable])
    for field in fields(Options):
        source = new if field.metadata["mutable"] else old
        assert getattr(updated, field.name) == getattr(source, field.name)


def test_update_accepts_the_whole_configuration_back() -> None:
    options = Options(listen_port=5, password="secret")
    pairs = read_update(to_properties(options).replace("=500", "=600").encode())
    assert update(options, pairs) == Options(listen_port=5, password="secret", interval_ms=600)


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("listenPort", "1", "listenPort: cannot change while running; set it in the conf file and restart"),
        ("intervalMS", "1", "intervalMS: unknown key; did you mean intervalMs?"),
        ("ratio", "2", "ratio: 2 is too large; give a number from 0.0 to 1.0"),
        ("useEpollNative", "true", "useEpollNative: unknown key; docs/reference/conf.md lists all keys"),
    ],
)
def test_update_refuses_and_changes_nothing(key: str, value: str, error: str) -> None:
    options = Options()
    with pytest.raises(ConfigError) as caught:
        update(options, [("intervalMs", "7"), (key, value)])
    assert str(caught.value) == error
    assert options == Options()


def test_a_key_is_the_fields_name_in_camel_case() -> None:
    assert [camel_case(name) for name in ("a", "listen_port", "maped_file_size_commit_log", "broker_ip1")] == [
        "a", "listenPort", "mapedFileSizeCommitLog", "brokerIp1",
    ]  # fmt: skip


@pytest.mark.parametrize("data", [b"a=b\n" * 1_001, b"\r" * 1_001, b"a=" + b"b" * 65_536])
def test_a_long_update_is_refused_with_its_limits(data: bytes) -> None:
    with pytest.raises(ConfigError, match="at most 65536 in 1000 lines are taken"):
        read_update(data)


def test_an_update_is_read() -> None:
    assert read_update("a=é\n".encode()) == [("a", "é")]
    with pytest.raises(ConfigError, match="string2Properties error"):
        read_update(b"\xff")


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=20)


def test_only_the_changed_line_changes() -> None:
    text = "# first\nlistenPort = 1\n\nother : a\\\n  b\n! last\n"
    assert edit(text, {"listenPort": "2"}) == "# first\nlistenPort=2\n\nother : a\\\n  b\n! last\n"


def test_new_keys_come_last() -> None:
    assert edit("# c\na=1\n", {"b": "2"}) == "# c\na=1\nb=2\n"


@given(st.dictionaries(TEXTS, TEXTS), st.dictionaries(TEXTS, TEXTS))
def test_an_edited_text_has_the_changes_and_nothing_else(before: dict[str, str], changes: dict[str, str]) -> None:
    text = javaproperties.dumps(before, timestamp=None)
    assert javaproperties.loads(edit(text, changes)) == before | changes


def test_a_missing_file_is_made_and_an_old_one_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.conf"
    save_changes(OsFiles(), str(path), {"a": "1"})
    save_changes(OsFiles(), str(path), {"a": "2"})
    assert path.read_text() == "a=2\n"
    assert (tmp_path / "x.conf.bak").read_text() == "a=1\n"


def test_changes_of_several_processes_at_once_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.conf"
    path.write_text("# instances 0 and 1\nlistenPort=10911\n")
    done = threading.Event()
    gone: list[FileNotFoundError] = []

    def change(name: str) -> None:
        for number in range(20):
            save_changes(OsFiles(), str(path), {f"{name}{number}": "1"})

    def look() -> None:
        while not done.is_set():
            try:
                assert path.read_text().startswith("# instances 0 and 1\nlistenPort=10911\n")
            except FileNotFoundError as error:
                gone.append(error)

    with ThreadPoolExecutor() as pool:
        looking = pool.submit(look)
        changes = [pool.submit(change, name) for name in "ab"]
        wait(changes)
        done.set()
        for each in (*changes, looking):
            each.result()
    assert gone == []
    lines = path.read_text().splitlines()[2:]
    assert sorted(lines) == sorted(f"{name}{number}=1" for name in "ab" for number in range(20))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["x.conf", "x.conf.bak"]


def test_a_last_line_without_an_end_and_foreign_bytes_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.conf"
    path.write_bytes(b"# gr\xfc\xdfe\na=1")
    save_changes(OsFiles(), str(path), {"b": "2"})
    assert path.read_bytes() == b"# gr\xfc\xdfe\na=1\nb=2\n"


def test_a_file_with_a_secret_stays_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("haSecret=x\n")
    path.chmod(0o600)
    for value in ("1", "2"):
        save_changes(OsFiles(), str(path), {"a": value})
        assert {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {
            "broker.conf": 0o600, "broker.conf.bak": 0o600
        }  # fmt: skip


@dataclass(frozen=True)
class Bounds:
    most: int = option(1, "most", maximum=9)
    least: int = option(1, "least", minimum=1)
    both: int = option(1, "both", minimum=1, maximum=9)


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("most", "10", "give a number up to 9"),
        ("least", "0", "give a number from 1 up"),
        ("both", "0", "give a number from 1 to 9"),
    ],
)
def test_a_number_out_of_bounds_is_refused_with_the_bounds_that_there_are(key: str, value: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy):
        load_conf(Bounds, None, {key: value}, environ={})


def test_the_table_of_options_has_the_bounds_that_there_are() -> None:
    table = markdown_table(Bounds)
    assert all(text in table for text in ("at most 9", "at least 1", "1 to 9"))
