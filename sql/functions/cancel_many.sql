-- cancel_many: cancels the live jobs that match a filter (see job_filter), one batch a call: those that wait at once, those
-- that run when their worker hears of it.
--
-- Call it again with after_id => last_id until last_id is null. What is cancelled is live no more, and who has been asked is
-- not asked again: a run that is killed midway or repeated does nothing twice.
--
-- Moves blocked, scheduled, pending → cancelled. Locks the batch by ascending id, skipping what others hold. Raises PQ001.
-- Called by operators.
create or replace function pgqueue.cancel_many(
  filter jsonb, reason text default null, after_id bigint default 0, batch integer default 1000)
returns table (cancelled integer, asked integer, last_id bigint)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_id bigint;
begin
  if batch is null or batch not between 1 and 100000 then
    raise exception using errcode = 'PQ001', message = 'batch must be between 1 and 100000';
  end if;
  cancelled := 0;
  asked := 0;
  for v_id in execute format(
    'select j.id from pgqueue.job_live j where j.id > $1 and j.cancel_requested_at is null and %s order by j.id limit %s for update skip locked',
    pgqueue.job_filter(filter), batch) using coalesce(after_id, 0)
  loop
    last_id := v_id;
    case pgqueue.cancel(v_id, cancel_many.reason)
      when 'cancelled' then cancelled := cancelled + 1;
      when 'running' then asked := asked + 1;
      else null;
    end case;
  end loop;
  return next;
end
$$;
comment on function pgqueue.cancel_many is 'Cancels one batch of the live jobs that match a filter; repeat with after_id => last_id.';
