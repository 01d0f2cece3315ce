-- doctor_versions: are the workers of one version, that of the schema?
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by doctor; not for users.
create or replace function pgqueue.doctor_versions() returns table (verdict text, finding text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_installed text;
  v_said      text;
  v_versions  integer;
  v_same      boolean;
begin
  select i.version into v_installed from pgqueue.installed i;
  select string_agg(format('%s (%s)', v.version, v.n), ', ' order by v.version), count(*), coalesce(bool_and(v.version = v_installed), true)
    into v_said, v_versions, v_same
    from (select w.info ->> 'version' as version, count(*) as n from pgqueue.worker w where w.lost_at is null and w.heartbeat_at > clock_timestamp() - make_interval(secs => w.lease_seconds) group by 1) v;
  return query select case when v_versions > 1 or not v_same then 'warning' else 'ok' end,
    format('functions of pgqueue %s%s', v_installed, coalesce(', workers of ' || v_said, '')),
    case when v_versions > 1 then 'in the middle of a deploy that is as it should be; else restart the older workers'
         when not v_same then 'pgqueue migrate, with the newest package; then restart the older workers' end;
end
$$;
comment on function pgqueue.doctor_versions is 'A check of doctor. Not for users.';
