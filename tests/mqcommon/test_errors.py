"""Errors: the tree in the docstring is the tree in the code, and the texts are for people."""

import inspect
import re

import pytest

from skylark.mqcommon import errors


def test_the_picture_is_the_tree() -> None:
    drawn: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines()[2:]:
        if found := re.match(r"([│├└─ ]*)([A-Z]\w+)", line):
            drawn.append((len(found[1]) // 4, found[2]))

    parents: list[str] = []
    picture = {}
    for depth, name in drawn:
        parents[depth:] = [name]
        picture[name] = parents[depth - 1] if depth else "Exception"
    code = {
        name: cls.__bases__[0].__name__
        for name, cls in inspect.getmembers(errors, inspect.isclass)
        if cls.__module__ == "skylark.mqcommon.errors"
    }
    assert picture == code


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (errors.RequestRefused(17, "no topic"), "code 17: no topic"),
        (errors.ConnectFailed("h:1", "refused"), "cannot connect to h:1: refused"),
        (errors.ConnectionLost("h:1"), "connection to h:1 lost: closed by the peer"),
        (errors.RequestTimeout("h:1", 310, 3000.0), "h:1 did not answer request 310 within 3000 ms"),
        (errors.TooManyRequests("h:1", 9), "9 requests to h:1 already wait for an answer"),
        (errors.BrokerError(1, None), "server answered code 1: "),
        (errors.BrokerError(1, "bad", "h:1"), "h:1 answered code 1: bad"),
        (errors.RouteNotFound("t"), "no route for topic t"),
        (errors.RouteNotFound("t", "why"), "no route for topic t: why"),
        (errors.StoreCorrupt("f", 7, "crc"), "f is damaged at offset 7: crc"),
    ],
)
def test_errors_say_what_happened(error: Exception, text: str) -> None:
    assert str(error) == text


@pytest.mark.parametrize(
    ("cause", "advice"),
    [
        (
            errors.ConnectFailed("h:1", "refused"),
            ": start one there (for development: skylark dev), or give the right addresses",
        ),
        (errors.RequestTimeout("h:1", 105, 3000.0), ": something listens there and says nothing; is it a NameServer"),
        (errors.TlsFailed("h:1", "not trusted: trust its CA"), "not trusted: trust its CA)"),
        (errors.ConnectionLost("h:1"), ": something listens there, so look at its log; a server that takes TLS only"),
    ],
)
def test_the_advice_fits_the_reason_why_no_nameserver_answers(cause: errors.RemotingError, advice: str) -> None:
    error = errors.NoNameServer("h:1", str(cause))
    error.__cause__ = cause
    text = str(error)
    assert advice in text and text.startswith("no NameServer of h:1 answers (")
    assert ("start one there" in text) == ("start one there" in advice)


def test_an_address_server_is_told_from_a_nameserver() -> None:
    text = str(errors.NoNameServer("http://h:9876", "refused"))
    assert text.endswith(": such a URL names a server that lists NameServers; a NameServer is given as host:port")
