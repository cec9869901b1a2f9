"""Levels of loggers: the option ``logLevels``, such as ``broker.store=DEBUG;root=WARNING``."""

import logging
import re

from mqcommon.errors import ConfigError

ROOT = "root"
DEFAULT_LEVEL = "INFO"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
# Loggers live as long as the process: a peer that may change options cannot make more than this at a time.
MAX_LOGGERS = 100
_LOGGER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*", re.ASCII)
_MAX_NAME_CHARS = 200


def parse_levels(text: str) -> dict[str, str]:
    """Logger → level. Raises ConfigError."""
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
        levels[name] = level
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
        logging.getLogger(name).setLevel(logging.NOTSET)
    for name, level in wanted.items():
        logging.getLogger(None if name == ROOT else name).setLevel(level)
