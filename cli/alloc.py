"""``farpool alloc``: make a slab that outlives the command."""

from __future__ import annotations

from typing import Annotated

import typer

import farpool
from farpool.cli.options import AsJson, KeptLease, Tenant, Timeout, Url, parse_kept_lease
from farpool.cli.output import print_record

__all__ = ["alloc"]


def alloc(
    size: Annotated[str, typer.Argument(metavar="SIZE", help="Bytes, or with a binary unit: 64KiB, 1.5GiB.")],
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Name that others open it by.")] = None,
    lease: KeptLease = "persistent",
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
    timeout: Timeout = 10.0,
) -> None:
    """Allocate one zeroed slab and print its id."""
    kept = parse_kept_lease(lease)
    with (
        farpool.connect(url, tenant=tenant, timeout=timeout) as pool,
        pool.allocate(size, name=name, lease=kept) as slab,
    ):
        if as_json:
            print_record({"id": slab.id, "name": slab.name, "nbytes": slab.nbytes, "lease": kept})
        else:
            print(slab.id)
