"""The modules of `sdk.blocking` and `sdk.aio` that are made from the trio classes: every method is written once.

Each method becomes one with the same name, parameters and docstring, written out in full: editors, mypy and readers
see plain functions. In sdk.blocking none is async; in sdk.aio those are that are async in trio. Methods and properties
under a heading ``# --- used by ...`` are not for users and are left out. ``scripts/docs`` writes the files; tests/tidy
checks that they are current.
"""

import ast
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripts import facade_methods

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Source:
    """A trio class. ``attributes`` that change while it is open become properties: name -> (type, docstring)."""

    module: str
    name: str
    #: The name of the trio object in the methods.
    variable: str
    attributes: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    #: Modules and names of the classes that it inherits public methods from.
    bases: tuple[tuple[str, str], ...] = ()
    #: Methods that are called in two halves, so that a call that is cancelled or interrupted between the threads loses
    #: nothing: name -> (what waits, what takes without waiting). The first argument is of what waits.
    halves: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    #: Methods that do not wait for the loop: name -> (attribute that has the method here, class of that).
    direct: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def homes(self) -> tuple[str, ...]:
        """Its module and those of its bases."""
        return self.module, *(module for module, _ in self.bases)


@dataclass(frozen=True)
class Flavour:
    """A package of classes that are made from the trio classes."""

    package: str
    #: What it is, for the first line of a module.
    adjective: str
    #: The prefix of a trio class where it has the same name as the class made from it.
    prefix: str
    #: The class between an object and its trio thread.
    loop: str
    loop_module: str
    is_async: bool
    #: What methods that return streams return here, the function that makes it, and the trio method with the stream.
    streams: Mapping[str, tuple[str, str, str]]
    #: Where names are defined that the trio classes do not have.
    homes: Mapping[str, str]
    #: Types of handlers, which run outside of trio, by their types in the trio classes.
    handlers: Mapping[str, str]
    #: Types of functions that are told something, and the function that has them called in the right thread.
    callbacks: Mapping[str, str]
    #: The methods that iterate over a consumer.
    iteration: str
    #: The methods of a producer that run the program's part of a transaction.
    transactions: str
    #: A paragraph that only these classes have, by class.
    notes: Mapping[str, str]


SOURCES = {
    "admin.py": Source("sdk.admin.client", "Admin", "admin"),
    "client.py": Source("sdk.shared", "Client", "client"),
    "consumer.py": Source(
        "sdk.consumer.pull",
        "PullConsumer",
        "consumer",
        halves={"poll": ("wait_for_poll", "finish_poll")},
    ),
    "simple.py": Source("sdk.consumer.simple", "SimpleConsumer", "consumer"),
    "push.py": Source("sdk.consumer.push", "PushConsumer", "consumer"),
    "producer.py": Source(
        "sdk.producer.producer",
        "Producer",
        "producer",
        attributes={"retried": ("int", "The number of retries of all sends so far.")},
        direct={"send_nowait": ("_tickets", "Tickets")},
    ),
    "transactional.py": Source("sdk.producer.transactional", "TransactionProducer", "producer"),
}
BLOCKING = Flavour(
    package="sdk/blocking",
    adjective="blocking",
    prefix="Async",
    loop="ClientLoop",
    loop_module="sdk.blocking.loop",
    is_async=False,
    streams={
        "MessageStream": ("Iterator[list[MessageExt]]", "batches_of", "stream"),
        "AsyncIterator[MessageExt]": ("Iterator[MessageExt]", "messages_of", "stream"),
        "ArrowBatches": ("Iterator[RecordBatch]", "batches_of", "arrow"),
    },
    handlers={
        "Handler": "PlainHandler",
        "BatchHandler": "PlainBatchHandler",
        "ArrowHandler": "PlainArrowHandler",
        "Checker": "PlainChecker",
    },
    callbacks={},
    homes={
        "PlainChecker": "sdk.blocking.handlers",
        "PlainLocal": "sdk.blocking.handlers",
        "contextmanager": "contextlib",
        "Iterator": "collections.abc",
        "PlainArrowHandler": "sdk.blocking.handlers",
        "PlainBatchHandler": "sdk.blocking.handlers",
        "PlainHandler": "sdk.blocking.handlers",
        "RecordBatch": "sdk.arrow",
        "ConsumerStream": "sdk.blocking.messages",
        "Self": "typing",
        "StreamMessage": "sdk.blocking.messages",
        "Ticket": "sdk.blocking.tickets",
        "Tickets": "sdk.blocking.tickets",
        "batches_of": "sdk.blocking.facade",
        "elsewhere": "sdk.blocking.handlers",
        "messages_of": "sdk.blocking.facade",
    },
    iteration=facade_methods.BLOCKING_ITERATION,
    transactions=facade_methods.BLOCKING_TRANSACTIONS,
    notes={
        "Client": "It has one thread, which runs the event loop of all of them.",
        "Producer": "Each `send` waits for its answer, so one thread sends one message per round trip: use "
        "`send_nowait`, `send_many`, or several threads, whose sends are batched. `send_many` consumes its argument, "
        "and `on_delivery` and `selector` are called, in the client's thread, which they must not block. `close` does "
        "what is said here about leaving ``with``.",
        "TransactionProducer": "The checker is a plain function, which may block: it runs in a thread, for one "
        "message at a time. Transactions in several threads are sent together.",
        "PushConsumer": "Handlers are plain functions, which may block: they run in ``concurrency`` threads. A handler "
        "that takes longer than the timeout goes on, but its message is delivered again. ``on_problem`` is called in "
        "the client's thread.",
    },
)
AIO = Flavour(
    package="sdk/aio",
    adjective="for asyncio",
    prefix="Trio",
    loop="Portal",
    loop_module="sdk.aio.portal",
    is_async=True,
    streams={
        "MessageStream": ("BatchStream[list[MessageExt]]", "batches_of", "stream"),
        "AsyncIterator[MessageExt]": ("AsyncIterator[MessageExt]", "messages_of", "stream"),
        "ArrowBatches": ("BatchStream[RecordBatch]", "batches_of", "arrow"),
    },
    handlers={
        "Handler": "Handler",
        "BatchHandler": "BatchHandler",
        "ArrowHandler": "ArrowHandler",
        "Checker": "Checker",
    },
    callbacks={"OnProblem": "in_loop"},
    homes={
        "in_loop": "sdk.aio.handlers",
        "AsyncIterator": "collections.abc",
        "asynccontextmanager": "contextlib",
        "BatchStream": "sdk.aio.stream",
        "ConsumerStream": "sdk.aio.messages",
        "RecordBatch": "sdk.arrow",
        "Self": "typing",
        "StreamMessage": "sdk.aio.messages",
        "Ticket": "sdk.aio.tickets",
        "Tickets": "sdk.aio.tickets",
        "batches_of": "sdk.aio.stream",
        "elsewhere": "sdk.aio.handlers",
        "messages_of": "sdk.aio.stream",
    },
    iteration=facade_methods.AIO_ITERATION,
    transactions=facade_methods.AIO_TRANSACTIONS,
    notes={
        "Client": "It has one thread, which runs the trio loop of all of them.",
        "TransactionProducer": "The checker is a coroutine function, or a plain one that does not block; it runs in "
        "the loop that opens the producer, for one message at a time.",
        "PushConsumer": "Handlers are coroutine functions, or plain ones that do not block; they run in the loop that "
        "opens the consumer, and ``on_problem`` is called there. A ``strategy`` that is a function is called in the "
        "client's thread.",
        "Producer": "`selector` is called, and the argument of `send_many` consumed, in the client's thread; "
        "`on_delivery` is called in the loop that opens the producer.",
    },
)
PATHS = {
    f"{flavour.package}/{name}": (flavour, source) for flavour in (BLOCKING, AIO) for name, source in SOURCES.items()
}


def facade(flavour: Flavour, source: Source, texts: Sequence[str]) -> str:
    """The module made from a trio class; ``texts`` are those of its module and of the modules of its bases."""
    modules = {name: ast.parse(text) for name, text in zip(source.homes, texts, strict=True)}
    cls = _class(modules[source.module], source.name)
    body = [_constructor(flavour, source, cls)]
    body += [_attribute(flavour, source, *attribute) for attribute in source.attributes.items()]
    if any(method.name == "__anext__" for method in _functions(cls)):
        body.append(flavour.iteration)
    if any(method.name == "transaction" for method in _functions(cls)):
        body.append(flavour.transactions)
    names = [source.name, *(name for _, name in source.bases)]
    for name, module, text in zip(names, modules.values(), texts, strict=True):
        body += _methods(flavour, source, _class(module, name), text)
    doc = _docstring(cls)
    if not flavour.is_async:
        doc = doc.replace("async with", "with")
    if note := flavour.notes.get(source.name):
        note = textwrap.fill(note, 120, initial_indent="    ", subsequent_indent="    ")
        doc = f"{doc.rstrip()}\n\n{note}\n    "
    trio_name = f"{flavour.prefix}{source.name}"
    code = f'class {source.name}(Facade[{trio_name}]):\n    """{doc}"""\n\n' + "\n".join(body)
    origin = f"Generated by scripts/docs from {source.module}: edit that module."
    head = f'"""`{source.name}`, {flavour.adjective}. {origin}"""'
    imports = [f"from {source.module} import {source.name} as {trio_name}", *_imports(flavour, source, modules, code)]
    return head + "\n\n" + "\n".join(imports) + "\n\n\n" + code


def _class(module: ast.Module, name: str) -> ast.ClassDef:
    return next(node for node in module.body if isinstance(node, ast.ClassDef) and node.name == name)


def _methods(flavour: Flavour, source: Source, cls: ast.ClassDef, text: str) -> Iterator[str]:
    """The methods for those of ``cls`` that are for users."""
    lines = text.splitlines()
    is_ours = False
    for method in _functions(cls):
        if heading := _heading(lines, method):
            is_ours = heading.startswith("    # --- used by ")
        if not is_ours and not method.name.startswith("_"):
            yield heading + _method(flavour, source, method)


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


def _constructor(flavour: Flavour, source: Source, cls: ast.ClassDef) -> str:
    init = next(function for function in _functions(cls) if function.name == "__init__")
    handlers = _handlers(flavour, init)
    nameserver, *others = [f"{name}={name}_elsewhere" if (name := argument.partition("=")[0]) in handlers else argument
                           for argument in _arguments(init)]  # fmt: skip
    takes_client = "Client" in ast.unparse(init.args.args[1].annotation or ast.Constant(""))
    made = f"{flavour.prefix}{source.name}({', '.join(['client' if takes_client else nameserver, *others])})"
    loop = f"loop_of({nameserver}, lambda client: {made})" if takes_client else f"{flavour.loop}(lambda: {made})"
    text = f"    def __init__({ast.unparse(init.args)}) -> None:\n"
    text += "".join(f"        {name}_elsewhere = {wrap}({name})\n" for name, wrap in handlers.items())
    text += f"        super().__init__({', '.join([loop, *(f'{name}_elsewhere' for name in handlers)])})\n"
    if any(function.name == "__anext__" for function in _functions(cls)):
        text += "        self._stream = ConsumerStream(self._loop)\n"
    for name, kind in dict(source.direct.values()).items():
        text += f"        self.{name} = {kind}(self._loop)\n"
    return text + ("        self.group = group\n" if "group=group" in others else "")


def _handlers(flavour: Flavour, init: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, str]:
    """The arguments that are called outside of trio, and what wraps them; annotations become the flavour's."""
    found = {}
    for arg in init.args.kwonlyargs:
        for node in ast.walk(arg.annotation or ast.Constant("")):
            if isinstance(node, ast.Name) and node.id in flavour.handlers:
                node.id = flavour.handlers[node.id]
                found[arg.arg] = "elsewhere"
            elif isinstance(node, ast.Name) and node.id in flavour.callbacks:
                found[arg.arg] = flavour.callbacks[node.id]
    return found


def _attribute(flavour: Flavour, source: Source, name: str, of: tuple[str, str]) -> str:
    kind, doc = of
    call = f"self._loop.call_sync(lambda {source.variable}: {source.variable}.{name})"
    return f'    @property\n    def {name}(self) -> {kind}:\n        """{doc}"""\n        return {call}\n'


def _method(flavour: Flavour, source: Source, method: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    returns = ast.unparse(method.returns) if method.returns is not None else "None"
    arguments, variable = ", ".join(_arguments(method)), source.variable
    if any(isinstance(each, ast.Name) and each.id == "property" for each in method.decorator_list):
        return _attribute(flavour, source, method.name, (returns, _docstring(method)))
    keyword = "def"
    if returns in flavour.streams:
        # Messages, too, come through `stream`, a batch at a time: a call of the loop for each would be slow.
        returns, helper, stream = flavour.streams[returns]
        body = f"return {helper}(self._loop, lambda {variable}: {variable}.{stream}({arguments}))"
    else:
        if method.name in source.halves:
            return _halves(flavour, source, method)
        if method.name in source.direct:
            return _direct(source, method, returns, arguments)
        is_async = isinstance(method, ast.AsyncFunctionDef)
        call = "call" if is_async else "call_sync"
        body = f"self._loop.{call}(lambda {variable}: {variable}.{method.name}({arguments}))"
        if is_async and flavour.is_async:
            keyword, body = "async def", f"await {body}"
        body = body if returns == "None" else f"return {body}"
    signature = f"    {keyword} {method.name}({ast.unparse(method.args)}) -> {returns}:\n"
    return f'{signature}        """{_docstring(method)}"""\n        {body}\n'


def _direct(source: Source, method: ast.FunctionDef | ast.AsyncFunctionDef, returns: str, arguments: str) -> str:
    """A method that does not wait for the loop."""
    body = f"return self.{source.direct[method.name][0]}.{method.name}({arguments})"
    signature = f"    def {method.name}({ast.unparse(method.args)}) -> {returns}:\n"
    return f'{signature}        """{_docstring(method)}"""\n        {body}\n'


def _halves(flavour: Flavour, source: Source, method: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """A method that waits first, and then takes: the first argument is of the wait, the others are of the rest."""
    waits, takes = source.halves[method.name]
    first, *others = _arguments(method)
    variable, keyword, wait = source.variable, *(("async def", "await ") if flavour.is_async else ("def", ""))
    returns = ast.unparse(method.returns or ast.Constant(None))
    lines = [
        f"    {keyword} {method.name}({ast.unparse(method.args)}) -> {returns}:",
        f'        """{_docstring(method)}"""',
        f"        {wait}self._loop.call(lambda {variable}: {variable}.{waits}({first}))",
        f"        return self._loop.call_sync(lambda {variable}: {variable}.{takes}({', '.join(others)}))",
    ]
    return "\n".join(lines) + "\n"


def _arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """The arguments as the method passes them on."""
    args = function.args
    return [arg.arg for arg in args.args[1:]] + [f"{arg.arg}={arg.arg}" for arg in args.kwonlyargs]


def _homes_in(home: str, module: ast.Module) -> dict[str, str | None]:
    """Where the names of a module can be imported from: its own and those that it imports."""
    homes: dict[str, str | None] = {}
    for node in module.body:
        if isinstance(node, ast.ImportFrom):
            homes |= {alias.asname or alias.name: node.module for alias in node.names}
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        homes |= {target.id: home for target in targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.ClassDef):
            homes[node.name] = home
    return homes


def _imports(flavour: Flavour, source: Source, modules: Mapping[str, ast.Module], code: str) -> list[str]:
    """The imports for the names in ``code``."""
    homes: dict[str, str | None] = {}
    for home, module in modules.items():
        homes |= _homes_in(home, module)
    dotted = flavour.package.replace("/", ".")
    homes |= {"Client": f"{dotted}.client", flavour.loop: flavour.loop_module}
    homes |= {"Facade": f"{dotted}.facade", "loop_of": f"{dotted}.facade"} | flavour.homes
    homes.pop(source.name, None)
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
    flavour, source = PATHS[path]
    texts = [(ROOT / home.replace(".", "/")).with_suffix(".py").read_text(encoding="utf-8") for home in source.homes]
    return formatted(facade(flavour, source, texts), path)


if __name__ == "__main__":
    for path in PATHS:
        (ROOT / path).write_text(content_of(path), encoding="utf-8")
        print(f"wrote {path}")
