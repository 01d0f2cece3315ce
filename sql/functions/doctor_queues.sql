-- doctor_queues: are queues full, or nearly, by the figures that enqueue() goes by?
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by doctor; not for users.
create or replace function pgqueue.doctor_queues() returns table (verdict text, finding text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  return query
    select case when d.depth < d.max_depth or d.shed_below is not null then 'warning' else 'broken' end,
           format('queue %s: %s of at most %s jobs wait: %s', d.queue, d.depth, d.max_depth,
                  case when d.depth < d.max_depth then 'it is nearly full'
                       when d.shed_below is not null then format('jobs below priority %s are shed', d.shed_below)
                       else 'enqueue() refuses more' end),
           format('pgqueue why --queue %s; more workers, or: pgqueue queues set %s max_depth=%s', d.queue, d.queue, 2 * d.max_depth::bigint)
    from (select q.queue, q.max_depth, q.shed_below,
                 greatest(g.depth + coalesce(pg_sequence_last_value(q.came), 0) - coalesce(pg_sequence_last_value(q.went), 0), 0) as depth
          from pgqueue.queue q join pgqueue.queue_gate g on g.queue = q.queue where q.max_depth is not null and q.came is not null) d
    where d.depth >= 0.8 * d.max_depth order by d.queue limit 20;
  if not found then return query select 'ok', 'none is full', null::text; end if;
end
$$;
comment on function pgqueue.doctor_queues is 'A check of doctor. Not for users.';
