"""Which functions, methods, classes and constants nobody refers to.

A method counts as used where something of its class, or something whose type is not known, has an attribute with its
name; so what is found is dead for sure, and not all that is dead is found. Neighbours: names.py, inference.py.
"""

import ast
from collections.abc import Iterator
from typing import TypeGuard

from tests.tidy.inference import Inference, Scope
from tests.tidy.names import Class, Function, Names, Type

# Of libraries that find what they call by decorators.
REGISTERS = ("command", "group", "overload")
# Packages whose ``__all__`` is for their users.
PUBLIC = ("sdk", "spark_connector")
# Where RocketMQ's numbers and words are listed, used or not.
VOCABULARY = ("mqcommon.message", "mqcommon.names", "remoting.protocol")


class Uses(ast.NodeVisitor):
    """Walks all modules; ``of_names`` and ``of_members`` are what was met, ``of_any`` members of who knows what."""

    def __init__(self, names: Names) -> None:
        self.of_names: set[str] = set()
        self.of_members: set[tuple[str, str]] = set()
        self.of_any: dict[str, list[ast.Call | None]] = {}
        self._names = names
        self._types = Inference(names)
        self._module = ""
        self._scope: Scope = {}
        self._owner: Class | None = None
        # What is being defined: it is not used by itself.
        self._inside: list[str] = []
        # Expressions whose type is asked for while the program runs.
        self._narrowed: set[str] = set()
        for module in names.modules.values():
            self._module = module.name
            self.visit(module.tree)

    def unused(self) -> Iterator[str]:
        """What nobody refers to, as ``package.module.Class.member``."""
        names = self._names
        public = self._exported()
        used = self.of_names | public
        for key, node in names.defined.items():
            if key not in used and self._should_be_used(key, node):
                yield key
        for one in names.classes.values():
            if not names.has_foreign_base(one) and one.key not in public:
                yield from [f"{one.key}.{name}" for name in self._members(one) if self._is_dead(one, name)]

    def _should_be_used(self, key: str, node: ast.AST) -> bool:
        name = key.rpartition(".")[2]
        if name.startswith("_") or _is_registered(node) or _is_vocabulary(key, node):
            return False
        # Modules are loaded by their names, too, and then nothing tells whose constant it is.
        return not (name.isupper() and name in self.of_any)

    def _is_dead(self, one: Class, name: str) -> bool:
        if name.startswith("_") or (one.key, name) in self.of_members:
            return False
        return not any(_may_call(call, one.methods.get(name)) for call in self.of_any.get(name, ()))

    def _exported(self) -> set[str]:
        """What packages offer to their users, with all that its classes can do."""
        names = self._names
        packages = [module for module in names.modules.values() if module.path.endswith("/__init__.py")]
        found = set()
        for module in packages:
            listed = names.defined.get(f"{module.name}.__all__")
            if module.name.split(".")[0] in PUBLIC and isinstance(listed, ast.Assign):
                found |= {f"{module.name}.__all__"}
                found |= {names.follow(names.resolve(module.name, name)) for name in ast.literal_eval(listed.value)}
        return found

    def _members(self, one: Class) -> list[str]:
        """Those that somebody should use. Tables of constants, tuples and what is encoded are used as wholes."""
        bases = {ast.unparse(base).split(".")[-1] for base in one.node.bases}
        found = [name for name, method in one.methods.items() if not _is_registered(method)]
        if "NamedTuple" not in bases and not self._is_read_as_a_whole(one):
            found += [name for name in [*one.annotations, *one.assigned] if name not in one.methods]
        if not bases & {"Enum", "IntEnum"}:
            found += [name for name in one.constants if name.isupper()]
        if one.key.startswith(VOCABULARY):
            found = [name for name in found if not name.isupper()]
        return found

    def _is_read_as_a_whole(self, one: Class) -> bool:
        """Whether its fields are read by the code that encodes it or checks all options."""
        return one.key.endswith((".Header", ".Body", "Options")) or any(
            self._is_read_as_a_whole(base) for base in self._names.bases(one)
        )

    # --- definitions

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        before, key = self._owner, f"{self._module}.{node.name}"
        self._owner = self._names.classes.get(key)
        self._inside.append(key)
        self.generic_visit(node)
        self._inside.pop()
        self._owner = before

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def _function(self, node: Function) -> None:
        owner, outer, narrowed = self._owner, self._scope, self._narrowed
        for part in (*node.decorator_list, *node.args.defaults, *[one for one in node.args.kw_defaults if one]):
            self.visit(part)
        for annotation in _annotations(node):
            self._annotation(annotation)
        if outer:
            outer[node.name] = Type("function", "", (self._names.type_of(self._module, node.returns),))
        assigned, asked = _local(node)
        self._scope = {**outer, **dict.fromkeys(assigned), **self._types.parameters(node, self._module, owner)}
        self._narrowed = narrowed | asked
        self._scope |= dict.fromkeys(name for name in self._narrowed if name in self._scope and name != "self")
        self._inside.append(f"{owner.key if owner else self._module}.{node.name}")
        self._owner = None
        for statement in node.body:
            self.visit(statement)
        self._inside.pop()
        self._owner, self._scope, self._narrowed = owner, outer, narrowed

    def visit_Lambda(self, node: ast.Lambda) -> None:
        outer = self._scope
        self._scope = {**outer, **{one.arg: None for one in ast.walk(node.args) if isinstance(one, ast.arg)}}
        self.generic_visit(node)
        self._scope = outer

    # --- variables

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self.visit(target)
        value = self._types.of(node.value, self._scope, self._module) if self._scope else None
        if self._is_unknown_member(node.value, value):
            # Its calls tell more about it.
            self.visit(node.value.value)
            value = Type("bound", node.value.attr)
        if value is None or value.kind != "bound":
            self.visit(node.value)
        if self._scope:
            for target in node.targets:
                self._bind(target, value)

    def _is_unknown_member(self, node: ast.expr, found: Type | None) -> TypeGuard[ast.Attribute]:
        if found is not None or not self._scope or not isinstance(node, ast.Attribute):
            return False
        return self._types.of(node.value, self._scope, self._module) is None

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._annotation(node.annotation)
        if node.value is not None:
            self.visit(node.value)
        self.visit(node.target)
        if self._scope:
            self._bind(node.target, self._names.type_of(self._module, node.annotation))

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        if self._scope:
            self._bind(node.target, self._types.of(node.value, self._scope, self._module))

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        if self._scope:
            self._bind(node.target, self._types.element(self._types.of(node.iter, self._scope, self._module)))
        for statement in (*node.body, *node.orelse):
            self.visit(statement)

    def visit_AsyncFor(self, node: ast.AsyncFor) -> None:
        self.visit_For(node)

    def visit_withitem(self, node: ast.withitem) -> None:
        self.visit(node.context_expr)
        if node.optional_vars is not None and self._scope:
            manager = self._types.of(node.context_expr, self._scope, self._module)
            self._bind(node.optional_vars, self._types.entered(manager))

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        outer = self._scope
        self._scope = dict(outer)
        for generator in node.generators:
            self.visit(generator.iter)
            found = self._types.element(self._types.of(generator.iter, self._scope, self._module))
            self._types.bind(generator.target, found, self._scope)
            for condition in generator.ifs:
                self._scope |= dict.fromkeys(name for name in _local(condition)[1] if name in self._scope)
                self.visit(condition)
        for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self.visit(part)
        self._scope = outer

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def _bind(self, target: ast.expr, value: Type | None) -> None:
        if isinstance(target, ast.Name) and target.id in self._narrowed:
            value = None
        self._types.bind(target, value, self._scope)

    # --- references

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load) and node.id not in self._scope:
            self._met(self._names.resolve(self._module, node.id))
        elif isinstance(node.ctx, ast.Load):
            self._bound(node.id, None)

    def _bound(self, name: str, call: ast.Call | None) -> None:
        """A local variable is used, which may be a method of something."""
        local = self._scope.get(name)
        if local is not None and local.kind == "bound":
            self.of_any.setdefault(local.name, []).append(call)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load):
            self._attribute(node, None)
        else:
            self.visit(node.value)

    def _attribute(self, node: ast.Attribute, call: ast.Call | None) -> None:
        self.visit(node.value)
        narrowed = ast.unparse(node.value) in self._narrowed
        self._member(None if narrowed else self._types.of(node.value, self._scope, self._module), node.attr, call)

    def visit_MatchClass(self, node: ast.MatchClass) -> None:
        for name in node.kwd_attrs:
            self._member(None, name, None)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute):
            self._attribute(node.func, node)
        elif isinstance(node.func, ast.Name) and node.func.id in self._scope:
            self._bound(node.func.id, node)
        else:
            self.visit(node.func)
        for argument in (*node.args, *node.keywords):
            self.visit(argument)
        if isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr", "setattr", "attrgetter"):
            for argument in node.args:
                if isinstance(argument, ast.Constant):
                    self.of_any.setdefault(str(argument.value), []).append(None)

    def _annotation(self, annotation: ast.expr | None) -> None:
        for node in ast.walk(annotation) if annotation is not None else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                self._annotation(ast.parse(node.value, mode="eval").body)
            elif isinstance(node, ast.Name | ast.Attribute):
                self._met(self._names.named(self._module, node))

    def _member(self, base: Type | None, name: str, call: ast.Call | None) -> None:
        if base is None:
            self.of_any.setdefault(name, []).append(call)
        elif base.kind == "union":
            for one in base.args:
                self._member(one, name, call)
        elif base.kind == "module":
            self._met(self._names.follow(f"{base.name}.{name}"))
        elif base.name in self._names.classes:
            for one in self._names.family(base.name):
                if f"{one.key}.{name}" not in self._inside:
                    self.of_members.add((one.key, name))

    def _met(self, key: str) -> None:
        if key not in self._inside:
            self.of_names.add(key)


def _is_vocabulary(key: str, node: ast.AST) -> bool:
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None or not key.startswith(VOCABULARY):
        return False
    return all(isinstance(one, ast.Constant | ast.BinOp | ast.operator) for one in ast.walk(node.value))


def _is_registered(node: ast.AST) -> bool:
    decorators = node.decorator_list if isinstance(node, Function) else []
    names = [ast.unparse(one.func if isinstance(one, ast.Call) else one).split(".")[-1] for one in decorators]
    return any(name in REGISTERS for name in names)


def _may_call(call: ast.Call | None, method: Function | None) -> bool:
    """Whether these arguments fit; None: something else is done with the attribute."""
    if call is None or method is None:
        return True
    arguments = method.args
    if any(isinstance(one, ast.Starred) for one in call.args) or any(one.arg is None for one in call.keywords):
        return True
    names = [one.arg for one in arguments.posonlyargs + arguments.args][1:]
    needed = len(names) - len(arguments.defaults)
    given = {*names[: len(call.args)], *[one.arg for one in call.keywords]}
    known = {*names, *[one.arg for one in arguments.kwonlyargs]}
    fits = (len(call.args) <= len(names) or arguments.vararg) and (given <= known or arguments.kwarg)
    return bool(fits) and given >= set(names[:needed])


def _annotations(function: Function) -> Iterator[ast.expr | None]:
    yield function.returns
    for one in ast.walk(function.args):
        if isinstance(one, ast.arg):
            yield one.annotation


def _local(node: ast.AST) -> tuple[set[str], set[str]]:
    """Local names, also those of inner functions; and the expressions that ``isinstance`` or ``match`` looks at."""
    assigned, asked = set(), set()
    for one in ast.walk(node):
        if isinstance(one, ast.Name):
            if isinstance(one.ctx, ast.Store):
                assigned.add(one.id)
        elif isinstance(one, ast.ExceptHandler) and one.name:
            assigned.add(one.name)
        elif isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id == "isinstance":
            asked.add(ast.unparse(one.args[0]))
        elif isinstance(one, ast.Match):
            asked.add(ast.unparse(one.subject))
    return assigned, asked
