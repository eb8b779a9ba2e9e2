"""Families of small state machines."""

from functools import reduce

from environments.code_repair.maker.family import family, number, numbers


def _events(*kinds):
    return lambda rng, v: ([rng.choice(kinds) for _ in range(rng.randint(0, 8))],)


FAMILIES = [
    family(
        "turnstile",
        '''
        def $name(events):
            """$what at a turnstile: a coin opens it, a push through the open one closes it."""
            is_open = False
            result = 0
            for event in events:
                if event == "coin":
                    $coin
                    is_open = True
                elif event == "push":
                    $push
                    is_open = False
            return result
        ''',
        _events("coin", "push", "push", "kick"),
        lambda v, events: v["of"]("".join({"coin": "c", "push": "p"}.get(e, "") for e in events)),
        {
            "name": "people_through",
            "what": "How many people get through",
            "coin": "result += 0",
            "push": "result += 1 if is_open else 0",
            "of": lambda s: __import__("re").sub("c+", "c", s).count("cp"),
        },
        {
            "name": "wasted_coins",
            "what": "How many coins fall into the open gate",
            "coin": "result += 1 if is_open else 0",
            "push": "result += 0",
            "of": lambda s: sum(a + b == "cc" for a, b in zip(s, s[1:], strict=False)),
        },
        {
            "name": "blocked_pushes",
            "what": "How many pushes find the gate closed",
            "coin": "result += 0",
            "push": "result += 0 if is_open else 1",
            "of": lambda s: sum(a + b != "cp" for a, b in zip("p" + s, s, strict=False) if b == "p"),
        },
    ),
    family(
        "bounded_counter",
        '''
        def $name(events, top=$top):
            """The counter after the events up, down and reset; it stays within 0 and top$what."""
            value = $start
            for event in events:
                if event == "up" and value < top:
                    value += $step
                elif event == "down" and value > 0:
                    value -= 1
                elif event == "reset":
                    value = $start
            return value
        ''',
        lambda rng, v: (
            [rng.choice(["up", "up", "down", "down", "reset", "wait"]) for _ in range(rng.randint(0, 9))],
            *([rng.randint(1, 4)] if rng.random() < 0.5 else []),
        ),
        lambda v, events, top=None: reduce(
            lambda n, e: (
                v["start_at"]
                if e == "reset"
                else n + v["by"] * (e == "up" and n < (top or v["at"])) - (e == "down" and n > 0)
            ),
            events,
            v["start_at"],
        ),
        {"name": "counter_after", "top": "3", "what": "", "start": "0", "step": "1", "at": 3, "start_at": 0, "by": 1},
        {
            "name": "counter_from_one",
            "top": "4",
            "what": " and starts at 1",
            "start": "1",
            "step": "1",
            "at": 4,
            "start_at": 1,
            "by": 1,
        },
        {
            "name": "counter_by_two",
            "top": "5",
            "what": ", or one above: up counts two",
            "start": "0",
            "step": "2",
            "at": 5,
            "start_at": 0,
            "by": 2,
        },
    ),
    family(
        "traffic_light",
        '''
        def $name(seconds, green=$green, yellow=$yellow):
            """$what after so many seconds: green, then yellow, then red as long as green."""
            place = seconds % (2 * green + yellow)
            if place < green:
                return $in_green
            if place < green + yellow:
                return $in_yellow
            return $in_red
        ''',
        lambda rng, v: (rng.randint(0, 40), *([rng.randint(2, 6), rng.randint(1, 3)] if rng.random() < 0.5 else [])),
        lambda v, seconds, green=None, yellow=None: v["of"](seconds, green or v["g"], yellow or v["y"]),
        {
            "name": "light_at",
            "what": "The colour",
            "green": "5",
            "yellow": "2",
            "in_green": '"green"',
            "in_yellow": '"yellow"',
            "in_red": '"red"',
            "g": 5,
            "y": 2,
            "of": lambda s, g, y: (["green"] * g + ["yellow"] * y + ["red"] * g)[s % (2 * g + y)],
        },
        {
            "name": "wait_for_green",
            "what": "How long to wait for green",
            "green": "4",
            "yellow": "1",
            "in_green": "0",
            "in_yellow": "2 * green + yellow - place",
            "in_red": "2 * green + yellow - place",
            "g": 4,
            "y": 1,
            "of": lambda s, g, y: 0 if s % (2 * g + y) < g else -s % (2 * g + y),
        },
        {
            "name": "left_of_light",
            "what": "How long the colour stays",
            "green": "6",
            "yellow": "3",
            "in_green": "green - place",
            "in_yellow": "green + yellow - place",
            "in_red": "2 * green + yellow - place",
            "g": 6,
            "y": 3,
            "of": lambda s, g, y: next(end for end in (g, g + y, 2 * g + y) if s % (2 * g + y) < end) - s % (2 * g + y),
        },
    ),
    family(
        "robot",
        '''
        def $name(moves):
            """$what after its moves: F goes forward, L and R turn; it starts at 0, 0 and looks up."""
            x = 0
            y = 0
            dx = 0
            dy = 1
            for move in moves:
                if move == "F":
                    x += dx
                    y += dy
                elif move == "L":
                    dx, dy = -dy, dx
                elif move == "R":
                    dx, dy = dy, -dx
            return $result
        ''',
        lambda rng, v: ("".join(rng.choice("FFFLR") for _ in range(rng.randint(0, 9))),),
        lambda v, moves: v["of"](*_robot(moves)),
        {
            "name": "robot_place",
            "what": "Where a robot stands, [x, y],",
            "result": "[x, y]",
            "of": lambda at, to: [int(at.real), int(at.imag)],
        },
        {
            "name": "robot_distance",
            "what": "How many steps from its start a robot stands",
            "result": "abs(x) + abs(y)",
            "of": lambda at, to: int(abs(at.real) + abs(at.imag)),
        },
        {
            "name": "robot_view",
            "what": "Where a robot looks, [dx, dy],",
            "result": "[dx, dy]",
            "of": lambda at, to: [int(to.real), int(to.imag)],
        },
    ),
    family(
        "account",
        '''
        def $name(amounts, credit=$credit):
            """$what of an account that refuses what would bring it below -credit."""
            balance = 0
            refused = 0
            for amount in amounts:
                if balance + amount < -credit:
                    refused += 1
                else:
                    balance += amount
            return $result
        ''',
        lambda rng, v: (numbers(rng), *([rng.randint(0, 9)] if rng.random() < 0.6 else [])),
        lambda v, amounts, credit=None: v["of"](*_account(amounts, v["at"] if credit is None else credit)),
        {
            "name": "balance_after",
            "what": "The balance",
            "credit": "0",
            "result": "balance",
            "at": 0,
            "of": lambda b, r, c: b,
        },
        {
            "name": "refused_payments",
            "what": "The count of refused payments",
            "credit": "5",
            "result": "refused",
            "at": 5,
            "of": lambda b, r, c: len(r),
        },
        {
            "name": "left_to_spend",
            "what": "What may still be taken",
            "credit": "3",
            "result": "balance + credit",
            "at": 3,
            "of": lambda b, r, c: c + b,
        },
    ),
    family(
        "stack_machine",
        '''
        def $name(steps):
            """$what of a stack: numbers are put on it, "$plus_name" and "$minus_name" join the upper two, too few are left alone."""
            stack = []
            for step in steps:
                if step == "$plus_name" or step == "$minus_name":
                    if len(stack) < 2:
                        continue
                    right = stack.pop()
                    left = stack.pop()
                    stack.append(left + right if step == "$plus_name" else left - right)
                else:
                    stack.append(step)
            return $result
        ''',
        lambda rng, v: (
            [
                rng.choice([number(rng), number(rng), number(rng), v["plus_name"], v["minus_name"]])
                for _ in range(rng.randint(0, 7))
            ],
        ),
        lambda v, steps: v["of"](_stack(tuple(steps), v["plus_name"], v["minus_name"])),
        {"name": "stack_after", "what": "The numbers", "plus_name": "+", "minus_name": "-", "result": "stack", "of": list},
        {
            "name": "top_of_stack",
            "what": "The upper number, None if there is none,",
            "plus_name": "add",
            "minus_name": "take",
            "result": "stack[-1] if stack else None",
            "of": lambda s: s[-1] if s else None,
        },
    ),
    family(
        "elevator",
        '''
        def $name(floors, start=$start):
            """$what of a lift that goes from start to one floor after the other."""
            here = start
            total = 0
            for floor in floors:
                if floor > here:
                    total += $up * (floor - here)
                elif floor < here:
                    total += $down * (here - floor)
                $stop
                here = floor
            return total
        ''',
        lambda rng, v: (
            [rng.randint(0, 6) for _ in range(rng.randint(0, 6))],
            *([rng.randint(0, 6)] if rng.random() < 0.6 else []),
        ),
        lambda v, floors, start=None: sum(
            max(b - a, 0) * v["u"] + max(a - b, 0) * v["d"] + v["s"]
            for a, b in zip([v["at"] if start is None else start, *floors], floors, strict=False)
        ),
        {
            "name": "floors_passed",
            "what": "The floors passed",
            "start": "0",
            "up": "1",
            "down": "1",
            "stop": "total += 0",
            "at": 0,
            "u": 1,
            "d": 1,
            "s": 0,
        },
        {
            "name": "lift_energy",
            "what": "The energy, three for a floor up and one for a floor down,",
            "start": "0",
            "up": "3",
            "down": "1",
            "stop": "total += 0",
            "at": 0,
            "u": 3,
            "d": 1,
            "s": 0,
        },
        {
            "name": "lift_seconds",
            "what": "The time, two seconds a floor and five a stop,",
            "start": "1",
            "up": "2",
            "down": "2",
            "stop": "total += 5",
            "at": 1,
            "u": 2,
            "d": 2,
            "s": 5,
        },
    ),
    family(
        "queue",
        '''
        def $name(events, room=$room):
            """$what of a queue with room for so many: a number joins its end, "next" calls the first."""
            waiting = []
            called = []
            lost = 0
            for event in events:
                if event == "next":
                    if waiting:
                        called.append(waiting.pop(0))
                elif len(waiting) < room:
                    waiting.append(event)
                else:
                    lost += 1
            return $result
        ''',
        lambda rng, v: (
            [rng.choice(["next", rng.randint(1, 9), rng.randint(1, 9)]) for _ in range(rng.randint(0, 9))],
            *([rng.randint(1, 4)] if rng.random() < 0.5 else []),
        ),
        lambda v, events, room=None: v["of"](*_queue(events, room or v["at"])),
        {
            "name": "called_in_order",
            "what": "Those called",
            "room": "3",
            "result": "called",
            "at": 3,
            "of": lambda c, w, lost: c,
        },
        {
            "name": "still_waiting",
            "what": "Those waiting",
            "room": "2",
            "result": "waiting",
            "at": 2,
            "of": lambda c, w, lost: w,
        },
        {
            "name": "turned_away",
            "what": "The count of those turned away",
            "room": "2",
            "result": "lost",
            "at": 2,
            "of": lambda c, w, lost: lost,
        },
    ),
]


def _robot(moves):
    at, to = 0j, 1j
    for move in moves:
        at, to = at + to * (move == "F"), to * {"F": 1, "L": 1j, "R": -1j}[move]
    return at, to


def _account(amounts, credit):
    """(balance, what was refused, credit)."""
    balance, refused = 0, []
    for amount in amounts:
        if balance + amount + credit >= 0:
            balance += amount
        else:
            refused.append(amount)
    return balance, refused, credit


def _stack(steps, plus, minus):
    """The stack, by recursion on the last step."""
    if not steps:
        return []
    before, last = _stack(steps[:-1], plus, minus), steps[-1]
    if last not in (plus, minus):
        return [*before, last]
    if len(before) < 2:
        return before
    return [*before[:-2], before[-2] + before[-1] * (1 if last == plus else -1)]


def _queue(events, room):
    joined, heads, lost = [], 0, 0
    for event in events:
        if event == "next":
            heads = min(heads + 1, len(joined))
        elif len(joined) - heads < room:
            joined.append(event)
        else:
            lost += 1
    return joined[:heads], joined[heads:], lost
