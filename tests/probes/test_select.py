# SPDX-License-Identifier: Apache-2.0
"""Selection of functions: wrappers, excludes, order; and the explanations when there are none."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gotrace.architecture import AMD64, Architecture
from gotrace.elf.buildinfo import GoVersion
from gotrace.elf.functions import FunctionTable, load_functions
from gotrace.elf.image import ElfImage
from gotrace.errors import NoMatchError, UsageError
from gotrace.probes.select import InlinedScope, Selection, Selector, SymbolTable
from tests.toolchains import FIXTURES, Toolchain, build, each_toolchain, minor


class Origin(Enum):
    GO = 1
    OTHER = 2


@dataclass(frozen=True)
class FakeFunction:
    entry: int
    origin: Origin


@dataclass(frozen=True)
class FakeCall:
    name: str
    caller: str = "main.main"
    file: str = "/src/functions.go"
    line: int = 10


@dataclass(frozen=True)
class FakeCalls:
    calls: Sequence[FakeCall]

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(call.name for call in self.calls))

    def of(self, name: str, /) -> Iterator[FakeCall]:
        return (call for call in self.calls if call.name == name)


@dataclass(frozen=True)
class FakeImage:
    display: str = "./app"
    arch: Architecture = AMD64


@dataclass(frozen=True, eq=False)
class FakeTable:
    """Names in rows of rising addresses, those from ``other`` on below the first again."""

    names: Sequence[str]
    wrappers: Collection[int] = ()
    inlined: Sequence[FakeCall] = ()
    other: int = 10**6
    has_pclntab: bool = True
    is_go: bool = True
    go_version: GoVersion | None = None
    image: FakeImage = field(default_factory=FakeImage)

    def function(self, row: int, /) -> FakeFunction:
        if row < self.other:
            return FakeFunction(0x10000 + 16 * row, Origin.GO)
        return FakeFunction(16 * row, Origin.OTHER)

    def rows_named(self, name: str, /) -> list[int]:
        return [row for row, one in enumerate(self.names) if one == name]

    def is_wrapper(self, row: int, /) -> bool:
        return row in self.wrappers

    def inlined_by_name(self) -> FakeCalls:
        return FakeCalls(self.inlined)

    def inlined_into(self, row: int, /) -> set[str]:
        return {call.name for call in self.inlined if call.caller == self.names[row]}


def select(table: SymbolTable, *patterns: str, exclude: Sequence[str] = ()) -> Selection:
    return Selector(patterns, exclude).select(table)


def explain(table: SymbolTable, *patterns: str, regex: bool = False, verb: str = "count") -> str:
    with pytest.raises(NoMatchError) as caught:
        Selector(patterns, regex=regex).select(table, verb=verb)
    message = str(caught.value)
    assert caught.value.exit_code == 3
    assert message.isprintable()
    return message


def test_program_that_is_not_go_is_called_so() -> None:
    table = FakeTable(["main", "mainloop"], has_pclntab=False, is_go=False)
    assert "only * is special" not in explain(table, "main.*")
    table = FakeTable(["main", "main.cold"], has_pclntab=False, is_go=False)
    assert explain(table, "main.*x") == (
        "no function matches 'main.*x' in ./app, which is not a Go program (it has 2 in all:"
        " functions('*') has them)"
    )


def suggested(table: SymbolTable, pattern: str) -> list[str]:
    message = explain(table, pattern)
    assert message.startswith(f"no function matches '{pattern}' in ./app: did you mean '"), message
    names = message.partition("did you mean ")[2].removesuffix("?")
    return [name.strip("'") for part in names.split("', '") for name in part.split("' or '")]


def test_a_recipe_says_which_other_function_has_the_calls() -> None:
    selector = Selector(["fmt.Errorf"], unless="fmt.errorf")
    assert selector.select(FakeTable(["fmt.Errorf"])) == Selection([0])
    with pytest.raises(NoMatchError, match=r"^'fmt.errorf' in ./app has the calls$"):
        selector.select(FakeTable(["fmt.Errorf", "fmt.errorf"]))


def test_the_wrapper_of_two_functions_of_one_name_is_left_out() -> None:
    table = FakeTable(["runtime.memmove", "runtime.memmove", "main.F"], wrappers={1})
    assert select(table, "runtime.memmove") == Selection([0])
    assert select(table, "*") == Selection([0, 2])


PATHS = FakeTable(
    [
        "main.Put",
        "go.etcd.io/etcd/server/v3/etcdserver.(*EtcdServer).Put",
        "go.etcd.io/etcd/server/v3/etcdserver.init",
        "go.etcd.io/etcd/server/v3/etcdserver/api.Put",
        "net/http.Get",
        "example.org/http.Get",
        "example.org/http.Post",
        "gopkg.in/yaml%2ev3.Unmarshal",
        "type..eq.net/http.T",
        "main.Map[go.shape.int,net/http.Get]",
        "net/http.Map[go.shape.int]",
        "net/http.Map[go.shape.string]",
        "log.Print",
        "example.org/log.Print",
        "example.org/http.Post.func1",  # in Post
        "example.org/http.Posted",
    ]
)


@pytest.mark.parametrize(
    ("pattern", "rows"),
    [
        ("etcdserver.(*EtcdServer).Put", [1]),
        ("v3/etcdserver.(*EtcdServer).Put", [1]),
        ("etcdserver.*", [1, 2]),
        ("etcdserver.(*EtcdServer).*", [1]),
        ("v3/etcdserver/api.*", [3]),
        ("api.Put", [3]),
        ("http.Post", [6]),
        ("http.Post*", [6, 14, 15]),
        ("yaml.v3.Unmarshal", [7]),
        ("http.Map[...]", [10, 11]),
        ("http.Map[go.shape.int]", [10]),
        # As it is comes first: no other is meant.
        ("log.Print", [12]),
        ("log.*", [12]),
        ("main.P*", [0]),
    ],
)
def test_a_package_is_written_by_the_end_of_its_path(pattern: str, rows: list[int]) -> None:
    assert select(PATHS, pattern).rows == rows


def test_a_package_that_several_paths_end_in_is_refused_and_all_are_listed() -> None:
    for pattern in ("http.Get", "http.*"):
        with pytest.raises(UsageError) as caught:
            select(PATHS, pattern)
        assert str(caught.value) == (
            f"'{pattern}' is ambiguous: ./app has 'example.org/{pattern}' and 'net/{pattern}';"
            " give the package's path"
        )
        with pytest.raises(UsageError):
            select(PATHS, "main.*", exclude=[pattern])
    assert select(PATHS, "etcdserver.*", exclude=["etcdserver.init"]).rows == [1]
    for pattern in ("server.init", "ttp.Post", "Put*", "EtcdServer).Put", "shape.int*"):
        with pytest.raises(NoMatchError):
            select(PATHS, pattern)


def test_a_wrapper_is_selected_by_its_own_name_only() -> None:
    table = FakeTable(["main.(*T).M", "main.T.M", "main.(*T).N"], wrappers={0, 2})
    assert select(table, "main.(*T).M").rows == [0]
    assert select(table, "*.M") == Selection([1])
    assert select(table, "*.M", "main.(*T).M") == Selection([0, 1])
    assert explain(table, "main.(*T).*") == (
        "'main.(*T).*' matches only autogenerated wrappers in ./app (2, such as 'main.(*T).M'): "
        "give one's full name to count it"
    )


def test_type_helpers_are_functions_although_the_compiler_made_them() -> None:
    table = FakeTable(["type:.eq.main.T", "type..hash.main.T", "main.main"], wrappers={0, 1})
    assert select(table, "*") == Selection([0, 1, 2])


def test_patterns_are_a_union_and_excludes_apply_to_all() -> None:
    table = FakeTable(["a.F", "a.G", "b.F", "b.G", "c.F"])
    assert select(table, "a.*", "*.F").rows == [0, 1, 2, 4]
    assert select(table, "a.*", "b.*", exclude=["*.G", "c.F"]) == Selection([0, 2])
    assert select(table, "a.F", "b.F", exclude=["b.F"]).rows == [0]
    assert Selector([r"[ab]\.F"], [r"a.*"], regex=True).select(table).rows == [2]
    with pytest.raises(
        NoMatchError, match=r"nothing is left to trace: exclude 'a\.\*' and exclude '\*\.F'"
    ):
        Selector(["a.F"], ["a.*", "*.F"]).select(table, verb="trace")


def test_rows_come_by_address() -> None:
    table = FakeTable(["main.a", "main.b", "memcpy", "memset"], other=2)
    assert select(table, "*").rows == [2, 3, 0, 1]
    assert select(table, "mem*").rows == [2, 3]


def test_a_pattern_without_a_match_is_told_beside_others() -> None:
    table = FakeTable(["main.computeE", "main.main"])
    selection = select(table, "main.main", "main.computee")
    assert selection.rows == [1]
    assert selection.unmatched == (
        "no function matches 'main.computee' in ./app: did you mean 'main.computeE'?",
    )


def test_functions_for_vectors_of_several_sizes_are_meant_together() -> None:
    sizes = [f"@simd{size}" for size in (0, 128, 256, 512)]
    methods = [f"main.(*Vec{size}).Add" for size in sizes]
    table = FakeTable([*methods, "main.run", *(f"main.sum{size}" for size in sizes)])
    assert suggested(table, "main.sum") == suggested(table, "Sum") == ["main.sum@*"]
    assert suggested(table, "main.Vec.Add") == ["main.(*Vec@*).Add"]
    assert select(table, "main.sum@*", "main.(*Vec@*).Add").rows == [0, 1, 2, 3, 5, 6, 7, 8]
    assert "main.sum@simd512" in suggested(table, "sum@simd512")


def test_every_failing_pattern_is_explained() -> None:
    table = FakeTable(["main.computeE"])
    assert explain(table, "zzz", "computeE") == (
        "no function matches 'zzz' in ./app (it has 1 in all: functions('*') has them); "
        "no function matches 'computeE' in ./app: did you mean 'main.computeE'?"
    )


PROGRAM = FakeTable(
    [
        "main.main",
        "main.computeE",
        "main.handle",
        "main.(*Store).Get",
        "main.Map[go.shape.int]",
        "main.Map[go.shape.string]",
        "main.(*Pair[go.shape.int]).Key",
        "runtime.main",
        "runtime.mallocgc",
        "net/http.Get",
        "net/http.(*Client).Get",
        "net/http.(*Server).Serve",
        "encoding/json.Marshal",
        "encoding/json.Unmarshal",
        "gopkg.in/yaml%2ev3.Unmarshal",
        "example.com/shop/store.(*Cart).Total",
        "example.com/shop/store.Checkout",
        "os.(*File).Read",
        *[f"strings.function{number}" for number in range(300)],
    ]
)


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        ("computeE", "main.computeE"),  # the package is missing
        ("Get", "net/http.Get"),
        ("(*Store).Get", "main.(*Store).Get"),
        ("main.computee", "main.computeE"),  # case
        ("COMPUTEE", "main.computeE"),
        ("main.Store.Get", "main.(*Store).Get"),  # pointer
        ("main.*Store.Get", "main.(*Store).Get"),
        ("main.(Store).Get", "main.(*Store).Get"),
        ("main.Map", "main.Map[...]"),  # type arguments
        ("Map[...]", "main.Map[...]"),
        ("main.Map[int]", "main.Map[go.shape.int]"),
        ("main.(*Pair).Key", "main.(*Pair[...]).Key"),
        ("main.computeE.abi0", "main.computeE"),  # as go tool nm shows it
        ("main.comptueE", "main.computeE"),  # slips
        ("runtime.mallogc", "runtime.mallocgc"),
        ("encoding/jsn.Marshal", "encoding/json.Marshal"),
        ("os.(*File).Raed", "os.(*File).Read"),
        ("main.Checkout", "example.com/shop/store.Checkout"),  # another package
        ("main.(*Cart).Total", "example.com/shop/store.(*Cart).Total"),
        ("main.Cart.Total", "example.com/shop/store.(*Cart).Total"),
        ("store.Total", "example.com/shop/store.(*Cart).Total"),  # a type left out
        ("os.Read", "os.(*File).Read"),
        ("net/http", "net/http.*"),  # a package
        ("main.comp*e", "main.computeE"),  # globs
        ("compute*", "*.compute*"),
        ("net/htp.*", "net/http.*"),
        ("jsno.Un*", "encoding/json.Un*"),
    ],
)
def test_the_first_suggestion(typed: str, first: str) -> None:
    suggestions = suggested(PROGRAM, typed)
    assert suggestions[0] == first
    assert len(suggestions) <= 3
    for suggestion in suggestions:
        assert Selector([suggestion]).select(PROGRAM).rows


def test_suggestions_prefer_functions_to_wrappers_and_come_once() -> None:
    names = ["a.T.Close", "a.(*T).Close", "b.(*T).Close", "b.(*T).Close"]
    assert suggested(FakeTable(names, wrappers={0, 2}), "Close") == [
        "a.(*T).Close",
        "b.(*T).Close",
        "a.T.Close",
    ]


def test_a_package_is_suggested_beside_functions_of_its_name() -> None:
    assert suggested(PROGRAM, "main") == ["main.main", "runtime.main", "main.*"]


def test_nothing_near_is_said_plainly() -> None:
    message = "no function matches 'qqq.zzz' in ./app (it has 318 in all: functions('*') has them)"
    assert explain(PROGRAM, "qqq.zzz") == message


def test_gccgo_suggestions_are_spelled_in_go() -> None:
    table = FakeTable(["net_1http.Get", "main.my__func"], has_pclntab=False)
    assert select(table, "http.Get").rows == [0]
    assert suggested(table, "my_func") == ["main.my_func"]
    assert suggested(table, "net/htp.G*") == ["net/http.G*"]


def test_a_regular_expression_that_matches_a_part_is_explained() -> None:
    assert explain(PROGRAM, "computeE", regex=True) == (
        "no function matches the regular expression 'computeE' in ./app: "
        "it must match all of a name, not a part as in 'main.computeE'"
    )
    assert explain(PROGRAM, "zzz.*", regex=True).endswith(
        "'zzz.*' in ./app (it has 318 in all: functions('*') has them)"
    )


def test_a_function_of_another_package_that_is_inlined_everywhere() -> None:
    table = FakeTable(["main.main"], inlined=[FakeCall("shop/ledger.(*Account).Cents")])
    for typed in ("main.Account.Cents", "main.(*Account).cents"):
        assert "did you mean 'shop/ledger.(*Account).Cents'?" in explain(table, typed)
    assert "did you mean" not in explain(table, "main.Account.Dollars")


def test_a_function_that_is_inlined_everywhere() -> None:
    table = FakeTable(["main.main"], inlined=[FakeCall("main.add")])
    expected = "main.add is inlined into main.main (functions.go:10): build with -gcflags=-l to"
    assert explain(table, "main.add") == f"{expected} count it"
    assert explain(table, "main.add", verb="measure") == f"{expected} measure it"
    assert explain(table, "add") == f"{expected} count it"
    known = FakeTable(["main.main"], inlined=table.inlined, go_version=GoVersion(1, 27))
    assert explain(known, "main.add", verb="trace") == (
        "main.add is inlined into main.main (functions.go:10): count('main.add') counts its"
        " calls where that is exact, or build with -gcflags=-l to trace it"
    )
    both = FakeTable(
        ["main.main"],
        inlined=[FakeCall("x/a.T.M"), FakeCall("y/a.T.M")],
        go_version=GoVersion(1, 27),
    )
    for typed in ("T.M", "a.T.M"):
        assert ": count() counts the calls of one by its whole name, or build with" in explain(
            both, typed, verb="trace"
        )
    assert "count(inlined=True) counts their calls" in explain(both, "*/a.T.M", verb="trace")


def test_of_which_functions_inlined_calls_are_selected() -> None:
    calls = [FakeCall(name) for name in ("main.add", "main.all", "main.f", "x/a.Add", "y/a.Add")]
    table = FakeTable(["main.main", "main.f"], inlined=calls)

    def inlined(pattern: str, scope: InlinedScope, exclude: Sequence[str] = ()) -> set[str]:
        return {*Selector([pattern], exclude).select(table, inlined=scope).inlined}

    named, matched = InlinedScope.NAMED, InlinedScope.MATCHED
    assert inlined("main.f", InlinedScope.NONE) == set()
    assert inlined("main.f", named) == inlined("main.f", matched) == {"main.f"}
    assert inlined("main.add", named) == {"main.add"}
    assert inlined("main.*", named) == set()
    assert inlined("main.*", matched) == {"main.add", "main.all", "main.f"}
    assert inlined("main.*", matched, ["main.a*"]) == {"main.f"}
    assert inlined("x/a.*", matched) == {"x/a.Add"}
    for pattern, scope, message in (
        ("main.a*", named, "main.add and main.all exist only inlined: inlined=True counts"),
        ("x/a.*", named, "type 'x/a.Add' to count it"),
        ("a.Add", named, "a.Add exist only inlined: type the whole name of one to count"),
        ("a.*", named, "a.Add exist only inlined: type the whole name of one to count"),
        ("a.*", matched, "a.Add exist only inlined: type the whole name of one to count"),
    ):
        with pytest.raises(NoMatchError, match=message):
            inlined(pattern, scope)


def test_inlined_places_are_distinct_and_few() -> None:
    calls = [FakeCall("main.add", "main.f", line=line) for line in (1, 1, 2)]
    table = FakeTable(["main.main"], inlined=[FakeCall("main.sub"), *calls])
    assert "into main.f (functions.go:1) and main.f (functions.go:2): " in explain(
        table, "main.add"
    )
    calls += [FakeCall("main.add", line=line) for line in (3, 4, 5, 5)]
    message = explain(FakeTable(["main.main"], inlined=calls), "main.add")
    assert "(functions.go:2), main.main (functions.go:3) and 2 more: build" in message


@pytest.mark.parametrize(
    ("typed", "inlined"),
    [
        ("main.T.M", "main.(*T).M"),
        ("main.*T.M", "main.(*T).M"),
        ("main.(*T).M", "main.T.M"),
        ("T.M", "main.(*T).M"),
        ("a.b/c.v2.F", "a.b/c%2ev2.F"),
        ("a.b/c.v2.T.M", "a.b/c%2ev2.(*T).M"),
    ],
)
def test_inlined_under_another_spelling(typed: str, inlined: str) -> None:
    table = FakeTable(["main.main"], inlined=[FakeCall(inlined, "x/y.F")])
    spoken = inlined.replace("%2e", ".")
    assert explain(table, typed) == (
        f"{spoken} is inlined into x/y.F (functions.go:10): build with -gcflags=all=-l to count it"
    )


def test_inlined_under_a_short_name() -> None:
    """A short name or a pattern means inlined functions as it means others; case counts."""
    do, add = FakeCall("net/http.(*Client).Do"), FakeCall("x.io/shop/ledger.(*Account).Add")
    cents = FakeCall("x.io/shop/ledger.(*Account).Cents")
    table = FakeTable(["net/http.(*Client).do", "log.New"], inlined=[do, add, cents])
    for typed in ("http.(*Client).Do", "Client.Do"):
        assert explain(table, typed).startswith("net/http.(*Client).Do is inlined into main.main")
    assert suggested(table, "client.do") == ["net/http.(*Client).do"]
    for typed in ("ledger.(*Account).C*", "ledger.Account.Cents", "(*Account).Cents"):
        assert explain(table, typed).startswith("x.io/shop/ledger.(*Account).Cents is inlined into")
    both = "x.io/shop/ledger.(*Account).Add and x.io/shop/ledger.(*Account).Cents"
    for typed, regex in (("ledger.*", False), (r".*\(\*Account\).*", True)):
        assert f" in ./app, and {both} exist only inlined: build" in explain(
            table, typed, regex=regex
        )


def test_a_function_that_exists_comes_before_an_inlined_one_of_another_spelling() -> None:
    table = FakeTable(["other.add"], inlined=[FakeCall("main.add")])
    assert suggested(table, "add") == ["other.add"]
    assert "inlined" in explain(table, "main.add")


_TEXT = st.text(max_size=12) | st.text(alphabet="ab.(*)[]/%", max_size=12)


@given(st.lists(_TEXT), _TEXT, st.booleans())
def test_any_name_is_selected_or_explained(names: list[str], typed: str, has_pclntab: bool) -> None:
    table = FakeTable(names, has_pclntab=has_pclntab, inlined=[FakeCall(name) for name in names])
    if typed in names:
        assert select(table, typed).rows == [row for row, n in enumerate(names) if n == typed]
    else:
        try:
            select(table, typed)
        except NoMatchError as error:
            assert str(error).isprintable()


@each_toolchain
def test_functions_of_a_program(toolchain: Toolchain) -> None:
    program = build(FIXTURES / "names_forms", toolchain)
    with ElfImage.open(program) as image:
        table = load_functions(image)
        assert names_of(table, "main.(*T).*", exclude=["*.literals*", "*-fm"]) == [
            "main.(*T).Pointer"
        ]
        assert names_of(table, "main.Outer.Pointer") == ["main.Outer.Pointer"]
        assert sorted(names_of(table, "fixture/pkg.dot.*", exclude=["*-fm"])) == [
            "fixture/pkg%2edot.(*T).Pointer",
            "fixture/pkg%2edot.Function",
            "fixture/pkg%2edot.T.Value",
        ]
        assert "main.(*Outer).Pointer" not in names_of(table, "main.*")
        assert len(names_of(table, "type*.eq.*")) > 10
        if table.rows_named("main.newer"):
            assert len(names_of(table, "main.Map[...]")) == 2
        source = (FIXTURES / "names_forms" / "main.go").read_text()
        line = source[: source.index("// add is inlined here")].count("\n") + 1
        other = "count('main.add') without by counts its calls where that is exact, or "
        other = other if minor(toolchain) >= 19 else ""
        with pytest.raises(NoMatchError) as caught:
            Selector(["main.add"]).select(table)
        assert str(caught.value) == (
            f"main.add is inlined into main.main (main.go:{line}): {other}"
            "build with -gcflags=-l to count it"
        )
        with pytest.raises(NoMatchError, match=r"'main\.add\\xff'"):
            Selector(["main.add\udcff"]).select(table)  # an argument that is not UTF-8


def names_of(table: FunctionTable, pattern: str, exclude: Sequence[str] = ()) -> list[str]:
    rows = Selector([pattern], exclude).select(table).rows
    entries = [table.function(row).entry for row in rows]
    assert entries == sorted(entries)
    return [table.names[row] for row in rows]
