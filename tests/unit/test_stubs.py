"""Every Cython module has a stub that says what the compiled module offers: names, parameters, properties."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import types
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parents[2] / "cython"
UNBUILT = pytest.mark.skip(reason="built only where libibverbs-dev is: apt-get install libibverbs-dev, then make build")
WITHOUT_TLS = pytest.mark.skip(reason="built only where libssl-dev is: apt-get install libssl-dev, then make build")


def needs_verbs(source: Path) -> bool:
    return re.search(r"cimport.*\bibv_|native\.(verbs|rdma_\w+|libverbs) cimport", source.read_text()) is not None


def is_built(source: Path) -> bool:
    return importlib.util.find_spec(f"farpool.native.{source.stem}") is not None


def marks_of(source: Path) -> list[pytest.MarkDecorator]:
    if is_built(source):
        return []
    return [WITHOUT_TLS] if source.stem.startswith("tls") else [UNBUILT] if needs_verbs(source) else []


MODULES = [pytest.param(source.stem, marks=marks_of(source)) for source in sorted(NATIVE.glob("*.pyx"))]
Function = ast.FunctionDef | ast.AsyncFunctionDef
Parameter = tuple[str, bool, bool]
"""Name, whether it is keyword-only, whether it has a default."""


def stub_of(module: str) -> ast.Module:
    return ast.parse((NATIVE / f"{module}.pyi").read_text())


def public_names_of_stub(body: list[ast.stmt]) -> set[str]:
    names: set[str] = set()
    for node in body:
        if isinstance(node, ast.ClassDef | Function):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return {name for name in names if not name.startswith("_")}


def is_ours(value: object, module: str) -> bool:
    """Tell a thing that *module* defines from one that it imported."""
    if isinstance(value, types.ModuleType):
        return False
    return getattr(value, "__module__", module) in {module, None}


def public_names_of(owner: object, module: str) -> set[str]:
    return {name for name, value in vars(owner).items() if not name.startswith("_") and is_ours(value, module)}


def parameters_of_stub(node: Function) -> list[Parameter]:
    positional = [*node.args.posonlyargs, *node.args.args]
    without_default = len(positional) - len(node.args.defaults)
    found = [(arg.arg, False, index >= without_default) for index, arg in enumerate(positional)]
    found += [
        (arg.arg, True, default is not None)
        for arg, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    ]
    return found


def parameters_of(function: object) -> list[Parameter]:
    signature = inspect.signature(function)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    return [
        (item.name, item.kind is inspect.Parameter.KEYWORD_ONLY, item.default is not inspect.Parameter.empty)
        for item in signature.parameters.values()
    ]


def parameters_of_constructor(module: str, name: str) -> list[Parameter]:
    """Read them from the source: a compiled class does not tell."""
    source = (NATIVE / f"{module}.pyx").read_text()
    body = re.split(rf"^cdef class {name}\b", source, flags=re.MULTILINE)[1]
    body = re.split(r"^(?=\S)", body.partition("\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    match = re.search(r"def __c?init__\(self(?:,\s*)?((?:[^()]|\([^()]*\))*)\)", body)
    found: list[Parameter] = [("self", False, False)]
    keyword_only = False
    for text in match[1].split(",") if match else []:
        declaration, _, default = text.partition("=")
        if declaration.strip() == "*":
            keyword_only = True
        elif declaration.strip():
            words = re.findall(r"\w+", re.sub(r"\bnot None\b", "", declaration))
            found.append((words[-1], keyword_only, bool(default)))
    return found


@pytest.mark.parametrize("module", MODULES)
def test_the_stub_names_what_the_module_offers(module: str) -> None:
    compiled = importlib.import_module(f"farpool.native.{module}")
    assert public_names_of_stub(stub_of(module).body) == public_names_of(compiled, compiled.__name__)


@pytest.mark.parametrize("module", MODULES)
def test_the_stub_has_the_parameters_of_the_functions(module: str) -> None:
    compiled = importlib.import_module(f"farpool.native.{module}")
    for node in stub_of(module).body:
        if isinstance(node, Function):
            assert parameters_of_stub(node) == parameters_of(getattr(compiled, node.name)), node.name


@pytest.mark.parametrize("module", MODULES)
def test_the_stub_has_the_members_of_the_classes(module: str) -> None:
    compiled = importlib.import_module(f"farpool.native.{module}")
    for node in stub_of(module).body:
        if isinstance(node, ast.ClassDef):
            cls = getattr(compiled, node.name)
            assert public_names_of_stub(node.body) == public_names_of(cls, compiled.__name__), node.name
            for member in node.body:
                if isinstance(member, Function):
                    check_member(module, cls, member)


def check_member(module: str, cls: type, member: Function) -> None:
    where = f"{cls.__name__}.{member.name}"
    if member.name == "__init__":
        assert parameters_of_stub(member) == parameters_of_constructor(module, cls.__name__), where
    elif any(isinstance(item, ast.Name) and item.id == "property" for item in member.decorator_list):
        assert inspect.isgetsetdescriptor(vars(cls)[member.name]), f"{where} is no property"
    elif member.name.startswith("__"):
        # Python names __buffer__ from 3.12 on.
        assert hasattr(cls, member.name) or member.name == "__buffer__", where
    else:
        assert parameters_of_stub(member) == parameters_of(vars(cls)[member.name]), where
