"""Families of functions that encode, decode and convert."""

from environments.code_repair.maker.family import family, names, text, word

FAMILIES = [
    family(
        "to_base",
        '''
        def $name(number):
            """A number that is not negative, written with $what."""
            if number == 0:
                return "$zero"
            result = ""
            while number > 0:
                result = "$digits"[number % $base] + result
                number = number // $base
            return result
        ''',
        lambda rng, v: (rng.choice([rng.randint(0, 40), rng.randint(0, 3000)]),),
        lambda v, number: v["of"](number),
        {"name": "to_binary", "what": "binary digits", "zero": "0", "digits": "01", "base": "2", "of": lambda n: f"{n:b}"},
        {
            "name": "to_octal",
            "what": "the digits 0 to 7",
            "zero": "0",
            "digits": "01234567",
            "base": "8",
            "of": lambda n: f"{n:o}",
        },
        {
            "name": "to_hex",
            "what": "the digits 0 to 9 and a to f",
            "zero": "0",
            "digits": "0123456789abcdef",
            "base": "16",
            "of": lambda n: f"{n:x}",
        },
        {
            "name": "to_letters",
            "what": "a for 0, b for 1 and so on to j for 9",
            "zero": "a",
            "digits": "abcdefghij",
            "base": "10",
            "of": lambda n: "".join("abcdefghij"[int(c)] for c in str(n)),
        },
    ),
    family(
        "from_base",
        '''
        def $name(text):
            """The number that the text writes with $what; -1 for any other text."""
            if text == "":
                return -1
            value = 0
            for letter in text:
                digit = "$digits".find(letter)
                if digit < 0:
                    return -1
                value = value * $base + digit
            return value
        ''',
        lambda rng, v: ("".join(rng.choice(v["digits"] + "z" * (rng.random() < 0.15)) for _ in range(rng.randint(0, 6))),),
        lambda v, text: v["of"](text) if text and set(text) <= set(v["digits"]) else -1,
        {"name": "from_binary", "what": "binary digits", "digits": "01", "base": "2", "of": lambda t: int(t, 2)},
        {"name": "from_quinary", "what": "the digits 0 to 4", "digits": "01234", "base": "5", "of": lambda t: int(t, 5)},
        {
            "name": "from_hex",
            "what": "the digits 0 to 9 and a to f",
            "digits": "0123456789abcdef",
            "base": "16",
            "of": lambda t: int(t, 16),
        },
    ),
    family(
        "roman",
        '''
        def $name(number):
            """A number that is not negative in $what."""
            result = ""
            for value, sign in $signs:
                while number >= value:
                    result += sign
                    number -= value
            return result
        ''',
        lambda rng, v: (rng.choice([rng.randint(0, 30), rng.randint(0, 60)]),),
        lambda v, number: v["of"](number),
        {
            "name": "roman_number",
            "what": "Roman figures, up to 89",
            "signs": '[(50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]',
            "of": lambda n: (
                ["", "X", "XX", "XXX", "XL", "L", "LX"][n // 10]
                + ["", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX"][n % 10]
            ),
        },
        {
            "name": "strokes",
            "what": "strokes: # for ten, + for five, | for one",
            "signs": '[(10, "#"), (5, "+"), (1, "|")]',
            "of": lambda n: "#" * (n // 10) + "+" * (n % 10 // 5) + "|" * (n % 5),
        },
        {
            "name": "coins",
            "what": "coins of 20, 5, 2 and 1, as the letters T, F, t and o",
            "signs": '[(20, "T"), (5, "F"), (2, "t"), (1, "o")]',
            "of": lambda n: "T" * (n // 20) + "F" * (n % 20 // 5) + "t" * (n % 5 // 2) + "o" * (n % 5 % 2),
        },
    ),
    family(
        "check_digit",
        '''
        def $name(digits):
            """Whether $what is a multiple of $modulus; the last digit counts once."""
            total = 0
            weight = 1
            for digit in reversed(digits):
                value = digit * weight
                if value > $most:
                    value -= $less
                total += value
                weight = $turn - weight
            return total % $modulus == 0
        ''',
        lambda rng, v: (
            (lambda ds: ds + [rng.choice([rng.randint(0, 9), next((d for d in range(10) if v["ok"]([*ds, d])), 0)])])(
                [rng.randint(0, 9) for _ in range(rng.randint(0, 6))]
            ),
        ),
        lambda v, digits: v["ok"](digits),
        {
            "name": "luhn_valid",
            "what": "the sum, with every second digit doubled and less 9 where that exceeds 9,",
            "modulus": "10",
            "most": "9",
            "less": "9",
            "turn": "3",
            "ok": lambda ds: sum(d if i % 2 == 0 else sum(map(int, str(2 * d))) for i, d in enumerate(ds[::-1])) % 10 == 0,
        },
        {
            "name": "weighted_valid",
            "what": "the sum, with every second digit tripled and less 20 where that exceeds 20,",
            "modulus": "10",
            "most": "20",
            "less": "20",
            "turn": "4",
            "ok": lambda ds: sum(d if i % 2 == 0 else 3 * d - 20 * (d > 6) for i, d in enumerate(ds[::-1])) % 10 == 0,
        },
    ),
    family(
        "polynomial",
        '''
        def $name(coefficients, x):
            """The value at x of a polynomial whose coefficients are given $what."""
            value = 0
            for coefficient in $order:
                value = value * x + coefficient
            return value
        ''',
        lambda rng, v: ([rng.randint(-4, 6) for _ in range(rng.randint(0, 4))], rng.randint(-3, 5)),
        lambda v, coefficients, x: sum(c * x**i for i, c in enumerate(coefficients[:: v["step"]])),
        {"name": "value_from_highest", "what": "from the highest power down", "order": "coefficients", "step": -1},
        {"name": "value_from_lowest", "what": "from the lowest power up", "order": "reversed(coefficients)", "step": 1},
    ),
    family(
        "join_names",
        '''
        def $name(names, most=$most):
            """The names with $what; only the first most of them, then "$more"."""
            if not names:
                return "$nobody"
            shown = names[:most]
            result = shown[0]
            for place in range(1, len(shown)):
                if place == len(names) - 1:
                    result += "$last" + shown[place]
                else:
                    result += "$comma" + shown[place]
            if len(names) > most:
                result += "$more"
            return result
        ''',
        lambda rng, v: (names(rng, 6), *([rng.randint(1, 4)] if rng.random() < 0.5 else [])),
        lambda v, names, most=None: _listed(names, most or v["at"], v),
        {
            "name": "join_with_and",
            "what": "commas, and `and` before the last",
            "most": "3",
            "more": " and others",
            "nobody": "nobody",
            "last": " and ",
            "comma": ", ",
            "at": 3,
        },
        {
            "name": "join_with_or",
            "what": "slashes, and `or` before the last",
            "most": "4",
            "more": "...",
            "nobody": "none",
            "last": " or ",
            "comma": "/",
            "at": 4,
        },
    ),
    family(
        "field",
        '''
        def $name(line, place, separator="$separator", missing="$missing"):
            """The field of the line at a place, from 0, $what; missing where there is none."""
            fields = line.split(separator)
            if place < 0 or place >= len(fields):
                return missing
            value = fields[place]$clean
            if value == "":
                return missing
            return value
        ''',
        lambda rng, v: (
            v["sep"].join(word(rng, 3) for _ in range(rng.randint(1, 4))),
            rng.randint(-1, 4),
            *([";", "?"] if rng.random() < 0.3 else []),
        ),
        lambda v, line, place, sep=None, missing=None: (
            lambda fs: (v["of"](dict(enumerate(fs)).get(place, ""))) or (v["none"] if missing is None else missing)
        )(line.split(sep or v["sep"])),
        {
            "name": "field_of",
            "separator": ",",
            "missing": "-",
            "what": "as it is",
            "clean": "",
            "sep": ",",
            "none": "-",
            "of": lambda f: f,
        },
        {
            "name": "field_in_capitals",
            "separator": ":",
            "missing": "none",
            "what": "in capitals",
            "clean": ".upper()",
            "sep": ":",
            "none": "none",
            "of": str.upper,
        },
    ),
    family(
        "version",
        '''
        def $name(first, second):
            """$what of two versions like 1.10.2; a part that is missing counts as 0."""
            ours = first.split(".")
            theirs = second.split(".")
            for place in range(max(len(ours), len(theirs))):
                a = int(ours[place]) if place < len(ours) else 0
                b = int(theirs[place]) if place < len(theirs) else 0
                if a != b:
                    return $differ
            return $same
        ''',
        lambda rng, v: tuple(
            ".".join(str(rng.choice([0, 0, 1, 2, 10])) for _ in range(rng.randint(1, 3))) for _ in range(2)
        ),
        lambda v, first, second: v["of"](
            *[([int(p) for p in t.split(".")] + [0, 0, 0])[:3] for t in (first, second)], first, second
        ),
        {
            "name": "compare_versions",
            "what": "-1, 0 or 1 for the order",
            "differ": "-1 if a < b else 1",
            "same": "0",
            "of": lambda a, b, s, t: (a > b) - (a < b),
        },
        {
            "name": "newer_version",
            "what": "The newer, the first if equal,",
            "differ": "first if a > b else second",
            "same": "first",
            "of": lambda a, b, s, t: s if a >= b else t,
        },
        {
            "name": "first_difference",
            "what": "The place of the first difference, -1 if there is none,",
            "differ": "place",
            "same": "-1",
            "of": lambda a, b, s, t: next((i for i in range(3) if a[i] != b[i]), -1),
        },
    ),
    family(
        "replace_letters",
        '''
        def $name(text, table):
            """The text with each $what replaced as the table says; the rest $rest."""
            result = []
            for part in $parts:
                if part in table:
                    result.append(table[part])
                elif $keep:
                    result.append(part)
            return "$glue".join(result)
        ''',
        lambda rng, v: (text(rng).lower(), v["table"](rng)),
        lambda v, text, table: v["of"](text, table),
        {
            "name": "replace_letters",
            "what": "letter",
            "rest": "stays",
            "parts": "text",
            "keep": "len(part) > 0",
            "glue": "",
            "table": lambda rng: {c: rng.choice("xyz") for c in rng.sample("aeiot", 2)},
            "of": lambda t, d: t.translate(str.maketrans(d)),
        },
        {
            "name": "keep_known_letters",
            "what": "letter",
            "rest": "is left out, spaces stay",
            "parts": "text",
            "keep": 'part == " "',
            "glue": "",
            "table": lambda rng: {c: c.upper() for c in rng.sample("aeiot", 3)},
            "of": lambda t, d: "".join(d.get(c, " " * (c == " ")) for c in t),
        },
    ),
    family(
        "bits",
        '''
        def $name(flags, names):
            """$what that the flags switch on; the lowest bit is for the first."""
            result = $start
            for place, name in enumerate(names):
                if flags // 2 ** place % 2 == $bit:
                    result $add
            return result
        ''',
        lambda rng, v: (rng.randint(0, 20), names(rng, 5)),
        lambda v, flags, names: v["of"]([n for n, b in zip(names, f"{flags:032b}"[::-1], strict=False) if b == v["on"]]),
        {"name": "flag_names", "what": "The names", "start": "[]", "bit": "1", "add": "+= [name]", "on": "1", "of": list},
        {"name": "count_flags", "what": "The count of names", "start": "0", "bit": "1", "add": "+= 1", "on": "1", "of": len},
        {
            "name": "unset_initials",
            "what": "The first letters of the names, of those but not",
            "start": '""',
            "bit": "0",
            "add": "+= name[0]",
            "on": "0",
            "of": lambda ns: "".join(n[0] for n in ns),
        },
    ),
]


def _listed(names, most, v):
    if not names:
        return v["nobody"]
    parts = []
    for place, name in enumerate(names[:most]):
        parts += [] if place == 0 else [v["last"] if place == len(names) - 1 else v["comma"]]
        parts.append(name)
    return "".join(parts) + v["more"] * (len(names) > most)
