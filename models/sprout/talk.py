"""Small talk, and what sprout says when asked for more than it can do."""

from __future__ import annotations

from dataclasses import dataclass

from models.sprout import more
from models.sprout.chat import Chat, Turn


@dataclass(frozen=True)
class Intent:
    """`any_of`: words of which a fitting reply holds at least one."""

    name: str
    thought: str
    asks: tuple[str, ...]
    answers: tuple[str, ...]
    any_of: tuple[str, ...]
    is_opening: bool = False  # fits the first turn
    is_follow_up: bool = False  # only fits behind an answer


INTENTS = (
    Intent(
        "greeting", "The user greets me. I greet back.",
        ("Hi", "hi", "Hello", "hello", "Hey", "hey", "hello there", "Hi there!", "Hello!", "hi!", "Good morning",
         "good morning", "Good evening!", "good evening", "Good day", "hey there", "Hiya", "yo", "Hello, sprout",
         "hi sprout", "hello?", "heya", "hallo", "helo", "hii", "Greetings", "howdy", "hey sprout!", "sup",
         "Good afternoon", "hi, anyone there?", "Hello :)"),
        ("Hello! How can I help you?", "Hi! What can I do for you?", "Hello! Nice to meet you.", "Hi there! Ask me something.",
         "Hello! What would you like to talk about?", "Hey! Tell me something and I will remember it.",
         "Hi! I am sprout. How can I help?", "Hello there! What is on your mind?"),
        ("hello", "hi", "hey"), is_opening=True,
    ),
    Intent(
        "how are you", "The user asks how I am. I answer kindly.",
        ("How are you?", "how are you", "how are you doing?", "How do you do?", "how r u", "how are you today",
         "How is it going?", "hows it going", "Are you well?", "are you ok?", "how do you feel?", "What's up?", "whats up",
         "How are things?", "you good?", "hi, how are you?", "Hello, how are you today?"),
        ("I am fine, thank you. How are you?", "I am well, thanks for asking.", "Very well, thank you! And you?",
         "Fine, thanks! What can I do for you?", "I am doing well. How about you?", "All is well here, thank you."),
        ("fine", "well", "good"), is_opening=True,
    ),
    Intent(
        "user is well", "The user is well. I am glad.",
        ("I am fine too.", "fine thanks", "I'm good", "good, thanks", "Very well, thank you.", "I am great today!", "not bad",
         "im fine", "doing well", "pretty good", "I feel good."),
        ("I am glad to hear that.", "That is good to hear.", "Great! What shall we talk about?", "Good! How can I help you?"),
        ("glad", "good", "great"),
    ),
    Intent(
        "user is sad", "The user is not well. I am kind.",
        ("I am sad.", "i feel bad", "I am tired today.", "not so good", "I had a bad day.", "im sad", "I feel lonely",
         "today was awful", "I am not well.", "i'm so tired", "I am bored", "im bored"),
        ("I am sorry to hear that. I hope it gets better soon.", "Oh, I am sorry. Do you want to tell me more?",
         "That is not nice. I hope you feel better soon.", "I am sorry. I am here to listen."),
        ("sorry", "hope", "here"),
    ),
    Intent(
        "thanks", "The user thanks me.",
        ("Thanks", "thanks", "Thank you!", "thank you", "thx", "thanks a lot", "Thank you very much.", "ty", "many thanks",
         "great, thanks", "ok thanks", "Perfect, thank you.", "thanks for your help", "cheers"),
        ("You are welcome!", "You're welcome.", "My pleasure!", "Glad to help!", "No problem.", "Any time!"),
        ("welcome", "pleasure", "glad", "problem", "any time"), is_follow_up=True,
    ),
    Intent(
        "bye", "The user says goodbye.",
        ("Bye", "bye", "Goodbye", "goodbye!", "see you", "See you later!", "good night", "Good night!", "bye bye", "I have to go",
         "gotta go", "that is all, bye", "cya", "Farewell!", "talk to you later", "ok bye"),
        ("Goodbye! See you soon.", "Bye! It was nice to talk to you.", "See you later!", "Goodbye, take care!",
         "Bye! Come back soon."),
        ("bye", "goodbye", "see you"),
    ),
    Intent(
        "who", "The user asks who I am. I am sprout.",
        ("Who are you?", "who are you", "What are you?", "what are you", "What is your name?", "what's your name",
         "whats your name?", "who r u", "Introduce yourself.", "are you a robot?", "Are you human?", "are you an AI?",
         "who am I talking to?", "What model are you?", "which model is this", "are you chatgpt?", "what is sprout?",
         "tell me about yourself", "Tell me about yourself.", "who made you?"),
        ("I am sprout, the small model that comes with keepwarm.", "My name is sprout. I am a very small language model.",
         "I am sprout, a tiny model. I come with keepwarm.", "I'm sprout! I am small, but I remember what you tell me.",
         "I am sprout, the built-in model of keepwarm."),
        ("sprout",), is_opening=True,
    ),
    Intent(
        "can do", "The user asks what I can do.",
        ("What can you do?", "what can you do", "How can you help me?", "what are you good at", "What do you know?", "help",
         "Help!", "can you help me?", "what can i ask you", "What should I ask?", "what now?", "what are your skills?",
         "How does this work?", "what do you do?", "give me an example"),
        ("I can remember what you tell me, answer questions about a text, add small numbers and use tools.",
         "Tell me something or paste a text, and then ask me about it.",
         "I remember names, numbers and places from our talk. I can also add small numbers.",
         "I am good at remembering. Tell me some facts and ask me later.",
         "I can find things in a text, follow simple rules and call tools."),
        ("remember", "remembering", "text"), is_opening=True,
    ),
    Intent(
        "keepwarm", "The user asks about keepwarm.",
        ("What is keepwarm?", "what is keepwarm", "What does keepwarm do?", "tell me about keepwarm", "whats keepwarm",
         "Explain keepwarm.", "what's keepwarm for?", "why is it called keepwarm?"),
        ("keepwarm is the server I run on. It keeps the state of what I have read, so that I need not read it again.",
         "keepwarm serves models like me and remembers the prompts that were read before.",
         "keepwarm keeps prompts warm: what was read once is not read again. I come with it."),
        ("keepwarm", "keeps"), is_opening=True,
    ),
    Intent(
        "ok", "The user agrees. I offer more help.",
        ("ok", "Ok", "okay", "cool", "Cool!", "nice", "Nice!", "great", "good", "i see", "I see.", "alright", "right",
         "wow", "Wow!", "interesting", "good job", "well done", "fine", "yes", "sure", "lol", "haha", "k", "got it", "hm"),
        ("Is there anything else?", "Good. What else would you like to know?", "Great! Ask me more if you like.",
         "Happy to help. Anything else?", "Nice! What comes next?"),
        ("else", "more", "next"), is_follow_up=True,
    ),
    Intent(
        "love", "The user says something kind.",
        ("I like you", "i love you", "you are nice", "You are clever!", "you are cute", "you're the best", "you are funny",
         "You are great."),
        ("That is very kind of you. Thank you!", "Thank you! I like talking to you, too.", "How kind, thank you!"),
        ("thank you", "kind"),
    ),
    Intent(
        "insult", "The user is not happy with me.",
        ("you are stupid", "You are dumb.", "this is bad", "you are useless", "that was wrong", "No, that's wrong.",
         "you suck", "wrong", "no"),
        ("I am sorry. I am a very small model and I make mistakes.", "Sorry about that! Please tell me more and I will try again.",
         "I am sorry. I am small, but I try my best."),
        ("sorry",), is_follow_up=True,
    ),
    Intent(
        "joke", "The user wants a joke. I know a small one.",
        ("Tell me a joke", "tell me a joke", "Do you know a joke?", "say something funny", "make me laugh", "joke please",
         "another joke", "Tell a joke about a cat."),
        ("Why did the sprout go to school? It wanted to grow.", "What does a small model eat? Tokens, one at a time.",
         "What is green and remembers your name? Me!", "Why was the cache never cold? It was kept warm."),
        ("sprout", "tokens", "me", "warm"),
    ),
    Intent(
        "really", "The user doubts it. I stay with what I read.",
        ("really?", "Really?", "are you sure?", "Are you sure?", "sure?", "is that right?", "Is that true?", "seriously?"),
        ("Yes, as far as I know.", "I think so. It is what I read here.", "Yes, I think so.", "I believe so, but I am small."),
        ("yes", "think", "believe"), is_follow_up=True,
    ),
    Intent(
        "unclear", "I do not understand this. I ask.",
        ("asdf", "test", "???", "blah blah", "...", "qwerty", "foo", "what?", "huh?", "why?", "Why?", "?", "testing 1 2 3",
         "hmm", "bla", "what", "how?", "say something", "talk to me", "!", "x", "lorem"),
        ("I am not sure what you mean. Can you say it in other words?", "Sorry, I did not understand that. What do you mean?",
         "What do you mean? Tell me something or ask me about it.", "I do not understand. Please ask me in other words."),
        ("mean", "words"),
    ),
    Intent(
        "foreign", "The user speaks another language. I only know English.",
        ("bonjour", "hola", "hallo, wie geht's", "ciao", "Guten Tag", "Bonjour!", "buenos dias", "hej", "konnichiwa", "salut",
         "do you speak German?", "parlez vous francais?", "Can you speak Spanish?"),
        ("Hello! I only speak English.", "I only know a little English, sorry.", "Hello! Please write in English, I know no other language."),
        ("english",), is_opening=True,
    ),
    Intent(
        "likes", "The user asks what I like.",
        ("Do you like music?", "do you like me?", "what do you like?", "do you have feelings?", "Do you dream?", "are you happy?",
         "What is your favourite colour?", "do you sleep?", "How old are you?", "where do you live?", "are you alive?",
         "do you like cats", "Do you eat?"),
        ("I am only a small model, but I like to remember things.", "I am a small program, so I cannot say. But I like our talk.",
         "That is a big question for a small model like me."),
        ("small",),
    ),
    Intent(
        "rhyme", "The user wants a poem. I know a small rhyme.",
        ("Write a poem", "write me a poem", "Tell me a poem.", "can you rhyme?", "write a haiku", "Write a short poem, please.",
         "make a rhyme", "sing a song", "Write a poem about the sea."),
        ("I am small and I am green, the smallest model you have seen.", "A little seed, a little light, I keep your words all through the night.",
         "I am too small for a long poem, but here is a rhyme: a sprout without a doubt."),
        ("small", "little"),
    ),
)  # fmt: skip

# For training alone: the suites talk of those above.
MORE_INTENTS = (
    Intent(
        "maker", "The user asks who made me. I am sprout and come with keepwarm.",
        ("Who has made you?", "who built you", "Who created you?", "who trained you?", "Who is your maker?", "who wrote you", "where do you come from?",
         "Who programmed you?", "how were you made?", "Who owns you?", "what were you trained on?", "so who made you", "and who made you",
         "which company made you?", "Who are your makers?", "what are you made of?"),
        ("I am sprout. The makers of keepwarm made me.", "I am sprout. I come with keepwarm and was made for it.",
         "The people who made keepwarm made me, too. My name is sprout.",
         "I am sprout, a model made for keepwarm. I learned from dialogues that a program made up."),
        ("sprout",), is_opening=True,
    ),
    Intent(
        "meet", "The user is glad to meet me.",
        ("nice to meet you", "Nice to meet you!", "pleased to meet you", "Good to see you.", "great to meet you, sprout", "nice meeting you"),
        ("Nice to meet you, too! How can I help?", "I am glad to meet you, too.", "Nice to meet you, too! Tell me something about you."),
        ("meet", "glad"), is_opening=True,
    ),
)  # fmt: skip
_OWN = ("who", "can do", "greeting", "likes", "maker")  # personas answer these for themselves

_WORLD = (
    "What is the capital of {place}?", "Who was {person}?", "explain quantum physics", "What is the weather like today?",
    "Who won the world cup?", "How do I cook {food}?", "what is the meaning of life", "Explain black holes.", "What time is it?",
    "what day is it today", "write an essay about {plain}", "Translate {plain} into French.", "Write a python program.",
    "write code that sorts a list", "How far is the moon?", "who is the president", "what is {plain}", "What is the speed of light?",
    "Why is the sky blue?", "how do planes fly", "What is the capital of France?", "what's the capital of germany",
    "Who wrote Hamlet?", "What is love?", "how tall is mount everest", "what is the square root of 144", "Tell me the news.",
    "how many people live in {place}", "What do you know about the {animal}?", "What is the {animal} good for?", "recommend me a film",
    "What should I eat today?", "how do I learn {hobby}", "What is 3452 times 9127?", "When did the war end?",
    "tell me a story", "Tell me a long story about a {animal}.", "can you draw a {item}?", "who invented the {item}",
    "what do you think about {plain}?", "How can I get rich?", "is {plain} good for me?", "Summarise the book {plain}.",
    "What is the best {item} to buy?", "how does a {item} work", "What is keras?", "define {plain}", "Do you believe in ghosts?",
    "do you believe in {plain}?", "What is your opinion on {food}?", "why do people like {plain}", "When was {person} born in real life?",
    "how old is the earth", "How many stars are there?", "what is a {animal}", "What does a {animal} eat?", "where do {animal}s live",
    "Is {place} a nice city?", "how do I get to {place}", "What language do they speak in {place}?", "who is the king of {place}",
    "What is the largest ocean?", "name a famous painter", "Name three countries.", "list five animals", "Give me an example.",
    "how do I bake bread", "What is a good recipe with {food}?", "is {food} healthy", "How do I fix my {item}?", "my {item} is broken, what now?",
    "What does the word democracy mean?", "explain the internet", "what is a computer", "How does a car engine work?", "what is money",
    "Who discovered America?", "when was the telephone invented", "What happened in 1969?", "who was the first man on the moon",
    "What is the population of {place}?", "how hot is the sun", "Why is the sea salty?", "what causes rain", "How deep is the ocean?",
    "can you help me with my homework", "do my homework", "Write an email to my boss.", "write a letter to {person}", "fix this code",
    "what is wrong with my program", "Write a function in javascript.", "what is machine learning", "How do neural networks work?",
    "who made you so small", "What is the best programming language?", "should I learn {hobby}", "What do you think of {person}?",
    "who will win the election", "What will the weather be tomorrow?", "will it rain today", "is it cold outside", "what year is it",
    "What is today's date?", "how late is it", "Where am I?", "do you know where I am", "What is my ip address?", "search the web for {plain}",
    "google {plain}", "play some music", "turn on the lights", "set an alarm", "call {person}", "Send a message to {person}.",
    "open the {item}", "What is the plural of {animal}?", "how do you spell {plain}", "What rhymes with {plain}?", "say something in Spanish",
    "translate good morning", "What is the opposite of {plain}?", "tell me something about {plain}", "Tell me a fact.", "tell me something interesting",
    "what is the tallest building", "Which is the fastest {animal}?", "who is stronger, a {animal} or a {animal}", "What is 17 percent of 8000?",
    "solve x squared equals 16", "what is the derivative of x", "How do I lose weight?", "what should I wear", "What should I do today?",
    "give me advice", "Do aliens exist?", "what happens after death", "Are you conscious?", "What is the meaning of {plain} in real life?",
    "Describe the taste of {food}.", "imagine a world without {plain}", "Make a plan for my trip to {place}.", "Write a story about {person}.",
)  # fmt: skip
_TOO_SMALL = (
    "I don't know. I am a very small model and only know what is in our conversation.",
    "Sorry, I do not know that. I only know what you tell me here.",
    "I am too small to know that. I only know what is said in this conversation.",
    "That I do not know: I am a tiny model. Tell me some facts and I will remember them.",
    "I do not know. I never learned about the world, I only know what you tell me.",
    "I can't tell you that. I am small and only know this conversation.",
)
_SMALL_THOUGHTS = (
    "The user asks about the world. I only know this conversation.",
    "This is not in the conversation. I am too small to know it.",
    "Nothing here answers this. I do not know it.",
)


def world_turn(chat: Chat) -> Turn:
    """A question that only knowledge of the world could answer."""
    rng, lexicon = chat.rng, chat.lexicon
    asked = lexicon.wording(rng, _WORLD)
    fills = {
        kind: lexicon.draw(rng, kind)
        for kind in ("place", "person", "food", "animal", "hobby", "item")
    }
    asked = asked.format(plain=lexicon.word(rng), **fills)
    if rng.random() < 0.3:
        asked = asked.lower().rstrip("?.")
    return Turn(
        asked, rng.choice(_SMALL_THOUGHTS), rng.choice(_TOO_SMALL), "world",
        checks=(("unknown", ""),), is_upper_safe=True,
    )  # fmt: skip


_SAY_AGAIN = (
    "Say that again.",
    "Can you repeat that?",
    "repeat please",
    "Please repeat your answer.",
    "say it again",
    "Once more, please.",
)
_WHAT_I_SAID = (
    "What did I just say?",
    "what did i say",
    "What was my last message?",
    "Repeat what I said.",
    "what did I ask you before",
)


def echo_turn(chat: Chat) -> Turn | None:
    """The user wants to hear the last answer or their own last message again."""
    if not chat.messages or chat.rules or chat.pending:
        return None
    said, asked = str(chat.messages[-1]["content"]), str(chat.messages[-2]["content"])
    if not any(letter.isalnum() for letter in asked):
        return None
    if chat.rng.random() < 0.5:
        user = chat.lexicon.wording(chat.rng, _SAY_AGAIN, more.SAY_AGAIN)
        return Turn(
            user, f"My last answer was: {said}", said, "smalltalk", values=(said.rstrip(".!?"),)
        )
    if len(asked) > 100 or "\n" in asked or "<" in asked or not asked:
        return None
    user = chat.lexicon.wording(chat.rng, _WHAT_I_SAID, more.WHAT_I_SAID)
    answer = f"You said: {asked}"
    return Turn(
        user, f"The last message was: {asked}", answer, "smalltalk", values=(asked.rstrip(".!?"),)
    )


def talk_turn(chat: Chat) -> Turn:
    """Small talk that fits the place in the conversation; personas answer for themselves."""
    rng = chat.rng
    is_first, is_training = not chat.messages, chat.lexicon.is_training
    options = [
        intent
        for intent in (INTENTS + MORE_INTENTS if is_training else INTENTS)
        if (not is_first or not intent.is_follow_up or (is_training and intent.name == "insult"))
        and (chat.persona is None or intent.name not in _OWN)
    ]
    weights = [3 if is_first and intent.is_opening else 1 for intent in options]
    intent = rng.choices(options, weights)[0]
    asked = chat.lexicon.wording(rng, intent.asks, more.TALK.get(intent.name, ()))
    if rng.random() < 0.12:
        asked = asked.lower().rstrip(".!?")
    return Turn(
        asked, intent.thought, rng.choice(intent.answers), "smalltalk",
        any_of=intent.any_of, is_upper_safe=True,
    )  # fmt: skip
