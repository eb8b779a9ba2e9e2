"""Hostile and broken programs in the sandbox of the repair task: `python -m benchmarks.hostile 10000` prints one JSON line.

They attack files, sockets, imports, processes, memory, time, the stack, output, the interpreter and the tests; others contain
look-alike characters, or are truncated or random. After each the next run must give the correct result. `harm` counts events that
must never happen, by kind: an exception of the sandbox itself, a run more than a second over its limit, a wrong result of the next
run, a file that was read, written or left, a connection.
"""

from __future__ import annotations

import argparse
import random
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from benchmarks.result import print_result
from code_repair.problems import load_problems
from code_repair.sandbox import Limits, MontySandbox, Sandbox

LIMITS = Limits(seconds=0.2)
GRACE = 1.0  # seconds that a run may exceed its limit
SECRET = "the-secret-of-the-house"
HARMLESS = "def after(n):\n    return n + 1\n"

FILES = (
    "open({read!r}).read()",
    "open({write!r}, 'w').write('x')",
    "open({write!r}, 'ab')",
    "import pathlib\npathlib.Path({read!r}).read_text()",
    "from pathlib import Path\nPath({write!r}).write_text('x')",
    "import os\nos.listdir('/')",
    "import os\nos.remove({read!r})",
    "import os\nos.open({write!r}, os.O_CREAT)",
    "import io\nio.open({read!r}).read()",
    "import shutil\nshutil.rmtree({folder!r})",
    "import os\nprint(os.environ)\nos.environ['HOME']",
    "import tempfile\ntempfile.mkstemp()",
    "import sqlite3\nsqlite3.connect({write!r})",
    "import glob\nglob.glob('/*')",
    "import pathlib\nlist(pathlib.Path({folder!r}).iterdir())",
    "import os\nos.symlink({read!r}, {write!r})",
    "with open({read!r}) as file:\n    leaked = file.read()",
    "import os\nos.getcwd()\nos.chdir('/')",
    "open(0).read()",
    "open('/dev/stdin').read()",
    "open('/proc/self/mem', 'rb').read(10)",
    "open('\\\\\\\\server\\\\share')",
    "import fileinput\nlist(fileinput.input({read!r}))",
)
SOCKETS = (
    "import socket\nsocket.create_connection(('127.0.0.1', {port}))",
    "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:{port}')",
    "import http.client\nhttp.client.HTTPConnection('127.0.0.1', {port}).request('GET', '/')",
    "import requests\nrequests.get('http://127.0.0.1:{port}')",
    "import asyncio\nasyncio.run(asyncio.open_connection('127.0.0.1', {port}))",
    "from socket import socket\nsocket().connect(('127.0.0.1', {port}))",
    "import ssl, ftplib, smtplib",
    "import xmlrpc.client\nxmlrpc.client.ServerProxy('http://127.0.0.1:{port}').x()",
)
IMPORTS = (
    "__import__({module!r})",
    "import {module}",
    "import {module} as m\nm.__dict__",
    "from {module} import *",
    "import importlib\nimportlib.import_module({module!r})",
    "import sys\nsys.modules[{module!r}]",
    "exec('import {module}')",
    "eval(\"__import__('{module}')\")",
    "compile('import {module}', 'x', 'exec')",
    "globals()['__builtins__']['__import__']({module!r})",
    "from . import {module}",
    "import art_nb.{module}",
)
FORKS = (
    "import os\nwhile True:\n    os.fork()",
    "import subprocess\nsubprocess.run(['touch', {write!r}])",
    "import os\nos.system('touch ' + {write!r})",
    "import multiprocessing\nmultiprocessing.Process(target=print).start()",
    "import threading\nthreading.Thread(target=solve).start()",
    "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
    "import os\nos.kill(-1, 9)",
    "import os\nos._exit(3)",
    "import sys\nsys.exit(0)",
    "quit()",
    "exit(3)",
    "raise SystemExit",
    "raise KeyboardInterrupt",
    "import os\nos.abort()",
    "import ctypes\nctypes.string_at(0)",
    "import faulthandler\nfaulthandler._sigsegv()",
    "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))",
    "import os\nos.execv('/bin/sh', ['sh'])",
    "import pty\npty.spawn('sh')",
)
MEMORY = (
    "x = [0] * 10 ** {n}",
    "x = 'a' * 10 ** {n}",
    "x = bytes(10 ** {n})",
    "x = bytearray(10 ** {n})",
    "x = 10 ** 10 ** {n}",
    "x = 1 << 10 ** {n}",
    "x = list(range(10 ** {n}))",
    "x = []\nwhile True:\n    x.append('a' * 1000)",
    "x = 'a'\nwhile True:\n    x += x",
    "x = [1]\nwhile True:\n    x = x + x",
    "x = {{}}\ni = 0\nwhile True:\n    x[i] = [i]\n    i += 1",
    "x = 'a'.ljust(10 ** {n})",
    "x = '1'.zfill(10 ** {n})",
    "x = '%' + str(10 ** {n}) + 'd'\nx = x % 1",
    "x = f'{{1:{n}00000000}}'",
    "x = set(range(10 ** {n}))",
    "x = (0,) * 10 ** {n}",
    "x = 'ab'.replace('', 'c' * 10 ** {n})",
    "x = ','.join(['a' * 10 ** 6] * 10 ** {n})",
    "x = [[0] * 10 ** 4 for _ in range(10 ** {n})]",
    "x = pow(7, 10 ** {n})",
    "x = str(9 ** 9 ** {n})",
    "x = int('9' * 10 ** {n})",
    "x = 'a' * 2 ** 63",
    "x = [0] * (2 ** 63 - 1)",
    "x = 'a' * -1 + 'b' * 2 ** 31",
    "x = 'x'.center(2 ** 40)",
    "x = list('a' * 10 ** {n})",
    "x = sorted(range(10 ** {n}))",
    "x = {{i: i for i in range(10 ** {n})}}",
    "x = 'a'.expandtabs(10 ** {n})",
    "x = '\\t'.expandtabs(10 ** {n})",
    "x = list(zip(*[range(10 ** {n})] * 9))",
    "import math\nx = math.factorial(10 ** {n})",
    "import math\nx = math.comb(10 ** {n}, 10 ** 5)",
    "import math\nx = math.perm(10 ** {n})",
    "x = 2 ** 10 ** {n} % 3",
    "x = divmod(10 ** 10 ** {n}, 7)",
)
LOOPS = (
    "while True:\n    pass",
    "for i in range(10 ** 18):\n    pass",
    "x = sum(range(10 ** 12))",
    "x = max(range(10 ** 12))",
    "x = [i for i in range(10 ** 15) if i < 0]",
    "x = 5.5 in range(10 ** 15)",
    "x = any(i < 0 for i in range(10 ** 15))",
    "x = min(range(10 ** 15), key=lambda n: n)",
    "import re\nx = re.match('(a+)+$', 'a' * 40 + 'b')",
    "import re\nx = re.search('(a|a)*b', 'a' * 60)",
    "x = ('a' * 10 ** 6 + 'b') * 5 in 'a' * 10 ** 7",
    "x = 3 ** (10 ** 8)",
    "x = pow(3, 10 ** 9)",
    "x = pow(3, 10 ** 5000, 10 ** 5000 + 1)",
    "x = str(3 ** 10 ** 6)",
    "x = int('7' * 10 ** 6)",
    "while 1:\n    try:\n        while 1:\n            pass\n    except BaseException:\n        pass",
    "while True:\n    try:\n        solve(1)\n    finally:\n        continue",
    "def solve(n):\n    while n == n:\n        n += 0\nsolve(1)",
    "x = [1, 2]\nfor i in x:\n    x.append(i)",
    "x = sorted([3, 1, 2] * 10 ** 6)",
    "x = 'ab' * 10 ** 6\nwhile x.count('ba'):\n    x = x.replace('ba', 'ab', 1)",
    "x = list(map(lambda n: n ** n ** 4, range(99)))",
    "f = lambda f: f(f)\nf(f)",
    "x = 'a' * 10 ** 7\ny = [x.find('b' * i) for i in range(10 ** 5)]",
    "x = [1] * 10 ** 6\ny = [x.index(2) if 2 in x else 0 for i in range(10 ** 6)]",
    "x = (9 ** 10 ** 5) * (9 ** 10 ** 5) // (7 ** 10 ** 5)",
    "x = 1\nfor i in range(10 ** 9):\n    x *= 3",
    "import time\ntime.sleep(60)",
    "import asyncio\nasyncio.run(asyncio.sleep(60))",
    "input()",
    "x = all(True for _ in iter(int, 1))",
    "x = next(i for i in iter(int, 1) if i)",
    "x = tuple(iter(int, 1))",
    "x = ''.join('a' for _ in iter(int, 1))",
    "x = dict.fromkeys(range(10 ** 12))",
    "x = list(range(10 ** 7))[::-1] * 9",
    "x = [0] * 10 ** 6\nwhile x == list(x):\n    pass",
    "x = 'a' * 10 ** 6\nwhile x == x + '':\n    pass",
    "import json\nx = json.loads('[' * 10 ** 6)",
    "x = set()\nwhile True:\n    x = frozenset([x])",
)
DEEP = (
    "def f(n):\n    return f(n + 1)\nf(0)",
    "def f(n):\n    return g(n)\ndef g(n):\n    return f(n)\nf(0)",
    "x = []\nfor i in range(10 ** {n}):\n    x = [x]\nrepr(x)",
    "x = []\nfor i in range(10 ** {n}):\n    x = [x]\nx == x",
    "x = []\nx.append(x)\nrepr(x)",
    "x = []\nx.append(x)\ny = []\ny.append(y)\nx == y",
    "x = {{}}\nx[0] = x\nstr(x)",
    "x = ()\nfor i in range(10 ** {n}):\n    x = (x,)\nhash(x)",
    "x = ()\nfor i in range(10 ** {n}):\n    x = (x,)\n{{x: 1}}",
    "class A:\n    def __repr__(self):\n        return repr(self)\nrepr(A())",
    "class A:\n    def __eq__(self, other):\n        return self == other\nA() == A()",
    "class A:\n    def __getattr__(self, name):\n        return self.other\nA().x",
    "sorted([1, 2], key=lambda n: f(n))\n",
    "f = lambda: f()\nf()",
    "x = {open}1{close}",
    "x = {minus}1",
    "x = {nots}1",
    "x = {lists}",
    "x = {plus}",
    "x = {ifs}",
    "{blocks}",
    "{lambdas}",
    "x = {tuples}",
    "x = {dicts}",
    "x = {calls}",
    "x = {attributes}",
    "x = {compares}",
    "x = f'{braces}'",
    "{defs}",
    "def f():\n    try:\n        f()\n    except RecursionError:\n        f()\nf()",
    "def f():\n    try:\n        return f()\n    finally:\n        f()\nf()",
    "x = 1\nfor i in range(10 ** {n}):\n    x = (lambda y: lambda: y)(x)",
)
OUTPUT = (
    "while True:\n    print('x' * 1000)",
    "print('x' * 10 ** 7)",
    "for i in range(10 ** 6):\n    print(i)",
    "print('\\0' * 1000)",
    "print('\\x1b[2J\\x1b]0;title\\x07')",
    "print(chr(0xd800))",
    "print('\\ud83d')",
    "import sys\nsys.stdout.write('x' * 10 ** 7)",
    "import sys\nsys.stderr.write('x' * 10 ** 7)",
    "print(*range(10 ** 6), sep='\\n')",
    "print(end='x' * 10 ** 7)",
    "print([[[1] * 1000] * 100] * 10)",
    "raise ValueError('x' * 10 ** 6)",
    "raise ValueError('\\ud800\\0')",
    "assert False, 'x' * 10 ** 6",
    "def solve(n):\n    return 'x' * 10 ** 7",
    "def solve(n):\n    return [n] * 10 ** 6",
    "def solve(n):\n    return chr(0xdfff)",
    "def solve(n):\n    return '<script>alert(1)</script>'",
    "import warnings\nwarnings.warn('x' * 10 ** 6)",
    "print(file=open({write!r}, 'w'))",
)
TAMPERING = (
    "repr = lambda x: '4'\ndef solve(n):\n    return 0",
    "def repr(x):\n    while True:\n        pass",
    "str = int = len = print = None",
    "True_ = 1\n__builtins__ = {{}}",
    "import builtins\nbuiltins.repr = lambda x: '4'",
    "globals().clear()",
    "del solve",
    "globals()['solve'] = 3",
    "class int:\n    pass",
    "import sys\nsys.setrecursionlimit(10 ** 9)",
    "class Yes:\n    def __eq__(self, other):\n        return True\n    def __repr__(self):\n        return '4'\ndef solve(n):\n    return Yes()",
    "def solve(n):\n    raise SystemExit",
    "def solve(n):\n    raise AssertionError('4')",
    "import inspect\ninspect.stack()",
    "import sys\nsys._getframe(1).f_locals",
    "import gc\ngc.get_objects()",
    "def solve(n):\n    global solve\n    solve = None\n    return 1",
    "import unittest\nunittest.TestCase.assertEqual = lambda *a: None",
    "import pytest",
    "import sys\nsys.settrace(print)",
    "import atexit\natexit.register(print)",
    "__name__ = '__main__'",
)
ESCAPES = (
    "().__class__.__bases__[0].__subclasses__()",
    "''.__class__.__mro__[-1].__subclasses__()",
    "(lambda: 0).__globals__",
    "(lambda: 0).__code__",
    "solve.__globals__['__builtins__']",
    "'{{0.__class__}}'.format(1)",
    "'{{0.__globals__}}'.format(solve)",
    "getattr((), '__cl' + 'ass__')",
    "type('X', (), {{}})",
    "type(solve)(None, {{}})",
    "vars()",
    "dir(__builtins__)",
    "locals()",
    "object.__subclasses__()",
    "[c for c in ().__class__.__base__.__subclasses__() if 'wrap' in str(c)]",
    "try:\n    1 / 0\nexcept Exception as error:\n    error.__traceback__.tb_frame",
    "def g():\n    yield 1\ng().gi_frame.f_back",
    "import sys\nsys.modules['os'].system('true')",
    "async def a():\n    pass\na().cr_frame",
    "class M(type):\n    def __prepare__(*a):\n        return {{}}",
    "import pickle\npickle.loads(b'cos\\nsystem\\n(S\"true\"\\ntR.')",
    "import marshal",
    "import code\ncode.interact()",
    "breakpoint()",
    "help()",
    "copyright()",
    "import codecs\ncodecs.open({read!r})",
    "memoryview(b'x').obj",
    "setattr(int, 'x', 1)",
    "int.__add__ = None",
    "@(lambda f: open({read!r}))\ndef f():\n    pass",
)
LOOK_ALIKES = (
    "def s\u043elve(n):\n    return 4",
    "def \uff53\uff4f\uff4c\uff56\uff45(n):\n    return 4",
    "\u0430 = 1\na = 2\nx = \u0430 + a",
    "x = '\u202e' + 'evil'  # \u2066 comment \u2069",
    "x\u200b = 1",
    "\ufeffx = 1",
    "x = 1 \u2212 1",
    "x = \u201ctext\u201d",
    "\u2028x = 1",
    "x = 1\x00",
    "\x0cx = 1",
    "x = 1\r\ny = 2\ry = 3",
    "def solve(n):\u00a0return 4",
    "\u0456mport os",
    "\uff4f\uff50\uff45\uff4e({read!r})",
    "_\uff3fimport__('os')",
    "x = \uff11 + \u0663",
    "\ud800 = 1",
    "x = '\ud800'",
    "\U0001f40d = 1",
    "if\u3000True: pass",
    "x = \u00b2",
    "def \u1d2c(): pass",
    "\u03c0 = 3\n\u03d6 = 4",
    "x = 1;\u037e y = 2",
    "# -*- coding: utf-7 -*-\n+AG8-pen",
    "# coding: rot13\nvzcbeg bf",
    "e\u0301 = 1\n\u00e9 = 2",
)
WORDS = (
    "def solve if else elif for in while return yield class lambda not and or is None True False try except finally raise with as import from pass break continue del global nonlocal assert async await match case "
    "print len range open eval exec int str list dict set sum max map filter zip sorted repr type super self __class__ __init__ n x y ( ) [ ] { } : , . = == != < <= > >= + - * ** / // % @ & | ^ ~ << >> -> := ... \\ ; # ' \" ''' f' b' r' 0 1 -1 10**9 1e999 0x1f 1j 'a' \n \n \n \t "
).split(" ")
MODULES = "os sys subprocess socket ctypes builtins importlib shutil signal gc inspect types code pickle io mmap posix _thread resource fcntl pty site runpy zipimport torch numpy art_nb".split()

Program = tuple[str, str]  # (kind, source)


def programs(count: int, seed: int, places: dict[str, object]) -> Iterator[Program]:
    """Yield `count` programs, alternating kinds, deterministic in the seed. places: read, write, folder, port to attack."""
    rng = random.Random(seed)
    good = [next(iter(problem.files.values())) for problem in load_problems() if problem.size == "function"]

    def filled(templates: tuple[str, ...]) -> Callable[[], str]:
        return lambda: _disguised(rng, _filled(rng.choice(templates), rng, places))

    kinds: dict[str, Callable[[], str]] = {
        "files": filled(FILES),
        "sockets": filled(SOCKETS),
        "imports": filled(IMPORTS),
        "forks": filled(FORKS),
        "memory": filled(MEMORY),
        "recursion": filled(DEEP),
        "output": filled(OUTPUT),
        "tampering": filled(TAMPERING),
        "escapes": filled(ESCAPES),
        "look-alikes": filled(LOOK_ALIKES),
        "half-written": lambda: _half_written(rng, rng.choice(good)),
        "garbled": lambda: _garbled(rng, rng.choice(good)),
        "random words": lambda: " ".join(rng.choices(WORDS, k=rng.randint(1, 60))),
        "random letters": lambda: "".join(
            chr(rng.choice([rng.randrange(128), rng.randrange(0x3000), rng.randrange(0x110000)]))
            for _ in range(rng.randint(1, 200))
        ),
        "loops": filled(LOOPS),
    }
    names = list(kinds)
    for number in range(count):
        kind = names[number % len(names)]
        yield kind, kinds[kind]()


def _filled(template: str, rng: random.Random, places: dict[str, object]) -> str:
    """Return a template with its fields filled in; nestings have a random depth."""
    deep = 10 ** rng.randint(1, 4)
    nested = {
        "open": "(" * deep,
        "close": ")" * deep,
        "minus": "-" * deep,
        "nots": "not " * deep,
        "lists": "[" * deep + "]" * deep,
        "plus": "1+" * deep + "1",
        "ifs": "1 if 1 else " * deep + "1",
        "blocks": "".join(" " * i + "if 1:\n" for i in range(min(deep, 300))) + " " * min(deep, 300) + "pass",
        "lambdas": "x = " + "lambda: " * deep + "1",
        "tuples": "(" * deep + "1" + ",)" * deep,
        "dicts": "{1:" * deep + "1" + "}" * deep,
        "calls": "f(" * deep + ")" * deep,
        "attributes": "x" + ".x" * deep,
        "compares": "1<" * deep + "1",
        "braces": "{" * min(deep, 200) + "1" + "}" * min(deep, 200),
        "defs": "".join(" " * i + "def f():\n" for i in range(min(deep, 300))) + " " * min(deep, 300) + "pass",
    }
    try:
        return template.format(**places, **nested, n=rng.randint(3, 11), module=rng.choice(MODULES))
    except (KeyError, ValueError, IndexError):
        return template  # its braces are Python's, not fields


def _disguised(rng: random.Random, source: str) -> str:
    """Return the program, or hide it in a function that the tests call, a try statement, a class or an evaluated string."""
    indented = "".join(f"    {line}\n" for line in source.splitlines())
    return rng.choice(
        [
            source,
            source,
            f"def solve(n):\n{indented}    return n\n",
            f"try:\n{indented}except Exception:\n    pass\ndef solve(n):\n    return n\n",
            f"def solve(n):\n    try:\n    {indented.replace(chr(10), chr(10) + '    ').rstrip()}\n    except BaseException as e:\n        return str(e)\n",
            f"class A:\n    def __init__(self):\n    {indented.replace(chr(10), chr(10) + '    ').rstrip()}\ndef solve(n):\n    return A()\n",
            f"exec({source!r})\n",
            f"solve = lambda n: eval({source!r})\n",
            f"def solve(n):\n    return n\n{source}",
        ]
    )


def _half_written(rng: random.Random, source: str) -> str:
    return source[: rng.randrange(1, len(source))]


def _garbled(rng: random.Random, source: str) -> str:
    """Change, drop, double or swap a few characters."""
    letters = list(source)
    for _ in range(rng.randint(1, 8)):
        place = rng.randrange(len(letters))
        letters[place] = rng.choice(
            ["", letters[place] * 2, rng.choice("()[]{}:=+-*/%<>'\"\n \t0123456789abc"), letters[-place]]
        )
    return "".join(letters)


def trial(count: int, seed: int = 0, limits: Limits = LIMITS) -> dict[str, object]:
    """Run `count` programs. Returns the counts; `harm` is empty if nothing went wrong."""
    harm: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    slowest, started = 0.0, time.perf_counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.create_server(("127.0.0.1", 0)) as server,
        MontySandbox(limits) as sandbox,
    ):
        read = Path(folder) / "secret.txt"
        read.write_text(SECRET, encoding="utf-8")
        server.setblocking(False)
        places = {"read": str(read), "write": str(Path(folder) / "left"), "folder": folder, "port": server.getsockname()[1]}
        memory = psutil.Process().memory_info().rss
        for kind, source in programs(count, seed, places):
            kinds[kind] += 1
            begun = time.perf_counter()
            try:
                answers = sandbox.run(source, ["repr(solve(3))", "after(1)", "repr(x)"])
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                harm[f"the sandbox raised {type(error).__name__}"] += 1
                continue
            took = time.perf_counter() - begun
            slowest = max(slowest, took)
            harm["exceeded its limit"] += took > limits.seconds + GRACE
            harm["read a file"] += any(SECRET in f"{answer.text} {answer.error}" for answer in answers)
            harm["affected the next run"] += not _next_run_is_correct(sandbox)
        harm["wrote a file"] += (
            sorted(path.name for path in Path(folder).iterdir()) != ["secret.txt"] or read.read_text(encoding="utf-8") != SECRET
        )
        harm["connected"] += _was_contacted(server)
        grown = (psutil.Process().memory_info().rss - memory) / 1e6
    return {
        "programs": count,
        "harm": {what: n for what, n in harm.items() if n},
        "slowest_s": round(slowest, 2),
        "limit_s": limits.seconds,
        "seconds": round(time.perf_counter() - started, 1),
        "memory_grown_mb": round(grown),
        "kinds": dict(kinds),
    }


def _next_run_is_correct(sandbox: Sandbox) -> bool:
    """Return whether another run gives the correct result and sees no name of the previous one."""
    right, gone = sandbox.run(HARMLESS, ["repr(after(1))", "repr(solve(3))"])
    return right.text == "2" and right.error is None and gone.text is None and "NameError" in (gone.error or "")


def _was_contacted(server: socket.socket) -> bool:
    try:
        server.accept()
    except BlockingIOError:
        return False
    return True


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", type=int, nargs="?", default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print_result("hostile", lambda: trial(given.programs, given.seed))
