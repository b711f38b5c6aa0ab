"""``farpool status``: what the server says of itself."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.table import Table

import farpool
from farpool.cli.options import AsJson, Tenant, Timeout, Url, parse_seconds
from farpool.cli.output import print_record
from farpool.cli.quota import usage_of
from farpool.cli.release import describe_quarantined
from farpool.cli.screens import console, fields_table, rows_table
from farpool.client.administration import Administration
from farpool.protocol.errors import DeadlineExceeded, ServerLost
from farpool.protocol.units import format_bytes

if TYPE_CHECKING:
    from farpool.protocol.messages import ServerStat
    from farpool.protocol.tenant_messages import TenantInfo

__all__ = ["status"]

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 0.25
"""Seconds between two attempts to reach a server that is not there yet; they double up to this."""


def status(
    url: Url = None,
    tenant: Tenant = None,
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait",
            parser=parse_seconds,
            metavar="SECONDS",
            help="Keep trying this long until the server answers.",
        ),
    ] = None,
    tenants: Annotated[
        bool, typer.Option("--tenants", help="Show each tenant and its quota too; for administrators.")
    ] = False,
    as_json: AsJson = False,
    timeout: Timeout = 10.0,
) -> None:
    """Show the pool's capacity, sessions and transports."""
    stat = _ask(url, tenant, timeout) if wait is None else _ask_until(url, tenant, timeout, time.monotonic() + wait)
    listed = _tenants(url, timeout) if tenants else None
    if as_json:
        print_record(msgspec.to_builtins(stat) | ({} if listed is None else {"tenants": msgspec.to_builtins(listed)}))
        return
    screen = console()
    screen.print(_summary(stat))
    screen.print()
    screen.print(_transports(stat))
    if listed is not None:
        screen.print()
        screen.print(_quotas(listed))


def _tenants(url: str | None, timeout: float) -> list[TenantInfo]:
    with Administration(url, timeout) as administration:
        return administration.tenants()


def _quotas(tenants: list[TenantInfo]) -> Table:
    columns = ("bytes", "slabs", "sessions", "requests/s")
    table = rows_table("tenant", *columns, right=columns)
    for info in tenants:
        table.add_row(info.name, *usage_of(info))
    return table


def _ask(url: str | None, tenant: str | None, timeout: float) -> ServerStat:
    with farpool.connect(url, tenant=tenant, timeout=timeout) as pool:
        return pool.stat()


def _ask_until(url: str | None, tenant: str | None, timeout: float, deadline: float) -> ServerStat:
    pause = FIRST_PAUSE
    while True:
        remaining = deadline - time.monotonic()
        try:
            return _ask(url, tenant, max(0.01, min(timeout, remaining)))
        except (ServerLost, DeadlineExceeded):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise
        time.sleep(min(pause, remaining))
        pause = min(2 * pause, LONGEST_PAUSE)


def _summary(stat: ServerStat) -> Table:
    table = fields_table()
    process = f"pid {stat.pid}, " if stat.pid else ""  # administrators alone are told of it, and of the arena
    starts = f"started {stat.epoch} time{'' if stat.epoch == 1 else 's'}"
    table.add_row("server", f"{stat.server}, {process}{stat.state} for {_duration(stat.uptime)}")
    table.add_row("address", "\n".join(stat.addresses))
    table.add_row("arena", f"{stat.arena}, {starts}" if stat.arena else starts)
    table.add_row("capacity", format_bytes(stat.capacity))
    share = stat.allocated / max(1, stat.capacity)
    used = f"{format_bytes(stat.allocated)} ({share:.0%}) in {stat.slabs} slab{'' if stat.slabs == 1 else 's'}"
    if stat.reclaiming:
        used += f", {format_bytes(stat.reclaiming)} reclaiming"
    table.add_row("used", used)
    if stat.quarantined:
        table.add_row("quarantined", "\n".join(describe_quarantined(entry) for entry in stat.quarantined))
    table.add_row("free", format_bytes(stat.free))
    table.add_row("sessions", f"{stat.sessions}, this one included")
    table.add_row("CPU time", f"{stat.cpu_seconds:.2f} s")
    return table


def _transports(stat: ServerStat) -> Table:
    table = rows_table("transport", "state", "counters since the start")
    for name, facts in stat.transports.items():
        counters = ", ".join(f"{key} {value:,}" for key, value in facts.items() if type(value) is int and value)
        table.add_row(name, "ready" if facts.get("available") else str(facts.get("reason") or "off"), counters)
    return table


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = ((days, "d"), (hours, "h"), (minutes, "min"), (rest, "s"))
    return " ".join([f"{count} {unit}" for count, unit in parts if count][:2]) or "less than 1 s"
