"""The word lists of the corpus.

Every word here is meant to be one token of the default tokenizer (with its leading space; names also
without). They are short and plain for that reason: a long word costs several merges of the vocabulary.
"""

from typing import Final

NAMES: Final[tuple[str, ...]] = tuple(
    """
    Ada Adam Agnes Aki Alan Alba Alec Alice Alma Amir Amos Amy Ana Andy Anna Ari Arlo Arne Asa Astrid Ava
    Axel Bao Basil Bea Bella Ben Beth Bill Bob Bram Bruno Cal Carl Carla Carmen Celia Chen Chloe Cleo
    Clara Cora Cyrus Dan Dana Dara David Dean Della Dev Diana Dina Dora Duncan Earl Edda Edith Ed Eli
    Elias Ella Elsa Emil Emma Enid Eric Erin Esme Ethan Eva Evan Ezra Faye Felix Finn Flora Fran Fred
    Frida Gail Gary Gemma Gene George Gina Greta Gus Hal Hana Hank Hans Harry Hazel Heidi Helen Henry Hugo
    Ian Ida Igor Ilsa Ines Inga Ira Iris Isaac Ivan Ivy Jack Jade Jan Jane Jasper Jean Jeff Jesse Jill Jim
    Joan Joe John Jon Jonas Josie Juan Judy Jules Julia June Kai Kara Karl Kate Keith Kemal Ken Kim Kira
    Kurt Lana Lara Lars Laura Lea Leif Lena Leo Levi Liam Lila Lily Lina Lisa Liz Lois Lola Lou Luca Lucy
    Luis Luke Luna Mara Maria Marco Max Maya Meg Mei Mia Milo Mina Mira Moe Mona Nadia Nan Nell Nico Nils
    Nina Noah Nora Olaf Olga Olive Omar Oren Oscar Otto Owen Paul Pedro Peg Percy Pete Petra Pia Quinn
    Ralph Ravi Ray Remi Rex Rita Rob Ron Rosa Ross Ruth Ryan Sam Sara Saul Seth Sid Simon Sofia Stan Sue
    Tara Ted Tess Theo Tim Tina Toby Todd Tom Tony Una Uma Vera Vic Vito Wanda Wes Xena Yara Yuri Zack
    Zara Zoe
    """.split()
)

ADJECTIVES: Final[tuple[str, ...]] = tuple(
    """
    amber black blue brass broken bright brown clean cold copper dark dusty empty fine glass gold green
    grey heavy huge iron ivory large light little long new odd old painted pink plain purple red round
    rusty sharp silver small soft square striped thick thin tin tiny white wide wooden yellow
    """.split()
)

THINGS: Final[tuple[str, ...]] = tuple(
    """
    apple arrow axe bag ball banjo basket bell belt bike blanket boat book boot bottle bowl box brush
    bucket button cake camera candle cane cap card chain chair chest clock cloak coat coin comb compass
    crown cup cushion desk dice doll dress drum fan feather fiddle flag flute fork glove guitar hammer
    harp hat helmet hook horn jacket jar jug kettle key kite knife ladder lamp lantern letter lock locket
    mask map marble mirror mug nail needle net oar paddle pan pearl pen pencil pillow pipe plate pot
    puppet purse quilt radio rake ribbon ring robe rope rug saddle saw scarf shell shield shoe shovel
    skate sled spade spoon stamp stool sword teapot tent ticket tie torch toy tray trumpet vase violin
    wagon watch whistle wig
    """.split()
)

# Each place with the preposition that reads best before it.
PLACES: Final[tuple[tuple[str, str], ...]] = tuple(
    (preposition, place)
    for preposition, places in (
        (
            "in",
            """
            alley arcade attic bakery bank barn basement bath cabin cafe car castle cave cellar chapel
            church closet corner court cottage crate cupboard den dock drawer factory farm fort garage
            garden gym hall harbor hotel house hut inn kitchen lab library lobby loft market mill mine
            museum nest office orchard palace pantry park passage pit porch prison school shed ship shop
            sink stable station store studio study suitcase tank temple theatre tower trunk tunnel van
            vault wardrobe well windmill
            """,
        ),
        ("on", "balcony beach deck hill island roof shelf stage stairs table"),
        ("under", "bed bench bridge carpet sofa tree"),
        ("behind", "curtain door fence gate hedge stove wall"),
        ("near", "fountain lake oven pond river"),
    )
    for place in places.split()
)

ANIMALS: Final[tuple[str, ...]] = tuple(
    """
    bear bird cat cow crow deer dog duck fish fox frog goat goose hare hen horse lamb lion mole mouse
    otter owl pig rabbit seal sheep snail tiger turtle wolf
    """.split()
)

ALL_SLOT_WORDS: Final[tuple[str, ...]] = ADJECTIVES + THINGS + tuple(place for _, place in PLACES)
