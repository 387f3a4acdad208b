"""Records as native classes: what is made of a source before mypyc compiles it.

Routing's events, effects and views are ``msgspec.Struct`` and ``dataclass`` records, whose ``__init__`` and fields
mypyc leaves to the interpreter. :func:`with_native_records` writes each as the plain class that it stands for: the same
fields, with ``__init__``, ``__eq__``, ``__hash__`` and ``__repr__`` spelled out. mypyc makes a C struct of that, whose
fields compiled code reads without asking Python.

Nothing keeps a frozen record from being written to there. The type checker does, before, and the interpreter wherever
the sources run as they are.
"""

import ast
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeGuard

KNOWN_KEYWORDS = frozenset({"frozen", "kw_only", "slots", "gc", "tag"})
"""What a record may be made with."""
_PRELUDE = """
from dataclasses import make_dataclass as _fields_of, replace as _replace
from typing import Any as _Any, ClassVar as _ClassVar, final as _final
from mypy_extensions import mypyc_attr as _mypyc_attr
"""
_PYTHONS, _INHERITABLE = "_mypyc_attr(native_class=False)", "_mypyc_attr(allow_interpreted_subclasses=True)"
_REPLACE = "msgspec.structs.replace"
_FACTORIES = frozenset({"field", "msgspec.field"})
_FOREIGN = frozenset({"list", "dict", "set", "tuple", "str", "int", "float", "Sequence", "Mapping"})
"""What no native class can extend; it can't extend a class of a module that is not compiled either."""


class UnknownRecord(ValueError):
    """A record uses what is not spelled out here; the message says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    """One field of a record, as source; no ``default`` and no ``factory``: it has to be given."""

    name: str
    annotation: str
    default: str = ""
    factory: str = ""
    is_given: bool = True
    is_compared: bool = True
    is_shown: bool = True

    @property
    def parameter(self) -> str:
        """How ``__init__`` takes it."""
        if self.factory:
            return f"{self.name}: {self.annotation} | None = None"
        return f"{self.name}: {self.annotation}" + (f" = {self.default}" if self.default else "")

    @property
    def assignment(self) -> str:
        """How ``__init__`` keeps it."""
        if not self.is_given:
            return f"self.{self.name}: {self.annotation} = {self.factory}()"
        given = f"{self.factory}() if {self.name} is None else {self.name}" if self.factory else self.name
        return f"self.{self.name} = {given}"


def with_native_records(source: str, compiled: Collection[str] = (), *, can_be_extended: bool = False) -> str:
    """A module's source with its records as plain classes; the very source where nothing is to be said of a class.

    Args:
        source: The module's.
        compiled: Names of all modules that are.
        can_be_extended: Classes that are not compiled may inherit from its other ones.

    Raises:
        UnknownRecord: One is made with another keyword, another decorator, or another option of a field.
    """
    tree = ast.parse(source)
    records = [each for each in tree.body if isinstance(each, ast.ClassDef) and _is_record(each)]
    others = [each for each in tree.body if isinstance(each, ast.ClassDef) and not _is_record(each)]
    foreign = [each for each in others if _bases(each) & (_FOREIGN | _imported_from_others(tree, compiled))]
    inheritable = [each for each in others if can_be_extended and not each.bases]
    if not records and not foreign and not inheritable and _REPLACE not in source:
        return source
    for each in records:
        _spell_out(each)
    for each in (*foreign, *inheritable):
        each.decorator_list.append(ast.parse(_PYTHONS if each in foreign else _INHERITABLE, mode="eval").body)
    imports = [index for index, each in enumerate(tree.body) if isinstance(each, ast.Import | ast.ImportFrom)]
    tree.body[imports[-1] + 1 : imports[-1] + 1] = ast.parse(_PRELUDE).body
    return ast.unparse(ast.fix_missing_locations(_StructsReplace().visit(tree))) + "\n"


class _StructsReplace(ast.NodeTransformer):
    """``dataclasses.replace`` goes by ``__dataclass_fields__``, which all records have here."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if ast.unparse(node) == _REPLACE:
            return ast.Name("_replace", ast.Load())
        self.generic_visit(node)
        return node


def _is_record(each: ast.ClassDef) -> bool:
    return any(ast.unparse(base) == "msgspec.Struct" for base in each.bases) or _dataclass_call(each) is not None


def _bases(each: ast.ClassDef) -> set[str]:
    return {ast.unparse(base).split("[")[0] for base in each.bases}


def _imported_from_others(tree: ast.Module, compiled: Collection[str]) -> set[str]:
    """What comes from modules of the same packages that are not compiled."""
    packages = {each.partition(".")[0] for each in compiled}
    imports = (each for each in tree.body if isinstance(each, ast.ImportFrom) and each.module not in compiled)
    ours = (each for each in imports if str(each.module).partition(".")[0] in packages)
    return {alias.name for each in ours for alias in each.names}


def _dataclass_call(each: ast.ClassDef) -> ast.expr | None:
    found = (by for by in each.decorator_list if ast.unparse(by).split("(")[0] == "dataclass")
    return next(found, None)


def _options(record: ast.ClassDef) -> dict[str, bool]:
    by = _dataclass_call(record)
    if len(record.decorator_list) > (by is not None):
        raise UnknownRecord(f"{record.name}: {', '.join(map(ast.unparse, record.decorator_list))}")
    options: dict[str, bool] = {}
    for each in (*record.keywords, *(by.keywords if isinstance(by, ast.Call) else ())):
        if each.arg not in KNOWN_KEYWORDS or not isinstance(each.value, ast.Constant):
            raise UnknownRecord(f"{record.name}: {each.arg}={ast.unparse(each.value)}")
        options[each.arg] = bool(each.value.value)
    return options


def _spell_out(record: ast.ClassDef) -> None:
    """Makes a record the plain class that it stands for."""
    options = _options(record)
    fields = [_field(each) for each in record.body if _is_field(each)]
    methods = {each.name for each in record.body if isinstance(each, ast.FunctionDef)}
    spelled = [_names(record.name, fields), _init(fields, kw_only=options.get("kw_only", False), and_then=methods)]
    spelled += [text for name, text in _others(record.name, fields, options).items() if name not in methods]
    begin = 1 if ast.get_docstring(record) is not None else 0
    rest = [each for each in record.body[begin:] if not _is_field(each)]
    record.body = [*record.body[:begin], *ast.parse("\n".join(spelled)).body, *rest]
    record.bases = [base for base in record.bases if ast.unparse(base) != "msgspec.Struct"]
    record.keywords = []
    acyclic = ["_mypyc_attr(acyclic=True)"] if options.get("gc") is False else []
    record.decorator_list = [ast.parse(each, mode="eval").body for each in ("_final", *acyclic)]


def _names(name: str, fields: Iterable[_Field]) -> str:
    names = tuple(each.name for each in fields)
    fields_of_it = f"vars(_fields_of({name!r}, {names!r}))['__dataclass_fields__']"
    return f"__dataclass_fields__: _ClassVar[dict[str, _Any]] = {fields_of_it}"


def _init(fields: Sequence[_Field], *, kw_only: bool, and_then: Iterable[str]) -> str:
    given = [each.parameter for each in fields if each.is_given]
    parameters = ", ".join(["self", *(["*"] if kw_only and given else []), *given])
    lines = [each.assignment for each in fields] + ["self.__post_init__()"] * ("__post_init__" in and_then)
    return f"def __init__({parameters}) -> None:\n" + "".join(f"    {line}\n" for line in lines or ["pass"])


def _others(name: str, fields: Iterable[_Field], options: dict[str, bool]) -> dict[str, str]:
    """Methods that every record has unless it writes them itself, by their names."""
    compared = [each.name for each in fields if each.is_compared]
    same = " and ".join([f"isinstance(other, {name})", *(f"self.{each} == other.{each}" for each in compared)])
    values = "".join(f"self.{each}, " for each in compared)
    shown = ", ".join(f"{each.name}={{self.{each.name}!r}}" for each in fields if each.is_shown)
    methods = {
        "__eq__": f"def __eq__(self, other: object) -> bool:\n    return {same}\n",
        "__repr__": f"def __repr__(self) -> str:\n    return f{f'{name}({shown})'!r}\n",
    }
    if options.get("frozen"):
        methods["__hash__"] = f"def __hash__(self) -> int:\n    return hash(({values}))\n"
    return methods


def _is_field(node: ast.stmt) -> TypeGuard[ast.AnnAssign]:
    return isinstance(node, ast.AnnAssign) and not ast.unparse(node.annotation).startswith("ClassVar")


def _field(node: ast.AnnAssign) -> _Field:
    name, annotation, value = ast.unparse(node.target), ast.unparse(node.annotation), node.value
    if not (isinstance(value, ast.Call) and ast.unparse(value.func) in _FACTORIES):
        return _Field(name=name, annotation=annotation, default="" if value is None else ast.unparse(value))
    said = {str(each.arg): ast.unparse(each.value) for each in value.keywords}
    field = _Field(
        name=name,
        annotation=annotation,
        default=said.pop("default", ""),
        factory=said.pop("default_factory", ""),
        is_given=said.pop("init", "True") == "True",
        is_compared=said.pop("compare", "True") == "True",
        is_shown=said.pop("repr", "True") == "True",
    )
    if said:
        raise UnknownRecord(f"{name}: {ast.unparse(value)}")
    return field
