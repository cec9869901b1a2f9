"""The command ``mqproxy``, also as ``python -m mqproxy``."""

from mqcommon.daemons.start import start


def main() -> None:
    """The console script."""
    start("mqproxy.cli:main", prog_name="mqproxy")


if __name__ == "__main__":
    main()
