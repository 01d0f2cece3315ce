-- why_waiting: it could run and waits for its turn: how many are before it, and whether there are slots.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by why; not for users.
create or replace function pgqueue.why_waiting(p_job pgqueue.job) returns table (reason text, explanation text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_boost interval;
  v_ahead bigint;
  v_slots bigint;
  v_busy  bigint;
  v_rate  double precision;
  v_turn  text;
begin
  if p_job.status <> 'pending' or p_job.expires_at <= clock_timestamp() then return; end if;
  select make_interval(secs => coalesce(q.boost_seconds, s.boost_seconds)) into v_boost
    from pgqueue.setting s left join pgqueue.queue q on q.queue = p_job.queue;
  -- Counted to ten thousand, which is an answer, too.
  select count(*) into v_ahead from (
    select 1 from (select distinct l.priority from pgqueue.lane l where l.queue = p_job.queue and l.priority is not null) l
    cross join lateral (select 1 from pgqueue.job_live j where j.queue = p_job.queue and j.priority = l.priority and j.status = 'pending'
                        and j.rank_at < p_job.rank_at + (l.priority - p_job.priority) * v_boost limit 10000) a limit 10000) c;
  select coalesce(sum((w.info ->> 'concurrency')::integer), 0), coalesce(sum(w.running), 0) into v_slots, v_busy
    from (select w.info, (select count(*) from pgqueue.job_live j where j.worker_id = w.id and j.status = 'running') as running
          from pgqueue.worker w
          where p_job.queue = any (w.queues) and w.lost_at is null and w.drain_requested_at is null
            and w.heartbeat_at > clock_timestamp() - make_interval(secs => w.lease_seconds)) w;
  select s.per_second into v_rate from pgqueue.stats(clock_timestamp() - interval '5 minutes', clock_timestamp(), of_queue => p_job.queue, by => 'queue') s;
  v_turn := case when v_ahead = 0 then 'it is the next' when v_ahead = 1 then '1 job comes before it'
            else format('%s jobs come before it', case when v_ahead < 10000 then v_ahead::text else 'more than 10,000' end) end
    || case when v_ahead between 1 and 9999 and v_rate > 0 then format('; at the rate of the last minutes its turn comes in %s', pgqueue.in_words(make_interval(secs => v_ahead / v_rate)))
       else '' end;
  if v_slots > 0 and v_busy >= v_slots then
    return query select 'busy', format('all %s slots of the workers that serve queue %s are taken; %s', v_slots, p_job.queue, v_turn),
      format('pgqueue work -A module:app --queues %s   # more workers, or: --concurrency', p_job.queue);
  else
    return query select 'waiting', format('it waits for its turn: %s', v_turn), null::text;
  end if;
end
$$;
comment on function pgqueue.why_waiting is 'Reason: it waits for its turn. Not for users.';
