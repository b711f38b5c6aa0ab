"""Who may import whom, in ``.py``, ``.pyi``, ``.pyx`` and ``.pxd``: import-linter sees no Cython."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

ALLOWED = {
    "protocol": ["protocol"],
    "native": ["native", "protocol.errors"],
    "transports": ["transports", "native", "protocol"],
    "server": ["server", "transports", "native", "protocol"],
    "client": ["client", "transports", "native", "protocol"],
    "perf": ["perf", "native.limits", "native.verbs_limits", "native.verbs_stub", "aio", ""],
    "cli": ["cli", "perf", "server", "client", "transports", "native", "protocol", "aio", ""],
    "examples": ["aio", ""],
}
"""By layer, what it may import below ``farpool``; "" is the package itself, which holds the public names."""

FOLDERS = {layer: ROOT / layer for layer in ALLOWED} | {"native": ROOT / "cython"}
SUFFIXES = {".py", ".pyi", ".pyx", ".pxd"}
CYTHON_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(?P<package>[\w.]+)[ \t]+c?import[ \t]+(?P<names>\([^)]*\)|[^\n#]+)"
    r"|c?import[ \t]+(?P<modules>[^\n#]+))",
    re.MULTILINE,
)


def modules_named(package: str, names: list[str]) -> Iterator[str]:
    """Yield what ``from package import names`` imports: a name may be a module."""
    folder = ROOT / "src" / package.replace(".", "/")
    for name in names:
        is_layer = package == "farpool" and (name in ALLOWED or name == "aio")
        is_module = package.startswith("farpool.") and (
            (folder / name).is_dir() or any((folder / f"{name}{suffix}").is_file() for suffix in SUFFIXES)
        )
        yield f"{package}.{name}" if is_layer or is_module else package


def imports_of_python(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = "." * node.level + (node.module or "")
            yield from modules_named(package, [alias.name for alias in node.names])


def imports_of_cython(text: str) -> Iterator[str]:
    for match in CYTHON_IMPORT.finditer(text):
        listed = re.sub(r"#[^\n]*", "", match["names"] or match["modules"]).strip("() \n")
        names = [part.split(" as ")[0].strip() for part in listed.split(",") if part.strip()]
        yield from modules_named(match["package"], names) if match["package"] else names


def imports_of(path: Path) -> set[str]:
    text = path.read_text()
    return set(imports_of_cython(text) if path.suffix in {".pyx", ".pxd"} else imports_of_python(text))


def files_of(layer: str) -> list[Path]:
    return sorted(path for path in FOLDERS[layer].rglob("*") if path.suffix in SUFFIXES)


def is_allowed(layer: str, module: str) -> bool:
    if module.partition(".")[0] != "farpool":
        return not module.startswith(".")
    below = module.removeprefix("farpool").removeprefix(".")
    return any(below == allowed or (allowed and below.startswith(f"{allowed}.")) for allowed in ALLOWED[layer])


@pytest.mark.parametrize("layer", ALLOWED)
def test_layer_imports_only_what_lies_below_it(layer: str) -> None:
    broken = {
        f"{path.relative_to(ROOT)} imports {module}"
        for path in files_of(layer)
        for module in imports_of(path)
        if not is_allowed(layer, module)
    }
    assert not broken


@pytest.mark.parametrize("layer", ALLOWED)
def test_no_bare_import_of_a_folder(layer: str) -> None:
    """``import server`` makes a second copy of ``farpool.server``; ``import cython`` finds our folder."""
    bare = {*ALLOWED, "cython"} - {"native", "examples"}
    found = {
        f"{path.relative_to(ROOT)} imports {module}"
        for path in files_of(layer)
        for module in imports_of(path)
        if module.partition(".")[0] in bare
    }
    if layer == "native":  # in .pyx and .pxd files `cython` is the compiler's own module
        found = {line for line in found if not line.endswith(" imports cython")}
    assert not found


def test_no_transport_imports_another() -> None:
    """So that asking for one loads no other."""
    home = FOLDERS["transports"]
    folders = [path.name for path in home.iterdir() if path.is_dir() and path.name != "__pycache__"]
    broken = {
        f"{path.relative_to(ROOT)} imports {module}"
        for path in files_of("transports")
        for module in imports_of(path)
        for other in folders
        if path.relative_to(home).parts[0] != other and module.startswith(f"farpool.transports.{other}")
    }
    assert not broken


def test_each_installed_folder_is_linked() -> None:
    links = {path.name: path.readlink() for path in (ROOT / "src/farpool").iterdir() if path.is_symlink()}
    assert links == {layer: Path("../..") / FOLDERS[layer].name for layer in ALLOWED if layer != "examples"}


def test_the_native_folder_is_no_package() -> None:
    """With an ``__init__`` in it, ``import cython`` finds our folder and the compiler breaks."""
    assert not list((ROOT / "cython").glob("__init__.*"))


def test_the_parser_sees_every_way_to_import() -> None:
    text = """
cimport farpool.native.mapping
from farpool.native.libmman cimport (
    mmap,  # a comment, with a comma
    munmap,
)
from farpool.native cimport clock as time
from farpool import client
import os, farpool.server.app as app
"""
    assert set(imports_of_cython(text)) == {
        "farpool.native.mapping",
        "farpool.native.libmman",
        "farpool.native.clock",
        "farpool.client",
        "os",
        "farpool.server.app",
    }
    assert set(imports_of_python("from farpool import connect, server\nfrom . import x\nimport farpool.aio")) == {
        "farpool",
        "farpool.server",
        ".",
        "farpool.aio",
    }
