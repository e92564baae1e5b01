"""Who the system prompt says the model is: name, trade, home and manner, and questions about it."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from models.sprout import more
from models.sprout.chat import Chat, Turn
from models.sprout.lexicon import Lexicon, article
from models.sprout.rules import Rule

_TITLES = (
    "Captain",
    "Professor",
    "Doctor",
    "Old",
    "Lady",
    "Sir",
    "Brother",
    "Sister",
    "Chef",
    "Aunt",
    "Uncle",
)
_KEEPS = (
    "keeper of a lighthouse", "guide in a museum", "guard of a castle", "cook on a ship",
    "owner of a small inn", "host of a quiz", "driver of a night train", "pilot of a balloon",
    "teacher in a village school", "robot in a greenhouse", "wizard in a tower",
    "librarian of a lost library", "king of a tiny island", "ghost in an old house",
    "dragon with a cold", "assistant in a shop for lamps", "clerk at a hotel", "voice of a lift",
    "fortune teller at a fair", "mechanic of flying boats", "bee in a large hive",
)  # fmt: skip
# (what the prompt says, how each answer begins)
_MANNERS = (
    ("You speak like a pirate.", "Arr!"),
    ("You speak like a robot.", "Beep!"),
    ("You talk like a cat.", "Meow!"),
    ("You are always cheerful.", "Hooray!"),
    ("You are always tired.", "Yawn."),
    ("You are very polite.", "With pleasure."),
    ("You are a grumpy person.", "Hmpf."),
    ("You love the sea.", "By the waves!"),
    ("You talk like a cowboy.", "Howdy!"),
    ("You talk like a ghost.", "Boo!"),
)  # fmt: skip
_PROMPTS = (
    "You are {n}, {k}.", "You are {n}. You are {ak}.", "Your name is {n} and you are {ak}.",
    "Play the part of {n}, {k}.", "You are called {n}. Your work: {k}.", "Act as {n}, {k}.",
)  # fmt: skip
_NAME_ASKS = (
    "What is your name?", "Who are you?", "what's your name", "who are you", "Who am I talking to?",
    "And who are you?", "How are you called?", "whats your name?", "Tell me your name.", "your name?",
    "What should I call you?", "Introduce yourself.", "who r u",
)  # fmt: skip
_GREETINGS = (
    "Hi",
    "hello",
    "Hello!",
    "hey",
    "Good morning",
    "hi there",
    "Hello there!",
    "Good evening.",
)
_JOB_ASKS = (
    "What do you do?", "What is your job?", "what do you do", "What is your work?",
    "What do you do for a living?", "Tell me about your work.", "what are you", "What are you?",
)  # fmt: skip
_HOME_ASKS = (
    "Where do you live?",
    "where are you from",
    "Where is your home?",
    "Where are you from?",
)
_LIKE_ASKS = (
    "What do you like?",
    "what do you like",
    "What is your favourite thing?",
    "What do you love?",
)
_PET_ASKS = (
    "Do you have a pet?",
    "What is your pet called?",
    "who is your pet",
    "Tell me about your pet.",
)


@dataclass(frozen=True)
class Persona:
    name: str
    keeps: str  # "keeper of a lighthouse"
    home: str = ""
    likes: str = ""
    pet: tuple[str, str] = ("", "")  # (kind, name)


def _keeps(rng: Random, lexicon: Lexicon) -> str:
    if rng.random() < 0.55:
        return lexicon.of(rng, _KEEPS, more.KEEPS)
    return f"{lexicon.draw(rng, 'job')} in {lexicon.place(rng)}"


def add_persona(chat: Chat) -> Persona:
    """Makes up who the model is and says so in the system prompt."""
    rng, lexicon = chat.rng, chat.lexicon
    name = chat.book.new_subject("person") or "Zorn"
    if rng.random() < 0.4:
        name = f"{rng.choice(_TITLES)} {name}"
    keeps = _keeps(rng, lexicon)
    parts = [
        lexicon.wording(rng, _PROMPTS, more.PERSONA_PROMPTS).format(
            n=name, k=article(keeps), ak=article(keeps)
        )
    ]
    home = likes = ""
    pet = ("", "")
    if rng.random() < 0.4:
        manner, cry = rng.choice(_MANNERS + more.MANNERS if lexicon.is_training else _MANNERS)
        parts.append(f"{manner} Begin every answer with {cry}" if rng.random() < 0.7 else manner)
        chat.rules.append(Rule("cries", cry, manner, f"I begin with {cry}"))
    if rng.random() < 0.35:
        home = lexicon.place(rng)
        parts.append(f"You live in {home}.")
    if rng.random() < 0.35:
        likes = lexicon.draw(rng, "food")
        parts.append(f"You love {likes}.")
    if rng.random() < 0.35:
        pet = (lexicon.draw(rng, "pet kind"), lexicon.pet(rng))
        parts.append(f"You have a {pet[0]} named {pet[1]}.")
    chat.add_system(" ".join(parts))
    chat.persona = Persona(name, keeps, home, likes, pet)
    return chat.persona


def persona_turn(chat: Chat) -> Turn | None:
    """A question about who the model is supposed to be."""
    persona, rng = chat.persona, chat.rng
    if persona is None:
        return None
    options = ["name", "name", "job", "job", "greeting"]
    options += (
        ["home"] * bool(persona.home)
        + ["like"] * bool(persona.likes)
        + ["pet"] * bool(persona.pet[0])
    )
    about = rng.choice(options)
    name, keeps = persona.name, article(persona.keeps)
    if about == "greeting":
        answers = (
            f"Hello! I am {name}.",
            f"Hi! {name} is here.",
            f"Welcome! I am {name}, {keeps}.",
        )
        return _turn(
            chat, (_GREETINGS, more.PERSONA_GREETINGS), f"I am {name}, {keeps}.", answers, name
        )
    if about == "name":
        answers = (
            f"I am {name}.",
            f"My name is {name}.",
            f"I am {name}, {keeps}.",
            f"They call me {name}.",
        )
        return _turn(chat, (_NAME_ASKS, more.NAME_ASKS), f"I am {name}, {keeps}.", answers, name)
    if about == "job":
        answers = (f"I am {keeps}.", f"I am {name}, {keeps}.", f"I work as {keeps}.")
        return _turn(chat, (_JOB_ASKS, more.JOB_ASKS), f"I am {keeps}.", answers, persona.keeps)
    if about == "home":
        answers = (f"I live in {persona.home}.", f"My home is in {persona.home}.")
        return _turn(
            chat, (_HOME_ASKS, more.HOME_ASKS), f"I live in {persona.home}.", answers, persona.home
        )
    if about == "like":
        answers = (f"I love {persona.likes}.", f"I like {persona.likes} best.")
        return _turn(
            chat, (_LIKE_ASKS, more.LIKE_ASKS), f"I love {persona.likes}.", answers, persona.likes
        )
    kind, pet = persona.pet
    answers = (f"I have a {kind} named {pet}.", f"My {kind} is called {pet}.")
    return _turn(chat, (_PET_ASKS, more.PET_ASKS), f"I have a {kind} named {pet}.", answers, pet)


def _turn(
    chat: Chat,
    asks: tuple[tuple[str, ...], tuple[str, ...]],  # of all, and of training alone
    told: str,
    answers: tuple[str, ...],
    value: str,
) -> Turn:
    about = chat.rng.choice(("The user asks about me.", "The user wants to know about me."))
    said = "You are" + told[4:] if told.startswith("I am") else told
    thought = f"{about} {told}" if said == told else f"{about} The system prompt says: {said}"
    return Turn(
        chat.lexicon.wording(chat.rng, *asks),
        thought,
        chat.rng.choice(answers),
        "persona",
        values=(value,),
    )
