-- insert_jobs: stores jobs that a graph describes, as many in one statement as there are; returns how many were new. p_ids,
-- p_names and p_open (parents that they wait for) run in parallel. p_about: for a callback, the flow that it is about.
--
-- Moves → pending, scheduled or blocked. Locks its new rows; waits for transactions that are enqueueing the same keys, taken
-- in sorted order. Raises nothing of its own.
-- Called by add_flow_jobs, call_back; not for users.
create or replace function pgqueue.insert_jobs(
  p_jobs jsonb, p_ids bigint[], p_names text[], p_open integer[], p_flow_id bigint, p_about bigint default null)
returns integer
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_n   integer;
begin
  insert into pgqueue.job_live (id, rank_at, run_at, enqueued_at, expires_at, timeout_seconds, priority, max_attempts, status, queue,
                                task, key, payload, retry, key_ttl, retain_for, tags, meta, group_key, waits_for, flow_id)
  select x.id, greatest(x.starts_at, v_now + x.position * interval '1 microsecond'), coalesce(x.starts_at, v_now), v_now,
         coalesce(x.expires_at, v_now + x.expires_in), x.timeout_seconds, coalesce(x.priority, 0), x.max_attempts,
         case when x.open > 0 then 'blocked' when x.starts_at > v_now then 'scheduled' else 'pending' end,
         x.queue, x.task, x.key, coalesce(x.payload, '{}'), x.retry, x.key_ttl, x.retain_for, x.tags,
         coalesce(x.meta, '{}') || jsonb_build_object('flow', jsonb_strip_nulls(jsonb_build_object('id', coalesce(p_flow_id, p_about), 'job', x.name))),
         x.group_key, case when x.open > 0 then 'parents' end, p_flow_id
  from (select n.*, coalesce(n.run_at, case when n.open = 0 then v_now + n.run_in end) as starts_at
        from rows from (
          jsonb_to_recordset(p_jobs) as (
            queue text, task text, payload jsonb, key text, key_ttl interval, priority integer, run_at timestamptz, run_in interval,
            expires_at timestamptz, expires_in interval, max_attempts integer, retry jsonb, timeout_seconds integer, tags text[],
            meta jsonb, retain_for interval, group_key text),
          unnest(p_ids), unnest(p_names), unnest(p_open)) with ordinality n (
            queue, task, payload, key, key_ttl, priority, run_at, run_in, expires_at, expires_in, max_attempts, retry, timeout_seconds,
            tags, meta, retain_for, group_key, id, name, open, position)) x
  order by x.key, x.position
  on conflict (queue, key) where key is not null do nothing;
  get diagnostics v_n = row_count;
  return v_n;
end
$$;
comment on function pgqueue.insert_jobs is 'Stores the jobs of a graph. Not for users.';
