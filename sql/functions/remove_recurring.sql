-- remove_recurring: forgets a recurring job. The jobs that it made stay. False: there was none.
--
-- One that an app declares would be back when that app starts next: refused, unless although_declared => true (the app
-- is gone, or has another name now).
--
-- Moves nothing. Locks the row; waits for a tick of it. Raises PQ003 if an app declares it. Called by operators.
create or replace function pgqueue.remove_recurring(name text, although_declared boolean default false) returns boolean
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_source text;
begin
  select r.source into v_source from pgqueue.recurring_job r
    where r.name = remove_recurring.name and r.active and r.owner = 'code' for update;
  if found and not coalesce(although_declared, false) then
    raise exception using errcode = 'PQ003',
      message = format('recurring job %L is declared by %s, whose next start would bring it back', remove_recurring.name, v_source),
      hint = 'Pause it, or take it out of the code.';
  end if;
  delete from pgqueue.recurring_job r where r.name = remove_recurring.name;
  return found;
end
$$;
comment on function pgqueue.remove_recurring is 'Forgets a recurring job; its jobs stay.';
