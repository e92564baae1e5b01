"""One server, one client, and all that passes between them. Main thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from keepwarm.bench import words
from keepwarm.bench.bound import Seen
from keepwarm.bench.client import Answer, Client, Message
from keepwarm.bench.script import Script
from keepwarm.bench.shapes import SHAPES
from keepwarm.bench.workers import System, Worker

# All that is chosen by the environment, so that nothing comes from that of the caller.
_ENV = {"KEEPWARM_KERNELS": "keepwarm", "KEEPWARM_BLAS": "auto"}
OURS = System("keepwarm", "", _ENV)
# The same cache with the kernels of the other side, so that the two can be told apart.
SAME_KERNELS = System(
    "keepwarm",
    "mlx-lm's kernels",
    _ENV | {"KEEPWARM_KERNELS": "mlx-lm"},
    {"config": {"kernels": "mlx-lm"}},
)
THEIRS = System("mlx-lm", "", _ENV | {"KEEPWARM_KERNELS": "mlx-lm"})


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run, on what."""

    model: str
    num_rounds: int
    has_peer: bool = True
    is_one_at_a_time: bool = False  # where two models do not fit
    options: Mapping[str, Any] = field(default_factory=dict)  # of the scenario, by name


# One server


class Side:
    """A server that runs, and a client for it. A context manager."""

    def __init__(self, system: System, job: Mapping[str, Any]) -> None:
        self.system = system
        self._worker = Worker(system, job, module="keepwarm.bench.serving")
        self.portrait: dict[str, Any] = {}
        self.client = Client(0)
        self.is_warm = False  # has answered something already

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process."""
        self._worker.close()

    def wait_ready(self) -> None:
        """Until the model is loaded. Raises WorkerFailed."""
        self.portrait = self._worker.hear()
        self.client = Client(self.portrait["port"])

    def play(self, script: Script) -> None:
        """What the model says from now on."""
        self._do("play", **asdict(script))

    def settle(self) -> None:
        """Until it has nothing more to do."""
        self._do("settle")

    def forget(self) -> None:
        """Empties its cache. Nothing may be running."""
        self._do("forget")

    def figures(self) -> dict[str, Any]:
        """What it holds, and what its model has read since it began."""
        return self._do("figures")

    def _do(self, act: str, **more: Any) -> dict[str, Any]:
        return self._worker.ask({"do": act, **more})


# What is written down


@dataclass(slots=True)
class Exchange:
    """One request and its answer."""

    answer: Answer
    max_cached_tokens: int


@dataclass(slots=True)
class Round:
    """One case in one round."""

    exchanges: list[Exchange] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)


class Talk:
    """Asks one server, and writes down what came. One round."""

    def __init__(self, side: Side, plan: Plan, tokenizer: Any) -> None:
        self.side = side
        self.plan = plan
        self.tokenizer = tokenizer
        self.script = Script()
        self.rounds: dict[str, Round] = {}
        self._seen = Seen()
        self._case = ""

    @contextmanager
    def case(self, name: str) -> Iterator[None]:
        """What is asked within is one row, and begins with an empty cache."""
        self.side.settle()
        self.side.forget()
        self._seen = Seen()
        with self.part(name):
            yield

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What is asked within is one row, and goes on with what is there."""
        self._case = name
        found = self.rounds.setdefault(name, Round())
        before = self.side.figures()
        try:
            yield
        except BaseException:
            del self.rounds[name]  # half of it would pass for all
            raise
        self.side.settle()
        after = self.side.figures()
        if after["read_tokens"] is not None:
            found.notes["read_tokens"] = after["read_tokens"] - before["read_tokens"]
        found.notes["held_bytes"] = after["held_bytes"]
        found.notes["active_bytes"] = after["active_bytes"]
        for key in ("idle_tokens", "idle_s"):
            if key in after:
                found.notes[key] = after[key] - before[key]

    def play(self, script: Script) -> None:
        """What the model says from now on."""
        self.script = script
        self.side.play(script)

    def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        max_tokens: int = 512,
        **template_args: Any,
    ) -> Answer:
        """One request, written down. Raises NoAnswer."""
        prompt = self.render(messages, tools, **template_args)
        more = {"chat_template_kwargs": template_args} if template_args else {}
        answer = self.side.client.chat(messages, max_tokens=max_tokens, tools=tools, **more)
        return self.write_down(prompt, answer)

    def complete(self, prompt: str, *, max_tokens: int = 32) -> Answer:
        """One request, written down. Raises NoAnswer."""
        answer = self.side.client.complete(prompt, max_tokens=max_tokens)
        return self.write_down(words.ids(self.tokenizer, prompt), answer)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        **template_args: Any,
    ) -> list[int]:
        """The tokens of a request, as both servers make them."""
        found: list[int] = self.tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tools=list(tools) or None,
            add_generation_prompt=True,
            **template_args,
        )
        return found

    def write_down(self, prompt: Sequence[int], answer: Answer) -> Answer:
        """For what was asked in another way than by `chat`."""
        assert len(prompt) == answer.prompt_tokens or self.plan.model not in SHAPES, (
            f"{self.side.system.name} read {answer.prompt_tokens} tokens, not {len(prompt)}"
        )
        exchange = Exchange(answer, self._seen.max_cached_len(prompt))
        self.rounds[self._case].exchanges.append(exchange)
        self._seen.add(prompt, self._reply(answer))
        return answer

    def note(self, **notes: Any) -> None:
        """More about the present case, for its row."""
        self.rounds[self._case].notes |= notes

    @property
    def exchanges(self) -> list[Exchange]:
        """Of the present case, so far."""
        return self.rounds[self._case].exchanges

    def _reply(self, answer: Answer) -> list[int]:
        if self.plan.model in SHAPES:
            # Its end was said, and most engines have read it by then.
            reply = self.script.reply(self.tokenizer) + words.ids(self.tokenizer, words.END)
            return reply[: answer.reply_tokens]
        thought = f"{answer.thought}\n</think>\n\n" if answer.thought else ""
        return words.ids(self.tokenizer, f"{thought}{answer.content}")
