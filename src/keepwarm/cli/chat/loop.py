"""The loop of a chat: read, answer or obey, until the person leaves. Main thread."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from keepwarm.cli.chat.conversation import Conversation, Turn
from keepwarm.cli.chat.lines import read_message
from keepwarm.cli.chat.screen import Screen
from keepwarm.cli.chat.words import Command, Say, Unknown, meant
from keepwarm.errors import BadInput, KeepwarmError

_CTRL_C_LEAVES = 2  # in a row, with nothing typed between them


class Loop:
    """A person, a conversation and a screen between them."""

    def __init__(
        self,
        conversation: Conversation,
        screen: Screen,
        model_name: str,
        read: Callable[[], str] = read_message,
    ) -> None:
        self._conversation = conversation
        self._screen = screen
        self._model_name = model_name
        self._read = read
        self._num_interrupts = 0
        self._is_over = False

    def run(self) -> None:
        """Until the person leaves. Raises what is no fault of theirs."""
        while not self._is_over:
            try:
                text = self._read()
                self._num_interrupts = 0
            except EOFError:
                self._screen.note("")
                return
            except KeyboardInterrupt:
                self._interrupted()
                continue
            try:
                self._obey(text)
            except KeepwarmError as error:
                self._screen.complain(str(error))

    def _obey(self, text: str) -> None:
        wanted = meant(text)
        match wanted:
            case Say(words):
                self._answer(lambda: self._conversation.ask(words))
            case Command(name, rest):
                getattr(self, f"_do_{name}")(rest)
            case Unknown(name):
                self._screen.complain(
                    f"there is no command /{name}; /help lists them, and //{name} sends it as text"
                )

    def _answer(self, begin: Callable[[], Turn]) -> None:
        turn = begin()
        with self._stopping(turn):
            self._screen.show(turn)

    @contextmanager
    def _stopping(self, turn: Turn) -> Iterator[None]:
        """Ctrl-C ends the answer and nothing else; once more leaves."""

        def stop(_signal: int, _frame: FrameType | None) -> None:
            self._num_interrupts += 1
            if self._num_interrupts >= _CTRL_C_LEAVES:
                self._is_over = True
            turn.stop()

        before = signal.signal(signal.SIGINT, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _interrupted(self) -> None:
        self._num_interrupts += 1
        self._is_over = self._num_interrupts >= _CTRL_C_LEAVES
        self._screen.note("" if self._is_over else "\nCtrl-C again, Ctrl-D or /quit leaves")

    # The commands, by their names

    def _do_help(self, _rest: str) -> None:
        self._screen.help()

    def _do_new(self, _rest: str) -> None:
        self._conversation.begin_anew()
        self._screen.note("a new conversation")

    def _do_retry(self, _rest: str) -> None:
        self._answer(self._conversation.retry)

    def _do_edit(self, rest: str) -> None:
        if not rest:
            raise BadInput("/edit needs the new question: /edit TEXT")
        self._answer(lambda: self._conversation.retry(rest))

    def _do_undo(self, _rest: str) -> None:
        self._screen.note(f"removed: {self._conversation.undo()}")

    def _do_system(self, rest: str) -> None:
        if rest:
            self._conversation.system = rest
            self._conversation.begin_anew()
        self._screen.note(f"system: {self._conversation.system or 'none'}")

    def _do_think(self, rest: str) -> None:
        has_effect = self._conversation.set_thinking(rest.lower())
        known = "" if has_effect else ", but this model's template does not ask"
        self._screen.note(f"thinking is {rest.lower()}{known}")

    def _do_stats(self, _rest: str) -> None:
        self._screen.stats(self._conversation.totals, self._conversation.engine.status())

    def _do_save(self, rest: str) -> None:
        if not rest:
            raise BadInput("/save needs the name of a file: /save FILE")
        conversation, file = self._conversation, Path(rest).expanduser()
        messages = conversation.with_system(conversation.messages)
        written = json.dumps(
            {"model": self._model_name, "messages": messages}, indent=2, ensure_ascii=False
        )
        try:
            with file.open("x", encoding="utf-8") as out:
                out.write(written + "\n")
        except FileExistsError as error:
            raise BadInput(f"{file} is there already; name another file") from error
        except OSError as error:
            raise BadInput(f"cannot write {file}: {error.strerror}") from error
        self._screen.note(f"{len(messages)} messages written to {file}")

    def _do_quit(self, _rest: str) -> None:
        self._is_over = True
