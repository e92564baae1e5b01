"""What users tell about themselves. In `says` and `asks` the user speaks, in `answers` the model."""

from __future__ import annotations

from models.sprout.relations import Relation


def _mine(
    label: str,
    subject: str,
    value: str,
    says: tuple[str, ...],
    gist: str,
    asks: tuple[str, ...],
    answers: tuple[str, ...],
) -> Relation:
    return Relation(label, subject, value, says, gist, asks, answers, group="mine")


MINE = (
    _mine(
        "my name", "me", "person",
        ("My name is {v}.", "I am {v}.", "I'm {v}.", "You can call me {v}.", "They call me {v}."),
        "the user's name",
        ("What is my name?", "What am I called?", "Who am I?", "Do you remember my name?"),
        ("Your name is {v}.", "You are {v}.", "You are called {v}."),
    ),
    _mine(
        "my pet", "pet kind", "pet",
        ("My {s} is called {v}.", "I have a {s} named {v}.", "My {s}'s name is {v}."),
        "the name of the user's {s}",
        ("What is my {s} called?", "What is the name of my {s}?", "What is my {s}'s name?"),
        ("Your {s} is called {v}.", "Your {s}'s name is {v}.", "{v}."),
    ),
    _mine(
        "my relative", "relative", "person",
        ("My {s} is called {v}.", "My {s}'s name is {v}.", "{v} is my {s}."),
        "the name of the user's {s}",
        ("What is my {s} called?", "Who is my {s}?", "What is my {s}'s name?"),
        ("Your {s} is called {v}.", "Your {s}'s name is {v}.", "{v}."),
    ),
    _mine(
        "my home", "me", "place",
        ("I live in {v}.", "My home is in {v}.", "I am from {v}."),
        "where the user lives",
        ("Where do I live?", "Which city do I live in?", "Where is my home?"),
        ("You live in {v}.", "Your home is in {v}.", "In {v}."),
    ),
    _mine(
        "my job", "me", "job",
        ("I work as {av}.", "I am {av}.", "My job is {v}."),
        "the user's job",
        ("What is my job?", "What do I work as?", "What do I do for a living?"),
        ("You work as {av}.", "You are {av}.", "You are {av} by trade."),
    ),
    _mine(
        "my age", "me", "age",
        ("I am {v} years old.", "My age is {v}.", "I'm {v} years old."),
        "how old the user is",
        ("How old am I?", "What is my age?"),
        ("You are {v} years old.", "Your age is {v}.", "{v}."),
    ),
    _mine(
        "my favourite", "favourite", "word",
        ("My favourite {s} is {v}.", "The {s} I like best is {v}."),
        "the user's favourite {s}",
        ("What is my favourite {s}?", "Which {s} do I like best?"),
        ("Your favourite {s} is {v}.", "You like {v} best.", "{v}."),
    ),
    _mine(
        "my colour", "me", "colour",
        ("My favourite colour is {v}.", "I like the colour {v} best."),
        "the user's favourite colour",
        ("What is my favourite colour?", "Which colour do I like best?"),
        ("Your favourite colour is {v}.", "You like {v} best.", "{v}."),
    ),
    _mine(
        "my food", "me", "food",
        ("My favourite food is {v}.", "I love to eat {v}.", "I eat {v} every day."),
        "what the user likes to eat",
        ("What is my favourite food?", "What do I like to eat?", "What food do I love?"),
        ("Your favourite food is {v}.", "You love to eat {v}.", "{v}."),
    ),
    _mine(
        "my number", "numbered", "number",
        ("My {s} number is {v}.", "The number of my {s} is {v}."),
        "the number of the user's {s}",
        ("What is my {s} number?", "Which number is my {s}?", "What is the number of my {s}?"),
        ("Your {s} number is {v}.", "The number of your {s} is {v}.", "{v}."),
    ),
    _mine(
        "my secret", "me", "word",
        ("Remember the word {v}.", "The magic word is {v}.", "Please remember this word: {v}."),
        "the word to remember",
        ("What was the word?", "Which word did I tell you?", "What is the magic word?",
         "What word should you remember?"),
        ("The word is {v}.", "You told me the word {v}.", "It was {v}."),
    ),
    _mine(
        "my code", "me", "code",
        ("Remember the code {v}.", "The code is {v}.", "My code is {v}."),
        "the code of the user",
        ("What was the code?", "What is my code?", "Which code did I give you?"),
        ("The code is {v}.", "Your code is {v}.", "{v}."),
    ),
    _mine(
        "my lucky number", "me", "small",
        ("My lucky number is {v}.", "{v} is my lucky number."),
        "the user's lucky number",
        ("What is my lucky number?", "Which number is lucky for me?"),
        ("Your lucky number is {v}.", "{v}.", "It is {v}."),
    ),
    _mine(
        "my car", "vehicle", "colour",
        ("My {s} is {v}.", "I have one {v} {s}."),
        "the colour of the user's {s}",
        ("What colour is my {s}?", "Which colour does my {s} have?"),
        ("Your {s} is {v}.", "It is {v}.", "{v}."),
    ),
    _mine(
        "my trip", "me", "place",
        ("I am going to {v} next week.", "Next month I travel to {v}.", "My next trip is to {v}."),
        "where the user travels to",
        ("Where am I going?", "Where do I travel to?", "Where is my next trip?"),
        ("You are going to {v}.", "Your trip is to {v}.", "To {v}."),
    ),
    _mine(
        "my keys", "own thing", "spot",
        ("My {s} is {v}.", "I left my {s} {v}.", "I put my {s} {v}."),
        "where the user's {s} is",
        ("Where is my {s}?", "Where did I put my {s}?", "Where did I leave my {s}?"),
        ("Your {s} is {v}.", "You left your {s} {v}.", "It is {v}."),
    ),
    _mine(
        "my appointment", "appointment", "day",
        ("My {s} is on {v}.", "I have my {s} on {v}."),
        "on which day the user's {s} is",
        ("When is my {s}?", "On which day is my {s}?", "What day is my {s}?"),
        ("Your {s} is on {v}.", "On {v}.", "{v}."),
    ),
    _mine(
        "my alarm", "me", "time",
        ("I get up at {v}.", "My alarm rings at {v}.", "I wake up at {v}."),
        "when the user gets up",
        ("When do I get up?", "At what time do I get up?", "When do I wake up?"),
        ("You get up at {v}.", "At {v}.", "{v}."),
    ),
)
