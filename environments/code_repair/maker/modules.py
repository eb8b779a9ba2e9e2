"""Modules of three files; the function that the tests call is in the last one.

The bug is put into one of the other two, so that it is not where the failure appears. Each module has `draw`
and `truth` like a family; no two share a function.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from textwrap import dedent
from typing import Any

from environments.code_repair.maker.family import word


@dataclass(frozen=True)
class Module:
    """split: train, val or test. entry: the function that the tests call. files: name -> source, that of the entry last."""

    split: str
    entry: str
    files: dict[str, str]
    draw: Callable[[random.Random], tuple]
    truth: Callable[..., Any]


def module(split: str, entry: str, draw: Callable, truth: Callable, **files: str) -> Module:
    return Module(split, entry, {f"{name}.py": dedent(source).lstrip("\n") for name, source in files.items()}, draw, truth)


def _orders(rng: random.Random) -> tuple:
    return ([[rng.choice(["pen", "book", "lamp"]), rng.randint(0, 12)] for _ in range(rng.randint(0, 4))],)


PRICES = {"pen": 2, "book": 15, "lamp": 40}


def _bill(orders):
    total = sum(PRICES[name] * (count - count // 5 if name == "pen" else count) for name, count in orders)
    return total if total == 0 or total > 100 else total + 6


def _hand(rng: random.Random) -> tuple:
    return tuple([rng.choice(["A", "K", "Q", "2", "5", "7", "9", "10"]) for _ in range(rng.randint(1, 4))] for _ in range(2))


def _worth(cards):
    total = sum({"A": 1, "K": 10, "Q": 10}.get(card) or int(card) for card in cards)
    total += 10 if "A" in cards and total <= 11 else 0
    return total if total <= 21 else 0


def _grid(rng: random.Random) -> tuple:
    width = rng.randint(1, 4)
    return (["".join(rng.choice("..#") for _ in range(width)) for _ in range(rng.randint(1, 4))],)


def _next_life(rows):
    alive = {(i, j) for i, row in enumerate(rows) for j, c in enumerate(row) if c == "#"}

    def lives(i, j):
        around = sum((i + di, j + dj) in alive for di in (-1, 0, 1) for dj in (-1, 0, 1)) - ((i, j) in alive)
        return around == 3 or (around == 2 and (i, j) in alive)

    return ["".join(".#"[lives(i, j)] for j in range(len(row))) for i, row in enumerate(rows)]


def _days(rng: random.Random) -> tuple:
    first = date.fromordinal(rng.randint(date(1996, 1, 1).toordinal(), date(2005, 12, 31).toordinal()))
    return (first.year, first.month, first.day, first.year + rng.randint(0, 4), rng.randint(1, 12), rng.randint(1, 28))


def _roads(rng: random.Random) -> tuple:
    towns = "abcde"
    roads = [[rng.choice(towns), rng.choice(towns)] for _ in range(rng.randint(0, 6))]
    return roads, rng.choice(towns), rng.choice(towns)


def _stops(roads, start, goal):
    reached, steps = {start}, 0
    while goal not in reached:
        wider = reached | {b for pair in roads for a, b in (pair, pair[::-1]) if a in reached}
        if wider == reached:
            return -1
        reached, steps = wider, steps + 1
    return steps


def _seats(rng: random.Random) -> tuple:
    return ([rng.randint(1, 5) for _ in range(rng.randint(0, 5))], rng.randint(3, 7))


def _seated(parties, width):
    rows: list[list[int]] = []
    for party in parties:
        row = next((row for row in rows if sum(row) + len(row) + party <= width), None)
        if party > width:
            continue
        if row is None:
            rows.append([party])
        else:
            row.append(party)
    return [sum(row) for row in rows]


def _league(rng: random.Random) -> tuple:
    return (
        [[*rng.sample(["ann", "bob", "cat"], 2), rng.randint(0, 3), rng.randint(0, 3)] for _ in range(rng.randint(0, 5))],
    )


def _table(games):
    points: dict[str, list[int]] = {}
    for home, away, ours, theirs in games:
        for name, a, b in ((home, ours, theirs), (away, theirs, ours)):
            row = points.setdefault(name, [0, 0])
            row[0] += 3 * (a > b) + (a == b)
            row[1] += a - b
    return sorted(points, key=lambda name: (-points[name][0], -points[name][1], name))


def _lines(rng: random.Random) -> tuple:
    return (" ".join(word(rng, 5) or "a" for _ in range(rng.randint(0, 7))), rng.randint(5, 10))


def _wrapped(words, width):
    lines: list[str] = []
    for part in words.split():
        if lines and len(lines[-1]) + 1 + len(part) <= width:
            lines[-1] += " " + part
        else:
            lines.append(part)
    return [line + "." * (width - len(line)) for line in lines]


MODULES = [
    module(
        "train",
        "bill",
        _orders,
        _bill,
        prices='''
        def price_of(name):
            """What one thing costs."""
            prices = {"pen": 2, "book": 15, "lamp": 40}
            return prices[name]


        def free_things(name, count):
            """How many of count things are free: every fifth pen."""
            if name == "pen":
                return count // 5
            return 0
        ''',
        basket='''
        from prices import price_of, free_things


        def line_total(name, count):
            """What count things cost, without those that are free."""
            paid = count - free_things(name, count)
            return paid * price_of(name)


        def add_up(orders):
            """What all [name, count] orders cost."""
            total = 0
            for name, count in orders:
                total += line_total(name, count)
            return total
        ''',
        shop='''
        from basket import add_up


        def bill(orders):
            """What is to be paid: up to 100 the parcel costs 6, above nothing; nothing for no orders."""
            total = add_up(orders)
            if total == 0:
                return 0
            if total <= 100:
                total += 6
            return total
        ''',
    ),
    module(
        "train",
        "winner",
        _hand,
        lambda a, b: "first" if _worth(a) > _worth(b) else "second" if _worth(b) > _worth(a) else "none",
        cards='''
        def value_of(card):
            """1 for an ace, 10 for a king or queen, else the number on the card."""
            if card == "A":
                return 1
            if card == "K" or card == "Q":
                return 10
            return int(card)


        def has_ace(cards):
            """Whether an ace is among the cards."""
            for card in cards:
                if card == "A":
                    return True
            return False
        ''',
        hands='''
        from cards import value_of, has_ace


        def worth(cards):
            """The sum of the cards; an ace counts 10 more if that keeps it within 21; 0 for more than 21."""
            total = 0
            for card in cards:
                total += value_of(card)
            if has_ace(cards) and total + 10 <= 21:
                total += 10
            if total > 21:
                return 0
            return total
        ''',
        game='''
        from hands import worth


        def winner(first, second):
            """Which of two hands is worth more: first, second or none."""
            if worth(first) > worth(second):
                return "first"
            if worth(second) > worth(first):
                return "second"
            return "none"
        ''',
    ),
    module(
        "train",
        "next_board",
        _grid,
        _next_life,
        cells='''
        def is_alive(rows, row, column):
            """Whether the cell is a #; none is outside of the rows."""
            if row < 0 or row >= len(rows):
                return False
            if column < 0 or column >= len(rows[row]):
                return False
            return rows[row][column] == "#"


        def alive_around(rows, row, column):
            """How many of the eight cells around this one are alive."""
            found = 0
            for down in range(-1, 2):
                for right in range(-1, 2):
                    if (down != 0 or right != 0) and is_alive(rows, row + down, column + right):
                        found += 1
            return found
        ''',
        life='''
        from cells import is_alive, alive_around


        def next_cell(rows, row, column):
            """# for a cell with three neighbours, or with two that is alive; else a dot."""
            around = alive_around(rows, row, column)
            if around == 3:
                return "#"
            if around == 2 and is_alive(rows, row, column):
                return "#"
            return "."
        ''',
        board='''
        from life import next_cell


        def next_board(rows):
            """The rows of the game of life, a step later."""
            result = []
            for row in range(len(rows)):
                line = ""
                for column in range(len(rows[row])):
                    line += next_cell(rows, row, column)
                result.append(line)
            return result
        ''',
    ),
    module(
        "train",
        "seat_parties",
        _seats,
        _seated,
        rows='''
        def taken(row):
            """How many seats a row's parties take, with an empty one after each."""
            seats = 0
            for party in row:
                seats += party + 1
            return seats


        def fits(row, party, width):
            """Whether a party still fits into a row of so many seats."""
            return taken(row) + party <= width
        ''',
        seating='''
        from rows import fits


        def place(rows, party, width):
            """The rows with the party in the first where it fits, or in a new one; as they are if it fits into none."""
            if party > width:
                return rows
            for row in rows:
                if fits(row, party, width):
                    row.append(party)
                    return rows
            rows.append([party])
            return rows
        ''',
        theatre='''
        from seating import place


        def seat_parties(parties, width):
            """How many people sit in each row once all parties are placed."""
            rows = []
            for party in parties:
                rows = place(rows, party, width)
            result = []
            for row in rows:
                result.append(sum(row))
            return result
        ''',
    ),
    module(
        "val",
        "days_between",
        _days,
        lambda *d: (date(*d[3:]) - date(*d[:3])).days,
        years='''
        def is_leap(year):
            """Whether a year has a 29 February."""
            if year % 400 == 0:
                return True
            if year % 100 == 0:
                return False
            return year % 4 == 0


        def days_of_year(year):
            """How many days a year has."""
            if is_leap(year):
                return 366
            return 365
        ''',
        months='''
        from years import is_leap


        def days_of_month(year, month):
            """How many days a month has, from 1 for January."""
            if month == 2 and is_leap(year):
                return 29
            return [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31][month - 1]


        def day_of_year(year, month, day):
            """Which day of its year a date is, from 1."""
            total = day
            for earlier in range(1, month):
                total += days_of_month(year, earlier)
            return total
        ''',
        calendar='''
        from years import days_of_year
        from months import day_of_year


        def days_between(year, month, day, later_year, later_month, later_day):
            """How many days there are from one date to another; less than 0 if it is before."""
            total = day_of_year(later_year, later_month, later_day) - day_of_year(year, month, day)
            for between in range(year, later_year):
                total += days_of_year(between)
            return total
        ''',
    ),
    module(
        "test",
        "stops",
        _roads,
        _stops,
        roads='''
        def next_towns(roads, town):
            """The towns that a road leads to from this one; roads go both ways."""
            result = []
            for start, end in roads:
                if start == town:
                    result.append(end)
                elif end == town:
                    result.append(start)
            return result
        ''',
        search='''
        from roads import next_towns


        def step(roads, reached):
            """The towns reached, and those a road further."""
            wider = list(reached)
            for town in reached:
                for other in next_towns(roads, town):
                    if other not in wider:
                        wider.append(other)
            return wider


        def is_stuck(before, after):
            """Whether nothing new was reached."""
            return len(after) == len(before)
        ''',
        trip='''
        from search import step, is_stuck


        def stops(roads, start, goal):
            """The least number of roads from start to goal; -1 if there is no way."""
            reached = [start]
            count = 0
            while goal not in reached:
                wider = step(roads, reached)
                if is_stuck(reached, wider):
                    return -1
                reached = wider
                count += 1
            return count
        ''',
    ),
    module(
        "test",
        "ranking",
        _league,
        _table,
        points='''
        def points_for(ours, theirs):
            """Three points for a win, one for a draw."""
            if ours > theirs:
                return 3
            if ours == theirs:
                return 1
            return 0


        def goal_difference(ours, theirs):
            """By how many goals a game was won."""
            return ours - theirs
        ''',
        league='''
        from points import points_for, goal_difference


        def add_game(table, name, ours, theirs):
            """Adds a game's points and goal difference to a name's row in the table."""
            if name not in table:
                table[name] = [0, 0]
            table[name][0] += points_for(ours, theirs)
            table[name][1] += goal_difference(ours, theirs)


        def standings(games):
            """name -> [points, goal difference], from [home, away, goals of home, goals of away]."""
            table = {}
            for home, away, ours, theirs in games:
                add_game(table, home, ours, theirs)
                add_game(table, away, theirs, ours)
            return table
        ''',
        season='''
        from league import standings


        def ranking(games):
            """The names by points, then by goal difference, then by letters."""
            table = standings(games)
            rows = []
            for name in table:
                rows.append([-table[name][0], -table[name][1], name])
            result = []
            for row in sorted(rows):
                result.append(row[2])
            return result
        ''',
    ),
    module(
        "test",
        "wrap",
        _lines,
        _wrapped,
        measure='''
        def room_left(line, width):
            """How many letters still go on a line."""
            return width - len(line)


        def fits(line, word, width):
            """Whether a word goes on a line that has one already, with a space before it."""
            return len(word) + 1 <= room_left(line, width)
        ''',
        lines='''
        from measure import fits, room_left


        def add_word(lines, word, width):
            """The lines with a word at the end of the last, or on a new one."""
            if lines and fits(lines[-1], word, width):
                return lines[:-1] + [lines[-1] + " " + word]
            return lines + [word]


        def filled(line, width):
            """The line with dots up to its width."""
            return line + "." * room_left(line, width)
        ''',
        page='''
        from lines import add_word, filled


        def wrap(text, width):
            """The words of a text on lines of at most width letters, filled with dots."""
            lines = []
            for word in text.split():
                lines = add_word(lines, word, width)
            result = []
            for line in lines:
                result.append(filled(line, width))
            return result
        ''',
    ),
]
