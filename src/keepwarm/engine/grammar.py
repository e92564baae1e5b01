"""Replies that fit a JSON schema, a regular expression or a Lark grammar, by way of llguidance.
No mlx; any thread."""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Callable
from copy import copy
from threading import Lock, Thread, stack_size
from typing import Any

import llguidance
import llguidance.hf
from llguidance.gbnf_to_lark import any_to_lark

from keepwarm.engine.guide import Guide
from keepwarm.engine.request import Grammar, GrammarKind
from keepwarm.engine.schemas import closed
from keepwarm.errors import BadInput

log = logging.getLogger(__name__)

# llguidance follows references with a recursion that uses up to 8 KB a step, and a stack that
# overflows ends the process: references are bounded through the text, the stack is larger.
MAX_TEXT_LEN = 65_536
MAX_COMPOSED_LEN = 1 << 20
_STACK_BYTES = 256 << 20
_STACK_LOCK = Lock()

# Without a bound a model can go on with blanks for ever: one, or a new line with its indentation.
_JSON_OPTIONS: Any = {"whitespace_pattern": r" |\r?\n[ \t]{0,32}"}
_NAMES = {
    GrammarKind.JSON_SCHEMA: "JSON schema",
    GrammarKind.LARK: "Lark or GBNF grammar",
    GrammarKind.REGEX: "regular expression",
}
_MAX_WORDS_LEN = 1000
# Compiled grammars: those of all requests that may wait, so that none is compiled again later.
_NUM_KEPT = 320


def any_object() -> Grammar:
    """Any JSON object."""
    return Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}')


class Guides:
    """Makes guides for one tokenizer; compiled grammars are kept for the next request."""

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer` is mlx-lm's wrapper or the Hugging Face tokenizer itself."""
        self._tokenizer = tokenizer
        self._vocabulary: llguidance.LLTokenizer | None = None
        self._compiled: OrderedDict[tuple[str, GrammarKind, str], llguidance.LLMatcher]
        self._compiled = OrderedDict()
        self._namespace = ""
        self._root = self
        self.num_loosened = 0  # how often a tool could not be bound to its schema
        self._loosened: set[tuple[str, str]] = set()
        self._lock = Lock()
        self._vocabulary_lock = Lock()

    def within(self, namespace: str) -> Guides:
        """These, for one namespace: how long a grammar takes tells nothing of others' grammars."""
        if namespace == self._namespace:
            return self
        twin = copy(self)
        twin._namespace = namespace
        return twin

    def check(self, grammar: Grammar) -> None:
        """Raises BadInput, in llguidance's words, for a grammar that is wrong or not supported.
        Compiling may take a while: not for the engine thread, where `guide` then finds it done."""
        self._matcher(grammar)

    def literal(self, tag: str) -> str:
        """A tag of the model's markup as a Lark grammar must name it: tokens that llguidance holds
        for special have no text there. It goes by their look, not by what the tokenizer says."""
        added: dict[int, Any] = getattr(self._tokenizer, "added_tokens_decoder", {})
        token = next((i for i, text in added.items() if str(text) == tag), None)
        is_special = token is not None and self._read_vocabulary().is_special_token(token)
        return f"<[{token}]>" if is_special else json.dumps(tag)

    def guide(self, grammar: Grammar) -> Guide:
        """A guide for one sequence. Raises as `check` does."""
        return Guide(self._matcher(grammar), self._read_vocabulary(), grammar)

    def loosen(self, tool: str, why: str) -> None:
        """Takes note of a tool whose arguments no grammar can express. Mutates."""
        self._root.num_loosened += 1
        with self._lock:
            is_new = (tool, why) not in self._loosened
            self._loosened.add((tool, why))
        if is_new:
            log.warning("the tool %s may be called with any arguments: %s", tool, why)

    def _matcher(self, grammar: Grammar) -> llguidance.LLMatcher:
        """A copy of the compiled grammar, in its first state."""
        key = (self._namespace, grammar.kind, grammar.text)
        with self._lock:
            compiled = self._compiled.get(key)
        if compiled is None:
            # Outside of the lock: nobody waits for somebody else's grammar.
            compiled = _compile(grammar, self._read_vocabulary())
        with self._lock:
            self._compiled[key] = compiled
            self._compiled.move_to_end(key)
            while len(self._compiled) > _NUM_KEPT:
                self._compiled.popitem(last=False)
            return compiled.deep_copy()

    def _read_vocabulary(self) -> llguidance.LLTokenizer:
        root = self._root  # which all namespaces share
        with self._vocabulary_lock:
            if root._vocabulary is None:
                root._vocabulary = _read_vocabulary(self._tokenizer)
            return root._vocabulary


def _read_vocabulary(tokenizer: Any) -> llguidance.LLTokenizer:
    from transformers import PreTrainedTokenizerBase

    is_bare = isinstance(tokenizer, PreTrainedTokenizerBase)
    inner = tokenizer if is_bare else tokenizer._tokenizer
    eos_ids = {inner.eos_token_id} if is_bare else set(tokenizer.eos_token_ids)
    if not eos_ids - {None}:
        raise BadInput("a grammar needs a tokenizer that has an end-of-text token")
    try:
        return llguidance.hf.from_tokenizer(inner, eos_token=sorted(eos_ids))
    except ValueError as error:
        raise BadInput(f"grammars do not work with this model's tokenizer: {error}") from error


def _source(grammar: Grammar) -> str:
    """What llguidance reads. Raises BadInput."""
    make = llguidance.LLMatcher
    try:
        if grammar.kind is GrammarKind.LARK:
            text = grammar.text if grammar.is_composed else _as_lark(grammar.text)
            return make.grammar_from_lark(text)
        if grammar.kind is GrammarKind.REGEX:
            return make.grammar_from_regex(grammar.text)
        text = json.dumps(closed(json.loads(grammar.text)), allow_nan=False)
        # `true` takes no options; the rest that is no object is refused when it is compiled.
        options = _JSON_OPTIONS if text.startswith("{") else None
        return make.grammar_from_json_schema(text, defaults=options)
    except (ValueError, RecursionError) as error:  # no JSON, or not even text
        raise BadInput(f"the {_NAMES[grammar.kind]} cannot be read: {error}") from error


def _as_lark(text: str) -> str:
    """Of a grammar that is Lark or GBNF. Raises ValueError."""
    try:
        return any_to_lark(text) if text else text  # which llguidance itself refuses best
    except Exception as error:  # the converter raises bare ones
        raise ValueError(str(error)) from error


def _compile(grammar: Grammar, vocabulary: llguidance.LLTokenizer) -> llguidance.LLMatcher:
    most = MAX_COMPOSED_LEN if grammar.is_composed else MAX_TEXT_LEN
    if len(grammar.text) > most:
        raise BadInput(f"the grammar has {len(grammar.text)} characters, at most {most} are taken")
    source = _source(grammar)
    limits = llguidance.LLParserLimits(verbose_errors=False)
    matcher = _on_a_large_stack(
        lambda: llguidance.LLMatcher(vocabulary, source, log_level=0, limits=limits)
    )
    if not matcher.is_error():
        matcher.compute_bitmask()  # only now fails what refers to nothing but itself
    if matcher.is_error():
        words = matcher.get_error().strip()
        if len(words) > _MAX_WORDS_LEN:  # they quote the grammar
            words = f"{words[: _MAX_WORDS_LEN // 2]} … {words[-_MAX_WORDS_LEN // 2 :]}"
        raise BadInput(f"the {_NAMES[grammar.kind]} cannot be used: {words}")
    return matcher


def _on_a_large_stack(build: Callable[[], llguidance.LLMatcher]) -> llguidance.LLMatcher:
    built: list[llguidance.LLMatcher] = []
    with _STACK_LOCK:  # the size holds for whatever thread starts next
        before = stack_size(_STACK_BYTES)
        try:
            thread = Thread(target=lambda: built.append(build()), name="keepwarm-grammar")
            thread.start()
        finally:
            stack_size(before)
    thread.join()
    if not built:
        raise BadInput("the grammar cannot be used: it could not be compiled")
    return built[0]
