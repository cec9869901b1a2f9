"""Daemons inside of a test process say nothing unless the program has set up logging."""

import logging


def silent_by_default(*packages: str) -> None:
    """Keep warnings of these packages off stderr in a program without handlers, which Python would print."""
    for package in packages:
        logger = logging.getLogger(package)
        if not any(isinstance(handler, logging.NullHandler) for handler in logger.handlers):
            logger.addHandler(logging.NullHandler())
