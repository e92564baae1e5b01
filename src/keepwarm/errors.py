"""The exception tree.

    KeepwarmError
    ├── BadInput        the caller passed something that cannot be meant
    ├── RenderError     a chat template refused these messages
    └── CacheFault      something in the cache does not hold; the request is served cold
        └── Corrupt     an invariant is broken (raised by `check()` only)

A `CacheFault` never reaches a user's request: the store turns it into a miss with a reason.
"""


class KeepwarmError(Exception):
    """The base of everything keepwarm raises on purpose."""


class BadInput(KeepwarmError, ValueError):
    """The caller passed something that cannot be meant; the message names it."""


class RenderError(BadInput):
    """A chat template refused these messages; the message carries the template's words."""


class CacheFault(KeepwarmError):
    """A stored or live state is not what its place in the tree says."""


class Corrupt(CacheFault):
    """`check()` found an invariant broken."""
