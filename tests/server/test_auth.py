"""Keys: who may ask, and whose cache is whose."""

from __future__ import annotations

import pytest

from keepwarm.server.auth import Keys
from keepwarm.server.errors import ApiError


def test_without_keys_all_may_ask_and_share() -> None:
    keys = Keys([])
    assert not keys
    assert keys.namespace(None) == keys.namespace("Bearer anything") == ""


def test_each_key_has_a_namespace_that_does_not_tell_it() -> None:
    keys = Keys(["alpha", "beta"])
    alpha, beta = keys.namespace("Bearer alpha"), keys.namespace("bearer  beta")
    assert alpha != beta
    assert alpha == keys.namespace(None, "alpha")
    assert "alpha" not in alpha


def test_shared_cache_has_one_namespace() -> None:
    keys = Keys(["alpha", "beta"], shares_cache=True)
    assert keys.namespace("Bearer alpha") == keys.namespace("Bearer beta") == ""


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", "Bearer alph", "Bearer alphaa", "Basic alpha", "alpha"],
)
def test_other_keys_are_denied(header: str | None) -> None:
    with pytest.raises(ApiError) as denial:
        Keys(["alpha"]).namespace(header)
    assert denial.value.status_code == 401
    assert denial.value.headers is not None
    assert "Bearer" in denial.value.headers["WWW-Authenticate"]


def test_key_with_odd_bytes_is_only_unknown() -> None:
    with pytest.raises(ApiError, match="not known"):
        Keys(["alpha"]).namespace("Bearer \xff\udc80")
