"""The words of the fictional worlds: names, places, products."""

FIRST = (
    "Abel Adele Alma Anton Arlo Astrid Basil Bea Boris Bruno Carla Celia Clara Cyrus Dario Delia Dora Edgar Elena "
    "Elmer Enid Ezra Fanny Felix Flora Frida Gita Greta Gustav Hana Hector Hilda Igor Ilse Ines Irma Ivo Jasper Jonas "
    "Julia Karim Kira Lars Leona Lina Lorenz Lucia Magda Malik Marta Milan Mina Nadia Nestor Nils Nora Odile Olaf "
    "Oscar Otis Paula Petra Pia Quinn Rafael Ramon Rita Rosa Rufus Sabine Selma Silas Sonja Stella Sven Talia Theo "
    "Tilda Ulla Umar Vera Viktor Wanda Xenia Yara Yuri Zelda "
).split()
LAST = (
    "Abbot Acker Alder Ames Archer Barlow Beck Birch Bloom Bolt Brandt Brook Carver Castle Cliff Colby Crane Cross "
    "Dalton Dorn Drake Dune Eaton Elm Falk Farrow Finch Flint Forde Gale Garland Glass Grove Hale Harrow Hatch Heath "
    "Holm Iver Jett Keller Kemp Knox Lark Linden Lund Marsh Mercer Mills Moor Nash Noble North Oakes Orr Page Pike "
    "Pond Quill Reeve Ridge Rowan Sand Sharp Shore Snow Stark Stone Thorn Tripp Urban Vale Vance Wade Webb Wells "
    "Wilde Winter Wolfe Yates York "
).split()
STREETS = "Elm Oak Pine Maple Cedar Lake Hill River Park Mill Spring Garden Sunset Church Meadow Valley".split()
CITIES = (
    ("Denver", "CO", "802"), ("Boston", "MA", "021"), ("Austin", "TX", "787"), ("Seattle", "WA", "981"),
    ("Chicago", "IL", "606"), ("Phoenix", "AZ", "850"), ("Miami", "FL", "331"), ("Columbus", "OH", "432"),
)  # fmt: skip
COLORS = "red blue green black white grey pink brown".split()
SIZES = "tiny small medium large huge".split()
MATERIALS = "steel wood glass cotton wool leather".split()
PRODUCTS = {
    "color": "Lamp Mug Backpack Umbrella Kettle Bicycle Chair Notebook Headset Watch Scarf Vase".split(),
    "size": "Jacket Shirt Tent Suitcase Mat Skateboard Boots".split(),
    "material": "Bowl Blanket Wallet Desk Clock Tray".split(),
}
"""The option in which variants differ, and the products that have it."""
VALUES = {"color": COLORS, "size": SIZES, "material": MATERIALS}
ROUTES = ("SFO-JFK", "SEA-BOS", "DEN-ORD", "ATL-MIA", "LAX-DFW", "PHX-LAS", "IAH-MCO", "CLT-PHL", "MSP-DTW", "EWR-LGA")
"""Each is served in both directions."""
