"""Sizes, leases, names and addresses: what is written comes back, and what is out of range does not get in."""

from __future__ import annotations

import math
import string
from collections.abc import Callable
from typing import TypeVar
from unicodedata import category

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.property.profile import PROFILE

from farpool.client.deadlines import parse_timeout
from farpool.protocol.addresses import Address, fill_host, parse_address, parse_host_port, validate_socket_path
from farpool.protocol.errors import InvalidArgument
from farpool.protocol.units import (
    MAX_NAME_BYTES,
    MAX_SLAB_BYTES,
    format_bytes,
    parse_lease,
    parse_mode,
    parse_size,
    validate_name,
)

UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}

T = TypeVar("T")

cases = settings(PROFILE, max_examples=80)
anything = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.binary(max_size=8), st.just([])
)


def outcome_of(call: Callable[[], T]) -> tuple[T | None, str]:
    """Return what *call* returns, or what it says in its refusal."""
    try:
        return call(), ""
    except InvalidArgument as error:
        return None, error.message


# Sizes ------------------------------------------------------------------------------------------------------


@cases
@given(nbytes=st.integers(1, MAX_SLAB_BYTES - 1))
def test_bytes_are_bytes(nbytes: int) -> None:
    assert parse_size(nbytes) == parse_size(str(nbytes)) == parse_size(f" {nbytes} B ") == nbytes


@cases
@given(number=st.integers(1, 4095), unit=st.sampled_from(sorted(UNITS)), space=st.sampled_from(["", " ", "\t"]))
def test_units_are_binary_and_in_any_case(number: int, unit: str, space: str) -> None:
    for text in (f"{number}{space}{unit}", f"{number}{space}{unit.lower()}", f"{number}{space}{unit.upper()}"):
        assert parse_size(text) == number * UNITS[unit]


@cases
@given(quarters=st.integers(1, 1000), unit=st.sampled_from(["KiB", "MiB", "GiB", "TiB"]))
def test_fractions_of_a_unit(quarters: int, unit: str) -> None:
    assert parse_size(f"{quarters / 4}{unit}") == quarters * UNITS[unit] // 4


@cases
@given(nbytes=st.integers(max_value=0) | st.integers(min_value=MAX_SLAB_BYTES))
def test_sizes_that_no_slab_has(nbytes: int) -> None:
    for value in (nbytes, str(nbytes)):
        with pytest.raises(InvalidArgument):
            parse_size(value)


@cases
@given(value=anything)
def test_size_or_a_clear_refusal(value: object) -> None:
    size, refusal = outcome_of(lambda: parse_size(value, what="the thing"))
    assert ("the thing" in refusal) if size is None else 0 < size < MAX_SLAB_BYTES


@cases
@given(nbytes=st.integers(0, 2**70))
def test_formatted_bytes_are_close(nbytes: int) -> None:
    number, unit = format_bytes(nbytes).split()
    assert math.isclose(float(number) * UNITS[unit], nbytes, rel_tol=0.001, abs_tol=0.5)


@cases
@given(power=st.integers(0, 59), number=st.integers(1, 999))
def test_round_numbers_come_back(power: int, number: int) -> None:
    nbytes = number << (power // 10 * 10)
    assume(nbytes < MAX_SLAB_BYTES)
    assert parse_size(format_bytes(nbytes)) == nbytes


# Leases and names -------------------------------------------------------------------------------------------


@cases
@given(seconds=st.floats(1e-6, 10 * 365 * 86400.0))
def test_seconds_of_a_lease(seconds: float) -> None:
    assert parse_lease(seconds) == parse_lease(repr(seconds)) == parse_lease(f"{seconds!r}s") == seconds
    assert parse_lease(parse_lease(seconds)) == seconds


@cases
@given(value=anything)
def test_lease_or_a_clear_refusal(value: object) -> None:
    lease, refusal = outcome_of(lambda: parse_lease(value))
    if lease is None:
        assert "lease must be" in refusal
    else:
        assert lease in ("session", "persistent") or (isinstance(lease, float) and 0 < lease < math.inf)


@cases
@given(name=st.text(max_size=300))
def test_names(name: str) -> None:
    printable = 0 < len(name.encode()) <= MAX_NAME_BYTES and not any(category(letter) == "Cc" for letter in name)
    if printable and not name.isdecimal():
        assert validate_name(name) == name
    else:
        with pytest.raises(InvalidArgument):
            validate_name(name)


@cases
@given(value=anything.filter(lambda value: not isinstance(value, str)) | st.just("\ud800"))
def test_names_are_text(value: object) -> None:
    with pytest.raises(InvalidArgument):
        validate_name(value)


@cases
@given(number=st.integers(0))
def test_a_name_is_never_taken_for_an_id(number: int) -> None:
    with pytest.raises(InvalidArgument, match="digits"):
        validate_name(str(number))
    assert validate_name(f"n{number}") == f"n{number}"


@pytest.mark.parametrize("number", [10**400, 10**5000], ids=["unfit-for-a-float", "unfit-for-a-string"])
def test_numbers_beyond_every_limit(number: int) -> None:
    for parse in (parse_lease, parse_size, parse_mode, parse_timeout):
        with pytest.raises(InvalidArgument) as refusal:
            parse(number)
        assert len(refusal.value.message) < 250
    with pytest.raises(InvalidArgument):
        parse_size("9" * 5000)


# Addresses --------------------------------------------------------------------------------------------------

hosts = st.from_regex(r"[a-z][a-z0-9-]{0,20}(\.[a-z]{1,8}){0,2}", fullmatch=True) | st.ip_addresses().map(str)
paths = st.text(string.ascii_letters + string.digits + "/ %._-é?#", max_size=60).map("/{}".format)


@cases
@given(host=hosts, port=st.integers(1, 65535), tls=st.booleans())
def test_host_and_port_come_back(host: str, port: int, tls: bool) -> None:
    address = Address(host=host, port=port, tls=tls)
    assert parse_address(str(address)) == address
    shown = f"[{host}]" if ":" in host else host
    assert parse_host_port(f"{shown}:{port}") == (host, port)
    with pytest.raises(InvalidArgument, match="port 0"):
        parse_address(f"farpool://{shown}:0")


@cases
@given(path=st.text(string.ascii_letters + string.digits + "/._-", max_size=60).map("/{}".format))
def test_path_of_a_socket_comes_back(path: str) -> None:
    assume(not path.startswith("//"))
    address = Address(path=path)
    assert parse_address(str(address)) == address


@cases
@given(key=st.sampled_from(["stripes", "a"]), value=st.integers(0, 99))
def test_options(key: str, value: int) -> None:
    assert parse_address(f"farpool://host?{key}={value}").options == ((key, str(value)),)
    assert parse_address(f"unix:///run/x.sock?{key}={value}").options == ((key, str(value)),)


@cases
@given(text=st.text(max_size=60) | st.text(max_size=40).map("farpool://{}".format) | paths.map("unix://{}".format))
def test_address_or_a_clear_refusal(text: str) -> None:
    address, refusal = outcome_of(lambda: parse_address(text))
    if address is None:
        assert refusal
    else:
        assert bool(address.path) != bool(address.host)
        assert bool(address.path) or 1 <= address.port <= 65535


@pytest.mark.parametrize("url", ["unix:///a\0b", "unix:///a%00b"])
def test_socket_path_with_a_nul(url: str) -> None:
    with pytest.raises(InvalidArgument, match="NUL"):
        parse_address(url)


@cases
@given(length=st.integers(1, 200))
def test_socket_paths_are_as_long_as_the_kernel_allows(length: int) -> None:
    path = "/" + "x" * (length - 1)
    if length <= 107:
        assert validate_socket_path(path) == path
    else:
        with pytest.raises(InvalidArgument, match="107"):
            validate_socket_path(path)


@cases
@given(host=hosts, offered=st.just("") | hosts)
def test_empty_host_stands_for_where_we_came_from(host: str, offered: str) -> None:
    params = {"host": offered, "port": 1}
    assert fill_host(params, Address(host=host, port=7700)) == {"host": offered or host, "port": 1}
    assert fill_host(params, Address(path="/x")) == {"host": offered or "127.0.0.1", "port": 1}
    assert fill_host({"socket": "/x"}, Address(host=host)) == {"socket": "/x"}
