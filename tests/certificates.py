"""Certificates for tests: an authority, what it has signed, and what a stranger's authority has."""

from __future__ import annotations

import datetime as dt
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import trustme

__all__ = ["Authority", "Certificate", "authority", "stranger"]

NOW = dt.datetime.now(dt.UTC)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its key, in a file each."""

    certificate: Path
    key: Path

    @property
    def settings(self) -> dict[str, Any]:
        """What a server is given."""
        return {"certificate": str(self.certificate), "key": str(self.key)}


class Authority:
    """An authority, with its files in a new folder below the run's."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tls-"))
        self._ca = trustme.CA()
        self._made = 0
        self.ca = self._folder / "ca.pem"
        self._ca.cert_pem.write_to_path(self.ca)

    def issue(self, *names: str, common_name: str | None = None, days: tuple[int, int] = (-1, 1)) -> Certificate:
        """Sign a certificate for *names* that is valid from *days* before now to after it."""
        begin, end = (NOW + dt.timedelta(days=number) for number in days)
        issued = self._ca.issue_cert(*names, common_name=common_name, not_before=begin, not_after=end)
        self._made += 1
        made = Certificate(self._folder / f"{self._made}.pem", self._folder / f"{self._made}.key")
        made.certificate.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
        made.key.touch(0o600)
        made.key.write_bytes(issued.private_key_pem.bytes())
        return made

    @cache  # noqa: B019  as many as there are authorities: two
    def server(self) -> Certificate:
        """Return one for this host."""
        return self.issue("localhost", "127.0.0.1", "::1")


@cache
def authority() -> Authority:
    """Return the authority that clients and servers of the tests trust."""
    return Authority()


@cache
def stranger() -> Authority:
    """Return another one."""
    return Authority()
