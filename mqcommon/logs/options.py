"""Options about the log, of both daemons."""

from dataclasses import dataclass

from mqcommon.option_fields import option

TEXT, JSON = "text", "json"


@dataclass(frozen=True)
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
        100 * 1024 * 1024, "a log file is rotated when it is as large; 0: not for its size", unit="bytes", minimum=0
    )
    log_file_max_age: int = option(
        24, "a log file is rotated when this many hours, counted from midnight, are over; 0: not for its age",
        unit="hours", minimum=0, maximum=24 * 366,
    )  # fmt: skip
    log_file_max_count: int = option(
        10, "rotated log files that are kept: logFile.1, the newest, and so on", minimum=0, maximum=1_000
    )
