"""The tenants of a catalog: what survives, what the configuration adds, and what cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from farpool.protocol.errors import InvalidArgument, NameTaken, PermissionDenied
from farpool.server.catalog import Catalog
from farpool.server.settings import TenantSettings
from farpool.server.tenants import NO_QUOTA, Quota, Tenants

VERIFIER = bytes(range(64))


@pytest.fixture
def catalog(memory_folder: Path) -> Iterator[Catalog]:
    opened = Catalog(str(memory_folder / "catalog.sqlite"), durable=False)
    yield opened
    opened.close()


def test_a_new_pool_has_one_tenant_that_is_open(catalog: Catalog) -> None:
    (tenant,) = Tenants(catalog, {}).sorted()
    assert (tenant.name, tenant.open, tenant.quota, tenant.configured) == ("default", True, NO_QUOTA, False)


def test_tenants_verifiers_and_quotas_survive(catalog: Catalog) -> None:
    tenants = Tenants(catalog, {})
    tenants.add("alice", None)
    tenants.add("bob", VERIFIER)
    tenants.limit("bob", Quota(nbytes=1 << 30, slabs=7, rate=2.5))
    tenants.rotate("alice", VERIFIER[::-1])
    again = Tenants(catalog, {})
    assert again.sorted() == tenants.sorted()
    assert again.get("bob").quota == Quota(nbytes=1 << 30, slabs=7, rate=2.5)
    assert not again.get("alice").open
    tenants.remove("bob")
    assert Tenants(catalog, {}).find("bob") is None


def test_the_configuration_makes_tenants_and_says_whose_users_they_are(catalog: Catalog) -> None:
    tenants = Tenants(catalog, {"alice": TenantSettings(uids=(1000, 1001), certificates=("alice.example",))})
    assert tenants.of_user(1001) == ["alice"]
    assert tenants.of_user(1002) == []
    assert tenants.of_certificate("alice.example") == ["alice"]
    assert not tenants.get("alice").open
    tenants.configure({"bob": TenantSettings(uids=(1001,))})
    assert tenants.of_user(1001) == ["bob"]
    assert not tenants.get("alice").open, "a tenant that the configuration closed must not open when it is forgotten"
    assert not tenants.get("alice").has_token
    assert [tenant.name for tenant in Tenants(catalog, {}).sorted()] == ["alice", "bob", "default"]


def test_quotas_of_the_configuration_come_first_and_go_with_it(catalog: Catalog) -> None:
    tenants = Tenants(catalog, {"alice": TenantSettings.model_validate({"max_bytes": "8KiB", "max_rate": 5})})
    tenants.limit("alice", Quota(nbytes=1, slabs=7))
    assert tenants.limits("alice") == Quota(nbytes=8192, slabs=7, rate=5)
    tenants.configure({"alice": TenantSettings(max_sessions=3)})
    assert tenants.limits("alice") == Quota(nbytes=1, slabs=7, sessions=3)
    tenants.configure({})
    assert tenants.limits("alice") == Quota(nbytes=1, slabs=7)
    assert tenants.limits("nobody") == NO_QUOTA


def test_a_user_of_several_tenants_is_the_first_ones(catalog: Catalog) -> None:
    mine = TenantSettings(uids=(1000,), certificates=("c",))
    tenants = Tenants(catalog, {"zoe": mine, "bob": mine, "alice": mine})
    assert tenants.of_user(1000) == tenants.of_certificate("c") == ["zoe", "bob", "alice"]
    assert Tenants(catalog, {"zoe": mine, "bob": mine, "alice": mine}).of_user(1000) == ["zoe", "bob", "alice"]


def test_what_cannot_be_says_why(catalog: Catalog) -> None:
    tenants = Tenants(catalog, {"alice": TenantSettings()})
    with pytest.raises(NameTaken, match="farpool tenant rotate alice"):
        tenants.add("alice", None)
    for name in ("", "a b", "-a", "../a", "ä", "a" * 65, "a\n"):
        with pytest.raises(InvalidArgument, match="1 to 64 letters"):
            tenants.add(name, None)
    with pytest.raises(InvalidArgument, match="64 bytes"):
        tenants.add("bob", b"short")
    with pytest.raises(InvalidArgument, match="farpool tenant list"):
        tenants.rotate("nobody", VERIFIER)
    with pytest.raises(PermissionDenied, match="the configuration names"):
        tenants.remove("alice")
    with pytest.raises(PermissionDenied, match="stays"):
        tenants.remove("default")
