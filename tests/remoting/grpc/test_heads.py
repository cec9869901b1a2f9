"""Headers of requests and trailers of answers, and the texts in them."""

from urllib.parse import unquote

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.remoting.grpc import heads
from skylark.remoting.grpc.statuses import MAX_TEXT_BYTES, GrpcError, StatusCode, message_of


def fields(block: bytes) -> dict[str, str]:
    return {str(name): str(value) for name, value in hpack.Decoder().decode(block)}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1H", 3600), ("2M", 120), ("99999999S", 99_999_999), ("250m", 0.25), ("1u", 1e-6), ("5n", 5e-9), ("0S", 0)],
)
def test_timeouts_have_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert heads.timeout_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "S", "1", "1s", "-1S", "1.5S", "123456789S", "1S ", " 1S", "\u0661S", "1SS"])
def test_other_timeouts_are_refused(text: str) -> None:
    with pytest.raises(GrpcError, match="grpc-timeout"):
        heads.timeout_s(text)


@pytest.mark.parametrize(
    ("content_type", "is_grpc"),
    [
        ("application/grpc", True),
        ("application/grpc+proto", True),
        ("application/grpc;charset=utf-8", True),
        ("application/grpc-web", False),
        ("application/json", False),
        ("", False),
    ],
)
def test_content_types_of_grpc(content_type: str, is_grpc: bool) -> None:
    assert heads.is_grpc(content_type) == is_grpc


@given(text=st.text(max_size=300))
def test_a_text_comes_back_from_the_trailers(text: str) -> None:
    encoded = message_of(text)
    assert encoded.isascii() and encoded.isprintable()
    assert unquote(encoded) == text.encode(errors="replace").decode()


def test_a_long_text_is_cut_between_characters() -> None:
    assert message_of("é" * MAX_TEXT_BYTES) == "%C3%A9" * (MAX_TEXT_BYTES // 2)
    assert message_of("x" + "é" * MAX_TEXT_BYTES) == "x" + "%C3%A9" * (MAX_TEXT_BYTES // 2 - 1)


def test_a_failure_is_a_whole_answer_unless_headers_were_sent() -> None:
    trailers = {"grpc-status": "10", "grpc-message": "100%25"}
    assert fields(heads.failure(StatusCode.ABORTED, "100%", is_whole=False)) == trailers
    whole = {":status": "200", "content-type": "application/grpc", **trailers}
    assert fields(heads.failure(StatusCode.ABORTED, "100%", is_whole=True)) == whole


@pytest.mark.parametrize(("takes_gzip", "accepted"), [(False, "identity"), (True, "identity,gzip")])
def test_an_unknown_encoding_is_told_which_ones_are_known(takes_gzip: bool, accepted: str) -> None:
    found = fields(heads.unknown_encoding("snappy", takes_gzip=takes_gzip))
    assert found["grpc-accept-encoding"] == accepted
    assert (found["grpc-status"], found["grpc-message"]) == ("12", "grpc-encoding snappy is not supported")


def test_the_prepared_blocks() -> None:
    assert fields(heads.HEAD) == {":status": "200", "content-type": "application/grpc"}
    assert fields(heads.GZIP_HEAD) == {**fields(heads.HEAD), "grpc-encoding": "gzip"}
    assert fields(heads.OK) == {"grpc-status": "0"}
    assert fields(heads.UNSUPPORTED_MEDIA_TYPE) == {":status": "415"}
    assert fields(heads.NOT_POST) == {":status": "405", "allow": "POST"}
