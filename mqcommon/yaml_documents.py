"""YAML documents whose values are texts: a secret may look like a number, and must not become one.

PyYAML is imported on demand, as only some users have such files. A document may be broken in any way: then there is an
error that names its source and the line, and shows nothing of the text, which may be a secret.
"""

from types import ModuleType
from typing import Any

from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.extras import missing_extra

# The loader in C, which is ten times as fast as the other one, takes the stack of the process for each level.
MAX_DEPTH = 50


def parse_yaml(text: str, source: str) -> Any:
    """The document as dicts, lists and texts; None when it is empty. ConfigError when it cannot be used."""
    node = compose_yaml(text, source)
    # An alias repeats an earlier node, so a short text may have billions of values.
    return None if node is None else _plain(node, source, {})


def compose_yaml(text: str, source: str) -> Any:
    """The document as nodes of PyYAML; None when it is empty. ConfigError when it cannot be used."""
    yaml = import_yaml(source)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    try:
        for event in yaml.parse(text, loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise ConfigError(f"{source}: more than {MAX_DEPTH} levels deep")
        return yaml.compose(text, loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "it cannot be read"
        raise ConfigError(f"{source}{where}: not YAML: {problem}") from None
    except ValueError:
        raise ConfigError(f"{source}: not YAML: it has characters that no text has") from None


def import_yaml(source: str) -> ModuleType:
    """PyYAML. ConfigError when it is not installed."""
    try:
        import yaml
    except ImportError as error:
        raise ConfigError(missing_extra(f"reading {source}", "acl", error)) from None
    return yaml


def _plain(node: Any, source: str, made: dict[int, Any]) -> Any:
    if id(node) in made:
        return made[id(node)]
    where = f"{source}:{node.start_mark.line + 1}"
    if node.id == "scalar":
        return node.value
    if node.id == "sequence":
        values: list[Any] = []
        made[id(node)] = values
        values += [_plain(each, source, made) for each in node.value]
        return values
    table: dict[str, Any] = {}
    made[id(node)] = table
    for key, value in node.value:
        if key.id != "scalar":
            raise ConfigError(f"{where}: a key is no text")
        if key.value in table:
            where = f"{source}:{key.start_mark.line + 1}"
            raise ConfigError(f"{where}: {key.value[:100]} is there twice; remove one of them")
        table[key.value] = _plain(value, source, made)
    return table
