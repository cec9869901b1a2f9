"""The command ``mqproxy``, also as ``python -m skylark.mqproxy``."""

from skylark.mqcommon.daemons.start import start_daemon


def main() -> None:
    """The console script."""
    start_daemon("skylark.mqproxy.cli:main", prog_name="mqproxy")


if __name__ == "__main__":
    main()
