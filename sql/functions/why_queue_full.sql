-- why_queue_full: as many jobs of its queue run as may at a time.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by why and why_queue; not for users.
create or replace function pgqueue.why_queue_full(p_job pgqueue.job) returns table (reason text, explanation text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_most  integer;
  v_slots integer;
  v_who   text;
begin
  if p_job.status in ('scheduled', 'running', 'completed', 'dead', 'cancelled') then return; end if;
  select q.max_running into v_most from pgqueue.queue q where q.queue = p_job.queue;
  if v_most is null then return; end if;
  select count(*), string_agg(format('job %s (%s) has run for %s', h.id, h.task, pgqueue.in_words(clock_timestamp() - h.started_at)), ', ' order by h.n)
         filter (where h.n <= 3) || case when count(*) > 3 then format(' and %s more', count(*) - 3) else '' end
    into v_slots, v_who
    from (select j.id, j.task, j.started_at, row_number() over (order by j.started_at, j.id) as n
          from pgqueue.job_live j where j.queue = p_job.queue and j.holds_slot and j.status = 'running') h;
  if v_slots >= v_most then
    return query select 'queue_full', format('queue %s may run %s at a time: %s', p_job.queue, case v_most when 1 then '1 job' else v_most || ' jobs' end, v_who),
      format('pgqueue queues set %s max_running=%s', p_job.queue, v_most + 1);
  end if;
end
$$;
comment on function pgqueue.why_queue_full is 'Reason: its queue has no slot. Not for users.';
