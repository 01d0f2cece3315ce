-- load_parents: what became of the jobs that a job runs after, in order: of those that completed, what they returned.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by workers, when a handler asks for its parents.
create or replace function pgqueue.load_parents(p_id bigint)
returns table (name text, id bigint, task text, outcome text, result jsonb, error_type text, error text)
language plpgsql stable security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off
as $$
#variable_conflict use_column
begin
  return query
    select p.name, p.job_id, j.task, p.outcome, p.result, case when p.outcome <> 'completed' then j.error_type end,
           case when p.outcome <> 'completed' then j.error end
    from pgqueue.flow_edge e join pgqueue.flow_node p on p.job_id = e.parent_id left join pgqueue.job j on j.id = p.job_id
    where e.child_id = p_id order by e.position;
end
$$;
comment on function pgqueue.load_parents is 'What became of the parents of a job.';
