"""Options about the log of a daemon, and the levels of its loggers: ``broker.store=DEBUG;root=WARNING``."""

import logging
import re

from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.options.fields import BYTES, option

TEXT, JSON = "text", "json"


@lazy_dataclass(frozen=True)
class LogOptions:
    """Part of `BrokerOptions` and of `NamesrvOptions`."""

    log_levels: str = option(
        "", "levels of loggers: broker.store=DEBUG;root=WARNING; others log INFO and above", mutable=True
    )
    log_format: str = option(
        TEXT, "text: one line an event; json: one JSON object an event, with its values as fields", choices=(TEXT, JSON)
    )
    log_file: str = option("", "file that the log is written to; empty: stderr")
    log_file_max_size: int = option(
        100 * 1024 * 1024, "a log file is rotated when it is as large; 0: not for its size", unit=BYTES, minimum=0
    )
    log_file_max_age: int = option(
        24,
        "a log file is rotated when this many hours, counted from midnight, are over; 0: not for its age",
        unit="hours",
        minimum=0,
        maximum=24 * 366,
    )
    log_file_max_count: int = option(
        10, "rotated log files that are kept: logFile.1, the newest, and so on", minimum=0, maximum=1_000
    )


ROOT = "root"
# The option names their loggers without ``skylark.`` in front.
_PACKAGES = frozenset(
    {"broker", "mqadmin", "mqcommon", "mqconsole", "mqproxy", "namesrv", "remoting", "sdk", "spark_connector"}
)
DEFAULT_LEVEL = "INFO"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
# Loggers live as long as the process: a peer that may change options cannot make more than this at a time.
MAX_LOGGERS = 100
_LOGGER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*", re.ASCII)
_MAX_NAME_CHARS = 200


def parse_levels(text: str) -> dict[str, str]:
    """Logger → level; ``skylark.broker`` and ``broker`` are one logger, ``broker``. Raises ConfigError."""
    levels: dict[str, str] = {}
    for entry in text.split(";"):
        if not entry.strip():
            continue
        name, equals, level = (part.strip() for part in entry.partition("="))
        level = "WARNING" if level.upper() == "WARN" else level.upper()
        if not equals or not _LOGGER.fullmatch(name) or len(name) > _MAX_NAME_CHARS:
            raise ConfigError(
                f"logLevels: {entry.strip()[:80]!r} is not LOGGER=LEVEL; give broker.store=DEBUG, or {ROOT}=INFO"
            )
        if level not in LEVELS:
            raise ConfigError(f"logLevels: {level[:80]!r} of {name} is not a level; give {', '.join(LEVELS)}")
        levels[_short(name)] = level
    if len(levels) > MAX_LOGGERS:
        raise ConfigError(
            f"logLevels: {len(levels)} loggers; give {MAX_LOGGERS} at most, a package stands for all in it"
        )
    return levels


def levels_text(levels: dict[str, str]) -> str:
    """The text of the option."""
    return ";".join(f"{name}={level}" for name, level in sorted(levels.items()))


def change_levels(before: str, after: str) -> None:
    """Give the loggers of ``after`` their levels, and those that were only in ``before`` the level of their parents."""
    wanted = {ROOT: DEFAULT_LEVEL, **parse_levels(after)}
    for name in parse_levels(before).keys() - wanted.keys():
        logging.getLogger(_whole(name)).setLevel(logging.NOTSET)
    for name, level in wanted.items():
        logging.getLogger(None if name == ROOT else _whole(name)).setLevel(level)


def _short(name: str) -> str:
    rest = name.removeprefix("skylark.")
    return rest if rest.partition(".")[0] in _PACKAGES else name


def _whole(name: str) -> str:
    """The logger that ``name`` stands for: ``broker.store`` is ``skylark.broker.store``."""
    return f"skylark.{name}" if name.partition(".")[0] in _PACKAGES else name
