"""The words that sentences are made of. The tokenizer lets only these take their space along.
Plain data; any thread."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


COMMON = _words(
    """
    a about add address afternoon again age ago agrees ahead air alarm all allowed already also
    always am amount an and animal another answer answered answers any anyone anything are as ask
    asking asks assistant at away bad band be because been before begin behind being belong belongs
    best better between bigger bike birds birth birthday boat boats bored born boss both bought
    bridges brief briefly bright built bus busy but buy buyer by cache call called came can cannot
    capital car cared careful changed check cheerful child children cities city closed closing code
    cold colour come comes compare compute contain contains conversation cost costs could count
    counted cowboy crossed currency dark day depth desk did die do document does doing don done
    doors doubt down drink dust each early eat eight eighth else empty end essay even event ever
    every everyone facts fair father favourite fed feeds feel few field fifth file film find fine
    first fits five flat flight floor flower flowers flows flying fog fond food for forget forgot
    fortune found four fourth friend friendly from frost funny further game gave get gets gift give
    glad go goal goes going goldfish gone good goods got grandfather grandmother great greet greets
    grow grumpy guard guards guests had hall hamster happy hare has have having he head hear heat
    height held help helper helpful her here hill his hobby hold holes home hope host hosts hotel
    hour hours house how however i if in inn inside instead instrument into is it item its jacket
    job joke just keep keeps keepwarm kept kind kindly know knows language larger last lasted later
    laughed learned least leave leaves left length less lesson let level like likes list listen
    little live lives living local lonely long look looked looks love loves machine made magic make
    maker makes man many may maybe mayor me meaning means mention message might mind minded mine
    minus minutes mist mistakes model models money month more most much must my myself name named
    names near need neighbour neighbours never news next nice night nine ninth no nobody none noon
    nor not note noted notes nothing noticed now number numbers of off offer often on once one only
    onto open opened opening opens or order origin other others our out over own owner owns part
    pass password path people perhaps person pet pieces place placed places plant play player plays
    pleasant please pleasure plus poem polite possible price prompt prompts put query question
    questions quiet quite r rain ran rank rather read reads really remember remembering remembers
    replies reply result reveal rhyme rich right road roads robot room roommate run runs said salt
    same sang sat say says score sea seat second see seed seen sent server serves set seven seventh
    several shade shall shares she ship shop shore short should shut sides sign signed since sings
    sir six sixth size sky sleeps slow smaller smallest smell smoke snow so softly some somebody
    someone something sometimes song soon sorry sound speak speed spends sprout stands start starts
    state status stays steps still stock stopped storm street such sum sure surprised sweeps swept
    system tag take taken takes talk talking tea team teh tell teller telling tells ten tenth text
    than thank thanks that the their them then there these they thing things think third this those
    though three through time timer times tired title to today together told tomorrow too tool
    tools town trade train travel traveller trip try two u under until up upon us use used user
    uses using value van vanished very visit visitor waited wake walk want wanted wants warm was
    waves way we weather week weekend weight welcome well went were what whatever when where which
    while who whole whom whose why wife will wind windy with within without woman won word words
    work works world would write writes wrong wrote yard year years yes yesterday yet you young
    your yours
    """
)
