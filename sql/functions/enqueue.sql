-- enqueue: stores one job in the caller's transaction. If that commits, the job runs; if not, it never existed.
--
-- With a key: a live job with this key in this queue, or a finished one whose key_ttl still runs, is returned
-- instead of a new one (created = false). on_conflict says what happens then: skip (nothing), raise (PQ004), or
-- replace: a job that is not running yet takes over everything said here; one that is running gives its key to
-- a new job, so that no change is ever lost. A finished job within its key_ttl is not replaced.
--
-- group_key: the tenant, the account, whatever the limits and turns of the queue are about. A queue with max_depth that is
-- full refuses; or sheds: the job is stored as cancelled ("Shed"), if its priority is below the queue's shed_below.
--
-- Moves → pending, or scheduled if run_at lies ahead; → cancelled when shed.
-- Locks its new row; with a key it waits for a transaction that is enqueueing the same key; replace locks the
-- row that it changes, and the group whose slot that job gives back. Raises PQ001 bad argument, PQ004 key taken, PQ006 bad
-- payload, PQ007 queue full; under REPEATABLE READ
-- 40001 if the key was taken or finished after the snapshot.
-- In a two-phase commit, set pgqueue.notify = off first: a transaction that has notified an idle worker cannot be prepared.
-- Called by everyone.
create or replace function pgqueue.enqueue(
  queue text, task text, payload jsonb default '{}',
  key text default null, on_conflict text default 'skip', key_ttl interval default null,
  priority integer default 0, run_at timestamptz default null, expires_at timestamptz default null,
  max_attempts integer default null, retry jsonb default null, timeout_seconds integer default null,
  tags text[] default null, meta jsonb default null, retain_for interval default null, group_key text default null,
  out id bigint, out created boolean)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_now    timestamptz;
  v_status text;
  v_is     record;
  v_old    record;
begin
  -- What is seldom said is checked elsewhere: PL/pgSQL prepares each expression anew in every transaction, and those of
  -- check_job cost a job that is enqueued alone some 15 of 80 µs of processor time.
  if not coalesce(length(enqueue.queue) between 1 and 128 and enqueue.queue !~ '[^A-Za-z0-9_.:-]'
                  and length(enqueue.task) between 1 and 128 and enqueue.task !~ '[^A-Za-z0-9_.:-]'
                  and (enqueue.key is null or octet_length(enqueue.key) between 1 and 512)
                  and enqueue.priority between -100 and 100 and enqueue.on_conflict in ('skip', 'raise', 'replace'), false)
     or num_nonnulls(enqueue.key_ttl, enqueue.run_at, enqueue.expires_at, enqueue.max_attempts, enqueue.retry,
                     enqueue.timeout_seconds, enqueue.tags, enqueue.meta, enqueue.retain_for, enqueue.group_key) > 0 then
    perform pgqueue.check_job(enqueue.queue, enqueue.task, enqueue.key, enqueue.on_conflict, enqueue.key_ttl, enqueue.priority,
      enqueue.run_at, enqueue.expires_at, enqueue.max_attempts, enqueue.retry, enqueue.timeout_seconds, enqueue.tags,
      enqueue.meta, enqueue.retain_for, enqueue.group_key);
  end if;
  -- One query for what must always be known: each further one would cost 5 µs of the 40.
  select s.payload_max_bytes, q.wake is not null as served, q.max_depth is not null as bounded,
         exists (select 1 from pgqueue.lane l where l.queue = enqueue.queue and l.priority = enqueue.priority::smallint) as has_lane,
         null::bigint as held_by
    into v_is from pgqueue.setting s left join pgqueue.queue q on q.queue = enqueue.queue;
  if enqueue.key is not null then
    select h.job_id into v_is.held_by from pgqueue.key_hold h
      where h.queue = enqueue.queue and h.key = enqueue.key and h.held_until > clock_timestamp();
  end if;
  -- A small object passes here; anything unusual is looked at closely.
  if jsonb_typeof(enqueue.payload) is distinct from 'object' or pg_column_size(enqueue.payload) > least(512, v_is.payload_max_bytes) then
    perform pgqueue.check_payload(enqueue.payload, v_is.payload_max_bytes);
  end if;
  if not v_is.has_lane then perform pgqueue.ensure_lane(enqueue.queue, enqueue.priority); end if;
  -- The caller may have traded durability for speed; a job that was promised is not part of that trade.
  if current_setting('synchronous_commit') = 'off' then perform set_config('synchronous_commit', 'on', true); end if;

  -- A key that is taken adds no job.
  if v_is.bounded and v_is.held_by is null
     and (enqueue.key is null or not exists (select 1 from pgqueue.job_live j where j.queue = enqueue.queue and j.key = enqueue.key))
     and pgqueue.admit(enqueue.queue, enqueue.priority, 1) = 'shed' then
    insert into pgqueue.job_done (rank_at, run_at, enqueued_at, finished_at, prune_at, expires_at, timeout_seconds, priority, max_attempts,
                                  status, queue, task, payload, error_type, error, retry, retain_for, tags, meta, group_key)
    select n.at, coalesce(enqueue.run_at, n.at), n.at, n.at, n.at + coalesce(enqueue.retain_for, q.retain_completed, s.retain_completed),
           enqueue.expires_at, enqueue.timeout_seconds, enqueue.priority, enqueue.max_attempts, 'cancelled', enqueue.queue, enqueue.task,
           enqueue.payload, 'Shed', format('queue %L was full, and priority %s is below %s', enqueue.queue, enqueue.priority, q.shed_below),
           enqueue.retry, enqueue.retain_for, enqueue.tags, enqueue.meta, enqueue.group_key
    from (select clock_timestamp() as at) n, pgqueue.setting s, pgqueue.queue q where q.queue = enqueue.queue
    returning job_done.id into enqueue.id;
    created := true;
    return;
  end if;

  loop
    exit when v_is.held_by is not null;
    v_now := clock_timestamp();
    v_status := case when enqueue.run_at > v_now then 'scheduled' else 'pending' end;
    insert into pgqueue.job_live (rank_at, run_at, enqueued_at, expires_at, timeout_seconds, priority, max_attempts, status,
                                  queue, task, key, payload, retry, key_ttl, retain_for, tags, meta, group_key)
    values (case v_status when 'scheduled' then enqueue.run_at else v_now end, coalesce(enqueue.run_at, v_now), v_now,
            enqueue.expires_at, enqueue.timeout_seconds, enqueue.priority, enqueue.max_attempts, v_status,
            enqueue.queue, enqueue.task, enqueue.key, enqueue.payload, enqueue.retry, enqueue.key_ttl, enqueue.retain_for,
            enqueue.tags, enqueue.meta, enqueue.group_key)
    on conflict (queue, key) where key is not null do nothing
    returning job_live.id into enqueue.id;
    if found then
      -- The key's holder may have finished while we waited for it: look again, with a fresh snapshot.
      if enqueue.key is not null then
        v_is.held_by := pgqueue.held_key(enqueue.queue, enqueue.key, p_fresh => true);
        if v_is.held_by is not null then
          delete from pgqueue.job_live j where j.id = enqueue.id;
          exit;
        end if;
        -- Nothing may appear far below a lane's hint: if we waited long for the key, we come now.
        if v_status = 'pending' and clock_timestamp() > v_now + interval '100 ms' then
          update pgqueue.job_live j set rank_at = clock_timestamp() where j.id = enqueue.id;
        end if;
      end if;
      created := true;
      if v_is.served and v_status = 'pending' then perform pgqueue.wake(enqueue.queue); end if;
      return;
    end if;

    -- Somebody has the key. Whoever it was may be gone when we look: then the loop inserts. (Without the loop
    -- 293 of 6,000 racing calls returned null.)
    if enqueue.on_conflict = 'replace' then
      select j.id, j.status, j.token, j.group_key, j.holds_slot and
             (v_status = 'scheduled' or j.group_key is distinct from enqueue.group_key) as gives_slot_back into v_old from pgqueue.job_live j
        where j.queue = enqueue.queue and j.key = enqueue.key for update;
      continue when not found;
      if v_old.status = 'running' then
        update pgqueue.job_live j set key = null where j.id = v_old.id;
        continue;
      end if;
      update pgqueue.job_live j set
        task = enqueue.task, payload = enqueue.payload, priority = enqueue.priority, expires_at = enqueue.expires_at,
        max_attempts = enqueue.max_attempts, retry = enqueue.retry, timeout_seconds = enqueue.timeout_seconds,
        attempt = 0, crashes = 0, retry_delay_seconds = null, progress = null, error_type = null, error = null,
        tags = enqueue.tags, meta = enqueue.meta, key_ttl = enqueue.key_ttl, retain_for = enqueue.retain_for,
        run_at = coalesce(enqueue.run_at, v_now), group_key = enqueue.group_key,
        waits_for = case when j.waits_for in ('group', 'task') then null else j.waits_for end,
        rank_at = case v_status when 'scheduled' then enqueue.run_at else v_now end,
        status = case when j.status = 'blocked' and coalesce(j.waits_for, '') not in ('group', 'task') then 'blocked' else v_status end,
        holds_slot = j.holds_slot and not v_old.gives_slot_back
      where j.id = v_old.id;
      if v_old.gives_slot_back then perform pgqueue.leave_groups(array[enqueue.queue], array[v_old.group_key]); end if;
      enqueue.id := v_old.id;
      created := false;
      if v_is.served and v_status = 'pending' then perform pgqueue.wake(enqueue.queue); end if;
      return;
    end if;
    select j.id into enqueue.id from pgqueue.job_live j where j.queue = enqueue.queue and j.key = enqueue.key;
    continue when not found;
    if enqueue.on_conflict = 'raise' then
      raise exception using errcode = 'PQ004',
        message = format('key %L of queue %L is taken by job %s', enqueue.key, enqueue.queue, enqueue.id);
    end if;
    created := false;
    return;
  end loop;

  -- A finished job holds the key.
  if enqueue.on_conflict = 'raise' then
    raise exception using errcode = 'PQ004',
      message = format('key %L of queue %L is held by finished job %s', enqueue.key, enqueue.queue, v_is.held_by);
  end if;
  enqueue.id := v_is.held_by;
  created := false;
end
$$;
comment on function pgqueue.enqueue is 'Stores one job in the caller''s transaction; returns its id and whether it is new.';
