"""Families of functions on dictionaries and lists of pairs."""

from collections import Counter

from environments.code_repair.maker.family import NAMES, family, names, number, pairs, table

FAMILIES = [
    family(
        "tally",
        '''
        def $name(pairs):
            """For each name $what of its numbers."""
            result = {}
            for name, number in pairs:
                if name not in result:
                    result[name] = $first
                else:
                    result[name] = $next
            return result
        ''',
        lambda rng, v: (pairs(rng),),
        lambda v, pairs: {name: v["of"]([n for other, n in pairs if other == name]) for name, _ in pairs},
        {"name": "sum_by_name", "what": "the sum", "first": "number", "next": "result[name] + number", "of": sum},
        {"name": "count_by_name", "what": "the count", "first": "1", "next": "result[name] + 1", "of": len},
        {
            "name": "largest_by_name",
            "what": "the largest",
            "first": "number",
            "next": "max(result[name], number)",
            "of": max,
        },
        {"name": "last_by_name", "what": "the last", "first": "number", "next": "number", "of": lambda ns: ns[-1]},
        {"name": "list_by_name", "what": "the list", "first": "[number]", "next": "result[name] + [number]", "of": list},
    ),
    family(
        "keep_entries",
        '''
        def $name(counts, limit=$limit):
            """The entries of counts whose $what."""
            result = {}
            for name, count in counts.items():
                if $test:
                    result[name] = count
            return result
        ''',
        lambda rng, v: (table(rng), *([v["other"](rng)] if rng.random() < 0.6 else [])),
        lambda v, counts, limit=None: dict(
            filter(lambda item: v["is"](item, v["at"] if limit is None else limit), counts.items())
        ),
        {
            "name": "keep_frequent",
            "limit": "2",
            "what": "count is at least limit",
            "test": "count >= limit",
            "at": 2,
            "other": number,
            "is": lambda i, k: i[1] >= k,
        },
        {
            "name": "keep_rare",
            "limit": "4",
            "what": "count is below limit",
            "test": "count < limit",
            "at": 4,
            "other": number,
            "is": lambda i, k: i[1] < k,
        },
        {
            "name": "keep_early_names",
            "limit": '"d"',
            "what": "name comes before limit",
            "test": "name < limit",
            "at": "d",
            "other": lambda rng: rng.choice("bcdef"),
            "is": lambda i, k: i[0] < k,
        },
        {
            "name": "keep_positive_others",
            "limit": '"bob"',
            "what": "count is above zero and whose name is not limit",
            "test": "count > 0 and name != limit",
            "at": "bob",
            "other": lambda rng: rng.choice(NAMES),
            "is": lambda i, k: i[1] > 0 and i[0] != k,
        },
    ),
    family(
        "best_entry",
        '''
        def $name(counts):
            """The name with the $what; the $which of several in the order of letters; None if there is none."""
            best = None
            for name in $order:
                if best is None or counts[name] $op counts[best]:
                    best = name
            return best
        ''',
        lambda rng, v: (table(rng),),
        lambda v, counts: v["of"](counts) if counts else None,
        {
            "name": "name_of_largest",
            "what": "largest count",
            "which": "first",
            "order": "sorted(counts)",
            "op": ">",
            "of": lambda c: sorted((-n, name) for name, n in c.items())[0][1],
        },
        {
            "name": "name_of_smallest",
            "what": "smallest count",
            "which": "first",
            "order": "sorted(counts)",
            "op": "<",
            "of": lambda c: sorted((n, name) for name, n in c.items())[0][1],
        },
        {
            "name": "last_name_of_largest",
            "what": "largest count",
            "which": "last",
            "order": "sorted(counts)",
            "op": ">=",
            "of": lambda c: sorted((n, name) for name, n in c.items())[-1][1],
        },
    ),
    family(
        "combine_tables",
        '''
        def $name(first, second):
            """$what."""
            result = dict(first)
            for name, count in second.items():
                if name in result:
                    result[name] = $both
                else:
                    result[name] = $alone
            return result
        ''',
        lambda rng, v: (table(rng), table(rng)),
        lambda v, first, second: {
            k: v["join"](first[k], second[k])
            if k in first and k in second
            else first[k]
            if k in first
            else v["one"](second[k])
            for k in {**first, **second}
        },
        {
            "name": "add_tables",
            "what": "The counts of both added up",
            "both": "result[name] + count",
            "alone": "count",
            "join": lambda a, b: a + b,
            "one": lambda n: n,
        },
        {
            "name": "subtract_tables",
            "what": "The counts of the first less those of the second, 0 where there is none",
            "both": "result[name] - count",
            "alone": "-count",
            "join": lambda a, b: a - b,
            "one": lambda n: -n,
        },
        {
            "name": "larger_of_tables",
            "what": "For each name the larger of its counts",
            "both": "max(result[name], count)",
            "alone": "count",
            "join": max,
            "one": lambda n: n,
        },
    ),
    family(
        "turn_around",
        '''
        def $name(counts):
            """For each count $what with it, in the order of letters."""
            result = {}
            for name in sorted(counts):
                count = counts[name]
                if count not in result:
                    result[count] = $empty
                result[count] $add
            return result
        ''',
        lambda rng, v: (table(rng),),
        lambda v, counts: {n: v["of"](sorted(k for k in counts if counts[k] == n)) for n in counts.values()},
        {"name": "names_by_count", "what": "the names", "empty": "[]", "add": "+= [name]", "of": list},
        {
            "name": "joined_by_count",
            "what": "the names, each with a slash after it,",
            "empty": '""',
            "add": '+= name + "/"',
            "of": lambda ns: "".join(n + "/" for n in ns),
        },
        {"name": "how_many_by_count", "what": "how many names go", "empty": "0", "add": "+= 1", "of": len},
    ),
    family(
        "count_words",
        '''
        def $name(words, least=$least):
            """$what at least so often, in the order of letters."""
            counts = {}
            for word in words:
                counts[word] = counts.get(word, 0) + 1
            result = []
            for word in sorted(counts):
                if counts[word] >= least:
                    result.append($value)
            return result
        ''',
        lambda rng, v: (names(rng, 8), *([rng.randint(1, 3)] if rng.random() < 0.6 else [])),
        lambda v, words, least=None: [
            v["of"](w, n, least or v["at"]) for w, n in sorted(Counter(words).items()) if n >= (least or v["at"])
        ],
        {
            "name": "frequent_words",
            "least": "2",
            "what": "The words that occur",
            "value": "word",
            "at": 2,
            "of": lambda w, n, k: w,
        },
        {
            "name": "frequent_word_counts",
            "least": "1",
            "what": "[word, count] for the words that occur",
            "value": "[word, counts[word]]",
            "at": 1,
            "of": lambda w, n, k: [w, n],
        },
        {
            "name": "repeats_beyond",
            "least": "2",
            "what": "By how much words exceed least that occur",
            "value": "counts[word] - least",
            "at": 2,
            "of": lambda w, n, k: n - k,
        },
    ),
    family(
        "follow_links",
        '''
        def $name(links, start, most=$most):
            """$what, following links from start, at most most of them; nothing is passed twice."""
            seen = [start]
            here = start
            while here in links and len(seen) <= most:
                here = links[here]
                if here in seen:
                    $again
                seen.append(here)
            return $result
        ''',
        lambda rng, v: (
            {a: rng.choice(NAMES) for a in rng.sample(NAMES, rng.randint(0, 6))},
            rng.choice(NAMES),
            *([rng.randint(0, 4)] if rng.random() < 0.5 else []),
        ),
        lambda v, links, start, most=None: v["of"](*_walk(links, start, v["at"] if most is None else most)),
        {
            "name": "path_of_links",
            "most": "9",
            "what": "All names passed",
            "again": "break",
            "result": "seen",
            "at": 9,
            "of": lambda path, loop: path,
        },
        {
            "name": "end_of_links",
            "most": "9",
            "what": "The name reached, None if it goes round in a circle",
            "again": "return None",
            "result": "here",
            "at": 9,
            "of": lambda path, loop: None if loop else path[-1],
        },
        {
            "name": "count_links",
            "most": "5",
            "what": "How many links are followed, -1 if it goes round in a circle",
            "again": "return -1",
            "result": "len(seen) - 1",
            "at": 5,
            "of": lambda path, loop: -1 if loop else len(path) - 1,
        },
    ),
    family(
        "stock",
        '''
        def $name(stock, orders):
            """$what, taking [name, count] orders from the stock one by one while there is enough."""
            left = dict(stock)
            refused = []
            for name, count in orders:
                if left.get(name, 0) $op count:
                    left[name] -= count
                else:
                    refused.append($refusal)
            return $result
        ''',
        lambda rng, v: (
            {n: rng.randint(0, 9) for n in rng.sample(NAMES[:4], rng.randint(1, 4))},
            [[rng.choice(NAMES[:4]), rng.randint(1, 6)] for _ in range(rng.randint(0, 5))],
        ),
        lambda v, stock, orders: v["of"](*_served(stock, orders, v["spare"])),
        {
            "name": "stock_left",
            "what": "The stock that is left",
            "op": ">=",
            "refusal": "name",
            "result": "left",
            "spare": 0,
            "of": lambda left, refused: left,
        },
        {
            "name": "refused_orders",
            "what": "The orders refused",
            "op": ">=",
            "refusal": "[name, count]",
            "result": "refused",
            "spare": 0,
            "of": lambda left, refused: refused,
        },
        {
            "name": "missing_things",
            "what": "The names refused, never giving the last one away",
            "op": ">",
            "refusal": "name",
            "result": "refused",
            "spare": 1,
            "of": lambda left, refused: [n for n, _ in refused],
        },
    ),
    family(
        "grades",
        '''
        def $name(points, passed=$passed):
            """$what of the names with their points; passed are the points needed to pass."""
            result = $start
            for name, reached in points.items():
                if reached >= passed + $much:
                    result $good
                elif reached >= passed:
                    result $fair
            return result
        ''',
        lambda rng, v: (table(rng), *([rng.randint(0, 5)] if rng.random() < 0.5 else [])),
        lambda v, points, passed=None: v["of"](points, v["at"] if passed is None else passed),
        {
            "name": "stars",
            "what": "Two stars for three points more than needed, one for enough: the stars",
            "passed": "4",
            "start": "0",
            "much": "3",
            "good": "+= 2",
            "fair": "+= 1",
            "at": 4,
            "of": lambda p, k: sum((n >= k) + (n >= k + 3) for n in p.values()),
        },
        {
            "name": "letters",
            "what": "An a for two points more than needed, a b for enough: the letters",
            "passed": "3",
            "start": '""',
            "much": "2",
            "good": '+= "a"',
            "fair": '+= "b"',
            "at": 3,
            "of": lambda p, k: "".join("a" if n > k + 1 else "b" for n in p.values() if n >= k),
        },
    ),
]


def _walk(links, start, most):
    path = [start]
    for _ in range(most):
        if path[-1] not in links:
            break
        if links[path[-1]] in path:
            return path, True
        path.append(links[path[-1]])
    return path, False


def _served(stock, orders, spare):
    left, refused = Counter(stock), []
    for name, count in orders:
        if left[name] - count >= spare:
            left.subtract({name: count})
        else:
            refused.append([name, count])
    return {name: left[name] for name in stock}, refused
