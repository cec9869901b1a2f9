"""Types of expressions, as far as annotations and constructors tell them; see names.py."""

import ast
import builtins

from tests.tidy.names import Class, Function, Names, Type, union

Scope = dict[str, Type | None]

SEQUENCES = {
    *("list", "set", "frozenset", "deque", "Sequence", "Iterable", "Iterator", "Collection", "Set", "AsyncIterator"),
    *("AsyncGenerator", "Generator", "MutableSequence", "ValuesView", "KeysView", "dict", "Mapping", "OrderedDict"),
    *("defaultdict", "MutableMapping", "Reversible"),
}
MAPPINGS = {"dict", "Mapping", "OrderedDict", "defaultdict", "MutableMapping"}
AS_LIST = {"sorted", "list", "set", "frozenset", "reversed", "iter", "deque"}
TEXT = Type("foreign", "str")


class Inference:
    """`of` gives the type of an expression in a function with these local variables."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self._fields: dict[tuple[str, str], Type | None] = {}

    def of(self, node: ast.expr, scope: Scope, module: str) -> Type | None:
        """None when nothing tells it."""
        if isinstance(node, ast.Name):
            return scope[node.id] if node.id in scope else self._global(module, node.id)
        if isinstance(node, ast.Attribute):
            return self.member(self.of(node.value, scope, module), node.attr)
        if isinstance(node, ast.Call):
            return self._called(node, scope, module)
        if isinstance(node, ast.Await | ast.NamedExpr):
            return self.of(node.value, scope, module)
        if isinstance(node, ast.Starred):
            return self.element(self.of(node.value, scope, module))
        if isinstance(node, ast.IfExp):
            return union(self.of(node.body, scope, module), self.of(node.orelse, scope, module))
        if isinstance(node, ast.BoolOp):
            return union(*[self.of(value, scope, module) for value in node.values])
        if isinstance(node, ast.Subscript):
            return self._item(self.of(node.value, scope, module), node.slice)
        if isinstance(node, ast.Constant | ast.JoinedStr | ast.Compare | ast.Lambda):
            return Type("foreign", "None" if isinstance(node, ast.Constant) and node.value is None else "constant")
        if isinstance(node, ast.List | ast.Set | ast.Dict):
            return self._display(node, scope, module)
        if isinstance(node, ast.Tuple):
            return Type("foreign", "tuple", tuple(self.of(element, scope, module) for element in node.elts))
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
            inner = dict(scope)
            for generator in node.generators:
                self.bind(generator.target, self.element(self.of(generator.iter, inner, module)), inner)
            return Type("foreign", "list", (self.of(node.elt, inner, module),))
        return None

    def _display(self, node: ast.List | ast.Set | ast.Dict, scope: Scope, module: str) -> Type:
        if isinstance(node, ast.Dict):
            keys = union(*[self.of(key, scope, module) if key else None for key in node.keys])
            values = union(*[self.of(value, scope, module) for value in node.values])
            return Type("foreign", "dict", (keys, values))
        return Type("foreign", "list", (union(*[self.of(element, scope, module) for element in node.elts]),))

    def bind(self, target: ast.expr, value: Type | None, scope: Scope) -> None:
        """``target = value``, for local names."""
        if isinstance(target, ast.Starred):
            self.bind(target.value, None, scope)
        elif isinstance(target, ast.Name):
            scope[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            parts = self._parts(value)
            if len(parts) != len(target.elts):
                parts = [None] * len(target.elts)
            for element, part in zip(target.elts, parts, strict=True):
                self.bind(element, part, scope)

    def _parts(self, value: Type | None) -> list[Type | None]:
        """What a tuple holds."""
        if value is not None and value.kind == "object":
            one = self.names.classes[value.name]
            return [self.names.type_of(one.module, annotation) for annotation in one.annotations.values()]
        return list(value.args) if value is not None and value.name == "tuple" else []

    def parameters(self, function: Function, module: str, owner: Class | None) -> Scope:
        """The local variables that a call of ``function`` sets."""
        arguments = function.args
        scope: Scope = {}
        for one in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
            scope[one.arg] = self.names.type_of(module, one.annotation)
        for rest in (arguments.vararg, arguments.kwarg):
            if rest is not None:
                scope[rest.arg] = None
        first = (arguments.posonlyargs + arguments.args)[:1]
        if owner is not None and first and not _decorated(function, "staticmethod"):
            kind = "class" if _decorated(function, "classmethod") else "object"
            scope[first[0].arg] = Type(kind, owner.key)
        return scope

    def element(self, container: Type | None) -> Type | None:
        """What a loop over it gives."""
        if container is None:
            return None
        if container.kind == "union":
            return union(*[self.element(one) for one in container.args])
        if container.kind == "object":
            for name in ("__iter__", "__aiter__"):
                made = self.member(container, name)
                if made is not None and made.kind == "function":
                    return self.element(made.args[0])
            return None
        if container.name in SEQUENCES and container.args:
            return container.args[0]
        if container.name == "tuple" and container.args:
            return union(*[one for one in container.args if one is None or one.name != "Ellipsis"])
        return None

    def entered(self, manager: Type | None) -> Type | None:
        """What ``with`` gives."""
        if manager is not None and manager.kind == "object":
            for name in ("__aenter__", "__enter__"):
                made = self.member(manager, name)
                if made is not None:
                    return made.args[0] or manager
            return None
        return self.element(manager)

    def member(self, base: Type | None, name: str) -> Type | None:
        """The type of ``base.name``."""
        if base is None:
            return None
        if base.kind == "union":
            return union(*[self.member(one, name) for one in base.args])
        if base.kind == "library":
            return Type("library", name)
        if base.kind == "module":
            return self._at(self.names.follow(f"{base.name}.{name}"))
        if base.kind in ("object", "class"):
            return self._of_class(base, name)
        return self._of_foreign(base, name)

    def _of_class(self, base: Type, name: str) -> Type | None:
        key = (base.name, name)
        if key not in self._fields:
            self._fields[key] = None  # a field that is made of itself
            self._fields[key] = self._find(base.name, name)
        return self._fields[key]

    def _find(self, key: str, name: str) -> Type | None:
        for one in self.names.family(key):
            if name in one.methods:
                method = one.methods[name]
                returns = self.names.type_of(one.module, method.returns)
                is_value = _decorated(method, "property") or _decorated(method, "cached_property")
                return returns if is_value else Type("function", "", (returns,))
            if name in one.annotations:
                return self.names.type_of(one.module, one.annotations[name])
            if name in one.assigned:
                method, value = one.assigned[name]
                return self.of(value, self.parameters(method, one.module, one), one.module)
            if name in one.constants:
                return self.of(one.constants[name], {}, one.module)
        return None

    def _of_foreign(self, base: Type, name: str) -> Type | None:
        args = base.args
        if base.name in MAPPINGS and len(args) == 2:
            one = {
                "get": args[1],
                "pop": args[1],
                "setdefault": args[1],
                "values": Type("foreign", "Iterable", (args[1],)),
                "keys": Type("foreign", "Iterable", (args[0],)),
                "items": Type("foreign", "Iterable", (Type("foreign", "tuple", args),)),
                "copy": base,
            }.get(name)
            return one and Type("function", "", (one,))
        if base.name in SEQUENCES and name in ("pop", "popleft") and args:
            return Type("function", "", (args[0],))
        return None

    def _item(self, base: Type | None, index: ast.expr) -> Type | None:
        if base is None or base.kind != "foreign":
            return None
        if isinstance(index, ast.Slice):
            return base
        if base.name in MAPPINGS:
            return base.args[1] if len(base.args) == 2 else None
        return self.element(base)

    def _global(self, module: str, name: str) -> Type | None:
        dotted = self.names.resolve(module, name)
        if dotted:
            return self._at(dotted)
        return Type("foreign", name) if hasattr(builtins, name) else None

    def _at(self, dotted: str) -> Type | None:
        names = self.names
        if dotted in names.classes:
            return Type("class", dotted)
        node = names.defined.get(dotted)
        module = dotted.rpartition(".")[0]
        if isinstance(node, Function):
            return Type("function", "", (names.type_of(module, node.returns),))
        if isinstance(node, ast.AnnAssign):
            return names.type_of(module, node.annotation)
        if isinstance(node, ast.Assign):
            return (
                self.of(node.value, {}, module) if isinstance(node.value, ast.Call | ast.Dict | ast.Constant) else None
            )
        if dotted in names.modules or dotted in names.packages:
            return Type("module", dotted)
        return Type("library", dotted.split(".")[-1])

    def _called(self, node: ast.Call, scope: Scope, module: str) -> Type | None:
        called = node.func
        if isinstance(called, ast.Name) and called.id not in scope:
            first = self.of(node.args[0], scope, module) if node.args else None
            if called.id in AS_LIST:
                return Type("foreign", "list", (self.element(first),))
            if called.id in ("next", "min", "max"):
                return self.element(first) if len(node.args) == 1 else None
            if called.id == "replace":
                return first
            if called.id == "cast":
                return self.names.type_of(module, node.args[0])
            if called.id in ("enumerate", "zip"):
                parts = [self.element(self.of(argument, scope, module)) for argument in node.args]
                row = Type("foreign", "tuple", (*([TEXT] if called.id == "enumerate" else []), *parts))
                return Type("foreign", "Iterable", (row,))
            if called.id == "super":
                return scope.get("self")
        if isinstance(called, ast.Subscript):
            return self.names.type_of(module, called)
        function = self.of(called, scope, module)
        if function is None:
            return None
        if function.kind == "function":
            return function.args[0]
        if function.kind == "class":
            return Type("object", function.name)
        if function.kind == "foreign" and not function.args and isinstance(called, ast.Name):
            return function
        # Classes are told by the way that they are written; a function may give what it was given.
        is_class = function.kind == "library" and function.name[:1].isupper()
        return Type("foreign", function.name) if is_class else None


def _decorated(function: Function, name: str) -> bool:
    return any(ast.unparse(decorator).split(".")[-1] == name for decorator in function.decorator_list)
