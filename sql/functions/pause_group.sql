-- pause_group: no more jobs of this group of the queue are claimed, until resume_group() or the given time. Running jobs go on.
--
-- Moves nothing: claims park the jobs that they meet. Locks the group's row, waiting for claims of it.
-- Raises PQ001 for bad names or a time that is not ahead.
-- Called by operators.
create or replace function pgqueue.pause_group(queue text, group_key text, until timestamptz default null, reason text default null)
returns void
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  if pause_group.until <= clock_timestamp() or pause_group.until > '9999-12-30 00:00+00' then
    raise exception using errcode = 'PQ001', message = 'a pause ends at a time that lies ahead';
  elsif pause_group.group_key is null or octet_length(pause_group.group_key) not between 1 and 512 then
    raise exception using errcode = 'PQ001', message = 'a group has 1 to 512 bytes';
  end if;
  perform pgqueue.ensure_queue(pause_group.queue);
  insert into pgqueue.queue_group as g (queue, group_key, paused_at, paused_until, paused_reason)
    values (pause_group.queue, pause_group.group_key, clock_timestamp(), pause_group.until, left(pause_group.reason, 1000))
    on conflict (queue, group_key) do update
      set paused_at = excluded.paused_at, paused_until = excluded.paused_until, paused_reason = excluded.paused_reason;
  perform pgqueue.regate(pause_group.queue);
end
$$;
comment on function pgqueue.pause_group is 'Stops claims of a group of a queue, with an end time if given.';
