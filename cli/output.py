"""The lines that commands print: results on stdout, everything else on stderr. Tables are in ``screens``."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["one_line", "print_record", "print_struct", "warn"]


def one_line(text: str) -> str:
    """Return *text* as one printable line, whatever a peer or a file name put into it."""
    joined = " ".join(text.split())
    return "".join(character if character.isprintable() else "?" for character in joined)


def warn(message: str) -> None:
    """Say one thing on stderr."""
    print(f"farpool: {one_line(message)}", file=sys.stderr, flush=True)


def print_record(record: Mapping[str, Any]) -> None:
    """Print one JSON object on a line of its own."""
    print(json.dumps(record, allow_nan=False), flush=True)


def print_struct(struct: msgspec.Struct) -> None:
    """Print a message of the protocol as one JSON object."""
    print_record(msgspec.to_builtins(struct))
