"""Which tokens may come next in one sequence. No mlx; engine thread."""

from __future__ import annotations

import logging

import llguidance
import numpy as np
from numpy.typing import NDArray

from keepwarm.engine.request import Grammar

log = logging.getLogger(__name__)


class Guide:
    """A grammar at one place of one reply. Never raises: where llguidance fails, only the end is
    allowed, or everything where the grammar binds calls alone."""

    def __init__(
        self, matcher: llguidance.LLMatcher, vocabulary: llguidance.LLTokenizer, grammar: Grammar
    ) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._eos_ids = list(vocabulary.eos_tokens)
        self._is_over = False
        self._opens = grammar.opens.encode()
        self._hides = [(start.encode(), end.encode()) for start, end in grammar.hides]
        self._until = grammar.after.encode()  # nothing opens, and nothing binds, before it
        self._tail = b""  # of the text while nothing binds
        self.is_binding = not (self._until or self._opens)

    def mask(self, vocab_size: int) -> NDArray[np.bool_] | None:
        """Whether each of the model's tokens may come next; None where all may."""
        if not self.is_binding:
            return None
        allowed = np.zeros(vocab_size, dtype=bool)  # ids that no text has stay forbidden
        if not self._is_over:
            self._fill(allowed)
        return self._ended(allowed)

    def _ended(self, allowed: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
        """As it is, unless the grammar is over or has failed."""
        if self._is_over:
            allowed[:] = False
            allowed[[token for token in self._eos_ids if token < len(allowed)]] = True
        return allowed if self.is_binding else None

    def accept(self, token: int) -> None:
        """Mutates: `token` came next."""
        try:
            if not self.is_binding:
                self._look_for_start(token)
            elif self._opens:
                self._go_on_with_call(token)
            elif token in self._eos_ids:
                self._is_over = True
            elif not self._is_over and not self._matcher.consume_token(token):
                self._give_up(self._matcher.get_error())
        except Exception as error:
            self._give_up(repr(error))

    def _fill(self, allowed: NDArray[np.bool_]) -> None:
        try:
            packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
            num_known = min(self._vocabulary.vocab_size, len(allowed))
            allowed[:num_known] = np.unpackbits(packed, count=num_known, bitorder="little")
            if self._matcher.is_error() or not allowed.any():
                self._give_up(self._matcher.get_error() or "no token of the model fits")
        except Exception as error:
            self._give_up(repr(error))

    def _go_on_with_call(self, token: int) -> None:
        if not self._matcher.consume_token(token):
            self._give_up(self._matcher.get_error())
        elif self._matcher.is_accepting():
            self._set_free()

    def _set_free(self) -> None:
        """A call has ended, and another may open."""
        self._matcher.reset()
        self.is_binding, self._tail = False, b""

    def _look_for_start(self, token: int) -> None:
        self._tail += self._vocabulary.decode_bytes([token])
        while True:
            wanted = [self._until] if self._until else [self._opens, *(s for s, _ in self._hides)]
            found = [(at, text) for text in wanted if (at := self._tail.find(text)) >= 0]
            if not found:
                self._tail = self._tail[-max(map(len, wanted)) :]
                return
            at, text = min(found)
            self._tail = self._tail[at + len(text) :]
            if self._until:
                self._until = b""
                if not self._opens:
                    self._bind(self._tail.lstrip())
                    return
            elif text == self._opens:
                self._bind(self._tail)
                return
            else:
                self._until = dict(self._hides)[text]

    def _bind(self, begun: bytes) -> None:
        """The token that ends the thought, or opens a call, may already hold what follows."""
        self.is_binding, self._tail = True, b""
        if begun:
            tokens = self._vocabulary.tokenize_bytes(begun)
            if self._matcher.validate_tokens(tokens) == len(tokens):
                self._matcher.consume_tokens(tokens)

    def _give_up(self, why: str) -> None:
        if self._opens:
            log.warning("a grammar failed, this call is not bound by it: %s", why)
            self._set_free()
            return
        self._is_over = self.is_binding = True
        log.warning("a grammar failed, the reply ends here: %s", why)
