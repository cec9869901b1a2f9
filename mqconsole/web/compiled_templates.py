"""Keeps compiled templates beside the templates, as Python keeps compiled modules in ``__pycache__``.

A console that starts again answers its first page without compiling. A file that cannot be written is done without,
and Python's own switches hold: ``PYTHONDONTWRITEBYTECODE``, ``-B``.
"""

import logging
import sys
from importlib import resources
from pathlib import Path

from jinja2 import FileSystemBytecodeCache
from jinja2.bccache import Bucket

logger = logging.getLogger(__name__)


class CompiledTemplates(FileSystemBytecodeCache):
    """The files of one Python; `compiled_templates` makes one."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Write the file, unless the directory or its disk do not let."""
        try:
            super().dump_bytecode(bucket)
        except OSError as error:
            logger.info("compiled templates are not kept in %s: %s", self.directory, error)


def compiled_templates() -> CompiledTemplates | None:
    """The compiled templates of the console; None when they cannot be kept."""
    templates = resources.files("skylark.mqconsole") / "templates"
    if sys.dont_write_bytecode or not isinstance(templates, Path):
        return None
    directory = templates / "__pycache__"
    try:
        directory.mkdir(exist_ok=True)
    except OSError as error:
        logger.info("compiled templates are not kept in %s: %s", directory, error)
        return None
    return CompiledTemplates(str(directory), f"%s.{sys.implementation.cache_tag}.pyc")
