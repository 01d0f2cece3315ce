-- sweep: what must happen even if nobody asks for it. One at a time; a second caller returns at once.
--
--   workers without a heartbeat are declared lost;
--   their jobs (ghosts) wait again, or die when attempts or crashes are used up. The first crash costs no delay,
--     later ones that of the retry policy: a deploy is quick, a job that kills its workers is not;
--   jobs that were not started before their expires_at are cancelled (sweep_flows() does it for those that wait for parents);
--   due scheduled jobs are promoted, also in queues that no worker asks for;
--   what roll_up and sweep_limits do, so that an idle worker asks once; alarmed: the tasks that it newly found to fail everywhere;
--   queues that were only ever enqueued to get their row, those unused for 30 days lose it; lanes lose their
--     duplicates; expired key holds go;
--   flows learn of all that, and what of them could not be done at once goes on.
--
-- A ghost is a running job whose worker's row is lost or missing. Missing must count: a worker that was stalled
-- may commit a claim after its row was removed.
--
-- Moves running → pending, scheduled, dead or cancelled; scheduled → pending; waiting → cancelled.
-- Locks what it takes, skipping what others hold. Raises nothing.
-- Called by every worker every few seconds, and by pgqueue sweep.
create or replace function pgqueue.sweep(
  p_limit integer default 1000,
  out lost_workers integer, out retried integer, out died integer, out cancelled integer, out expired integer, out promoted integer,
  out alarmed text[])
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set jit = off
as $$
declare
  v_now    timestamptz := clock_timestamp();
  v_left   integer;
  v_worker bigint;
  v_job    pgqueue.job%rowtype;
  v_limit  record;
  v_delay  double precision;
  v_error  text;
  v_queue  text;
  v_keep   interval;
  v_n      integer;
  v_queues text[] := '{}';  -- of jobs that gave a slot back
  v_groups text[] := '{}';
  v_left_q text[];
  v_left_g text[];
  v_flowed bigint[] := '{}';  -- jobs of flows that may have ended
  v_left_f bigint[];
begin
  p_limit := greatest(p_limit, 0);
  v_left := p_limit;
  select s.retain_completed into v_keep from pgqueue.setting s;
  lost_workers := 0; retried := 0; died := 0; cancelled := 0; expired := 0; promoted := 0;
  perform 1 from pgqueue.mutex m where m.name = 'sweep' for update skip locked;
  if not found then return; end if;

  with lost as (
    update pgqueue.worker w set lost_at = v_now
    where w.id in (select s.id from pgqueue.worker s
                   where s.lost_at is null and s.heartbeat_at < v_now - make_interval(secs => s.lease_seconds)
                   for update skip locked)
    returning w.id)
  select count(*) into lost_workers from lost;

  for v_worker in
    -- Every worker that has running jobs, by hopping through the index, not by reading the jobs.
    with recursive holder as (
      (select j.worker_id from pgqueue.job_live j where j.status = 'running' order by j.worker_id limit 1)
      union all
      select (select j.worker_id from pgqueue.job_live j where j.status = 'running' and j.worker_id > h.worker_id
              order by j.worker_id limit 1)
      from holder h where h.worker_id is not null)
    select h.worker_id from holder h
    where h.worker_id is not null
      and not exists (select 1 from pgqueue.worker w where w.id = h.worker_id and w.lost_at is null)
  loop
    exit when v_left <= 0;
    for v_job in
      select j.* from pgqueue.job_live j where j.status = 'running' and j.worker_id = v_worker
      order by j.id limit v_left for update skip locked
    loop
      v_left := v_left - 1;
      if v_job.group_key is not null then v_queues := v_queues || v_job.queue; v_groups := v_groups || v_job.group_key; end if;
      if v_job.flow_id is not null then v_flowed := v_flowed || v_job.id; end if;
      v_error := format('worker %s was lost while it ran this job', v_worker);
      select coalesce(v_job.max_attempts, q.max_attempts, s.max_attempts) as attempts,
             coalesce(q.max_crashes, s.max_crashes) as crashes, coalesce(v_job.retry, q.retry, s.retry) as policy
        into v_limit from pgqueue.setting s left join pgqueue.queue q on q.queue = v_job.queue;
      update pgqueue.job_live j set crashes = j.crashes + 1 where j.id = v_job.id;
      if v_job.cancel_requested_at is not null then
        perform pgqueue.record_attempt(v_job, 'cancelled', null, 'WorkerLost', v_error);
        perform pgqueue.finish(v_job.id, 'cancelled', null, null);
        cancelled := cancelled + 1;
      elsif v_job.attempt >= v_limit.attempts or v_job.crashes + 1 >= v_limit.crashes then
        if v_job.attempt < v_limit.attempts then
          v_error := format('%s; that was crash %s of at most %s', v_error, v_job.crashes + 1, v_limit.crashes);
        end if;
        perform pgqueue.record_attempt(v_job, 'lost', null, 'WorkerLost', v_error);
        perform pgqueue.finish(v_job.id, 'dead', 'WorkerLost', v_error);
        died := died + 1;
      else
        v_delay := case when v_job.crashes = 0 then 0
                   else pgqueue.retry_delay(v_limit.policy, v_job.crashes::integer, v_job.retry_delay_seconds) end;
        perform pgqueue.record_attempt(v_job, 'lost', v_delay, 'WorkerLost', v_error);
        perform pgqueue.requeue(v_job, v_delay, false, 'WorkerLost', v_error);
        retried := retried + 1;
      end if;
    end loop;
  end loop;

  -- A lost worker's row stays for a day, to be looked at; not while jobs still point to it.
  delete from pgqueue.worker w where w.lost_at < v_now - interval '1 day'
    and not exists (select 1 from pgqueue.job_live j where j.worker_id = w.id and j.status = 'running');

  -- Many at once: claims have to walk over them.
  loop
    with gone as (
      delete from pgqueue.job_live j where j.ctid = any (array(
        select s.ctid from pgqueue.job_live s where s.expires_at <= v_now and s.status <> 'running' and s.waits_for is distinct from 'parents'
        order by s.expires_at limit p_limit for update skip locked))
      returning j.*, coalesce(j.retain_for, (select q.retain_completed from pgqueue.queue q where q.queue = j.queue), v_keep) as keep
    ), done as (
      insert into pgqueue.job_done (id, rank_at, run_at, enqueued_at, started_at, finished_at, prune_at, expires_at,
        cancel_requested_at, token, timeout_seconds, retry_delay_seconds, priority, attempt, max_attempts, crashes,
        status, queue, task, key, payload, progress, error_type, error, retry, key_ttl, retain_for, tags, meta, group_key, flow_id)
      select g.id, g.rank_at, g.run_at, g.enqueued_at, g.started_at, v_now, v_now + g.keep, g.expires_at,
        g.cancel_requested_at, g.token, g.timeout_seconds, g.retry_delay_seconds, g.priority, g.attempt, g.max_attempts, g.crashes,
        'cancelled', g.queue, g.task, g.key, g.payload, g.progress, 'Expired',
        case when g.attempt = 0 then format('not started before %s', g.expires_at)
             else format('not started again before %s; attempt %s failed with %s', g.expires_at, g.attempt, g.error) end,
        g.retry, g.key_ttl, g.retain_for, g.tags, g.meta, g.group_key, g.flow_id
      from gone g where g.keep > interval '0'
    ), held as (
      insert into pgqueue.key_hold as h (queue, key, job_id, held_until)
      select g.queue, g.key, g.id, v_now + g.key_ttl from gone g where g.key_ttl is not null and g.key is not null
      on conflict (queue, key) do update set job_id = excluded.job_id, held_until = excluded.held_until
    ), counted as (
      insert into pgqueue.tally (at, jobs, outcome, queue, task)
      select date_trunc('minute', v_now), count(*), 'expired', g.queue, g.task from gone g group by g.queue, g.task
    )
    select count(*), array_agg(g.queue) filter (where g.group_key is not null), array_agg(g.group_key) filter (where g.group_key is not null),
           array_agg(g.id) filter (where g.flow_id is not null)
      into v_n, v_left_q, v_left_g, v_left_f from gone g;
    v_queues := v_queues || coalesce(v_left_q, '{}');
    v_groups := v_groups || coalesce(v_left_g, '{}');
    v_flowed := v_flowed || coalesce(v_left_f, '{}');
    expired := expired + v_n;
    exit when v_n < p_limit or clock_timestamp() > v_now + interval '1 second';
  end loop;

  perform pgqueue.ensure_queue(n.queue) from (
    select distinct l.queue from pgqueue.lane l
    where not exists (select 1 from pgqueue.queue q where q.queue = l.queue) order by l.queue limit 100) n
    -- Not if somebody is just making it: the sweep waits for nobody.
    where pg_try_advisory_xact_lock(hashtextextended('pgqueue.queue:' || n.queue, 0));
  insert into pgqueue.lane (queue) select q.queue from pgqueue.queue q
    where not exists (select 1 from pgqueue.lane l where l.queue = q.queue and l.priority is null);
  delete from pgqueue.lane l using pgqueue.lane k
    where k.queue = l.queue and k.priority is not distinct from l.priority and (k.hint, k.ctid) > (l.hint, l.ctid);
  for v_queue in select distinct l.queue from pgqueue.lane l order by l.queue loop
    promoted := promoted + pgqueue.promote(v_queue, p_limit);
  end loop;
  delete from pgqueue.key_hold h where h.ctid = any (array(
    select k.ctid from pgqueue.key_hold k where k.held_until <= v_now order by k.held_until limit p_limit for update skip locked));
  perform pgqueue.leave_groups(v_queues, v_groups);
  perform pgqueue.leave_flows(v_flowed);
  expired := expired + pgqueue.sweep_flows(p_limit);
  perform pgqueue.forget_queues();
  perform pgqueue.roll_up();
  alarmed := pgqueue.sweep_limits();
end
$$;
comment on function pgqueue.sweep is 'Rescues the jobs of lost workers, cancels expired jobs, promotes due ones.';
