"""``farpool version``: which Farpool this is."""

from __future__ import annotations

import platform
from importlib.metadata import version as version_of

from farpool.cli.options import AsJson
from farpool.cli.output import print_record
from farpool.protocol.messages import PROTOCOL_VERSION

__all__ = ["version"]


def version(as_json: AsJson = False) -> None:
    """Print the version of Farpool, of its protocol and of Python."""
    release, python = version_of("farpool"), platform.python_version()
    if as_json:
        print_record({"version": release, "protocol": PROTOCOL_VERSION, "python": python})
    else:
        print(f"farpool {release} (protocol {PROTOCOL_VERSION}, Python {python})")
