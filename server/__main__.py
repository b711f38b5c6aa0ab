"""``python -m farpool.server``: a server with the environment's settings, or those that an embedder sends."""

from __future__ import annotations

import json
import os
import sys

from farpool.server.app import Embedding, serve
from farpool.server.embedded import EMBEDDED_VARIABLE
from farpool.server.settings import ConfigurationError, load_settings


def _read_line(fd: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(fd, 65536)
        if not piece:
            raise ConfigurationError("the parent closed the pipe before it sent the settings")
        line += piece
    return line


def _serve_embedded() -> None:
    order = json.loads(_read_line(0))
    embedding = Embedding(parent=order["parent"], lifeline=0, remove=tuple(order["remove"]))
    serve(load_settings(None, order["settings"]), embedding, takeover=order["takeover"])


def main() -> int:
    """Run the server and return its exit code."""
    try:
        if os.environ.pop(EMBEDDED_VARIABLE, None):
            _serve_embedded()
        else:
            serve(load_settings(os.environ.get("FARPOOL_CONFIG")))
    except ConfigurationError as error:
        print(f"farpool: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
