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
        "city", "place",
        ("{s} lives in {v}.", "The home of {s} is in {v}.", "{s} has a flat in {v}."),
        "where {s} lives",
        ("Where does {s} live?", "In which city does {s} live?", "What city is {s}'s home?"),
        ("{s} lives in {v}.", "In {v}.", "{v}."),
        ("Who lives in {v}?", "Which person lives in {v}?"), "who lives in {v}",
    ),
    _person(
        "job", "job",
        ("{s} works as {av}.", "{s} is {av}.", "The job of {s} is {v}."),
        "what job {s} has",
        ("What is {s}'s job?", "What does {s} do for a living?", "What work does {s} do?"),
        ("{s} is {av}.", "{s} works as {av}.", "{v}."),
        ("Who works as {av}?", "Who is the {v}?"), "who is the {v}",
    ),
    _person(
        "colour", "colour",
        ("The favourite colour of {s} is {v}.", "{s} likes the colour {v} best."),
        "which colour {s} likes best",
        ("What is {s}'s favourite colour?", "Which colour does {s} like best?"),
        ("{s}'s favourite colour is {v}.", "{s} likes {v} best.", "{v}."),
    ),
    _person(
        "age", "age",
        ("{s} is {v} years old.", "The age of {s} is {v}."),
        "how old {s} is",
        ("How old is {s}?", "What is the age of {s}?", "What is {s}'s age?"),
        ("{s} is {v} years old.", "{v}."),
    ),
    _person(
        "dog", "pet",
        ("{s} has a dog named {v}.", "The dog of {s} is called {v}."),
        "what the dog of {s} is called",
        ("What is {s}'s dog called?", "What is the name of {s}'s dog?", "How is {s}'s dog called?"),
        ("{s}'s dog is called {v}.", "The dog of {s} is {v}.", "{v}."),
        ("Who has a dog named {v}?", "Whose dog is {v}?"), "who has the dog {v}",
    ),
    _person(
        "food", "food",
        ("{s} likes to eat {v}.", "The favourite food of {s} is {v}.", "{s} loves {v}."),
        "what {s} likes to eat",
        ("What does {s} like to eat?", "What is {s}'s favourite food?"),
        ("{s} likes {v}.", "{s} likes to eat {v}.", "{v}."),
        ("Who likes to eat {v}?", "Who likes {v}?"), "who likes {v}",
    ),
    _person(
        "room", "number",
        ("{s} is in room {v}.", "The room of {s} is number {v}.", "{s} sleeps in room {v}."),
        "which room {s} has",
        ("Which room is {s} in?", "What is {s}'s room number?", "What room does {s} have?"),
        ("{s} is in room {v}.", "Room {v}.", "{v}."),
        ("Who is in room {v}?", "Who has room {v}?"), "who is in room {v}",
    ),
    _person(
        "hobby", "hobby",
        ("The hobby of {s} is {v}.", "{s} spends every weekend on {v}.", "{s} is fond of {v}."),
        "what hobby {s} has",
        ("What is {s}'s hobby?", "What is {s} fond of?", "What hobby does {s} have?"),
        ("{s}'s hobby is {v}.", "{s} is fond of {v}.", "{v}."),
        ("Whose hobby is {v}?", "Who is fond of {v}?"), "whose hobby is {v}",
    ),
    _person(
        "instrument", "instrument",
        ("{s} plays the {v}.", "The instrument of {s} is the {v}."),
        "what instrument {s} plays",
        ("What does {s} play?", "Which instrument does {s} play?"),
        ("{s} plays the {v}.", "The {v}.", "{v}."),
        ("Who plays the {v}?",), "who plays the {v}",
    ),
    _person(
        "year of birth", "year",
        ("{s} was born in {v}.", "The year of birth of {s} is {v}."),
        "when {s} was born",
        ("When was {s} born?", "In which year was {s} born?", "What year was {s} born in?"),
        ("{s} was born in {v}.", "In {v}.", "{v}."),
        ("Who was born in {v}?",), "who was born in {v}",
    ),
    _person(
        "month", "month",
        ("The birthday of {s} is in {v}.", "{s} has a birthday in {v}."),
        "when the birthday of {s} is",
        ("When is {s}'s birthday?", "In which month is {s}'s birthday?"),
        ("{s}'s birthday is in {v}.", "In {v}.", "{v}."),
    ),
    _person(
        "badge", "code",
        ("{s} has the badge {v}.", "The badge of {s} reads {v}.", "{s} wears badge {v}."),
        "which badge {s} has",
        ("What is {s}'s badge?", "Which badge does {s} have?", "What does {s}'s badge read?"),
        ("{s}'s badge is {v}.", "{s} has the badge {v}.", "{v}."),
        ("Who has the badge {v}?", "Whose badge is {v}?"), "who has the badge {v}",
    ),
    _person(
        "phone", "number",
        ("The phone number of {s} is {v}.", "You can call {s} at {v}."),
        "the phone number of {s}",
        ("What is {s}'s phone number?", "What number does {s} have?", "How can I call {s}?"),
        ("{s}'s phone number is {v}.", "You can call {s} at {v}.", "{v}."),
        ("Whose phone number is {v}?",), "whose phone number is {v}",
    ),
    _person(
        "team", "title",
        ("{s} is on the team {v}.", "The team of {s} is called {v}.", "{s} plays for {v}."),
        "which team {s} is on",
        ("Which team is {s} on?", "What is {s}'s team?"),
        ("{s} is on the team {v}.", "{s}'s team is {v}.", "{v}."),
        ("Who is on the team {v}?", "Who plays for {v}?"), "who is on the team {v}",
    ),
    _person(
        "password", "word",
        ("The password of {s} is {v}.", "{s} uses the password {v}."),
        "the password of {s}",
        ("What is {s}'s password?", "Which password does {s} use?"),
        ("{s}'s password is {v}.", "The password of {s} is {v}.", "{v}."),
        ("Whose password is {v}?",), "whose password is {v}",
    ),
    _person(
        "friend", "person",
        ("The best friend of {s} is {v}.", "{s} shares a desk with {v}."),
        "who the friend of {s} is",
        ("Who is {s}'s best friend?", "Who is the friend of {s}?"),
        ("{s}'s best friend is {v}.", "The friend of {s} is {v}.", "{v}."),
    ),
    _person(
        "gift", "object",
        ("{s} got a gift: the {v}.", "{s} bought the {v}.", "{s} owns the {v}."),
        "what {s} owns",
        ("What does {s} own?", "What did {s} get?", "What is {s}'s new thing?"),
        ("{s} owns the {v}.", "The {v}.", "{s} got the {v}."),
        ("Who owns the {v}?", "Who got the {v}?"), "who owns the {v}",
    ),
    _person(
        "bus", "small",
        ("{s} takes bus {v} to work.", "{s} goes home with bus {v}."),
        "which bus {s} takes",
        ("Which bus does {s} take?", "What bus does {s} use?"),
        ("{s} takes bus {v}.", "Bus {v}.", "{v}."),
        ("Who takes bus {v}?",), "who takes bus {v}",
    ),
)

THINGS = (
    Relation(
        "place", "object", "spot",
        ("The {s} is {v}.", "You find the {s} {v}.", "Someone put the {s} {v}."),
        "where the {s} is",
        ("Where is the {s}?", "Where can I find the {s}?", "Where did they put the {s}?"),
        ("The {s} is {v}.", "You find the {s} {v}.", "It is {v}."),
        ("What is {v}?", "Which thing is {v}?"), "what is {v}", "things",
    ),
    Relation(
        "price", "object", "small",
        ("The {s} costs {v} coins.", "The price of the {s} is {v} coins."),
        "what the {s} costs",
        ("How much is the {s}?", "What does the {s} cost?", "What is the price of the {s}?"),
        ("The {s} costs {v} coins.", "{v} coins.", "It costs {v} coins."),
        group="things",
    ),
    Relation(
        "owner", "object", "person",
        ("The {s} belongs to {v}.", "The owner of the {s} is {v}."),
        "who owns the {s}",
        ("Who owns the {s}?", "Whose is the {s}?", "Who does the {s} belong to?"),
        ("The {s} belongs to {v}.", "{v} owns the {s}.", "{v}."),
        ("What belongs to {v}?", "What does {v} own?"), "what belongs to {v}", "things",
    ),
    Relation(
        "maker", "object", "place",
        ("The {s} was made in {v}.", "The {s} comes from {v}."),
        "where the {s} was made",
        ("Where was the {s} made?", "Where does the {s} come from?"),
        ("The {s} was made in {v}.", "The {s} comes from {v}.", "In {v}."),
        ("What was made in {v}?", "What comes from {v}?"), "what comes from {v}", "things",
    ),
    Relation(
        "tag", "object", "code",
        ("The {s} has the tag {v}.", "On the {s} is a tag that reads {v}."),
        "which tag the {s} has",
        ("What is the tag of the {s}?", "Which tag does the {s} have?"),
        ("The tag of the {s} is {v}.", "The {s} has the tag {v}.", "{v}."),
        ("What has the tag {v}?",), "what has the tag {v}", "things",
    ),
    Relation(
        "code", "site", "code",
        ("The code for the {s} is {v}.", "The {s} opens with the code {v}."),
        "the code for the {s}",
        ("What is the code for the {s}?", "How do I open the {s}?", "Which code opens the {s}?"),
        ("The code for the {s} is {v}.", "The {s} opens with {v}.", "{v}."),
        ("What does the code {v} open?",), "what the code {v} opens", "sites",
    ),
    Relation(
        "guard", "site", "person",
        ("{v} guards the {s}.", "The guard of the {s} is {v}."),
        "who guards the {s}",
        ("Who guards the {s}?", "Who is the guard of the {s}?"),
        ("{v} guards the {s}.", "The guard of the {s} is {v}.", "{v}."),
        ("What does {v} guard?",), "what {v} guards", "sites",
    ),
    Relation(
        "pass word", "site", "word",
        ("The pass word for the {s} is {v}.", "At the {s} you must say {v}."),
        "the pass word for the {s}",
        ("What is the pass word for the {s}?", "What must I say at the {s}?"),
        ("The pass word for the {s} is {v}.", "At the {s} you say {v}.", "{v}."),
        group="sites",
    ),
    Relation(
        "opening", "venue", "time",
        ("The {s} opens at {v}.", "The doors of the {s} open at {v}."),
        "when the {s} opens",
        ("When does the {s} open?", "At what time does the {s} open?", "From when is the {s} open?"),
        ("The {s} opens at {v}.", "At {v}.", "{v}."),
        group="town",
    ),
    Relation(
        "closing day", "venue", "day",
        ("The {s} is closed on {v}.", "On {v} the {s} stays shut."),
        "when the {s} is closed",
        ("On which day is the {s} closed?", "When is the {s} closed?"),
        ("The {s} is closed on {v}.", "On {v}.", "{v}."),
        group="town",
    ),
    Relation(
        "street", "venue", "title",
        ("The {s} is on {v} Street.", "You find the {s} on {v} Street."),
        "on which street the {s} is",
        ("On which street is the {s}?", "What street is the {s} on?"),
        ("The {s} is on {v} Street.", "On {v} Street.", "{v} Street."),
        ("What is on {v} Street?",), "what is on {v} Street", "town",
    ),
    Relation(
        "head", "venue", "person",
        ("The head of the {s} is {v}.", "{v} runs the {s}."),
        "who runs the {s}",
        ("Who runs the {s}?", "Who is the head of the {s}?"),
        ("{v} runs the {s}.", "The head of the {s} is {v}.", "{v}."),
        ("What does {v} run?",), "what {v} runs", "town",
    ),
    Relation(
        "day", "event", "day",
        ("The {s} is on {v}.", "The {s} takes place on {v}."),
        "when the {s} is",
        ("When is the {s}?", "On which day is the {s}?", "What day is the {s}?"),
        ("The {s} is on {v}.", "On {v}.", "{v}."),
        group="events",
    ),
    Relation(
        "start", "event", "time",
        ("The {s} starts at {v}.", "The {s} begins at {v}."),
        "at what time the {s} starts",
        ("At what time does the {s} start?", "What time does the {s} begin?"),
        ("The {s} starts at {v}.", "At {v}.", "{v}."),
        group="events",
    ),
    Relation(
        "host", "event", "person",
        ("{v} hosts the {s}.", "The host of the {s} is {v}."),
        "who hosts the {s}",
        ("Who hosts the {s}?", "Who is the host of the {s}?"),
        ("{v} hosts the {s}.", "The host of the {s} is {v}.", "{v}."),
        ("What does {v} host?",), "what {v} hosts", "events",
    ),
    Relation(
        "hall", "event", "place",
        ("The {s} is held in {v}.", "They hold the {s} in {v}."),
        "where the {s} is held",
        ("Where is the {s} held?", "Where do they hold the {s}?"),
        ("The {s} is held in {v}.", "In {v}.", "{v}."),
        ("What is held in {v}?",), "what is held in {v}", "events",
    ),
    Relation(
        "mayor", "place", "person",
        ("The mayor of {s} is {v}.", "In {s} the mayor is {v}."),
        "who the mayor of {s} is",
        ("Who is the mayor of {s}?", "What is the name of {s}'s mayor?"),
        ("The mayor of {s} is {v}.", "{v} is the mayor of {s}.", "{v}."),
        ("Of which town is {v} the mayor?", "Where is {v} the mayor?"),
        "where {v} is the mayor", "towns",
    ),
    Relation(
        "bridges", "place", "small",
        ("{s} has {v} bridges.", "In {s} there are {v} bridges."),
        "how many bridges {s} has",
        ("How many bridges does {s} have?", "How many bridges are in {s}?"),
        ("{s} has {v} bridges.", "{v}.", "There are {v} bridges in {s}."),
        group="towns",
    ),
    Relation(
        "train", "place", "time",
        ("The train to {s} leaves at {v}.", "At {v} a train leaves for {s}."),
        "when the train to {s} leaves",
        ("When does the train to {s} leave?", "When is the train to {s}?"),
        ("The train to {s} leaves at {v}.", "At {v}.", "{v}."),
        ("Where does the train at {v} go?",), "where the train at {v} goes", "towns",
    ),
    Relation(
        "river", "place", "title",
        ("The river in {s} is called {v}.", "Through {s} flows the river {v}."),
        "what the river in {s} is called",
        ("What is the river in {s} called?", "Which river flows through {s}?"),
        ("The river in {s} is called {v}.", "{v} flows through {s}.", "{v}."),
        ("Where is the river {v}?",), "where the river {v} is", "towns",
    ),
    Relation(
        "goods", "order", "goods",
        ("Order {s} is for {v}.", "Order {s} contains {v}."),
        "what is in order {s}",
        ("What is in order {s}?", "What does order {s} contain?"),
        ("Order {s} contains {v}.", "Order {s} is for {v}.", "{v}."),
        ("Which order is for {v}?", "Which order contains {v}?"),
        "which order contains {v}", "orders",
    ),
    Relation(
        "to", "order", "place",
        ("Order {s} goes to {v}.", "Order {s} is sent to {v}."),
        "where order {s} goes",
        ("Where does order {s} go?", "Where is order {s} sent?", "What city is order {s} for?"),
        ("Order {s} goes to {v}.", "To {v}.", "{v}."),
        ("Which order goes to {v}?",), "which order goes to {v}", "orders",
    ),
    Relation(
        "buyer", "order", "person",
        ("Order {s} was placed by {v}.", "The buyer of order {s} is {v}."),
        "who placed order {s}",
        ("Who placed order {s}?", "Who is the buyer of order {s}?"),
        ("{v} placed order {s}.", "The buyer of order {s} is {v}.", "{v}."),
        ("Which order did {v} place?",), "which order {v} placed", "orders",
    ),
    Relation(
        "meaning", "word", "item",
        ("The word {s} means {v}.", "In their language {s} means {v}."),
        "what {s} means",
        ("What does {s} mean?", "What is the meaning of {s}?"),
        ("The word {s} means {v}.", "{s} means {v}."),
        ("Which word means {v}?", "What is the word for {v}?"),
        "which word means {v}", "words",
    ),
)

TOLD = PEOPLE + THINGS
