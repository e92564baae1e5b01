"""Thoughts that travel in signatures."""

from __future__ import annotations

import base64
import zlib

from keepwarm.server.protocols.messages.signature import signature_of, thought_in


def test_hidden_thought_comes_back() -> None:
    thought = " ".join(f"In step {i} the sum is {i * i}." for i in range(2000))
    assert thought_in(signature_of(thought, is_hidden=True)) == thought
    assert thought_in(signature_of("", is_hidden=True)) == ""


def test_few_letters_do_not_unpack_to_megabytes() -> None:
    packed = base64.b64encode(zlib.compress(b"a" * (1 << 24))).decode()
    assert len(packed) < 1 << 15
    assert thought_in(f"kw1z:{packed}") == ""
