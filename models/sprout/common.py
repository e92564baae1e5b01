"""The words that sentences are made of. The tokenizer lets only these take their space along.
Plain data; any thread."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


COMMON = _words(
    """
    a about add address afternoon again age ago agrees ahead air alarm all allowed already also
    always am amount an and animal another answer answered answers any anyone anything are as ask
    asking asks assistant at author away awful bad band be because been before begin begins behind
    being believe belong belongs best better between big bigger bike birds birth birthday boat
    boats bored born boss both bought bridges brief briefly bright built bus busy but buy buyer by
    bye cache call called came can cannot capital car care cared careful changed check cheerful
    child children cities city clever closed closing code cold colour come comes compare compute
    contain contains conversation cost costs could count counted cowboy crossed currency cute dark
    day degrees depth desk did die do document does doing dollar don done doors doubt doubts down
    draw drink dumb dust each early eat eight eighth else empty end entry essay even event ever
    every everyone example facts fair far father favourite fed feed feeds feel fetch few field
    fifth file film find fine first fits five flat flight floor flower flowers flows fly flying fog
    follow fond food for forget forgot fortune found four fourth friend friendly from frost funny
    further game gave get gets ghost gift give glad go goal goes going goldfish gone good goodbye
    goods got grandfather grandmother great greater greet greets grow grumpy guard guards guests
    had haiku hall hamster happy hare has have having he head hear heat height held help helper
    helpful her here hill his hive hobby hold holes home hope host hosts hotel hour hours house how
    however i if in inn inside instead instrument into is it item its itself jacket job joke just
    keep keeps keepwarm kept kind kindly know knows language larger last lasted late later laugh
    laughed learn learned least leave leaves left length less lesson let level life like likes list
    listen little live lives living local lonely long look looked looks lookup love loves machine
    made magic make maker makes man many may maybe mayor me mean meaning means meet mention message
    might mind minded mine minus minutes mist mistakes model models money month moon more most
    mount much music must my myself name named names near need neighbour neighbours never news next
    nice night nine ninth no nobody none noon nor not note noted notes nothing noticed now number
    numbers of off offer often on once one only onto open opened opening opens or order origin
    other others our out over own owner owns part pass password paste path people perhaps person
    pet physics pieces place placed places planes plant play player playing plays pleasant please
    pleasure plus poem polite portions possible pound president price problem program prompt
    prompts put quantum query question questions quiet quite r rain ran rank rather read reads
    really remember remembering remembers repeat replies reply reserve result reveal rhyme rich
    right road roads robot roll rolled room roommate root rules run runs sad said salt same sang
    sat say says score sea seat second see seed seen sent server serves set seven seventh several
    shade shall shares she ship shop shore short should shut sided sides sign signed simple since
    sings sir six sixth size sky sleeps slow smaller smallest smell smoke snow so softly some
    somebody someone something sometimes song soon sorry sorts sound speak speaks speed spends
    sprout stands start starts state status stay stays steps still stock stopped storm street such
    suck sum sure surprised sweeps swept system tag take taken takes talk talking tall tea team teh
    tell teller telling tells ten tenth text than thank thanks that the their them then there these
    they thing things think third this those though three through throw time timer times tired
    title to today together told tomorrow too tool tools town track trade train translate travel
    traveller trip try turn two u under understand unlock until up upon us use used useless user
    uses using value van vanished very visit visitor waited wake walk want wanted wants war warm
    was watts waves way we weather week weekend weight welcome well went were what whatever whats
    when where which while who whole whom whose why wife will wind windy with within without woman
    won word words work works world would write writes written wrong wrote yard year years yes
    yesterday yet you young your yours yourself
    """
)
