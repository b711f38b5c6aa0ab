"""The package's own names: all there, and loaded when they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import farpool
from farpool.protocol import errors

HEAVY = ["uvloop", "numpy", "pydantic", "structlog", "msgpack", "msgspec", "farpool.transports", "farpool.server"]


def test_import_loads_no_dependency() -> None:
    """Lessons row 19: a machine without a transport's libraries imports farpool all the same."""
    program = (
        f"import sys, farpool; print(*[name for name in {HEAVY!r} if name in sys.modules]); farpool.connect;"
        "print(*[name for name in sys.modules if name in ('uvloop', 'numpy', 'pydantic', 'structlog')"
        " or name.startswith(('farpool.transports.cxl', 'farpool.transports.tcp'))])"
    )
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.split("\n")[:2] == ["", ""]


@pytest.mark.parametrize("name", farpool.__all__)
def test_public_name_is_there(name: str) -> None:
    assert getattr(farpool, name) is not None
    assert name in dir(farpool)


def test_nothing_else_is_shown() -> None:
    assert {name for name in dir(farpool) if not name.startswith("__")} == {*farpool.__all__} - {"__version__"}


def test_every_error_is_public() -> None:
    functions = {"from_wire", "out_of_descriptors"}
    assert set(errors.__all__) - functions <= set(farpool.__all__)


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'allocate'"):
        getattr(farpool, "allocate")  # noqa: B009  a type checker knows better
