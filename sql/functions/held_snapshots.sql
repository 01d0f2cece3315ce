-- held_snapshots: who keeps PostgreSQL from removing what is dead, the oldest first: open transactions and queries of this
-- database, standbys with feedback, replication slots, prepared transactions. The query is there if the owner of the schema
-- may see it (a superuser, or a member of pg_read_all_stats).
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by operators, by why and by doctor.
create or replace function pgqueue.held_snapshots(at_least interval default '1 minute')
returns table (kind text, pid integer, name text, held_for interval, transactions integer, query text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  return query
    select h.kind, h.pid, h.name, h.held_for, h.transactions, h.query from (
      select case when a.backend_type = 'walsender' then 'standby' else 'session' end as kind, a.pid,
             concat_ws(' ', a.usename, nullif(a.application_name, ''), host(a.client_addr)) as name, clock_timestamp() - a.xact_start as held_for,
             greatest(age(a.backend_xmin), age(a.backend_xid)) as transactions, left(concat_ws(': ', a.state, a.query), 300) as query
      from pg_stat_activity a
      where (a.backend_xmin is not null or a.backend_xid is not null) and (a.datname = current_database() or a.datname is null)
        and a.pid <> pg_backend_pid() and a.backend_type in ('client backend', 'walsender', 'background worker', 'parallel worker')
      union all
      select 'replication slot', s.active_pid, s.slot_name::text, null, greatest(age(s.xmin), age(s.catalog_xmin)), null
      from pg_replication_slots s where s.xmin is not null and not s.active
      union all
      select 'prepared transaction', null, p.gid, clock_timestamp() - p.prepared, age(p.transaction), null
      from pg_prepared_xacts p where p.database = current_database()
    ) h
    -- Where the time is not known, what has happened since says enough.
    where h.held_for >= at_least or h.held_for is null and h.transactions > 100000
    order by h.transactions desc;
end
$$;
comment on function pgqueue.held_snapshots is 'Who keeps dead rows from being removed, the oldest first.';
