-- resume_children: these dead or cancelled jobs of flows have just been revived. So are the children that their end has stopped, and so on,
-- a generation at a time; children that were to continue, and have not started yet, wait for them again.
--
-- A stopped child that another dead parent stops too stays as it is; so does one whose key is taken, or that is gone.
-- At most 10,000 are revived in a call; sweep_flows() goes on.
--
-- Moves cancelled → blocked. Locks the rows; the caller has locked the flows. Raises nothing.
-- Called by retry, retry_many, sweep_flows; not for users.
create or replace function pgqueue.resume_children(p_ids bigint[], p_again boolean default false) returns void
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_ids    bigint[] := p_ids;
  v_next   bigint[];
  v_budget integer := 10000;
  v_child  pgqueue.flow_node%rowtype;
  v_job    pgqueue.job%rowtype;
  v_by     bigint;
  v_again  boolean := p_again;  -- its other children know already
begin
  if not p_again then perform pgqueue.count_revived(p_ids); end if;
  while cardinality(v_ids) > 0 loop
    if not v_again then
      update pgqueue.flow_node c set open_parents = c.open_parents + t.parents
        from (select e.child_id, count(*)::integer as parents from unnest(v_ids) u (id)
              join pgqueue.flow_edge e on e.parent_id = u.id and e.on_death = 'continue' group by e.child_id) t
        where c.job_id = t.child_id and c.open_parents > 0;
    end if;
    v_again := false;
    v_next := '{}';
    for v_child in
      select c.* from unnest(v_ids) u (id) join pgqueue.flow_edge e on e.parent_id = u.id
      join pgqueue.flow_node c on c.job_id = e.child_id and c.stopped_by = u.id order by c.job_id limit v_budget
    loop
      v_budget := v_budget - 1;
      select p.job_id into v_by from pgqueue.flow_edge e join pgqueue.flow_node p on p.job_id = e.parent_id
        where e.child_id = v_child.job_id and e.on_death = 'stop' and p.outcome in ('dead', 'cancelled') limit 1;
      if v_by is null then
        select j.* into v_job from pgqueue.job j where j.id = v_child.job_id and j.status = 'cancelled' for update;
        if found and pgqueue.revive(v_job, null) then
          v_next := v_next || v_child.job_id;
          continue;
        end if;
      end if;
      update pgqueue.flow_node n set stopped_by = v_by where n.job_id = v_child.job_id;
    end loop;
    perform pgqueue.count_revived(v_next) where cardinality(v_next) > 0;
    if v_budget <= 0 then
      update pgqueue.flow_node n set owes = true where n.job_id = any (v_ids || v_next);
      -- What was revived has other children, too; they must know before anything of it can end.
      update pgqueue.flow_node c set open_parents = c.open_parents + t.parents
        from (select e.child_id, count(*)::integer as parents from unnest(v_next) u (id)
              join pgqueue.flow_edge e on e.parent_id = u.id and e.on_death = 'continue' group by e.child_id) t
        where c.job_id = t.child_id and c.open_parents > 0;
      return;
    end if;
    v_ids := v_next;
  end loop;
end
$$;
comment on function pgqueue.resume_children is 'Revives what the end of these jobs had stopped. Not for users.';
