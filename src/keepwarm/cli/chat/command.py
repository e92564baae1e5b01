"""`keepwarm chat [MODEL]`: its flags and what they make. What takes long to import is imported
when it is needed, so that --help and mistakes are answered at once."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

from keepwarm.cli.choice import chosen
from keepwarm.cli.flags import add_flags, config_of
from keepwarm.cli.running import running_engine
from keepwarm.config import Config
from keepwarm.errors import BadInput
from keepwarm.model.names import shown_name

if TYPE_CHECKING:
    from keepwarm.cli.chat.conversation import Conversation
    from keepwarm.engine.engine import Engine

_EXAMPLES = """\
examples:
  keepwarm chat
  keepwarm chat --system "You are a pirate." --temp 0.7
  keepwarm chat mlx-community/Qwen3-0.6B-4bit --no-thinking
  echo "Anna lives in Lund. Where does Anna live?" | keepwarm chat
  keepwarm chat < question.txt > answer.txt

In the chat /help shows the commands. The line below each answer says how much of the prompt came from
the cache, how much was read, and when the first token came. While you type, the conversation so far
is read ahead. If the input is a file or a pipe, all of it is one question and only the answer is
written; the exit status is 0 if there is one.

Flags can also be set in the environment (KEEPWARM_MAX_TOKENS for --max-tokens) or in the file given
with --config, as for keepwarm serve.
"""

_TITLES = {
    "model": "the model",
    "cache": "the prefix cache",
    "engine": "memory",
    "replies": "replies",
}
_NOT_HERE = ("served-name", "decode", "max-running", "max-queue", "max-stall-ms")


def add_to(commands: Any) -> None:
    """Adds the command. Mutates."""
    parser = commands.add_parser(
        "chat",
        usage="keepwarm chat [MODEL] [options]",
        help="talk to a model in this terminal",
        description="Talk to a model in this terminal. Without a name that is sprout, a small"
        " built-in model; nothing is downloaded.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--system", metavar="TEXT", help="the system prompt")
    parser.add_argument(
        "--thinking",
        action=argparse.BooleanOptionalAction,
        help="let the model think before it answers, or not, if its chat template has that choice",
    )
    add_flags(parser, titles=_TITLES, without=_NOT_HERE)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Talks until the person leaves, or answers what is piped in. Returns the exit status; raises
    BadInput."""
    config = chosen(config_of(args))
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    is_terminal = _is_terminal(sys.stdin) and _is_terminal(sys.stdout)
    question = "" if is_terminal else _question()
    with running_engine(config) as engine:
        conversation = _conversation(engine, config, args.system, args.thinking)
        if is_terminal:
            return _talk(conversation, config)
        return _answer(conversation, question)


def _is_terminal(stream: TextIO | None) -> bool:
    """A stream that was closed before Python began is None."""
    return stream is not None and not stream.closed and stream.isatty()


def _question() -> str:
    if _is_terminal(sys.stdin):
        print("keepwarm: the question is read until Ctrl-D", file=sys.stderr)
    try:
        question = "" if sys.stdin is None or sys.stdin.closed else sys.stdin.read().strip()
        question.encode()  # under some locales Python lets pass what it cannot decode
    except UnicodeError as error:
        raise BadInput("the question is not text in UTF-8; convert it first") from error
    except OSError as error:
        raise BadInput(f"cannot read the question: {error}") from error
    if not question:
        raise BadInput(
            "there is no question: the input is empty; pipe one in, or run this in a terminal"
        )
    return question


def _conversation(
    engine: Engine, config: Config, system: str | None, is_thinking: bool | None
) -> Conversation:
    from keepwarm.cli.chat.conversation import Conversation
    from keepwarm.prompt.template import trouble_with

    trouble = trouble_with(engine.tokenizer)
    if trouble is not None:
        raise BadInput(f"no chat with {config.model}: {trouble}; --chat-template FILE gives one")
    wanted = {} if is_thinking is None else {"enable_thinking": is_thinking}
    return Conversation(
        engine,
        max_tokens=config.default_reply_len,
        sampling=config.sampling(engine.own_sampling),
        system=system,
        template_kwargs=config.template_kwargs() | wanted,
        hygiene_off=config.hygiene_off,
        thinking_budget=config.thinking_budget,
    )


def _talk(conversation: Conversation, config: Config) -> int:
    from keepwarm.cli.chat.lines import line_editing
    from keepwarm.cli.chat.loop import Loop
    from keepwarm.cli.chat.screen import Screen

    screen, name = Screen(), shown_name(config.model)
    screen.greet(name, conversation.engine.status())
    with line_editing():
        Loop(conversation, screen, name).run()
    return 0


def _answer(conversation: Conversation, question: str) -> int:
    """Only the answer goes to the standard output."""
    from keepwarm.prompt.reply import Said

    turn = conversation.ask(question)
    try:
        for event in turn.events():
            if isinstance(event, Said):
                print(event.text, end="", flush=True)
        print(flush=True)
    except BrokenPipeError:
        # Who read the answer has had enough. Python would complain again at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if not turn.reply.content:
        print("keepwarm: the reply ended before it said anything", file=sys.stderr)
        return 1
    return 0
