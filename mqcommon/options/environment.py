"""Options from environment variables: each key of a conf file is also a variable, as for daemons in containers.

``listenPort`` is ``SKYLARK_LISTEN_PORT``: the flag's name in capitals.
Neighbours: conf_file.py (precedence), fields.py.
"""

import difflib
import os
import re
from collections.abc import Collection, Mapping
from importlib import import_module
from typing import Any

from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.options.fields import PREFIX, Option, Value, options_of, parse_value

#: Daemon → module and class of its options. They are names, as this module stands below the daemons.
DAEMONS = {
    "broker": ("skylark.broker.options", "BrokerOptions"),
    "namesrv": ("skylark.namesrv.options", "NamesrvOptions"),
    "controller": ("skylark.namesrv.controller.options", "ControllerDaemonOptions"),
    "proxy": ("skylark.mqproxy.options", "ProxyOptions"),
    "console": ("skylark.mqconsole.options", "ConsoleOptions"),
}
#: Variables with the prefix that are no daemon's: the Spark connector reads this one.
OF_CLIENTS = frozenset({"SKYLARK_SPARK_PARALLELISM"})

_FILE = "_FILE"
# A file with one secret is short.
_MAX_FILE_BYTES = 64 * 1024
# Kubernetes and Docker tell a container of a Service or link "skylark-x" by SKYLARK_X_SERVICE_HOST, SKYLARK_X_PORT and
# so on. SKYLARK_X_PORT may have the name of an option, so its value counts, too.
_LINK = re.compile(r"\w+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_LINK_PORT, _LINK_URL = "_PORT", re.compile(r"(tcp|udp|sctp)://")
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|\.")


def options_class(daemon: str) -> type[Any]:
    """The dataclass of the daemon's options; ``daemon`` is one of `DAEMONS`."""
    module, name = DAEMONS[daemon]
    found: type[Any] = getattr(import_module(module), name)
    return found


def values_of(cls: type[Any], environ: Mapping[str, str], warnings: list[str]) -> dict[str, Value]:
    """The options of ``cls`` that ``environ`` sets, by field name. A variable without text sets nothing.

    A secret may be in a file, which ``SKYLARK_<KEY>_FILE`` names. Keys of other daemons are let pass, so that one
    environment can serve several daemons. A RocketMQ key that Skylark does not use is added to ``warnings``.
    ConfigError for a wrong value, and for a variable ``SKYLARK_*`` that belongs to no daemon.
    """
    options, given = options_of(cls), {name: text for name, text in environ.items() if text.strip()}
    values: dict[str, Value] = {}
    for o in options:
        # The prefixed variable is the more specific one: other programs read NAMESRV_ADDR, too.
        for variable in (o.env, o.variable):
            if variable and variable in given and not _is_link(variable, given[variable]):
                values[o.name] = parse_value(o, given[variable], variable)
        file_variable = o.variable + _FILE
        if o.secret and file_variable in given:
            if o.variable in given:
                raise ConfigError(f"{o.variable} and {file_variable} are one option; give one of them")
            values[o.name] = parse_value(o, _text_of_file(file_variable, given[file_variable]), file_variable)
    known = {name for o in options for name in variables_of(o)}
    for name, text in given.items():
        if name.startswith(PREFIX) and name not in known | OF_CLIENTS and not _is_link(name, text):
            _judge(cls, name, known, warnings)
    return values


def variables_of(o: Option) -> list[str]:
    """The variables ``SKYLARK_*`` that set ``o``."""
    return [o.variable, o.variable + _FILE] if o.secret else [o.variable]


def without_options_of(cls: type[Any], environ: Mapping[str, str], *, but: Collection[str] = ()) -> dict[str, str]:
    """``environ`` without the variables ``SKYLARK_*`` of the options of ``cls``, except the fields in ``but``."""
    own = {name for o in options_of(cls) if o.name not in but for name in variables_of(o)}
    return {name: text for name, text in environ.items() if name not in own}


def _judge(cls: type[Any], name: str, known: set[str], warnings: list[str]) -> None:
    """Warn of a variable ``name`` that has no effect, or raise ConfigError for one that nobody knows."""
    ignored = {_variable_of_key(key) for key in getattr(cls, "ignored_keys", ())}
    if name in ignored:
        warnings.append(f"{name}: a RocketMQ option that Skylark does not use; it has no effect")
        return
    everybodys = set(known)
    for daemon in DAEMONS:
        other = options_class(daemon)
        everybodys |= {variable for o in options_of(other) for variable in variables_of(o)}
        everybodys |= {_variable_of_key(key) for key in getattr(other, "ignored_keys", ())}
    if name in everybodys:
        return
    # Where the underscores are is the likeliest mistake.
    near = {_letters(variable): variable for variable in sorted(everybodys)} | {_letters(one): one for one in known}
    found = difflib.get_close_matches(_letters(name), near, n=1)
    advice = f"did you mean {near[found[0]]}?" if found else "docs/reference/conf.md lists all keys"
    raise ConfigError(f"{name}: unknown variable; {advice}")


def _variable_of_key(key: str) -> str:
    return PREFIX + _WORDS.sub("_", key).upper()


def _letters(variable: str) -> str:
    return variable.removeprefix(PREFIX).replace("_", "").lower()


def _is_link(name: str, text: str) -> bool:
    return _LINK.fullmatch(name) is not None or (name.endswith(_LINK_PORT) and _LINK_URL.match(text) is not None)


def _text_of_file(variable: str, path: str) -> str:
    """The text of a file that an orchestrator mounts, which may have any mode. ConfigError when it cannot be read."""
    try:
        with open(path.strip(), "rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"{variable}: {path}: cannot be read: {error.strerror or error}; name a file that user"
            f" {os.geteuid()} may read"
        ) from None
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigError(f"{variable}: {path}: larger than a secret can be ({_MAX_FILE_BYTES} bytes)")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{variable}: {path}: not UTF-8 text: {error.reason} at byte {error.start}") from None
