-- held_key: the finished job that still holds a key, or null.
--
-- p_fresh: the caller has just inserted the key and must not miss a hold that is newer than its snapshot. Under
-- READ COMMITTED every statement sees what is committed. Under a fixed snapshot only a write can notice it:
-- it raises 40001 if somebody else wrote that row meanwhile, and is undone at once.
--
-- Moves nothing. Locks the hold's row, with p_fresh under REPEATABLE READ or SERIALIZABLE only. Raises 40001.
-- Called by enqueue, enqueue_many, retry.
create or replace function pgqueue.held_key(p_queue text, p_key text, p_fresh boolean default false) returns bigint
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_id bigint;
begin
  if p_fresh and current_setting('transaction_isolation') <> 'read committed' then
    insert into pgqueue.key_hold as h (queue, key, job_id, held_until) values (p_queue, p_key, 0, '-infinity')
      on conflict (queue, key) do update set held_until = h.held_until;
    delete from pgqueue.key_hold h where h.queue = p_queue and h.key = p_key and h.held_until = '-infinity';
  end if;
  select h.job_id into v_id from pgqueue.key_hold h
    where h.queue = p_queue and h.key = p_key and h.held_until > clock_timestamp();
  return v_id;
end
$$;
comment on function pgqueue.held_key is 'The finished job that still holds a key (key_ttl), or null.';
