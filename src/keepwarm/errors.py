"""The exception tree.

    KeepwarmError
    ├── BadInput        the caller passed something that cannot be meant
    │   ├── RenderError     a chat template refused these messages
    │   ├── TooLong         the prompt and the reply do not fit the model's context
    │   └── TooLarge        the request needs more memory than there is at all
    ├── Abandoned       nobody waits for the answer any more
    ├── Unavailable     not now: the engine is full, stopping or stopped
    │   └── Overloaded      the queue is full; says when to try again
    └── CacheFault      something in the cache does not hold; the request is served cold
        └── Corrupt     an invariant is broken (raised by `check()` only)

A `CacheFault` never reaches a user's request: the store turns it into a miss with a reason.
"""


def cause_of(error: Exception) -> str:
    """Why a file could not be used, without the numbers that Python puts around it."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class KeepwarmError(Exception):
    """The base of everything keepwarm raises on purpose."""


class BadInput(KeepwarmError, ValueError):
    """The caller passed something that cannot be meant; the message names it."""


class RenderError(BadInput):
    """A chat template refused these messages; the message carries the template's words."""


class TooLong(BadInput):
    """The prompt and the reply do not fit the model's context."""

    def __init__(self, message: str, *, prompt_len: int, context_len: int) -> None:
        super().__init__(message)
        self.prompt_len = prompt_len
        self.context_len = context_len


class Abandoned(KeepwarmError):
    """Nobody waits for the answer any more, so the work on it ended early."""


class TooLarge(BadInput):
    """The request needs more memory than could ever be free."""


class Unavailable(KeepwarmError):
    """The engine takes no requests now: it is full, stopping or stopped."""


class Overloaded(Unavailable):
    """The queue is full; `retry_after_s` is when to try again."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class CacheFault(KeepwarmError):
    """A stored or live state is not what its place in the tree says."""


class Corrupt(CacheFault):
    """`check()` found an invariant broken."""
