"""Proofs of tokens: the arithmetic against the RFC's own example, and that nothing but the token makes one."""

from __future__ import annotations

import base64
import hashlib

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from farpool.protocol.credentials import (
    TOKEN_BYTES,
    VERIFIER_BYTES,
    check_proof,
    check_signature,
    client_proof,
    exchange_of,
    format_token,
    parse_token,
    proof_of,
    server_key,
    signature_of,
    verifier_of,
)
from farpool.protocol.errors import InvalidArgument

secrets = st.binary(min_size=TOKEN_BYTES, max_size=TOKEN_BYTES)
names = st.text(max_size=20)
nonces = st.binary(max_size=40)


def test_the_example_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", salt, 4096)
    message = (
        b"n=user,r=rOprNGfwEbeRWgbNEkqO,"
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,"
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    )
    assert base64.b64encode(client_proof(salted, message)) == b"dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    signature = signature_of(bytes(32) + server_key(salted), message)
    assert base64.b64encode(signature) == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@given(secrets, names, nonces, nonces)
def test_the_token_alone_proves_and_the_verifier_alone_answers(
    secret: bytes, tenant: str, client: bytes, server: bytes
) -> None:
    verifier, exchange = verifier_of(secret, tenant), exchange_of(tenant, client, server)
    assert len(verifier) == VERIFIER_BYTES
    proof = proof_of(secret, tenant, exchange)
    assert check_proof(verifier, exchange, proof)
    assert check_signature(secret, tenant, exchange, signature_of(verifier, exchange))
    assert secret not in verifier + proof + signature_of(verifier, exchange)


@given(secrets, secrets, names, names, nonces, nonces)
def test_another_token_tenant_or_exchange_proves_nothing(
    secret: bytes, other: bytes, tenant: str, neighbour: str, client: bytes, server: bytes
) -> None:
    assume(secret != other)
    assume(tenant != neighbour)
    verifier, exchange = verifier_of(secret, tenant), exchange_of(tenant, client, server)
    for wrong in (
        proof_of(other, tenant, exchange),
        proof_of(secret, neighbour, exchange),
        proof_of(secret, tenant, exchange_of(tenant, client, server + b"x")),
        proof_of(secret, tenant, exchange_of(tenant, client + b"x", server)),
        proof_of(secret, tenant, exchange_of(neighbour, client, server)),
        verifier[:32],
        verifier[32:],
    ):
        assert not check_proof(verifier, exchange, wrong)
    assert not check_signature(other, tenant, exchange, signature_of(verifier, exchange))
    assert not check_signature(secret, neighbour, exchange, signature_of(verifier, exchange))


@given(secrets, names, nonces, st.binary(max_size=80))
def test_no_other_bytes_are_a_proof_or_a_signature(secret: bytes, tenant: str, nonce: bytes, junk: bytes) -> None:
    verifier, exchange = verifier_of(secret, tenant), exchange_of(tenant, nonce, nonce)
    proof = proof_of(secret, tenant, exchange)
    assume(junk != proof)
    for wrong in (junk, proof[:-1], proof + b"\0", b"", bytes(32)):
        assert not check_proof(verifier, exchange, wrong)
        assert not check_signature(secret, tenant, exchange, wrong)


@given(names, names, nonces, nonces, nonces, nonces)
def test_two_exchanges_never_sign_the_same_message(
    a: str, b: str, one: bytes, two: bytes, three: bytes, four: bytes
) -> None:
    assume((a, one, two) != (b, three, four))
    assert exchange_of(a, one, two) != exchange_of(b, three, four)


@given(secrets)
def test_a_token_is_read_as_it_was_written(secret: bytes) -> None:
    text = format_token(secret)
    assert len(text) == 51
    assert text.startswith("farpool_")
    assert parse_token(text) == secret


@given(st.one_of(st.text(max_size=80), st.binary(), st.none(), secrets.map(lambda secret: format_token(secret)[:-1])))
def test_what_is_no_token_is_refused_and_not_repeated(text: object) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_token(text)
    assert "51 characters" in caught.value.message
    if isinstance(text, str) and len(text) > 30:
        assert text not in caught.value.message


def test_a_token_has_one_text_alone() -> None:
    text = format_token(bytes(TOKEN_BYTES))
    with pytest.raises(InvalidArgument):
        parse_token(text[:-1] + "B")  # other bits that no byte has
