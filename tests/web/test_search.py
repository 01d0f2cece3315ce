"""The search language, and how values are shown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgqueue.errors import InvalidArgument
from pgqueue.web import charts, search, shown

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", {}),
        ("status:dead queue:email task:send_*", {"status": ["dead"], "queue": "email", "task": "send_*"}),
        ("status:dead,cancelled", {"status": ["dead", "cancelled"]}),
        ("status:dead status:cancelled status:dead", {"status": ["dead", "cancelled"]}),
        ("key:receipt:7", {"key": "receipt:7"}),
        ('error:"no answer" type:TimeoutError', {"error": "no answer", "error_type": "TimeoutError"}),
        ("no answer", {"error": "no answer"}),
        ("tag:vip worker:3 group:dd6b2029", {"tag": "vip", "worker_id": 3, "fingerprint": "dd6b2029"}),
        ("age>1h", {"enqueued_before": "2026-11-18T11:00:00+00:00"}),
        ("ended<30m", {"finished_after": "2026-11-18T11:30:00+00:00"}),
    ],
)
def test_terms_become_a_filter(text: str, where: dict[str, Any]) -> None:
    assert search.parse(text, NOW).where == where


def test_a_number_alone_is_a_job() -> None:
    assert search.parse(" #4711 ", NOW).id == search.parse("4711", NOW).id == 4711
    assert search.parse("queue:a 4711", NOW).id is None


@pytest.mark.parametrize(
    "text",
    [
        "colour:red",
        "status:gone",
        "age>soon",
        "age:1h",
        "worker:x",
        "queue:",
        "tag>1",
        "tag:a tag:b",
        "queue:a queue:b",
        "age>1h age>2h",
        "worker:1 worker:2",
        "a" * 2001,
    ],
)
def test_what_is_not_understood_is_said(text: str) -> None:
    """Nothing of it is passed over: what is left would find more, and all of that could be removed."""
    with pytest.raises(InvalidArgument):
        search.parse(text, NOW)


@given(st.text())
def test_nothing_that_is_typed_breaks_it(text: str) -> None:
    try:
        found = search.parse(text, NOW)
    except InvalidArgument:
        return
    assert found.id is None or 0 <= found.id < 2**63


@given(
    st.sampled_from(["key", "tag", "error"]),
    st.text("ab :<>'\\é", min_size=1).filter(lambda text: text.strip() == text),
)
def test_a_term_finds_the_value_it_was_made_of(name: str, value: str) -> None:
    assert search.parse(search.term(name, value), NOW).where == {name: value}


def test_a_search_that_a_bulk_command_cannot_tell_is_refused() -> None:
    wanted = search.parse("status:dead key:a", NOW)
    with pytest.raises(InvalidArgument, match="key"):
        wanted.to_finish("dead")
    assert search.parse("status:dead ended>1h queue:q", NOW).to_finish("dead").finished_before == NOW - timedelta(
        hours=1
    )


def test_what_its_name_calls_a_secret_is_hidden_at_any_depth_and_put_back() -> None:
    stored = {
        "user": {"password": "x", "name": "Ada"},
        "items": [{"api_key": 1}, {"n": 12345678901234567890}],
        "own": 2,
    }
    seen = shown.redact(stored, ("own",))
    assert seen == {
        "user": {"password": shown.HIDDEN, "name": "Ada"},
        "items": [{"api_key": shown.HIDDEN}, {"n": 12345678901234567890}],
        "own": shown.HIDDEN,
    }  # fmt: skip
    assert shown.restore(seen, stored) == stored
    seen["user"]["name"] = "Bob"
    assert shown.restore(seen, stored)["user"] == {"password": "x", "name": "Bob"}


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (shown.number(0), "0"), (shown.number(4711), "4,711"), (shown.number(12_345_678), "12.3 M"),
        (shown.number(None), "–"),
        (shown.seconds(0.0351), "35.1ms"), (shown.seconds(75), "1m15s"), (shown.seconds(0.00001), "< 1ms"),
        (shown.rate(0.01), "36/h"), (shown.rate(2), "2/s"), (shown.rate(1500), "1.5 k/s"), (shown.size(1536), "1.5 kB"),
        (shown.percent(0.034), "3.4 %"), (shown.percent(0.0001), "< 0.1 %"), (shown.percent(0), "0 %"),
        (shown.plain("a\u202egpj.exe"), "a�gpj.exe"), (shown.command("dead", "a b"), "pgqueue dead 'a b'"),
    ],
)  # fmt: skip
def test_values_are_shown_for_people(made: str, text: str) -> None:
    assert made == text


@given(st.lists(st.none() | st.floats(0, 1e9), min_size=1, max_size=20))
def test_a_chart_draws_whatever_was_measured_within_its_frame(values: list[float | None]) -> None:
    at = [NOW + timedelta(minutes=n) for n in range(len(values))]
    series = [charts.Series("s", "c-done", values)]
    for chart in (charts.lines("t", at, series), charts.lines("t", at, series, log=True), charts.bars("t", at, series)):
        assert "nan" not in chart.svg
        assert "-" not in "".join(part.split('"')[0] for part in chart.svg.split('points="')[1:])


def test_words_in_a_chart_are_escaped() -> None:
    drawn = charts.bars("<b>", [NOW], [charts.Series("<script>", "c-done", [1.0])]).svg
    assert "<script>" not in drawn
    assert "<b>" not in drawn
