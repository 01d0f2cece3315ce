-- doctor_snapshots: does somebody keep dead rows from being removed?
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by doctor; not for users.
create or replace function pgqueue.doctor_snapshots() returns table (verdict text, finding text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  return query
    select case when h.held_for > interval '1 hour' or h.transactions > 10000000 then 'broken' else 'warning' end,
           format('%s %s (%s) has been open for %s, %s transactions ago: %s', h.kind, coalesce(h.pid::text, ''), h.name, pgqueue.in_words(h.held_for),
                  h.transactions, h.query),
           case when h.pid is not null then format('select pg_terminate_backend(%s), or wait for its end', h.pid)
                when h.kind = 'replication slot' then format('let its consumer catch up, or: select pg_drop_replication_slot(%L)', h.name)
                else format('rollback prepared %L', h.name) end
    from pgqueue.held_snapshots('1 minute') h limit 5;
  if not found then return query select 'ok', 'no transaction is older than a minute', null::text; end if;
end
$$;
comment on function pgqueue.doctor_snapshots is 'A check of doctor. Not for users.';
