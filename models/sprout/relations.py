"""What can be known about things: how it is told, asked and answered. A table; any thread."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Relation:
    """`{s}` is the subject, `{v}` the value; `gist` finishes "the user asks ..."."""

    label: str  # in records: "Anna: city Lund"
    subject: str  # kinds of the lexicon
    value: str
    says: tuple[str, ...]
    gist: str
    asks: tuple[str, ...]
    answers: tuple[str, ...]
    asks_subject: tuple[str, ...] = ()  # the other way round: "Who lives in {v}?"
    gist_subject: str = ""
    group: str = ""  # which subjects go together in one document

    @property
    def key(self) -> str:
        return f"{self.subject}.{self.label}"


def _person(
    label: str,
    value: str,
    says: tuple[str, ...],
    gist: str,
    asks: tuple[str, ...],
    answers: tuple[str, ...],
    asks_subject: tuple[str, ...] = (),
    gist_subject: str = "",
) -> Relation:
    return Relation(
        label, "person", value, says, gist, asks, answers, asks_subject, gist_subject, "people"
    )


PEOPLE = (
    _person(
        "city",
        "place",
        ("{s} lives in {v}.", "The home of {s} is in {v}.", "{s} has a flat in {v}."),
        "where {s} lives",
        ("Where does {s} live?", "In which city does {s} live?", "What city is {s}'s home?"),
        ("{s} lives in {v}.", "In {v}.", "{v}."),
        ("Who lives in {v}?", "Which person lives in {v}?"),
        "who lives in {v}",
    ),
    _person(
        "job",
        "job",
        ("{s} works as {av}.", "{s} is {av}.", "The job of {s} is {v}."),
        "what job {s} has",
        ("What is {s}'s job?", "What does {s} do for a living?", "What work does {s} do?"),
        ("{s} is {av}.", "{s} works as {av}.", "{v}."),
        ("Who works as {av}?", "Who is the {v}?"),
        "who is the {v}",
    ),
    _person(
        "colour",
        "colour",
        ("The favourite colour of {s} is {v}.", "{s} likes the colour {v} best."),
        "which colour {s} likes best",
        ("What is {s}'s favourite colour?", "Which colour does {s} like best?"),
        ("{s}'s favourite colour is {v}.", "{s} likes {v} best.", "{v}."),
    ),
    _person(
        "age",
        "age",
        ("{s} is {v} years old.", "The age of {s} is {v}."),
        "how old {s} is",
        ("How old is {s}?", "What is the age of {s}?", "What is {s}'s age?"),
        ("{s} is {v} years old.", "{v}."),
    ),
    _person(
        "dog",
        "pet",
        ("{s} has a dog named {v}.", "The dog of {s} is called {v}."),
        "what the dog of {s} is called",
        ("What is {s}'s dog called?", "What is the name of {s}'s dog?", "How is {s}'s dog called?"),
        ("{s}'s dog is called {v}.", "The dog of {s} is {v}.", "{v}."),
        ("Who has a dog named {v}?", "Whose dog is {v}?"),
        "who has the dog {v}",
    ),
    _person(
        "food",
        "food",
        ("{s} likes to eat {v}.", "The favourite food of {s} is {v}.", "{s} loves {v}."),
        "what {s} likes to eat",
        ("What does {s} like to eat?", "What is {s}'s favourite food?"),
        ("{s} likes {v}.", "{s} likes to eat {v}.", "{v}."),
        ("Who likes to eat {v}?", "Who likes {v}?"),
        "who likes {v}",
    ),
    _person(
        "room",
        "number",
        ("{s} is in room {v}.", "The room of {s} is number {v}.", "{s} sleeps in room {v}."),
        "which room {s} has",
        ("Which room is {s} in?", "What is {s}'s room number?", "What room does {s} have?"),
        ("{s} is in room {v}.", "Room {v}.", "{v}."),
        ("Who is in room {v}?", "Who has room {v}?"),
        "who is in room {v}",
    ),
    _person(
        "hobby",
        "hobby",
        ("The hobby of {s} is {v}.", "{s} spends every weekend on {v}.", "{s} is fond of {v}."),
        "what hobby {s} has",
        ("What is {s}'s hobby?", "What is {s} fond of?", "What hobby does {s} have?"),
        ("{s}'s hobby is {v}.", "{s} is fond of {v}.", "{v}."),
        ("Whose hobby is {v}?", "Who is fond of {v}?"),
        "whose hobby is {v}",
    ),
    _person(
        "instrument",
        "instrument",
        ("{s} plays the {v}.", "The instrument of {s} is the {v}."),
        "what instrument {s} plays",
        ("What does {s} play?", "Which instrument does {s} play?"),
        ("{s} plays the {v}.", "The {v}.", "{v}."),
        ("Who plays the {v}?",),
        "who plays the {v}",
    ),
    _person(
        "year of birth",
        "year",
        ("{s} was born in {v}.", "The year of birth of {s} is {v}."),
        "when {s} was born",
        ("When was {s} born?", "In which year was {s} born?", "What year was {s} born in?"),
        ("{s} was born in {v}.", "In {v}.", "{v}."),
        ("Who was born in {v}?",),
        "who was born in {v}",
    ),
    _person(
        "month",
        "month",
        ("The birthday of {s} is in {v}.", "{s} has a birthday in {v}."),
        "when the birthday of {s} is",
        ("When is {s}'s birthday?", "In which month is {s}'s birthday?"),
        ("{s}'s birthday is in {v}.", "In {v}.", "{v}."),
    ),
    _person(
        "badge",
        "code",
        ("{s} has the badge {v}.", "The badge of {s} reads {v}.", "{s} wears badge {v}."),
        "which badge {s} has",
        ("What is {s}'s badge?", "Which badge does {s} have?", "What does {s}'s badge read?"),
        ("{s}'s badge is {v}.", "{s} has the badge {v}.", "{v}."),
        ("Who has the badge {v}?", "Whose badge is {v}?"),
        "who has the badge {v}",
    ),
    _person(
        "phone",
        "number",
        ("The phone number of {s} is {v}.", "You can call {s} at {v}."),
        "the phone number of {s}",
        ("What is {s}'s phone number?", "What number does {s} have?", "How can I call {s}?"),
        ("{s}'s phone number is {v}.", "You can call {s} at {v}.", "{v}."),
        ("Whose phone number is {v}?",),
        "whose phone number is {v}",
    ),
    _person(
        "team",
        "title",
        ("{s} is on the team {v}.", "The team of {s} is called {v}.", "{s} plays for {v}."),
        "which team {s} is on",
        ("Which team is {s} on?", "What is {s}'s team?"),
        ("{s} is on the team {v}.", "{s}'s team is {v}.", "{v}."),
        ("Who is on the team {v}?", "Who plays for {v}?"),
        "who is on the team {v}",
    ),
    _person(
        "password",
        "word",
        ("The password of {s} is {v}.", "{s} uses the password {v}."),
        "the password of {s}",
        ("What is {s}'s password?", "Which password does {s} use?"),
        ("{s}'s password is {v}.", "The password of {s} is {v}.", "{v}."),
        ("Whose password is {v}?",),
        "whose password is {v}",
    ),
    _person(
        "friend",
        "person",
        ("The best friend of {s} is {v}.", "{s} shares a desk with {v}."),
        "who the friend of {s} is",
        ("Who is {s}'s best friend?", "Who is the friend of {s}?"),
        ("{s}'s best friend is {v}.", "The friend of {s} is {v}.", "{v}."),
    ),
    _person(
        "gift",
        "object",
        ("{s} got a gift: the {v}.", "{s} bought the {v}.", "{s} owns the {v}."),
        "what {s} owns",
        ("What does {s} own?", "What did {s} get?", "What is {s}'s new thing?"),
        ("{s} owns the {v}.", "The {v}.", "{s} got the {v}."),
        ("Who owns the {v}?", "Who got the {v}?"),
        "who owns the {v}",
    ),
    _person(
        "bus",
        "small",
        ("{s} takes bus {v} to work.", "{s} goes home with bus {v}."),
        "which bus {s} takes",
        ("Which bus does {s} take?", "What bus does {s} use?"),
        ("{s} takes bus {v}.", "Bus {v}.", "{v}."),
        ("Who takes bus {v}?",),
        "who takes bus {v}",
    ),
)
