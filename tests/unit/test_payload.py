from __future__ import annotations

import json
from collections import UserDict
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgqueue.errors import PayloadError
from pgqueue.payload import MAX_DEPTH, clean_text, encode

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | FINITE | TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=20,
)


class Text(str):
    """A subclass, as StrEnum and many libraries have one."""


class Number(float):
    """A subclass, as numpy.float64 is one."""


def nested(levels: int, inmost: Any = None) -> dict[str, Any]:
    """A payload of so many levels, itself included."""
    value: Any = inmost or {}
    for _ in range(levels - 1):
        value = {"a": value}
    assert isinstance(value, dict)
    return value


@given(st.dictionaries(TEXTS, VALUES, max_size=5))
def test_what_json_can_say_comes_back_as_it_was(payload: dict[str, Any]) -> None:
    assert json.loads(encode(payload)) == payload


@given(st.dictionaries(st.text(max_size=5), VALUES | st.text(st.characters(), max_size=5), max_size=5))
def test_any_text_is_either_encoded_or_a_payload_error(payload: dict[str, Any]) -> None:
    try:
        text = encode(payload)
    except PayloadError:
        return
    text.encode()
    assert "\\u0000" not in text
    assert json.loads(text) == payload


def test_the_text_is_compact_and_not_escaped() -> None:
    assert encode({"a": [1, "ü"], "b": None}) == '{"a":[1,"ü"],"b":null}'


def test_a_tuple_becomes_a_list() -> None:
    assert encode({"a": (1, 2)}) == '{"a":[1,2]}'


@pytest.mark.parametrize("payload", [None, [], "a", 1, [("a", 1)]])
def test_a_payload_that_is_not_a_mapping_is_refused(payload: Any) -> None:
    with pytest.raises(PayloadError, match=f"a payload is a mapping .*, not {type(payload).__name__}"):
        encode(payload)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"a": {"b": [1, float("nan")]}}, r"payload\.a\.b\[1\] is nan"),
        ({"a": float("inf")}, r"payload\.a is inf"),
        ({"a": [-float("inf")]}, r"payload\.a\[0\] is -inf"),
        ({"a": {"b": "x\0y"}}, r"payload\.a\.b contains a NUL character"),
        ({"a": {"x\0y": 1}}, r"payload\.a contains a NUL character"),
        ({"a": ["ok", "x\ud800"]}, r"payload\.a\[1\] contains a lone surrogate at position 1"),
        ({"\udfff": 1}, "payload contains a lone surrogate at position 0"),
        ({"a": {1: 2}}, r"payload\.a has the key 1: keys must be texts"),
        ({None: 2}, "payload has the key None: keys must be texts"),
        ({"a": [datetime.now(UTC)]}, r"payload\.a\[0\] is a datetime, which JSON does not have"),
        ({"a": Decimal(1)}, r"payload\.a is a Decimal, which JSON does not have"),
        ({"a": {1, 2}}, r"payload\.a is a set, which JSON does not have"),
        ({"a": b"x"}, r"payload\.a is a bytes, which JSON does not have"),
        ({"a": object()}, r"payload\.a is a object, which JSON does not have"),
    ],
)
def test_what_cannot_be_stored_is_refused_and_the_place_is_named(payload: Any, message: str) -> None:
    with pytest.raises(PayloadError, match=message):
        encode(payload)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Text("x\0"), "payload.a contains a NUL character"),
        (Text("x\ud800"), "payload.a contains a lone surrogate"),
        (Number("nan"), "payload.a is nan"),
        (Number("inf"), "payload.a is inf"),
    ],
)
def test_subclasses_of_text_and_number_are_checked_as_their_bases_are(value: Any, message: str) -> None:
    with pytest.raises(PayloadError, match=message):
        encode({"a": value})


def test_enums_of_text_and_number_are_stored_as_their_values() -> None:
    colour = StrEnum("colour", {"RED": "red"})
    size = IntEnum("size", {"BIG": 3})
    assert encode({"a": colour.RED, "b": size.BIG}) == '{"a":"red","b":3}'


@pytest.mark.parametrize("mapping", [MappingProxyType({"a": {"b": 1}}), UserDict({"a": {"b": 1}})])
def test_any_mapping_is_a_payload(mapping: Any) -> None:
    assert encode(mapping) == '{"a":{"b":1}}'


def test_a_payload_may_have_sixty_four_levels_and_no_more() -> None:
    assert json.loads(encode(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    with pytest.raises(PayloadError, match=r"payload\.a\.a.*nested deeper than 64 levels"):
        encode(nested(MAX_DEPTH + 1))


@pytest.mark.parametrize("deep", [{"a": 0}, [0]])
def test_a_payload_far_too_deep_is_refused_without_exhausting_the_stack(deep: Any) -> None:
    value = deep
    for _ in range(20_000):
        value = {"a": value} if isinstance(deep, dict) else [value]
    with pytest.raises(PayloadError, match="nested deeper than 64 levels") as caught:
        encode({"a": value})
    assert len(str(caught.value)) < 400


def test_a_payload_that_contains_itself_is_refused() -> None:
    payload: dict[str, Any] = {}
    payload["me"] = payload
    with pytest.raises(PayloadError, match="nested deeper than 64 levels"):
        encode(payload)


def test_a_list_that_is_in_itself_many_times_over_is_refused_at_once() -> None:
    x: Any = []
    for _ in range(60):
        x = [x, x]
    with pytest.raises(PayloadError, match="as the same values are in it many times"):
        encode({"a": x})


def test_what_is_in_a_payload_twice_is_stored_twice_and_counts_at_each_depth() -> None:
    x: Any = [1, "a"]
    assert encode({"a": x, "b": [x, {"c": x}]}) == '{"a":[1,"a"],"b":[[1,"a"],{"c":[1,"a"]}]}'
    deep = nested(40)
    with pytest.raises(PayloadError, match="nested deeper than 64 levels"):
        encode({"a": deep, "b": nested(30, deep)})
    with pytest.raises(PayloadError, match="nested deeper than 64 levels"):
        encode({"b": nested(30, deep), "a": deep})


def test_a_text_may_have_the_given_number_of_bytes_and_no_more() -> None:
    room = 1000 - len('{"a":""}')
    assert len(encode({"a": "x" * room}, 1000)) == 1000
    with pytest.raises(PayloadError, match=r"1,001 bytes of JSON: at most 1,000; store the data"):
        encode({"a": "x" * (room + 1)}, 1000)


def test_the_size_is_counted_in_bytes() -> None:
    with pytest.raises(PayloadError, match="1,008 bytes"):
        encode({"a": "ü" * 500}, 1000)


def test_a_number_too_long_for_python_to_print_is_a_payload_error() -> None:
    with pytest.raises(PayloadError):
        encode({"a": 10**5000})


# --------------------------------------------------------------------------------------------- clean_text


@given(st.text(st.characters(), max_size=200))
def test_clean_text_never_raises_and_gives_what_postgresql_can_store(text: str) -> None:
    cleaned = clean_text(text)
    cleaned.encode()
    assert "\0" not in cleaned
    assert len(cleaned) == len(text)


@given(TEXTS)
def test_clean_text_keeps_what_is_clean(text: str) -> None:
    assert clean_text(text) == text


def test_clean_text_replaces_what_cannot_be_stored() -> None:
    assert clean_text("a\0b\ud800c") == "a\ufffdb?c"


def test_clean_text_cuts() -> None:
    assert clean_text("abcdef", 3) == "abc"
    assert len(clean_text("x" * 100_000)) == 65_536
