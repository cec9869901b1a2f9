"""Header type 0, JSON, which every client speaks.

{"code":310,"extFields":{"a":"g","b":"t"},"flag":0,"language":"JAVA","opaque":2,
 "serializeTypeCurrentRPC":"JSON","version":479}

It is written compactly and in Java's (alphabetical) member order; ``extFields`` and ``remark`` only when not null.
It is read leniently: members may be missing, ext values may be numbers or booleans, a newline may follow (C++).
"""

from typing import Any

import orjson

from skylark.mqcommon.errors import ProtocolError
from skylark.remoting.protocol.command import JSON, OTHER_LANGUAGE, Command, language_name, text_ext

_dumps = orjson.dumps
_loads = orjson.loads


def encode_header(command: Command) -> bytes:
    """The header of ``command``; None among the ext values means that the field is left out."""
    head: dict[str, Any] = {"code": command.code}
    if command.ext is not None:
        head["extFields"] = text_ext(command.ext)
    head["flag"] = command.flag
    head["language"] = command.language
    head["opaque"] = command.opaque
    if command.remark is not None:
        head["remark"] = command.remark
    head["serializeTypeCurrentRPC"] = "JSON"
    head["version"] = command.version
    return _dumps(head)


def decode_header(data: bytes) -> Command:
    """The command of a header, its body still empty. Raises ProtocolError when the header cannot be read."""
    try:
        head = _loads(data)
    except orjson.JSONDecodeError as error:
        raise ProtocolError(f"header is not JSON: {error}") from None
    if type(head) is not dict:
        raise ProtocolError("header is not a JSON object")
    get = head.get
    code = get("code")
    opaque = get("opaque", 0)
    flag = get("flag", 0)
    version = get("version", 0)
    ext = get("extFields")
    remark = get("remark")
    if not (type(code) is type(opaque) is type(flag) is type(version) is int):
        raise ProtocolError("code, opaque, flag or version of the header is not an integer")
    if (ext is not None and type(ext) is not dict) or (remark is not None and type(remark) is not str):
        raise ProtocolError("extFields or remark of the header is of a wrong type")
    language = get("language")
    if type(language) is not str:
        language = language_name(language) if type(language) is int else OTHER_LANGUAGE
    return Command(code, ext, b"", flag, opaque, remark, JSON, language, version)
