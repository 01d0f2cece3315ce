-- why_held: somebody holds a snapshot open, so that claims have to walk over dead rows.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by why and why_queue; not for users.
create or replace function pgqueue.why_held(p_job pgqueue.job) returns table (reason text, explanation text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  if p_job.status in ('running', 'completed', 'dead', 'cancelled') then return; end if;
  return query
    select 'held_snapshot', format('%s %s has held a snapshot open for %s (%s transactions), so dead rows cannot be removed and claims may be slower: %s',
             h.kind, coalesce(h.pid::text, h.name), pgqueue.in_words(h.held_for), h.transactions, coalesce(h.query, h.name)),
           case when h.pid is not null then format('select pg_terminate_backend(%s)', h.pid) end
    from pgqueue.held_snapshots('5 minutes') h limit 1;
end
$$;
comment on function pgqueue.why_held is 'Reason: somebody holds a snapshot open. Not for users.';
