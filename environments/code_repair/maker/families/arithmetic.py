"""Families of functions on integers."""

import math

from environments.code_repair.maker.family import family

FAMILIES = [
    family(
        "digits",
        '''
        def $name(number):
            """The $what of the digits of a number that is not negative."""
            result = $start
            while number > 0:
                digit = number % $base
                $step
                number = number // $base
            return result
        ''',
        lambda rng, v: (rng.choice([rng.randint(0, 30), rng.randint(0, 9999)]),),
        lambda v, number: v["of"](number),
        {
            "name": "digit_sum",
            "what": "sum",
            "start": "0",
            "base": "10",
            "step": "result += digit",
            "of": lambda n: sum(map(int, str(n))),
        },
        {
            "name": "count_ones",
            "what": "count of ones among the binary",
            "start": "0",
            "base": "2",
            "step": "result += digit",
            "of": lambda n: bin(n).count("1"),
        },
        {
            "name": "reverse_digits",
            "what": "number read backwards,",
            "start": "0",
            "base": "10",
            "step": "result = result * 10 + digit",
            "of": lambda n: int(str(n)[::-1]),
        },
        {
            "name": "largest_digit",
            "what": "largest",
            "start": "0",
            "base": "10",
            "step": "result = max(result, digit)",
            "of": lambda n: max(map(int, str(n))),
        },
        {
            "name": "count_even_digits",
            "what": "count of the even ones (none for 0)",
            "start": "0",
            "base": "10",
            "step": "result += 1 - digit % 2",
            "of": lambda n: sum(c in "02468" for c in str(n)) if n else 0,
        },
    ),
    family(
        "divisors",
        '''
        def $name(number):
            """The $what of the divisors of a number above zero$but."""
            result = $start
            for divisor in range($first, number$last):
                if number % divisor == 0:
                    $step
            return result
        ''',
        lambda rng, v: (rng.randint(1, 40),),
        lambda v, number: v["of"]([d for d in range(1, number + 1) if not number % d], number),
        {
            "name": "count_divisors",
            "what": "count",
            "but": "",
            "start": "0",
            "first": "1",
            "last": " + 1",
            "step": "result += 1",
            "of": lambda ds, n: len(ds),
        },
        {
            "name": "sum_proper_divisors",
            "what": "sum",
            "but": ", itself left out",
            "start": "0",
            "first": "1",
            "last": "",
            "step": "result += divisor",
            "of": lambda ds, n: sum(ds) - n,
        },
        {
            "name": "list_divisors",
            "what": "list",
            "but": "",
            "start": "[]",
            "first": "1",
            "last": " + 1",
            "step": "result.append(divisor)",
            "of": lambda ds, n: ds,
        },
        {
            "name": "inner_divisors",
            "what": "list",
            "but": ", 1 and itself left out",
            "start": "[]",
            "first": "2",
            "last": "",
            "step": "result.append(divisor)",
            "of": lambda ds, n: [d for d in ds if 1 < d < n],
        },
    ),
    family(
        "clamp",
        '''
        def $name(value, low, high):
            """$what."""
            if value < low:
                return $below
            if value > high:
                return $above
            return $inside
        ''',
        lambda rng, v: (lambda low: (rng.randint(-12, 20), low, low + rng.randint(0, 9)))(rng.randint(-9, 9)),
        lambda v, value, low, high: v["of"](value, low, high),
        {
            "name": "clamp",
            "what": "The value, or the end of low to high that it lies beyond",
            "below": "low",
            "above": "high",
            "inside": "value",
            "of": lambda x, a, b: sorted((x, a, b))[1],
        },
        {
            "name": "distance_to_range",
            "what": "How far the value lies outside of low to high",
            "below": "low - value",
            "above": "value - high",
            "inside": "0",
            "of": lambda x, a, b: max(a - x, x - b, 0),
        },
        {
            "name": "side_of_range",
            "what": "-1, 0 or 1: below, inside or above low to high",
            "below": "-1",
            "above": "1",
            "inside": "0",
            "of": lambda x, a, b: (x > b) - (x < a),
        },
        {
            "name": "place_in_range",
            "what": "How far above low the value lies, 0 below it and high - low above high",
            "below": "0",
            "above": "high - low",
            "inside": "value - low",
            "of": lambda x, a, b: min(max(x - a, 0), b - a),
        },
    ),
    family(
        "common_divisor",
        '''
        def $name(first, second):
            """The $what of two numbers above zero."""
            a = first
            b = second
            while b != 0:
                rest = a % b
                a = b
                b = rest
            return $result
        ''',
        lambda rng, v: (rng.randint(1, 30), rng.randint(1, 30)),
        lambda v, first, second: v["of"](first, second),
        {"name": "greatest_common_divisor", "what": "greatest common divisor", "result": "a", "of": math.gcd},
        {"name": "least_common_multiple", "what": "least common multiple", "result": "first * second // a", "of": math.lcm},
        {
            "name": "share_no_divisor",
            "what": "absence of a common divisor, but 1,",
            "result": "a == 1",
            "of": lambda a, b: math.gcd(a, b) < 2,
        },
        {
            "name": "shortened_fraction",
            "what": "fraction, as short as can be,",
            "result": "[first // a, second // a]",
            "of": lambda a, b: [a // math.gcd(a, b), b // math.gcd(a, b)],
        },
    ),
    family(
        "is_special",
        '''
        def $name(number):
            """Whether a number is $what."""
            if number < $least:
                return False
            for other in range($first, number):
                if $test:
                    return $found
            return $otherwise
        ''',
        lambda rng, v: (rng.choice([rng.randint(-2, 30), rng.choice([0, 1, 2, 4, 9, 16, 25, 6, 12, 20])]),),
        lambda v, number: v["is"](number),
        {
            "name": "is_prime",
            "what": "prime",
            "least": "2",
            "first": "2",
            "test": "number % other == 0",
            "found": "False",
            "otherwise": "True",
            "is": lambda n: n > 1 and all(n % d for d in range(2, n)),
        },
        {
            "name": "is_square_above_one",
            "what": "the square of a number above one",
            "least": "4",
            "first": "2",
            "test": "other * other == number",
            "found": "True",
            "otherwise": "False",
            "is": lambda n: n > 1 and math.isqrt(n) ** 2 == n,
        },
        {
            "name": "is_product_of_neighbours",
            "what": "a product of two neighbours, 1 times 2 or more",
            "least": "2",
            "first": "1",
            "test": "other * (other + 1) == number",
            "found": "True",
            "otherwise": "number == 2",
            "is": lambda n: any(i * (i + 1) == n for i in range(1, 40)),
        },
    ),
    family(
        "sequence_terms",
        '''
        def $name(count):
            """The first count terms of the sequence that starts $a, $b, where $what."""
            terms = []
            a = $a
            b = $b
            for _ in range(count):
                terms.append(a)
                following = $next
                a = b
                b = following
            return terms
        ''',
        lambda rng, v: (rng.randint(0, 19),),
        lambda v, count: _terms(v["first"], v["of"], count),
        {
            "name": "fibonacci",
            "a": "0",
            "b": "1",
            "what": "each is the sum of the two before",
            "next": "a + b",
            "first": (0, 1),
            "of": lambda a, b: a + b,
        },
        {
            "name": "lucas",
            "a": "2",
            "b": "1",
            "what": "each is the sum of the two before",
            "next": "a + b",
            "first": (2, 1),
            "of": lambda a, b: b + a,
        },
        {
            "name": "pell",
            "a": "0",
            "b": "1",
            "what": "each is twice the last and the one before it",
            "next": "2 * b + a",
            "first": (0, 1),
            "of": lambda a, b: a + b + b,
        },
        {
            "name": "jacobsthal",
            "a": "0",
            "b": "1",
            "what": "each is the last and twice the one before it",
            "next": "b + 2 * a",
            "first": (0, 1),
            "of": lambda a, b: a + a + b,
        },
        {
            "name": "falling_terms",
            "a": "9",
            "b": "4",
            "what": "each is the one before the last less the last",
            "next": "a - b",
            "first": (9, 4),
            "of": lambda a, b: a - b,
        },
    ),
    family(
        "repeat_until",
        '''
        def $name(number, limit=$limit):
            """How many times a number above zero is $what until it is $end; at most limit."""
            count = 0
            while number $test and count < limit:
                if number % 2 == 0:
                    number = $even
                else:
                    number = $odd
                count += 1
            return count
        ''',
        lambda rng, v: (rng.randint(1, 40), *([rng.randint(0, 8)] if rng.random() < 0.3 else [])),
        lambda v, number, limit=None: _count(number, v["stop"], v["of"], v["most"] if limit is None else limit),
        {
            "name": "collatz_steps",
            "limit": "30",
            "what": "halved if even, else tripled and raised by one",
            "end": "1",
            "test": "!= 1",
            "even": "number // 2",
            "odd": "3 * number + 1",
            "most": 30,
            "stop": lambda n: n == 1,
            "of": lambda n: n // 2 if n % 2 == 0 else 3 * n + 1,
        },
        {
            "name": "halvings",
            "limit": "20",
            "what": "halved if even, else lowered by one",
            "end": "0",
            "test": "> 0",
            "even": "number // 2",
            "odd": "number - 1",
            "most": 20,
            "stop": lambda n: n <= 0,
            "of": lambda n: n - 1 if n % 2 else n // 2,
        },
        {
            "name": "growths",
            "limit": "12",
            "what": "raised by three if even, else doubled",
            "end": "50 or more",
            "test": "< 50",
            "even": "number + 3",
            "odd": "number * 2",
            "most": 12,
            "stop": lambda n: n >= 50,
            "of": lambda n: 2 * n if n % 2 else n + 3,
        },
    ),
    family(
        "price",
        '''
        def $name(count, price, least=$least):
            """The price of count things; from least of them on $what."""
            total = count * price
            if count >= least:
                total $change
            return total
        ''',
        lambda rng, v: (rng.randint(0, 12), rng.randint(1, 9) * 10, *([rng.randint(1, 9)] if rng.random() < 0.5 else [])),
        lambda v, count, price, least=None: v["of"](count, price) if count >= (least or v["at"]) else price * count,
        {
            "name": "price_with_tenth_off",
            "least": "5",
            "what": "a tenth is taken off",
            "change": "-= total // 10",
            "at": 5,
            "of": lambda c, p: c * p * 9 // 10,
        },
        {
            "name": "price_with_one_free",
            "least": "3",
            "what": "one is free",
            "change": "-= price",
            "at": 3,
            "of": lambda c, p: (c - 1) * p,
        },
        {
            "name": "price_with_fee",
            "least": "8",
            "what": "seven are added for the van",
            "change": "+= 7",
            "at": 8,
            "of": lambda c, p: 7 + c * p,
        },
        {
            "name": "price_with_half_off_last",
            "least": "2",
            "what": "the last one is at half price",
            "change": "-= price // 2",
            "at": 2,
            "of": lambda c, p: p * c - p + p // 2,
        },
    ),
    family(
        "clock",
        '''
        def $name(hour, minute, later):
            """The clock's [hour, minute] so many minutes $what; a day has $hours hours."""
            total = hour * 60 + minute $sign later
            return [total // 60 % $hours, total % 60]
        ''',
        lambda rng, v: (rng.randint(0, v["n"] - 1), rng.randint(0, 59), rng.choice([0, 1, 30, 59, 60, 61, 120, 700, 1500])),
        lambda v, hour, minute, later: list(divmod((60 * hour + minute + v["dir"] * later) % (60 * v["n"]), 60)),
        {"name": "clock_later", "what": "later", "hours": "24", "sign": "+", "n": 24, "dir": 1},
        {"name": "clock_earlier", "what": "earlier", "hours": "24", "sign": "-", "n": 24, "dir": -1},
        {
            "name": "half_clock_later",
            "what": "later, on a clock that starts anew at noon",
            "hours": "12",
            "sign": "+",
            "n": 12,
            "dir": 1,
        },
    ),
    family(
        "grid_sum",
        '''
        def $name(width, height):
            """The sum of $what over columns x from 1 to width and rows y from 1 to height."""
            total = 0
            for y in range(1, height + 1):
                for x in range(1, width + 1):
                    if $test:
                        total += $value
            return total
        ''',
        lambda rng, v: (rng.randint(0, 6), rng.randint(0, 6)),
        lambda v, width, height: sum(v["of"](x, y) for x in range(1, width + 1) for y in range(1, height + 1)),
        {
            "name": "sum_of_products_right",
            "what": "x times y where x exceeds y",
            "test": "x > y",
            "value": "x * y",
            "of": lambda x, y: x * y * (x > y),
        },
        {
            "name": "sum_of_gaps",
            "what": "y - x where y is at least x",
            "test": "y >= x",
            "value": "y - x",
            "of": lambda x, y: max(y - x, 0),
        },
        {
            "name": "count_white_squares",
            "what": "1 where x + y is even",
            "test": "(x + y) % 2 == 0",
            "value": "1",
            "of": lambda x, y: 1 - (x + y) % 2,
        },
    ),
    family(
        "power",
        '''
        def $name(base, exponent, modulus=$modulus):
            """$what, modulo modulus."""
            result = $start
            for _ in range(exponent):
                result = (result $op base) % modulus
            return result
        ''',
        lambda rng, v: (rng.randint(0, 12), rng.randint(0, 6), *([rng.randint(2, 12)] if rng.random() < 0.6 else [])),
        lambda v, base, exponent, modulus=None: v["of"](base, exponent) % (modulus or v["at"]),
        {
            "name": "power_modulo",
            "modulus": "100",
            "what": "base to the power of exponent",
            "start": "1",
            "op": "*",
            "at": 100,
            "of": pow,
        },
        {
            "name": "multiple_modulo",
            "modulus": "10",
            "what": "base times exponent",
            "start": "0",
            "op": "+",
            "at": 10,
            "of": lambda a, b: a * b,
        },
        {
            "name": "difference_modulo",
            "modulus": "7",
            "what": "Minus base times exponent",
            "start": "0",
            "op": "-",
            "at": 7,
            "of": lambda a, b: -a * b,
        },
    ),
    family(
        "triangle",
        '''
        def $name(a, b, c):
            """$what of three side lengths: $names."""
            a, b, c = sorted([a, b, c])
            if a + b <= c:
                return $bad
            if a == b and b == c:
                return $equal
            if $test:
                return $some
            return $other
        ''',
        lambda rng, v: rng.choice(
            [(3, 4, 5), (5, 12, 13), (6, 8, 10)] + [tuple(rng.randint(1, 6) for _ in range(3)) for _ in range(9)]
        ),
        lambda v, a, b, c: v["of"](*sorted((a, b, c))),
        {
            "name": "triangle_kind",
            "what": "The kind",
            "names": "none, equal, twin or other",
            "bad": '"none"',
            "equal": '"equal"',
            "test": "a == b or b == c",
            "some": '"twin"',
            "other": '"other"',
            "of": lambda a, b, c: "none" if c - b >= a else {1: "equal", 2: "twin", 3: "other"}[len({a, b, c})],
        },
        {
            "name": "triangle_corner",
            "what": "The widest corner",
            "names": "0 for no triangle, 3 for all equal, 2 for a right one, else 1",
            "bad": "0",
            "equal": "3",
            "test": "a * a + b * b == c * c",
            "some": "2",
            "other": "1",
            "of": lambda a, b, c: 0 if c - b >= a else 3 if a == c else 2 if a**2 + b**2 == c**2 else 1,
        },
    ),
]


def _terms(first, following, count):
    terms = list(first)
    while len(terms) < count:
        terms.append(following(terms[-2], terms[-1]))
    return terms[:count]


def _count(number, stop, following, most):
    count = 0
    while not stop(number) and count < most:
        number, count = following(number), count + 1
    return count
