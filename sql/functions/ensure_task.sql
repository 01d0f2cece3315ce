-- ensure_task: gives a task its row.
--
-- Moves nothing. Locks the new row. Raises PQ001 for a bad name.
-- Called by pause_task, set_task, force_circuit; not for users.
create or replace function pgqueue.ensure_task(p_task text) returns void
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
begin
  if p_task is null or p_task !~ '^[A-Za-z0-9_.:-]{1,128}$' then
    raise exception using errcode = 'PQ001',
      message = format('bad task name %s: use 1 to 128 of A-Z a-z 0-9 _ . : -', coalesce(quote_literal(left(p_task, 40)), 'null'));
  end if;
  insert into pgqueue.task (task) values (p_task) on conflict (task) do nothing;
end
$$;
comment on function pgqueue.ensure_task is 'Gives a task its row. Not for users.';
