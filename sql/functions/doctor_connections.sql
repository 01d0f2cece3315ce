-- doctor_connections: is there room for more?
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by doctor; not for users.
create or replace function pgqueue.doctor_connections() returns table (verdict text, finding text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_most integer;
  v_used integer;
  v_ours integer;
begin
  select current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer into v_most;
  select count(*), count(*) filter (where a.application_name like 'pgqueue%') into v_used, v_ours
    from pg_stat_activity a where a.backend_type = 'client backend';
  return query select case when v_used > 0.95 * v_most then 'broken' when v_used > 0.8 * v_most then 'warning' else 'ok' end,
    format('%s of %s connections are used, %s of them by pgqueue', v_used, v_most, v_ours),
    case when v_used > 0.8 * v_most then 'fewer worker processes with more --concurrency, smaller pools, PgBouncer, or a higher max_connections' end;
end
$$;
comment on function pgqueue.doctor_connections is 'A check of doctor. Not for users.';
