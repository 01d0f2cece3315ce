-- claim: hands up to p_limit pending jobs to a worker, from the given queues in the given order.
--
-- Within a lane (one priority of a queue) jobs go by rank_at; between lanes by the virtual deadline
-- rank_at − priority × boost. So a waiting job gains on later ones, nobody starves, and no row is rewritten for
-- it. Lanes closer together than a twentieth of the boost are taken in runs, not one job at a time: where two
-- lanes interleave, strict order would cost a statement a job.
--
-- Two things here are not a matter of taste:
--   ctid = any (array (select … for update skip locked)), never id in (select … limit n …): with ordinary stale
--     statistics the planner runs the latter once for each outer row; asked for 5 it claimed 4,001.
--   priority and hint are variables of the function: joined in, the planner sorts the whole backlog at every
--     claim (92,000 jobs/s became 18,000 with 200,000 pending).
-- The settings leave the planner one index to use, whatever the statistics say.
--
-- A queue with limits asks queue_room() first, and takes by claim_gated(); so does one that has a paused task or an open
-- circuit. All others pay nothing for that. If jobs wait that
-- the limits let nobody start now, one row without an id says when to ask again: queue, rank_at (then) and enqueued_at (now).
--
-- Moves pending → running (attempt + 1, token + 1), and due scheduled → pending; in a queue with limits as claim_gated. Rows
-- come back in the order in which they should run (an update by itself returns them as they lie in the table). max_attempts
-- and timeout_seconds are those in force: of the job, else of the queue, else the default.
-- Locks the rows that it takes, skipping those that others hold; with limits the queue's gate and groups, see there. Raises
-- PQ005 if the worker is unknown or lost.
-- Called by workers, alone or through complete_and_claim. Needs READ COMMITTED.
create or replace function pgqueue.claim(p_worker_id bigint, p_queues text[], p_limit integer)
returns table (id bigint, token integer, queue text, task text, payload jsonb, attempt smallint, max_attempts smallint,
               timeout_seconds integer, priority smallint, crashes smallint, rank_at timestamptz, enqueued_at timestamptz, meta jsonb,
               group_key text)
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
#variable_conflict use_column
declare
  v_now      timestamptz := clock_timestamp();
  v_left     integer := least(coalesce(p_limit, 0), 10000);
  v_taken    integer;
  v_lane     integer;
  v_lanes    smallint[];
  v_heads    timestamptz[];
  v_head     timestamptz;
  v_deadline timestamptz;
  v_best     timestamptz;
  v_next     timestamptz;
  v_upto     timestamptz;
  v_priority smallint;
  v_queue    text;
  v_low      smallint;
  v_high     smallint;
  v_hint     timestamptz;
  v_due_hint timestamptz;
  v_wake     regclass;
  v_paused   boolean;
  v_boost    interval;
  v_gated    boolean;
  v_went     regclass;
  v_rate     double precision;  -- seconds a start, of the queue's own rate
  v_room     integer;  -- how many of this queue may still be taken
  v_ask_at   timestamptz;
  v_held     text[];   -- tasks that are paused, or whose circuit is open
  v_probes   bigint[];
  v_attempts smallint;
  v_timeout  integer;
  v_ms       bigint := extract(epoch from v_now) * 1000;
begin
  if not exists (select 1 from pgqueue.worker w where w.id = p_worker_id and w.lost_at is null
                 and w.heartbeat_at > v_now - make_interval(secs => w.lease_seconds)) then
    raise exception using errcode = 'PQ005', message = format('worker %s is not registered or was declared lost', p_worker_id),
      hint = 'Its jobs go to others; register again to go on.';
  end if;

  select array_agg(t.task), coalesce(array_agg(t.circuit_probe) filter (where t.circuit_probe is not null and not t.paused), '{}')
    into v_held, v_probes
    from (select t.task, t.circuit, t.circuit_probe, t.paused_at is not null and coalesce(t.paused_until > v_now, true) as paused
          from pgqueue.task t where t.paused_at is not null or t.circuit <> 'closed') t
    where t.paused or t.circuit <> 'closed';

  foreach v_queue in array coalesce(p_queues, '{}') loop
    exit when v_left <= 0;
    select q.wake, q.paused_at is not null and coalesce(q.paused_until > v_now, true),
           make_interval(secs => coalesce(q.boost_seconds, s.boost_seconds)),
           coalesce(q.max_attempts, s.max_attempts), coalesce(q.timeout_seconds, s.timeout_seconds),
           q.gated, q.went, q.rate_seconds::double precision / q.rate
      into v_wake, v_paused, v_boost, v_attempts, v_timeout, v_gated, v_went, v_rate
      from pgqueue.setting s left join pgqueue.queue q on q.queue = v_queue;
    continue when v_paused;
    v_room := v_left;
    v_ask_at := null;
    if v_gated then select r.room, r.ask_at into v_room, v_ask_at from pgqueue.queue_room(v_queue, v_left) r; end if;

    select min(l.priority), max(l.priority), max(l.hint) filter (where l.priority is not null),
           coalesce(max(l.hint) filter (where l.priority is null), '-infinity')
      into v_low, v_high, v_hint, v_due_hint
      from pgqueue.lane l where l.queue = v_queue;
    continue when v_low is null;
    if v_room <= 0 then
      if exists (select 1 from pgqueue.job_live j where j.queue = v_queue and j.status = 'pending') then
        queue := v_queue; rank_at := v_ask_at; enqueued_at := clock_timestamp();
        return next;
        queue := null; rank_at := null; enqueued_at := null;
      end if;
      -- Notifications would only wake us to be told the same.
      if v_wake is not null and coalesce(pg_sequence_last_value(v_wake), 0) < v_ms + 500 then perform setval(v_wake, v_ms + 1000); end if;
      continue;
    end if;

    if exists (select 1 from pgqueue.job_live j where j.queue = v_queue and j.status = 'scheduled'
               and j.run_at <= v_now and j.run_at >= v_due_hint) then
      perform pgqueue.promote(v_queue, greatest(1000, p_limit));
    end if;

    if v_low = v_high then
      v_lanes := array[v_low];
      v_heads := array[v_hint];
    else
      select array_agg(h.priority), array_agg(h.rank_at) into v_lanes, v_heads from (
        select l.priority, (select s.rank_at from pgqueue.job_live s
                            where s.queue = v_queue and s.priority = l.priority and s.status = 'pending'
                              and s.rank_at >= l.hint and (s.expires_at is null or s.expires_at > v_now)
                            order by s.rank_at limit 1) as rank_at
        from (select l.priority, max(l.hint) as hint from pgqueue.lane l
              where l.queue = v_queue and l.priority is not null group by l.priority) l) h;
    end if;

    -- A merge: from the lane with the earliest deadline up to that of the next lane, then look again. What others hold
    -- is passed over, so a locked head never hides the jobs behind it.
    loop
      v_lane := null; v_best := null; v_next := null;
      for i in 1 .. cardinality(v_lanes) loop
        continue when v_heads[i] is null;
        v_deadline := v_heads[i] - v_lanes[i] * v_boost;
        if v_lane is null or v_deadline < v_best then
          v_next := v_best; v_best := v_deadline; v_lane := i;
        elsif v_next is null or v_deadline < v_next then
          v_next := v_deadline;
        end if;
      end loop;
      exit when v_lane is null;
      v_priority := v_lanes[v_lane];
      v_head := v_heads[v_lane];
      v_upto := coalesce(v_next + v_priority * v_boost + v_boost / 20, 'infinity');

      -- Jobs of held tasks are parked when they are met, so mostly there is none.
      if v_gated or v_held is not null and exists (
        select 1 from (select s.task from pgqueue.job_live s
                       where s.queue = v_queue and s.priority = v_priority and s.status = 'pending' and s.rank_at >= v_head and s.rank_at <= v_upto
                       order by s.rank_at limit v_room) s where s.task = any (v_held)) then
        return query select * from pgqueue.claim_gated(
          p_worker_id, v_queue, v_priority, v_head, v_upto, v_room, v_held, v_probes, v_attempts, v_timeout);
      else
        return query
        with taken as (
          update pgqueue.job_live j
          set status = 'running', started_at = v_now, worker_id = p_worker_id, attempt = j.attempt + 1, token = j.token + 1,
              holds_slot = j.group_key is not null
          where j.ctid = any (array(
            select s.ctid from pgqueue.job_live s
            where s.queue = v_queue and s.priority = v_priority and s.status = 'pending'
              and s.rank_at >= v_head and s.rank_at <= v_upto and (s.expires_at is null or s.expires_at > v_now)
              and (v_held is null or s.task <> all (v_held))
            order by s.rank_at limit v_room for update skip locked))
          returning j.id, j.token, j.queue, j.task, j.payload, j.attempt, coalesce(j.max_attempts, v_attempts) as max_attempts,
                    coalesce(j.timeout_seconds, v_timeout) as timeout_seconds, j.priority, j.crashes, j.rank_at, j.enqueued_at, j.meta,
                    j.group_key)
        select t.* from taken t order by t.rank_at;
      end if;
      get diagnostics v_taken = row_count;
      v_left := v_left - v_taken;
      v_room := v_room - v_taken;
      if v_rate is not null and v_taken > 0 then
        update pgqueue.queue_gate g set full_at = greatest(g.full_at, clock_timestamp()) + v_taken * make_interval(secs => v_rate) where g.queue = v_queue;
      end if;
      if v_went is not null then perform count(nextval(v_went)) from generate_series(1, v_taken); end if;
      exit when v_room <= 0;

      v_heads[v_lane] := null;
      if v_upto < 'infinity' then
        select s.rank_at into v_head from pgqueue.job_live s
          where s.queue = v_queue and s.priority = v_priority and s.status = 'pending' and s.rank_at > v_upto
            and (s.expires_at is null or s.expires_at > v_now)
          order by s.rank_at limit 1;
        if found then v_heads[v_lane] := v_head; end if;
      end if;
    end loop;

    -- What enqueue() should know: somebody is about to be idle, or there is more than we can take. See wake.
    if v_wake is not null then
      if v_room > 0 then
        if pg_sequence_last_value(v_wake) > 1 then perform setval(v_wake, 1); end if;
      elsif coalesce(pg_sequence_last_value(v_wake), 0) < v_ms + 500
            and exists (select 1 from pgqueue.job_live j where j.queue = v_queue and j.priority = v_priority
                        and j.status = 'pending' and j.rank_at >= v_head) then
        perform setval(v_wake, v_ms + 1000);
      end if;
    end if;
  end loop;
end
$$;
comment on function pgqueue.claim is 'Hands pending jobs to a worker: pending → running.';
