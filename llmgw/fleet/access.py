"""`Access`: who may ask a gateway for what. A value beside the `EndpointTable`, versioned and swapped whole like it.

It is not part of the table, since the two change for different reasons: a key that is made should not have every gateway take
up a table of a thousand endpoints, and a replica that becomes ready should not have ten thousand keys sent again. What a
tenant may ask for travels as the patterns that its file has, and each gateway matches them against its own table: so a new
model is allowed the moment it is routed to, also where a router adds endpoints that the control plane does not know.

It holds hashes only. A key's secret has 256 bits of chance, so one round of SHA-256 is enough: what makes the slow hashes for
passwords necessary is that people choose passwords which can be tried one after the other, and a slow hash on the way of every
request would be the cheapest attack on the gateway.
"""

import hashlib
from dataclasses import dataclass

from llmgw.base.time import Instant

PREFIX = "sk-llmgw-"
"""How every credential begins: scanners for leaked secrets find it by that."""


@dataclass(frozen=True, slots=True)
class KnownKey:
    """A key as a gateway knows it. One that is revoked is not there at all."""

    id: str
    hash: str
    tenant: str
    """Empty for a key of an administrator, which no tenant's models go with."""
    expires: Instant | None = None


@dataclass(frozen=True, slots=True)
class TenantRight:
    """What a tenant may ask for: patterns of the names and aliases of models."""

    name: str
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Access:
    """All of it. Whatever has none yet lets nobody in."""

    version: int
    required: bool
    """Whether a key is needed; if not, everybody may ask for everything."""
    keys: tuple[KnownKey, ...] = ()
    tenants: tuple[TenantRight, ...] = ()


OPEN = Access(0, required=False)


def hash_of(secret: str) -> str:
    """Return what is kept of a secret, in hexadecimal digits."""
    return hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()


def credential_of(key: str, secret: str) -> str:
    """Return what a client presents for a key; the id has no dash in it."""
    return f"{PREFIX}{key}-{secret}"


def taken_apart(credential: str) -> tuple[str, str]:
    """Return (id, secret) of what a client presents; the id is empty where it is no key of llmgw's own."""
    if not credential.startswith(PREFIX):
        return "", credential
    key, _, secret = credential[len(PREFIX) :].partition("-")
    return key, secret
