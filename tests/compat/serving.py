"""mlx-lm's own server on a socket of this machine, with a small model and a word tokenizer."""

from __future__ import annotations

import functools
import json
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest import mock

import mlx.core as mx
import mlx_lm.server
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import save_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ..architectures.zoo import ARCHITECTURES
from ..architectures.zoo.base import COMMON, VOCAB_SIZE

TEMPLATE = (
    "{% for m in messages %}{{ '<' + m.role + '> ' + m.content + ' <end> ' }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
_MARKUP = ("<unk>", "<eos>", "<end>", "<system>", "<user>", "<assistant>")
_WORDS = (*_MARKUP, *(f"w{i}" for i in range(len(_MARKUP), VOCAB_SIZE)))


def word_tokenizer() -> Tokenizer:
    """One word, one token."""
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(_WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def text(first: int, count: int) -> str:
    """Words, others for every `first`."""
    names = _WORDS[len(_MARKUP) :]
    return " ".join(names[(first + 7 * i) % len(names)] for i in range(count))


def save_small_model(folder: Path) -> Path:
    """A folder that mlx-lm loads like any other model."""
    llama = ARCHITECTURES["llama"]
    folder.mkdir()
    save_model(folder, llama.build(mx.float32))
    config = {**COMMON, **llama.config, "model_type": "llama", "eos_token_id": 1}
    config = {key: value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    word_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
    settings |= {"unk_token": "<unk>", "eos_token": "<eos>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@dataclass(frozen=True)
class Answer:
    """What the server said, and how much of the prompt it did not have to read."""

    text: str
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True)
class Client:
    """Talks to a server."""

    port: int

    def chat(self, messages: Sequence[dict[str, str]], **options: Any) -> Answer:
        reply = self._post("/v1/chat/completions", messages=list(messages), **options)
        return _answer(reply, reply["choices"][0]["message"]["content"])

    def complete(self, prompt: str) -> Answer:
        reply = self._post("/v1/completions", prompt=prompt)
        return _answer(reply, reply["choices"][0]["text"])

    def _post(self, path: str, **body: Any) -> Any:
        body = {"max_tokens": 8, "temperature": 0, **body}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)


def _answer(reply: dict[str, Any], content: str) -> Answer:
    usage = reply["usage"]
    cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
    return Answer(content, usage["prompt_tokens"], cached_tokens)


def say(*contents: str) -> list[dict[str, str]]:
    """Messages: a system prompt, then user and assistant in turn."""
    roles = ["system", *["user", "assistant"] * len(contents)]
    return [{"role": role, "content": content} for role, content in zip(roles, contents)]


class _Generator(mlx_lm.server.ResponseGenerator):
    """Lets go of its streams when its thread ends: mlx on the CPU may abort the process at exit
    when a thread that computed something ended without that."""

    def _run_generate(self) -> None:
        super()._run_generate()
        mx.clear_streams()


class _Handler(mlx_lm.server.APIHandler):
    def log_message(self, *_: Any) -> None:
        """Nothing: a test has no use for a line for each request."""


@contextmanager
def served(architecture: str, cache: Any, *flags: str) -> Iterator[Client]:
    """mlx-lm's server with that prompt cache, started as its command line would."""
    provider = _provider(flags)
    with mock.patch.object(mlx_lm.server, "load", _loader(architecture)):
        generator = _Generator(provider, cache)
        httpd = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, generator))
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield Client(httpd.server_address[1])
        finally:
            httpd.shutdown()
            thread.join()
            httpd.server_close()
            generator.stop_and_join()


def _provider(flags: Sequence[str]) -> mlx_lm.server.ModelProvider:
    """What the server's own `main` makes of its flags."""
    found: list[Any] = []
    argv = ["mlx_lm.server", "--model", "small", "--log-level", "WARNING", *flags]
    with (
        mock.patch.object(sys, "argv", argv),
        mock.patch.object(
            mlx_lm.server, "run", lambda host, port, provider: found.append(provider)
        ),
    ):
        mlx_lm.server.main()
    return found[0]


def _loader(architecture: str) -> Callable[..., tuple[Any, Any, dict[str, Any]]]:
    def load(path: str, **_: Any) -> tuple[Any, Any, dict[str, Any]]:
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=word_tokenizer(), unk_token="<unk>", eos_token="<eos>"
        )
        tokenizer.chat_template = TEMPLATE
        model = ARCHITECTURES[architecture].build(mx.float32)
        return model, TokenizerWrapper(tokenizer), {}

    return load
