"""``farpool release``: tell the server that a host which is gone maps no memory any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

import farpool
from farpool.cli.options import AsJson, Timeout, Url
from farpool.cli.output import print_struct
from farpool.protocol.errors import PermissionDenied
from farpool.protocol.units import format_bytes

if TYPE_CHECKING:
    from farpool.protocol.messages import Quarantined

__all__ = ["describe_quarantined", "release"]


def release(
    host: Annotated[
        str, typer.Option("--host", metavar="HOST", help="As farpool status names it.", show_default=False)
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do it: you know that nothing there maps the memory.")] = False,
    url: Url = None,
    as_json: AsJson = False,
    timeout: Timeout = 10.0,
) -> None:
    """Say what ended sessions of a host may still have mapped, and with --yes give it back to the pool.

    A process that does have it mapped would write into the next slab: be sure that the host is down, or that no such
    process is left. For root and the server's own user, on the server's host.
    """
    with farpool.connect(url, timeout=timeout) as pool:
        if not yes:
            held = next((entry for entry in pool.stat().quarantined if entry.host == host), None)
            if held is not None:
                raise PermissionDenied(
                    f"{describe_quarantined(held)}; if you know that nothing there maps it any more, run: "
                    f"farpool release --host {host} --yes"
                )
        back = pool.release_host(host)  # raises for a host that holds nothing
    if as_json:
        print_struct(back)
    else:
        print(f"released {_count(back.sessions, 'session')} of {host}: {_what(back)} came back")


def describe_quarantined(held: Quarantined) -> str:
    """Return in words what a host holds, or what all do."""
    what = f"{_what(held)} in {_count(held.sessions, 'ended session')}"
    return f"{held.host} holds {what}" if held.host else what


def _what(entry: Quarantined) -> str:
    return f"{format_bytes(entry.nbytes)} of {_count(entry.slabs, 'slab')}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
