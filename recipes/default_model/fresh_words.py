"""Words that the notes of the corpus do not have, and facts made of them.

Most of them take several tokens. Only the evaluation uses one in five: see `is_fresh_held_out`.
"""

import random
import string
import zlib
from functools import cache
from typing import Final

from tiny_llm_lab.measure.corpus.recall import Fact
from tiny_llm_lab.measure.corpus.words import ADJECTIVES, PLACES, THINGS

from .strange_facts import invented_word

HELD_OUT_ONE_IN: Final = 5
_FREQUENT: Final = ("in", "on", "the", "under", "near", "keep", "be", "where", "who", "what", "do")

FRESH_NAMES: Final[tuple[str, ...]] = tuple(
    """
    Aaron Abby Abdul Abel Abigail Adele Adrian Agatha Ahmed Aisha Albert Aldo Alex Alexander Alexis Alfred
    Ali Alina Alison Amanda Amara Amber Amelia Amina Anastasia Andrea Andrew Angela Angus Anita Ann Anne
    Annie Anton Antonia April Arthur Ashley Audrey August Barbara Barry Beatrice Becky Benjamin Bernard
    Bianca Billy Bjorn Bonnie Boris Brenda Brian Bridget Brigitte Bruce Caleb Camille Carlos Caroline
    Catherine Cecil Charles Charlotte Chris Christine Cindy Claire Claude Claudia Colin Connor Cornelius
    Craig Cynthia Daisy Dalia Damian Daniel Daphne Darius Deborah Dennis Derek Diego Dmitri Dolores Dominic
    Donald Doris Dorothy Douglas Edgar Edmund Edward Edwin Eileen Elaine Eleanor Elena Elijah Elizabeth
    Elliot Ernest Esteban Esther Eugene Evelyn Fabian Fatima Ferdinand Fiona Florence Francis Frank Gabriel
    Georgia Gerald Gilbert Gita Gloria Gordon Grace Graham Gregory Gunther Gwen Hannah Harold Harriet
    Hassan Hector Henrietta Herbert Hiroshi Hope Howard Ibrahim Imogen Irene Isabel Jacob Jake James Jamie
    Janet Jason Javier Jenny Jeremy Jerome Jessica Joanna Johanna Jordan Joseph Joshua Judith Julian Juliet
    Justin Karen Katherine Kathy Kenji Kevin Kimberly Klaus Kristin Larry Laurence Leonard Lesley Lewis
    Lillian Linda Lorenzo Louise Lucas Lucille Lydia Mabel Madeleine Malcolm Manuel Marcel Margaret Marie
    Marina Mark Marlene Martha Martin Marvin Mary Mathilda Matthew Maurice Maxine Megan Melanie Melissa
    Michael Michelle Miguel Mildred Miranda Miriam Mitchell Mohammed Molly Monica Morgan Muriel Nancy Naomi
    Natalie Nathan Neil Nelson Nicholas Nicole Nigel Noel Norman Octavia Oliver Olivia Ophelia Oswald Pamela
    Patricia Patrick Paula Pauline Penelope Peter Philip Phoebe Priya Rachel Rafael Raymond Rebecca Reggie
    Richard Robert Robin Roger Roland Rosalie Rosemary Rowan Roxanne Rupert Sabrina Sadie Sally Samantha
    Samuel Sandra Sanjay Sarah Sebastian Sergei Sharon Sheila Shirley Silvia Solomon Sophie Stella Stephen
    Steve Stuart Susan Suzanne Sven Sylvia Tamara Tatiana Terence Teresa Thelma Theodore Theresa Thomas
    Timothy Travis Tristan Ursula Valentina Valerie Vanessa Veronica Victor Victoria Vincent Violet Virginia
    Vladimir Walter Warren Wendy Wilfred William Winnie Winston Xavier Yolanda Yusuf Yvonne Zelda
    """.split()
)

FRESH_THINGS: Final[tuple[str, ...]] = tuple(
    """
    abacus accordion album anchor anvil apron armchair atlas backpack badge bagpipe bandage banner barometer
    barrel bathtub battery beanbag bicycle binoculars birdcage blender bonnet bookmark bracelet briefcase
    broom buckle bugle cabinet calculator calendar canoe canvas cart cassette chalk chandelier
    charger cheese chisel cigar clarinet clipboard cloth coffee collar computer cookie corkscrew cradle
    crayon crowbar crystal dagger diamond diary dictionary dishcloth drill earring easel egg
    envelope eraser ferret fiddlestick file firework flask flashlight flowerpot folder football frame
    freezer fridge funnel gearbox gem glasses globe goblet gramophone grater hairbrush hammock handbag
    handkerchief harmonica harness headphones hourglass icebox idol ink jewel jigsaw journal jumper kayak
    keyboard keyring laptop laser lawnmower leash ledger lens lever lighter lipstick loom lute luggage
    magazine magnet mailbox mandolin manual matchbox medal megaphone microphone microscope milk mittens
    money monitor mop mousetrap napkin necklace newspaper notebook oboe ointment organ ornament overcoat
    package padlock paint pajamas parachute parasol parcel passport peg pendant pepper perfume phone photo
    piano pickaxe picture pincushion pliers postcard potion prism projector pump quill racket raincoat
    razor receipt record remote rifle rocket ruler sandal saucer saxophone scale scissors scooter screw
    screwdriver scroll shampoo shirt shotgun sketch skirt slipper soap sock spanner spear spectacles sponge
    spring statue stethoscope stocking sundial sunglasses surfboard sweater syringe tablet
    tambourine tape telegram telephone telescope thermometer thimble throne tiara timer toaster tongs
    toolbox toothbrush towel tractor treasure tricycle trombone trophy trousers trowel tuba turban
    typewriter ukulele umbrella uniform vacuum valise vest visor wallet wand wheel wheelbarrow whip wrench
    xylophone yarn yoyo zither
    """.split()
)

FRESH_ADJECTIVES: Final[tuple[str, ...]] = tuple(
    """
    ancient awful beige bent big blunt bronze cheap clear clever cracked crimson crooked damp deep dirty
    dull enormous expensive faded famous fancy fluffy foreign fragile fresh giant gigantic good hollow
    hot indigo jolly lavender leather lovely lucky magic maroon metal modern muddy narrow neat nice orange
    pale paper patched plastic precious pretty rare ripped rough royal scarlet second secret shiny short
    silent simple sleek slim smooth spare spotted steel sticky stolen straight strange strong tall torn
    turquoise ugly useful valuable velvet warm wet wicker wild woollen worn yellowed young
    """.split()
)

FRESH_PLACES: Final[tuple[tuple[str, str], ...]] = tuple(
    (preposition, place)
    for preposition, places in (
        (
            "in",
            """
            academy airport apartment aquarium armory ballroom bathroom bedroom biscuit bookshop bunker
            caravan cathedral cemetery cinema classroom clinic conservatory courtyard crypt dairy desert
            dining dormitory dungeon elevator engine entrance fireplace foyer freezer fridge gallery
            gatehouse glasshouse granary greenhouse gymnasium hallway hangar haystack hospital icehouse
            incubator jungle kennel laboratory larder laundry lighthouse lounge mailroom mansion maze
            meadow monastery mosque nursery observatory opera orphanage parlour pavilion playground pool
            pottery precinct quarry refectory restaurant ruin saloon sauna schoolyard shack shrine silo
            skyscraper smithy spaceship stadium submarine supermarket swamp synagogue tavern toilet
            toolshed treehouse university valley veranda village vineyard warehouse washroom waterfall
            wilderness woods workshop yard zoo
            """,
        ),
        (
            "on",
            "armchair bookcase cliff counter dresser highway ladder lawn mantelpiece mountain pier sill",
        ),
        ("under", "doormat floorboard mattress staircase"),
        ("behind", "altar bookcase bush painting piano statue"),
        ("near", "airport cemetery lighthouse railway stream volcano waterfall"),
    )
    for place in places.split()
)


def is_fresh_held_out(word: str) -> bool:
    """Whether training never sees this word: a rule, so no list has to be stored."""
    return zlib.crc32(word.lower().encode()) % HELD_OUT_ONE_IN == 0


@cache  # a fact asks for three lists, and a row of training has dozens of facts
def side_of(words: tuple[str, ...], held_out: bool) -> tuple[str, ...]:
    """The words that only the evaluation uses, or all others."""
    return tuple(word for word in words if is_fresh_held_out(word) == held_out)


@cache
def _places(held_out: bool) -> tuple[tuple[str, str], ...]:
    return tuple(at for at in FRESH_PLACES if is_fresh_held_out(at[1]) == held_out)


def spliced(rng: random.Random, words: tuple[str, ...]) -> str:
    """The beginning of one word and the end of another, since words begin with only a few dozen tokens.

    Some begin with any letter, or with a frequent word that may come right before them in a sentence. Never
    a word that is held out.
    """
    while True:
        last, draw = rng.choice(words)[rng.randint(1, 3) :], rng.random()
        first = rng.choice(words)[: rng.randint(1, 4)]
        if draw < 0.4:
            first = rng.choice(string.ascii_lowercase if draw < 0.25 else _FREQUENT)
        word = (first + last).lower()
        if not is_fresh_held_out(word):
            return word


def make_fresh_fact(rng: random.Random, name: str, held_out: bool = False, share: float = 0.6) -> Fact:
    """A fact with words that the lists of the corpus do not hold; `share` of its parts are such.

    With `held_out`, all of these are words that training never sees; without, none. `name` is what the name
    is otherwise.
    """

    def pick(fresh: tuple[str, ...], known: tuple[str, ...]) -> str:
        if rng.random() >= share:
            return rng.choice(known)
        words = side_of(fresh, held_out)
        made = 1.0 if held_out else rng.random()
        if made < 0.4:
            return spliced(rng, words) if made < 0.3 else invented_word(rng, rng.randint(2, 3))
        return rng.choice(words)

    preposition, place = rng.choice(PLACES)
    if rng.random() < share:
        preposition, place = rng.choice(_places(held_out))
    name = pick(FRESH_NAMES, (name,))
    return Fact(
        name[0].upper() + name[1:],
        pick(FRESH_ADJECTIVES, ADJECTIVES),
        pick(FRESH_THINGS, THINGS),
        preposition,
        place,
    )
