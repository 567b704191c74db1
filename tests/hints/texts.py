"""The text of each hint, put together from the sources: constants, variables and helper functions.

A hint is often put together elsewhere: in a variable, a table of texts, a function, or by a caller
that passes a parameter. `Texts.of_hint` follows these to the literals. A value that is only known
at run time becomes `VALUE`.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tools.layers import ROOT, modules, tree_of

VALUE = "\0"
"""The place of a value that is filled in at run time."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Place:
    """The functions around an expression, from the outermost to the innermost, and its file."""

    path: Path
    functions: tuple[Function, ...] = ()


@dataclass(slots=True)
class Sources:
    """The functions, calls and constants of the product, by name."""

    functions: dict[str, list[tuple[Place, Function]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    calls: dict[str, list[tuple[Place, ast.Call]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    constants: dict[str, list[tuple[Place, ast.expr]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    fields: dict[str, list[str]] = field(default_factory=dict)
    """The names of the annotated fields of each class, in their order."""
    hints: list[tuple[Place, ast.expr]] = field(default_factory=list)

    def add(self, node: ast.AST, place: Place) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.functions[node.name].append((place, node))
                place = Place(place.path, (*place.functions, node))
            case ast.ClassDef(name=name, body=body):
                self.fields[name] = [
                    each.target.id
                    for each in body
                    if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
                ]
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                self.calls[name].append((place, node))
                given = [each.value for each in node.keywords if each.arg == "hint"]
                given += node.args[:1] if name == "advise" else []
                self.hints += ((place, hint) for hint in given)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if not place.functions:
                    self.constants[name].append((place, value))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                if not place.functions:
                    self.constants[name].append((place, value))
        for child in ast.iter_child_nodes(node):
            self.add(child, place)


@cache
def sources() -> Sources:
    """Return all that the product's files define and call."""
    found = Sources()
    for path in modules().values():
        found.add(tree_of(path), Place(path))
    return found


@dataclass(slots=True)
class Texts:
    """The literal texts of one hint."""

    found: list[str] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)

    @classmethod
    def of_hint(cls, hint: ast.expr, place: Place) -> list[str]:
        """Return the texts that a hint may have, the longest pieces that are adjacent as one."""
        texts = cls()
        texts.add(hint, place)
        sentences = (text for text in texts.found if " " in text and "\n" not in text)
        return [text for text in sentences if text.strip(VALUE + " .")]

    def add(self, node: ast.AST, place: Place) -> None:
        if id(node) not in self.seen:
            self.seen.add(id(node))
            self.found.append(self.text(node, place))

    def text(self, node: ast.AST, place: Place) -> str:
        """Return the text of an expression; alternatives are added to those found."""
        match node:
            case ast.Constant(value=str(value)):
                return value
            case ast.JoinedStr(values=parts):
                return "".join(self.text(part, place) for part in parts)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self.text(left, place) + self.text(right, place)
            case _:
                for each, where in self.alternatives(node, place):
                    self.add(each, where)
                return VALUE

    def alternatives(self, node: ast.AST, place: Place) -> Iterator[tuple[ast.AST, Place]]:
        """Yield the expressions that an expression may take its text from."""
        match node:
            case ast.FormattedValue(value=value) | ast.Starred(value=value):
                yield value, place
            case ast.Attribute(attr="hint"):
                yield from _results(sources().functions["hint"])
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                yield from self.of_name(name, place)
            case ast.NamedExpr(value=value) | ast.Subscript(value=value):
                yield value, place
            case ast.IfExp(body=one, orelse=other):
                yield from ((one, place), (other, place))
            case ast.BoolOp(values=values) | ast.Tuple(elts=values) | ast.List(elts=values):
                yield from ((each, place) for each in values)
            case ast.Dict(values=values):
                yield from ((each, place) for each in values)
            case ast.GeneratorExp(elt=value) | ast.ListComp(elt=value):
                yield value, place
            case ast.BinOp(left=left, right=right):
                yield from ((left, place), (right, place))
            case ast.Call(
                func=ast.Attribute(value=base, attr="format" | "get" | "join"), args=args
            ):
                yield from ((each, place) for each in (base, *args))
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
                yield from self.returned(name, place)
            case ast.Name(id=name):
                yield from self.of_name(name, place)

    def of_name(self, name: str, place: Place) -> Iterator[tuple[ast.AST, Place]]:
        """Yield the values of a variable, of a parameter, or of a constant of a module."""
        for depth in range(len(place.functions), 0, -1):
            function = place.functions[depth - 1]
            within = Place(place.path, place.functions[:depth])
            assigned = list(_assigned(function, name))
            yield from ((each, within) for each in assigned)
            if name in (parameters := parameters_of(function)):
                yield from _passed(function, name, parameters, place.path)
            elif not assigned:
                continue
            return
        own = [each for each in sources().constants[name] if each[0].path == place.path]
        yield from ((value, where) for where, value in own or sources().constants[name])

    def returned(self, name: str, place: Place) -> Iterator[tuple[ast.AST, Place]]:
        """Yield the results of the functions of a name: of the same file, if it has one."""
        if name == "setting":
            return
        functions = sources().functions[name]
        own = [each for each in functions if each[0].path == place.path]
        yield from _results(own or functions * (len(functions) == 1))


def _results(functions: list[tuple[Place, Function]]) -> Iterator[tuple[ast.AST, Place]]:
    for place, function in functions:
        within = Place(place.path, (*place.functions, function))
        for node in ast.walk(function):
            if isinstance(node, ast.Return) and node.value is not None:
                yield node.value, within


def parameters_of(function: Function) -> list[str]:
    """Return the names of the parameters, without ``self`` and ``cls``."""
    arguments = function.args
    named = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return [each.arg for each in named if each.arg not in ("self", "cls")]


def _assigned(function: Function, name: str) -> Iterator[ast.AST]:
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    names = target.elts if isinstance(target, ast.Tuple) else [target]
                    if any(isinstance(each, ast.Name) and each.id == name for each in names):
                        yield value
            case (
                ast.AugAssign(target=ast.Name(id=target), value=value)
                | ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value)
                | ast.NamedExpr(target=ast.Name(id=target), value=value)
            ) if target == name:
                yield value
            case ast.For(target=ast.Tuple(elts=targets), iter=values):
                if any(isinstance(each, ast.Name) and each.id == name for each in targets):
                    yield from getattr(values, "elts", ())


def _passed(
    function: Function, name: str, parameters: list[str], path: Path
) -> Iterator[tuple[ast.AST, Place]]:
    """Yield the defaults of a parameter, and the arguments of all calls by the function's name."""
    default = dict(zip(parameters[::-1], function.args.defaults[::-1], strict=False)).get(name)
    if default is not None:
        yield default, Place(Path())
    index = parameters.index(name)
    calls = sources().calls[function.name]
    own = [each for each in calls if each[0].path == path]
    for place, call in own or calls:
        given = {each.arg: each.value for each in call.keywords}
        if name in given:
            yield given[name], place
        elif index < len(call.args):
            yield call.args[index], place


@cache
def hint_texts() -> dict[str, list[str]]:
    """Return the texts of each hint in the product, by its place."""
    return {
        f"{place.path.relative_to(ROOT)}:{hint.lineno}": Texts.of_hint(hint, place)
        for place, hint in sources().hints
    }
