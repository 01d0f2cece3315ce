-- lock_flows: locks the flows of these jobs, to the end of the transaction; returns their ids.
--
-- One lock a flow, not one a job that waits: then nobody needs an order in which to lock parents, children and their
-- children, and no two can wait for each other. It costs little: it is taken last, once a batch, and batches grow while
-- they wait for it. The order of all locks is: live jobs that do not wait for parents; groups; flows; jobs that do wait
-- for parents, and finished jobs of flows. Only who holds the flow may change those.
--
-- Moves nothing. Locks the flows, in ascending order. Raises nothing.
-- Called by whatever ends or revives jobs of flows; not for users.
create or replace function pgqueue.lock_flows(p_ids bigint[]) returns bigint[]
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
begin
  return array(select f.id from pgqueue.flow f
               where f.id = any (array(select distinct n.flow_id from pgqueue.flow_node n where n.job_id = any (p_ids)))
               order by f.id for update);
end
$$;
comment on function pgqueue.lock_flows is 'Locks the flows of these jobs. Not for users.';
