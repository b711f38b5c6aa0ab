"""What every test relies on: native modules as new as their sources, and nothing left behind.

Children that a test starts must be gone when it ends; files of ours in /dev/shm and sockets in the temporary
folders must be gone when the run ends. ``no_leak`` holds one test to more: descriptors and threads as well.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from farpool.server.embedded import EmbeddedServer

ROOT = Path(__file__).resolve().parent.parent
NATIVE = ROOT / "cython"
SHARED_MEMORY = Path("/dev/shm")
OPTIONAL = re.compile(r"(verbs|rdma_(lane|region|pipeline)|tls)")
"""Modules that are built only where their headers are."""
CIMPORT = re.compile(r"^\s*(?:from|cimport)\s+farpool\.native\.(\w+)", re.MULTILINE)
ENDS_WITHIN = 5.0
"""Seconds that a process or a file of ours has to go away after the test that made it."""

RUN = pytest.StashKey[Path]()
BEFORE = pytest.StashKey[set[str]]()
LEFT = pytest.StashKey[list[str]]()

T = TypeVar("T")


# The build ------------------------------------------------------------------------------------------


def sources_of(module: Path) -> set[Path]:
    """Return the Cython sources that a build of *module* reads: its own and those that it cimports."""
    found: set[Path] = set()
    waiting = [module, module.with_suffix(".pxd")]
    while waiting:
        path = waiting.pop()
        if path in found or not path.is_file():
            continue
        found.add(path)
        waiting += [NATIVE / f"{name}.pxd" for name in CIMPORT.findall(path.read_text())]
    return found


def stale_modules() -> list[str]:
    """Name the native modules whose build is missing or older than a source."""
    suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
    stale: list[str] = []
    for module in sorted(NATIVE.glob("*.pyx")):
        built = module.with_name(module.stem + suffix)
        if not built.is_file() and OPTIONAL.match(module.stem):
            continue
        if not built.is_file() or built.stat().st_mtime < max(path.stat().st_mtime for path in sources_of(module)):
            stale.append(module.stem)
    return stale


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let one who knows run against an older build."""
    parser.addoption("--stale", action="store_true", help="run although native modules are older than their sources")


def pytest_configure(config: pytest.Config) -> None:
    """Stop at once on a stale build, and give this process a folder for its sockets and files."""
    stale = stale_modules()
    if stale and not config.getoption("--stale"):
        pytest.exit(f"native modules are older than their sources: {', '.join(stale)}. Run: make build", returncode=3)
    # pytest's own temporary files stay where they are; ours go to a folder of the run, that of an xdist
    # worker inside that of the process that started it. Short names: a Unix socket's path has 107 bytes at most.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = Path(tempfile.mkdtemp(prefix="t-", dir=os.environ.get("FARPOOL_TEST_RUN", "/tmp")))
    folder.chmod(0o711)
    os.environ.setdefault("FARPOOL_TEST_RUN", str(folder))
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None
    for name in ("FARPOOL_URL", "FARPOOL_ARENA", "FARPOOL_TENANT", "FARPOOL_TOKEN", "FARPOOL_TOKEN_FILE"):
        os.environ.pop(name, None)  # FARPOOL_ARENA is the lab's
    config.stash[RUN] = folder
    config.stash[BEFORE] = abandoned_arenas()
    config.stash[LEFT] = []


def pytest_report_header() -> str:
    """Say what is under test."""
    from farpool.transports.registry import transport_names

    modules = ", ".join(path.stem for path in sorted(NATIVE.glob("*.pyx")))
    return f"farpool: transports {', '.join(transport_names()) or 'none installed'}; native {modules}"


# Nothing is left behind -----------------------------------------------------------------------------


def is_served(arena: Path) -> bool:
    """Tell whether a running server, of another run perhaps, holds the arena."""
    try:
        os.kill(int((arena / ".farpool" / "lock").read_text().split()[0]), 0)
    except (OSError, ValueError, IndexError):
        return False
    return True


def abandoned_arenas() -> set[str]:
    """Return what is ours in /dev/shm and belongs to no running server."""
    return {str(path) for path in SHARED_MEMORY.glob("farpool*") if not is_served(path)}


def children() -> set[int]:
    """Return this process's children, also those ended and not waited for; not Python's resource tracker."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            found.update(int(pid) for pid in (task / "children").read_text().split())
        except FileNotFoundError:
            continue  # the thread has ended
    return {pid for pid in found if "resource_tracker" not in command_of(pid)}


def command_of(pid: int) -> str:
    """Return a process's command line; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def settle(measure: Callable[[], set[T]], allowed: set[T], within: float = ENDS_WITHIN) -> set[T]:
    """Return what *measure* finds over *allowed*, each time until it has had its time."""
    deadline = time.monotonic() + within
    left = measure() - allowed
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left &= measure()
    return left


@pytest.fixture(autouse=True)
def no_child_left() -> Iterator[None]:
    """Fail a test that leaves a process running, or one that nobody has waited for."""
    before = children()
    yield
    left = {pid: command_of(pid) for pid in settle(children, before)}
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, f"the test left child processes: {left}"


@pytest.fixture(autouse=True)
def ctrl_c_as_before() -> Iterator[None]:
    """Fail a test after which Ctrl-C does not do what it did."""
    before = signal.getsignal(signal.SIGINT), signal.pthread_sigmask(signal.SIG_BLOCK, [])
    yield
    after = signal.getsignal(signal.SIGINT), signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert after == before, "the test has changed what Ctrl-C does"


@pytest.fixture
def no_leak() -> Iterator[None]:
    """Hold one test to its descriptors and threads as well."""

    def threads() -> set[str]:
        return {thread.name for thread in threading.enumerate()}

    before = set(links_of("self")), threads()
    yield
    assert not settle(lambda: set(links_of("self")), before[0]), "the test left descriptors open"
    assert not settle(threads, before[1]), "the test left threads running"


def links_of(process: int | str) -> Iterator[str]:
    """Return number and target of each descriptor that a process has open."""
    for entry in Path(f"/proc/{process}/fd").iterdir():
        try:
            yield f"{entry.name} {entry.readlink()}"
        except FileNotFoundError:
            continue  # the descriptor of this listing itself


def traces_of(server: EmbeddedServer) -> set[str]:
    """Return what a running server holds: slab files, sockets, and as many descriptors as it has open.

    Those of its catalog do not count: SQLite has one more after a restart.
    """
    slabs = {path.name for path in Path(server.arena).glob("slab-*")}
    sockets = {path.name for path in Path(server.url.removeprefix("unix://")).parent.iterdir()}
    open_now = [link for link in links_of(server.pid) if "/.farpool/catalog" not in link]
    return slabs | sockets | {f"descriptor {number}" for number in range(len(open_now))}


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Look for what the run has left, in the process that started any workers."""
    config = session.config
    if hasattr(config, "workerinput"):
        return
    sockets = [str(path) for path in config.stash[RUN].rglob("*") if path.is_socket()]
    config.stash[LEFT] = sockets + sorted(settle(abandoned_arenas, config.stash[BEFORE]))
    if config.stash[LEFT]:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name what was left."""
    for name in config.stash[LEFT]:
        terminalreporter.write_line(f"ERROR left behind by the run: {name}", red=True)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the run's folder."""
    folder = config.stash.get(RUN, None)
    if folder is not None and not hasattr(config, "workerinput"):
        shutil.rmtree(folder, ignore_errors=True)
        os.environ.pop("FARPOOL_TEST_RUN")


# Devices --------------------------------------------------------------------------------------------------------


@pytest.fixture
def rdma_device() -> str:
    """Name an RDMA device of this machine; without one the test is passed over."""
    devices = sorted(path.name for path in Path("/sys/class/infiniband").glob("*"))
    if not devices:
        pytest.skip(
            "there is no RDMA device here; the lab has one: farpool-lab run --rdma -- python -m pytest tests/rdma"
        )
    return devices[0]


# A third party's transport --------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def stream_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install ``tests/third_party`` as a user would, into a folder of its own; return the folder."""
    folder = tmp_path_factory.mktemp("stream")
    source = shutil.copytree(ROOT / "tests/third_party", folder / "source")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    command += ["--no-deps", "--no-build-isolation", "--target", str(folder / "site"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def stream_transport(stream_package: Path) -> Iterator[str]:
    """Make the transport ``stream`` known to this process and its children while a module's tests run."""
    from farpool.transports.registry import find_transport, transport_names

    def forget() -> None:
        importlib.invalidate_caches()
        find_transport.cache_clear()
        transport_names.cache_clear()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(stream_package), *sys.path])
        patch.setenv("PYTHONPATH", str(stream_package), prepend=os.pathsep)
        forget()
        yield "stream"
        for name in [name for name in sys.modules if name.partition(".")[0] == "farpool_stream"]:
            del sys.modules[name]
    forget()
