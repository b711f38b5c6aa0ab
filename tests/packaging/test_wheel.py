"""What users install: a source distribution that holds each file once, and the wheel that is built from it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "farpool"
LEFT_OUT = shutil.ignore_patterns(
    ".venv", ".git", "build", "dist", "__pycache__", "*.so", "*.egg-info", ".*_cache", ".hypothesis", "_build"
)


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a command outside of the checkout's own environment; return what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FARPOOL"))}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def source_files(*suffixes: str) -> set[str]:
    """Return the package's files of these suffixes, relative to ``src``."""
    found: set[str] = set()
    for folder in [PACKAGE, *(path for path in PACKAGE.iterdir() if path.is_dir())]:
        pattern = "*" if folder == PACKAGE else "**/*"
        found |= {str(path.relative_to(PACKAGE.parent)) for path in folder.glob(pattern) if path.suffix in suffixes}
    return {name for name in found if "__pycache__" not in name}


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build both distributions, once even if several workers run these tests; return their folder."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "distributions"
    shared.mkdir(exist_ok=True)
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "dist").exists():
            source = shutil.copytree(ROOT, shared / "source", symlinks=True, ignore=LEFT_OUT)
            run(sys.executable, "-m", "build", "--no-isolation", "--outdir", shared / "made", source)
            (shared / "made").rename(shared / "dist")
    return shared / "dist"


@pytest.fixture(scope="session")
def sdist(built: Path) -> list[tarfile.TarInfo]:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        return archive.getmembers()


@pytest.fixture(scope="session")
def wheel(built: Path) -> set[str]:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="session")
def python(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel in an environment of its own, which borrows what it depends on from ours."""
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    interpreter = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", interpreter, "--disable-pip-version-check", "install")
    run(*pip, "--quiet", "--no-deps", "--no-index", next(built.glob("*.whl")))
    site = Path(run(interpreter, "-c", "import sysconfig; print(sysconfig.get_path('purelib'), end='')"))
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    return interpreter


def test_the_sdist_holds_each_file_once(sdist: list[tarfile.TarInfo]) -> None:
    assert not [member.name for member in sdist if member.issym() or member.islnk()]
    inside = [member.name.partition("/")[2] for member in sdist if member.isfile()]
    ours = sorted(name.removeprefix("src/") for name in inside if name.startswith("src/farpool/"))
    assert ours == sorted(source_files(".py", ".pyi", ".pyx", ".pxd", ".typed", ".toml"))
    assert {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "setup.py"} <= set(inside)
    assert not [name for name in inside if name.endswith((".c", ".so", ".pyc"))]


def test_the_wheel_holds_every_module_and_its_types(wheel: set[str]) -> None:
    suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
    compiled = {name.removesuffix(".pyx") + suffix for name in source_files(".pyx")}
    assert source_files(".py", ".pyi", ".pxd", ".typed") | compiled <= wheel
    others = {name for name in wheel if ".dist-info/" not in name} - source_files(
        ".py", ".pyi", ".pxd", ".typed", ".toml"
    )
    assert others == compiled


def test_it_works_where_it_is_installed(python: Path, tmp_path: Path) -> None:
    program = """
import farpool, sys
assert sys.prefix in farpool.__file__, farpool.__file__
costly = ("farpool.transports.", "farpool.native.", "numpy", "uvloop")
loaded = [name for name in sys.modules if name.startswith(costly)]
assert not loaded, loaded
with farpool.serve_embedded(capacity="16MiB") as server:
    for transport in ("cxl", "tcp"):
        with farpool.connect(server.url, transport=transport) as pool:
            slab = pool.allocate("64KiB")
            slab.write(b"installed")
            print(transport, slab.read(9).decode())
"""
    assert run(python, "-W", "error", "-c", program, cwd=tmp_path) == "cxl installed\ntcp installed\n"


def test_the_command_is_installed(python: Path, tmp_path: Path) -> None:
    version = run(python, "-c", "import farpool; print(farpool.__version__, end='')", cwd=tmp_path)
    assert version in run(python.with_name("farpool"), "--version", cwd=tmp_path)
