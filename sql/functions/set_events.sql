-- set_events: switches the stream of events on or off: a row in event for each change of a job's status.
--
-- By triggers, made and dropped here: what is off costs nothing, and no function can forget to tell. They look at whole
-- statements, so a batch is one insert more; measured: see docs/operations.md.
--
-- Moves nothing. Locks job_live, job_done and job_dead against writes, for a moment; raises 55P03 if that does not come
-- within two seconds: try again.
-- Called by operators.
create or replace function pgqueue.set_events(enabled boolean) returns void
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set lock_timeout = '2s' set client_min_messages = warning
as $$
declare
  v_table text;
begin
  foreach v_table in array '{job_live,job_done,job_dead}'::text[] loop
    execute format('drop trigger if exists %s_inserted on pgqueue.%I', v_table, v_table);
    if enabled then
      execute format('create trigger %s_inserted after insert on pgqueue.%I referencing new table as new_jobs'
                     ' for each statement execute function pgqueue.record_events()', v_table, v_table);
    end if;
  end loop;
  drop trigger if exists job_live_updated on pgqueue.job_live;
  if enabled then
    create trigger job_live_updated after update on pgqueue.job_live referencing old table as old_jobs new table as new_jobs
      for each statement execute function pgqueue.record_events();
  end if;
end
$$;
comment on function pgqueue.set_events is 'Switches the stream of events on or off.';
