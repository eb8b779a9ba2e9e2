"""Families of functions on text."""

from environments.code_repair.maker.family import family, number, text, word

FAMILIES = [
    family(
        "count_letters",
        '''
        def $name(text):
            """How many $what the text has."""
            found = 0
            for letter in text:
                if $test:
                    found += $step
            return found
        ''',
        lambda rng, v: (text(rng),),
        lambda v, text: v["n"] * len([c for c in text if v["is"](c)]),
        {
            "name": "count_vowels",
            "what": "small vowels",
            "test": 'letter in "aeiou"',
            "step": "1",
            "n": 1,
            "is": lambda c: c in "aeiou",
        },
        {"name": "count_digits", "what": "digits", "test": "letter.isdigit()", "step": "1", "n": 1, "is": str.isdigit},
        {"name": "count_capitals", "what": "capitals", "test": "letter.isupper()", "step": "1", "n": 1, "is": str.isupper},
        {
            "name": "count_late",
            "what": "small letters after m",
            "test": 'letter > "m"',
            "step": "1",
            "n": 1,
            "is": lambda c: c in "nopqrstuvwxyz",
        },
    ),
    family(
        "longest_word",
        '''
        def $name(text):
            """The $what of the text; empty if it has none."""
            best = ""
            for word in text.split():
                if best == "" or $test:
                    best = word
            return best
        ''',
        lambda rng, v: (text(rng),),
        lambda v, text: v["best"](text.split()) if text.split() else "",
        {
            "name": "longest_word",
            "what": "longest word, the first of several,",
            "test": "len(word) > len(best)",
            "best": lambda w: max(w, key=len),
        },
        {
            "name": "shortest_word",
            "what": "shortest word, the first of several,",
            "test": "len(word) < len(best)",
            "best": lambda w: min(w, key=len),
        },
        {
            "name": "last_longest",
            "what": "longest word, the last of several,",
            "test": "len(word) >= len(best)",
            "best": lambda w: max(reversed(w), key=len),
        },
        {"name": "first_in_order", "what": "first word in the order of letters", "test": "word < best", "best": min},
    ),
    family(
        "runs_of_letters",
        '''
        def $name(text):
            """The text with each run of one letter written as $what."""
            parts = []
            start = 0
            for end in range(1, len(text) + 1):
                if end == len(text) or text[end] != text[start]:
                    parts.append($part)
                    start = end
            return "$glue".join(parts)
        ''',
        lambda rng, v: ("".join(c * rng.randint(1, 3) for c in word(rng)),),
        lambda v, text: v["glue"].join(v["say"]("".join(g)) for _, g in __import__("itertools").groupby(text)),
        {
            "name": "encode_runs",
            "what": "the letter and how often",
            "part": "text[start] + str(end - start)",
            "glue": "",
            "say": lambda g: f"{g[0]}{len(g)}",
        },
        {
            "name": "run_lengths",
            "what": "its length, with dashes between",
            "part": "str(end - start)",
            "glue": "-",
            "say": lambda g: str(len(g)),
        },
        {"name": "squeeze", "what": "a single letter", "part": "text[start]", "glue": "", "say": lambda g: g[0]},
        {
            "name": "split_runs",
            "what": "it is, with spaces between",
            "part": "text[start:end]",
            "glue": " ",
            "say": lambda g: g,
        },
    ),
    family(
        "shift_letters",
        '''
        def $name(text, shift=$shift):
            """Each small letter moved on by shift places$round; the rest as it is."""
            result = ""
            for letter in text:
                if "a" <= letter <= "z":
                    place = (ord(letter) - ord("a") $sign shift) % $size
                    letter = chr(ord("a") + place)
                result += letter
            return result
        ''',
        lambda rng, v: rng.choice([(text(rng),), (text(rng), rng.randint(0, 30))]),
        lambda v, text, shift=None: "".join(
            v["abc"][(v["abc"].index(c) + v["dir"] * (v["by"] if shift is None else shift)) % len(v["abc"])]
            if c in v["abc"]
            else c
            for c in text
        ),
        {
            "name": "caesar",
            "shift": "3",
            "sign": "+",
            "size": "26",
            "round": ", from z on to a",
            "by": 3,
            "dir": 1,
            "abc": "abcdefghijklmnopqrstuvwxyz",
        },
        {
            "name": "caesar_back",
            "shift": "1",
            "sign": "-",
            "size": "26",
            "round": " back, from a on to z",
            "by": 1,
            "dir": -1,
            "abc": "abcdefghijklmnopqrstuvwxyz",
        },
    ),
    family(
        "is_mirrored",
        '''
        def $name(text):
            """Whether the text reads the same from both ends$what."""
            left = 0
            right = len(text) - 1
            while left < right:
                if text[left]$how != text[right]$how:
                    return False
                left += 1
                right -= 1
            return True
        ''',
        lambda rng, v: (
            (lambda w: rng.choice([w + w[::-1], w + "x" + w[::-1].upper(), w[:2] + "ab" + w[:2][::-1], w]))(word(rng, 4)),
        ),
        lambda v, text: v["fold"](text) == v["fold"](text)[::-1],
        {"name": "is_palindrome", "what": "", "how": "", "fold": lambda t: t},
        {"name": "is_palindrome_any_case", "what": ", capitals or not", "how": ".lower()", "fold": str.lower},
    ),
    family(
        "cut_text",
        '''
        def $name(text, width):
            """The text if it has at most width letters; else $what, in width letters."""
            if len(text) <= width:
                return text
            if width <= $mark_length:
                return $short
            return $long
        ''',
        lambda rng, v: (text(rng), rng.randint(0, 12)),
        lambda v, text, width: text if len(text) <= width else v["cut"](text, width),
        {
            "name": "shorten",
            "what": "its start and two dots",
            "mark_length": "2",
            "short": "text[:width]",
            "long": 'text[:width - 2] + ".."',
            "cut": lambda t, w: t[:w] if w < 3 else t[: w - 2] + "..",
        },
        {
            "name": "shorten_left",
            "what": "a dash and its end",
            "mark_length": "1",
            "short": "text[len(text) - width:]",
            "long": '"-" + text[len(text) - width + 1:]',
            "cut": lambda t, w: t[len(t) - w :] if w < 2 else "-" + t[len(t) - w + 1 :],
        },
    ),
    family(
        "find_nth",
        '''
        def $name(text, letter, nth=1):
            """Where the nth $letter_is stands, counted from $first; -1 if there is none."""
            seen = 0
            for place, other in enumerate(text):
                if $test:
                    seen += 1
                    if seen == nth:
                        return place$plus
            return -1
        ''',
        lambda rng, v: (word(rng, 8), rng.choice("aet"), *([rng.randint(1, 3)] if rng.random() < 0.7 else [])),
        lambda v, text, letter, nth=1: ([p + v["from"] for p, c in enumerate(text) if v["is"](c, letter)] + [-1] * nth)[
            nth - 1
        ],
        {
            "name": "find_nth",
            "letter_is": "letter",
            "first": "0",
            "test": "other == letter",
            "plus": "",
            "from": 0,
            "is": lambda a, b: a == b,
        },
        {
            "name": "place_of_nth",
            "letter_is": "letter",
            "first": "1",
            "test": "other == letter",
            "plus": " + 1",
            "from": 1,
            "is": lambda a, b: a == b,
        },
        {
            "name": "find_nth_other",
            "letter_is": "letter that is not this one",
            "first": "0",
            "test": "other != letter",
            "plus": "",
            "from": 0,
            "is": lambda a, b: a != b,
        },
    ),
    family(
        "title_words",
        '''
        def $name(text):
            """The words of the text, $what, with $glue_name between."""
            words = []
            for place, word in enumerate(text.split()):
                if $test:
                    word = $change
                words.append(word)
            return "$glue".join(words)
        ''',
        lambda rng, v: (text(rng),),
        lambda v, text: v["glue"].join(v["do"](w) if v["when"](p, w) else w for p, w in enumerate(text.split())),
        {
            "name": "title_long",
            "what": "those of more than three letters with a capital",
            "glue": " ",
            "glue_name": "spaces",
            "test": "len(word) > 3",
            "change": "word.capitalize()",
            "when": lambda p, w: len(w) > 3,
            "do": str.capitalize,
        },
        {
            "name": "camel_case",
            "what": "each but the first with a capital",
            "glue": "",
            "glue_name": "nothing",
            "test": "place > 0",
            "change": "word.capitalize()",
            "when": lambda p, w: p > 0,
            "do": str.capitalize,
        },
        {
            "name": "flip_odd_words",
            "what": "every second one backwards",
            "glue": " ",
            "glue_name": "spaces",
            "test": "place % 2 == 1",
            "change": "word[::-1]",
            "when": lambda p, w: p % 2,
            "do": lambda w: w[::-1],
        },
        {
            "name": "shout_short",
            "what": "those of at most two letters in capitals",
            "glue": "_",
            "glue_name": "underscores",
            "test": "len(word) <= 2",
            "change": "word.upper()",
            "when": lambda p, w: len(w) < 3,
            "do": str.upper,
        },
    ),
    family(
        "depth_of_brackets",
        '''
        def $name(text):
            """$what of the round brackets; -1 if they do not match."""
            depth = 0
            result = 0
            for letter in text:
                if letter == "(":
                    depth += 1
                    $count
                elif letter == ")":
                    depth -= 1
                    if depth < 0:
                        return -1
            if depth != 0:
                return -1
            return result
        ''',
        lambda rng, v: ("".join(rng.choice(["(", ")", "a", "()", "(a)", "(())"]) for _ in range(rng.randint(0, 5))),),
        lambda v, text: v["of"](text) if _matched(text) else -1,
        {
            "name": "deepest_bracket",
            "what": "The greatest depth",
            "count": "result = max(result, depth)",
            "of": lambda t: max((t[:i].count("(") - t[:i].count(")") for i in range(len(t) + 1)), default=0),
        },
        {
            "name": "count_outer_pairs",
            "what": "The number of outermost pairs",
            "count": "result += 1 if depth == 1 else 0",
            "of": lambda t: sum(c == ")" and t[: i + 1].count("(") == t[: i + 1].count(")") for i, c in enumerate(t)),
        },
    ),
    family(
        "common_start",
        '''
        def $name(first, second):
            """$what both texts have in common."""
            length = 0
            while length < len(first) and length < len(second):
                if first[$at] != second[$at]:
                    break
                length += 1
            return $result
        ''',
        lambda rng, v: (
            lambda w: rng.choice([(w, w), (w + word(rng, 3), w + word(rng, 3)), (word(rng, 3) + w, word(rng, 3) + w)])
        )(word(rng, 4)),
        lambda v, first, second: v["of"](first, second),
        {
            "name": "common_start",
            "what": "The longest start that",
            "at": "length",
            "result": "first[:length]",
            "of": lambda a, b: next(a[:n] for n in range(len(a), -1, -1) if b[:n] == a[:n]),
        },
        {
            "name": "common_end_length",
            "what": "How many letters at the end",
            "at": "-1 - length",
            "result": "length",
            "of": lambda a, b: next(n for n in range(len(a), -1, -1) if b.endswith(a[len(a) - n :])),
        },
    ),
    family(
        "pad_text",
        '''
        def $name(text, width, fill="$fill"):
            """The text with as many fills $where as make it width letters long; a longer one is cut$cut."""
            missing = width - len(text)
            if missing <= 0:
                return $shortened
            return $padded
        ''',
        lambda rng, v: (word(rng), rng.randint(0, 9), *(["*"] if rng.random() < 0.5 else [])),
        lambda v, text, width, fill=None: v["do"](text, width, fill or v["fill"]),
        {
            "name": "pad_left",
            "fill": ".",
            "where": "before it",
            "cut": " at its end",
            "shortened": "text[:width]",
            "padded": "fill * missing + text",
            "do": lambda t, w, f: t.rjust(w, f)[:w] if len(t) < w else t[:w],
        },
        {
            "name": "pad_right",
            "fill": "-",
            "where": "after it",
            "cut": " at its start",
            "shortened": "text[-missing:]",
            "padded": "text + fill * missing",
            "do": lambda t, w, f: t.ljust(w, f) if len(t) < w else t[len(t) - w :],
        },
        {
            "name": "pad_both",
            "fill": "=",
            "where": "around it, the odd one after it,",
            "cut": " at its end",
            "shortened": "text[:width]",
            "padded": "fill * (missing // 2) + text + fill * (missing - missing // 2)",
            "do": lambda t, w, f: t[:w] if len(t) >= w else f * ((w - len(t)) // 2) + t + f * -((len(t) - w) // 2),
        },
    ),
    family(
        "every_step",
        '''
        def $name(text, step, start=$start):
            """Every step-th letter of the text, from place start on$what."""
            result = ""
            place = start
            while place < len(text):
                result = $add
                place += step
            return result
        ''',
        lambda rng, v: (word(rng, 9), rng.randint(1, 3), *([rng.randint(0, 3)] if rng.random() < 0.6 else [])),
        lambda v, text, step, start=None: text[v["at"] if start is None else start :: step][:: v["order"]],
        {"name": "every_step", "start": "0", "what": "", "add": "result + text[place]", "at": 0, "order": 1},
        {
            "name": "every_step_back",
            "start": "1",
            "what": ", backwards",
            "add": "text[place] + result",
            "at": 1,
            "order": -1,
        },
    ),
    family(
        "read_number",
        '''
        def $name(text):
            """The $what that the text starts with; $default if it starts with no digit."""
            value = 0
            place = 0
            while place < len(text) and text[place] $test:
                value = value * $base + int(text[place])
                place += 1
            if place == 0:
                return $default
            return value
        ''',
        lambda rng, v: (str(rng.randint(0, 999)) * rng.randint(0, 1) + word(rng, 3) + str(number(rng)),),
        lambda v, text: (lambda m: int(m[0], v["n"]) if m else v["none"])(__import__("re").match(v["re"], text)),
        {
            "name": "leading_number",
            "what": "number",
            "default": "-1",
            "test": 'in "0123456789"',
            "base": "10",
            "n": 10,
            "none": -1,
            "re": r"[0-9]+",
        },
        {
            "name": "leading_octal",
            "what": "number of digits 0 to 7, to base 8,",
            "default": "None",
            "test": 'in "01234567"',
            "base": "8",
            "n": 8,
            "none": None,
            "re": r"[0-7]+",
        },
    ),
]


def _matched(text: str) -> bool:
    text = "".join(c for c in text if c in "()")
    while "()" in text:
        text = text.replace("()", "")
    return not text
