"""Families of functions on rows of numbers, intervals and points."""

from environments.code_repair.maker.family import family, number, numbers


def _rows(rng, v=None):
    width = rng.randint(1, 4)
    return ([[rng.randint(-3, 9) for _ in range(width)] for _ in range(rng.randint(0, 4))],)


def _square(rng, v=None):
    size = rng.randint(0, 4)
    return ([[rng.randint(-3, 9) for _ in range(size)] for _ in range(size)],)


def _intervals(rng, v=None):
    starts = [rng.randint(0, 12) for _ in range(rng.randint(0, 5))]
    return ([[start, start + rng.randint(0, 4)] for start in starts],)


FAMILIES = [
    family(
        "row_values",
        '''
        def $name(rows):
            """$what of each row."""
            result = []
            for row in rows:
                value = $start
                for number in row:
                    $step
                result.append(value)
            return result
        ''',
        _rows,
        lambda v, rows: [v["of"](row) for row in rows],
        {"name": "row_sums", "what": "The sum", "start": "0", "step": "value += number", "of": sum},
        {
            "name": "row_peaks",
            "what": "The largest number",
            "start": "row[0]",
            "step": "value = max(value, number)",
            "of": max,
        },
        {
            "name": "row_positives",
            "what": "The count of numbers above zero",
            "start": "0",
            "step": "value += 1 if number > 0 else 0",
            "of": lambda r: len([n for n in r if n > 0]),
        },
        {
            "name": "row_spreads",
            "what": "The sum of the distances from its first number",
            "start": "0",
            "step": "value += abs(number - row[0])",
            "of": lambda r: sum(max(n, r[0]) - min(n, r[0]) for n in r),
        },
    ),
    family(
        "turned_grid",
        '''
        def $name(rows):
            """The rows of a grid $what."""
            if not rows:
                return []
            result = []
            for column in range(len(rows[0])):
                line = []
                for row in range(len(rows)):
                    line.append(rows[$row][$column])
                result.append(line)
            return result
        ''',
        _rows,
        lambda v, rows: v["of"](rows),
        {
            "name": "transpose",
            "what": "as columns",
            "row": "row",
            "column": "column",
            "of": lambda rows: [list(c) for c in zip(*rows, strict=True)],
        },
        {
            "name": "turn_right",
            "what": "turned a quarter to the right",
            "row": "len(rows) - 1 - row",
            "column": "column",
            "of": lambda rows: [list(c) for c in zip(*rows[::-1], strict=True)],
        },
        {
            "name": "turn_left",
            "what": "turned a quarter to the left",
            "row": "row",
            "column": "len(rows[0]) - 1 - column",
            "of": lambda rows: [list(c) for c in zip(*rows, strict=True)][::-1],
        },
    ),
    family(
        "diagonal",
        '''
        def $name(rows):
            """The sum of the numbers $what of a square grid."""
            total = 0
            size = len(rows)
            for row in range(size):
                for column in range(size):
                    if $test:
                        total += rows[row][column]
            return total
        ''',
        _square,
        lambda v, rows: sum(n for i, row in enumerate(rows) for j, n in enumerate(row) if v["is"](i, j, len(rows))),
        {
            "name": "main_diagonal",
            "what": "on the diagonal from the upper left",
            "test": "row == column",
            "is": lambda i, j, n: i == j,
        },
        {
            "name": "other_diagonal",
            "what": "on the diagonal from the lower left",
            "test": "row + column == size - 1",
            "is": lambda i, j, n: i + j == n - 1,
        },
        {
            "name": "above_diagonal",
            "what": "above the diagonal from the upper left",
            "test": "column > row",
            "is": lambda i, j, n: i < j,
        },
        {
            "name": "border_sum",
            "what": "on the border",
            "test": "row in (0, size - 1) or column in (0, size - 1)",
            "is": lambda i, j, n: {i, j} & {0, n - 1},
        },
    ),
    family(
        "merge_intervals",
        '''
        def $name(intervals):
            """$what of [start, end] intervals, once those are joined that $how."""
            merged = []
            for start, end in sorted(intervals):
                if merged and start $op merged[-1][1]$plus:
                    merged[-1][1] = max(merged[-1][1], end)
                else:
                    merged.append([start, end])
            return $result
        ''',
        _intervals,
        lambda v, intervals: v["of"](_cover(intervals, v["gap"])),
        {
            "name": "merge_touching",
            "what": "The list",
            "how": "overlap or touch",
            "op": "<=",
            "plus": "",
            "result": "merged",
            "gap": 0,
            "of": list,
        },
        {
            "name": "merge_neighbours",
            "what": "The list",
            "how": "overlap or leave no whole number between them",
            "op": "<=",
            "plus": " + 1",
            "result": "merged",
            "gap": 1,
            "of": list,
        },
        {
            "name": "count_blocks",
            "what": "The count",
            "how": "overlap or touch",
            "op": "<=",
            "plus": "",
            "result": "len(merged)",
            "gap": 0,
            "of": len,
        },
        {
            "name": "covered_length",
            "what": "The length in all",
            "how": "overlap or touch",
            "op": "<=",
            "plus": "",
            "result": "sum(end - start for start, end in merged)",
            "gap": 0,
            "of": lambda m: sum(b - a for a, b in m),
        },
    ),
    family(
        "overlap",
        '''
        def $name(first, second):
            """$what of two [start, end] intervals."""
            start = max(first[0], second[0])
            end = min(first[1], second[1])
            if start $op end:
                return $none
            return $both
        ''',
        lambda rng, v: tuple((lambda a: [a, a + rng.randint(1, 6)])(rng.randint(0, 9)) for _ in range(2)),
        lambda v, first, second: v["of"](
            [n for n in range(30) if first[0] <= n <= first[1] and second[0] <= n <= second[1]], first, second
        ),
        {
            "name": "overlap_length",
            "what": "The length of the common part",
            "op": ">",
            "none": "0",
            "both": "end - start",
            "of": lambda c, a, b: len(c) - 1 if c else 0,
        },
        {
            "name": "common_interval",
            "what": "The common part, None if there is none,",
            "op": ">",
            "none": "None",
            "both": "[start, end]",
            "of": lambda c, a, b: [c[0], c[-1]] if c else None,
        },
        {
            "name": "gap_between",
            "what": "The gap, 0 if they touch or overlap,",
            "op": ">",
            "none": "start - end",
            "both": "0",
            "of": lambda c, a, b: 0 if c else max(b[0] - a[1], a[0] - b[1]),
        },
    ),
    family(
        "count_pairs",
        '''
        def $name(numbers, wanted=$wanted):
            """How many pairs of places, the first before the second, hold numbers whose $what."""
            found = 0
            for first in range(len(numbers)):
                for second in range(first + 1, len(numbers)):
                    if $test:
                        found += 1
            return found
        ''',
        lambda rng, v: (numbers(rng), *([rng.randint(0, 8)] if rng.random() < 0.6 else [])),
        lambda v, numbers, wanted=None: sum(
            v["is"](a, b, v["at"] if wanted is None else wanted) for i, a in enumerate(numbers) for b in numbers[i + 1 :]
        ),
        {
            "name": "pairs_with_sum",
            "wanted": "5",
            "what": "sum is wanted",
            "test": "numbers[first] + numbers[second] == wanted",
            "at": 5,
            "is": lambda a, b, k: b == k - a,
        },
        {
            "name": "pairs_far_apart",
            "wanted": "3",
            "what": "distance exceeds wanted",
            "test": "abs(numbers[first] - numbers[second]) > wanted",
            "at": 3,
            "is": lambda a, b, k: a - b > k or b - a > k,
        },
        {
            "name": "falling_pairs",
            "wanted": "0",
            "what": "first exceeds the second by more than wanted",
            "test": "numbers[first] - numbers[second] > wanted",
            "at": 0,
            "is": lambda a, b, k: a > b + k,
        },
    ),
    family(
        "combine_lists",
        '''
        def $name(first, second):
            """$what of two lists, as far as both go."""
            total = $start
            for place in range(min(len(first), len(second))):
                total $step
            return total
        ''',
        lambda rng, v: (numbers(rng, 0, 5), numbers(rng, 0, 5)),
        lambda v, first, second: v["of"](list(zip(first, second, strict=False))),
        {
            "name": "dot_product",
            "what": "The sum of the products",
            "start": "0",
            "step": "+= first[place] * second[place]",
            "of": lambda ps: sum(a * b for a, b in ps),
        },
        {
            "name": "list_distance",
            "what": "The sum of the distances",
            "start": "0",
            "step": "+= abs(first[place] - second[place])",
            "of": lambda ps: sum(max(p) - min(p) for p in ps),
        },
        {
            "name": "interleave",
            "what": "The numbers in turn",
            "start": "[]",
            "step": "+= [first[place], second[place]]",
            "of": lambda ps: [n for p in ps for n in p],
        },
        {
            "name": "places_won",
            "what": "By how many places the first wins over the second,",
            "start": "0",
            "step": "+= (first[place] > second[place]) - (first[place] < second[place])",
            "of": lambda ps: sum(a > b for a, b in ps) - sum(a < b for a, b in ps),
        },
    ),
    family(
        "ranked",
        '''
        def $name(numbers):
            """$what; None for $few."""
            ordered = sorted(numbers)
            size = len(ordered)
            if size < $least:
                return None
            return $result
        ''',
        lambda rng, v: (numbers(rng),),
        lambda v, numbers: v["of"](numbers) if len(numbers) >= v["n"] else None,
        {
            "name": "second_largest",
            "what": "The second largest number, the largest again where it stands twice",
            "few": "fewer than two",
            "least": "2",
            "result": "ordered[size - 2]",
            "n": 2,
            "of": lambda ns: sorted(ns, reverse=True)[1],
        },
        {
            "name": "lower_median",
            "what": "The number in the middle, the lower one of two",
            "few": "none",
            "least": "1",
            "result": "ordered[(size - 1) // 2]",
            "n": 1,
            "of": lambda ns: __import__("statistics").median_low(ns),
        },
        {
            "name": "upper_median",
            "what": "The number in the middle, the upper one of two",
            "few": "none",
            "least": "1",
            "result": "ordered[size // 2]",
            "n": 1,
            "of": lambda ns: __import__("statistics").median_high(ns),
        },
        {
            "name": "trimmed_sum",
            "what": "The sum without the smallest and the largest",
            "few": "fewer than three",
            "least": "3",
            "result": "sum(ordered[1:size - 1])",
            "n": 3,
            "of": lambda ns: sum(ns) - min(ns) - max(ns),
        },
    ),
    family(
        "points",
        '''
        def $name(points, x, y):
            """$what [x, y] points from the point x, y; counted along the streets of a grid."""
            best = None
            for point in points:
                distance = abs(point[0] - x) + abs(point[1] - y)
                if best is None or distance $op best:
                    best = distance
            return $result
        ''',
        lambda rng, v: ([[number(rng), number(rng)] for _ in range(rng.randint(0, 4))], number(rng), number(rng)),
        lambda v, points, x, y: v["of"]([abs(complex(a - x, 0)) + abs(complex(0, b - y)) for a, b in points]),
        {
            "name": "nearest_distance",
            "what": "How far the nearest of the",
            "op": "<",
            "result": "best",
            "of": lambda ds: int(min(ds)) if ds else None,
        },
        {
            "name": "farthest_distance",
            "what": "How far, at least 0, the farthest of the",
            "op": ">",
            "result": "best if best is not None else 0",
            "of": lambda ds: int(max(ds, default=0)),
        },
    ),
    family(
        "fill_gaps",
        '''
        def $name(values):
            """The values with each None replaced by $what."""
            result = []
            last = $start
            for value in values:
                if value is None:
                    result.append(last)
                    $missed
                else:
                    result.append(value)
                    last = $next
            return result
        ''',
        lambda rng, v: ([rng.choice([None, rng.randint(0, 9)]) for _ in range(rng.randint(0, 7))],),
        lambda v, values: [v["of"](values[:i]) if x is None else x for i, x in enumerate(values)],
        {
            "name": "fill_with_last",
            "what": "the last value before it, 0 at the start",
            "start": "0",
            "missed": "last = last",
            "next": "value",
            "of": lambda b: next((x for x in reversed(b) if x is not None), 0),
        },
        {
            "name": "fill_with_next_number",
            "what": "one more than what stands before it, 1 at the start",
            "start": "1",
            "missed": "last += 1",
            "next": "value + 1",
            "of": lambda b: (lambda k: (b[k] if k >= 0 else 0) + len(b) - k)(
                max((i for i, x in enumerate(b) if x is not None), default=-1)
            ),
        },
        {
            "name": "fill_with_peak",
            "what": "the largest value before it, 0 at least",
            "start": "0",
            "missed": "last = last",
            "next": "max(last, value)",
            "of": lambda b: max((x for x in b if x is not None), default=0),
        },
    ),
]


def _cover(intervals, gap):
    """Join any two that are near enough, until there are no such two."""
    left = [list(interval) for interval in intervals]
    while True:
        near = next(((a, b) for a in left for b in left if a is not b and a[0] <= b[0] <= a[1] + gap), None)
        if near is None:
            return sorted(left)
        a, b = near
        left = [other for other in left if other is not a and other is not b] + [[a[0], max(a[1], b[1])]]
