"""``farpool free``: end the life of slabs."""

from __future__ import annotations

from typing import Annotated

import typer

import farpool
from farpool.cli.options import AsJson, Tenant, Timeout, Url, name_or_id
from farpool.cli.output import one_line, print_record
from farpool.protocol.units import format_bytes

__all__ = ["free"]


def free(
    slabs: Annotated[
        list[str],
        typer.Argument(metavar="SLAB...", help="Names or ids; digits alone are an id.", show_default=False),
    ],
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
    timeout: Timeout = 10.0,
) -> None:
    """Free slabs by name or id, one after the other; the first that cannot be freed ends the command."""
    with farpool.connect(url, tenant=tenant, timeout=timeout) as pool:
        for target in slabs:
            slab = pool.open(name_or_id(target))
            slab.free()
            if as_json:
                print_record({"id": slab.id, "name": slab.name, "nbytes": slab.nbytes, "freed": True})
            else:
                label = one_line(f"slab {slab.id}" if slab.name is None else f"slab {slab.id} ({slab.name})")
                print(f"freed {label}, {format_bytes(slab.nbytes)}")
