"""The one model whose states a cache holds. The thread that owns the arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keepwarm.errors import BadInput
from keepwarm.model.caches import CacheMaker
from keepwarm.model.identity import Weights


class Owner:
    """The model that fills a cache, and its weights when the first state was stored.

    States of other weights restore without any error and give wrong tokens: so they are refused.
    """

    def __init__(self, make_caches: Callable[[], list[Any]] | None) -> None:
        """A cache that was made with a function of the caller's belongs to whoever fills it."""
        self._given = make_caches.model if isinstance(make_caches, CacheMaker) else None
        self._model: Any = self._given
        self._weights: Weights | None = None

    @property
    def model(self) -> Any:
        """None where none is known yet."""
        return self._model

    def bind(self, model: Any) -> None:
        """Take this model where none is known yet. Raises BadInput for another one."""
        if self._model is None:
            self._model = model
        elif model is not self._model:
            raise BadInput(
                "this cache belongs to another model object: a state that one model computed"
                " means nothing to another, so make a PrefixCache for each"
            )

    def check_weights(self, *, is_empty: bool) -> bool:
        """Whether the weights are new to a cache that `is_empty`. Raises BadInput when states of
        other weights are held."""
        if self._model is None:
            return False
        if self._weights is not None and self._weights.are_in(self._model):
            return False
        if self._weights is not None and not is_empty:
            raise BadInput(
                "the model's weights have changed since this cache was filled: its states are"
                " those of the old ones, so call clear() on the cache first"
            )
        self._weights = Weights(self._model)
        return True

    def forget(self) -> None:
        """Nothing is held any more: other weights may come. Mutates."""
        self._model, self._weights = self._given, None
