-- next_groups: groups of a queue that have parked jobs, in order, from one on; by hopping through the index.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by sweep_limits; not for users.
create or replace function pgqueue.next_groups(p_queue text, p_from text, p_limit integer) returns text[]
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
begin
  return array(
    with recursive parked as (
      (select j.group_key, 1 as n from pgqueue.job_live j where j.queue = p_queue and j.waits_for = 'group' and j.group_key > p_from
       order by j.group_key limit 1)
      union all
      select (select j.group_key from pgqueue.job_live j where j.queue = p_queue and j.waits_for = 'group' and j.group_key > p.group_key
              order by j.group_key limit 1), p.n + 1
      from parked p where p.group_key is not null and p.n < p_limit)
    select p.group_key from parked p where p.group_key is not null);
end
$$;
comment on function pgqueue.next_groups is 'Groups that have parked jobs, from one on. Not for users.';
