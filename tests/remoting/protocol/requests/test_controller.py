"""The recorded frames of Java brokers, Controllers and mqadmin are read, and written as they were."""

import pytest

from skylark.remoting.protocol.command import text_ext
from skylark.remoting.protocol.dialect import Dialect, decode_body, encode_body
from skylark.remoting.protocol.request import NOTHING
from skylark.remoting.protocol.requests.table import BY_CODE
from tests.remoting.protocol.recorded_controller import recorded_session

FILES = ["controller", "three-controllers", "to-broker"]
ALL_CODES = {904, 1001, 1002, 1003, 1004, 1005, 1006, 1008, 1009, 1010, 1011, 1012, 1013}


@pytest.mark.parametrize("name", FILES)
def test_headers_are_read_and_written(name: str) -> None:
    compared = 0
    for row in recorded_session(name):
        what = BY_CODE[row.request_code]
        kind = what.header_type if row.is_request else what.answer_header_type
        ext = row.command.ext or {}
        if kind is NOTHING or (not row.is_request and row.command.code != 0 and not ext):
            assert not ext, row.where
            continue
        assert text_ext(kind.from_ext(ext).to_ext()) == ext, row.where
        compared += 1
    assert compared


@pytest.mark.parametrize("name", FILES)
def test_bodies_are_read_and_written(name: str) -> None:
    compared = 0
    for row in recorded_session(name):
        what = BY_CODE[row.request_code]
        kind = what.body_type if row.is_request else what.answer_body_type
        body = row.command.body
        if kind is bytes or not body:
            continue
        assert encode_body(decode_body(kind, body), Dialect.FASTJSON) == body, row.where
        compared += 1
    assert compared


def test_all_requests_were_recorded() -> None:
    assert {row.request_code for name in FILES for row in recorded_session(name)} == ALL_CODES
