-- record_audit: writes down who did what by the web page. Called in the transaction of the action: there is no action
-- without its record, and no record of what did not happen.
--
-- Moves nothing. Locks nothing. Raises PQ001. Called by operators.
create or replace function pgqueue.record_audit(p_actor text, p_address text, p_action text, p_target text, p_detail jsonb default '{}')
returns bigint
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_id bigint;
begin
  if coalesce(p_actor, '') = '' or coalesce(p_action, '') = '' then
    raise exception using errcode = 'PQ001', message = 'an audit record needs an actor and an action';
  end if;
  insert into pgqueue.audit (at, actor, address, login, action, target, detail)
    values (clock_timestamp(), left(p_actor, 200), left(p_address, 100), session_user, left(p_action, 100), left(p_target, 1000),
            case when octet_length(p_detail::text) > 16384 then '{"left_out": "too long"}' else coalesce(p_detail, '{}') end)
    returning id into v_id;
  return v_id;
end
$$;
comment on function pgqueue.record_audit is 'Writes down who did what.';
