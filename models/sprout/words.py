"""The word lists of the generated dialogues, all our own. Plain data; any thread."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES = _words(
    """
    Anna Carl Erik Maja Lars Ingrid Oskar Freya Nils Astrid Jonas Karin Sven Elsa Olaf Greta Hugo
    Linnea Axel Sigrid Anton Vera Emil Tove Gustav Alma Rolf Stina Henrik Ebba Magnus Saga Viktor
    Maria Pedro Lucia Diego Elena Marco Sofia Paolo Chiara Luca Bianca Enzo Rosa Carlos Ines Javier
    Carmen Luis Marta Pablo Nuria Rafael Teresa Mateo Irene Tomas Pilar Andres Silvia Ramon Clara
    Amir Layla Omar Yasmin Karim Fatima Hassan Noor Samir Zahra Tariq Leila Yusuf Amina Khalid Salma
    Wei Mei Jun Ling Chen Yuki Hana Kenji Aiko Haruto Sora Ren Akira Naomi Daichi Emi Min Jae Soo
    Raj Priya Arjun Anika Dev Meera Kiran Sanjay Lata Rohan Asha Vikram Nisha Anil Deepa Ravi Usha
    Kofi Ama Kwame Abena Chidi Ngozi Tunde Zola Sipho Thandi Juma Amani Baraka Neema Imani Jabari
    John Mary James Emma Peter Alice Tom Susan Henry Grace Jack Lucy George Nora Frank Ruby Walter
    Daisy Arthur Hazel Simon Ivy Martin Pearl Oliver Violet Edgar Rose Ralph June Stella Bruno Max
    Felix Otto Heidi Klaus Petra Dieter Ute Hans Birgit Jens Anke Kurt Lena Moritz Tilda Pia Leo
    Ivan Olga Boris Natasha Dmitri Irina Pavel Katya Yuri Vera Mila Zoran Jelena Dragan Vesna Goran
    Adam Eva Jakub Zofia Piotr Hanna Marek Agata Tadek Kasia Milan Jana Petr Lenka Josef Alena
    Pierre Claire Luc Marie Jean Sylvie Michel Odile Remy Colette Bastien Margot Etienne Lise Noel
    Aoife Niall Siobhan Cormac Maeve Declan Orla Rory Fiona Angus Isla Ewan Morag Callum Gwen Rhys
    Mateus Joana Thiago Beatriz Bruna Davi Larissa Caio Livia Nuno Rita Duarte Filipa Sergio Alba
    Nadia Tamar Eitan Shira Ari Dalia Gideon Rivka Noa Ezra Talia Micah Judith Saul Miriam Levi
    Quinn Robin Sasha Kai Rowan Sage River Blake Reese Jordan Casey Morgan Avery Skyler Finley Toby
    Wendy Gavin Tessa Dylan Molly Logan Paige Connor Bella Ethan Chloe Nathan Megan Lewis Amber Kyle
    """
)

PETS = _words(
    """
    Milo Rex Bella Luna Rocky Biscuit Pepper Shadow Ginger Patch Whiskers Socks Buddy Coco Daisy Fig
    Mango Olive Peanut Pickle Pumpkin Rusty Sunny Toffee Waffle Ziggy Bramble Cinder Dusty Echo Fern
    Gizmo Hopper Inky Jasper Kiwi Lucky Maple Nugget Oreo Poppy Quill Rosie Scout Tango Velvet Willow
    Button Clover Domino Ember Flash Goose Honey Indigo Juniper Koda Lemon Marble Nutmeg Onyx Pebble
    """
)

PLACES = _words(
    """
    Lund Bergen Oslo Turku Aarhus Malmo Narvik Uppsala Visby Kiruna Porto Lisbon Madrid Seville Turin
    Genoa Naples Palermo Verona Siena Lyon Nantes Lille Rennes Dijon Toulouse Ghent Bruges Antwerp
    Leiden Delft Utrecht Bonn Kassel Bremen Dresden Leipzig Mainz Ulm Graz Linz Salzburg Basel Bern
    Geneva Zurich Prague Brno Krakow Gdansk Lublin Warsaw Vilnius Riga Tallinn Tartu Minsk Kyiv Odesa
    Varna Sofia Athens Patras Izmir Ankara Bursa Cairo Luxor Tunis Oran Rabat Fez Dakar Accra Lagos
    Nairobi Mombasa Kampala Lusaka Harare Durban Delhi Mumbai Pune Goa Kochi Jaipur Agra Dhaka
    Colombo Hanoi Hue Manila Cebu Seoul Busan Osaka Kyoto Nara Kobe Tokyo Taipei Perth Sydney Hobart
    Auckland Napier Quebec Ottawa Calgary Halifax Boston Denver Austin Tulsa Reno Salem Dallas Miami
    Lima Cusco Quito Bogota Cali Medellin Santiago Valdivia Rosario Cordoba Recife Natal Belem Leeds
    York Bath Derby Exeter Truro Dover Cork Galway Sligo Dundee Oban Perth Cardiff Swansea Bangor
    """
)

ITEMS = _words(
    """
    lamp rope key map book clock mirror candle bucket ladder hammer needle basket blanket bottle
    compass drum kettle ring sword crown coin letter lantern pillow spoon knife fork plate cup bowl
    jar pot pan chair table bench stool shelf carpet curtain broom brush comb towel soap sponge
    umbrella coat scarf glove hat boot shoe belt button zip thread ribbon bead feather shell stone
    pebble crystal bell whistle flute violin guitar piano trumpet harp radio camera phone laptop
    printer pencil pen notebook stamp envelope folder ruler eraser chisel brick stapler paintbrush canvas
    easel kite ball puppet doll puzzle domino marble balloon skate bicycle helmet paddle tent backpack
    suitcase passport ticket wallet purse watch visor necklace bracelet brooch vase statue carving
    saw drill wrench screw nail bolt chain hook anchor sail oar net barrel crate wheel engine pump
    pipe valve cable battery bulb switch socket fan heater stove oven fridge toaster blender mixer
    scale funnel sieve tray napkin tin bag sack box chest drawer cabinet hanger iron magnet lens
    telescope microscope globe calendar diary poster flag badge medal trophy token coaster receipt
    """
)

# As in "Anna likes ...": many or a mass.
FOODS = _words(
    """
    apples pears plums cherries peaches mangos bananas oranges lemons limes grapes melons figs dates
    apricots kiwis carrots potatoes onions garlic leeks cabbage spinach lettuce cucumbers tomatoes
    peppers pumpkins radishes turnips beans peas lentils rice pasta noodles bread toast bagels muffins
    pancakes waffles cookies cake pies pudding honey jam butter cheese yogurt cream milk eggs omelettes
    soup stew curry salad sandwiches pizza burgers tacos sushi dumplings risotto lasagne porridge
    granola popcorn chocolate caramel vanilla cinnamon ginger mint basil walnuts almonds hazelnuts
    peanuts chestnuts olives mushrooms
    """
)

ANIMALS = _words(
    """
    dog cat horse cow goat sheep pig hen duck goose rabbit mouse rat fox wolf bear deer moose otter
    beaver badger hedgehog squirrel owl eagle hawk falcon raven crow swan heron stork pigeon sparrow
    robin parrot penguin turtle tortoise lizard snake frog toad newt salmon trout shark whale dolphin
    seal crab lobster snail bee ant spider moth butterfly donkey camel llama zebra giraffe lion tiger
    """
)

JOBS = _words(
    """
    baker teacher nurse doctor farmer painter pilot sailor carpenter plumber gardener tailor librarian
    lawyer judge cook waiter driver mechanic engineer builder mason potter weaver jeweller barber
    dentist vet writer poet singer drummer dancer actor clown juggler photographer journalist editor
    translator chemist biologist geologist astronomer miner fisher shepherd beekeeper forester ranger
    firefighter postman courier cashier clerk banker accountant architect designer tutor coach referee
    electrician welder locksmith clockmaker glassblower florist butcher grocer brewer cheesemaker
    """
)

HOBBIES = _words(
    """
    chess painting fishing sailing knitting cooking dancing singing running swimming climbing skiing
    cycling hiking reading gardening pottery archery fencing rowing juggling photography birdwatching
    astronomy carpentry embroidery origami calligraphy skating surfing yoga tennis football hockey
    badminton volleyball bowling darts karate judo boxing camping baking sewing
    """
)

INSTRUMENTS = _words(
    """
    violin cello flute harp piano guitar drums trumpet trombone clarinet oboe saxophone banjo
    accordion organ ukulele mandolin tuba bassoon viola
    """
)

COLOURS = _words(
    """
    red blue green yellow black white brown grey pink purple orange silver gold violet turquoise
    beige scarlet crimson navy teal ivory maroon amber olive
    """
)

ADJECTIVES = _words(
    """
    old new small large broken heavy light round square wooden golden rusty shiny spare tiny long
    short thick thin plain striped dusty clean soft hard folded painted cracked polished lost
    """
)

CONTAINERS = _words(
    """
    box drawer chest bag basket cupboard cabinet crate jar tin shelf locker trunk suitcase barrel
    safe bucket pouch sack wardrobe
    """
)

ROOMS = _words(
    """
    kitchen attic cellar garage hallway library bedroom bathroom garden shed office workshop pantry
    balcony studio barn stable greenhouse laundry lounge
    """
)

SITES = _words(
    """
    gate door vault cellar tower lab office garage archive warehouse workshop library gallery
    boathouse hangar bunker studio storeroom stairwell lift
    """
)

VENUES = _words(
    """
    bakery museum library pool gym bar cinema market pharmacy zoo bank cafe bookshop theatre
    restaurant gallery laundry aquarium castle harbour clinic school
    """
)

EVENTS = _words(
    """
    meeting concert party wedding lecture picnic parade auction festival interview rehearsal race
    workshop dinner exam market tournament reunion regatta quiz
    """
)

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

MONTHS = _words(
    """
    January February March April May June July August September October November December
    """
)

SIDES = (
    "north",
    "south",
    "east",
    "west",
    "main",
    "back",
    "front",
    "inner",
    "outer",
    "upper",
    "lower",
)

RELATIVES = _words(
    """
    sister brother mother father uncle aunt cousin boss teacher neighbour doctor daughter son wife
    husband friend grandmother grandfather landlord roommate dentist coach
    """
)

ORDINALS = (
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
)

# Words that people type for no reason in particular; also secrets, pass phrases and titles.
PLAIN = _words(
    """
    river mountain forest ocean island desert valley meadow winter summer autumn spring morning
    evening midnight thunder rainbow sunshine shadow silver copper diamond emerald sapphire velvet
    cotton marble granite harbor bridge castle palace temple garden orchard vineyard village kingdom
    dragon phoenix unicorn wizard knight pirate captain hunter dancer dreamer traveler stranger
    whisper echo mystery wonder journey adventure treasure legend story memory future history dynamo
    puzzle riddle signal rocket planet comet meteor galaxy nebula orbit saturn jupiter mercury venus
    tiger panther dolphin sparrow butterfly dragonfly firefly ladybug cactus bamboo maple cedar willow
    birch pine lotus orchid tulip daisy lavender jasmine saffron paprika pretzel cracker biscuit
    pancake noodle dumpling mustard pepper sugar coffee cocoa lemonade window curtain chimney ladder
    corner pocket button zipper blanket pillow hammer anvil furnace engine turbine piston magnet laser
    pixel vector matrix python cobra falcon condor pelican walrus narwhal octopus jellyfish coral reef
    lagoon canyon glacier volcano tundra prairie savanna jungle swamp tunnel avenue station platform
    ticket luggage compass anchor rudder canoe raft ferry submarine helicopter airplane parachute
    """
)

# What anything may have: "the height of the tower".
ATTRIBUTES = _words(
    """
    height weight colour name price age length owner code number size title password label maker
    origin symbol answer rank score address motto date goal theme
    """
)

MY_ATTRIBUTES = tuple(
    """
    wifi password, shoe size, middle name, user name, pin, favourite number, team name, license plate,
    gate code, bus stop, flight number, street name, project name, nickname,
    parking spot, class name, order number, door code, band name, lucky charm, last name
    """.replace("\n", " ")
    .strip()
    .split(", ")
)
