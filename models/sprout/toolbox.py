"""Tools that the dialogues offer: how they are declared, asked for, and what they give back."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from models.sprout.lexicon import Lexicon

_INTEGERS = ("small", "age", "number", "year", "order")


@dataclass(frozen=True)
class Spec:
    """A kind of tool. Parameters are (name, kind of the lexicon or options joined by "|"); results
    are (key, kind)."""

    names: tuple[str, ...]
    description: str
    params: tuple[tuple[str, str], ...]
    asks: tuple[str, ...]
    results: tuple[tuple[str, str], ...]
    answers: tuple[str, ...]


_WEATHER = "rain|snow|sun|fog|wind|clouds|hail|storm"
_ON_OFF = "on|off"

SPECS = (
    Spec(("get_weather", "weather", "weather_now", "fetch_weather"), "Get the weather of a city.",
         (("city", "place"),),
         ("What is the weather in {city}?", "how is the weather in {city}", "Is it raining in {city}?", "weather in {city} please",
          "Tell me the weather for {city}.", "Will I need a coat in {city}?"),
         (("weather", _WEATHER), ("degrees", "small")),
         ("In {city} there is {weather} and it is {degrees} degrees.", "{city} has {weather} at {degrees} degrees.")),
    Spec(("get_time", "clock", "local_time"), "Get the local time in a city.", (("city", "place"),),
         ("What time is it in {city}?", "time in {city}", "Tell me the time in {city}.", "how late is it in {city}?"),
         (("time", "time"),), ("It is {time} in {city}.", "In {city} it is {time}.")),
    Spec(("find_phone", "lookup_phone", "get_number"), "Find the phone number of a person.", (("person", "person"),),
         ("Find the phone number of {person}.", "what is the phone number of {person}", "I need to call {person}, find the number.",
          "Look up the phone of {person}, please."),
         (("phone", "number"),), ("The phone number of {person} is {phone}.", "You can call {person} at {phone}.")),
    Spec(("find_email", "get_address", "lookup_address"), "Find the street where a person lives.", (("name", "person"),),
         ("On which street does {name} live?", "Find the street of {name}.", "look up the address of {name}"),
         (("street", "title"),), ("{name} lives on {street} Street.", "It is {street} Street.")),
    Spec(("check_stock", "stock", "count_items"), "Count how many pieces of an item are in stock.", (("item", "item"),),
         ("Do we have a {item} in stock?", "How many pieces of {item} are in stock?", "check the stock for {item}",
          "Is there any {item} left?"),
         (("count", "small"),), ("There are {count} in stock: {item}.", "We have {count} of {item} in stock.")),
    Spec(("get_price", "price_of", "find_price"), "Get the price of an item in coins.", (("item", "item"),),
         ("What is the price of a {item}?", "how much is a {item}", "Find out what a {item} costs.", "price of {item}?"),
         (("price", "small"),), ("A {item} costs {price} coins.", "The price of a {item} is {price} coins.")),
    Spec(("track_order", "order_status", "find_order"), "Find out where an order is.", (("order", "order"),),
         ("Where is my order {order}?", "track order {order}", "Please track my order {order}.", "What about order {order}?"),
         (("place", "place"),), ("Order {order} is in {place}.", "Your order {order} is now in {place}.")),
    Spec(("set_timer", "start_timer", "timer"), "Set a timer for some minutes.", (("minutes", "small"),),
         ("Set a timer for {minutes} minutes.", "timer {minutes} minutes", "Wake me in {minutes} minutes.",
          "please start a timer of {minutes} minutes"),
         (("timer", "code"),), ("The timer {timer} is set for {minutes} minutes.", "Done: timer {timer} rings in {minutes} minutes.")),
    Spec(("set_alarm", "alarm", "wake_me"), "Set an alarm at a time of day.", (("time", "time"),),
         ("Set an alarm at {time}.", "wake me up at {time}", "I want to get up at {time}.", "alarm for {time} please"),
         (("alarm", "code"),), ("The alarm {alarm} is set for {time}.", "Alarm {alarm} will ring at {time}.")),
    Spec(("send_message", "text_person", "message"), "Send a message to a person.", (("to", "person"), ("text", "word")),
         ("Send {to} the message {text}.", "tell {to} this: {text}", "Write to {to}: {text}", "message {to} with the text {text}"),
         (("message", "code"),), ("The message to {to} was sent as {message}.", "Sent: message {message} to {to}.")),
    Spec(("play_song", "play", "start_music"), "Play a song.", (("title", "title"),),
         ("Play the song {title}.", "play {title}", "I want to hear {title}.", "Put on {title}, please."),
         (("artist", "person"),), ("Now playing {title} by {artist}.", "{title} by {artist} is playing.")),
    Spec(("switch_light", "light", "set_light"), "Switch a light on or off.", (("room", "room"), ("state", _ON_OFF)),
         ("Switch the light in the {room} {state}.", "turn the {room} light {state}", "Please turn {state} the light in the {room}."),
         (("watts", "small"),), ("The light in the {room} is {state} and uses {watts} watts.", "Done, {room}: {state}, {watts} watts.")),
    Spec(("book_table", "reserve", "reserve_table"), "Book a table for some people at a time.",
         (("people", "small"), ("time", "time")),
         ("Book a table for {people} people at {time}.", "table for {people} at {time} please", "Reserve a table at {time} for {people} people."),
         (("table", "number"),), ("Table {table} is booked for {people} people at {time}.", "You have table {table} at {time}.")),
    Spec(("translate", "translate_word", "dictionary"), "Translate a word into a language.",
         (("word", "word"), ("language", "French|German|Spanish|Dutch|Greek|Welsh")),
         ("Translate {word} into {language}.", "what is {word} in {language}", "How do you say {word} in {language}?"),
         (("translation", "invented"),), ("In {language} it is {translation}.", "{word} is {translation} in {language}.")),
    Spec(("add_event", "new_event", "calendar_add"), "Add an event to the calendar.", (("event", "event"), ("day", "day")),
         ("Add a {event} on {day}.", "put the {event} on {day} into my calendar", "I have a {event} on {day}, note it."),
         (("entry", "code"),), ("The {event} on {day} is entry {entry}.", "Added: {event} on {day}, entry {entry}.")),
    Spec(("roll_dice", "dice", "throw_dice"), "Roll a die with some sides.", (("sides", "small"),),
         ("Roll a die with {sides} sides.", "roll a {sides} sided die", "Throw a die of {sides} sides."),
         (("rolled", "small"),), ("You rolled {rolled}.", "The die shows {rolled}.")),
    Spec(("search", "web_search", "find_text", "look_up"), "Search for a text.", (("query", "word"),),
         ("Search for {query}.", "search {query}", "Look up {query} for me.", "google {query}", "Find something about {query}."),
         (("found", "title"),), ("I found: {found}.", "The search found {found}.")),
    Spec(("read_file", "open_file", "show_file"), "Read a file by its name.", (("file", "invented"),),
         ("Open the file {file}.", "read file {file}", "What is in the file {file}?", "Show me the file {file}."),
         (("text", "word"),), ("The file {file} says: {text}.", "It says {text}.")),
    Spec(("get_train", "next_train", "train_times"), "Find the next train between two cities.", (("start", "place"), ("goal", "place")),
         ("When is the next train from {start} to {goal}?", "train from {start} to {goal}", "I must go from {start} to {goal} by train."),
         (("leaves", "time"),), ("The next train from {start} to {goal} leaves at {leaves}.", "It leaves at {leaves}.")),
    Spec(("convert", "exchange", "change_money"), "Change an amount of money into a currency.",
         (("amount", "small"), ("currency", "euro|dollar|pound|yen|krona|franc")),
         ("Change {amount} coins into {currency}.", "how much {currency} is {amount} coins", "Convert {amount} coins to {currency}."),
         (("value", "number"),), ("You get {value} {currency} for {amount} coins.", "{amount} coins are {value} {currency}.")),
    Spec(("feed_animal", "feed", "give_food"), "Feed an animal with some food.", (("animal", "animal"), ("food", "food")),
         ("Feed the {animal} with {food}.", "give the {animal} some {food}", "The {animal} wants {food}."),
         (("left", "small"),), ("The {animal} got {food}. There are {left} portions left.", "Done, {left} portions of {food} are left.")),
    Spec(("paint", "set_colour", "colour_item"), "Paint an item in a colour.", (("item", "item"), ("colour", "colour")),
         ("Paint the {item} {colour}.", "make the {item} {colour}", "I want the {item} in {colour}."),
         (("job", "code"),), ("The {item} will be {colour}, job {job}.", "Job {job}: the {item} becomes {colour}.")),
    Spec(("open_door", "unlock", "unlock_door"), "Open a door with a code.", (("code", "code"),),
         ("Open the door with the code {code}.", "unlock with {code}", "Please open up, the code is {code}."),
         (("door", "site"),), ("The {door} is open.", "Code {code} opened the {door}.")),
    Spec(("find_book", "book_search", "library"), "Find out who wrote a book.", (("title", "title"),),
         ("Who wrote the book {title}?", "author of {title}", "Find the author of the book {title}."),
         (("author", "person"),), ("{title} was written by {author}.", "The author of {title} is {author}.")),
    Spec(("save_note", "note", "write_note"), "Save a short note.", (("note", "word"),),
         ("Save the note {note}.", "note down {note}", "Please write down: {note}", "make a note: {note}"),
         (("number", "number"),), ("The note is saved as number {number}.", "Saved as number {number}.")),
)  # fmt: skip

_ATTRIBUTES = [
    "height",
    "weight",
    "depth",
    "owner",
    "colour",
    "age",
    "length",
    "size",
    "speed",
    "level",
    "score",
    "rank",
    "status",
    "origin",
    "value",
]
_SUBJECTS = (
    ("river", "title"), ("ship", "title"), ("planet", "invented"), ("robot", "code"), ("tower", "title"), ("horse", "pet"),
    ("player", "person"), ("team", "title"), ("machine", "code"), ("plant", "invented"), ("village", "place"), ("stone", "invented"),
)  # fmt: skip
_ATTRIBUTE_VALUES = {"owner": "person", "colour": "colour", "origin": "place", "status": "word"}


def made_up(rng: Random, lexicon: Lexicon) -> Spec:
    """A getter nobody has seen: `get_height(river)`, at times with a name that says nothing."""
    attribute = rng.choice(_ATTRIBUTES)
    subject, kind = rng.choice(_SUBJECTS)
    verb = rng.choice(("get", "find", "read", "fetch", "check", "query"))
    name = f"{verb}_{attribute}" if rng.random() < 0.5 else f"{subject}_{attribute}"
    if rng.random() < 0.35:
        name = lexicon.invented(rng) + rng.choice(("", "_tool", f"_{attribute}", "_api"))
    param = rng.choice((subject, "name", f"{subject}_name"))
    hole = "{" + param + "}"
    return Spec(
        (name,), f"Get the {attribute} of a {subject}.", ((param, kind),),
        (f"What is the {attribute} of the {subject} {hole}?", f"{attribute} of {subject} {hole}",
         f"Tell me the {attribute} of the {subject} {hole}.", f"I need the {attribute} of the {subject} {hole}."),
        ((attribute, _ATTRIBUTE_VALUES.get(attribute, "number")),),
        (f"The {attribute} of the {subject} {hole} is {{{attribute}}}.", f"The {subject} {hole} has the {attribute} {{{attribute}}}."),
    )  # fmt: skip


@dataclass(frozen=True)
class Tool:
    """A tool of one conversation: a spec under one of its names."""

    spec: Spec
    name: str

    def declared(self) -> dict[str, Any]:
        properties = {}
        for name, kind in self.spec.params:
            if "|" in kind:
                properties[name] = {"type": "string", "enum": kind.split("|")}
            else:
                properties[name] = {"type": "integer" if kind in _INTEGERS else "string"}
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        described = {
            "name": self.name,
            "description": self.spec.description,
            "parameters": parameters,
        }
        return {"type": "function", "function": described}


def draw(rng: Random, lexicon: Lexicon, kind: str) -> Any:
    """A value for a parameter or a result, as JSON has it."""
    if "|" in kind:
        return rng.choice(kind.split("|"))
    if kind == "invented":
        return lexicon.invented(rng)
    if kind == "room":
        return rng.choice(
            (
                "kitchen",
                "attic",
                "cellar",
                "garage",
                "hallway",
                "library",
                "bedroom",
                "office",
                "garden",
            )
        )
    text = lexicon.draw(rng, kind)
    return int(text) if kind in _INTEGERS else text


def make_tools(rng: Random, lexicon: Lexicon, num_tools: int) -> list[Tool]:
    """Tools with distinct names and purposes."""
    tools: list[Tool] = []
    for spec in rng.sample(SPECS, min(num_tools, len(SPECS))):
        if rng.random() < 0.35:
            spec = made_up(rng, lexicon)
        name = lexicon.of(rng, spec.names)
        if len(spec.names) > 1 and rng.random() < 0.4:  # names are read, not known by heart
            other = lexicon.invented(rng)
            name = f"{other}_{name}" if rng.random() < 0.6 else f"{name}_{other}"
        is_known = any(t.name == name or t.spec.description == spec.description for t in tools)
        if not is_known:
            tools.append(Tool(spec, name))
    return tools
