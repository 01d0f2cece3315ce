-- cancel_flow: cancels all jobs of a flow that wait, asks those that run to stop. Nothing of it is released from now on.
--
-- What is just being claimed or reported at this moment, and what is more than 10,000 jobs, follows with the next sweeps.
-- Returns how many were cancelled, and how many asked.
--
-- Moves blocked, scheduled, pending → cancelled. Locks the flow and its waiting jobs, skipping those of them that others hold.
-- Raises PQ002 if there is no such flow.
-- Called by operators and by users.
create or replace function pgqueue.cancel_flow(id bigint, reason text default null, out cancelled integer, out asked integer)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  cancelled := 0; asked := 0;
  update pgqueue.flow f set cancelled_at = coalesce(f.cancelled_at, clock_timestamp()),
    cancel_reason = coalesce(f.cancel_reason, left(cancel_flow.reason, 4000), 'the flow was cancelled')
    where f.id = cancel_flow.id and f.ended_at is null;
  if found then
    select c.cancelled, c.asked into cancelled, asked from pgqueue.cancel_flow_jobs(cancel_flow.id, 10000) c;
  elsif not exists (select 1 from pgqueue.flow f where f.id = cancel_flow.id) then
    raise exception using errcode = 'PQ002', message = format('there is no flow %s', coalesce(cancel_flow.id::text, 'null'));
  end if;
end
$$;
comment on function pgqueue.cancel_flow is 'Cancels what waits of a flow, asks what runs to stop.';
