-- claim_gated: as the heart of claim, for one run of one lane, where limits have to be looked at: groups, paused tasks,
-- open circuits. Jobs that may not start now are parked (blocked), so that every claim meets them once.
--
-- A job that holds its group's slot (it is the next in line) starts. Another one starts if its group has a slot, or its
-- turn, to give, and nobody is parked before it. All of that is decided under the group's lock, and the slot is held
-- from the same commit on: exact under any race. A group that somebody else has locked is left to the next claim; and while
-- another claim holds a job that comes before it, a job of a serial group is left alone too.
--
-- Where groups only take turns, nothing must be exact: a group of which nobody is parked or in line, and that stands only once
-- among what was found, needs no lock. That, and not asking twice, is what fair queues of many groups owe their speed to
-- (bench/limits.py).
--
-- Moves pending → running; pending → blocked; pending → scheduled, when a group's rate says later.
-- Locks the rows that it takes and their groups, skipping those that others hold. Raises nothing.
-- Called by claim; not for users.
create or replace function pgqueue.claim_gated(
  p_worker_id bigint, p_queue text, p_priority smallint, p_from timestamptz, p_upto timestamptz, p_limit integer,
  p_held text[], p_probes bigint[], p_attempts smallint, p_timeout integer)
returns table (id bigint, token integer, queue text, task text, payload jsonb, attempt smallint, max_attempts smallint,
               timeout_seconds integer, priority smallint, crashes smallint, rank_at timestamptz, enqueued_at timestamptz, meta jsonb,
               group_key text)
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
#variable_conflict use_column
declare
  c_scan   constant integer := 5000;  -- jobs that one call looks at, most of which it may have to park
  v_queue  pgqueue.queue%rowtype;
  v_now    timestamptz;
  v_from   timestamptz := p_from;
  v_left   integer := p_limit;
  v_seen   integer := 0;
  v_look   integer := least(p_limit, 1000);  -- how far
  v_passed bigint[] := '{}';  -- left alone; still pending, so the next look must go past them
  v_ids    bigint[];
  v_ranks  timestamptz[];
  v_groups text[];
  v_slots  boolean[];
  v_tasks  text[];
  v_locked text[] := '{}';
  v_some   text[];
  v_exact  boolean;
  v_care   boolean;  -- somebody may have to wait: decide one by one
  v_run    bigint[];
  v_park   bigint[];
  v_later  bigint[];
  v_whens  timestamptz[];
  v_kinds  text[];
  v_turns  text[];
  v_free   text[] := '{}';
begin
  select q.* into v_queue from pgqueue.queue q where q.queue = p_queue;
  -- Turns need a look at those who stand behind: taken one by one, a group of many would never be seen to be one.
  if v_queue.fair then v_look := greatest(v_look, 20); end if;
  v_exact := v_queue.group_max_running is not null or v_queue.group_rate is not null or v_queue.grouped and exists (
    select 1 from pgqueue.queue_group g where g.queue = p_queue and (g.paused_at is not null or g.not_before > '-infinity'));
  loop
    select array_agg(s.id), array_agg(s.rank_at), array_agg(s.group_key), array_agg(s.holds_slot and s.group_key is not null), array_agg(s.task)
      into v_ids, v_ranks, v_groups, v_slots, v_tasks
      from (select j.id, j.rank_at, j.group_key, j.holds_slot, j.task from pgqueue.job_live j
            where j.queue = p_queue and j.priority = p_priority and j.status = 'pending'
              and j.rank_at >= v_from and j.rank_at <= p_upto and (j.expires_at is null or j.expires_at > clock_timestamp())
              and j.id <> all (v_passed)
            order by j.rank_at limit v_look for update skip locked) s;
    exit when v_ids is null;
    v_seen := v_seen + cardinality(v_ids);
    v_care := coalesce(v_tasks && p_held, false);
    if v_queue.grouped then
      v_some := array(select distinct u.g from unnest(v_groups) u (g) where u.g is not null);
      if not v_exact then
        v_free := array(select f.g from (select u.g, count(*) as times, bool_or(u.h) as holds from unnest(v_groups, v_slots) u (g, h)
                                         where u.g is not null group by u.g) f
          where f.times = 1 and not f.holds
            and not exists (select 1 from pgqueue.job_live j where j.queue = p_queue and j.group_key = f.g and j.holds_slot
                            and j.status in ('pending', 'scheduled'))
            and not exists (select 1 from pgqueue.job_live j where j.queue = p_queue and j.group_key = f.g and j.waits_for = 'group'));
        v_care := v_care or cardinality(v_free) < cardinality(v_some);
        v_some := array(select u.g from unnest(v_some) u (g) where u.g <> all (v_free));
      end if;
      v_some := array(select u.g from unnest(v_some) u (g) where u.g <> all (v_locked));
      if cardinality(v_some) > 0 then v_locked := v_locked || pgqueue.lock_groups(p_queue, v_some, false); end if;
      if v_exact and not v_care then
        -- The common case: as many groups as jobs, all of them idle.
        v_care := cardinality(v_some) <> cardinality(v_ids) or not v_some <@ v_locked
          or (select bool_or(r.slots > 0 or r.parked or r.stopped or coalesce(r.tokens < 1, false)) from pgqueue.group_room(p_queue, v_some) r)
          or v_queue.group_max_running = 1 and exists (
            select 1 from unnest(v_groups, v_ranks) u (g, r) where exists (
              select 1 from pgqueue.job_live j where j.queue = p_queue and j.group_key = u.g and j.priority = p_priority
              and j.status = 'pending' and j.rank_at < u.r and not j.holds_slot and j.id <> all (v_ids)));
      end if;
    end if;

    v_run := v_ids[1 : v_left];
    v_park := null; v_later := null; v_turns := null;
    if not v_care then
      v_passed := v_passed || coalesce(v_ids[v_left + 1 :], '{}');
    else
    -- What becomes of each: run, task or group (parked for that reason), later, pass.
    with c as (
      select u.*, row_number() over () as n, coalesce(u.task = any (p_held) and u.id <> all (p_probes), false) as held
      from unnest(v_ids, v_groups, v_slots, v_tasks) u (id, group_key, holds_slot, task)
    ), g as (
      select r.* from pgqueue.group_room(p_queue, array(
        select distinct c.group_key from c where v_queue.grouped and not c.held and c.group_key = any (v_locked))) r
    ), numbered as (
      select c.*, g.group_key is not null as locked, g.stopped, g.tokens, g.next_at, g.parked and g.room > 0 as unfilled,
             v_queue.fair and (g.parked or count(*) over (partition by c.group_key) > 1) as turn,
             -- Nobody overtakes those who are parked; and in a fair queue whoever is in line has the turn.
             case when g.parked or v_queue.fair and g.waiting > 0 then 0 when v_queue.fair then least(g.room, 1) else g.room end as room,
             v_queue.group_max_running = 1 and not c.holds_slot and exists (
               select 1 from pgqueue.job_live j where j.queue = p_queue and j.group_key = c.group_key and j.priority = p_priority
               and j.status = 'pending' and j.rank_at < v_ranks[c.n] and not j.holds_slot and j.id <> all (v_ids)) as too_early,
             row_number() over (partition by c.group_key, c.held order by c.holds_slot desc, c.n) as nth,
             row_number() over (partition by c.group_key, c.held, c.holds_slot order by c.n) as nth_alike
      from c left join g on g.group_key = c.group_key
    ), decided as (
      select n.id, n.n, n.group_key, n.next_at, n.tokens, n.held and n.holds_slot as gives_up, n.unfilled, n.turn,
             case when n.held then case when v_queue.grouped and n.holds_slot and n.group_key <> all (v_locked) then 'pass' else 'task' end
                  when n.group_key is null or not v_queue.grouped or n.group_key = any (v_free) then 'run'
                  when not n.locked then 'pass'
                  when n.too_early then 'pass'
                  when n.stopped or not n.holds_slot and n.nth_alike > n.room then 'group'
                  when n.nth > n.tokens then case when n.holds_slot then 'later' else 'group' end
                  else 'run' end as verdict
      from numbered n
    ), cut as (
      select d.*, d.verdict = 'run' and count(*) filter (where d.verdict = 'run') over (order by d.n) > v_left as too_many from decided d
    ), enough as (
      -- Nobody is parked because of a job that then does not start.
      select c.*, case when c.too_many or c.verdict = 'group' and bool_or(c.too_many) over (partition by c.group_key order by c.n)
                       then 'pass' else c.verdict end as final from cut c)
    select coalesce(array_agg(e.id) filter (where e.final = 'run'), '{}'),
           array_agg(e.id) filter (where e.final in ('task', 'group')), array_agg(e.final) filter (where e.final in ('task', 'group')),
           array_agg(e.id) filter (where e.final = 'later'), array_agg(e.next_at) filter (where e.final = 'later'),
           array_agg(distinct e.group_key) filter (where e.group_key is not null and (e.gives_up
             or e.final in ('run', 'group') and (e.turn or e.tokens is not null or e.unfilled))),
           v_passed || coalesce(array_agg(e.id) filter (where e.final = 'pass'), '{}')
      into v_run, v_park, v_kinds, v_later, v_whens, v_turns, v_passed
      from enough e;
    end if;

    v_now := clock_timestamp();
    if v_park is not null then
      update pgqueue.job_live j set status = 'blocked', waits_for = u.kind, holds_slot = false
        from unnest(v_park, v_kinds) u (id, kind) where j.id = u.id;
    end if;
    if v_later is not null then
      update pgqueue.job_live j set status = 'scheduled', run_at = u.next_at, rank_at = u.next_at
        from unnest(v_later, v_whens) u (id, next_at) where j.id = u.id;
    end if;
    if cardinality(v_run) > 0 then
      if v_queue.group_rate is not null then
        update pgqueue.queue_group g
          set full_at = greatest(g.full_at, v_now) + u.starts * make_interval(secs => v_queue.group_rate_seconds::double precision / v_queue.group_rate)
          from (select r.group_key, count(*) as starts from unnest(v_ids, v_groups) r (id, group_key)
                where r.id = any (v_run) and r.group_key is not null group by r.group_key) u
          where g.queue = p_queue and g.group_key = u.group_key;
      end if;
      return query
        with taken as (
          update pgqueue.job_live j
          set status = 'running', started_at = v_now, worker_id = p_worker_id, attempt = j.attempt + 1, token = j.token + 1,
              holds_slot = j.group_key is not null or v_queue.max_running is not null
          where j.id = any (v_run)
          returning j.id, j.token, j.queue, j.task, j.payload, j.attempt, coalesce(j.max_attempts, p_attempts) as max_attempts,
                    coalesce(j.timeout_seconds, p_timeout) as timeout_seconds, j.priority, j.crashes, j.rank_at, j.enqueued_at, j.meta,
                    j.group_key)
        select t.* from taken t order by t.rank_at;
      v_left := v_left - cardinality(v_run);
    end if;
    if v_turns is not null then perform pgqueue.grant_groups(p_queue, array(select t from unnest(v_turns) t where t = any (v_locked))); end if;
    exit when v_left <= 0 or v_seen >= c_scan;
    v_from := v_ranks[cardinality(v_ranks)];
    v_look := least(greatest(2 * v_look, 20), 1000);  -- most of what was found had to be parked
  end loop;
end
$$;
comment on function pgqueue.claim_gated is 'Claims from a lane whose queue has limits. Not for users.';
