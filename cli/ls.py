"""``farpool ls``: the slabs that this tenant may see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import farpool
from farpool.cli.options import AsJson, Tenant, Timeout, Url
from farpool.cli.output import one_line, print_struct
from farpool.cli.screens import console, rows_table
from farpool.protocol.units import format_bytes

if TYPE_CHECKING:
    from farpool.protocol.messages import SlabInfo

__all__ = ["ls"]


def ls(url: Url = None, tenant: Tenant = None, as_json: AsJson = False, timeout: Timeout = 10.0) -> None:
    """List slabs: id, name, size, lease, state and how many sessions have them attached."""
    with farpool.connect(url, tenant=tenant, timeout=timeout) as pool:
        if as_json:
            for info in pool.slabs():
                print_struct(info)
            return
        found = pool.slabs()
        granted = any(info.tenant != pool.tenant for info in found)
        columns = ("id", "name", *(["tenant"] if granted else []), "size", "lease", "state", "attached")
        table = rows_table(*columns, right=("id", "size", "attached"))
        for info in found:
            owner = [info.tenant] if granted else []
            size, name = format_bytes(info.nbytes), one_line(info.name or "-")
            table.add_row(str(info.id), name, *owner, size, _lease(info), info.state, str(info.attached))
        console().print(table if table.row_count else "no slabs")


def _lease(info: SlabInfo) -> str:
    if isinstance(info.lease, str):
        return info.lease
    left = "" if info.expires_in is None else f", {info.expires_in:.0f} s left"
    return f"{info.lease:g} s{left}"
