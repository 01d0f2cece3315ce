-- why_group_rate: the rate of its group lets nothing start now.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by why and why_queue; not for users.
create or replace function pgqueue.why_group_rate(p_job pgqueue.job) returns table (reason text, explanation text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_queue pgqueue.queue%rowtype;
  v_next  timestamptz := clock_timestamp();
begin
  if p_job.group_key is null then return; end if;
  select q.* into v_queue from pgqueue.queue q where q.queue = p_job.queue;
  if v_queue.group_rate is null then return; end if;
  if pgqueue.waits_for_rate(p_job) then
    v_next := p_job.run_at;
  elsif p_job.waits_for = 'group' or p_job.status = 'pending' then
    select t.next_at into v_next from pgqueue.queue_group g
      cross join lateral pgqueue.free_tokens(g.full_at, clock_timestamp(), v_queue.group_rate, v_queue.group_rate_seconds, v_queue.group_rate_burst) t
      where g.queue = p_job.queue and g.group_key = p_job.group_key and t.tokens < 1;
  end if;
  if v_next > clock_timestamp() then
    return query select 'group_rate', format('group %s of queue %s may start %s: %s in %s%s', p_job.group_key, p_job.queue,
        pgqueue.rate_in_words(v_queue.group_rate, v_queue.group_rate_seconds), case p_job.status when 'scheduled' then 'this one' else 'the next' end,
        pgqueue.in_words(v_next - clock_timestamp()), case p_job.status when 'blocked' then pgqueue.place_in_group(p_job) end),
      format('pgqueue queues set %s group_rate=%s/%ss', p_job.queue, 2 * v_queue.group_rate::bigint, v_queue.group_rate_seconds);
  end if;
end
$$;
comment on function pgqueue.why_group_rate is 'Reason: the rate of its group. Not for users.';
