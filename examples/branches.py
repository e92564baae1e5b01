"""A conversation that goes on in several ways: forked, asked again, and edited.

    python examples/branches.py

Each way starts from what the others have read.
"""

from __future__ import annotations

from keepwarm import ChatResult, Sampling, Session, load


def main() -> None:
    session = Session(*load(), system="Anna lives in Lund. Bruno lives in Porto.")
    show("asked", session.chat("Where does Anna live?").result)

    other = session.fork()
    show("forked", other.chat("Where does Bruno live?").result)

    warm = Sampling(temperature=0.7, seed=1)
    show("again", session.regenerate(sampling=warm).result)

    session.messages = session.messages[:1]  # back to the system prompt
    show("edited", session.chat("Where does Bruno live?").result)


def show(what: str, result: ChatResult) -> None:
    cached = f"{result.cached_tokens} of {result.prompt_tokens} tokens cached ({result.reason})"
    print(f"{what}: {result.reply.content} | {cached}")


if __name__ == "__main__":
    main()
