-- pause: nothing more is claimed from a queue, until resume() or the given time. Running jobs go on.
--
-- Moves nothing. Locks the queue's row. Raises PQ001 for a bad name or a time that is not ahead.
-- Called by operators.
create or replace function pgqueue.pause(queue text, until timestamptz default null, reason text default null) returns void
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  if pause.until <= clock_timestamp() or pause.until > '9999-12-30 00:00+00' then
    raise exception using errcode = 'PQ001', message = 'a pause ends at a time that lies ahead';
  end if;
  loop  -- somebody may be deleting it
    perform pgqueue.ensure_queue(pause.queue);
    update pgqueue.queue q set paused_at = clock_timestamp(), paused_until = pause.until, paused_reason = left(pause.reason, 1000)
      where q.queue = pause.queue;
    exit when found;
  end loop;
end
$$;
comment on function pgqueue.pause is 'Stops claims from a queue, with an end time if given.';
