"""Defects that somebody could make tomorrow: each must be noticed by a test. See run.py."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str
    tests: str  # that should notice, with a blank between them


def sql(function: str, name: str, old: str, new: str, tests: str) -> Mutant:
    return Mutant(name, f"sql/functions/{function}.sql", old, new, tests)


def python(module: str, name: str, old: str, new: str, tests: str) -> Mutant:
    return Mutant(name, f"pgqueue/{module}.py", old, new, tests)


MODEL = "tests/model/test_queue.py"
LEASES = "tests/race/test_leases.py"
KEYS = "tests/race/test_keys.py"
LIMITS = "tests/sql/test_limits.py tests/race/test_limits.py"
FLOWS = "tests/sql/test_flows.py tests/model/test_flows.py"
PAIRS = "tests/race/test_interleavings.py"
WORKER = "tests/worker/test_worker.py"
FAULTS = "tests/worker/test_faults.py"

MUTANTS = [
    # -- the fence
    sql("complete_claimed", "complete: token not checked",
        "j.id between u.id and u.id and j.token = u.token and j.worker_id + 0 = p_worker_id",
        "j.id between u.id and u.id and j.worker_id + 0 = p_worker_id", f"tests/sql/test_complete.py {MODEL}"),
    sql("complete_claimed", "complete: worker not checked",
        "j.id between u.id and u.id and j.token = u.token and j.worker_id + 0 = p_worker_id",
        "j.id between u.id and u.id and j.token = u.token", f"tests/sql/test_complete.py {MODEL}"),
    sql("lock_claimed", "reports: token not checked",
        "j.token = u.token and j.worker_id + 0 = p_worker_id", "j.worker_id + 0 = p_worker_id",
        f"tests/sql/test_fail.py {MODEL}"),
    sql("lock_claimed", "reports: worker not checked",
        "j.token = u.token and j.worker_id + 0 = p_worker_id", "j.token = u.token", f"tests/sql/test_fail.py {MODEL}"),
    sql("lock_claimed", "reports: rows not locked", "\n    for update of j;", ";", f"{LEASES} {PAIRS}"),
    sql("claim", "claim: token not counted up",
        "attempt = j.attempt + 1, token = j.token + 1,", "attempt = j.attempt + 1,", f"tests/sql/test_claim.py {MODEL}"),
    sql("claim_gated", "claim with limits: token not counted up",
        "attempt = j.attempt + 1, token = j.token + 1,", "attempt = j.attempt + 1,", f"{MODEL}"),
    sql("progress", "progress: token not checked", "j.token = p_token and ", "", "tests/sql/test_steps.py"),
    sql("save_step", "steps: token not checked", "j.token = p_token and ", "", "tests/sql/test_steps.py"),
    sql("log", "log lines: token not checked", "j.token = p_token and ", "", "tests/sql/test_steps.py"),
    sql("complete_claimed", "complete: refusals not told",
        "refused := case when cardinality(v_accepted) = cardinality(p_ids) then '{}'", "refused := case when true then '{}'",
        "tests/sql/test_complete.py"),

    # -- attempts
    sql("claim", "claim: attempt not charged",
        "attempt = j.attempt + 1, token = j.token + 1,", "token = j.token + 1,", "tests/sql/test_claim.py"),
    sql("requeue", "release: attempt not refunded", "    attempt = j.attempt - p_refund::integer,\n", "",
        "tests/sql/test_release.py"),
    sql("requeue", "snooze: crashes not forgotten",
        "crashes = case when p_refund and v_status = 'scheduled' then 0 else j.crashes end,", "crashes = j.crashes,", "tests/sql/test_release.py"),
    sql("requeue", "release: place in the line lost", "else j.rank_at end,", "else v_now end,", "tests/sql/test_release.py"),
    sql("fail", "fail: one attempt too many", "v_job.attempt >= v_limit.attempts", "v_job.attempt > v_limit.attempts",
        "tests/sql/test_fail.py"),
    sql("fail", "fail: fatal errors are retried", "elsif p_fatal[v_i] or v_job", "elsif v_job", "tests/sql/test_fail.py"),
    sql("fail", "fail: retried although it is to be cancelled", "if v_job.cancel_requested_at is not null then",
        "if false then", "tests/sql/test_fail.py tests/sql/test_cancel.py"),
    sql("revive", "retry: a job stands in two places",
        "  delete from pgqueue.job j where j.id = p_job.id and j.status = p_job.status and j.status in ('dead', 'cancelled');\n",
        "", "tests/sql/test_retry.py"),
    sql("release", "release: retried although it is to be cancelled", "if v_job.cancel_requested_at is not null then",
        "if false then", "tests/sql/test_release.py tests/sql/test_cancel.py"),

    # -- leases and sweeps
    sql("sweep", "sweep: too early", "make_interval(secs => s.lease_seconds)", "make_interval(secs => s.lease_seconds / 2)",
        f"tests/sql/test_sweep.py {MODEL}"),
    sql("sweep", "sweep: jobs of workers without a row are forgotten",
        "and not exists (select 1 from pgqueue.worker w where w.id = h.worker_id and w.lost_at is null)",
        "and exists (select 1 from pgqueue.worker w where w.id = h.worker_id and w.lost_at is not null)",
        f"tests/sql/test_sweep.py {LEASES}"),
    sql("sweep", "sweep: crashes not counted", "      update pgqueue.job_live j set crashes = j.crashes + 1 where j.id = v_job.id;\n",
        "", "tests/sql/test_sweep.py"),
    sql("sweep", "sweep: crashes without end", "v_job.attempt >= v_limit.attempts or v_job.crashes + 1 >= v_limit.crashes",
        "v_job.attempt >= v_limit.attempts", "tests/sql/test_sweep.py"),
    sql("sweep", "sweep: a lost attempt costs nothing", "requeue(v_job, v_delay, false, 'WorkerLost'",
        "requeue(v_job, v_delay, true, 'WorkerLost'", "tests/sql/test_sweep.py"),
    sql("sweep", "sweep: what is to be cancelled runs again", "if v_job.cancel_requested_at is not null then",
        "if false then", "tests/sql/test_sweep.py"),
    sql("sweep", "sweep: two at once wait for each other",
        "where m.name = 'sweep' for update skip locked;", "where m.name = 'sweep' for update;",
        "tests/race/test_maintenance.py"),
    sql("sweep", "sweep: only pending jobs expire", "s.expires_at <= v_now and s.status <> 'running'",
        "s.expires_at <= v_now and s.status = 'pending'", f"tests/sql/test_sweep.py {MODEL}"),
    sql("sweep", "sweep: flows are not told", "  perform pgqueue.leave_flows(v_flowed);\n", "", FLOWS),
    sql("sweep", "sweep: slots of lost jobs stay taken", "  perform pgqueue.leave_groups(v_queues, v_groups);\n", "",
        f"{LIMITS} {MODEL}"),
    sql("sweep", "sweep: waits for rows that others hold", "order by j.id limit v_left for update skip locked",
        "order by j.id limit v_left for update", f"{LEASES} tests/race/test_maintenance.py {PAIRS}"),
    sql("heartbeat", "heartbeat: a lost worker lives again", "where w.id = p_worker_id and w.lost_at is null;",
        "where w.id = p_worker_id;", "tests/sql/test_worker.py"),
    sql("heartbeat", "heartbeat: cancellations are not told", "and j.cancel_requested_at is not null)", "and false)",
        "tests/sql/test_worker.py tests/sql/test_cancel.py"),
    sql("claim", "claim: by a lost worker", "w.id = p_worker_id and w.lost_at is null\n", "w.id = p_worker_id\n",
        "tests/sql/test_claim.py tests/sql/test_worker.py"),
    sql("claim", "claim: by a late worker", "and w.heartbeat_at > v_now - make_interval(secs => w.lease_seconds)) then",
        ") then", f"tests/sql/test_claim.py {MODEL}"),
    sql("complete_and_claim", "complete and claim: by a late worker", "if not v_late then return query", "if true then return query",
        "tests/sql/test_complete_and_claim.py"),
    sql("retire_worker", "retire: its jobs are left running",
        "  if v_ids is not null then v_refused := pgqueue.release(p_worker_id, v_ids, v_tokens); end if;\n", "",
        "tests/sql/test_worker.py"),
    sql("release_unknown", "release unknown: known ones, too", " and j.id <> all (coalesce(p_known, '{}'))", "",
        "tests/sql/test_release_unknown.py"),

    # -- claims
    sql("claim", "claim: waits for what others hold", "limit v_room for update skip locked))", "limit v_room for update))",
        "tests/race"),
    sql("claim", "claim: expired jobs start", "s.rank_at <= v_upto and (s.expires_at is null or s.expires_at > v_now)\n",
        "s.rank_at <= v_upto\n", "tests/sql/test_claim.py"),
    sql("claim", "claim: from a paused queue", "    continue when v_paused;\n", "", "tests/sql/test_pause.py"),
    sql("claim", "claim: of a paused task", "where t.paused or t.circuit <> 'closed';", "where t.circuit <> 'closed';",
        "tests/sql/test_tasks.py"),
    sql("claim", "claim: due jobs stay scheduled", "      perform pgqueue.promote(v_queue, greatest(1000, p_limit));\n",
        "      null;\n", "tests/sql/test_promote.py tests/sql/test_claim.py"),
    sql("claim", "claim: priority is worth nothing", "v_deadline := v_heads[i] - v_lanes[i] * v_boost;",
        "v_deadline := v_heads[i];", "tests/sql/test_claim.py"),
    sql("claim", "claim: the last comes first", "order by s.rank_at limit v_room for update", "order by s.rank_at desc limit v_room for update",
        "tests/sql/test_claim.py"),
    sql("claim", "claim: more than asked for", "      v_room := v_room - v_taken;\n", "", "tests/sql/test_claim.py"),
    sql("claim", "claim: answers in any order", "select t.* from taken t order by t.rank_at;\n      end if;",
        "select t.* from taken t order by t.rank_at desc;\n      end if;", "tests/sql/test_claim.py"),
    sql("promote", "promote: too early", "s.run_at <= v_now and", "s.run_at <= v_now + interval '1 day' and",
        "tests/sql/test_promote.py"),
    sql("promote", "promote: also what is not scheduled", "s.status = 'scheduled' and s.run_at <=", "s.status <> 'running' and s.run_at <=",
        f"tests/sql/test_promote.py {MODEL}"),
    sql("promote", "promote: far below the hint", "rank_at = greatest(j.run_at, v_now - interval '500 ms')", "rank_at = j.run_at",
        "tests/sql/test_promote.py"),
    sql("refresh_hints", "hints: too far", "v_lane.hint := greatest(v_lane.hint, least(coalesce(v_head, v_start), v_start - p_margin));",
        "v_lane.hint := v_start + p_margin;", "tests/sql/test_refresh_hints.py"),
    sql("refresh_hints", "hints: late jobs are not looked for",
        "        v_found := pgqueue.rerank(v_lane.queue, v_lane.priority, v_lane.floor, v_lane.hint, c_batch);\n",
        "        v_found := 0;\n", "tests/sql/test_refresh_hints.py tests/race/test_maintenance.py"),

    # -- keys
    sql("complete_claimed", "complete: key not held", "from gone g where g.key_ttl is not null and g.key is not null",
        "from gone g where false", f"tests/sql/test_enqueue.py {MODEL}"),
    sql("finish", "cancel: key not held", "if v_job.key_ttl is not null and v_job.key is not null then", "if false then", MODEL),
    sql("enqueue", "enqueue: a key that was taken meanwhile is not seen",
        "v_is.held_by := pgqueue.held_key(enqueue.queue, enqueue.key, p_fresh => true);", "v_is.held_by := null;", KEYS),
    sql("enqueue", "enqueue: no second look for who has the key",
        "    continue when not found;\n    if enqueue.on_conflict = 'raise' then", "    if enqueue.on_conflict = 'raise' then",
        f"{KEYS} tests/race/test_storm.py {PAIRS}"),
    sql("enqueue", "replace: a running job is changed", "if v_old.status = 'running' then", "if false then",
        f"tests/sql/test_enqueue.py {MODEL}"),
    sql("enqueue", "replace: attempts are not fresh", "        attempt = 0, crashes = 0, retry_delay_seconds = null,",
        "        retry_delay_seconds = null,", f"tests/sql/test_enqueue.py {MODEL}"),
    sql("enqueue", "enqueue: future jobs start at once",
        "v_status := case when enqueue.run_at > v_now then 'scheduled' else 'pending' end;", "v_status := 'pending';",
        "tests/sql/test_enqueue.py"),
    sql("enqueue", "enqueue: not durable for a caller that is not",
        "  if current_setting('synchronous_commit') = 'off' then perform set_config('synchronous_commit', 'on', true); end if;\n",
        "", "tests/sql/test_enqueue.py tests/race/test_traps.py"),
    sql("enqueue_many", "enqueue many: keys are taken in any order",
        "            order by u.key, u.position) u\n      order by u.key\n", "            order by u.key, u.position) u\n      order by u.position\n",
        f"{KEYS} tests/race/test_storm.py"),
    sql("enqueue_many", "enqueue many: ids in another order", "select array_agg(new.id order by u.position), array_agg",
        "select array_agg(new.id order by u.position desc), array_agg", "tests/sql/test_enqueue_many.py"),
    sql("admit", "a full queue takes one more", "+ p_jobs <= v_is.max_depth then", "+ p_jobs <= v_is.max_depth + 1 then", LIMITS),

    # -- limits
    sql("queue_room", "max_running is not looked at", "room := least(room, v_queue.max_running - (", "room := least(room, 1000000 - (", LIMITS),
    sql("queue_room", "max_running: two claims count at once", "g.queue = p_queue for update skip locked;", "g.queue = p_queue;", LIMITS),
    sql("queue_room", "a throttled queue goes on", "if v_gate.not_before > v_now then", "if false then", LIMITS),
    sql("queue_room", "the rate is not looked at", "room := least(room, greatest(v_rate.tokens, 0));", "null;", LIMITS),
    sql("claim", "the rate is not charged", "+ v_taken * make_interval(secs => v_rate)", "+ 0 * make_interval(secs => v_rate)", LIMITS),
    sql("claim_gated", "the rate of a group is not charged", "+ u.starts * make_interval(", "+ 0 * make_interval(", LIMITS),
    sql("group_room", "group_max_running is not looked at", "coalesce(v_queue.group_max_running - s.slots, v_many)", "v_many", LIMITS),
    sql("group_room", "a throttled group goes on", "case when g.not_before > v_now then 0 else t.tokens end", "t.tokens", LIMITS),
    sql("group_room", "a paused group goes on",
        "      g.paused_at is not null and coalesce(g.paused_until > v_now, true)\n    from", "      false\n    from",
        f"tests/sql/test_pause.py {LIMITS}"),
    sql("claim_gated", "the parked are overtaken", "case when g.parked or v_queue.fair and g.waiting > 0 then 0",
        "case when v_queue.fair and g.waiting > 0 then 0", f"{LIMITS} {MODEL}"),
    sql("claim_gated", "a slot is not taken", "holds_slot = j.group_key is not null or v_queue.max_running is not null", "holds_slot = false", LIMITS),
    sql("grant_groups", "a serial group: who was not met yet is overtaken", "and not (v_serial and exists (", "and not (false and exists (",
        f"{LIMITS} {MODEL}"),
    sql("complete_claimed", "complete: the slot is not passed on",
        "  if v_groups is not null then perform pgqueue.leave_groups(v_queues, v_groups, p_ran => true); end if;\n", "", LIMITS),
    sql("cancel", "cancel: the slot is not passed on",
        "      if v_group is not null and not v_waits then perform pgqueue.leave_groups(array[v_queue], array[v_group]); end if;\n",
        "", f"{LIMITS} tests/sql/test_cancel.py {MODEL}"),
    sql("leave_groups", "slots: passed on without a lock", "lock_groups(v_queue, v_groups, true)", "lock_groups(v_queue, v_groups, false)",
        "tests/race/test_limits.py"),
    sql("requeue", "a retry does not hold its group", "q.group_max_running is not null and q.group_on_retry = 'hold'", "false", LIMITS),
    sql("resume_task", "resume task: its jobs stay parked",
        "  if v_circuit = 'closed' then perform pgqueue.release_task(resume_task.task, 20000); end if;\n", "", "tests/sql/test_tasks.py"),
    sql("resume_group", "resume group: its jobs stay parked",
        "  perform pgqueue.grant_groups(resume_group.queue, array[resume_group.group_key]);\n", "",
        f"tests/sql/test_pause.py {LIMITS}"),

    # -- operators
    sql("cancel", "cancel: a running job is taken away", "if v_status = 'running' then", "if false then", "tests/sql/test_cancel.py"),
    sql("purge", "purge: what is being retried goes, too", "and j.status = purge.status order by j.id for update skip locked);",
        "order by j.id);", "tests/race/test_operators.py"),
    sql("retry_many", "retry many: waits for what others hold", "    order by j.id for update skip locked\n", "    order by j.id for update\n",
        "tests/race/test_operators.py"),

    # -- flows
    sql("advance_flows", "flows: released before the last parent", "where c.open_parents = 0 and c.outcome is null;",
        "where c.outcome is null;", FLOWS),
    sql("advance_flows", "flows: released twice", "where c.job_id between t.child_id and t.child_id and c.open_parents > 0\n",
        "where c.job_id between t.child_id and t.child_id\n", FLOWS),
    sql("advance_flows", "flows: they never end", "c.n = f.total then clock_timestamp() end", "c.n > f.total then clock_timestamp() end", FLOWS),
    sql("stop_children", "flows: a death stops nothing", "e.parent_id = u.id and e.on_death = 'stop'",
        "e.parent_id = u.id and e.on_death = 'never'", FLOWS),
    sql("release_children", "flows: cancelled ones are released", "filter (where f.cancelled_at is null and not b.too_big)",
        "filter (where not b.too_big)", FLOWS),
    sql("cancel", "flows: told of no cancellation", "      if v_flow is not null then perform pgqueue.leave_flows(array[cancel.id]); end if;\n", "", FLOWS),

    # -- recurring jobs
    sql("tick", "tick: of another version", "r.name = p_name and r.version = p_version and r.active", "r.name = p_name and r.active",
        "tests/sql/test_tick.py"),
    sql("tick", "tick: while it is paused",
        "  if v_row.paused_at is not null and coalesce(v_row.paused_until > v_now, true) then return; end if;\n", "", "tests/sql/test_tick.py"),
    sql("tick", "tick: before it is due", "v_last > v_now or v_last > v_row.ends_at", "v_last > v_row.ends_at", "tests/sql/test_tick.py"),
    sql("tick", "tick: more than catch_up_max", "else v_n - v_row.catch_up_max + 1 end;", "else 1 end;", "tests/sql/test_tick.py"),
    sql("fire_recurring", "tick: twice for one time", "  if not found then return null; end if;\n", "", "tests/sql/test_tick.py"),
    sql("fire_recurring", "tick: overlap is not looked at", "elsif not v_live or p_row.overlap = 'replace' then", "else", "tests/sql/test_tick.py"),

    # -- the worker
    python("worker", "worker: starts jobs when its lease is over",
           "        if self._draining or self._lease_is_over():\n            return  # the watch hands them back",
           "        if self._draining:\n            return  # the watch hands them back", FAULTS),
    python("worker", "worker: claims while it drains", "        if self._draining or self._lease_is_over():\n            return 0",
           "        if self._lease_is_over():\n            return 0", f"{WORKER} {FAULTS}"),
    python("worker", "worker: results are lost with a connection",
           "            self._done = done + self._done  # by the fence it does no harm to say it twice\n", "", FAULTS),
    python("worker", "worker: reports are lost with a connection",
           "            self._endings += [each for group in by_kind.values() for each in group]\n            raise\n        except BaseException:",
           "            raise\n        except BaseException:", FAULTS),
    python("worker", "worker: says good-bye before its last results", "            calls.append(database.complete(self.worker_id, [(id, token) for id, token, _ in done], _results(done)))\n",
           "            pass\n", f"{WORKER} {FAULTS}"),
    python("worker", "worker: claims whose answer was lost are never given back", "                self._doubt = True\n                continue",
           "                continue", FAULTS),
    python("worker", "worker: does not hear that it was lost",
           "            if self._beat.lost and not self._draining:", "            if False and not self._draining:", FAULTS),
    python("transactions", "transactional task: commits although the lease is gone", "    if refused:\n        for attempt, _ in good:",
           "    if False and refused:\n        for attempt, _ in good:", f"{WORKER} {FAULTS}"),
    python("attempt", "worker: a fatal error is retried", "        or isinstance(error, Fatal)\n", "", WORKER),
    python("attempt", "worker: at most once runs again", "task.execution.at_most_once and claimed.attempt > 1", "False and claimed.attempt > 1",
           f"{WORKER} {FAULTS}"),
    python("attempt", "worker: an interrupted job is a failed one", "            if not rules.at_most_once or not attempt.begun:\n                return Ending(\"released\")\n",
           "", f"{WORKER} {FAULTS}"),
    python("beat", "heartbeat: for a worker that was stopped", "        if not told or _stopped(told[\"parent\"]):", "        if not told:",
           f"{FAULTS} tests/worker/test_processes.py"),
    python("beat", "heartbeat: a refused beat counts", "sent_at if alive else 0.0, not alive)", "sent_at, False)",
           f"{FAULTS} tests/worker/test_processes.py"),
    python("payload", "payloads: NUL is let through", "    if \"\\0\" in text:\n        raise PayloadError(", "    if False:\n        raise PayloadError(",
           "tests/unit/test_payload.py"),
]  # fmt: skip
