-- register_worker: a worker process introduces itself and gets its id.
--
-- Moves nothing. Locks nothing. Raises PQ001.
-- Called by workers, at their start and after they were declared lost.
create or replace function pgqueue.register_worker(p_name text, p_queues text[], p_lease_seconds integer default 30, p_info jsonb default '{}')
returns bigint
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_id bigint;
begin
  if coalesce(cardinality(p_queues), 0) = 0 or p_lease_seconds is null or p_lease_seconds not between 1 and 86400 or p_name is null then
    raise exception using errcode = 'PQ001', message = 'a worker has a name, at least one queue and a lease of 1 to 86400 seconds';
  end if;
  if jsonb_typeof(p_info) <> 'object' then
    raise exception using errcode = 'PQ001', message = 'what a worker tells of itself is a JSON object';
  end if;
  perform pgqueue.ensure_queue(q.queue) from (select distinct u as queue from unnest(p_queues) u order by u) q;
  insert into pgqueue.worker (heartbeat_at, started_at, lease_seconds, name, queues, info)
    values (clock_timestamp(), clock_timestamp(), p_lease_seconds, left(p_name, 200), p_queues, coalesce(p_info, '{}'))
    returning worker.id into v_id;
  return v_id;
end
$$;
comment on function pgqueue.register_worker is 'A worker introduces itself; returns its id.';
