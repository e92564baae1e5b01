"""Signatures of thinking blocks: clients send them back as they got them. A thought that is not
shown travels in its signature, so that the next prompt can begin with the tokens that are cached.
Plain functions; any thread."""

from __future__ import annotations

import base64
import hashlib
import zlib

_SHOWN, _HIDDEN = "kw1:", "kw1z:"
# A few letters can unpack to gigabytes: text is packed to a third, and a thought that goes round in
# circles to less. One that is packed more than this is not given back.
_MOST_BYTES, _MOST_RATIO, _LEAST_BYTES = 1 << 24, 16, 1 << 10


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
        unpacker = zlib.decompressobj()
        most = min(_MOST_BYTES, max(_LEAST_BYTES, _MOST_RATIO * len(packed)))
        text = unpacker.decompress(packed, most)
        return "" if unpacker.unconsumed_tail else text.decode()
    except (ValueError, zlib.error):
        return ""
