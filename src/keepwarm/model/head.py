"""What a model says behind the last token of a chunk, and no more: its head, which makes logits of
what the layers give, is a quarter of the work in a small model with a large vocabulary, and mlx-lm's
models run it for all tokens of a chunk. On the thread that owns the arrays.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.quantized import QuantizedEmbedding, QuantizedLinear
from mlx_lm.models.cache import make_prompt_cache

log = logging.getLogger(__name__)

# As many tokens take as long as a pass over few: where products wait for weights, more do.
PASS_LEN = 16
CUDA_PASS_LEN = 128

_LINEAR = (Linear, QuantizedLinear)
_EMBEDDING = (Embedding, QuantizedEmbedding)
_TRIAL_LEN = 4
_MAX_TRIALS = 8
# The same products in another order: 16 bits differ by so much of the largest logit, at most.
_MAX_DEVIATION = 1 / 64

_lock = threading.Lock()  # for trials: engines load their models on threads of their own
_local = threading.local()  # whose head is to look at the last token only


def last_logits(model: Any, tokens: mx.array, caches: Sequence[Any]) -> mx.array:
    """The model reads `tokens` (1, T): its logits behind the last one, (1, vocab). Tries at the
    first call of a model whether its head can be had by itself."""
    head = head_of(model)
    with head.narrowed():
        logits: mx.array = model(tokens, cache=caches)
    if head.module is not None and logits.shape[1] > 1:
        model._keepwarm_head = Head()  # it was replaced since, as by quantizing
    return logits[:, -1, :]


def longest_end(model: Any) -> int:
    """The most tokens that are better read in one pass with the last ones of a prompt. To stop
    before those costs one more pass over the weights, as long as some tokens take, and saves most
    of the last layer for all others: nobody asks what it says of them. 0 without a head."""
    if head_of(model).module is None:
        return 0
    is_cuda = mx.cuda.is_available() and mx.default_device() == mx.gpu
    return (CUDA_PASS_LEN if is_cuda else PASS_LEN) * len(getattr(model, "layers", ()))


@dataclass(slots=True, eq=False)
class Head:
    """The module of a model that makes logits; None where it was not found."""

    module: Any = None

    @contextmanager
    def narrowed(self) -> Iterator[None]:
        """Within, it looks at the last token only, on this thread."""
        before, _local.head = getattr(_local, "head", None), self
        try:
            yield
        finally:
            _local.head = before

    def last(self, x: mx.array) -> mx.array:
        """(B, T, D), or the end of it."""
        return x[:, -1:] if getattr(_local, "head", None) is self and x.ndim == 3 else x

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # a copy of the model finds its own


def head_of(model: Any) -> Head:
    """Found once for a model, by trial. Mutates the class of that module, not its weights."""
    found: Head | None = getattr(model, "_keepwarm_head", None)
    if found is not None:
        return found
    with _lock:
        found = getattr(model, "_keepwarm_head", None)
        if found is None:
            try:
                found = _found(model)
            except Exception as fault:
                log.debug("logits are computed for all tokens of a chunk: %s", fault)
                found = Head()
            model._keepwarm_head = found
    return found


def _found(model: Any) -> Head:
    tokens = mx.arange(_TRIAL_LEN)[None]
    whole = model(tokens, cache=make_prompt_cache(model))
    for part in _candidates(model, whole.shape[-1]):
        plain = type(part)
        head: Head | None = getattr(part, "_keepwarm_head", None)  # of a model that shares it
        is_new = head is None
        if head is None:
            head = part._keepwarm_head = Head(part)
            part.__class__ = _narrowing(plain)
        try:
            with head.narrowed():
                narrow = model(tokens, cache=make_prompt_cache(model))
            if narrow.shape[1] == 1 and _is_near(narrow, whole[:, -1:]):
                return head
        except Exception as fault:  # what follows it had need of the other tokens
            log.debug("not the head: %s", fault)
        if is_new:
            part.__class__ = plain
            del part._keepwarm_head
    raise LookupError("no layer by itself makes logits")


def _candidates(model: Any, vocab_size: int) -> list[Any]:
    """Those with the weights of a vocabulary, or with as many by chance, the outermost first."""
    named = sorted(model.named_modules(), key=lambda item: item[0].count("."))
    known = (*_LINEAR, *_EMBEDDING)
    found = [part for _, part in named if isinstance(part, known)]
    return [part for part in found if part.weight.shape[0] == vocab_size][:_MAX_TRIALS]


def _narrowing(plain: type[Any]) -> type[Any]:
    """That class, looking at the last token only where it is told to. An embedding looks up all,
    also when it is the head as well. A copy is of the plain class."""
    name = "as_linear" if issubclass(plain, _EMBEDDING) else "__call__"
    method = getattr(plain, name)

    def narrowing(self: Any, x: mx.array) -> Any:
        return method(self, self._keepwarm_head.last(x))

    def reduced(self: Any, _: Any) -> Any:
        attributes = {k: v for k, v in self.__dict__.items() if k != "_keepwarm_head"}
        return _made, (plain,), attributes, None, iter(self.items())

    members: dict[str, Any] = {
        name: narrowing,
        "__reduce_ex__": reduced,
        "__module__": plain.__module__,
    }
    return type(plain.__name__, (plain,), members)


def _made(plain: type[dict[str, Any]]) -> Any:
    """Empty: modules are dicts."""
    return dict.__new__(plain)


def _is_near(one: mx.array, other: mx.array) -> bool:
    """Where both forbid a token, they agree."""
    one, other = one.astype(mx.float32), other.astype(mx.float32)
    difference = mx.where(one == other, 0, mx.abs(one - other))
    largest = mx.where(mx.isfinite(other), mx.abs(other), 0).max()
    return bool(difference.max() <= _MAX_DEVIATION * largest)
