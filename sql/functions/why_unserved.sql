-- why_unserved: no live worker serves its queue.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by why and why_queue; not for users.
create or replace function pgqueue.why_unserved(p_job pgqueue.job) returns table (reason text, explanation text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_workers record;
begin
  if p_job.status in ('running', 'completed', 'dead', 'cancelled') then return; end if;
  select count(*) filter (where w.lost_at is null and w.silent <= w.lease) as alive,
         count(*) filter (where w.lost_at is null and w.silent <= w.lease and w.drain_requested_at is null) as claiming,
         count(*) filter (where w.lost_at is not null or w.silent > w.lease) as gone,
         min(w.silent) filter (where w.lost_at is not null or w.silent > w.lease) as last
    into v_workers
    from (select w.lost_at, w.drain_requested_at, clock_timestamp() - w.heartbeat_at as silent, make_interval(secs => w.lease_seconds) as lease
          from pgqueue.worker w where p_job.queue = any (w.queues)) w;
  if v_workers.alive = 0 then
    return query select 'no_worker', format('no live worker serves queue %s', p_job.queue)
        || case when v_workers.gone > 0 then format('; the last of %s that did was heard of %s ago', v_workers.gone, pgqueue.in_words(v_workers.last)) else '' end,
      format('pgqueue work -A module:app --queues %s', p_job.queue);
  elsif v_workers.claiming = 0 then
    return query select 'draining', format('all %s workers that serve queue %s were told to drain: they claim no more', v_workers.alive, p_job.queue),
      format('pgqueue work -A module:app --queues %s', p_job.queue);
  end if;
end
$$;
comment on function pgqueue.why_unserved is 'Reason: no live worker serves its queue. Not for users.';
