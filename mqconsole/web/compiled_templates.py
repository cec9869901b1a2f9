"""Keeps compiled templates beside the templates, as Python keeps compiled modules in ``__pycache__``.

A console that starts again answers its first page without compiling. If the files cannot be written, templates are
compiled at each start. ``PYTHONDONTWRITEBYTECODE`` and ``-B`` are obeyed, ``PYTHONPYCACHEPREFIX`` is not.
"""

import logging
import sys
from importlib import resources
from pathlib import Path

import jinja2
from jinja2 import FileSystemBytecodeCache
from jinja2.bccache import Bucket

from skylark.mqcommon.version import VERSION

logger = logging.getLogger(__name__)


class CompiledTemplates(FileSystemBytecodeCache):
    """A directory with the compiled templates of one version of Skylark, jinja2 and Python."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Write the file. If it cannot be written, the template is compiled at each start."""
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
    # The code depends on the settings of Skylark's environment and on jinja2's compiler.
    made_by = f"skylark-{VERSION}.jinja2-{jinja2.__version__}.{sys.implementation.cache_tag}"
    return CompiledTemplates(str(directory), f"%s.{made_by}.pyc")
