"""Reads a file with a JSON list of topics or groups, for updateTopicList and updateSubGroupList."""

import difflib
from typing import TYPE_CHECKING, Any, TypeVar

from mqcommon.errors import ProtocolError, UserError
from sdk.admin.session import Session

if TYPE_CHECKING:
    from remoting.protocol.body import Body

B = TypeVar("B", bound="Body")


def read_list(session: Session, path: str, kind: type[B], name_member: str) -> list[B]:
    """The bodies in the file; UserError when it is no such list. Members that have no meaning are warned of."""
    from remoting.protocol.dialect import loads

    try:
        with open(path, "rb") as file:
            data = file.read()
        found = loads(data, relaxed_bytes=len(data))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    except ProtocolError as error:
        raise UserError(f"{path} is not JSON: {error}") from None
    if not isinstance(found, list) or not found:
        raise UserError(f'{path} must hold a JSON list, as in [{{"{name_member}":"..."}}]')
    return [_entry(session, f"{path}: entry {number}", one, kind, name_member) for number, one in enumerate(found, 1)]


def _entry(session: Session, place: str, found: Any, kind: type[B], name_member: str) -> B:
    from remoting.protocol.body import members

    if not isinstance(found, dict) or not isinstance(found.get(name_member), str) or not found[name_member].strip():
        raise UserError(f"{place} is not an object with a {name_member}")
    known = [each.wire for each in members(kind)]
    for name in found:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            session.warn(f"{place} has a member {name}, which means nothing{f': {near[0]}?' if near else ''}")
    try:
        return kind.from_wire(found)
    except ProtocolError as error:
        raise UserError(f"{place}: {error}") from None
