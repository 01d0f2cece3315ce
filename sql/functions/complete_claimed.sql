-- complete_claimed: the heart of complete: moves the jobs. What of them was in flows is returned, for advance_flows(): that is for
-- the end of the transaction, and complete_and_claim() has something to do before it.
--
-- The plan is pinned. After an autoanalyze at a bad moment the planner took the index on running jobs (few by
-- its statistics, hundreds of thousands of dead entries in truth) instead of the primary key, and 15,000 jobs/s
-- became 1,500. So: no condition on status (the lease implies it), worker_id + 0, only nested loops, and "between"
-- instead of "=": an equality could be merged, and a planner that believes the table to be empty then reads the whole
-- primary key (301,310 entries for 10 jobs, seen with statistics from an empty moment under a held snapshot).
--
-- The plan is made once (force_generic_plan): by itself the planner finds a plan for ten jobs dearer than one for one, and
-- makes it anew at every call with a single job, which took two thirds of the call.
--
-- What has completed is counted here, by task and by how long it waited and ran: see tally. 0.7 µs a job in batches of 500, of 18
-- for claim and complete; less than the plan costs that is not made any more in small ones.
--
-- Moves running → completed. A job with retain_for 0 leaves no row behind. Its group's next job gets the slot.
-- Locks the rows by ascending id, then the groups. Raises nothing of its own.
-- Called by complete, complete_and_claim; not for users.
create or replace function pgqueue.complete_claimed(
  p_worker_id bigint, p_ids bigint[], p_tokens integer[], p_results jsonb[],
  out refused bigint[], out flow_ids bigint[], out in_flow bigint[], out returned jsonb[])
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_now      timestamptz := clock_timestamp();
  v_minute   timestamptz := date_trunc('minute', v_now);
  v_keep     interval;
  v_accepted bigint[];
  v_queues   text[];
  v_groups   text[];
  v_watched  text[];
  v_tasks    text[];
  v_probes   bigint[];
begin
  select s.retain_completed, (select array_agg(t.task) from pgqueue.task t where t.breaker_rate is not null)
    into v_keep, v_watched from pgqueue.setting s;
  with gone as (
    delete from pgqueue.job_live j
    using (select * from unnest(p_ids, p_tokens, coalesce(p_results, '{}')) u (id, token, result) order by u.id) u
    where j.id between u.id and u.id and j.token = u.token and j.worker_id + 0 = p_worker_id
    returning j.*, u.result as new_result
  ), done as (
    insert into pgqueue.job_done (id, rank_at, run_at, enqueued_at, started_at, finished_at, prune_at, expires_at,
      cancel_requested_at, worker_id, token, timeout_seconds, retry_delay_seconds, priority, attempt, max_attempts, crashes,
      status, queue, task, key, payload, result, progress, error_type, error, retry, key_ttl, retain_for, tags, meta,
      group_key, flow_id)
    select g.id, g.rank_at, g.run_at, g.enqueued_at, g.started_at, v_now, v_now + coalesce(g.retain_for, q.retain_completed, v_keep),
      g.expires_at, g.cancel_requested_at, g.worker_id, g.token, g.timeout_seconds, g.retry_delay_seconds, g.priority, g.attempt,
      g.max_attempts, g.crashes, 'completed', g.queue, g.task, g.key, g.payload, g.new_result, g.progress,
      case when g.cancel_requested_at is null then g.error_type end, case when g.cancel_requested_at is null then g.error end,
      g.retry, g.key_ttl, g.retain_for, g.tags, g.meta, g.group_key, g.flow_id
    from gone g left join pgqueue.queue q on q.queue = g.queue
    where coalesce(g.retain_for, q.retain_completed, v_keep) > interval '0'
  ), held as (
    insert into pgqueue.key_hold as h (queue, key, job_id, held_until)
    select g.queue, g.key, g.id, v_now + g.key_ttl from gone g where g.key_ttl is not null and g.key is not null
    on conflict (queue, key) do update set job_id = excluded.job_id, held_until = excluded.held_until
  ), counted as (
    insert into pgqueue.tally (at, jobs, wait_bucket, run_bucket, outcome, queue, task)
    select v_minute, count(*), floor(ln(greatest(date_part('epoch', g.started_at - g.rank_at), 1e-4)) * 4 / ln(2.0::float8)) as waited,
           floor(ln(greatest(date_part('epoch', v_now - g.started_at), 1e-4)) * 4 / ln(2.0::float8)) as ran, 'completed', g.queue, g.task
    from gone g group by waited, ran, g.queue, g.task
  )
  select array_agg(g.id), array_agg(g.queue) filter (where g.group_key is not null), array_agg(g.group_key) filter (where g.group_key is not null),
         array_agg(g.task) filter (where g.task = any (v_watched)), array_agg(g.id) filter (where g.task = any (v_watched)),
         array_agg(g.flow_id) filter (where g.flow_id is not null), array_agg(g.id) filter (where g.flow_id is not null),
         array_agg(g.new_result) filter (where g.flow_id is not null)
    into v_accepted, v_queues, v_groups, v_tasks, v_probes, flow_ids, in_flow, returned from gone g;
  if v_tasks is not null then perform pgqueue.count_outcomes(p_worker_id, v_tasks, v_probes, false); end if;
  if v_groups is not null then perform pgqueue.leave_groups(v_queues, v_groups, p_ran => true); end if;
  refused := case when cardinality(v_accepted) = cardinality(p_ids) then '{}'
             else array(select u from unnest(p_ids) u where u <> all (coalesce(v_accepted, '{}'))) end;
end
$$;
comment on function pgqueue.complete_claimed is 'Moves jobs whose handlers succeeded. Not for users.';
