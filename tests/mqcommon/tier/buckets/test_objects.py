"""A bucket of an object store: by moto, and in nightly runs by SeaweedFS. Each error has one of our kinds."""

import hashlib
import os
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.tier.bucket import (
    Bucket,
    BucketAway,
    BucketError,
    BucketRefused,
    NoSuchObject,
    ObjectExists,
)
from skylark.mqcommon.tier.buckets import objects
from skylark.mqcommon.tier.opening import open_bucket
from skylark.remoting.net.tls.authority import make_certificates
from tests.mqcommon.tier.buckets.contract import LARGE, BucketContract
from tests.support.buckets import S3Server

CALLS: dict[str, Callable[[Bucket], object]] = {
    "get": lambda bucket: bucket.get("there"),
    "get_range": lambda bucket: bucket.get_range("there", 0, 1),
    "head": lambda bucket: bucket.head("there"),
    "create": lambda bucket: bucket.create("new", b""),
    "put": lambda bucket: bucket.put("new", [b"1"]),
    "large put": lambda bucket: bucket.put("new", [bytes(LARGE)]),
    "delete": lambda bucket: bucket.delete(["there"]),
    "list": lambda bucket: list(bucket.list("")),
    "folders": lambda bucket: bucket.folders(""),
}


class TestMoto(BucketContract):
    @pytest.fixture
    def bucket(self, s3_url: str) -> Bucket:
        return open_bucket(f"{s3_url}/some/prefix", timeout_s=60)


@pytest.mark.nightly
@pytest.mark.needs("SeaweedFS")
class TestSeaweedFS(BucketContract):
    @pytest.fixture
    def bucket(self, seaweedfs_url: str) -> Bucket:
        return open_bucket(f"{seaweedfs_url}/some/prefix", timeout_s=60)


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (403, "AccessDenied", BucketRefused),
        (400, "ExpiredToken", BucketRefused),
        (301, "PermanentRedirect", BucketRefused),
        (409, "ConditionalRequestConflict", BucketAway),
        (400, "RequestTimeout", BucketAway),
    ],
)
def test_each_answer_has_a_kind(
    s3_server: S3Server, s3_url: str, status: int, code: str, expected: type[BucketError]
) -> None:
    bucket = open_bucket(s3_url, timeout_s=60)
    bucket.put("there", [b"1"])
    with s3_server.answering(status, code):
        for name, call in CALLS.items():
            # The answer to a HEAD has no body with a code.
            with pytest.raises(BucketRefused if name == "head" and status == 400 else expected):
                call(bucket)
    assert [each.name for each in bucket.list("")] == ["there"]


def test_a_busy_store_is_asked_again(s3_server: S3Server, s3_url: str) -> None:
    bucket = open_bucket(s3_url, timeout_s=60)
    with s3_server.answering(503, "SlowDown", times=1):
        assert bucket.put("object", [b"1"]) == 1
    with s3_server.answering(429, "SlowDown", times=1):
        assert bucket.get("object") == b"1"
    with s3_server.answering(500, "InternalError"), pytest.raises(BucketAway, match="answered 500: InternalError"):
        bucket.get("object")


def test_create_is_tried_once_so_that_it_never_meets_its_own_object(s3_server: S3Server, s3_url: str) -> None:
    bucket = open_bucket(s3_url, timeout_s=60)
    with s3_server.answering(500, "InternalError", after=True, times=1), pytest.raises(BucketAway):
        bucket.create("manifest", b"mine")
    assert bucket.get("manifest") == b"mine"


def test_a_bucket_that_is_not_there_is_no_empty_bucket(s3_url: str) -> None:
    bucket = open_bucket("s3://no-such-bucket/prefix", timeout_s=60)
    for name, call in CALLS.items():
        if name != "head":
            with pytest.raises(BucketRefused, match="no such bucket: create it"):
                call(bucket)


def test_a_silent_store_is_away_when_the_time_is_over(s3_server: S3Server, s3_url: str) -> None:
    bucket = open_bucket(s3_url, timeout_s=0.2)
    with s3_server.silent():
        for name in ("get", "create", "large put", "list"):
            with pytest.raises(BucketAway, match="no answer in time"):
                CALLS[name](bucket)
    patient = open_bucket(s3_url, timeout_s=60)
    with pytest.raises(NoSuchObject):
        patient.get("there")


def test_a_store_that_cannot_be_reached_is_away(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(BucketAway, match="Connection refused"):
        open_bucket(s3_url, timeout_s=60).get("there")


def test_the_endpoint_for_s3_alone_comes_first(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", os.environ["AWS_ENDPOINT_URL"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    open_bucket(s3_url, timeout_s=60).create("there", b"")


@pytest.fixture
def home(s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of a user whose environment has no keys."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".aws").mkdir()
    return tmp_path / ".aws"


def test_keys_come_from_the_files_of_the_aws_command_line(s3_url: str, home: Path) -> None:
    (home / "credentials").write_text("[default]\naws_access_key_id = one\naws_secret_access_key = two\n")
    (home / "config").write_text("[default]\nregion = eu-central-1\n")
    bucket = open_bucket(s3_url, timeout_s=60)
    bucket.create("there", b"")
    # Whoever renews the keys replaces the file.
    (home / "credentials").write_text(
        "[default]\naws_access_key_id=three\naws_secret_access_key=f\naws_session_token=t\n"
    )
    assert bucket.get("there") == b""


def test_a_named_profile_gives_the_keys(s3_url: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "credentials").write_text("[tier]\naws_access_key_id = one\naws_secret_access_key = two\n")
    (home / "config").write_text("[profile tier]\nregion = eu-central-1\n")
    monkeypatch.setenv("AWS_PROFILE", "tier")
    open_bucket(s3_url, timeout_s=60).create("there", b"")
    monkeypatch.setenv("AWS_PROFILE", "other")
    with pytest.raises(ConfigError, match=r"profile other .* has no aws_access_key_id"):
        open_bucket(s3_url, timeout_s=60)


def test_a_damaged_file_of_profiles_is_named_and_not_shown(s3_url: str, home: Path) -> None:
    (home / "credentials").write_text("aws_secret_access_key = secret\n")
    with pytest.raises(ConfigError, match="credentials is no file of profiles") as caught:
        open_bucket(s3_url, timeout_s=60)
    assert "secret" not in str(caught.value).replace(str(home), "")


def test_settings_that_lack_something_are_told(s3_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(ConfigError, match="Missing AccessKeyId"):
        open_bucket(s3_url, timeout_s=60)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "none.pem"))
    with pytest.raises(ConfigError, match=r"none\.pem cannot be read"):
        open_bucket(s3_url, timeout_s=60)
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(ConfigError, match="set AZURE_STORAGE_ACCOUNT_NAME"):
        open_bucket("az://container/prefix", timeout_s=60)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    assert open_bucket("az://container/prefix", timeout_s=60).url == "az://container/prefix"
    assert open_bucket("gs://bucket/prefix/", timeout_s=60).url == "gs://bucket/prefix"


@pytest.mark.parametrize(
    ("endpoint", "said", "is_unsigned"),
    [
        ("https://s3", None, True),
        ("https://s3", "", True),
        ("https://s3", "false", False),
        ("http://s3", None, False),
        ("http://s3", "", False),
    ],
)
def test_only_where_tls_proves_the_bytes_requests_have_no_sum_of_them(
    endpoint: str, said: str | None, is_unsigned: bool, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs: list[dict[str, object]] = []
    real = objects.S3Store

    def opened(*given: Any, **options: Any) -> object:
        configs.append(options["config"])
        return real(*given, **options)

    monkeypatch.setattr(objects, "S3Store", opened)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    if said is not None:
        monkeypatch.setenv("AWS_UNSIGNED_PAYLOAD", said)
    open_bucket(s3_url, timeout_s=60)
    assert [config.get("unsigned_payload", False) for config in configs] == [is_unsigned, is_unsigned]


@pytest.mark.parametrize("algorithm", [None, "sha256", "crc64nvme"])
def test_requests_without_a_signed_sum_of_their_bytes_are_taken(
    algorithm: str | None, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_UNSIGNED_PAYLOAD", "true")
    if algorithm is not None:
        monkeypatch.setenv("AWS_CHECKSUM_ALGORITHM", algorithm)
    bucket = open_bucket(s3_url, timeout_s=60)
    bucket.put("large", [bytes(LARGE)])
    assert bucket.get("large") == bytes(LARGE)
    bucket.create("new", b"1")
    with pytest.raises(ObjectExists):
        bucket.create("new", b"2")
    bucket.delete(["large"])
    assert [each.name for each in bucket.list("")] == ["new"]


class _Puts(BaseHTTPRequestHandler):
    """A bucket that takes all that is written."""

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.taken.append((self.headers["x-amz-content-sha256"], body))  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """No output."""


@contextmanager
def tls_server(folder: Path) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """(URL, (x-amz-content-sha256, body) of each PUT) of a server whose certificate ``folder``/ca.pem proves."""
    made = make_certificates(["localhost"])
    for name, text in (("ca", made.ca), ("server", made.server), ("key", made.server_key)):
        (folder / f"{name}.pem").write_text(text)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "key.pem")
    taken: list[tuple[str, bytes]] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), _Puts) as server:
        server.taken = taken  # type: ignore[attr-defined]
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"https://localhost:{server.server_port}", taken
        finally:
            server.shutdown()
            thread.join()


def test_a_server_with_an_own_certificate_gets_bytes_without_a_sum_once_it_is_trusted(
    tmp_path: Path, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "localhost")
    with tls_server(tmp_path) as (url, taken):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with pytest.raises(BucketError):
            open_bucket(s3_url, timeout_s=60).put("object", [b"1"])
        assert not taken
        monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "ca.pem"))
        open_bucket(s3_url, timeout_s=60).put("object", [b"1"])
        monkeypatch.setenv("AWS_UNSIGNED_PAYLOAD", "false")
        open_bucket(s3_url, timeout_s=60).put("object", [b"1"])
    assert taken == [("UNSIGNED-PAYLOAD", b"1"), (hashlib.sha256(b"1").hexdigest(), b"1")]


def test_https_is_needed_unless_the_endpoint_says_http(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", os.environ["AWS_ENDPOINT_URL"].replace("http:", "https:"))
    with pytest.raises(BucketAway, match="HTTP error"):
        open_bucket(s3_url, timeout_s=60).get("there")
