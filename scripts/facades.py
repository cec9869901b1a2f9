"""The modules of `sdk.blocking` that are made from the async classes, so that every method is written once.

Each async method becomes a blocking one with the same name, parameters and docstring, written out in full: editors,
mypy and readers see plain functions. ``scripts/docs`` writes the files; tests/tidy checks that they are current.
"""

import ast
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Source:
    """An async class. ``attributes`` that change while it is open become properties: name -> (type, docstring)."""

    module: str
    name: str
    #: The name of the async object in the blocking method.
    variable: str
    #: A paragraph that only the blocking class has.
    note: str = ""
    attributes: Mapping[str, tuple[str, str]] = field(default_factory=dict)


SOURCES = {
    "sdk/blocking/admin.py": Source("sdk.admin.client", "Admin", "admin"),
    "sdk/blocking/consumer.py": Source("sdk.consumer.pull", "PullConsumer", "consumer"),
    "sdk/blocking/producer.py": Source(
        "sdk.producer.producer",
        "Producer",
        "producer",
        note="Each `send` waits for its answer, so one thread sends one message a round trip: use `send_many`, "
        "or several threads, whose sends travel together. `send_many` consumes its argument in the client's thread.",
        attributes={"retried": ("int", "How many tries were made beyond the first of each send, so far.")},
    ),
}

# Names that differ in the blocking classes.
_HOMES = {
    "Client": "sdk.blocking.client",
    "Facade": "sdk.blocking.facade",
    "Iterator": "collections.abc",
    "MessageExt": "mqcommon.message.message",
    "batches_of": "sdk.blocking.facade",
    "loop_of": "sdk.blocking.client",
    "messages_of": "sdk.blocking.facade",
}
_STREAMS = {
    "MessageStream": ("Iterator[list[MessageExt]]", "batches_of"),
    "AsyncIterator[MessageExt]": ("Iterator[MessageExt]", "messages_of"),
}


def facade(source: Source, text: str) -> str:
    """The blocking module of an async class; ``text`` is its module."""
    module = ast.parse(text)
    cls = next(node for node in module.body if isinstance(node, ast.ClassDef) and node.name == source.name)
    lines = text.splitlines()
    body = [_constructor(source, cls)]
    body += [_property(source, *attribute) for attribute in source.attributes.items()]
    for method in _functions(cls):
        if not method.name.startswith("_") and (made := _method(source, method)):
            body.append(_heading(lines, method) + made)
    doc = _docstring(cls).replace("async with", "with")
    if source.note:
        note = textwrap.fill(source.note, 120, initial_indent="    ", subsequent_indent="    ")
        doc = f"{doc.rstrip()}\n\n{note}\n    "
    code = f'class {source.name}(Facade[Async{source.name}]):\n    """{doc}"""\n\n' + "\n".join(body)
    head = f'"""`{source.name}`, blocking. Made by scripts/docs from {source.module}: edit that, not this."""\n\n'
    imports = [f"from {source.module} import {source.name} as Async{source.name}", *_imports(source, module, code)]
    return head + "\n".join(imports) + "\n\n\n" + code


def _functions(cls: ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in cls.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _docstring(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    doc = ast.get_docstring(node, clean=False)
    if not doc or "\\" in doc:
        raise ValueError(f"{node.name} needs a docstring without backslashes")
    return doc


def _heading(lines: list[str], method: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The ``# --- section`` comment before a method."""
    first = min([method.lineno, *(decorator.lineno for decorator in method.decorator_list)])
    above = lines[first - 3 : first - 1]
    return f"{above[0]}\n\n" if above and above[0].startswith("    # --- ") else ""


def _constructor(source: Source, cls: ast.ClassDef) -> str:
    init = next(function for function in _functions(cls) if function.name == "__init__")
    nameserver, *others = _arguments(init)
    made = f"Async{source.name}({', '.join(['client', *others])})"
    text = f"    def __init__({ast.unparse(init.args)}) -> None:\n"
    text += f"        super().__init__(loop_of({nameserver}, lambda client: {made}))\n"
    return text + ("        self.group = group\n" if "group=group" in others else "")


def _property(source: Source, name: str, of: tuple[str, str]) -> str:
    kind, doc = of
    return f'''\
    @property
    def {name}(self) -> {kind}:
        """{doc}"""

        async def read({source.variable}: Async{source.name}) -> {kind}:
            return {source.variable}.{name}

        return self._loop.call(read)
'''


def _method(source: Source, method: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The blocking method; empty for a method that only the SDK itself calls, on the loop."""
    returns = ast.unparse(method.returns) if method.returns is not None else "None"
    arguments, variable = ", ".join(_arguments(method)), source.variable
    if returns in _STREAMS:
        returns, helper = _STREAMS[returns]
        # Messages, too, come through `stream`, a batch at a time: a call of the loop for each would be slow.
        body = f"return {helper}(self._loop, lambda {variable}: {variable}.stream({arguments}))"
    elif isinstance(method, ast.AsyncFunctionDef):
        body = f"self._loop.call(lambda {variable}: {variable}.{method.name}({arguments}))"
        body = body if returns == "None" else f"return {body}"
    else:
        return ""
    signature = f"    def {method.name}({ast.unparse(method.args)}) -> {returns}:\n"
    return f'{signature}        """{_docstring(method)}"""\n        {body}\n'


def _arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """The arguments as the blocking method passes them on."""
    args = function.args
    return [arg.arg for arg in args.args[1:]] + [f"{arg.arg}={arg.arg}" for arg in args.kwonlyargs]


def _imports(source: Source, module: ast.Module, code: str) -> list[str]:
    """The imports for the names in ``code``: those of the async module, and from it for its own names."""
    homes = {
        alias.name: node.module for node in module.body if isinstance(node, ast.ImportFrom) for alias in node.names
    } | _HOMES
    own = [target.id for node in module.body if isinstance(node, ast.Assign) for target in node.targets
           if isinstance(target, ast.Name)]  # fmt: skip
    homes |= {name: source.module for name in own}
    used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    return [f"from {homes[name]} import {name}" for name in sorted(used & homes.keys())]


def formatted(text: str, path: str) -> str:
    """``text`` as ruff formats it."""
    for options in (["check", "--quiet", "--select=I", "--fix"], ["format", "--quiet"]):
        command = [sys.executable, "-m", "ruff", *options, f"--stdin-filename={path}", "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


def content_of(path: str) -> str:
    """The content that the file at ``path`` must have."""
    source = SOURCES[path]
    text = (ROOT / source.module.replace(".", "/")).with_suffix(".py").read_text(encoding="utf-8")
    return formatted(facade(source, text), path)


if __name__ == "__main__":
    for path in SOURCES:
        (ROOT / path).write_text(content_of(path), encoding="utf-8")
        print(f"wrote {path}")
