"""Choosing the pyverbs binding: what it does to the program, and what a program without pyverbs is told."""

from __future__ import annotations

import subprocess
import sys

import pytest

from farpool.transports.rdma.binding import Binding

UNTOUCHED = """
import logging
from farpool.transports.rdma import binding

root = logging.getLogger()
root.setLevel(logging.CRITICAL)
before = list(root.handlers), root.level, logging.root.manager.disable
binding.load("pyverbs")
assert (list(root.handlers), root.level, logging.root.manager.disable) == before, root.handlers
logging.basicConfig(level=logging.WARNING)      # and the program's own call still has its effect
assert len(root.handlers) == 1 and root.level == logging.WARNING
"""

ABSENT = """
import sys
from farpool.protocol.errors import TransportUnavailable
from farpool.transports.rdma import binding

sys.modules["pyverbs"] = None
try:
    binding.load("pyverbs")
except TransportUnavailable as error:
    print(error)
"""

NATIVE = """
import sys
from farpool.transports.rdma import binding

binding.load("native")
assert not [name for name in sys.modules if name.partition(".")[0] == "pyverbs"]
"""


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_leaves_logging_as_it_is(pyverbs: Binding) -> None:
    run(UNTOUCHED)


def test_without_pyverbs_the_message_names_the_package() -> None:
    said = run(ABSENT)
    assert "apt-get install -y python3-pyverbs" in said
    assert "make pyverbs" in said


def test_the_native_binding_loads_nothing_of_it() -> None:
    pytest.importorskip("farpool.native.verbs", reason="this build has no rdma: install libibverbs-dev")
    run(NATIVE)
