-- doctor_workers: does somebody work, on every queue that has jobs?
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by doctor; not for users.
create or replace function pgqueue.doctor_workers() returns table (verdict text, finding text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  return query
    select 'broken', format('queue %s: %s jobs wait, the first for %s, and no live worker serves it', s.queue, s.pending,
             pgqueue.in_words(make_interval(secs => s.oldest_waiting_seconds::double precision))),
           format('pgqueue work -A module:app --queues %s', s.queue)
    from pgqueue.queue_status s where s.pending > 0 and s.workers = 0 and not s.paused
      -- Most of the time there is none: then a million waiting jobs need not be counted.
      and exists (select 1 from (select q.queue from pgqueue.queue q union select l.queue from pgqueue.lane l) n
                  where not exists (select 1 from pgqueue.worker w where n.queue = any (w.queues) and w.lost_at is null
                                    and w.heartbeat_at > clock_timestamp() - make_interval(secs => w.lease_seconds)))
    union all
    select 'warning', format('worker %s (%s) has not beaten for %s', w.id, w.name, pgqueue.in_words(clock_timestamp() - w.heartbeat_at)),
           'if nobody sweeps, its jobs wait: pgqueue sweep'
    from pgqueue.worker w where w.lost_at is null and w.heartbeat_at <= clock_timestamp() - make_interval(secs => w.lease_seconds)
    union all
    select 'warning', format('%s workers were lost in the last hour, the last %s ago: %s', count(*), pgqueue.in_words(clock_timestamp() - max(w.lost_at)),
             left(string_agg(w.name, ', ' order by w.lost_at desc), 200)), 'look for kills and out-of-memory in their logs'
    from pgqueue.worker w where w.lost_at > clock_timestamp() - interval '1 hour' having count(*) > 0;
  if not found then
    return query select 'ok', format('%s live workers', count(*)), null::text from pgqueue.worker w where w.lost_at is null and w.heartbeat_at > clock_timestamp() - make_interval(secs => w.lease_seconds);
  end if;
end
$$;
comment on function pgqueue.doctor_workers is 'A check of doctor. Not for users.';
