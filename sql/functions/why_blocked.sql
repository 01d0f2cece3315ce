-- why_blocked: it runs after jobs that have not ended in a way that lets it run.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by why; not for users.
create or replace function pgqueue.why_blocked(p_job pgqueue.job) returns table (reason text, explanation text, remedy text)
language plpgsql stable security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_all   bigint;
  v_live  bigint;
  v_bad   bigint;
  v_who   text;
  v_first bigint;
  v_state text;
begin
  if p_job.waits_for is distinct from 'parents' then return; end if;
  -- Dead ones first: nothing moves until somebody does something about them.
  select count(*), count(*) filter (where p.open and p.outcome is null), count(*) filter (where p.open and p.outcome is not null),
         string_agg(format('%s (job %s, %s)', p.name, p.job_id, coalesce(p.outcome, p.status)), ', ' order by p.nth) filter (where p.open and p.nth <= 3),
         (array_agg(p.job_id order by p.nth) filter (where p.open))[1], (array_agg(p.outcome order by p.nth) filter (where p.open))[1]
    into v_all, v_live, v_bad, v_who, v_first, v_state
    from (select e.job_id, e.name, e.outcome, e.open, j.status,
                 row_number() over (order by e.open desc, e.outcome nulls last, j.status = 'running' desc, e.position) as nth
          from (select n.job_id, n.name, n.outcome, e.position,
                       n.outcome is null or n.outcome <> 'completed' and e.on_death <> 'continue' as open
                from pgqueue.flow_edge e join pgqueue.flow_node n on n.job_id = e.parent_id where e.child_id = p_job.id) e
          left join pgqueue.job_live j on j.id = e.job_id and e.outcome is null) p;
  if v_live + v_bad = 0 then return; end if;  -- the last of them has just ended
  return query select case when v_bad > 0 then 'parent_dead' else 'parents' end,
    format('it runs after %s, of which %s: %s%s%s',
      case v_all when 1 then '1 job' else v_all || ' jobs' end,
      concat_ws(' and ', case when v_bad > 0 then format('%s died or %s cancelled', v_bad, case v_bad when 1 then 'was' else 'were' end) end,
                         case when v_live > 0 then format('%s %s not ended', v_live, case v_live when 1 then 'has' else 'have' end) end),
      v_who, case when v_live + v_bad > 3 then format(' and %s more', v_live + v_bad - 3) else '' end,
      case when v_bad > 0 then '; it waits until somebody retries what died' else '' end),
    case v_state when 'dead' then format('pgqueue dead retry %s', v_first) when 'cancelled' then format('pgqueue jobs retry %s', v_first)
                 else format('pgqueue why %s', v_first) end;
end
$$;
comment on function pgqueue.why_blocked is 'Reason: it waits for its parents. Not for users.';
