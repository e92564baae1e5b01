"""A server whose model computes and whose replies a script writes: small random weights, a long
context, the chat template of a real model and its call syntax."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper, _infer_tool_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from keepwarm import Placement, PrefixCache
from keepwarm.config import Config
from keepwarm.engine.engine import Engine
from keepwarm.prompt.boundaries import Prompt
from keepwarm.prompt.harmony import is_harmony
from keepwarm.prompt.parse import opens_thought
from tests.architectures.zoo import ARCHITECTURES
from tests.prompt import tokenizers_for_tests
from tests.prompt.tokenizers_for_tests import SHARED_TEMPLATES
from tests.server.scripted import Begun, follow
from tests.server.serving import listening

CONTEXT_LEN = 65_536
MODEL_NAME = "tiny-random"
_CORPUS = ("docs/*.md", "src/keepwarm/*/*.py")
_VOCAB_SIZE = 6000
_ENDS = ("</s>", "<|im_end|>", "<|eot_id|>", "<|return|>", "<|call|>")
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Say:
    """A reply: what the model is to write, in whatever syntax its template has."""

    text: str = ""
    thought: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()


# A thought, and then what the model itself says.
THINKS = Say(thought="Hm.")


@dataclass
class Exchanged:
    """One request and what came of it."""

    method: str
    path: str
    status: int
    asked: Any
    told: bytes = b""

    @property
    def keepwarm(self) -> dict[str, Any]:
        """What the answer said of the cache."""
        text = self.told.decode()
        at = text.index("{", text.rindex('"keepwarm":'))
        found: dict[str, Any] = json.JSONDecoder().raw_decode(text[at:])[0]
        return found


@dataclass
class Rig:
    """A running server, what was asked of it, and what it answers next."""

    url: str
    engine: Engine
    exchanges: list[Exchanged]
    prompts: list[Prompt]
    script: Callable[[str], Say | None] = field(default=lambda _: None)

    def begin(self) -> None:
        """Forgets what was asked before."""
        self.exchanges.clear()
        self.prompts.clear()

    @property
    def turns(self) -> list[Exchanged]:
        """The requests that a model answered."""
        return [
            e
            for e in self.exchanges
            if e.path.endswith(("/messages", "/responses", "/completions")) and e.status == 200
        ]


@contextmanager
def rig(template: str, architecture: str = "llama", **settings: Any) -> Iterator[Rig]:
    """A server of a small model of `architecture` with the shared `template`."""
    tokenizer = wrapped(template)
    config = Config(
        model=MODEL_NAME, context_len=CONTEXT_LEN, keep_alive_s=1.0, max_tokens=4096, **settings
    )

    def load() -> tuple[Any, Any]:
        made = ARCHITECTURES[architecture]
        few = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
        long = {"vocab_size": len(tokenizer), "max_position_embeddings": CONTEXT_LEN}
        return replace(
            made, config={**(few if architecture == "llama" else {}), **made.config, **long}
        ).build(mx.float32), tokenizer

    def make_cache(model: Any) -> PrefixCache:
        return PrefixCache(model, budget_bytes=4 * 10**9, placement=Placement(min_span=64))

    engine = Engine(load, make_cache=make_cache, settings=config.engine_settings())
    exchanges: list[Exchanged] = []
    with listening(engine, config, wrap=lambda app: Recorder(app, exchanges)) as url:
        engine.start()
        assert engine.wait_ready(60)
        running = Rig(url, engine, exchanges, [])

        def write(prompt: Prompt) -> str | None:
            running.prompts.append(prompt)
            said = running.script(tokenizer.decode(prompt.tokens.tolist()))
            return begun(tokenizer, prompt) if said is THINKS else written(tokenizer, said)

        follow(engine, write)
        try:
            yield running
        finally:
            engine.stop()


@cache
def wrapped(template: str) -> TokenizerWrapper:
    """mlx-lm's wrapper, which finds the call syntax by the template as it does for a folder."""
    from importlib import import_module

    text = (SHARED_TEMPLATES / f"{template}.jinja").read_text(encoding="utf-8")
    inner = tokenizers_for_tests.make_tokenizer(
        text, extra_tokens=("<think>", "</think>"), trained=_trained()
    )
    name = _infer_tool_parser(inner)
    module = import_module(f"mlx_lm.tool_parsers.{name}") if name else None
    facts = (
        {
            "tool_parser": module.parse_tool_call,
            "tool_call_start": module.tool_call_start,
            "tool_call_end": module.tool_call_end,
        }
        if module
        else {}
    )
    ids = inner.get_vocab()
    ends = [ids[end] for end in _ENDS if end in ids]
    return TokenizerWrapper(inner, eos_token_ids=ends, **facts)


@cache
def _trained() -> str:
    """A byte-level vocabulary made of this project's own text: some three letters a token."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(tokenizers_for_tests._SPLIT), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCAB_SIZE, initial_alphabet=alphabet, show_progress=False, min_frequency=2
    )
    files = [file for pattern in _CORPUS for file in sorted(ROOT.glob(pattern))]
    tokenizer.train_from_iterator((file.read_text(encoding="utf-8") for file in files), trainer)
    return str(tokenizer.to_str())


def written(tokenizer: Any, said: Say | None) -> str | None:
    """A reply as the model would write it: what the template makes of it behind the prompt."""
    if said is None:
        return None
    user = {"role": "user", "content": "x"}
    message: dict[str, Any] = {"role": "assistant", "content": said.text}
    if said.thought:
        message |= {"reasoning_content": said.thought, "thinking": said.thought}
    if said.calls:
        message["tool_calls"] = [
            {
                "id": f"call0000{i}",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for i, (name, arguments) in enumerate(said.calls)
        ]
    prompt = tokenizer.apply_chat_template([user], tokenize=False, add_generation_prompt=True)
    whole = tokenizer.apply_chat_template([user, message], tokenize=False)
    opening = prompt
    while not whole.startswith(opening):  # a thought that the prompt opens and the past drops
        opening = opening[:-1]
    return str(whole[len(opening) :].removesuffix("\n"))


def begun(tokenizer: Any, prompt: Prompt) -> str | None:
    """A thought where the prompt has opened one, or the model writes one first."""
    if opens_thought(tokenizer, prompt):
        return Begun(f"Hm.\n{tokenizer.think_end}\n\n")
    if not is_harmony(tokenizer):
        return None
    text = written(tokenizer, Say("X", thought="Hm."))
    assert text is not None
    return Begun(text[: text.index("assistant") + len("assistant")])


class Recorder:
    """Keeps what goes in and comes out. ASGI."""

    def __init__(self, app: ASGIApp, exchanges: list[Exchanged]) -> None:
        self._app = app
        self._exchanges = exchanges

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, told = bytearray(), Exchanged(scope.get("method", ""), scope.get("path", ""), 0, None)
        self._exchanges.append(told)

        async def heard() -> Message:
            message = await receive()
            body.extend(message.get("body", b""))
            if body and not message.get("more_body"):
                told.asked = json.loads(body)
            return message

        async def said(message: Message) -> None:
            if message["type"] == "http.response.start":
                told.status = message["status"]
            told.told += message.get("body", b"")
            await send(message)

        await self._app(scope, heard, said)
