"""A conversation with the built-in model, and what the cache did for each turn of it.

    python examples/demo.py            (or: make demo)

sprout is a hybrid: six of its eight layers keep one state that cannot be cut back. It is given a
guest list of 700 tokens and asked about it; then a question is edited, and a second
conversation begins with the same list. Nothing is downloaded.
"""

from __future__ import annotations

from random import Random

from keepwarm import PrefixCache, Session, load

GUESTS = (
    "Anna", "Bruno", "Carla", "David", "Emma", "Felix", "Greta", "Hugo", "Ingrid", "Jonas", "Karin", "Leo",
    "Marta", "Nils", "Olga", "Pablo", "Rosa", "Sven", "Tilda", "Umar", "Vera", "Wanda", "Yara", "Zoe",
)  # fmt: skip
TOWNS = (
    "Bergen", "Lund", "Porto", "Turin", "Ghent", "Basel", "Riga", "Tartu", "Delft", "Malmo", "Cadiz", "Lyon",
    "Graz", "Split", "Turku", "Leeds", "Derby", "Luxor", "Odesa", "Dundee", "Zurich", "Bremen", "Utrecht",
    "Salzburg",
)  # fmt: skip
PETS = (
    "Milo", "Bella", "Rex", "Luna", "Rocky", "Daisy", "Max", "Ruby", "Oscar", "Coco", "Bruno", "Molly", "Toby",
    "Nala", "Simba", "Poppy", "Archie", "Honey", "Rusty", "Willow", "Bear", "Ginger", "Sunny", "Clover",
)  # fmt: skip


def guest_list() -> str:
    rng = Random(7)
    rooms = rng.sample(range(101, 999), len(GUESTS))
    towns, pets = rng.sample(TOWNS, len(GUESTS)), rng.sample(PETS, len(GUESTS))
    return " ".join(
        f"{name} is in room {room}. {name} lives in {town}. The dog of {name} is called {pet}."
        for name, room, town, pet in zip(GUESTS, rooms, towns, pets)
    )


def main() -> None:
    model, tokenizer = load()
    cache = PrefixCache(model)
    system = "You are the night porter of a hotel.\n" + guest_list()
    session = Session(model, tokenizer, cache=cache, system=system)
    show(session, "Which room is Greta in?")
    show(session, "What is the name of Greta's dog?")
    show(session, "Where does Pablo live?")
    show(session, "My car is red.")
    show(session, "What colour is my car?")
    print("--- the third question is edited")
    session.messages = session.messages[:5]
    show(session, "Where does Wanda live?")
    print("--- somebody else comes to the desk")
    other = Session(model, tokenizer, cache=cache, system=system)
    show(other, "Which room is Olga in?")
    show(other, "What colour is my car?")
    held = cache.stats()
    print(f"held: {held.rows_bytes:,} bytes of rows, {held.snapshot_bytes:,} of snapshots")


def show(session: Session, question: str) -> None:
    result = session.chat(question, max_tokens=120).result
    print(f"> {question}\n{result.reply.content}")
    print(
        f"    {result.cached_tokens} of {result.prompt_tokens} tokens cached"
        f" ({result.reason}), first token after {1e3 * result.timings.first_token_s:.0f} ms\n"
    )


if __name__ == "__main__":
    main()
