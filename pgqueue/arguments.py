"""A task's arguments as JSON: bound to its signature when a job is enqueued, given back as annotated in the worker.

Values are encoded by what they are and decoded by what the signature says: the JSON names no Python types, so a job
outlives a renamed class, and SQL can write it. What JSON has already is neither converted nor checked.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import reprlib
import sys
import typing
from collections import abc
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, TypeAlias, get_args, get_origin
from uuid import UUID

from pgqueue.errors import InvalidArgument, PayloadError

Decoder = Callable[[Any, str], Any]  # (JSON value, where it stands) → the annotated type, or a PayloadError


class _Injected:
    def __repr__(self) -> str:
        return "INJECTED"


INJECTED: Any = _Injected()  # the default of a parameter that the worker gives: `def f(id: int, db: Pool = INJECTED)`


@dataclasses.dataclass(frozen=True, slots=True)
class ParentResult:
    """Stands, in the arguments of a call that is part of a flow, for what a job before it returns. See flows.py."""

    of: Any


class Arguments:
    """How the arguments of one function become JSON and come back."""

    def __init__(self, function: Callable[..., Any], injected: Callable[[Any], bool] = lambda _: False) -> None:
        """Parameters for which `injected(annotation)` is true come from the worker and are not part of the payload.

        An annotation that cannot be resolved (imported for type checkers only, say) is given to `injected` as the text
        it is, and decoded as `Any`.
        """
        self._name = getattr(function, "__name__", type(function).__name__)
        self.injected: dict[str, Any] = {}
        self._positional: list[str] = []
        self._decoders: list[tuple[str, str, Decoder]] = []
        self._open, self._extra = False, None
        known, required = set(), set()
        inner = function.func if isinstance(function, functools.partial) else inspect.unwrap(function)
        local = _closure(inner)
        decoders = _Decoders(local)
        signature = inspect.signature(function)
        for name, parameter in signature.parameters.items():
            if parameter.kind is parameter.VAR_POSITIONAL:
                raise InvalidArgument(f"task {self._name}: *{name} cannot be stored by name")
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise InvalidArgument(f"task {self._name}: positional-only {name!r} cannot be stored by name")
            hint = _resolve(parameter.annotation, getattr(inner, "__globals__", {}), local)
            if parameter.default is INJECTED or injected(hint):
                self.injected[name] = hint
                continue
            try:
                decoder = decoders.of(hint)
            except (InvalidArgument, PayloadError, RecursionError) as error:  # an enum of objects; an endless alias
                raise InvalidArgument(f"task {self._name}: argument {name}: {error}") from None
            if parameter.kind is parameter.VAR_KEYWORD:
                self._open, self._extra = True, decoder
                continue
            known.add(name)
            if parameter.default is parameter.empty:
                required.add(name)
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
                self._positional.append(name)
            if decoder is not None:
                self._decoders.append((name, f"argument {name}", decoder))
        self._known, self._required = frozenset(known), frozenset(required)
        self._result: Decoder | None = None
        # A return annotation without JSON form is no fault yet: encode_value refuses such a result when there is one.
        with suppress(InvalidArgument, PayloadError, RecursionError):
            self._result = decoders.of(_resolve(signature.return_annotation, getattr(inner, "__globals__", {}), local))

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The payload. Defaults are not stored: a later deploy may change them."""
        if len(args) > (most := len(self._positional)):
            raise InvalidArgument(f"{self._name}() takes at most {most} positional arguments, not {len(args)}")
        given = dict(zip(self._positional, args, strict=False))
        if twice := given.keys() & kwargs.keys():
            raise InvalidArgument(f"{self._name}() got {_listed(twice)} both by position and by name")
        given |= kwargs
        if not self._fits(given.keys()):
            raise InvalidArgument(self._misnamed(given.keys()))
        return {
            name: value if type(value) in _PLAIN else encode_value(value, f"argument {name}")
            for name, value in given.items()
        }

    def decode(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments; the payload itself where nothing needs conversion."""
        if not isinstance(payload, dict):
            if not isinstance(payload, Mapping):
                raise _misfit(payload, "payload", "JSON object")
            payload = dict(payload)
        names = payload.keys()
        if names != self._known and not self._fits(names):  # mostly all are given, and != costs half of what _fits does
            raise PayloadError(self._misnamed(names))
        if not self._decoders and self._extra is None:
            return payload
        arguments = dict(payload)
        try:
            for name, where, decoder in self._decoders:
                if name in arguments:
                    arguments[name] = decoder(arguments[name], where)
            if self._extra is not None:
                for name in names - self._known:
                    arguments[name] = self._extra(arguments[name], f"argument {name}")
        except RecursionError:
            raise PayloadError(f"{self._name}(): the payload is nested too deep") from None
        return arguments

    def decode_result(self, value: Any) -> Any:
        """What the function returned, by its return annotation."""
        try:
            return value if value is None or self._result is None else self._result(value, "result")
        except RecursionError:
            raise PayloadError(f"{self._name}(): the result is nested too deep") from None

    def _fits(self, names: Set[str]) -> bool:
        if not self._required <= names:
            return False
        return self.injected.keys().isdisjoint(names) if self._open else names <= self._known

    def _misnamed(self, names: Set[str]) -> str:
        if taken := self.injected.keys() & names:
            return f"{self._name}() gets {_listed(taken)} from the worker, not from the payload"
        known = self._known | names if self._open else self._known
        return _misnamed(f"{self._name}()", "argument", names, self._required, known)


# ------------------------------------------------------------------------------------------------ to JSON

_PLAIN = frozenset({NoneType, bool, int, float, str})


def encode_value(value: Any, where: str) -> Any:
    """The JSON-ready form of one value, an argument or a result; a `PayloadError` names the place that has none."""
    if type(value) in _PLAIN:
        return value
    try:
        return _encode(value, where, {})
    except RecursionError:
        raise PayloadError(f"{where} is nested too deep, or contains itself") from None


_Known: TypeAlias = dict[int, tuple[Any, Any]]


def _encode(value: Any, where: str, known: _Known) -> Any:
    """`known` has what was encoded already: `x = [x, x]` sixty times would never end (payload.py refuses it)."""
    if type(value) in _PLAIN:
        return value
    if (found := known.get(id(value))) is None:
        found = known[id(value)] = _encode_anew(value, where, known), value  # kept, so that no other gets its id
    return found[0]


def _encode_anew(value: Any, where: str, known: _Known) -> Any:
    if isinstance(value, Enum):
        return _encode(value.value, where, known)
    if isinstance(value, str):
        return str.__str__(value)  # not str(value): a subclass may print itself in its own way
    if isinstance(value, (int, float)):
        return int.__int__(value) if isinstance(value, int) else float.__float__(value)
    if isinstance(value, datetime) and value.utcoffset() is None:
        raise PayloadError(f"{where} is a datetime without timezone: use datetime.now(UTC) or .replace(tzinfo=…)")
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        # Seconds: `{"delay": 90}` is what people write in SQL. A float is exact to the microsecond for 285 years.
        return value.total_seconds()
    if isinstance(value, (UUID, Decimal)):
        return str(value)
    if isinstance(value, (set, frozenset)):
        # Sorted: a set of texts has another order in every process, and equal arguments must make equal JSON.
        return sorted((_encode(item, f"{where}[…]", known) for item in value), key=repr)
    if isinstance(value, list) or (isinstance(value, tuple) and not hasattr(value, "_asdict")):
        # A plain item's path is never needed, and making it would be most of the cost of a long list.
        return [item if type(item) in _PLAIN else _encode(item, f"{where}[{n}]", known) for n, item in enumerate(value)]
    if hasattr(type(value), "model_dump"):  # a pydantic model, or what behaves like one
        try:  # by alias and without computed fields, because that is what model_validate takes
            return _encode(value.model_dump(mode="json", by_alias=True, round_trip=True), where, known)
        except (ValueError, TypeError) as error:
            raise PayloadError(f"{where}: {type(value).__name__} has no JSON form: {error}") from error
    if dataclasses.is_dataclass(value) and not isinstance(value, (type, ParentResult)):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
    elif isinstance(value, tuple):
        value = value._asdict()  # type: ignore[attr-defined]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise PayloadError(f"{where} has the key {key!r}: keys must be texts")
        return {_encode(key, where, known): _encode(member, f"{where}.{key}", known) for key, member in value.items()}
    if isinstance(value, ParentResult):
        return value  # for flows.py, and refused wherever else it comes
    raise PayloadError(f"{where} is a {type(value).__name__}, which JSON does not have")


# ---------------------------------------------------------------------------------------------- from JSON


def _aware(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.utcoffset() is None:
        raise ValueError("no timezone")
    return moment


# What one JSON value becomes: the JSON types that it may have, how it is read, and what to call it if it cannot be.
_SCALARS: dict[Any, tuple[tuple[type, ...], Callable[[Any], Any], str]] = {
    datetime: ((str,), _aware, "datetime with a timezone"),
    date: ((str,), date.fromisoformat, "date"),
    time: ((str,), time.fromisoformat, "time"),
    timedelta: ((int, float), lambda seconds: timedelta(seconds=seconds), "number of seconds"),
    UUID: ((str,), UUID, "UUID"),
    Decimal: ((str, int, float), lambda number: Decimal(str(number)), "Decimal"),
}
_ITEMS: dict[Any, Callable[[Iterable[Any]], Any]] = {
    **dict.fromkeys((list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable), list),
    **dict.fromkeys((set, abc.Set, abc.MutableSet), set),
    frozenset: frozenset,
    tuple: tuple,
}
_WRAPPERS = (typing.Annotated, typing.Required, typing.NotRequired, typing.Final)


class _Decoders:
    """Builds the decoders of annotations; None where the JSON value already is what the annotation says.

    Strict decoders check plain values too: in a union, that is what tells `list[int]` from `list[str]`.
    """

    def __init__(self, local: Mapping[str, Any]) -> None:
        self._local = local
        self._records: dict[Any, Decoder] = {}

    def of(self, hint: Any, strict: bool = False) -> Decoder | None:
        hint = _bare(hint)
        kind, args = get_origin(hint) or hint, get_args(hint)
        if kind in (Any, object, inspect.Parameter.empty) or isinstance(kind, (str, typing.ForwardRef, typing.TypeVar)):
            return None
        if kind in (typing.Union, UnionType):
            return self._union(args, strict)
        if kind is typing.Literal:
            return _one_of(args, "one of " + ", ".join(repr(literal) for literal in args))
        if kind is tuple and args and args[-1] is not Ellipsis:
            return self._tuple(args, strict)
        if kind in _ITEMS:
            return self._items(_ITEMS[kind], args, strict)
        if kind in (dict, abc.Mapping, abc.MutableMapping):
            return self._dict(args, strict)
        if kind in _SCALARS:
            return _scalar(*_SCALARS[kind])
        if not isinstance(hint, type):
            raise InvalidArgument(f"{_named(hint)} has no JSON form")
        if hint in _PLAIN:
            return (
                _scalar((hint, int) if hint is float else (hint,), lambda value: value, _named(hint))
                if strict
                else None
            )
        if issubclass(hint, Enum):
            return _one_of(hint.__members__.values(), hint.__name__, hint)
        if hasattr(hint, "model_validate"):
            return functools.partial(_made, hint, hint.model_validate)
        if dataclasses.is_dataclass(hint) or hasattr(hint, "_field_defaults") or hasattr(hint, "__required_keys__"):
            if (hint, strict) not in self._records:
                # What a type that mentions itself finds while it is being built.
                self._records[hint, strict] = lambda value, where: self._records[hint, strict](value, where)
                self._records[hint, strict] = self._record(hint, strict)
            return self._records[hint, strict]
        for base in (str, int, float):
            if issubclass(hint, base):
                return _scalar((base,), hint, hint.__name__)
        raise InvalidArgument(f"{_named(hint)} has no JSON form")

    def _union(self, members: tuple[Any, ...], strict: bool) -> Decoder | None:
        if not strict and all(self.of(member) is None for member in members):
            return None
        others = [member for member in members if member is not NoneType]
        if len(others) == 1 and (only := self.of(others[0], strict)) is not None:
            return lambda value, where: None if value is None else only(value, where)
        # Numbers and null stay what they are if the union has their type: for `Decimal | float`, 0.5 was a float.
        # Texts are tried in the order written, as UUIDs, dates and enums are texts too: `UUID | str` tells them apart.
        exact = {NoneType, bool, int, float} & {_bare(member) for member in members}
        decoders = [self.of(member, strict=True) for member in others]

        def decode(value: Any, where: str) -> Any:
            if type(value) in exact:
                return value
            for decoder in decoders:
                with suppress(PayloadError):
                    return value if decoder is None else decoder(value, where)
            raise _misfit(value, where, " or ".join(_named(member) for member in members))

        return decode

    def _items(self, make: Callable[[Iterable[Any]], Any], args: tuple[Any, ...], strict: bool) -> Decoder | None:
        item = self.of(args[0], strict) if args else None
        if make is list and item is None and not strict:
            return None

        def decode(value: Any, where: str) -> Any:
            if not isinstance(value, list):
                raise _misfit(value, where, "list")
            items = value if item is None else [item(one, f"{where}[{n}]") for n, one in enumerate(value)]
            try:
                return make(items)
            except TypeError:  # a set of lists or dicts
                raise _misfit(value, where, "list of what a set can hold") from None

        return decode

    def _tuple(self, args: tuple[Any, ...], strict: bool) -> Decoder:
        items = [self.of(arg, strict) for arg in args]

        def decode(value: Any, where: str) -> Any:
            if not isinstance(value, list) or len(value) != len(items):
                raise _misfit(value, where, f"list of {len(items)}")
            pairs = enumerate(zip(items, value, strict=True))
            return tuple(one if item is None else item(one, f"{where}[{n}]") for n, (item, one) in pairs)

        return decode

    def _dict(self, args: tuple[Any, ...], strict: bool) -> Decoder | None:
        if args and _bare(args[0]) not in (str, Any):
            raise InvalidArgument(f"a dict with keys of {_named(args[0])} has no JSON form: keys must be texts")
        member = self.of(args[1], strict) if args else None
        if member is None and not strict:
            return None

        def decode(value: Any, where: str) -> Any:
            if not isinstance(value, dict):
                raise _misfit(value, where, "dict")
            return value if member is None else {key: member(one, f"{where}.{key}") for key, one in value.items()}

        return decode

    def _record(self, kind: Any, strict: bool) -> Decoder:
        """A dataclass, NamedTuple or TypedDict: an object in JSON, so that fields with defaults can be added later."""
        hints, required = _fields(kind, self._local)
        decoders = [(name, decoder) for name, hint in hints.items() if (decoder := self.of(hint, strict)) is not None]

        def decode(value: Any, where: str) -> Any:
            if not isinstance(value, dict):
                raise _misfit(value, where, kind.__name__)
            if not required <= value.keys() <= hints.keys():
                names = _misnamed(kind.__name__, "field", value.keys(), required, hints.keys())
                raise PayloadError(f"{where}: {names}")
            fields = dict(value)
            for name, decoder in decoders:
                if name in fields:
                    fields[name] = decoder(fields[name], f"{where}.{name}")
            return _made(kind, lambda fields: kind(**fields), fields, where)

        return decode


def _made(kind: type, make: Callable[[Any], Any], value: Any, where: str) -> Any:
    try:
        return make(value)
    except Exception as error:  # whatever a validator or __post_init__ of the user's raises, the payload does not fit
        raise PayloadError(f"{where}: not a {kind.__name__}: {error}") from error


def _scalar(accepted: tuple[type, ...], read: Callable[[Any], Any], name: str) -> Decoder:
    def decode(value: Any, where: str) -> Any:
        if type(value) in accepted:  # not isinstance: true is not the number 1
            with suppress(ValueError, ArithmeticError):
                return read(value)
        raise _misfit(value, where, name)

    return decode


def _one_of(members: Iterable[Any], name: str, otherwise: Callable[[Any], Any] | None = None) -> Decoder:
    """The members of an enum or a Literal by their JSON; `otherwise` knows flags and the enum's `_missing_`."""
    encoded = [(encode_value(member, name), member) for member in members]

    def decode(value: Any, where: str) -> Any:
        for json, member in encoded:
            if type(json) is type(value) and json == value:
                return member
        if otherwise is not None:
            with suppress(Exception):  # a `_missing_` of the user's may raise anything
                return otherwise(value)
        raise _misfit(value, where, name)

    return decode


# --------------------------------------------------------------------------------------------- annotations


def _resolve(annotation: Any, globals: Mapping[str, Any], local: Mapping[str, Any]) -> Any:
    holder = SimpleNamespace(__annotations__={"it": annotation})
    try:  # one at a time: a name known to type checkers only must not cost the other parameters their types
        return typing.get_type_hints(holder, dict(globals), dict(local), include_extras=True)["it"]
    except Exception:
        return annotation


def resolve(annotation: Any, function: Callable[..., Any]) -> Any:
    """What an annotation of this function means, if it can be told."""
    inner = inspect.unwrap(function)
    return _resolve(annotation, getattr(inner, "__globals__", {}), _closure(inner))


def _closure(function: Any) -> dict[str, Any]:
    """The local names that a function uses: all that is left of the scope where a local class was defined."""
    names: dict[str, Any] = {}
    code = getattr(function, "__code__", None)  # a callable object has none
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True) if code else ():
        with suppress(ValueError):  # still empty: a local function that calls itself
            names[name] = cell.cell_contents
    return names


def _fields(kind: Any, local: Mapping[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """The fields of a dataclass, NamedTuple or TypedDict, and which of them must be given."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        module = vars(sys.modules.get(base.__module__, object))
        for name, annotation in inspect.get_annotations(base).items():
            found[name] = _resolve(annotation, module, {**local, kind.__name__: kind})
    if dataclasses.is_dataclass(kind):
        fields = [field for field in dataclasses.fields(kind) if field.init]
        optional = {f.name for f in fields if not (f.default is f.default_factory is dataclasses.MISSING)}
        return {f.name: found.get(f.name, Any) for f in fields}, frozenset(f.name for f in fields) - optional
    if hasattr(kind, "_field_defaults"):
        return {name: found.get(name, Any) for name in kind._fields}, frozenset(
            kind._fields
        ) - kind._field_defaults.keys()
    # Python sees neither of these in annotations that are texts, as under `from __future__ import annotations`.
    optional = {name for name, hint in found.items() if get_origin(hint) is typing.NotRequired}
    required = {name for name, hint in found.items() if get_origin(hint) is typing.Required}
    return found, kind.__required_keys__ - optional | required


def _bare(hint: Any) -> Any:
    while True:
        if get_origin(hint) in _WRAPPERS:
            hint = get_args(hint)[0]
        elif isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        elif hasattr(hint, "__value__"):  # `type OrderId = int`, from Python 3.12 on
            hint = hint.__value__
        else:
            return hint


# ------------------------------------------------------------------------------------------------ messages


def _misfit(value: Any, where: str, name: str) -> PayloadError:
    article = "" if name.startswith("one of") else "an " if name[0] in "aeioAEIO" else "a "
    return PayloadError(f"{where}: {reprlib.repr(value)} is not {article}{name}")


def _misnamed(owner: str, noun: str, given: Set[str], required: Set[str], known: Set[str]) -> str:
    for name in sorted(given - known, key=str):
        close = difflib.get_close_matches(str(name), sorted(known - given), 1)
        return f"{owner} got an unexpected {noun} {name!r}" + (f"; did you mean {close[0]!r}?" if close else "")
    return f"{owner} is missing the {noun} {_listed(required - given)}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names))


def _named(hint: Any) -> str:
    if hint is NoneType:
        return "None"
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint).replace("typing.", "")
