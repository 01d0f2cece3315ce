"""One staged situation for each reason that is a limit, a pause or a circuit; and the command that changes it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgqueue import database as db
from tests.deploy.commands import wrong_with
from tests.sql.test_limits import grouped, set_queue
from tests.sql.test_why import about, fail, serve
from tests.support import Conn, claim, claim_one, enqueue, job, make_due, value


def why(conn: Conn, id: int) -> list[dict[str, Any]]:
    found = db.execute(conn, db.why(id))
    for each in found:
        for command in (each["remedy"] or "").split("&&"):
            if command.strip().startswith("pgqueue "):
                assert wrong_with(command.split("#")[0].split()) is None
    return found


def reasons(conn: Conn, id: int) -> list[str]:
    return [each["reason"] for each in why(conn, id)]


def first(conn: Conn, id: int) -> tuple[str, str, str]:
    found = why(conn, id)[0]
    return found["reason"], found["explanation"], found["remedy"]


# --------------------------------------------------------------------------------------------- its group


def test_its_group_is_full_and_by_whom_and_how_many_come_before_it(conn: Conn) -> None:
    set_queue(conn, group_max_running=1)
    made = grouped(conn, "aaa")
    w = serve(conn)
    claim(conn, w, 5)
    conn.execute("update pgqueue.job_live set started_at = now() - interval '3 min' where id = %s", [made[0]])
    assert first(conn, made[1]) == (
        "group_full",
        f"group a of queue q may run 1 job at a time: job {made[0]} has run for 3 min;"
        " of those of the group that wait it is the next",
        "pgqueue queues set q group_max_running=2",
    )
    assert first(conn, made[2])[1].endswith("1 other of the group comes before it")
    assert reasons(conn, made[2]) == ["group_full"]


def test_its_group_is_full_although_no_claim_has_met_it_yet(conn: Conn) -> None:
    set_queue(conn, group_max_running=1)
    (running,) = grouped(conn, "a")
    claim_one(conn, serve(conn))
    late = enqueue(conn, group="a")
    assert job(conn, late)["status"] == "pending"
    assert first(conn, late)[0] == "group_full"
    assert f"job {running} has run" in first(conn, late)[1]


def test_the_next_in_line_of_its_group_has_the_slot(conn: Conn) -> None:
    set_queue(conn, group_max_running=1)
    made = grouped(conn, "aaa")
    w = serve(conn)
    held = claim_one(conn, w)
    claim(conn, w, 5)
    db.execute(conn, db.complete(w, [(held.id, held.token)]))
    assert f"job {made[1]} is next in line" in first(conn, made[2])[1]
    assert reasons(conn, made[1]) == ["waiting"], "it has its slot: nothing of its group is in its way"


def test_of_many_that_hold_slots_the_longest_running_are_named(conn: Conn) -> None:
    set_queue(conn, group_max_running=5)
    made = grouped(conn, "aaaaaa")
    claim(conn, serve(conn), 6)
    said = first(conn, made[5])[1]
    assert [f"job {id} " in said for id in made[:5]] == [True, True, True, False, False]
    assert "may run 5 jobs at a time" in said
    assert "and 2 more" in said


def test_a_place_in_line_is_not_counted_for_ever(conn: Conn) -> None:
    set_queue(conn, group_max_running=1)
    db.execute(conn, db.enqueue_many("q", "t", [{}] * 10_005, group="a"))
    claim_one(conn, serve(conn))
    last = value(conn, "select max(id) from pgqueue.job_live")
    assert first(conn, last)[1].endswith("more than 10,000 others of the group come before it")


def test_a_retry_holds_the_slot_of_its_serial_group(conn: Conn) -> None:
    set_queue(conn, group_max_running=1)
    made = grouped(conn, "aa")
    w = serve(conn)
    fail(conn, w, claim_one(conn, w), retry_in=600)
    claim(conn, w, 5)
    told = first(conn, made[1])
    assert told[0] == "group_retry"
    assert f"job {made[0]} of its group a runs again in 10 min and holds the slot meanwhile" in told[1]
    assert "(TimeoutError: no answer)" in told[1]
    assert told[2].startswith(f"pgqueue jobs cancel {made[0]} ")
    assert reasons(conn, made[1]) == ["group_retry"]
    assert reasons(conn, made[0])[0] == "retry"
    db.execute(conn, db.cancel(made[0]))
    assert reasons(conn, made[1]) == ["waiting"]


def test_it_is_not_the_turn_of_its_group(conn: Conn) -> None:
    set_queue(conn, fair=True)
    made = grouped(conn, "aaaa")
    w = serve(conn)
    claim(conn, w, 1)
    told = first(conn, made[3])
    assert told[:1] == ("group_turn",)
    assert f"job {made[1]} has the next turn of group a; 1 other of the group comes before it" in told[1]
    assert told[2] == "pgqueue queues set q fair=false"


def test_its_group_is_paused(conn: Conn) -> None:
    (id,) = grouped(conn, "a")
    w = serve(conn)
    db.execute(conn, db.pause_group("q", "a", reason="unpaid"))
    assert reasons(conn, id) == ["group_paused", "waiting"]
    assert claim(conn, w) == []
    assert reasons(conn, id) == ["group_paused"]
    told = first(conn, id)
    assert told[1].endswith("(unpaid)")
    assert told[2] == "pgqueue queues resume q --group a"


def test_a_group_with_a_strange_name_is_one_word_of_the_command(conn: Conn) -> None:
    id = enqueue(conn, group="O'Hara & sons")
    db.execute(conn, db.pause_group("q", "O'Hara & sons"))
    (told, *_) = db.execute(conn, db.why(id))
    assert told["remedy"] == r"pgqueue queues resume q --group 'O'\''Hara & sons'"


def test_the_rate_of_its_group(conn: Conn) -> None:
    set_queue(conn, group_rate=1, group_rate_seconds=3600)
    made = grouped(conn, "aaa")
    w = serve(conn)
    claim(conn, w, 5)
    assert job(conn, made[1])["status"] == "scheduled"
    told = first(conn, made[1])
    assert told[0] == "group_rate"
    assert "group a of queue q may start 1 job in 1 h: this one in " in told[1]
    assert told[2] == "pgqueue queues set q group_rate=2/3600s"
    assert reasons(conn, made[1]) == ["group_rate"]
    assert first(conn, made[2])[0] == "group_rate"
    assert "the next in " in first(conn, made[2])[1]


def test_a_handler_of_its_group_was_rate_limited(conn: Conn) -> None:
    made = grouped(conn, "aab")
    w = serve(conn)
    held = claim_one(conn, w)
    db.execute(conn, db.throttle(w, [(held.id, held.token)], [600]))
    assert reasons(conn, made[1]) == ["group_throttled", "waiting"]
    claim(conn, w, 5)
    told = first(conn, made[1])
    assert (told[0], reasons(conn, made[1])) == ("group_throttled", ["group_throttled"])
    assert "nothing of group a of queue q starts in the next " in told[1]
    assert reasons(conn, made[0]) == ["snoozed", "group_throttled"]
    assert told[2] == "pgqueue queues resume q --group a"
    assert db.execute(conn, db.resume_group("q", "a")) is True
    assert [each.id for each in claim(conn, w, 5)] == [made[1]], "what it says helps"


def test_its_group_has_room_again_and_nobody_has_looked(conn: Conn) -> None:
    set_queue(conn, group_max_running=1)
    made = grouped(conn, "aa")
    w = serve(conn)
    claim(conn, w, 5)
    conn.execute("delete from pgqueue.job_live where id = %s", [made[0]])  # as if its end had passed unseen
    assert first(conn, made[1])[0] == "free_again"
    assert first(conn, made[1])[2] == "pgqueue sweep"
    db.execute(conn, db.sweep())
    assert reasons(conn, made[1]) == ["waiting"]


# --------------------------------------------------------------------------------------------- its queue


def test_its_queue_is_full_and_by_whom_the_longest_running_first(conn: Conn) -> None:
    set_queue(conn, max_running=2)
    made = [enqueue(conn) for _ in range(3)]
    claim(conn, serve(conn), 3)
    conn.execute("update pgqueue.job_live set started_at = now() - interval '2 h' where id = %s", [made[1]])
    told = first(conn, made[2])
    assert told[0] == "queue_full"
    assert told[1].startswith(
        f"queue q may run 2 jobs at a time: job {made[1]} (t) has run for 2 h, job {made[0]} (t) has run for "
    )
    assert told[2] == "pgqueue queues set q max_running=3"


def test_the_rate_of_its_queue(conn: Conn) -> None:
    set_queue(conn, rate=100, rate_seconds=60, rate_burst=1)
    enqueue(conn)
    id = enqueue(conn)
    claim(conn, serve(conn), 2)
    conn.execute("update pgqueue.queue_gate set full_at = now() + interval '30 s'")
    told = first(conn, id)
    assert told[0] == "queue_rate"
    assert "queue q may start 100 jobs in 1 min: the next in " in told[1]
    assert told[2] == "pgqueue queues set q rate=200/60s"


def test_a_handler_of_its_queue_was_rate_limited(conn: Conn) -> None:
    enqueue(conn)
    id = enqueue(conn)
    w = serve(conn)
    held = claim_one(conn, w)
    db.execute(conn, db.throttle(w, [(held.id, held.token)], [600]))
    told = first(conn, id)
    assert told[0] == "throttled"
    assert told[1].startswith("a handler was rate limited: nothing of queue q starts in the next ")
    assert told[2] == "pgqueue queues resume q"
    assert db.execute(conn, db.resume("q")) is True
    assert db.execute(conn, db.resume("q")) is False
    assert reasons(conn, id) == ["waiting"]
    assert [each.id for each in claim(conn, w)] == [id], "what it says helps"
    assert value(conn, "select gated from pgqueue.queue") is False


def test_its_queue_was_full_when_it_was_enqueued(conn: Conn) -> None:
    set_queue(conn, max_depth=1, shed_below=0)
    enqueue(conn)
    shed = enqueue(conn, priority=-1)
    told = first(conn, shed)
    assert (told[0], reasons(conn, shed)) == ("shed", ["shed"])
    assert "queue 'q' was full, and priority -1 is below 0" in told[1]
    assert told[2].startswith(f"pgqueue jobs retry {shed} ")
    assert "max_depth=2" in told[2]
    set_queue(conn, max_depth=None, shed_below=None)
    assert first(conn, shed)[2] == f"pgqueue jobs retry {shed}"


# ---------------------------------------------------------------------------------------------- its task


def test_its_task_is_paused(conn: Conn) -> None:
    id = enqueue(conn)
    db.execute(conn, db.pause_task("t", until=datetime.now(UTC) + timedelta(hours=1), reason="wrong prices"))
    w = serve(conn)
    assert reasons(conn, id) == ["task_paused", "waiting"]
    assert claim(conn, w) == []
    told = first(conn, id)
    assert (told[0], reasons(conn, id)) == ("task_paused", ["task_paused"])
    assert "(wrong prices), until " in told[1]
    assert told[2] == "pgqueue tasks resume t"


def opened(conn: Conn) -> int:
    db.execute(conn, db.set_task("t", {"breaker_min": 1}))
    w = serve(conn)
    enqueue(conn)
    fail(conn, w, claim_one(conn, w), retry_in=9999)
    return w


def test_the_circuit_of_its_task_is_open(conn: Conn) -> None:
    w = opened(conn)
    id = enqueue(conn)
    claim(conn, w)
    told = first(conn, id)
    assert (told[0], reasons(conn, id)) == ("circuit_open", ["circuit_open"])
    assert "(1 of 1 attempts within 60 s failed); in 30 s one job is let through as a probe" in told[1]
    assert told[2] == "pgqueue tasks close t"
    db.execute(conn, db.force_circuit("t", "open", "provider is down"))
    assert "(provider is down); it stays so until somebody closes it" in first(conn, id)[1]


def test_the_circuit_of_its_task_is_half_open(conn: Conn) -> None:
    w = opened(conn)
    probe, id = enqueue(conn), enqueue(conn)
    assert claim(conn, w, 5) == []
    conn.execute("update pgqueue.task set circuit_probe_at = now()")
    assert "the next sweep lets one job through" in first(conn, id)[1]
    db.execute(conn, db.sweep_limits())
    told = first(conn, id)
    assert (told[0], reasons(conn, id)) == ("circuit_half_open", ["circuit_half_open"])
    assert f"what becomes of its probe, job {probe} (pending), decides" in told[1]
    assert reasons(conn, probe) == ["waiting"]
    conn.execute("update pgqueue.task set circuit_probe = null, circuit_probe_at = null")
    assert "its probe, which the next sweep chooses, decides" in first(conn, id)[1]


def test_its_task_goes_on_again_and_nobody_has_looked(conn: Conn) -> None:
    id = enqueue(conn)
    db.execute(conn, db.pause_task("t", until=datetime.now(UTC) + timedelta(hours=1)))
    assert claim(conn, serve(conn)) == []
    conn.execute("update pgqueue.task set paused_until = now()")
    assert first(conn, id)[0] == "free_again"
    db.execute(conn, db.sweep())
    assert reasons(conn, id) == ["waiting"]


# ------------------------------------------------------------------------------------------------ queues


def told_of(conn: Conn) -> str:
    return "\n".join(each["explanation"] for each in db.execute(conn, db.why_queue("q")))


def test_a_queue_names_its_groups_and_how_much_they_hold_back(conn: Conn) -> None:
    set_queue(conn, group_max_running=1)
    made = grouped(conn, "aaabb")
    w = serve(conn)
    claim(conn, w, 9)
    db.execute(conn, db.pause_group("q", "b"))
    assert about(conn) == ["group_full", "group_paused", "group_full", "backlog"]
    assert "group a of queue q may run 1 job at a time" in told_of(conn)
    assert "come" not in told_of(conn), "a queue has no place in its own line"
    assert "nothing could start now; 3 held back by their groups" in told_of(conn)
    assert made


def test_a_queue_names_its_tasks_that_are_held_and_how_much_they_hold_back(conn: Conn) -> None:
    w = opened(conn)
    enqueue(conn)
    enqueue(conn, task="u")
    db.execute(conn, db.pause_task("u"))
    claim(conn, w, 9)
    assert about(conn) == ["circuit_open", "task_paused", "backlog"]
    assert "2 held back by their tasks" in told_of(conn)


@pytest.mark.parametrize(
    ("settings", "expected"), [({"max_running": 1}, "queue_full"), ({"rate": 1, "rate_seconds": 3600}, "queue_rate")]
)
def test_a_queue_names_its_own_limits(conn: Conn, settings: dict[str, int], expected: str) -> None:
    set_queue(conn, **settings)
    for _ in range(2):
        enqueue(conn)
    claim(conn, serve(conn), 2)
    assert about(conn) == [expected, "backlog"]


def test_a_queue_names_its_throttle_and_a_retry_that_holds_a_group(conn: Conn) -> None:
    set_queue(conn, group_max_running=1)
    made = grouped(conn, "aa")
    w = serve(conn)
    fail(conn, w, claim_one(conn, w), retry_in=600)
    claim(conn, w, 5)
    enqueue(conn)
    held = claim_one(conn, w)
    db.execute(conn, db.throttle(w, [(held.id, held.token)], [600]))
    assert about(conn) == ["throttled", "group_retry", "backlog"]
    make_due(conn, made[0])
