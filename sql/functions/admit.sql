-- admit: whether a queue with max_depth takes so many jobs more: null if it does, 'shed' if they are to be stored as
-- cancelled, because they are below the priority that still matters.
--
-- Nothing is counted here: depth was counted by count_depth(), a moment ago, and two sequences count what came and went since.
-- They are off by what rolled back, until the next count.
--
-- Moves nothing. Locks nothing. Raises PQ007 when the queue is full; its hint says when to try again.
-- Called by enqueue and enqueue_many; not for users.
create or replace function pgqueue.admit(p_queue text, p_priority integer, p_jobs integer) returns text
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_is   record;
  v_gone bigint;
  v_wait double precision;
begin
  select q.max_depth, q.shed_below, q.came, q.went, g.depth, g.depth_counted_at into v_is
    from pgqueue.queue q join pgqueue.queue_gate g on g.queue = q.queue where q.queue = p_queue;
  if v_is.max_depth is null or v_is.came is null then return null; end if;
  v_gone := coalesce(pg_sequence_last_value(v_is.went), 0);
  if v_is.depth + coalesce(pg_sequence_last_value(v_is.came), 0) - v_gone + p_jobs <= v_is.max_depth then
    perform count(nextval(v_is.came)) from generate_series(1, p_jobs);
    return null;
  end if;
  if p_priority < v_is.shed_below then return 'shed'; end if;
  if v_is.shed_below is not null then
    perform count(nextval(v_is.came)) from generate_series(1, p_jobs);
    return null;
  end if;
  -- As fast as jobs went lately, when will there be room?
  v_wait := p_jobs * extract(epoch from clock_timestamp() - greatest(v_is.depth_counted_at, clock_timestamp() - interval '1 hour')) / nullif(v_gone, 0);
  raise exception using errcode = 'PQ007',
    message = format('queue %L is full: %s jobs or more wait', p_queue, v_is.max_depth),
    hint = format('Try again in %s s.', round(least(greatest(coalesce(v_wait, 5), 1), 60)::numeric, 1));
end
$$;
comment on function pgqueue.admit is 'Whether a queue with max_depth takes more jobs. Not for users.';
