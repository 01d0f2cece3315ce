from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections import UserDict, deque, namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    Required,
    TypedDict,
    TypeVar,
    Union,
)
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgqueue import payload
from pgqueue.arguments import INJECTED, Arguments, encode_value
from pgqueue.errors import InvalidArgument, PayloadError

if TYPE_CHECKING:
    from fractions import Fraction

T = TypeVar("T")
ID = UUID("018f2f6e-7c1d-7000-8000-000000000001")
NOON = datetime(2026, 3, 4, 12, 0, 0, 5, tzinfo=UTC)
EAST = timezone(timedelta(hours=5, minutes=30))


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Corner(Enum):
    ORIGIN = (0, 0)
    FAR = (9, 9)


class Size(IntEnum):
    SMALL = 1
    BIG = 3


class Mood(StrEnum):
    GOOD = "good"


class OldMood(str, Enum):  # noqa: UP042 - prints as OldMood.GOOD, and must not be stored so
    GOOD = "good"


class Rights(Flag):
    READ = 1
    WRITE = 2


class Loose(Enum):
    A = "a"

    @classmethod
    def _missing_(cls, value: object) -> Any:
        return cls[str(value)]


class Odd(Enum):
    THING = object()


class Sku(str):
    def __str__(self) -> str:
        return "a sku"


class Celsius(float):
    pass


class Point(NamedTuple):
    x: int
    at: datetime
    label: str = "here"


Pair = namedtuple("Pair", ["left", "right"])  # the untyped kind


class Movie(TypedDict):
    title: str
    seen_at: NotRequired[datetime]


class Draft(TypedDict, total=False):
    id: Required[UUID]
    text: str


@dataclass
class Item:
    sku: str
    price: Decimal
    tags: set[str] = field(default_factory=set)
    blob: Any = None


@dataclass
class Order:
    id: UUID
    items: list[Item]
    placed_at: datetime
    colour: Colour | None = None
    total: Decimal = field(default=Decimal(0), init=False)


@dataclass(frozen=True)
class Spot:
    x: int


@dataclass(frozen=True)
class Name:
    x: str


@dataclass
class Node:
    """Mentions itself."""

    at: date
    children: list[Node] = field(default_factory=list)
    parent: Optional[Node] = None  # noqa: UP045


@dataclass
class Positive:
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise RuntimeError("below zero")


@dataclass
class Box(Generic[T]):
    content: T


OrderId = NewType("OrderId", UUID)
Customer = NewType("Customer", int)


def taking(annotation: Any) -> Arguments:
    """The arguments of a function with the one parameter `a`, annotated so."""

    def f(a: Any) -> None: ...

    f.__annotations__["a"] = annotation
    return Arguments(f)


def round_trip(annotation: Any, value: Any) -> Any:
    arguments = taking(annotation)
    return arguments.decode(json.loads(payload.encode(arguments.encode((value,), {}))))["a"]


def stored(value: Any) -> Any:
    return encode_value(value, "argument a")


# ---------------------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 7),
        (str, "ü"),
        (float, 1.5),
        (bool, True),
        (None, None),
        (Any, {"a": [1, None]}),
        (object, [1]),
        (dict, {"a": 1}),
        (list, [1, "a"]),
        (datetime, NOON),
        (datetime, datetime(2026, 3, 4, 12, tzinfo=EAST)),
        (date, date(2026, 3, 4)),
        (time, time(12, 30, 0, 5)),
        (time, time(12, tzinfo=EAST)),
        (timedelta, timedelta(days=3, microseconds=1)),
        (timedelta, -timedelta(seconds=0.5)),
        (UUID, ID),
        (Decimal, Decimal("10.10")),
        (Decimal, Decimal("1E+30")),
        (Colour, Colour.RED),
        (Corner, Corner.FAR),
        (Size, Size.BIG),
        (Mood, Mood.GOOD),
        (OldMood, OldMood.GOOD),
        (Rights, Rights.READ | Rights.WRITE),
        (Sku, Sku("s-1")),
        (Celsius, Celsius(36.6)),
        (list[int], [1, 2]),
        (list[UUID], [ID]),
        (Sequence[date], [date(2026, 3, 4)]),
        (Iterable[UUID], [ID]),
        (tuple, (1, "a")),
        (tuple[int, ...], (1, 2, 3)),
        (tuple[UUID, ...], (ID, ID)),
        (tuple[int, datetime], (1, NOON)),
        (tuple[tuple[int, str], ...], ((1, "a"), (2, "b"))),
        (set, {1, 2}),
        (set[UUID], {ID}),
        (set[tuple[int, int]], {(1, 2), (3, 4)}),
        (AbstractSet[str], {"a", "b"}),
        (frozenset[Colour], frozenset({Colour.RED, Colour.BLUE})),
        (dict[str, int], {"a": 1}),
        (dict[str, datetime], {"a": NOON}),
        (Mapping[str, list[Decimal]], {"a": [Decimal("0.1")]}),
        (Point, Point(1, NOON)),
        (Point, Point(1, NOON, "there")),
        (Pair, Pair(1, "a")),
        (Movie, {"title": "M"}),
        (Movie, {"title": "M", "seen_at": NOON}),
        (Draft, {"id": ID}),
        (Spot, Spot(1)),
        (Order, Order(ID, [Item("a", Decimal("1.5"), {"x"}, [1]), Item("b", Decimal(2))], NOON, Colour.BLUE)),
        (list[Order], [Order(ID, [], NOON)]),
        (dict[str, tuple[Spot, ...]], {"a": (Spot(1), Spot(2))}),
        (set[Spot], {Spot(1), Spot(2)}),
        (Node, Node(date(2026, 1, 1), [Node(date(2026, 1, 2), [Node(date(2026, 1, 3))])])),
        (Literal["a", 1], "a"),
        (Literal["a", 1], 1),
        (Literal[Colour.RED], Colour.RED),
        (OrderId, OrderId(ID)),
        (list[Customer], [Customer(7)]),
        (Annotated[UUID, "the id"], ID),
        (Annotated[int, ["not hashable"]], 1),
        (list[Annotated[datetime, []]], [NOON]),
    ],
)
def test_an_argument_comes_back_as_it_was(annotation: Any, value: Any) -> None:
    back = round_trip(annotation, value)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (UUID | None, ID),
        (UUID | None, None),
        (Optional[datetime], NOON),  # noqa: UP045
        (Union[datetime, date], date(2026, 3, 4)),  # noqa: UP007
        (date | datetime, NOON),
        (date | datetime, date(2026, 3, 4)),
        (datetime | str, "soon"),
        (UUID | str, ID),
        (UUID | str, "x"),
        (UUID | str, ""),
        (UUID | int, 7),
        (int | str, "7"),
        (float | int, 3),
        (float | int, 3.0),
        (bool | int, 1),
        (int | bool, True),
        (Decimal | float, 0.5),
        (Decimal | float, Decimal("0.5")),
        (Decimal | int, 3),
        (Decimal | int, Decimal(3)),
        (Mood | str, Mood.GOOD),
        (Mood | str, "bad"),
        (Spot | Name, Spot(1)),
        (Spot | Name, Name("a")),
        (Name | Spot, Spot(1)),
        (Spot | Order | None, Order(ID, [], NOON)),
        (Spot | list[Spot], [Spot(1)]),
        (set[int] | set[str], {"a"}),
        (list[int] | dict[str, UUID], {"a": ID}),
        (list[int] | dict[str, UUID], [1]),
        (tuple[int, str] | tuple[str, int], ("a", 1)),
        (UUID | list | None, [1]),
        (UUID | Any, 7),
        (Literal["now"] | datetime, "now"),
        (Literal["now"] | datetime, NOON),
        (list[UUID | None], [ID, None]),
        (Annotated[int, "a count"] | UUID, 3),
    ],
)
def test_a_member_of_a_union_comes_back_as_it_was(annotation: Any, value: Any) -> None:
    back = round_trip(annotation, value)
    assert back == value
    assert type(back) is type(value)


def test_the_first_member_of_a_union_that_fits_is_taken() -> None:
    assert round_trip(str | UUID, ID) == str(ID)
    assert round_trip(dict[str, int] | Spot, Spot(1)) == {"x": 1}


def test_what_sql_would_write_is_read_too() -> None:
    assert taking(float).decode({"a": 3}) == {"a": 3}
    assert taking(datetime).decode({"a": "2026-03-04T12:00:00.000005Z"}) == {"a": NOON}
    assert taking(timedelta).decode({"a": 90}) == {"a": timedelta(seconds=90)}
    assert taking(Decimal).decode({"a": 9.99}) == {"a": Decimal("9.99")}
    assert taking(Loose).decode({"a": "A"}) == {"a": Loose.A}


def test_without_annotation_an_argument_arrives_as_its_json() -> None:
    def f(a, b=None): ...  # type: ignore[no-untyped-def]

    stored = Arguments(f).encode(((1, ID),), {"b": {NOON}})
    assert stored == {"a": [1, str(ID)], "b": [NOON.isoformat()]}
    assert Arguments(f).decode(stored) is stored


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=10)
MOMENTS = st.datetimes(
    timezones=st.just(UTC) | st.just(EAST), min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1)
)


@dataclass
class Everything:
    flag: bool
    id: UUID | None
    at: datetime
    day: date
    clock: time
    span: timedelta
    money: Decimal
    colours: frozenset[Colour]
    point: Point
    size: Size | str
    numbers: tuple[float, ...]
    by_name: dict[str, list[Spot]]
    either: Spot | Name | None
    inner: Everything | None = None


EVERYTHING = st.recursive(
    st.none(),
    lambda inner: st.builds(
        Everything,
        flag=st.booleans(),
        id=st.none() | st.uuids(),
        at=MOMENTS,
        day=st.dates(),
        clock=st.times(),
        span=st.timedeltas(min_value=timedelta(days=-36_500), max_value=timedelta(days=36_500)),
        money=st.decimals(allow_nan=False),
        colours=st.frozensets(st.sampled_from(Colour)),
        point=st.builds(Point, st.integers(), MOMENTS, TEXTS),
        size=st.sampled_from(Size) | TEXTS,
        numbers=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3).map(tuple),
        by_name=st.dictionaries(TEXTS, st.lists(st.builds(Spot, st.integers()), max_size=2), max_size=2),
        either=st.none() | st.builds(Spot, st.integers()) | st.builds(Name, TEXTS),
        inner=inner,
    ),
    max_leaves=3,
)


@given(EVERYTHING)
def test_any_composite_value_comes_back_equal(value: Everything | None) -> None:
    assert round_trip(Everything | None, value) == value


# --------------------------------------------------------------------------------------------- what is stored


@pytest.mark.parametrize(
    ("value", "json_value"),
    [
        (Size.BIG, 3),
        (Mood.GOOD, "good"),
        (OldMood.GOOD, "good"),
        (Sku("s-1"), "s-1"),
        (Celsius(36.6), 36.6),
        (Rights.READ, 1),
        (timedelta(minutes=1.5), 90.0),
        (Decimal("1.10"), "1.10"),
        (NOON, "2026-03-04T12:00:00.000005+00:00"),
        (Point(1, NOON), {"x": 1, "at": NOON.isoformat(), "label": "here"}),
        (Spot(1), {"x": 1}),
        ((1, (2,)), [1, [2]]),
        ({"b", "a", "c"}, ["a", "b", "c"]),
        ({Mood.GOOD: 1, Sku("x"): 2}, {"good": 1, "x": 2}),
        (MappingProxyType({"a": UserDict({"b": ID})}), {"a": {"b": str(ID)}}),
    ],
)
def test_a_value_is_stored_as_plain_json(value: Any, json_value: Any) -> None:
    def plain(one: Any) -> bool:
        if isinstance(one, dict):
            return type(one) is dict and all(type(key) is str and plain(member) for key, member in one.items())
        if isinstance(one, list):
            return type(one) is list and all(map(plain, one))
        return type(one) in (str, int, float, bool, type(None))

    assert stored(value) == json_value
    assert plain(stored(value))


def test_equal_sets_are_stored_alike_in_every_process() -> None:
    code = "from pgqueue.arguments import encode_value; print(encode_value({str(n) for n in range(50)}, 'a'))"
    texts = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1


def test_what_payload_encode_refuses_is_left_for_it() -> None:
    for value in (float("nan"), "x\0", "\ud800"):
        with pytest.raises(PayloadError, match=r"payload\.a"):
            payload.encode(taking(Any).encode((value,), {}))


def test_defaults_are_not_stored() -> None:
    def f(a: int, b: datetime = NOON, *, c: int = 3) -> None: ...

    arguments = Arguments(f)
    assert arguments.encode((1,), {}) == {"a": 1}
    assert arguments.encode((1,), {"c": 3}) == {"a": 1, "c": 3}
    assert arguments.decode({"a": 1}) == {"a": 1}


def test_extra_keyword_arguments_are_stored_and_decoded() -> None:
    def plain(a: int, **rest: Any) -> None: ...
    def typed(a: int, **rest: UUID) -> None: ...

    assert Arguments(plain).encode((1,), {"b": 2}) == {"a": 1, "b": 2}
    assert Arguments(plain).decode({"a": 1, "b": 2}) == {"a": 1, "b": 2}
    assert Arguments(typed).decode({"a": 1, "b": str(ID)}) == {"a": 1, "b": ID}
    with pytest.raises(PayloadError, match=r"^argument b: 'x' is not a UUID$"):
        Arguments(typed).decode({"a": 1, "b": "x"})


def test_a_payload_that_needs_no_conversion_is_given_back_itself() -> None:
    def f(a: int, b: str | None, c: list[dict[str, float]], d: Customer, e: Any = None) -> None: ...

    given: dict[str, Any] = {"a": 1, "b": None, "c": [], "d": 7}
    assert Arguments(f).decode(given) is given
    assert Arguments(f).decode(MappingProxyType(given)) == given


def test_decoding_leaves_the_payload_alone() -> None:
    given = {"a": {"id": str(ID), "items": [{"sku": "a", "price": "1", "tags": ["x"]}], "placed_at": NOON.isoformat()}}
    before = json.dumps(given)
    taking(Order).decode(given)
    assert json.dumps(given) == before


# ---------------------------------------------------------------------------------------------------- deploys


def test_a_field_added_with_a_default_takes_it_in_an_old_payload() -> None:
    old = {"id": str(ID), "items": [{"sku": "a", "price": "1"}], "placed_at": NOON.isoformat()}
    assert taking(Order).decode({"a": old})["a"] == Order(ID, [Item("a", Decimal(1), set(), None)], NOON, None)
    assert taking(Point).decode({"a": {"x": 1, "at": NOON.isoformat()}})["a"] == Point(1, NOON, "here")


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (Spot, {"x": 1, "y": 2}, "argument a: Spot got an unexpected field 'y'"),
        (Spot, {}, "argument a: Spot is missing the field 'x'"),
        (Spot, [1], r"argument a: \[1\] is not a Spot"),
        (Item, {"sku": "a", "prize": "1"}, "argument a: Item got an unexpected field 'prize'; did you mean 'price'?"),
        (list[Spot], [{"x": 1}, {}], r"argument a\[1\]: Spot is missing the field 'x'"),
        (Point, {"x": 1}, "argument a: Point is missing the field 'at'"),
        (Movie, {"titel": "M"}, "argument a: Movie got an unexpected field 'titel'; did you mean 'title'?"),
        (Draft, {"text": ""}, "argument a: Draft is missing the field 'id'"),
        (Order, {"id": "x", "items": [], "placed_at": ""}, "argument a.id: 'x' is not a UUID"),
        (
            Order,
            {"id": str(ID), "items": [{"sku": "", "price": "x"}], "placed_at": ""},
            r"argument a.items\[0\].price: 'x'",
        ),
        (Positive, {"n": -1}, "argument a: not a Positive: below zero"),
        (datetime, "x", "argument a: 'x' is not a datetime with a timezone"),
        (datetime, "2026-03-04T12:00:00", "argument a: '2026-03-04T12:00:00' is not a datetime with a timezone"),
        (datetime, 5, "argument a: 5 is not a datetime with a timezone"),
        (date, None, "argument a: None is not a date"),
        (time, "25:00", "argument a: '25:00' is not a time"),
        (timedelta, "90", "argument a: '90' is not a number of seconds"),
        (timedelta, 1e300, r"argument a: 1e\+300 is not a number of seconds"),
        (timedelta, True, "argument a: True is not a number of seconds"),
        (UUID, 7, "argument a: 7 is not a UUID"),
        (Decimal, "ten", "argument a: 'ten' is not a Decimal"),
        (Decimal, [], r"argument a: \[\] is not a Decimal"),
        (Colour, "green", "argument a: 'green' is not a Colour"),
        (Colour, {}, r"argument a: \{\} is not a Colour"),
        (Loose, "B", "argument a: 'B' is not a Loose"),
        (Celsius, "x", "argument a: 'x' is not a Celsius"),
        (Literal["a", 1], "b", "argument a: 'b' is not one of 'a', 1"),
        (Literal[1], True, "argument a: True is not one of 1"),
        (list[UUID], "x", "argument a: 'x' is not a list"),
        (set[int], {"a": 1}, r"argument a: \{'a': 1\} is not a list"),
        (set[Any], [[1]], r"argument a: \[\[1\]\] is not a list of what a set can hold"),
        (tuple[int, int], [1], r"argument a: \[1\] is not a list of 2"),
        (dict[str, UUID], [], r"argument a: \[\] is not a dict"),
        (dict[str, UUID], {"k": "x"}, "argument a.k: 'x' is not a UUID"),
        (int | UUID, "x", "argument a: 'x' is not an int or UUID"),
        (UUID | datetime | None, 7, "argument a: 7 is not a UUID or datetime or None"),
        (Optional[list[UUID]], ["x"], r"argument a\[0\]: 'x' is not a UUID"),  # noqa: UP045
    ],
)
def test_what_does_not_fit_is_a_payload_error_that_names_the_place(annotation: Any, value: Any, message: str) -> None:
    with pytest.raises(PayloadError, match=f"^{message.replace('?', '[?]')}"):
        taking(annotation).decode({"a": value})


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS | st.sampled_from(["x", "id", "at"]), inner),
    max_leaves=8,
)
KINDS: list[Any] = [Everything, Order, Point, Movie, Colour, Corner, Decimal, timedelta, set[int], UUID | int, Node]


@given(st.sampled_from(KINDS), ANY_JSON)
def test_any_json_is_decoded_or_a_payload_error(annotation: Any, value: Any) -> None:
    try:
        taking(annotation).decode({"a": value})
    except PayloadError:
        return


@pytest.mark.parametrize("value", [[], "a", None, payload.Undecodable("9", "too long")])
def test_a_payload_that_is_no_object_is_refused(value: Any) -> None:
    with pytest.raises(PayloadError, match=r"^payload: .* is not a JSON object"):
        taking(int).decode(value)


def test_a_payload_nested_too_deep_for_its_type_is_refused() -> None:
    value: dict[str, Any] = {"at": "2026-01-01"}
    for _ in range(2000):
        value = {"at": "2026-01-01", "children": [value]}
    with pytest.raises(PayloadError, match="the payload is nested too deep"):
        taking(Node).decode({"a": value})


# ------------------------------------------------------------------------------------------------ wrong arguments


def send_receipt(order_id: int, email: str, *, copy: bool = False) -> None: ...


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {"oder_id": 1, "email": ""}, "got an unexpected argument 'oder_id'; did you mean 'order_id'?"),
        ((1, "a"), {"zzz": 1}, "got an unexpected argument 'zzz'"),
        ((), {}, "is missing the argument 'email', 'order_id'"),
        ((1,), {}, "is missing the argument 'email'"),
        ((1, "a", True), {}, "takes at most 2 positional arguments, not 3"),
        ((1, "a"), {"order_id": 1}, "got 'order_id' both by position and by name"),
    ],
)
def test_wrong_arguments_are_refused_by_name(args: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Arguments(send_receipt).encode(args, kwargs)
    assert str(caught.value) == f"send_receipt() {message}"


def test_a_payload_with_wrong_names_is_refused() -> None:
    arguments = Arguments(send_receipt)
    with pytest.raises(PayloadError, match=r"^send_receipt\(\) got an unexpected argument 'oder_id'; did you mean"):
        arguments.decode({"oder_id": 1, "email": ""})
    with pytest.raises(PayloadError, match=r"^send_receipt\(\) is missing the argument 'email'$"):
        arguments.decode({"order_id": 1})


def test_signatures_that_cannot_be_stored_by_name_are_refused() -> None:
    def many(*args: int) -> None: ...
    def first(a: int, /) -> None: ...

    with pytest.raises(InvalidArgument, match=r"^task many: \*args cannot be stored by name$"):
        Arguments(many)
    with pytest.raises(InvalidArgument, match=r"^task first: positional-only 'a' cannot be stored by name$"):
        Arguments(first)


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (bytes, "bytes has no JSON form"),
        (Path, "Path has no JSON form"),
        (Path | None, "Path has no JSON form"),
        (list[bytes], "bytes has no JSON form"),
        (Callable[[], int], "has no JSON form"),
        (deque, "deque has no JSON form"),
        (Box[UUID], r"Box\[.*UUID\] has no JSON form"),
        (dict[int, str], "a dict with keys of int has no JSON form: keys must be texts"),
        (Odd, "Odd is a object, which JSON does not have"),
    ],
)
def test_annotations_without_json_form_are_refused(annotation: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^task f: argument a: .*{message}"):
        taking(annotation)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"x", "argument a is a bytes, which JSON does not have"),
        (Path("x"), "argument a is a PosixPath, which JSON does not have"),
        (object(), "argument a is a object, which JSON does not have"),
        ((n for n in [1]), "argument a is a generator, which JSON does not have"),
        (Spot, "argument a is a type, which JSON does not have"),
        (range(3), "argument a is a range, which JSON does not have"),
        ({"k": [1, {2j}]}, "argument a.k[1][…] is a complex, which JSON does not have"),
        (Point(1, NOON, b"x"), "argument a.label is a bytes, which JSON does not have"),  # type: ignore[arg-type]
        ({1: 2}, "argument a has the key 1: keys must be texts"),
        ({"k": {None: 2}}, "argument a.k has the key None: keys must be texts"),
        (
            [datetime(2026, 1, 1)],
            "argument a[0] is a datetime without timezone: use datetime.now(UTC) or .replace(tzinfo=…)",
        ),
    ],
)
def test_a_value_without_json_form_is_refused_and_the_place_is_named(value: Any, message: str) -> None:
    with pytest.raises(PayloadError) as caught:
        taking(Any).encode((value,), {})
    assert str(caught.value) == message


def test_the_place_is_named_through_dataclasses_and_lists() -> None:
    items = [Item("a", Decimal(1)), Item("b", Decimal(1)), Item("c", Decimal(1), blob=b"x")]

    def f(order: Order) -> None: ...

    with pytest.raises(PayloadError, match=r"^argument order\.items\[2\]\.blob is a bytes, which JSON does not have$"):
        Arguments(f).encode((Order(ID, items, NOON),), {})


def test_a_value_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(PayloadError, match=r"^result is nested too deep, or contains itself$"):
        encode_value(endless, "result")


# ------------------------------------------------------------------------------------------------- injected


class Context: ...


def is_context(annotation: Any) -> bool:
    return annotation is Context or annotation == "Missing"


def test_injected_parameters_are_no_part_of_the_payload() -> None:
    def f(ctx: Context, a: int, db: Path = INJECTED, b: int = 2) -> None: ...

    arguments = Arguments(f, is_context)
    assert arguments.injected == {"ctx": Context, "db": Path}
    assert arguments.encode((1, 5), {}) == {"a": 1, "b": 5}
    assert arguments.decode({"a": 1}) == {"a": 1}
    with pytest.raises(InvalidArgument, match=r"^f\(\) gets 'ctx' from the worker, not from the payload$"):
        arguments.encode((1,), {"ctx": Context()})


def test_injected_parameters_cannot_be_smuggled_in_as_extra_ones() -> None:
    def f(ctx: Context, **rest: Any) -> None: ...

    with pytest.raises(InvalidArgument, match="from the worker"):
        Arguments(f, is_context).encode((), {"ctx": 1})
    with pytest.raises(PayloadError, match="from the worker"):
        Arguments(f, is_context).decode({"ctx": 1})


def test_the_sentinel_says_what_it_is() -> None:
    assert repr(INJECTED) == "INJECTED"


# ---------------------------------------------------------------------------------------- forward references


def test_a_name_known_to_type_checkers_only_is_any_and_costs_the_others_nothing() -> None:
    def f(a: Fraction, b: UUID, c: list[Fraction]) -> Fraction:
        return a

    assert Arguments(f).decode({"a": 1, "b": str(ID), "c": [2]}) == {"a": 1, "b": ID, "c": [2]}


def test_an_unknown_name_is_offered_as_text_to_be_injected() -> None:
    def f(ctx: Missing, a: int) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert Arguments(f, is_context).injected == {"ctx": "Missing"}


def test_a_local_class_is_found_if_the_function_uses_it() -> None:
    @dataclass
    class Inner:
        at: datetime

    @dataclass
    class Outer:
        inner: Inner
        outer: Outer | None = None

    def f(a: Outer) -> Any:
        return Outer, Inner, f  # f itself is not bound yet when a decorator looks

    value = Outer(Inner(NOON), Outer(Inner(NOON)))
    arguments = Arguments(f)
    assert arguments.decode(arguments.encode((value,), {})) == {"a": value}


def test_a_local_class_that_only_annotations_name_arrives_as_its_json() -> None:
    @dataclass
    class Inner:
        at: datetime

    def f(a: Inner) -> None: ...

    arguments = Arguments(f)
    assert arguments.decode(arguments.encode((Inner(NOON),), {})) == {"a": {"at": NOON.isoformat()}}


def test_wrapped_partial_and_bound_functions_are_read_like_functions() -> None:
    def f(a: UUID, b: int) -> None: ...

    @functools.wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> None: ...

    class Service:
        def run(self, a: UUID) -> None: ...

        def __call__(self, a: int) -> None: ...

    assert Arguments(wrapped).decode({"a": str(ID), "b": 1}) == {"a": ID, "b": 1}
    assert Arguments(functools.partial(f, b=1)).decode({"a": str(ID)}) == {"a": ID}
    assert Arguments(Service().run).decode({"a": str(ID)}) == {"a": ID}
    assert Arguments(Service()).decode({"a": 1}) == {"a": 1}


def test_a_type_alias_is_what_it_stands_for() -> None:
    alias = pytest.importorskip("typing_extensions").TypeAliasType
    assert round_trip(alias("Ids", list[UUID]), [ID]) == [ID]


# --------------------------------------------------------------------------------------------------- results


def test_a_result_comes_back_by_the_return_annotation() -> None:
    def plain() -> dict[str, int]:
        return {}

    def typed() -> list[Order]:
        return []

    def odd() -> Path:
        return Path()

    def unannotated(): ...  # type: ignore[no-untyped-def]

    orders = [Order(ID, [], NOON)]
    assert Arguments(typed).decode_result(encode_value(orders, "result")) == orders
    assert Arguments(typed).decode_result(None) is None
    for function in (plain, odd, unannotated):
        assert Arguments(function).decode_result({"a": 1}) == {"a": 1}
    with pytest.raises(PayloadError, match=r"^result\[0\]: 1 is not an Order$"):
        Arguments(typed).decode_result([1])


# -------------------------------------------------------------------------------------------------- pydantic


class Model:
    """Behaves like a pydantic model."""

    def __init__(self, at: datetime) -> None:
        self.at = at

    def model_dump(self, *, mode: str, **_: Any) -> dict[str, Any]:
        assert mode == "json"
        if self.at.year < 2000:
            raise ValueError("too old")
        return {"at": self.at.isoformat()}

    @classmethod
    def model_validate(cls, value: Any) -> Model:
        return cls(datetime.fromisoformat(value["at"]))


def test_what_behaves_like_a_pydantic_model_is_stored_by_its_own_methods() -> None:
    arguments = taking(list[Model] | None)
    kept = arguments.encode(([Model(NOON)],), {})
    assert kept == {"a": [{"at": NOON.isoformat()}]}
    assert arguments.decode(kept)["a"][0].at == NOON
    with pytest.raises(PayloadError, match=r"^argument a\[0\]: not a Model: 'at'$"):
        arguments.decode({"a": [{}]})
    with pytest.raises(PayloadError, match=r"^argument a: Model has no JSON form: too old$"):
        arguments.encode((Model(datetime(1999, 1, 1, tzinfo=UTC)),), {})


def test_pydantic_models_come_back_as_they_were() -> None:
    pydantic = pytest.importorskip("pydantic")

    def shouted(self: Any) -> str:
        return str(self.name).upper()

    receipt = pydantic.create_model(
        "Receipt",
        __config__=pydantic.ConfigDict(extra="forbid"),
        name=(str, ...),
        at=(datetime, ...),
        total=(Decimal, pydantic.Field(alias="sum")),
    )
    loud = type("Loud", (receipt,), {"shouted": pydantic.computed_field(property(shouted)), "__module__": __name__})
    value = loud(name="a", at=NOON, sum=Decimal("1.10"))
    assert stored(value) == {"name": "a", "at": "2026-03-04T12:00:00.000005Z", "sum": "1.10"}
    assert round_trip(loud, value) == value
    assert [round_trip(loud | None, one) for one in (value, None)] == [value, None]
    with pytest.raises(PayloadError, match=r"^argument a: not a Loud: .*\nsum\n"):
        taking(loud).decode({"a": {"name": "a", "at": "2026-03-04T12:00:00Z"}})


def test_pydantic_is_not_imported() -> None:
    code = "import sys, pgqueue.arguments; print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
