"""Signatures of thinking blocks: clients send them back as they got them. A thought that is not
shown travels in its signature, so that the next prompt can begin with the tokens that are cached.
Plain functions; any thread."""

from __future__ import annotations

import base64
import hashlib
import zlib

_SHOWN, _HIDDEN = "kw1:", "kw1z:"
# A few letters can unpack to gigabytes.
_MOST_BYTES = 1 << 24


def signature_of(thought: str, *, is_hidden: bool) -> str:
    """`is_hidden`: the client is not shown the thought."""
    text = thought.encode()
    if is_hidden:
        return _HIDDEN + base64.b64encode(zlib.compress(text)).decode()
    return _SHOWN + hashlib.blake2b(text, digest_size=16).hexdigest()


def thought_in(signature: str) -> str:
    """The thought that a signature carries; nothing where it is another server's."""
    if not signature.startswith(_HIDDEN):
        return ""
    try:
        packed = base64.b64decode(signature.removeprefix(_HIDDEN), validate=True)
        return zlib.decompressobj().decompress(packed, _MOST_BYTES).decode()
    except (ValueError, zlib.error):
        return ""
