-- load_steps: the steps that earlier attempts of a job have finished.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by workers, when a handler reaches its first step in an attempt that is not the first.
create or replace function pgqueue.load_steps(p_id bigint) returns table (name text, result jsonb)
language plpgsql stable security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off
as $$
#variable_conflict use_column
begin
  return query select t.name, t.result from pgqueue.job_step t where t.job_id = p_id order by t.saved_at;
end
$$;
comment on function pgqueue.load_steps is 'The finished steps of a job.';
