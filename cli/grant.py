"""``farpool grant``: let another tenant attach a slab, take it back, or say who may."""

from __future__ import annotations

from typing import Annotated

import typer

import farpool
from farpool.cli.options import AsJson, Tenant, Timeout, Url, name_or_id
from farpool.cli.output import one_line, print_record, print_struct
from farpool.cli.screens import console, rows_table
from farpool.client.taking_back import take_back
from farpool.protocol.units import parse_lease

__all__ = ["grant"]


def grant(
    slab: Annotated[str, typer.Argument(metavar="SLAB", help="Its name or id; digits alone are an id.")],
    grantee: Annotated[
        str | None, typer.Argument(metavar="[TENANT]", help="Who may attach it; without one the grants are listed.")
    ] = None,
    mode: Annotated[str, typer.Option("--mode", metavar="MODE", help="r to read, rw to write as well.")] = "r",
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="SECONDS", help="When it ends; default: with the slab.")
    ] = None,
    revoke: Annotated[bool, typer.Option("--revoke", help="Take the slab from TENANT instead.")] = False,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
    timeout: Timeout = 10.0,
) -> None:
    """Let another tenant attach a slab of this tenant, or take it back."""
    if revoke and (grantee is None or expires is not None or mode != "r"):
        raise typer.BadParameter("--revoke takes a TENANT, and neither --mode nor --expires")
    seconds = None if expires is None else _seconds(expires)
    try:
        with (
            farpool.connect(url, tenant=tenant, timeout=timeout) as pool,
            pool.open(name_or_id(slab), mode="r") as opened,
        ):
            info = opened.info
            if grantee is None:
                _list(opened, as_json)
                return
            if revoke:
                opened.revoke(grantee)
            else:
                opened.grant(grantee, mode=mode, expires=seconds)
    except farpool.SlabBusy:
        if not revoke or grantee is None:
            raise
        info = take_back(name_or_id(slab), grantee, url=url, tenant=tenant, timeout=timeout)
    if as_json:
        done = {"revoked": True} if revoke else {"mode": mode, "expires": seconds}
        print_record({"id": info.id, "name": info.name, "tenant": grantee, **done})


def _seconds(text: str) -> float:
    lease = parse_lease(text)
    if isinstance(lease, str):
        raise typer.BadParameter("--expires takes seconds")
    return lease


def _list(slab: farpool.Slab, as_json: bool) -> None:
    grants = slab.grants()
    if as_json:
        for each in grants:
            print_struct(each)
        return
    table = rows_table("tenant", "mode", "ends in", right=("ends in",))
    for each in grants:
        table.add_row(one_line(each.tenant), each.mode, "-" if each.expires_in is None else f"{each.expires_in:.0f} s")
    console().print(table if table.row_count else "no grants")
