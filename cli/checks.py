"""The checks of ``farpool doctor`` by name, in the order in which they are made and printed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from farpool.cli import cxl_findings, machine_findings, rdma_findings, server_findings
from farpool.cli.findings import Check, Finding, Subject
from farpool.protocol.errors import FarpoolError

__all__ = ["CHECKS", "examine"]

CHECKS: Final[Mapping[str, Check]] = {
    "farpool": machine_findings.farpool,
    "native code": machine_findings.native,
    "kernel": machine_findings.kernel,
    "shared memory": machine_findings.shared_memory,
    "descriptors": machine_findings.descriptors,
    "huge pages": machine_findings.huge_pages,
    "userfaultfd": machine_findings.userfaultfd,
    "cxl devices": cxl_findings.dax_devices,
    "rdma devices": rdma_findings.devices,
    "rdma library": rdma_findings.library,
    "locked memory": rdma_findings.locked_memory,
    "server": server_findings.server,
}


def examine(subject: Subject) -> Iterator[Finding]:
    """Make every check; one that breaks becomes a finding of its own."""
    for name, function in CHECKS.items():
        try:
            yield from function(subject)
        except (FarpoolError, OSError, ValueError) as error:
            yield Finding(name, "warn", f"could not be checked: {error}")
