-- set_recurring: makes a recurring job, or changes one:
--   set_recurring('nightly', '{"task": "report", "cron": "0 2 * * *", "timezone": "Europe/Berlin"}')
--   set_recurring('nightly', '{"every": "90 seconds", "payload": {"region": "eu"}}')
-- The settings are columns of recurring_job. What is not named stays; null goes back to the default. If that changes
-- when it is due, due times count from now on. A cron expression and a zone are judged by the first ticker that sees
-- them (a moment later): see broken_reason in recurring_status.
--
-- is_new => true: it must not exist (PQ004); false: it must (PQ002); null: either will do. An edit of what an app
-- declares holds until that declaration itself changes: then the code has the last word.
--
-- Moves nothing. Locks the row; waits for a transaction that is making the same name.
-- Raises PQ001 bad setting, PQ002, PQ004, PQ006 bad payload. Called by operators.
create or replace function pgqueue.set_recurring(name text, settings jsonb, is_new boolean default null) returns text
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_old pgqueue.recurring_job;
  v_row pgqueue.recurring_job;
begin
  loop
    select r.* into v_old from pgqueue.recurring_job r where r.name = set_recurring.name for update;
    if found then
      if set_recurring.is_new then
        raise exception using errcode = 'PQ004', message = format('there is a recurring job %L already', set_recurring.name);
      end if;
      v_row := pgqueue.apply_recurring(v_old, settings);
      if v_old.owner = 'code' then v_row.edited_at := clock_timestamp(); end if;
      perform pgqueue.store_recurring(v_row, false);
      return 'changed';
    elsif not set_recurring.is_new then
      raise exception using errcode = 'PQ002', message = format('there is no recurring job %L', set_recurring.name);
    end if;
    v_old.name := set_recurring.name;
    v_row := pgqueue.apply_recurring(v_old, settings);
    v_row.owner := 'operator';
    v_row.active := true;
    v_row.created_at := v_row.changed_at;
    if pgqueue.store_recurring(v_row, true) then return 'added'; end if;
  end loop;
end
$$;
comment on function pgqueue.set_recurring is 'Makes or changes a recurring job; null goes back to the default. Returns added or changed.';
