"""The pyverbs package of rdma-core, as the distribution ships it.

Importing it calls ``logging.basicConfig``, which gives the program's root logger a handler and the level INFO. Here
it finds a handler in place and changes nothing. Its modules have no types, so that they are ``Any``.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Generator
from typing import Any

__all__ = ["addr", "cq", "device", "enums", "errors", "fork", "mr", "pd", "qp", "wr"]


@contextlib.contextmanager
def _logging_left_alone() -> Generator[None]:
    root = logging.getLogger()
    placeholder = logging.NullHandler()
    root.addHandler(placeholder)
    try:
        yield
    finally:
        root.removeHandler(placeholder)


def _enums() -> Any:
    try:
        return importlib.import_module("pyverbs.libibverbs_enums")
    except ModuleNotFoundError:  # its name in older versions
        return importlib.import_module("pyverbs.enums")


with _logging_left_alone():
    addr: Any = importlib.import_module("pyverbs.addr")
    cq: Any = importlib.import_module("pyverbs.cq")
    device: Any = importlib.import_module("pyverbs.device")
    enums: Any = _enums()
    errors: Any = importlib.import_module("pyverbs.pyverbs_error")
    fork: Any = importlib.import_module("pyverbs.fork")
    mr: Any = importlib.import_module("pyverbs.mr")
    pd: Any = importlib.import_module("pyverbs.pd")
    qp: Any = importlib.import_module("pyverbs.qp")
    wr: Any = importlib.import_module("pyverbs.wr")
