"""Every recorded frame decodes; what Java sent re-encodes to the same bytes."""

import pytest

from skylark.remoting.protocol.command import JSON, ROCKETMQ
from skylark.remoting.protocol.connection import Connection
from skylark.remoting.protocol.frame import encode
from tests.remoting.protocol.golden import recorded, recorded_by_fake_server, rows

ALL_FILES = ["java_json", "java_rocketmq", "java_5.3.3", "cpp", "broker_namesrv", "admin_4.9.8", "admin_5.3.3"]


@pytest.mark.parametrize("name", ALL_FILES)
def test_frames_decode_to_what_was_recorded(name: str) -> None:
    for row, (where, _, is_request, frame) in zip(rows(name), recorded(name), strict=True):
        (command,) = Connection().receive_data(frame)
        head = row["header"]
        assert command.code == head["code"], where
        assert command.opaque == head["opaque"], where
        assert command.version == head["version"], where
        assert (command.ext or {}) == (head.get("extFields") or head.get("ext") or {}), where
        assert command.is_response != is_request, where
        assert len(frame) == 8 + (int.from_bytes(frame[4:8], "big") & 0xFFFFFF) + len(command.body), where


@pytest.mark.parametrize("name", ALL_FILES)
def test_java_frames_re_encode_to_the_same_bytes(name: str) -> None:
    compared = 0
    for each in recorded(name):
        command = each.command
        if command.language == "CPP":  # writes another form of JSON; we only read it
            continue
        assert encode(command) == each.frame, each.where
        compared += 1
    assert compared


def test_both_header_types_were_recorded() -> None:
    assert {each.command.codec for each in recorded(*ALL_FILES)} == {JSON, ROCKETMQ}


def test_the_cpp_client_is_understood() -> None:
    commands = [Connection().receive_data(frame)[0] for frame in recorded_by_fake_server()]
    assert len(commands) == 80
    assert {command.language for command in commands} == {"CPP"}
    assert {command.remark for command in commands} == {""}
    assert all(command.ext is not None for command in commands)


def test_a_whole_recording_is_one_stream_however_it_is_cut() -> None:
    frames = [each.frame for each in recorded(*ALL_FILES)]
    whole = Connection().receive_data(b"".join(frames))
    for size in (1, 7, 1460, 65536):
        stream, connection, found = b"".join(frames[:200]), Connection(), []
        for at in range(0, len(stream), size):
            found += connection.receive_data(stream[at : at + size])
        assert found == whole[:200]
    assert len(whole) == len(frames)
