-- events: what has happened since the last call: give back the cursor that came with the last row. Without one only a
-- cursor comes, in a row without a job: from here on.
--
-- The cursor is a snapshot of transactions, so nothing is missed and nothing comes twice, whatever commits in whatever order,
-- and a transaction that stays open holds up nobody's events but its own. In the order of commits, roughly.
--
-- Moves nothing. Locks nothing. Raises PQ001 for a cursor that is none, and when events are switched off.
-- Called by operators and readers: no payloads.
create or replace function pgqueue.events(after text default null)
returns table (at timestamptz, job_id bigint, queue text, task text, status text, attempt smallint, token integer, worker_id bigint,
               error_type text, cursor text)
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set jit = off
as $$
#variable_conflict use_column
declare
  v_after pg_snapshot;
begin
  if not exists (select 1 from pg_trigger t where t.tgrelid = 'pgqueue.job_live'::regclass and t.tgname = 'job_live_updated') then
    raise exception using errcode = 'PQ001', message = 'events are switched off',
      hint = 'Switch them on with `pgqueue events on`, or select pgqueue.set_events(true).';
  end if;
  if events.after is null then
    return query select null::timestamptz, null::bigint, null::text, null::text, null::text, null::smallint, null::integer, null::bigint,
                        null::text, pg_current_snapshot()::text;
    return;
  end if;
  begin
    v_after := events.after::pg_snapshot;
  exception when data_exception then
    raise exception using errcode = 'PQ001', message = format('%L is no cursor of events()', left(events.after, 100));
  end;
  return query
    select e.at, e.job_id, e.queue, e.task, e.status, e.attempt, e.token, e.worker_id, e.error_type, pg_current_snapshot()::text
    from pgqueue.event e
    where e.xid >= pg_snapshot_xmin(v_after) and not pg_visible_in_snapshot(e.xid, v_after)
    order by e.at, e.xid, e.job_id, e.token;
end
$$;
comment on function pgqueue.events is 'What has happened since the last call; nothing is missed, nothing comes twice.';
