"""Families of functions on lists of integers."""

from itertools import accumulate, groupby, pairwise

from environments.code_repair.maker.family import ascending, family, number, numbers

FAMILIES = [
    family(
        "sum_where",
        '''
        def $name(numbers):
            """The $what of the numbers that are $which."""
            total = $start
            for number in numbers:
                if $test:
                    total $step
            return total
        ''',
        lambda rng, v: (numbers(rng),),
        lambda v, numbers: v["of"]([n for n in numbers if v["is"](n)]),
        {
            "name": "sum_even",
            "what": "sum",
            "which": "even",
            "start": "0",
            "test": "number % 2 == 0",
            "step": "+= number",
            "is": lambda n: n % 2 == 0,
            "of": sum,
        },
        {
            "name": "count_negative",
            "what": "count",
            "which": "below zero",
            "start": "0",
            "test": "number < 0",
            "step": "+= 1",
            "is": lambda n: n < 0,
            "of": len,
        },
        {
            "name": "sum_squares_of_small",
            "what": "sum of the squares",
            "which": "at most five",
            "start": "0",
            "test": "number <= 5",
            "step": "+= number * number",
            "is": lambda n: n < 6,
            "of": lambda ns: sum(n**2 for n in ns),
        },
        {
            "name": "product_of_positive",
            "what": "product (1 of none)",
            "which": "above zero",
            "start": "1",
            "test": "number > 0",
            "step": "*= number",
            "is": lambda n: n > 0,
            "of": __import__("math").prod,
        },
    ),
    family(
        "best_place",
        '''
        def $name(numbers):
            """Where the $what number stands, the $which of several; -1 for no numbers."""
            if not numbers:
                return -1
            best = 0
            for place in range(1, len(numbers)):
                if numbers[place] $op numbers[best]:
                    best = place
            return best
        ''',
        lambda rng, v: (numbers(rng),),
        lambda v, numbers: v["of"](numbers) if numbers else -1,
        {"name": "place_of_largest", "what": "largest", "which": "first", "op": ">", "of": lambda ns: ns.index(max(ns))},
        {"name": "place_of_smallest", "what": "smallest", "which": "first", "op": "<", "of": lambda ns: ns.index(min(ns))},
        {
            "name": "last_place_of_largest",
            "what": "largest",
            "which": "last",
            "op": ">=",
            "of": lambda ns: len(ns) - 1 - ns[::-1].index(max(ns)),
        },
        {
            "name": "last_place_of_smallest",
            "what": "smallest",
            "which": "last",
            "op": "<=",
            "of": lambda ns: len(ns) - 1 - ns[::-1].index(min(ns)),
        },
    ),
    family(
        "running",
        '''
        def $name(numbers):
            """For each number $what of it and all before it."""
            result = []
            so_far = $start
            for number in numbers:
                so_far = $step
                result.append(so_far)
            return result
        ''',
        lambda rng, v: (numbers(rng),),
        lambda v, numbers: list(accumulate(numbers, v["of"], initial=v["first"]))[1:],
        {
            "name": "running_total",
            "what": "the sum",
            "start": "0",
            "step": "so_far + number",
            "of": lambda a, b: a + b,
            "first": 0,
        },
        {
            "name": "running_product",
            "what": "the product",
            "start": "1",
            "step": "so_far * number",
            "of": lambda a, b: a * b,
            "first": 1,
        },
        {
            "name": "running_peak",
            "what": "the largest, at least zero,",
            "start": "0",
            "step": "max(so_far, number)",
            "of": max,
            "first": 0,
        },
        {
            "name": "running_alternate",
            "what": "the sum, less what was there before,",
            "start": "0",
            "step": "number - so_far",
            "of": lambda a, b: b - a,
            "first": 0,
        },
    ),
    family(
        "neighbours",
        '''
        def $name(numbers):
            """$what."""
            result = []
            for place in range(len(numbers) - 1):
                result.append($value)
            return result
        ''',
        lambda rng, v: (numbers(rng),),
        lambda v, numbers: [v["of"](a, b) for a, b in pairwise(numbers)],
        {
            "name": "steps_between",
            "what": "By how much each number but the first exceeds the one before",
            "value": "numbers[place + 1] - numbers[place]",
            "of": lambda a, b: b - a,
        },
        {
            "name": "sums_of_neighbours",
            "what": "The sum of each number and the next",
            "value": "numbers[place] + numbers[place + 1]",
            "of": lambda a, b: a + b,
        },
        {
            "name": "larger_neighbours",
            "what": "The larger of each number and the next",
            "value": "max(numbers[place], numbers[place + 1])",
            "of": max,
        },
        {
            "name": "rises",
            "what": "Whether the next number is larger, for each but the last",
            "value": "numbers[place] < numbers[place + 1]",
            "of": lambda a, b: a < b,
        },
    ),
    family(
        "is_ordered",
        '''
        def $name(numbers):
            """Whether each number $what the one before."""
            for place in range(1, len(numbers)):
                if numbers[place - 1] $fails numbers[place]:
                    return False
            return True
        ''',
        lambda rng, v: (
            (lambda ns: rng.choice([ns, sorted(ns), sorted(set(ns)), sorted(ns, reverse=True), sorted(set(ns))[::-1]]))(
                numbers(rng, 0, 5)
            ),
        ),
        lambda v, numbers: all(v["is"](a, b) for a, b in pairwise(numbers)),
        {"name": "is_ascending", "what": "is at least", "fails": ">", "is": lambda a, b: b >= a},
        {"name": "is_strictly_ascending", "what": "exceeds", "fails": ">=", "is": lambda a, b: b > a},
        {"name": "is_descending", "what": "is at most", "fails": "<", "is": lambda a, b: b <= a},
        {"name": "is_strictly_descending", "what": "is less than", "fails": "<=", "is": lambda a, b: b < a},
    ),
    family(
        "windows",
        '''
        def $name(numbers, size=$size):
            """The $what of each size numbers in a row."""
            result = []
            for start in range(len(numbers) - size + 1):
                window = numbers[start:start + size]
                result.append($value)
            return result
        ''',
        lambda rng, v: (numbers(rng), *([rng.randint(1, 4)] if rng.random() < 0.6 else [])),
        lambda v, numbers, size=None: [
            v["of"](numbers[i:][: size or v["n"]]) for i in range(len(numbers)) if i + (size or v["n"]) <= len(numbers)
        ],
        {"name": "moving_sums", "size": "2", "what": "sum", "value": "sum(window)", "n": 2, "of": sum},
        {"name": "moving_maxima", "size": "3", "what": "largest", "value": "max(window)", "n": 3, "of": max},
        {
            "name": "moving_spans",
            "size": "2",
            "what": "largest less the smallest",
            "value": "max(window) - min(window)",
            "n": 2,
            "of": lambda w: sorted(w)[-1] - sorted(w)[0],
        },
        {
            "name": "moving_ends",
            "size": "3",
            "what": "last less the first",
            "value": "window[-1] - window[0]",
            "n": 3,
            "of": lambda w: w[len(w) - 1] - w[0],
        },
    ),
    family(
        "longest_run",
        '''
        def $name(numbers):
            """The length of the longest run of $what."""
            best = 0
            length = 0
            for place in range(len(numbers)):
                if place > 0 and $test:
                    length += 1
                else:
                    length = 1
                best = max(best, length)
            return best
        ''',
        lambda rng, v: (numbers(rng, 0, 9),),
        lambda v, numbers: max(
            (
                j - i
                for i in range(len(numbers))
                for j in range(i + 1, len(numbers) + 1)
                if all(v["is"](a, b) for a, b in pairwise(numbers[i:j]))
            ),
            default=0,
        ),
        {
            "name": "longest_equal_run",
            "what": "equal numbers",
            "test": "numbers[place] == numbers[place - 1]",
            "is": lambda a, b: a == b,
        },
        {
            "name": "longest_rise",
            "what": "rising numbers",
            "test": "numbers[place] > numbers[place - 1]",
            "is": lambda a, b: a < b,
        },
        {
            "name": "longest_calm",
            "what": "numbers that never fall",
            "test": "numbers[place] >= numbers[place - 1]",
            "is": lambda a, b: a <= b,
        },
    ),
    family(
        "merge_sorted",
        '''
        def $name(first, second):
            """Two ascending lists as one, $what."""
            result = []
            left = 0
            right = 0
            while left < len(first) and right < len(second):
                if first[left] $op second[right]:
                    result.append(first[left])
                    left += 1
                else:
                    result.append(second[right])
                    right += 1
            return result + first[left:] + second[right:]
        ''',
        lambda rng, v: (sorted(numbers(rng, 0, 5), reverse=v["down"]), sorted(numbers(rng, 0, 5), reverse=v["down"])),
        lambda v, first, second: sorted(first + second, reverse=v["down"]),
        {"name": "merge_ascending", "what": "ascending", "op": "<=", "down": False},
        {"name": "merge_descending", "what": "where both and the result are descending", "op": ">=", "down": True},
    ),
    family(
        "find_sorted",
        '''
        def $name(numbers, wanted):
            """$what."""
            low = 0
            high = len(numbers)
            while low < high:
                middle = (low + high) // 2
                if numbers[middle] $op wanted:
                    low = middle + 1
                else:
                    high = middle
            return $result
        ''',
        lambda rng, v: (lambda ns: (ns, rng.choice([*ns, number(rng)])))(ascending(rng)),
        lambda v, numbers, wanted: v["of"](numbers, wanted),
        {
            "name": "count_below",
            "what": "How many of the ascending numbers are less than wanted",
            "op": "<",
            "result": "low",
            "of": lambda ns, w: sum(n < w for n in ns),
        },
        {
            "name": "count_at_most",
            "what": "How many of the ascending numbers are at most wanted",
            "op": "<=",
            "result": "low",
            "of": lambda ns, w: sum(n <= w for n in ns),
        },
        {
            "name": "count_above",
            "what": "How many of the ascending numbers are more than wanted",
            "op": "<=",
            "result": "len(numbers) - low",
            "of": lambda ns, w: sum(n > w for n in ns),
        },
        {
            "name": "first_from",
            "what": "The first of the ascending numbers that is at least wanted; None if none is",
            "op": "<",
            "result": "numbers[low] if low < len(numbers) else None",
            "of": lambda ns, w: next((n for n in ns if n >= w), None),
        },
    ),
    family(
        "rotate",
        '''
        def $name(numbers, count):
            """The numbers with $what; count may exceed their number."""
            if not numbers:
                return []
            cut = $cut
            return numbers[cut:] + numbers[:cut]
        ''',
        lambda rng, v: (numbers(rng, 0, 6), rng.randint(0, 9)),
        lambda v, numbers, count: v["of"](numbers, count),
        {
            "name": "rotate_left",
            "what": "count of them taken from the front to the end",
            "cut": "count % len(numbers)",
            "of": lambda ns, k: [ns[(i + k) % len(ns)] for i in range(len(ns))],
        },
        {
            "name": "rotate_right",
            "what": "count of them taken from the end to the front",
            "cut": "(len(numbers) - count) % len(numbers)",
            "of": lambda ns, k: [ns[(i - k) % len(ns)] for i in range(len(ns))],
        },
    ),
    family(
        "chunks",
        '''
        def $name(numbers, size):
            """The numbers in pieces of size, $what."""
            result = []
            for start in range(0, len(numbers), size):
                piece = numbers[start:start + size]
                if $keep:
                    result.append($value)
            return result
        ''',
        lambda rng, v: (numbers(rng, 0, 8), rng.randint(1, 4)),
        lambda v, numbers, size: [
            v["of"](p)
            for p in (numbers[i : i + size] for i in range(len(numbers)) if i % size == 0)
            if v["all"] or len(p) == size
        ],
        {
            "name": "whole_chunks",
            "what": "without a last one that is not whole",
            "keep": "len(piece) == size",
            "value": "piece",
            "all": False,
            "of": list,
        },
        {
            "name": "chunk_sums",
            "what": "each as its sum",
            "keep": "len(piece) > 0",
            "value": "sum(piece)",
            "all": True,
            "of": sum,
        },
        {
            "name": "chunk_backwards",
            "what": "each of them backwards",
            "keep": "len(piece) > 0",
            "value": "piece[::-1]",
            "all": True,
            "of": lambda p: list(reversed(p)),
        },
    ),
    family(
        "without_repeats",
        '''
        def $name(numbers):
            """$what."""
            result = []
            for place, number in enumerate(numbers):
                if $test:
                    result.append(number)
            return result
        ''',
        lambda rng, v: ([rng.randint(0, 4) for _ in range(rng.randint(0, 8))],),
        lambda v, numbers: v["of"](numbers),
        {
            "name": "first_seen",
            "what": "Each number once, where it first stands",
            "test": "number not in numbers[:place]",
            "of": lambda ns: list(dict.fromkeys(ns)),
        },
        {
            "name": "last_seen",
            "what": "Each number once, where it last stands",
            "test": "number not in numbers[place + 1:]",
            "of": lambda ns: list(dict.fromkeys(ns[::-1]))[::-1],
        },
        {
            "name": "repeated",
            "what": "Each number that has stood before, wherever it stands again",
            "test": "number in numbers[:place]",
            "of": lambda ns: [n for i, n in enumerate(ns) if ns.index(n) < i],
        },
        {
            "name": "drop_doubles",
            "what": "The numbers without those that equal the one before",
            "test": "place == 0 or number != numbers[place - 1]",
            "of": lambda ns: [n for n, _ in groupby(ns)],
        },
    ),
    family(
        "split_by",
        '''
        def $name(numbers, pivot=$pivot):
            """The numbers $low_name pivot, then $middle the others, each in their order."""
            low = []
            high = []
            for number in numbers:
                if number $op pivot:
                    low.append(number)
                else:
                    high.append(number)
            return low + $between + high
        ''',
        lambda rng, v: (numbers(rng), *([number(rng)] if rng.random() < 0.6 else [])),
        lambda v, numbers, pivot=None: v["of"](numbers, v["at"] if pivot is None else pivot),
        {
            "name": "low_first",
            "pivot": "0",
            "low_name": "below",
            "middle": "",
            "op": "<",
            "between": "[]",
            "at": 0,
            "of": lambda ns, p: sorted(ns, key=lambda n: n >= p),
        },
        {
            "name": "around_pivot",
            "pivot": "3",
            "low_name": "up to",
            "middle": "the pivot once, then ",
            "op": "<=",
            "between": "[pivot]",
            "at": 3,
            "of": lambda ns, p: [n for n in ns if n <= p] + [p] + [n for n in ns if n > p],
        },
    ),
]
