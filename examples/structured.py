"""A reply that fits a JSON schema, and thoughts told apart from it while it streams.

python examples/structured.py
"""

from __future__ import annotations

import json

from keepwarm import Delta, Grammar, Kind, Session, load

SCHEMA = {
    "type": "object",
    "properties": {"town": {"enum": ["Lund", "Porto", "Ghent"]}},
    "required": ["town"],
    "additionalProperties": False,
}


def main() -> None:
    session = Session(*load(), system="Anna lives in Lund. Bruno lives in Porto.")
    with session.chat("Where does Bruno live?", grammar=Grammar.json(SCHEMA)) as stream:
        for event in stream:
            if isinstance(event, Delta) and event.kind is Kind.THOUGHT:
                print(".", end="", flush=True)  # it thinks
    print(json.loads(stream.result.reply.content))


if __name__ == "__main__":
    main()
