-- list_flow: the jobs of a flow, and which run after which, in the order in which they were enqueued.
--
-- Moves nothing. Locks nothing. Raises PQ002 if there is no such flow.
-- Called by operators, for pgqueue flows show and the page.
create or replace function pgqueue.list_flow(id bigint)
returns table (job_id bigint, name text, queue text, task text, status text, attempt smallint, started_at timestamptz, finished_at timestamptz,
               error_type text, error text, parents bigint[])
language plpgsql stable security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off
as $$
#variable_conflict use_column
begin
  if not exists (select 1 from pgqueue.flow f where f.id = list_flow.id) then
    raise exception using errcode = 'PQ002', message = format('there is no flow %s', coalesce(list_flow.id::text, 'null'));
  end if;
  return query
    select n.job_id, n.name, j.queue, j.task, coalesce(j.status, n.outcome), j.attempt, j.started_at, j.finished_at, j.error_type, j.error,
           array(select e.parent_id from pgqueue.flow_edge e where e.child_id = n.job_id order by e.position)
    from pgqueue.flow_node n left join pgqueue.job j on j.id = n.job_id
    where n.flow_id = list_flow.id order by n.job_id;
end
$$;
comment on function pgqueue.list_flow is 'The jobs of a flow, and which run after which.';
