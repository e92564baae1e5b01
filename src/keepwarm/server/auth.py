"""Who may ask, and whose cache is whose. Plain functions of headers; any thread."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from keepwarm.server.errors import ApiError


class Keys:
    """The keys that open this server; none means that it is open."""

    def __init__(self, keys: Sequence[str], *, shares_cache: bool = False) -> None:
        # Digests have one length, so that comparing them tells nothing of a key's.
        self._digests = [_digest(key) for key in keys]
        self._shares_cache = shares_cache

    def __bool__(self) -> bool:
        return bool(self._digests)

    def namespace(self, authorization: str | None, api_key: str | None = None) -> str:
        """The cache namespace of the caller. Raises ApiError where the key is none of ours."""
        return self.shared_by(self.caller(authorization, api_key))

    def shared_by(self, caller: str) -> str:
        """The cache namespace of a caller."""
        return "" if self._shares_cache else caller

    def caller(self, authorization: str | None, api_key: str | None = None) -> str:
        """Who asks, by `Authorization: Bearer` or `x-api-key`: the key's digest, even where all
        keys share a cache. Raises ApiError where the key is none of ours."""
        if not self._digests:
            return ""
        key = _bearer(authorization) or api_key
        if not key:
            raise _denied("an API key is needed: Authorization: Bearer KEY")
        given = _digest(key)
        # All are compared, whichever fits.
        found = [hmac.compare_digest(given, known) for known in self._digests]
        if not any(found):
            raise _denied("this API key is not known here")
        return given.hex()


def _bearer(authorization: str | None) -> str | None:
    scheme, _, key = (authorization or "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else None


def _digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=16).digest()


def _denied(message: str) -> ApiError:
    headers = {"WWW-Authenticate": 'Bearer realm="keepwarm"'}
    return ApiError(401, message, code="invalid_api_key", headers=headers)
