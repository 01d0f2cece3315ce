-- enqueue_many: stores many jobs of one task in one statement; ids come back in the order of the payloads.
--
-- keys, priorities, run_ats and group_keys are arrays as long as payloads, or null; everything else holds for all. A key
-- that is taken behaves as in enqueue; so does a key that stands twice in one call: both positions get one id.
-- Each job ranks a microsecond after the one before it, so that they are claimed in the order of the payloads too
-- (in a call with keys, those without one rank last).
-- 106,000-149,000 rows a second in batches of 100 to 1,000; COPY would be faster (234,000-341,000) but cannot
-- deduplicate.
--
-- Moves → pending or scheduled.
-- Locks its new rows. Keys are taken in sorted order, so that two bulk calls do not deadlock (unless a key that they share
-- is set free while one of them waits: 40P01, to be repeated). Raises as enqueue.
-- Called by everyone.
create or replace function pgqueue.enqueue_many(
  queue text, task text, payloads jsonb[],
  keys text[] default null, on_conflict text default 'skip', key_ttl interval default null,
  priorities integer[] default null, run_ats timestamptz[] default null,
  priority integer default 0, run_at timestamptz default null, expires_at timestamptz default null,
  max_attempts integer default null, retry jsonb default null, timeout_seconds integer default null,
  tags text[] default null, meta jsonb default null, retain_for interval default null,
  group_keys text[] default null, group_key text default null)
returns table (id bigint, created boolean)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_n       integer := cardinality(payloads);
  v_max     integer;
  v_now     timestamptz;
  v_tick    constant interval := '1 microsecond';
  v_ids     bigint[];
  v_created boolean[];
  v_held    boolean;
  v_row     record;
  i         integer;
begin
  if payloads is null then
    raise exception using errcode = 'PQ001', message = 'payloads must be an array of JSON objects';
  elsif greatest(array_ndims(payloads), array_ndims(keys), array_ndims(priorities), array_ndims(run_ats), array_ndims(group_keys)) > 1
        or (array_lower(payloads, 1), array_lower(keys, 1), array_lower(priorities, 1), array_lower(run_ats, 1), array_lower(group_keys, 1))
           is distinct from (nullif(sign(v_n), 0)::integer, nullif(sign(cardinality(keys)), 0)::integer,
                             nullif(sign(cardinality(priorities)), 0)::integer, nullif(sign(cardinality(run_ats)), 0)::integer,
                             nullif(sign(cardinality(group_keys)), 0)::integer) then
    raise exception using errcode = 'PQ001', message = 'arrays must have one dimension and begin at 1';
  elsif v_n <> coalesce(cardinality(keys), v_n) or v_n <> coalesce(cardinality(priorities), v_n)
        or v_n <> coalesce(cardinality(run_ats), v_n) or v_n <> coalesce(cardinality(group_keys), v_n) then
    raise exception using errcode = 'PQ001', message = format('%s payloads, but another number of keys, priorities, run_ats or group_keys', v_n);
  end if;
  perform pgqueue.check_job(enqueue_many.queue, enqueue_many.task, case when keys is not null then 'k' end,
    enqueue_many.on_conflict, enqueue_many.key_ttl, enqueue_many.priority, enqueue_many.run_at, enqueue_many.expires_at,
    enqueue_many.max_attempts, enqueue_many.retry, enqueue_many.timeout_seconds, enqueue_many.tags, enqueue_many.meta,
    enqueue_many.retain_for, enqueue_many.group_key);
  if v_n = 0 then return; end if;
  select s.payload_max_bytes into v_max from pgqueue.setting s;
  -- One pass that looks for anything unusual; only then one by one, for the exact message.
  if exists (select 1 from unnest(payloads) p
             where p is null or jsonb_typeof(p) <> 'object' or pg_column_size(p) > least(512, v_max)) then
    for i in 1 .. v_n loop perform pgqueue.check_payload(payloads[i], v_max); end loop;
  end if;
  if exists (select 1 from unnest(keys) k where octet_length(k) not between 1 and 512) then
    raise exception using errcode = 'PQ001', message = 'a key has 1 to 512 bytes';
  elsif exists (select 1 from unnest(group_keys) g where octet_length(g) not between 1 and 512) then
    raise exception using errcode = 'PQ001', message = 'a group has 1 to 512 bytes';
  elsif exists (select 1 from unnest(priorities) p where p not between -100 and 100) then
    raise exception using errcode = 'PQ001', message = 'priority must be between -100 and 100';
  elsif exists (select 1 from unnest(run_ats) r where r not between '1970-01-02 00:00+00' and '9999-12-30 00:00+00') then
    raise exception using errcode = 'PQ001', message = 'run_at must lie between the years 1970 and 9999';
  elsif exists (select 1 from unnest(run_ats) r where r >= enqueue_many.expires_at) then
    raise exception using errcode = 'PQ001', message = 'expires_at must lie after now and after run_at';
  end if;
  if priorities is null then
    perform pgqueue.ensure_lane(enqueue_many.queue, enqueue_many.priority);
  else
    perform pgqueue.ensure_lane(enqueue_many.queue, d.p)
      from (select distinct coalesce(p, enqueue_many.priority) as p from unnest(priorities) p) d;
  end if;
  if current_setting('synchronous_commit') = 'off' then perform set_config('synchronous_commit', 'on', true); end if;
  v_now := clock_timestamp();
  select q.max_depth, q.shed_below into v_row from pgqueue.queue q where q.queue = enqueue_many.queue and q.max_depth is not null;
  if found then
    if keys is not null or v_row.shed_below is not null then
      -- Which of them are new, and which are shed, is found out one by one.
      for i in 1 .. v_n loop
        select e.id, e.created into id, created from pgqueue.enqueue(
          enqueue_many.queue, enqueue_many.task, payloads[i], keys[i], enqueue_many.on_conflict,
          case when keys[i] is not null then enqueue_many.key_ttl end, coalesce(priorities[i], enqueue_many.priority),
          coalesce(run_ats[i], enqueue_many.run_at), enqueue_many.expires_at, enqueue_many.max_attempts, enqueue_many.retry,
          enqueue_many.timeout_seconds, enqueue_many.tags, enqueue_many.meta, enqueue_many.retain_for,
          coalesce(group_keys[i], enqueue_many.group_key)) e;
        return next;
      end loop;
      return;
    end if;
    perform pgqueue.admit(enqueue_many.queue, enqueue_many.priority, v_n);
  end if;

  if keys is null then
    -- The sequence counts in the order of the rows, so sorted ids are in the order of the payloads.
    return query
      with new as (
        insert into pgqueue.job_live (rank_at, run_at, enqueued_at, expires_at, timeout_seconds, priority, max_attempts, status,
                                      queue, task, payload, retry, retain_for, tags, meta, group_key)
        select greatest(coalesce(u.run_at, enqueue_many.run_at), v_now + u.position * v_tick), coalesce(u.run_at, enqueue_many.run_at, v_now), v_now,
               enqueue_many.expires_at, enqueue_many.timeout_seconds, coalesce(u.priority, enqueue_many.priority),
               enqueue_many.max_attempts,
               case when coalesce(u.run_at, enqueue_many.run_at) > v_now then 'scheduled' else 'pending' end,
               enqueue_many.queue, enqueue_many.task, u.payload, enqueue_many.retry, enqueue_many.retain_for,
               enqueue_many.tags, enqueue_many.meta, coalesce(u.group_key, enqueue_many.group_key)
        from unnest(payloads, priorities, run_ats, group_keys) with ordinality u (payload, priority, run_at, group_key, position)
        order by u.position
        returning job_live.id)
      select new.id, true from new order by new.id;
  else
    with new as (
      insert into pgqueue.job_live (rank_at, run_at, enqueued_at, expires_at, timeout_seconds, priority, max_attempts, status,
                                    queue, task, key, payload, retry, key_ttl, retain_for, tags, meta, group_key)
      select greatest(coalesce(u.run_at, enqueue_many.run_at), v_now + u.position * v_tick), coalesce(u.run_at, enqueue_many.run_at, v_now), v_now,
             enqueue_many.expires_at, enqueue_many.timeout_seconds, coalesce(u.priority, enqueue_many.priority),
             enqueue_many.max_attempts,
             case when coalesce(u.run_at, enqueue_many.run_at) > v_now then 'scheduled' else 'pending' end,
             enqueue_many.queue, enqueue_many.task, u.key, u.payload, enqueue_many.retry, enqueue_many.key_ttl,
             enqueue_many.retain_for, enqueue_many.tags, enqueue_many.meta, coalesce(u.group_key, enqueue_many.group_key)
      from (select distinct on (u.key) u.*
            from unnest(payloads, keys, priorities, run_ats, group_keys) with ordinality u (payload, key, priority, run_at, group_key, position)
            where u.key is not null
              and not exists (select 1 from pgqueue.key_hold h where h.queue = enqueue_many.queue and h.key = u.key
                              and h.held_until > v_now)
            order by u.key, u.position) u
      order by u.key
      on conflict (queue, key) where key is not null do nothing
      returning job_live.id, job_live.key)
    select array_agg(new.id order by u.position), array_agg(new.id is not null order by u.position)
      into v_ids, v_created
      from unnest(keys) with ordinality u (key, position)
      left join (select distinct on (k.key) k.key, k.position from unnest(keys) with ordinality k (key, position)
                 where k.key is not null order by k.key, k.position) first on first.position = u.position
      left join new on new.key = first.key;

    -- What the statement could not settle goes one by one: no key, taken, held, twice in this call; and what was
    -- inserted after waiting for a job that finished meanwhile and holds its key.
    v_held := current_setting('transaction_isolation') <> 'read committed'
      or exists (select 1 from unnest(keys) k join pgqueue.key_hold h on h.queue = enqueue_many.queue and h.key = k);
    for i in select u.position from unnest(v_ids) with ordinality u (id, position) where u.id is null or v_held
             order by keys[u.position], u.position loop
      if v_ids[i] is not null then
        continue when pgqueue.held_key(enqueue_many.queue, keys[i], p_fresh => true) is null;
        delete from pgqueue.job_live j where j.id = v_ids[i];
      end if;
      select e.id, e.created into v_row from pgqueue.enqueue(
        enqueue_many.queue, enqueue_many.task, payloads[i], keys[i], enqueue_many.on_conflict,
        case when keys[i] is not null then enqueue_many.key_ttl end, coalesce(priorities[i], enqueue_many.priority),
        coalesce(run_ats[i], enqueue_many.run_at), enqueue_many.expires_at, enqueue_many.max_attempts, enqueue_many.retry,
        enqueue_many.timeout_seconds, enqueue_many.tags, enqueue_many.meta, enqueue_many.retain_for,
        coalesce(group_keys[i], enqueue_many.group_key)) e;
      v_ids[i] := v_row.id;
      v_created[i] := v_row.created;
    end loop;
    return query select u.id, u.created from unnest(v_ids, v_created) with ordinality u (id, created, position) order by u.position;
  end if;
  perform pgqueue.wake(enqueue_many.queue);
end
$$;
comment on function pgqueue.enqueue_many is 'Stores many jobs of one task; returns id and created for each payload, in order.';
