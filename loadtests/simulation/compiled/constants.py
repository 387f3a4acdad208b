"""Constants as C has them: what else is made of a source before mypyc compiles it.

Compiled code finds a module's name in its dictionary, and an enum's member in the enum's, each time. A ``Final`` name
it does not have to look for. So constants that are written once become ``Final``, and a member that a function names
becomes a constant of its module.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeGuard

_ENUMS = frozenset({"Enum", "IntEnum", "StrEnum"})
_CONSTANT = re.compile("_?[A-Z][A-Z0-9_]+")
_PRELUDE = "from typing import Final as _Final\n"
Members = Mapping[str, frozenset[str]]
"""Of enums, by an enum's name."""


def enums_of(root: Path, packages: tuple[str, ...]) -> dict[str, Members]:
    """The enums of some packages, by their modules' names."""
    found: dict[str, Members] = {}
    for path in (path for package in packages for path in (root / package).rglob("*.py")):
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        found[module] = {
            each.name: _members(each) for each in ast.parse(path.read_text("utf-8")).body if _is_enum(each)
        }
    return found


def with_final_constants(source: str, enums: Mapping[str, Members]) -> str:
    """A module's source with ``Final`` constants, and with one for each member of an imported enum that it names."""
    tree = ast.parse(source)
    finals = _Finals({name: members for module in _imports(tree) for name, members in _named(module, enums)})
    tree.body = [finals.visit(each) for each in tree.body]
    after_imports = 1 + max((at for at, each in enumerate(tree.body) if isinstance(each, ast.ImportFrom)), default=0)
    tree.body[after_imports:after_imports] = ast.parse(_PRELUDE + "".join(finals.lines())).body
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


class _Finals(ast.NodeTransformer):
    """Makes a module's constants ``Final``, and puts constants where its functions name members of enums.

    Args:
        enums: The members of each enum that the module has imported, by its name there.
    """

    def __init__(self, enums: Members) -> None:
        self._enums = enums
        self._named: set[tuple[str, str]] = set()
        self._is_in_function = False

    def lines(self) -> list[str]:
        """The constants that it has put there."""
        return [f"_{enum}_{member}: _Final = {enum}.{member}\n" for enum, member in sorted(self._named)]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        was_in_function, self._is_in_function = self._is_in_function, True
        node.body = [self.visit(each) for each in node.body]
        self._is_in_function = was_in_function
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        node.body = [self.visit(each) if isinstance(each, ast.FunctionDef) else each for each in node.body]
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        enum = node.value.id if isinstance(node.value, ast.Name) else ""
        if not self._is_in_function or node.attr not in self._enums.get(enum, ()):
            return node
        self._named.add((enum, node.attr))
        return ast.Name(f"_{enum}_{node.attr}", ast.Load())

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        self.generic_visit(node)
        target = node.targets[0]
        if self._is_in_function or not (isinstance(target, ast.Name) and _CONSTANT.fullmatch(target.id)):
            return node
        return ast.AnnAssign(target, ast.Name("_Final", ast.Load()), node.value, simple=1)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        self.generic_visit(node)
        if not self._is_in_function and isinstance(node.target, ast.Name) and _CONSTANT.fullmatch(node.target.id):
            node.annotation = ast.Subscript(ast.Name("_Final", ast.Load()), node.annotation, ast.Load())
        return node


def _is_enum(node: ast.stmt) -> TypeGuard[ast.ClassDef]:
    return isinstance(node, ast.ClassDef) and any(ast.unparse(base) in _ENUMS for base in node.bases)


def _members(enum: ast.ClassDef) -> frozenset[str]:
    targets = (each.targets[0] for each in enum.body if isinstance(each, ast.Assign))
    return frozenset(target.id for target in targets if isinstance(target, ast.Name))


def _imports(tree: ast.Module) -> Iterator[ast.ImportFrom]:
    yield from (each for each in tree.body if isinstance(each, ast.ImportFrom))


def _named(imported: ast.ImportFrom, enums: Mapping[str, Members]) -> Iterator[tuple[str, frozenset[str]]]:
    """The enums among the names that a statement imports."""
    members = enums.get(imported.module or "", {})
    yield from ((each.name, members[each.name]) for each in imported.names if each.name in members)
