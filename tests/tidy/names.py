"""What names mean: classes, functions and modules of the repository, and types as far as annotations tell them.

This is no type checker: where annotations of one step do not tell the type, it is unknown (None).
Neighbours: inference.py (types of expressions), uses.py (who refers to what).
"""

import ast
import builtins
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from tests.tidy.tree import Module

Function = ast.FunctionDef | ast.AsyncFunctionDef
PASSED_THROUGH = {"Awaitable", "Coroutine", "Annotated", "ClassVar", "Final", "Optional", "Required", "TaskStatus"}


@dataclass(frozen=True)
class Type:
    """``kind``: object or class of ours, function, module, union, or foreign (of nobody here)."""

    kind: str
    name: str = ""
    args: tuple["Type | None", ...] = ()


@dataclass
class Class:
    """One class: its methods and the places where its fields get their values."""

    key: str
    module: str
    node: ast.ClassDef
    methods: dict[str, Function] = field(default_factory=dict)
    constants: dict[str, ast.expr] = field(default_factory=dict)
    annotations: dict[str, ast.expr] = field(default_factory=dict)
    assigned: dict[str, tuple[Function, ast.expr]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.node.body:
            if isinstance(node, Function):
                self.methods.setdefault(node.name, node)
                self._read_assignments(node)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                self.annotations[node.target.id] = node.annotation
            elif isinstance(node, ast.Assign):
                self.constants.update({one.id: node.value for one in node.targets if isinstance(one, ast.Name)})

    @property
    def is_protocol(self) -> bool:
        return any(ast.unparse(base).split(".")[-1] == "Protocol" for base in self.node.bases)

    @cached_property
    def members(self) -> set[str]:
        return {*self.methods, *self.constants, *self.annotations, *self.assigned}

    def _read_assignments(self, method: Function) -> None:
        for node in ast.walk(method):
            if isinstance(node, ast.AnnAssign) and _of_self(node.target):
                self.annotations.setdefault(node.target.attr, node.annotation)  # type: ignore[union-attr]
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    if _of_self(target):
                        self.assigned.setdefault(target.attr, (method, node.value))  # type: ignore[attr-defined]


def _of_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


class Names:
    """All modules; ``defined`` has what stands at module level, by dotted name."""

    def __init__(self, modules: list[Module]) -> None:
        self.modules = {module.name: module for module in modules}
        self.packages = {name.rpartition(".")[0] for name in self.modules}
        self.defined: dict[str, ast.AST] = {}
        self.classes: dict[str, Class] = {}
        self._imported: dict[str, dict[str, str]] = {module.name: {} for module in modules}
        for module in modules:
            for node in _statements(module.tree):
                self._define(module, node)
            for node in ast.walk(module.tree):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    self._import(module, node)
        self.children: dict[str, list[str]] = {}
        for one in self.classes.values():
            for base in self.bases(one):
                self.children.setdefault(base.key, []).append(one.key)
            if one.is_protocol:
                alike = [other.key for other in self.classes.values() if one.members <= other.members]
                self.children.setdefault(one.key, []).extend(alike)

    def _define(self, module: Module, node: ast.stmt) -> None:
        if isinstance(node, Function):
            self.defined.setdefault(f"{module.name}.{node.name}", node)
        elif isinstance(node, ast.ClassDef):
            key = f"{module.name}.{node.name}"
            self.defined[key] = node
            self.classes[key] = Class(key, module.name, node)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name):
                        self.defined.setdefault(f"{module.name}.{name.id}", node)

    def _import(self, module: Module, node: ast.Import | ast.ImportFrom) -> None:
        imported = self._imported[module.name]
        for alias in node.names:
            if isinstance(node, ast.ImportFrom):
                base = module.base_of(node)
                imported[alias.asname or alias.name] = f"{base}.{alias.name}"
            elif alias.asname:
                imported[alias.asname] = alias.name
            else:
                top = alias.name.partition(".")[0]
                imported[top] = top

    def resolve(self, module: str, name: str) -> str:
        """The dotted name of what ``name`` means at the module level; "" when it means nothing there."""
        key = f"{module}.{name}"
        if key in self.defined:
            return key
        target = self._imported.get(module, {}).get(name, "")
        return self.follow(target) if target else ""

    def follow(self, dotted: str) -> str:
        """Where it is defined: packages pass names on."""
        for _ in range(5):
            if dotted in self.defined or dotted in self.modules:
                return dotted
            module, _, name = dotted.rpartition(".")
            onward = self._imported.get(module, {}).get(name)
            if onward is None or onward == dotted:
                return dotted
            dotted = onward
        return dotted

    def bases(self, one: Class) -> list[Class]:
        """Those of ours."""
        found = [self.named(one.module, base) for base in one.node.bases]
        return [self.classes[name] for name in found if name in self.classes]

    def has_foreign_base(self, one: Class) -> bool:
        """Whether something outside calls its methods by their names, for all that is known."""
        plain = ("NamedTuple", "Enum", "Protocol", "Generic", "Exception", "ABC")
        foreign = [base for base in one.node.bases if self.named(one.module, base) not in self.classes]
        called = any(ast.unparse(_unsubscripted(base)).split(".")[-1] not in plain for base in foreign)
        return called or any(self.has_foreign_base(base) for base in self.bases(one))

    def family(self, key: str) -> list[Class]:
        """The class, those above it and those below it."""
        found = {key: self.classes[key]}
        for nearer in (self._above, self._below):
            todo = [key]
            while todo:
                for one in nearer(todo.pop()):
                    if one not in found:
                        found[one] = self.classes[one]
                        todo.append(one)
        return list(found.values())

    def _above(self, key: str) -> list[str]:
        return [base.key for base in self.bases(self.classes[key])]

    def _below(self, key: str) -> list[str]:
        return self.children.get(key, [])

    def named(self, module: str, node: ast.expr) -> str:
        """The dotted name that an expression like ``a.b.C`` or ``C[T]`` stands for."""
        node = _unsubscripted(node)
        if isinstance(node, ast.Name):
            return self.resolve(module, node.id) or (node.id if hasattr(builtins, node.id) else "")
        if isinstance(node, ast.Attribute):
            base = self.named(module, node.value)
            return self.follow(f"{base}.{node.attr}") if base else ""
        return ""

    def type_of(self, module: str, node: ast.expr | None, depth: int = 0) -> Type | None:
        """What an annotation says."""
        if node is None or depth > 10:
            return None
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                return self.type_of(module, ast.parse(node.value, mode="eval").body, depth + 1)
            return Type("foreign", "None")
        if isinstance(node, ast.BinOp):
            return union(self.type_of(module, node.left, depth + 1), self.type_of(module, node.right, depth + 1))
        args: list[ast.expr] = []
        if isinstance(node, ast.Subscript):
            args = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        name = self.named(module, node)
        last = name.split(".")[-1]
        if last == "Literal":
            return None  # its strings are values, not names of types
        if last == "Callable" and args:
            return Type("function", "", (self.type_of(module, args[-1], depth + 1),))
        if last in PASSED_THROUGH and args:
            return self.type_of(module, args[-1] if last == "Coroutine" else args[0], depth + 1)
        inner = tuple(self.type_of(module, arg, depth + 1) for arg in args if not isinstance(arg, ast.List))
        if last == "type" and inner:
            one = inner[0]
            return Type("class", one.name) if one is not None and one.kind == "object" else None
        if name in self.classes:
            return Type("object", name)
        alias = self.defined.get(name)
        if isinstance(alias, ast.Assign):
            is_variable = isinstance(alias.value, ast.Call)
            return None if is_variable else self.type_of(name.rpartition(".")[0], alias.value, depth + 1)
        if not name or alias is not None or last in ("Any", "object", "Self", "TypeVar"):
            return None
        return Type("foreign", last, inner)


def union(*types: Type | None) -> Type | None:
    """Unknown when one of them is."""
    flat: list[Type] = []
    for one in types:
        if one is None:
            return None
        flat += [each for each in one.args if each is not None] if one.kind == "union" else [one]
    different = [one for one in dict.fromkeys(flat) if one.name != "None"]
    return different[0] if len(different) == 1 else Type("union", "", tuple(different))


def _unsubscripted(node: ast.expr) -> ast.expr:
    return node.value if isinstance(node, ast.Subscript) else node


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Those at module level, also under ``if TYPE_CHECKING`` or ``try``."""
    for node in tree.body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from [*node.body, *node.orelse]
