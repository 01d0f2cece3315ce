-- cancel_waiting: cancels many jobs that wait for their parents, in one statement. Returns those that it has cancelled.
--
-- p_until: kept at least so long, for the retry of a parent that brings them back.
--
-- Moves blocked → cancelled. Locks the rows, waiting; the caller has locked the flows, and tells the children
-- (stop_flows). Raises nothing.
-- Called by release_children, stop_children, cancel_flow_jobs, sweep_flows; not for users.
create or replace function pgqueue.cancel_waiting(p_ids bigint[], p_error_type text, p_errors text[], p_until timestamptz[] default '{}')
returns bigint[]
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_ids bigint[];
begin
  with gone as (
    delete from pgqueue.job_live j
    using (select * from unnest(p_ids, p_errors, p_until) u (id, error, until) order by u.id) u
    -- coalesce: one probe by id each, and not all that wait, by job_live_child, for each (10,000 took 12 s).
    where j.id between u.id and u.id and coalesce(j.waits_for, '') = 'parents'
    returning j.*, u.error as reason, u.until
  ), kept as (
    select g.*, greatest(v_now + coalesce(g.retain_for, q.retain_completed, s.retain_completed), g.until) as keep_until
    from gone g cross join pgqueue.setting s left join pgqueue.queue q on q.queue = g.queue
  ), done as (
    insert into pgqueue.job_done (id, rank_at, run_at, enqueued_at, started_at, finished_at, prune_at, expires_at, token,
      timeout_seconds, priority, max_attempts, status, queue, task, key, payload, error_type, error, retry, key_ttl, retain_for,
      tags, meta, group_key, flow_id)
    select k.id, k.rank_at, k.run_at, k.enqueued_at, k.started_at, v_now, k.keep_until, k.expires_at, k.token,
      k.timeout_seconds, k.priority, k.max_attempts, 'cancelled', k.queue, k.task, k.key, k.payload, p_error_type,
      coalesce(left(k.reason, 4000), 'cancelled'), k.retry, k.key_ttl, k.retain_for, k.tags, k.meta, k.group_key, k.flow_id
    from kept k where k.keep_until > v_now
  ), held as (
    insert into pgqueue.key_hold as h (queue, key, job_id, held_until)
    select g.queue, g.key, g.id, v_now + g.key_ttl from gone g where g.key_ttl is not null and g.key is not null
    on conflict (queue, key) do update set job_id = excluded.job_id, held_until = excluded.held_until
  ), counted as (
    insert into pgqueue.tally (at, jobs, outcome, queue, task)
    select date_trunc('minute', v_now), count(*), 'cancelled', g.queue, g.task from gone g group by g.queue, g.task
  ), fewer as (
    update pgqueue.flow f set blocked = f.blocked - c.n
    from (select g.flow_id, count(*) as n from gone g group by g.flow_id) c where f.id = c.flow_id
  )
  select array_agg(g.id) into v_ids from gone g;
  return coalesce(v_ids, '{}');
end
$$;
comment on function pgqueue.cancel_waiting is 'Cancels jobs that wait for their parents. Not for users.';
