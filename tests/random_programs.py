# SPDX-License-Identifier: Apache-2.0
"""Random Go programs of small functions, and an interpreter that says what they call.

Each statement is written twice: in Go, and in Python, which is executed. So nothing in the Go
program counts, and nothing keeps the compiler from moving code. Each call has a line of its own.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

#: Rounds of a program's main loop: some 7,000 calls of small functions.
ROUNDS = 60

_TYPES = """\
type T struct {
	a, b int
	p    *T
	s    []int
	u    uint8
	ok   bool
	f    float64
	n    string
}

type P struct {
	a int
	u uint8
}

var G [16]int
var GS = []int{3, 1, 4, 1, 5, 9, 2, 6}

//go:noinline
func ext(x int) int { G[x&15]++; return x ^ 3 }

//go:noinline
func extp(t *T) { t.b++ }
"""

_MAIN = """\
func main() {
	sum := 0
	ts := []*T{
		{n: "none"}, {a: 1, ok: true, s: GS[:3], n: "one"},
		{a: -2, b: 7, u: 5, f: 2.5}, {b: 3, s: GS[3:], n: "last"},
	}
	ts[1].p = ts[0]
	ts[3].p = ts[2]
	for i := 0; i < ROUNDS; i++ {
		CALLS
	}
	println(sum, G[0], G[3], G[7], ts[1].a, ts[2].b)
}
"""

_MORE_ARGUMENTS = "ts[i>>1&3].n, ts[i>>2&3].s, float64(i%5)*0.5"
_TEXTS = ("", "a", "go", "tracing", "inlined here")
_FLOATS = ("0.5", "1.5", "-2.25", "1024.0")
_COMPARED = ("<", "<=", ">", ">=", "==", "!=")
#: Types of parameters, with how often each is chosen.
_KINDS = {
    "int": 5,
    "bool": 2,
    "*T": 3,
    "string": 2,
    "[]int": 2,
    "uint8": 2,
    "int32": 2,
    "float64": 2,
    "P": 1,
}
_RESULTS = ("int", "int", "bool", "string", "float64", "")


class Slice(NamedTuple):
    """A slice of integers: ``at`` is its first element's index in what it is a part of."""

    of: list[int]
    at: int
    len: int

    def rest(self, low: int) -> Slice:
        """Return the elements from one on."""
        return Slice(self.of, self.at + low, self.len - low)

    @property
    def values(self) -> list[int]:
        """Return the elements."""
        return self.of[self.at : self.at + self.len]


class Struct(NamedTuple):
    """A value of type P."""

    a: int
    u: int


class Object:
    """A value of type T."""

    def __init__(self, name: str = "", a: int = 0, b: int = 0) -> None:
        self.a, self.b, self.u, self.n = a, b, 0, name
        self.p: Object | None = None
        self.s, self.ok, self.f = Slice([], 0, 0), False, 0.0


class Call(NamedTuple):
    """A call as the interpreter made it: what is called, in which line, with which arguments."""

    function: str
    line: int
    arguments: tuple[Any, ...]


class Function(NamedTuple):
    """A function that may be inlined; ``receiver``: its first parameter is one."""

    name: str
    kinds: tuple[str, ...]
    result: str
    receiver: bool

    @property
    def full(self) -> str:
        """Return the linker's name."""
        return f"main.(*T).{self.name}" if self.receiver else f"main.{self.name}"


class Text(NamedTuple):
    """The two texts of an expression, and whether its value may depend on when it is read."""

    go: str
    py: str
    is_stable: bool = True


def wrap(number: int, bits: int = 64) -> int:
    """Return a signed number of so many bits."""
    half = 1 << (bits - 1)
    return ((number + half) & ((1 << bits) - 1)) - half


def _is_constant(text: Text) -> bool:
    return re.search(r"[a-zA-Z]", text.go) is None


class Program:
    """A random program: its source, and its calls by the interpreter."""

    def __init__(self, seed: int, functions: int = 40, callers: int = 30) -> None:
        self._random = random.Random(seed)
        self._go: list[str] = []
        self._py: list[str] = []
        self._numbers = 0
        self._depth = 0
        self._nested = 0
        self.functions: list[Function] = []
        for number in range(functions):
            self._write_function(number)
        for number in range(callers):
            self._write_caller(number)
        self._callers = callers

    def source(self, rounds: int) -> str:
        """Return the Go program, of so many rounds."""
        calls = "\n".join(
            f"\t\tsum += g{n}(ts[i&3], i%11-2, i%7, i%3 == 0, {_MORE_ARGUMENTS})"
            for n in range(self._callers)
        )
        main = _MAIN.replace("ROUNDS", str(rounds)).replace("\t\tCALLS", calls)
        return "\n".join(["package main", "", _TYPES, *self._go, main])

    def run(self, rounds: int) -> tuple[list[Call], str]:
        """Return the calls of functions that may be inlined, in order, and what is printed."""
        lines = {}
        for number, text in enumerate(self.source(rounds).splitlines(), 1):
            for mark in re.findall(r"/\*(\d+)\*/", text):
                lines[int(mark)] = number
        made: list[Call] = []
        names = {one.name: one.full for one in self.functions}
        room: dict[str, Any] = {"w": wrap, "P": Struct, "G": [0] * 16}

        def call(number: int, name: str, *arguments: Any) -> Any:
            made.append(Call(names[name], lines[number], arguments))
            return room[name](*arguments)

        def ext(x: int) -> int:
            room["G"][x & 15] += 1
            return x ^ 3

        def extp(t: Object) -> None:
            t.b = wrap(t.b + 1)

        elements = Slice([3, 1, 4, 1, 5, 9, 2, 6], 0, 8)
        room |= {"C": call, "ext": ext, "extp": extp, "GS": elements}
        exec(compile("\n".join(self._py), "program", "exec"), room)
        ts = [Object("none"), Object("one", 1), Object("", -2, 7), Object("last", 0, 3)]
        ts[1].ok, ts[1].s, ts[1].p = True, elements._replace(len=3), ts[0]
        ts[2].u, ts[2].f = 5, 2.5
        ts[3].s, ts[3].p = elements.rest(3), ts[2]
        total = 0
        for i in range(rounds):
            for n in range(self._callers):
                given = ts[i & 3], i % 11 - 2, i % 7, i % 3 == 0, ts[i >> 1 & 3].n, ts[i >> 2 & 3].s
                total = wrap(total + room[f"g{n}"](*given, float(i % 5) * 0.5))
        numbers = total, *(room["G"][n] for n in (0, 3, 7)), ts[1].a, ts[2].b
        return made, " ".join(map(str, numbers)) + "\n"

    # Expressions: ``env`` are the variables in scope, by their names.

    def _of_kind(self, env: dict[str, str], kind: str) -> list[str]:
        return [name for name, one in env.items() if one == kind]

    def _leaf(self, env: dict[str, str], stable: bool) -> Text:
        """Return an integer that needs no operator."""
        pick = self._random
        found = [Text(name, name) for name in self._of_kind(env, "int")]
        found += [Text(f"int({name})", name) for name in self._of_kind(env, "uint8")]
        found += [Text(f"int({name})", name) for name in self._of_kind(env, "int32")]
        found += [Text(f"len({name})", f"len({name})") for name in self._of_kind(env, "string")]
        found += [Text(f"len({name})", f"{name}.len") for name in self._of_kind(env, "[]int")]
        found += [Text(f"{name}.a", f"{name}.a") for name in self._of_kind(env, "P")]
        if not stable:
            fields = [f"{name}.{part}" for name in self._of_kind(env, "*T") for part in "ab"]
            found += [Text(one, one, False) for one in fields]
            number = pick.randrange(16)
            found.append(Text(f"G[{number}]", f"G[{number}]", False))
        return pick.choice(found) if found and pick.random() < 0.85 else self._number()

    def _number(self) -> Text:
        number = str(self._random.choice((self._random.randint(-3, 9), 1 << 40, 0x80000000)))
        return Text(number, number)

    def _int(self, env: dict[str, str], depth: int = 0, stable: bool = False) -> Text:
        if depth > 2 or self._random.random() < 0.35:
            return self._leaf(env, stable)
        if self._random.random() < 0.15:
            one, by = self._int(env, depth + 1, stable), self._random.randint(0, 3)
            if _is_constant(one):
                return one
            how = self._random.choice(("<<", ">>"))
            return Text(f"({one.go} {how} {by})", f"w({one.py} {how} {by})", one.is_stable)
        one, two = self._int(env, depth + 1, stable), self._int(env, depth + 1, stable)
        if _is_constant(one) and _is_constant(two):
            return one  # the compiler refuses constants that overflow
        how = self._random.choice("+-^&|*")
        is_stable = one.is_stable and two.is_stable
        return Text(f"({one.go} {how} {two.go})", f"w({one.py} {how} {two.py})", is_stable)

    def _bool(self, env: dict[str, str], stable: bool = False) -> Text:
        pick = self._random
        names, objects = self._of_kind(env, "bool"), self._of_kind(env, "*T")
        texts, floats = self._of_kind(env, "string"), self._of_kind(env, "float64")
        chance = pick.random()
        if chance < 0.2 and names:
            name = pick.choice(names)
            return pick.choice((Text(name, name), Text(f"!{name}", f"(not {name})")))
        if chance < 0.35 and objects and not stable:
            name = pick.choice(objects)
            is_none = Text(f"{name}.p != nil", f"({name}.p is not None)", False)
            return pick.choice((is_none, Text(f"{name}.ok", f"{name}.ok", False)))
        if chance < 0.45 and texts:
            name, text = pick.choice(texts), pick.choice(_TEXTS)
            return Text(f'{name} == "{text}"', f'({name} == "{text}")')
        if chance < 0.5 and floats:
            name, number = pick.choice(floats), pick.choice(_FLOATS)
            return Text(f"{name} > {number}", f"({name} > {number})")
        one = self._leaf(env, stable)
        two = self._number() if pick.random() < 0.6 else self._int(env, 1, stable)
        if _is_constant(one):
            one = self._leaf(
                dict.fromkeys(self._of_kind(env, "int"), "int") or {"len(GS)": "int"}, True
            )
        if _is_constant(one) or "GS" in one.go:
            return Text("len(GS) > 3", "(GS.len > 3)")
        how = pick.choice(_COMPARED)
        is_stable = one.is_stable and two.is_stable
        return Text(f"{one.go} {how} {two.go}", f"({one.py} {how} {two.py})", is_stable)

    def _condition(self, env: dict[str, str], calls: bool = False) -> Text:
        one = self._bool(env)
        if self._random.random() > 0.45:
            return one
        two = self._call(env, "bool") if calls and self._random.random() < 0.6 else None
        two = two or self._bool(env)
        if self._random.random() < 0.5:
            return Text(f"{one.go} && {two.go}", f"({one.py} and {two.py})", False)
        return Text(f"({one.go} || {two.go})", f"({one.py} or {two.py})", False)

    def _value(self, env: dict[str, str], kind: str, stable: bool = True) -> Text:
        """Return a value of a type for an argument; the order of two of them does not matter."""
        pick = self._random
        names = self._of_kind(env, kind)
        if names and pick.random() < (0.75 if kind != "int" else 0.4):
            name = pick.choice(names)
            return Text(name, name)
        if kind == "int":
            return self._int(env, 1, stable)
        if kind == "bool":
            return self._bool(env, stable)
        one = self._int(env, 2, stable)
        if kind == "uint8":
            if _is_constant(one):
                return Text("7", "7")
            return Text(f"uint8({one.go})", f"({one.py} & 255)", one.is_stable)
        if kind == "int32":
            if _is_constant(one):
                return Text("-7", "-7")
            return Text(f"int32({one.go})", f"w({one.py}, 32)", one.is_stable)
        if kind == "P":
            return Text(f"P{{{one.go}, 7}}", f"P({one.py}, 7)", one.is_stable)
        if kind == "string":
            text = pick.choice(_TEXTS)
            return Text(f'"{text}"', f'"{text}"')
        if kind == "float64":
            floats = self._of_kind(env, "float64")
            number = pick.choice(_FLOATS)
            return (
                Text(f"{floats[0]} + {number}", f"({floats[0]} + {number})")
                if floats
                else Text(number, number)
            )
        if kind == "[]int":
            low = pick.randint(0, 3)
            return Text(f"GS[{low}:]", f"GS.rest({low})")
        raise AssertionError(kind)

    def _call(
        self, env: dict[str, str], result: str | None, among: Sequence[Function] | None = None
    ) -> Text | None:
        """Return a call of a function with a result of a type, None if there is none."""
        objects = self._of_kind(env, "*T")
        functions = self.functions if among is None else among
        fitting = [
            one
            for one in functions
            if (result is None or one.result == result) and (objects or "*T" not in one.kinds)
        ]
        if not fitting:
            return None
        function = self._random.choice(fitting)
        given: list[Text] = []
        inner = self._random.randrange(12)
        for number, kind in enumerate(function.kinds):
            if kind == "*T":
                name = self._random.choice(objects)
                given.append(Text(name, name))
                continue
            nested = None
            if number == inner and kind in ("int", "bool") and self._nested < 2:
                self._nested += 1
                nested = self._call(env, kind, among)
                self._nested -= 1
            given.append(nested or self._value(env, kind))
        self._numbers += 1
        go, py = [one.go for one in given], [one.py for one in given]
        name = f"{go.pop(0)}.{function.name}" if function.receiver else function.name
        return Text(
            f"(\n/*{self._numbers}*/{name}({', '.join(go)}))",
            f"C({', '.join([str(self._numbers), repr(function.name), *py])})",
            False,
        )

    # Statements.

    def _put(self, go: str, py: str) -> None:
        self._go.append("\t" * self._depth + go)
        self._py.append("    " * self._depth + py)

    def _assign(self, env: dict[str, str]) -> None:
        """Write an assignment to a variable, a field, or something global."""
        pick = self._random
        targets = [name for name in self._of_kind(env, "int") if not name.startswith("i")]
        targets += [f"{name}.{part}" for name in self._of_kind(env, "*T") for part in "ab"]
        targets += [f"G[{pick.randrange(16)}]"]
        target, value = pick.choice(targets), self._int(env)
        chance = pick.random()
        if chance < 0.3:
            self._put(f"{target} = {value.go}", f"{target} = {value.py}")
        elif chance < 0.8:
            how = pick.choice("+-^")
            self._put(f"{target} {how}= {value.go}", f"{target} = w({target} {how} {value.py})")
        elif objects := self._of_kind(env, "*T"):
            name = pick.choice(objects)
            self._put(f"extp({name})", f"extp({name})")
        elif locals_ := [name for name in self._of_kind(env, "int") if name[0] != "i"]:
            one = self._leaf(env, True)
            self._put(f"{locals_[0]} = ext({one.go})", f"{locals_[0]} = ext({one.py})")
        else:
            self._put(f"{target} = 1", f"{target} = 1")

    def _block(self, write: Callable[[], None]) -> None:
        self._depth += 1
        write()
        self._depth -= 1

    def _if(
        self, condition: Text, then: Callable[[], None], other: Callable[[], None] | None
    ) -> None:
        self._put(f"if {condition.go} {{", f"if {condition.py}:")
        self._block(then)
        if other is not None:
            self._go.append("\t" * self._depth + "} else {")
            self._py.append("    " * self._depth + "else:")
            self._block(other)
        self._go.append("\t" * self._depth + "}")

    def _loop(self, env: dict[str, str], body: Callable[[dict[str, str]], None]) -> None:
        name = f"i{self._depth}"
        bounds = [Text("3", "3")]
        bounds += [Text(f"({one} & 3)", f"({one} & 3)") for one in self._of_kind(env, "int")]
        bounds += [Text(f"len({one})", f"{one}.len") for one in self._of_kind(env, "[]int")]
        bound = self._random.choice(bounds)
        self._py.append("    " * self._depth + f"{name} = 0")
        self._put(
            f"for {name} := 0; {name} < {bound.go}; {name}++ {{", f"while {name} < {bound.py}:"
        )

        def write() -> None:
            body({**env, name: "int"})
            self._py.append("    " * self._depth + f"{name} += 1")

        self._block(write)
        self._go.append("\t" * self._depth + "}")

    def _element(self, env: dict[str, str]) -> bool:
        """Write the addition of an element of a slice, if there is one in scope."""
        slices, numbers = self._of_kind(env, "[]int"), self._of_kind(env, "int")
        numbers = [name for name in numbers if not name.startswith("i")]
        if not slices or not numbers:
            return False
        name, number = self._random.choice(slices), self._random.choice(numbers)
        element = f"{name}.of[{name}.at + j]"
        self._put(
            f"if j := {number} & 7; j < len({name}) {{ {number} += {name}[j] }}",
            f"j = {number} & 7",
        )
        here = "    " * self._depth
        self._py.append(f"{here}if j < {name}.len: {number} = w({number} + {element})")
        return True

    def _return(self, env: dict[str, str], result: str) -> None:
        if not result:
            self._put("return", "return")
            return
        kinds = {"int": lambda: self._int(env), "bool": lambda: self._bool(env)}
        value = kinds[result]() if result in kinds else self._value(env, result)
        self._put(f"return {value.go}", f"return {value.py}")

    def _statement(self, env: dict[str, str], result: str, depth: int = 0) -> None:
        """Write a statement of a small function."""
        chance = self._random.random()
        if chance < 0.5:
            self._assign(env)
        elif chance < 0.58 and self._element(env):
            pass
        elif chance < 0.66 and depth == 0:
            self._loop(env, self._assign)
        elif chance < 0.76:
            self._if(self._condition(env), lambda: self._return(env, result), None)
        else:

            def write() -> None:
                self._statement(env, result, depth + 1)

            has_other = self._random.random() < 0.4
            self._if(self._condition(env), write, write if has_other else None)

    def _write_function(self, number: int) -> None:
        pick = self._random
        many = pick.choice((1, 2, 2, 3, 3, 4))
        kinds = pick.choices(list(_KINDS), list(_KINDS.values()), k=many)
        receiver = kinds[0] == "*T" and pick.random() < 0.5
        function = Function(f"f{number}", tuple(kinds), pick.choice(_RESULTS), receiver)
        names = [f"{_LETTERS[kind]}{at}" for at, kind in enumerate(kinds)]
        env = dict(zip(names, kinds, strict=True))
        given = [f"{name} {kind}" for name, kind in env.items()]
        head = f"({given.pop(0)}) " if receiver else ""
        self._go += ["", f"func {head}f{number}({', '.join(given)}) {function.result} {{"]
        self._py.append(f"def f{number}({', '.join(names)}):")

        def write() -> None:
            for _ in range(pick.choice((0, 1, 1, 2))):
                self._statement(env, function.result)
            call = self._call(env, "int") if pick.random() < 0.3 else None
            if call is not None:
                self._put(f"v := {call.go}", f"v = {call.py}")
                self._put(f"G[{number & 15}] ^= v", f"G[{number & 15}] ^= v")
            self._return(env, function.result)

        self._block(write)
        self._go.append("}")
        self.functions.append(function)

    def _write_caller(self, number: int) -> None:
        env = {
            "t": "*T",
            "x": "int",
            "y": "int",
            "b": "bool",
            "n": "string",
            "s": "[]int",
            "f": "float64",
        }
        given = ", ".join(f"{name} {kind}" for name, kind in env.items())
        self._go += ["", "//go:noinline", f"func g{number}({given}) int {{"]
        self._py.append(f"def g{number}({', '.join(env)}):")

        def write() -> None:
            self._calls_block(env, 0, in_loop=False)
            self._put("return x + y", "return w(x + y)")

        self._block(write)
        self._go.append("}")

    def _calls_block(self, env: dict[str, str], depth: int, in_loop: bool) -> None:
        """Write statements of a caller."""
        for _ in range(self._random.randint(1, 3)):
            self._calling(env, depth, in_loop)

    def _calling(self, env: dict[str, str], depth: int, in_loop: bool) -> None:
        pick = self._random
        chance = pick.random()

        def inner() -> None:
            self._calls_block(env, depth + 1, in_loop)

        if chance < 0.45 or depth >= 2:
            self._use(env)
        elif chance < 0.65:
            other = (lambda: self._assign(env)) if pick.random() < 0.4 else None
            self._if(self._condition(env, calls=True), inner, other)
        elif chance < 0.8:
            self._loop(env, lambda inside: self._calls_block(inside, depth + 1, True))
        elif chance < 0.92 or in_loop:
            self._assign(env)
        else:
            self._if(self._condition(env), lambda: self._put("return y", "return y"), None)

    def _use(self, env: dict[str, str]) -> None:
        """Write a statement that calls, and uses the result or not."""
        call = self._call(env, None)
        assert call is not None
        name = re.findall(r"\*/(?:\w+\.)?(\w+)\(", call.go)[0]
        result = next(one.result for one in self.functions if one.name == name)
        target = self._random.choice("xy")
        if not result:
            self._put(call.go, call.py)
        elif self._random.random() < 0.15:
            self._put(f"_ = {call.go}", call.py)
        elif result == "int":
            how = self._random.choice("+^-")
            self._put(f"{target} {how}= {call.go}", f"{target} = w({target} {how} {call.py})")
        elif result == "bool" and self._random.random() < 0.5:
            self._put(f"b = {call.go}", f"b = {call.py}")
        elif result == "bool":
            self._if(call, lambda: self._put(f"{target}++", f"{target} = w({target} + 1)"), None)
        elif result == "string":
            self._put(f"{target} += len({call.go})", f"{target} = w({target} + len({call.py}))")
        else:
            self._put(f"f = {call.go}", f"f = {call.py}")


_LETTERS = {
    "int": "x",
    "bool": "b",
    "*T": "t",
    "string": "n",
    "[]int": "s",
    "uint8": "u",
    "int32": "v",
    "float64": "d",
    "P": "p",
}
