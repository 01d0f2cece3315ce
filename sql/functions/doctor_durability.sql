-- doctor_durability: does what is committed survive a crash?
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by doctor; not for users.
create or replace function pgqueue.doctor_durability() returns table (verdict text, finding text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  return query
    select case s.name when 'synchronous_commit' then 'warning' else 'broken' end, format('%s is off', s.name),
      case s.name when 'synchronous_commit' then 'enqueue() is durable all the same; completions of the last moments may be lost and run again'
                  else format('a crash may corrupt the database: alter system set %s = on', s.name) end
    from pg_settings s where s.name in ('fsync', 'full_page_writes', 'synchronous_commit') and s.setting = 'off';
  if not found then return query select 'ok', 'fsync, full_page_writes and synchronous_commit are on', null::text; end if;
end
$$;
comment on function pgqueue.doctor_durability is 'A check of doctor. Not for users.';
