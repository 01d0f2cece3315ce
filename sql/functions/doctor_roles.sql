-- doctor_roles: do they exist, and may nobody else do anything?
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by doctor; not for users.
create or replace function pgqueue.doctor_roles() returns table (verdict text, finding text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  return query
    select 'warning', format('the role %s does not exist', r.name), 'let a superuser run `pgqueue migrate`; or ignore it, if all work as the owner'
    from unnest('{pgqueue_producer,pgqueue_worker,pgqueue_operator,pgqueue_reader}'::text[]) r (name) where to_regrole(r.name) is null
    union all
    select 'broken', format('everybody may execute pgqueue.%s', p.oid::regprocedure), format('revoke all on function pgqueue.%s from public', p.oid::regprocedure)
    from pg_proc p where p.pronamespace = 'pgqueue'::regnamespace
      and exists (select 1 from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a where a.grantee = 0)
    union all
    select 'broken', format('the role %s may not use the schema', r.rolname), 'pgqueue migrate'
    from pg_roles r where r.rolname = any ('{pgqueue_producer,pgqueue_worker,pgqueue_operator,pgqueue_reader}')
      and not has_schema_privilege(r.oid, 'pgqueue', 'usage');
  if not found then return query select 'ok', 'they exist, and the public may do nothing', null::text; end if;
end
$$;
comment on function pgqueue.doctor_roles is 'A check of doctor. Not for users.';
